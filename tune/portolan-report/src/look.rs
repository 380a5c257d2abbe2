//! Looks of series: colours and, for readers that see none, shapes and hatchings. Widths of letters.

use std::fmt::Write as _;

/// Series that look different; more begin again.
pub(crate) const KINDS: usize = 16;
/// Colours, which the style has as `--c0` and so on, shapes and hatchings.
const EACH: usize = 8;

/// The colour of a series.
pub(crate) fn colour(series: usize) -> usize {
    series % EACH
}

/// The shape and hatching of a series.
pub(crate) fn shape(series: usize) -> usize {
    (series + series / EACH) % EACH
}

/// Outlines of marks around 0, 0.
const SHAPES: [&str; EACH] = [
    "M-4 0a4 4 0 1 1 8 0a4 4 0 1 1-8 0z",
    "M-3.6-3.6h7.2v7.2h-7.2z",
    "M0-5 4.8 3.8H-4.8z",
    "M0-5 5 0 0 5-5 0z",
    "M0 5 4.8-3.8H-4.8z",
    "M-1.4-4.6h2.8v3.2h3.2v2.8h-3.2v3.2h-2.8v-3.2h-3.2v-2.8h3.2z",
    "M-4.4-2.6-2.6-4.4 0-1.8 2.6-4.4 4.4-2.6 1.8 0 4.4 2.6 2.6 4.4 0 1.8-2.6 4.4-4.4 2.6-1.8 0z",
    "M0-5.2 1.5-1.7 5-1.6 2.3.8 3.3 4.4 0 2.4-3.3 4.4-2.3.8-5-1.6-1.5-1.7z",
];

/// Lines on the colour of a hatching, in squares of eight.
const HATCHINGS: [&str; EACH] = [
    "",
    "M-2 2 2-2M0 8 8 0M6 10 10 6",
    "M-2 6 2 10M0 0 8 8M6-2 10 2",
    "M0 4H8",
    "M4 0V8",
    "M0 4H8M4 0V8",
    "M-2 2 2-2M0 8 8 0M6 10 10 6M-2 6 2 10M0 0 8 8M6-2 10 2",
    "M2 2h1.6v1.6h-1.6zM6 6h1.6v1.6h-1.6z",
];

/// Definitions that each page has once: marks and hatchings.
pub(crate) fn definitions() -> String {
    let mut out = String::from(r#"<svg class="sr" width="0" height="0" aria-hidden="true"><defs>"#);
    for (nth, outline) in SHAPES.iter().enumerate() {
        let _ = write!(out, r#"<path id="m{nth}" d="{outline}"/>"#);
    }
    for series in 0..KINDS {
        let (colour, lines) = (colour(series), HATCHINGS[shape(series)]);
        let _ = write!(
            out,
            r#"<pattern id="p{series}" width="8" height="8" patternUnits="userSpaceOnUse">
<path class="b{colour}" d="M0 0H8V8H0z"/><path class="hatch" d="{lines}"/></pattern>"#
        );
    }
    out.push_str("</defs></svg>");
    out
}

/// The rules for the classes of series.
pub(crate) fn rules() -> String {
    let mut out = String::new();
    for colour in 0..EACH {
        let _ = write!(out, ".b{colour}{{fill:var(--c{colour})}}");
    }
    for series in 0..KINDS {
        let colour = colour(series);
        let _ = write!(
            out,
            ".f{series}{{fill:url(#p{series})}}.m{series}{{fill:var(--c{colour})}}\
             .l{series}{{stroke:var(--c{colour})}}"
        );
    }
    out
}

/// Largest width of `text` in letters of `size` pixels. It uses the widths of a wide font, because the reader's font
/// is unknown.
pub(crate) fn width(text: &str, size: u32) -> u32 {
    let wide = |c: char| match c {
        'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '|' | '\'' | '!' | ' ' | '\u{a0}' => 36,
        'f' | 't' | 'r' | 'I' | '(' | ')' | '[' | ']' | '/' | '-' => 44,
        'm' | 'w' | 'M' | 'W' | '%' | '@' | '…' => 102,
        'A'..='Z' | '&' | '+' | '=' | '<' | '>' | '~' | '#' | '−' => 84,
        '\0'..='\u{24f}' => 66,
        '\u{370}'..='\u{52f}' => 80,
        _ => 110,
    };
    text.chars().map(wide).sum::<u32>().saturating_mul(size).div_ceil(100)
}

/// `text`, or its beginning and `…`, in at most `room` pixels.
pub(crate) fn fitted(text: &str, size: u32, room: u32) -> String {
    if width(text, size) <= room {
        return text.to_owned();
    }
    let mut cut = String::new();
    for c in text.chars() {
        cut.push(c);
        if width(&cut, size) + width("…", size) > room {
            cut.pop();
            break;
        }
    }
    cut.truncate(cut.trim_end().len());
    cut.push('…');
    cut
}

/// `text` in two lines of at most `room` pixels if one does not hold it, broken at a space; where that does not do,
/// between the parts of a file's name.
pub(crate) fn in_two(text: &str, size: u32, room: u32) -> String {
    // A name's own lines are one.
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if width(&text, size) <= room {
        return text;
    }
    // Places at which the first line may end and the second begin.
    let spaces = || text.match_indices(' ').map(|(at, _)| (at, at + 1));
    let parts = || {
        let marks = text.match_indices(['/', '=', '_']);
        marks.map(|(at, _)| (at + 1, at + 1)).chain(spaces())
    };
    let wider =
        |&(end, next): &(usize, usize)| width(&text[..end], size).max(width(&text[next..], size));
    let fits =
        |&(end, next): &(usize, usize)| width(&text[..end], size) <= room && next < text.len();
    // The two as long as each other, if both hold it all.
    let even = spaces()
        .min_by_key(wider)
        .filter(|at| wider(at) <= room)
        .or_else(|| parts().min_by_key(wider).filter(|at| wider(at) <= room));
    let most = || parts().filter(fits).max();
    match even.or_else(|| spaces().take_while(fits).last()).or_else(most) {
        Some((end, next)) => {
            format!("{}\n{}", &text[..end], fitted(&text[next..], size, room))
        }
        None => fitted(&text, size, room),
    }
}
