//! Lines over a numeric axis.

use std::collections::BTreeSet;

use super::sketch::{Anchor, Grid, Piece, Place, Sketch, Stroke};
use super::{Drawn, Key, Names, PageWidth, Sample, Undrawn, not_finite, nothing, title};
use crate::figure::{Lines, Scale, Shape};
use crate::ruler::{Ruler, Show, Tick};
use crate::unit::Unit;

/// Limit of lines that are named at their ends; with more, names would overlap.
const NAMED: usize = 8;
/// Points that are all marked on a wide page.
const FEW: usize = 40;
/// Number of series whose marks are placed differently.
const PHASES: usize = 8;

/// A line with the finite ones of its points, from left to right.
struct Kept<'l> {
    name: &'l str,
    shape: Shape,
    points: Vec<(f64, f64)>,
}

impl Kept<'_> {
    /// Smallest and largest value for `from <= x < next`.
    fn between(&self, from: f64, next: Option<f64>) -> Option<(f64, f64)> {
        let begin = self.points.partition_point(|(x, _)| *x < from);
        let inside =
            self.points[begin..].iter().take_while(|(x, _)| next.is_none_or(|next| *x < next));
        let ends = inside.fold(None, |ends: Option<(f64, f64)>, (_, y)| {
            Some(ends.map_or((*y, *y), |(low, high)| (low.min(*y), high.max(*y))))
        });
        match self.shape {
            // The value that holds.
            Shape::Steps => ends.or_else(|| {
                let (_, y) = self.points.get(begin.checked_sub(1)?)?;
                Some((*y, *y))
            }),
            Shape::Straight | Shape::Dots => ends,
        }
    }
}

/// Draws lines.
pub(super) fn draw(lines: &Lines) -> Result<Drawn, Undrawn> {
    let mut left_out = 0;
    let mut kept: Vec<Kept<'_>> = Vec::with_capacity(lines.lines.len());
    for line in &lines.lines {
        let finite = |(x, y): &&(f64, f64)| x.is_finite() && y.is_finite();
        let mut points: Vec<(f64, f64)> = line.points.iter().filter(finite).copied().collect();
        left_out += line.points.len() - points.len();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        kept.push(Kept { name: &line.name, shape: line.shape, points });
    }
    if kept.iter().all(|line| line.points.is_empty()) {
        return Err(nothing(left_out));
    }
    let x = Ruler::over(points(&kept).map(|point| point.0), &lines.x, Show::Data);
    let y = Ruler::over(points(&kept).map(|point| point.1), &lines.y, Show::NearZero).rounded(5);
    let to_the_end = |line: &Kept<'_>| match line.shape {
        Shape::Steps => !line.points.is_empty(),
        _ => line.points.last().is_some_and(|last| x.at(last.0) > 0.9),
    };
    let named = (2..=NAMED).contains(&kept.len()) && kept.iter().all(to_the_end);
    let names = if named { Names::AtLines } else { Names::Above };
    let mut svg = Vec::new();
    for page in [PageWidth::Wide, PageWidth::Narrow] {
        svg.push(sketch(lines, &kept, [&x, &y], page, names).draw()?);
    }
    let sample = |line: &Kept<'_>| match line.shape {
        Shape::Dots => Sample::Mark,
        Shape::Straight | Shape::Steps => Sample::Line,
    };
    let series = kept.iter().map(|line| (line.name.to_owned(), sample(line))).collect();
    let notes = not_finite(left_out).into_iter().collect();
    let key = Key { series, names };
    Ok(Drawn { svg, key, notes })
}

