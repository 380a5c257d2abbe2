//! Marks with error bars, a row for each category.

use super::sketch::{Anchor, Grid, Piece, Sketch, Stroke};
use super::{Drawn, Key, NAME, Names, PageWidth, Sample, Undrawn, not_finite, nothing, title};
use crate::figure::{Mark, MarkRow, Marks};
use crate::ruler::{Ruler, Show, Tick};

/// Limit of drawn rows; the table has all of them.
const MOST_ROWS: usize = 100;
/// Marks of a row that are drawn.
const MOST_MARKS: usize = 20;
/// The height of a mark and of the space between two rows.
const PITCH: i32 = 18;
const BETWEEN: i32 = 12;
/// From a row's upper end to the foot of its name's first line above the marks, and from there to the next.
const FIRST_LINE: i32 = 18;
const LINE: i32 = 14;

/// Draws marks.
pub(super) fn draw(marks: &Marks) -> Result<Drawn, Undrawn> {
    let (mut left_out, mut more) = (0, 0);
    let mut rows: Vec<MarkRow> = Vec::with_capacity(marks.rows.len());
    for row in &marks.rows {
        let (mut kept, all) = (row.clone(), row.marks.len());
        kept.marks.retain(|mark| mark.value.is_finite());
        left_out += all - kept.marks.len();
        more += kept.marks.len().saturating_sub(MOST_MARKS);
        kept.marks.truncate(MOST_MARKS);
        for mark in &mut kept.marks {
            let finite = |range: &[f64; 2]| range.iter().all(|end| end.is_finite());
            left_out += usize::from(mark.range.is_some_and(|range| !finite(&range)));
            mark.range = mark.range.filter(finite);
        }
        rows.push(kept);
    }
    if rows.iter().all(|row| row.marks.is_empty()) {
        return Err(nothing(left_out));
    }
    let mut notes: Vec<String> = not_finite(left_out).into_iter().collect();
    if rows.len() > MOST_ROWS {
        notes.push(format!("The first {MOST_ROWS} of {} rows are drawn.", rows.len()));
        rows.truncate(MOST_ROWS);
    }
    if more > 0 {
        notes.push(format!("The first {MOST_MARKS} marks of each row are drawn, {more} are not."));
    }
    let mut svg = Vec::new();
    for page in [PageWidth::Wide, PageWidth::Narrow] {
        svg.push(sketch(marks, &rows, page).draw()?);
    }
    let series = marks.series.iter();
    let key = Key {
        series: series.map(|name| (name.clone(), Sample::Mark)).collect(),
        names: Names::Above,
    };
    Ok(Drawn { svg, key, notes })
}

fn sketch(marks: &Marks, rows: &[MarkRow], page: PageWidth) -> Sketch {
    let values = rows.iter().flat_map(|row| &row.marks).flat_map(|mark| {
        let range = mark.range.into_iter().flatten();
        std::iter::once(mark.value).chain(range)
    });
    let ruler = Ruler::over(values, &marks.values, Show::NearZero);
    let mut top = 0;
    let places = rows.iter().map(|row| {
        let begin = top;
        top += height_of(row, page);
        (row, begin, top)
    });
    let places: Vec<(&MarkRow, i32, i32)> = places.collect();
    let at = |pixels: i32| 1.0 - f64::from(pixels) / f64::from(top);
    let names = places.iter().filter(|_| page == PageWidth::Wide).map(|(row, begin, end)| Tick {
        at: at((begin + end) / 2),
        text: page.in_two(&row.name, NAME),
    });
    let names: Vec<Tick> = names.collect();
    let (sides, right) = sides(rows, &ruler, page, page.width() - page.left(&names));
    let mut sides = sides.into_iter();
    let (mut pieces, mut hits) = (Vec::new(), Vec::new());
    for (row, begin, end) in places {
        if begin > 0 {
            let across = vec![(0.0, at(begin)), (1.0, at(begin))];
            pieces.push(Piece::Line(across, Stroke::Grid));
        }
        if page == PageWidth::Narrow {
            let name = name_above(&row.name, page);
            for (line, down) in name.split('\n').zip([FIRST_LINE, FIRST_LINE + LINE]) {
                let place = [(0.0, at(begin + down))];
                pieces.push(Piece::Words(place, (2, 0), Anchor::Start, line.to_owned()));
            }
        }
        // In the middle of the room that the name leaves.
        let taken = PITCH * row.marks.len() as i32;
        let first = (begin + name_height(row, page) + end - taken + PITCH) / 2;
        for (nth, mark) in (0..).zip(&row.marks) {
            let down = first + PITCH * nth;
            let heights = [-3, 0, 3].map(|by| at(down + by));
            let side = sides.next().unwrap_or(Side::Right);
            draw_mark(&mut pieces, mark, &ruler, page, heights, side);
        }
        let corners = [(0.0, at(begin)), (1.0, at(end))];
        hits.push(Piece::Hit(corners, said(marks, row)));
    }
    pieces.extend(hits);
    Sketch {
        page,
        height: top,
        right,
        x: page.ticks_of(&ruler, page.width() - page.left(&names) - right),
        x_name: marks.values.name.clone(),
        y: names,
        y_name: String::new(),
        grid: Grid::Upright,
        pieces,
    }
}

