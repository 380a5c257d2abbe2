//! Bars by category.

use super::sketch::{Anchor, Grid, Piece, Place, Sketch, Stroke};
use super::{Drawn, Key, NAME, Names, PageWidth, Sample, Undrawn, not_finite, nothing, title};
use crate::figure::{Arrangement, Bars};
use crate::ruler::{Ruler, Show, Tick, within};

/// Limit of drawn rows; the table has all of them.
const MOST_ROWS: usize = 100;

/// A category with the finite ones of its values, by series.
struct Category {
    name: String,
    values: Vec<(usize, f64)>,
}

impl Category {
    /// The lengths of its bar above and below zero.
    fn ends(&self) -> [f64; 2] {
        let end = |sign: f64| {
            let parts = self.values.iter().map(|(_, value)| *value);
            within(parts.filter(|part| part * sign > 0.0).sum())
        };
        [end(-1.0), end(1.0)]
    }

    fn total(&self) -> f64 {
        self.values.iter().map(|(_, value)| value).sum()
    }

    /// The parts of its bar: series, from where, to where.
    fn parts(&self) -> Vec<(usize, f64, f64)> {
        let (mut below, mut above) = (0.0, 0.0);
        let parts = self.values.iter().filter(|(_, value)| *value != 0.0);
        let part = |(series, value): &(usize, f64)| {
            let end = if *value < 0.0 { &mut below } else { &mut above };
            let from = *end;
            *end = within(from + within(*value));
            (*series, from, *end)
        };
        parts.map(part).collect()
    }

    /// Text under the pointer.
    fn title(&self, bars: &Bars) -> String {
        let say = |value: f64| bars.values.unit.say(value);
        let name = |series: usize| match bars.series.len() {
            1 => String::new(),
            _ => bars.series[series].name.clone(),
        };
        let parts = self
            .values
            .iter()
            .filter(|(_, value)| *value != 0.0)
            .map(|(series, value)| (name(*series), say(*value)));
        if bars.series.len() == 1 {
            return title(&self.name, std::iter::once((String::new(), say(self.total()))));
        }
        title(&format!("{}: {}", self.name, say(self.total())), parts)
    }
}

/// Draws bars.
pub(super) fn draw(bars: &Bars) -> Result<Drawn, Undrawn> {
    let mut left_out = 0;
    let mut categories: Vec<Category> = Vec::with_capacity(bars.categories.len());
    for (nth, name) in bars.categories.iter().enumerate() {
        let all = (0..).zip(&bars.series);
        let all = all.filter_map(|(series, of)| Some((series, *of.values.get(nth)?)));
        let (values, odd): (Vec<_>, Vec<_>) = all.partition(|(_, value)| value.is_finite());
        left_out += odd.len();
        let name = name.clone();
        categories.push(Category { name, values });
    }
    let mut values = categories.iter().flat_map(|category| &category.values).peekable();
    if values.peek().is_none() {
        return Err(nothing(left_out));
    }
    if values.all(|(_, value)| *value == 0.0) {
        return Err(Undrawn::Nothing("every value is 0".to_owned()));
    }
    let mut notes: Vec<String> = not_finite(left_out).into_iter().collect();
    if bars.arrangement == Arrangement::StackedRows && categories.len() > MOST_ROWS {
        let all = categories.len();
        notes.push(format!("The first {MOST_ROWS} of {all} rows are drawn."));
        categories.truncate(MOST_ROWS);
    }
    let mut svg = Vec::new();
    for page in [PageWidth::Wide, PageWidth::Narrow] {
        let sketch = match bars.arrangement {
            Arrangement::StackedRows => rows(bars, &categories, page),
            Arrangement::StackedColumns => columns(bars, &categories, page),
        };
        svg.push(sketch.draw()?);
    }
    let series = bars.series.iter();
    let key = Key {
        series: series.map(|of| (of.name.clone(), Sample::Filling)).collect(),
        names: Names::Above,
    };
    Ok(Drawn { svg, key, notes })
}