fn points<'k>(kept: &'k [Kept<'_>]) -> impl Iterator<Item = (f64, f64)> + 'k {
    kept.iter().flat_map(|line| line.points.iter().copied())
}

fn sketch(
    lines: &Lines,
    kept: &[Kept<'_>],
    [x, y]: [&Ruler; 2],
    page: PageWidth,
    names: Names,
) -> Sketch {
    let height = match page {
        PageWidth::Wide => 300,
        PageWidth::Narrow => 210,
    };
    let (mut pieces, mut marks, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for (series, line) in kept.iter().enumerate() {
        let places = line.points.iter().map(|point| (x.at(point.0), y.at(point.1)));
        let places: Vec<Place> = places.collect();
        if let Some(last) = places.last() {
            ends.push((series, (1.0 - last.1) * f64::from(height)));
        }
        let places = match line.shape {
            Shape::Dots => apart(&places, page, height),
            Shape::Straight | Shape::Steps => thinned(&places, page),
        };
        let phase = series % PHASES.min(kept.len());
        let phase = (phase as f64 + 0.5) / PHASES.min(kept.len()) as f64;
        let marked = marked(&places, line.shape, page, phase).into_iter();
        marks.extend(marked.map(|place| Piece::Mark([place], series)));
        pieces.extend(trace(places, series, line.shape));
    }
    // Above all lines, so that the marks of one that is covered show it.
    pieces.extend(marks);
    let mut right = 2;
    if names == Names::AtLines && page == PageWidth::Wide {
        right = label(&mut pieces, kept, &ends, height);
    }
    pieces.extend(hits(kept, lines, x, page));
    let y_ticks = y.ticks(5);
    let room = page.width() - page.left(&y_ticks) - right;
    let at_points = ticks_at_points(kept, lines, x, page, room);
    Sketch {
        page,
        height,
        right,
        x: at_points.unwrap_or_else(|| page.ticks_of(x, room)),
        x_name: lines.x.name.clone(),
        y: y_ticks,
        y_name: lines.y.name.clone(),
        grid: Grid::Across,
        pieces,
    }
}

/// The first, least, greatest and last of the places in each column of pixels.
fn thinned(places: &[Place], page: PageWidth) -> Vec<Place> {
    let column = |place: &Place| (place.0 * f64::from(page.width())) as i32;
    let mut kept = Vec::new();
    for group in places.chunk_by(|one, other| column(one) == column(other)) {
        let by_height = |one: &usize, other: &usize| group[*one].1.total_cmp(&group[*other].1);
        let least = (0..group.len()).min_by(by_height).unwrap_or(0);
        let greatest = (0..group.len()).max_by(by_height).unwrap_or(0);
        let mut of_group = [0, least, greatest, group.len() - 1];
        of_group.sort_unstable();
        kept.extend(of_group.map(|nth| group[nth]));
    }
    kept.dedup();
    kept
}

/// Places without dots that others cover.
fn apart(places: &[Place], page: PageWidth, height: i32) -> Vec<Place> {
    const DOT: i32 = 7;
    let cell = |part: f64, pixels: i32| (part * f64::from(pixels / DOT)) as i32;
    let mut taken = BTreeSet::new();
    let mut kept = places.to_vec();
    kept.retain(|place| taken.insert((cell(place.0, page.width()), cell(place.1, height))));
    kept
}

/// The places of a line that have marks: a long one has a few, each series elsewhere.
fn marked(places: &[Place], shape: Shape, page: PageWidth, phase: f64) -> Vec<Place> {
    let (few, along) = match page {
        PageWidth::Wide => (FEW, 7),
        PageWidth::Narrow => (16, 3),
    };
    match shape {
        Shape::Dots => places.to_vec(),
        Shape::Straight if places.len() <= few => places.to_vec(),
        _ => {
            let at = |nth: i32| (f64::from(nth) + phase) / f64::from(along);
            let mark = |nth| along_the_line(places, at(nth), shape);
            (0..along).filter_map(mark).collect()
        }
    }
}

/// The line of a series.
fn trace(places: Vec<Place>, series: usize, shape: Shape) -> Option<Piece> {
    let places = match shape {
        Shape::Dots => return None,
        Shape::Straight => places,
        Shape::Steps => {
            let mut level: Vec<Place> = Vec::with_capacity(2 * places.len() + 1);
            for place in places {
                if let Some(before) = level.last().copied() {
                    level.push((place.0, before.1));
                }
                level.push(place);
            }
            if let Some(last) = level.last().copied() {
                level.push((1.0, last.1));
            }
            level
        }
    };
    (places.len() > 1).then_some(Piece::Line(places, Stroke::Series(series)))
}

/// The place of a line at `at`, or its next point before that.
fn along_the_line(places: &[Place], at: f64, shape: Shape) -> Option<Place> {
    let before = places.partition_point(|place| place.0 <= at).checked_sub(1)?;
    let point = *places.get(before)?;
    Some(match shape {
        Shape::Steps => (at, point.1),
        Shape::Straight | Shape::Dots => point,
    })
}

/// Names lines at their ends, each so far from the next that it can be read; the room that takes.
fn label(pieces: &mut Vec<Piece>, kept: &[Kept<'_>], ends: &[(usize, f64)], height: i32) -> i32 {
    const APART: f64 = 17.0;
    let mut places = ends.to_vec();
    places.sort_by(|one, other| one.1.total_cmp(&other.1));
    let mut least = 0.0f64;
    for (_, at) in &mut places {
        *at = at.max(least);
        least = *at + APART;
    }
    let mut most = f64::from(height);
    for (_, at) in places.iter_mut().rev() {
        *at = at.min(most);
        most = *at - APART;
    }
    let mut right = 0;
    for (series, at) in places {
        let name = PageWidth::Wide.fitted(kept[series].name, 170);
        right = right.max(PageWidth::Wide.text(&name) + 26);
        let down = at as i32;
        // A mark shows which line the name belongs to, unless the name is at the last point.
        let own = ends.iter().find(|(of, _)| *of == series);
        let beside = own.is_some_and(|(_, end)| (end - at).abs() < 2.0);
        let marked = kept[series].shape == Shape::Straight && kept[series].points.len() <= FEW;
        let mut across = 12;
        if !(beside && marked) {
            pieces.push(Piece::KeyMark([(1.0, 1.0)], (across, down), series));
            across += 10;
        }
        pieces.push(Piece::Words([(1.0, 1.0)], (across, down + 5), Anchor::Start, name));
    }
    right
}

/// Ticks at the points themselves, if these are few whole numbers, thinned out until they fit side by side.
fn ticks_at_points(
    kept: &[Kept<'_>],
    lines: &Lines,
    x: &Ruler,
    page: PageWidth,
    room: i32,
) -> Option<Vec<Tick>> {
    let mut values: Vec<f64> = points(kept).map(|point| point.0).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    let plain = |value: &f64| value.fract() == 0.0 && value.abs() < 1e5;
    let shown = lines.x.unit == Unit::Count && values.len() <= 12 && values.iter().all(plain);
    if !shown || (lines.x.scale == Scale::Log && values[0] <= 0.0) {
        return None;
    }
    let mut ticks: Vec<Tick> = Vec::new();
    for tick in x.at_values(&values) {
        ticks.push(tick);
        if !page.side_by_side(&ticks, room) {
            ticks.pop();
        }
    }
    Some(ticks)
}

/// Strips that tell the values of the lines there under the pointer: one for each point if those are few.
fn hits(kept: &[Kept<'_>], lines: &Lines, x: &Ruler, page: PageWidth) -> Vec<Piece> {
    let most = match page {
        PageWidth::Wide => 120,
        PageWidth::Narrow => 48,
    };
    let mut values: Vec<f64> = points(kept).map(|point| point.0).collect();
    values.sort_by(f64::total_cmp);
    // Points that share a strip: neighbours in the same one of `most` parts of the axis.
    let part = |value: &f64| (x.at(*value) * most as f64) as usize;
    values.dedup();
    let strips: Vec<&[f64]> = if values.len() > most {
        values.chunk_by(|one, other| part(one) == part(other)).collect()
    } else {
        values.chunks(1).collect()
    };
    let bounds = |strip: &[f64]| (strip[0], strip[strip.len() - 1]);
    let mut found = Vec::with_capacity(strips.len());
    for (nth, strip) in strips.iter().enumerate() {
        let (from, to) = bounds(strip);
        let beside = |other: Option<&&[f64]>, own: f64, end: f64, side: fn((f64, f64)) -> f64| {
            other.map_or(end, |other| (x.at(own) + x.at(side(bounds(other)))) / 2.0)
        };
        let left = beside(nth.checked_sub(1).map(|before| &strips[before]), from, 0.0, |b| b.1);
        let right = beside(strips.get(nth + 1), to, 1.0, |b| b.0);
        let head =
            if from == to { x.say(from) } else { format!("{} to {}", x.say(from), x.say(to)) };
        let next = strips.get(nth + 1).map(|next| next[0]);
        let said = kept.iter().filter_map(|line| {
            let (low, high) = line.between(from, next)?;
            let say = |value| lines.y.unit.say(value);
            let value =
                if low == high { say(low) } else { format!("{} to {}", say(low), say(high)) };
            let name = if kept.len() == 1 { "" } else { line.name };
            Some((name.to_owned(), value))
        });
        let said = title(&format!("{}: {head}", lines.x.name), said);
        found.push(Piece::Hit([(left, 1.0), (right, 0.0)], said));
    }
    found
}