/// A row's name above the marks, in two lines if one is too short.
fn name_above(name: &str, page: PageWidth) -> String {
    page.in_two(name, page.width() - 4)
}

/// Height for a row's name above its marks; 0 on a wide page, which has it on the left.
fn name_height(row: &MarkRow, page: PageWidth) -> i32 {
    let lines = match page {
        PageWidth::Wide => return 0,
        PageWidth::Narrow => name_above(&row.name, page).split('\n').count(),
    };
    FIRST_LINE + LINE * (lines as i32 - 1)
}

fn height_of(row: &MarkRow, page: PageWidth) -> i32 {
    let marks = name_height(row, page) + PITCH * row.marks.len().max(1) as i32 + BETWEEN;
    marks.max(page.name_height(&row.name))
}

/// Sides of the words of each mark in an area of `room` pixels, and the pixels that stay free on its right for them.
fn sides(rows: &[MarkRow], ruler: &Ruler, page: PageWidth, room: i32) -> (Vec<Side>, i32) {
    let marks = || rows.iter().flat_map(|row| &row.marks);
    let mut sides: Vec<Side> = marks().map(|mark| Side::of(mark, ruler, page, room)).collect();
    if !sides.contains(&Side::Neither) {
        return (sides, 0);
    }
    sides.fill(Side::Right);
    let widths = marks().map(|mark| page.text(&words(mark, ruler, page)) + 14);
    (sides, widths.max().unwrap_or(0))
}

/// Side of a mark at which its words are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
    /// Neither place has room.
    Neither,
}

impl Side {
    /// The side that has room in an area of `room` pixels.
    fn of(mark: &Mark, ruler: &Ruler, page: PageWidth, room: i32) -> Self {
        let ends = ends(mark, ruler).map(|end| (end * f64::from(room)) as i32);
        let needed = page.text(&words(mark, ruler, page)) + 18;
        match ends {
            [_, high] if room - high >= needed => Self::Right,
            [low, _] if low >= needed => Self::Left,
            _ => Self::Neither,
        }
    }
}

/// The leftmost and the rightmost place of a mark and its error bar.
fn ends(mark: &Mark, ruler: &Ruler) -> [f64; 2] {
    let at = ruler.at(mark.value);
    let range = mark.range.into_iter().flatten().map(|end| ruler.at(end));
    range.fold([at, at], |[low, high], end| [low.min(end), high.max(end)])
}

/// Words next to a mark.
fn words(mark: &Mark, ruler: &Ruler, page: PageWidth) -> String {
    let room = match page {
        PageWidth::Wide => 220,
        PageWidth::Narrow => 160,
    };
    let value = ruler.say(mark.value);
    match &*mark.word {
        "" => value,
        word => page.fitted(&format!("{value}, {word}"), room),
    }
}

/// Adds a mark with its error bar and its words, at these heights.
fn draw_mark(
    pieces: &mut Vec<Piece>,
    mark: &Mark,
    ruler: &Ruler,
    page: PageWidth,
    [above, middle, below]: [f64; 3],
    side: Side,
) {
    let mut line = |from, to| pieces.push(Piece::Line(vec![from, to], Stroke::Error(mark.series)));
    if let Some(range) = mark.range {
        let [low, high] = range.map(|end| ruler.at(end));
        line((low, middle), (high, middle));
        line((low, above), (low, below));
        line((high, above), (high, below));
    }
    pieces.push(Piece::Mark([(ruler.at(mark.value), middle)], mark.series));
    let ([low, high], down) = (ends(mark, ruler), page.font() as i32 * 7 / 20);
    let (place, by, anchor) = match side {
        Side::Left => (low, -10, Anchor::End),
        Side::Right | Side::Neither => (high, 10, Anchor::Start),
    };
    let words = words(mark, ruler, page);
    pieces.push(Piece::Words([(place, middle)], (by, down), anchor, words));
}

/// Text of a row under the pointer.
fn said(marks: &Marks, row: &MarkRow) -> String {
    let say = |value: f64| marks.values.unit.say(value);
    let values = row.marks.iter().map(|mark| {
        let mut value = say(mark.value);
        if let Some([low, high]) = mark.range {
            value.push_str(&format!(" ({} to {})", say(low.min(high)), say(low.max(high))));
        }
        if !mark.word.is_empty() {
            value.push_str(", ");
            value.push_str(&mark.word);
        }
        (marks.series.get(mark.series).cloned().unwrap_or_default(), value)
    });
    title(&row.name, values)
}
