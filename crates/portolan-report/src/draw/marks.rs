//! Marks with error bars, a row for each category.

use super::sketch::{Grid, Piece, Sketch};
use super::{Drawn, Key, Kind, Page, Undrawn, not_finite, nothing, title};
use crate::figure::{Mark, MarkRow, Marks};
use crate::look::KINDS;
use crate::ruler::{Ruler, Show, Tick};

/// Rows that are drawn; what is beyond is in the table.
const MOST_ROWS: usize = 100;
/// The height of a mark and of what is between two rows.
const PITCH: i32 = 18;
const BETWEEN: i32 = 12;

/// Draws marks.
pub(super) fn draw(marks: &Marks) -> Result<Drawn, Undrawn> {
    let mut left_out = 0;
    let mut rows: Vec<MarkRow> = Vec::with_capacity(marks.rows.len());
    for row in &marks.rows {
        let (mut kept, all) = (row.clone(), row.marks.len());
        kept.marks.retain(|mark| mark.value.is_finite());
        left_out += all - kept.marks.len();
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
        notes.push(format!(
            "The first {MOST_ROWS} of {} rows are drawn.",
            rows.len()
        ));
        rows.truncate(MOST_ROWS);
    }
    let mut svg = Vec::new();
    for page in [Page::Wide, Page::Narrow] {
        svg.push(sketch(marks, &rows, page).draw()?);
    }
    let (names, kind) = (marks.series.clone(), Kind::Marks);
    let key = Key { names, kind };
    Ok(Drawn { svg, key, notes })
}

fn sketch(marks: &Marks, rows: &[MarkRow], page: Page) -> Sketch {
    let values = rows.iter().flat_map(|row| &row.marks).flat_map(|mark| {
        let range = mark.range.into_iter().flatten();
        std::iter::once(mark.value).chain(range)
    });
    let ruler = Ruler::over(values, &marks.values, Show::NearZero);
    // Names stand on the left where there is room, else above their marks.
    let name_height = match page {
        Page::Wide => 0,
        Page::Narrow => 18,
    };
    let of_row = |row: &MarkRow| name_height + PITCH * row.marks.len().max(1) as i32 + BETWEEN;
    let height: i32 = rows.iter().map(of_row).sum();
    let at = |pixels: i32| 1.0 - f64::from(pixels) / f64::from(height);
    let (mut pieces, mut hits, mut names) = (Vec::new(), Vec::new(), Vec::new());
    let (mut top, mut right) = (0, 0);
    for row in rows {
        let bottom = top + of_row(row);
        if top > 0 {
            pieces.push(Piece::Line(
                vec![(0.0, at(top)), (1.0, at(top))],
                "g".to_owned(),
            ));
        }
        if page == Page::Narrow {
            let name = page.fitted(&row.name, page.width() - 4);
            pieces.push(Piece::Words([(0.0, at(top + name_height))], (2, 0), name));
        } else {
            let (at, text) = (at((top + bottom) / 2), page.fitted(&row.name, 230));
            names.push(Tick { at, text });
        }
        for (nth, mark) in (0..).zip(&row.marks) {
            let down = top + name_height + BETWEEN / 2 + PITCH * nth + PITCH / 2;
            right = right.max(draw_mark(
                &mut pieces,
                mark,
                &ruler,
                page,
                [-3, 0, 3].map(|by| at(down + by)),
            ));
        }
        hits.push(Piece::Hit(
            [(0.0, at(top)), (1.0, at(bottom))],
            said(marks, row),
        ));
        top = bottom;
    }
    pieces.extend(hits);
    Sketch {
        page,
        height,
        right,
        x: page.ticks_of(&ruler, page.width() - page.left(&names) - right),
        x_name: marks.values.name.clone(),
        y: names,
        y_name: String::new(),
        grid: Grid::Upright,
        pieces,
    }
}

/// Adds a mark with its error bar and its words, at these heights; the room of the words.
fn draw_mark(
    pieces: &mut Vec<Piece>,
    mark: &Mark,
    ruler: &Ruler,
    page: Page,
    [above, middle, below]: [f64; 3],
) -> i32 {
    let at = ruler.at(mark.value);
    let mut end = at;
    if let Some(range) = mark.range {
        let [low, high] = range.map(|end| ruler.at(end));
        let class = format!("w{}", mark.series % KINDS);
        for line in [
            [(low, middle), (high, middle)],
            [(low, above), (low, below)],
            [(high, above), (high, below)],
        ] {
            pieces.push(Piece::Line(line.to_vec(), class.clone()));
        }
        end = at.max(low).max(high);
    }
    pieces.push(Piece::Mark([(at, middle)], mark.series));
    let room = match page {
        Page::Wide => 220,
        Page::Narrow => 130,
    };
    let words = match &*mark.word {
        "" => ruler.say(mark.value),
        word => format!("{} {word}", ruler.say(mark.value)),
    };
    let words = page.fitted(&words, room);
    let wide = page.text(&words) + 14;
    pieces.push(Piece::Words(
        [(end, middle)],
        (10, page.font() as i32 * 7 / 20),
        words,
    ));
    wide
}

/// What a row says under the pointer.
fn said(marks: &Marks, row: &MarkRow) -> String {
    let say = |value: f64| marks.values.unit.say(value);
    let values = row.marks.iter().map(|mark| {
        let mut value = say(mark.value);
        if let Some([low, high]) = mark.range {
            value.push_str(&format!(
                " ({} to {})",
                say(low.min(high)),
                say(low.max(high))
            ));
        }
        if !mark.word.is_empty() {
            value.push_str(", ");
            value.push_str(&mark.word);
        }
        (
            marks.series.get(mark.series).cloned().unwrap_or_default(),
            value,
        )
    });
    title(&row.name, values)
}