fn rows(bars: &Bars, categories: &[Category], page: PageWidth) -> Sketch {
    let ends = categories.iter().flat_map(Category::ends);
    let ruler = Ruler::over(ends, &bars.values, Show::Zero);
    let count = categories.len() as f64;
    // Names stand on the left where there is room, else above their bars.
    let (pitch, up, down) = match page {
        PageWidth::Wide => (30, 10.0, 10.0),
        PageWidth::Narrow => (42, 0.0, 16.0),
    };
    let names = categories.iter().map(|category| page.name_height(&category.name));
    let height = names.fold(pitch, i32::max) * categories.len() as i32;
    let middle = |nth: usize| 1.0 - (nth as f64 + 0.5) / count;
    let pixels = |pixels: f64| pixels / f64::from(height);
    let (mut pieces, mut hits, mut names) = (Vec::new(), Vec::new(), Vec::new());
    let mut right = 0;
    for (nth, category) in categories.iter().enumerate() {
        let at = middle(nth);
        for (series, from, to) in category.parts() {
            let corners = [(ruler.at(from), at + pixels(up)), (ruler.at(to), at - pixels(down))];
            pieces.push(Piece::Bar(corners, series));
        }
        let total = page.fitted(&bars.values.unit.say(category.total()), 120);
        right = right.max(page.text(&total) + 8);
        let end: Place = (ruler.at(category.ends()[1]), at + pixels((up - down) / 2.0));
        pieces.push(Piece::Words([end], (6, page.font() as i32 * 7 / 20), Anchor::Start, total));
        if page == PageWidth::Narrow {
            let name = page.fitted(&category.name, page.width() - 4);
            pieces.push(Piece::Words([(0.0, at)], (2, -5), Anchor::Start, name));
        } else {
            let text = page.in_two(&category.name, NAME);
            names.push(Tick { at, text });
        }
        let half = 0.5 / count;
        hits.push(Piece::Hit([(0.0, at + half), (1.0, at - half)], category.title(bars)));
    }
    if ruler.at(0.0) > 0.0 {
        let zero = ruler.at(0.0);
        pieces.push(Piece::Line(vec![(zero, 0.0), (zero, 1.0)], Stroke::Zero));
    }
    pieces.extend(hits);
    Sketch {
        page,
        height,
        right,
        x: page.ticks_of(&ruler, page.width() - page.left(&names) - right),
        x_name: bars.values.name.clone(),
        y: names,
        y_name: String::new(),
        grid: Grid::Upright,
        pieces,
    }
}

fn columns(bars: &Bars, categories: &[Category], page: PageWidth) -> Sketch {
    let (height, most) = match page {
        PageWidth::Wide => (260, 256),
        PageWidth::Narrow => (190, 96),
    };
    // If columns would be thinner than a pixel or two, the highest represents its neighbours.
    let groups: Vec<&[Category]> =
        categories.chunks(categories.len().div_ceil(most).max(1)).collect();
    let count = groups.len() as f64;
    let ends = categories.iter().flat_map(Category::ends);
    let ruler = Ruler::over(ends, &bars.values, Show::Zero).rounded(5);
    let gap = if groups.len() > most / 4 { 0.0 } else { 0.08 };
    let (mut pieces, mut hits) = (Vec::new(), Vec::new());
    for (nth, group) in groups.iter().enumerate() {
        let (from, to) = (nth as f64 / count, (nth as f64 + 1.0) / count);
        let highest =
            |one: &&Category, other: &&Category| one.total().abs().total_cmp(&other.total().abs());
        let Some(category) = group.iter().max_by(highest) else {
            continue;
        };
        for (series, low, high) in category.parts() {
            let left = (from + gap / count, ruler.at(low));
            let corners = [left, (to - gap / count, ruler.at(high))];
            pieces.push(Piece::Bar(corners, series));
        }
        hits.push(Piece::Hit([(from, 0.0), (to, 1.0)], category.title(bars)));
    }
    if ruler.at(0.0) > 0.0 {
        let zero = ruler.at(0.0);
        pieces.push(Piece::Line(vec![(0.0, zero), (1.0, zero)], Stroke::Zero));
    }
    pieces.extend(hits);
    let names = groups.iter().filter_map(|group| group.first());
    let names: Vec<String> = names.map(|category| page.fitted(&category.name, 140)).collect();
    Sketch {
        page,
        height,
        right: 2,
        x: thinned(&names, page),
        x_name: String::new(),
        y: ruler.ticks(5),
        y_name: bars.values.name.clone(),
        grid: Grid::Across,
        pieces,
    }
}

/// Names of columns, thinned out until they fit side by side.
fn thinned(names: &[String], page: PageWidth) -> Vec<Tick> {
    let widest = names.iter().map(|name| page.text(name)).max().unwrap_or(0) + 10;
    let room = (page.width() - 60) / names.len().max(1) as i32;
    let each = (widest / room.max(1) + 1).max(1) as usize;
    let tick = |(nth, name): (usize, &String)| Tick {
        at: (nth as f64 + 0.5) / names.len() as f64,
        text: name.clone(),
    };
    names.iter().enumerate().step_by(each).map(tick).collect()
}
