//! Sentences, tables and numbers for people: no line wider than it may be, nothing that a terminal obeys.

mod table;

pub use table::{Column, Fitted, fitted, fitting_table, table};

use std::borrow::Cow;
use std::fmt::Write as _;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Columns of lines that no terminal shows.
const NO_TERMINAL: usize = 80;
/// Fewer columns than this are taken for so many.
const NARROWEST: usize = 40;

/// Columns of a line on standard output: the terminal's width, or 80 if it is not a terminal.
pub fn width_of_output() -> usize {
    let found = terminal_size::terminal_size_of(std::io::stdout())
        .map_or(NO_TERMINAL, |(columns, _)| usize::from(columns.0));
    found.max(NARROWEST)
}

/// Lines of the terminal that standard output is; `None` if it is not one, or one that cannot redraw (`TERM=dumb`).
pub fn lines_of_output() -> Option<usize> {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    let (_, lines) = terminal_size::terminal_size_of(std::io::stdout())?;
    (!is_dumb).then_some(usize::from(lines.0))
}

/// Columns that `text` takes on a terminal.
pub fn width(text: &str) -> usize {
    text.width()
}

/// Escapes each character of `text` that a terminal would obey instead of showing it, as `\u{1b}` and the like:
/// control characters except line ends, and characters that change the direction of writing.
///
/// Names of files and devices, and lines of traces, may hold any characters.
pub fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for one in text.chars() {
        if is_obeyed(one) { out.extend(one.escape_unicode()) } else { out.push(one) }
    }
    Cow::Owned(out)
}

fn is_obeyed(one: char) -> bool {
    let turns = matches!(one, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}');
    (one.is_control() && one != '\n') || turns
}

/// JSON with those characters escaped that JSON allows in strings and a terminal obeys.
pub fn plain_json(text: &str) -> Cow<'_, str> {
    let is_raw = |one: char| is_obeyed(one) && !one.is_ascii_whitespace();
    if !text.contains(is_raw) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for one in text.chars() {
        if is_raw(one) {
            let mut units = [0; 2];
            for unit in one.encode_utf16(&mut units) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(one)
        }
    }
    Cow::Owned(out)
}

/// `text` with each line that is wider than `columns` broken at spaces; the lines behind a break are indented as the
/// line is. A word that is wider stays whole, so that it can be copied.
pub fn wrapped(text: &str, columns: usize) -> String {
    let text = plain(text);
    let mut out = String::with_capacity(text.len() + text.len() / 32);
    for line in text.split_inclusive('\n') {
        let (sentence, end) = match line.strip_suffix('\n') {
            Some(sentence) => (sentence, "\n"),
            None => (line, ""),
        };
        let words = sentence.trim_start_matches(' ');
        let indent = &sentence[..sentence.len() - words.len()];
        out.push_str(indent);
        let mut at = 0;
        for word in words.split(' ') {
            let takes = width(word);
            if at > 0 && indent.len() + at + 1 + takes > columns {
                out.push('\n');
                out.push_str(indent);
                at = 0;
            } else if at > 0 {
                out.push(' ');
                at += 1;
            }
            out.push_str(word);
            at += takes;
        }
        out.push_str(end);
    }
    out
}

/// Sign for text that was cut.
pub(crate) const CUT: char = '…';

/// `text`, shortened with `…` if it takes more than `columns`.
pub fn cut(text: &str, columns: usize) -> Cow<'_, str> {
    if width(text) <= columns {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    let mut at = 1;
    for one in text.chars() {
        at += one.width().unwrap_or(0);
        if at > columns {
            break;
        }
        out.push(one);
    }
    out.push(CUT);
    Cow::Owned(out)
}

/// A whole number with its thousands apart.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Microseconds: three significant places below a thousand, whole above.
pub fn micros(us: f64) -> String {
    if us >= 1000.0 {
        grouped(us.round() as u64)
    } else if us >= 100.0 {
        format!("{us:.0}")
    } else if us >= 10.0 {
        format!("{us:.1}")
    } else {
        format!("{us:.2}")
    }
}

/// A time of so many microseconds, in the unit that people would say it in, with three digits that count: `11.3 ms`.
pub fn duration(us: f64) -> String {
    let (value, unit) = match us.abs() {
        0.0 => return "0".to_owned(),
        ..0.9995 => (us * 1e3, "ns"),
        ..999.5 => (us, "µs"),
        ..999_500.0 => (us / 1e3, "ms"),
        _ => (us / 1e6, "s"),
    };
    let said = match value.abs() {
        ..9.995 => format!("{value:.2}"),
        ..99.95 => format!("{value:.1}"),
        ..999.5 => format!("{value:.0}"),
        many => grouped(many.round() as u64),
    };
    let said =
        if said.contains('.') { said.trim_end_matches('0').trim_end_matches('.') } else { &said };
    format!("{said} {unit}")
}

/// A share in per cent, with as many digits as tell it from nothing: `0.17 %`, `41 %`.
pub fn percent(pct: f64) -> String {
    match pct.abs() {
        ..0.005 => "0 %".to_owned(),
        ..0.995 => format!("{pct:.2} %"),
        ..9.95 => format!("{pct:.1} %"),
        _ => format!("{pct:.0} %"),
    }
}

/// A count with its noun: `1 map`, `2 maps`.
pub fn counted(number: u64, one: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ => format!("{} {one}s", grouped(number)),
    }
}

/// Bytes in the largest binary unit that leaves at least 1.
pub fn bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => scaled(bytes, 10, "KiB"),
        1_048_576..1_073_741_824 => scaled(bytes, 20, "MiB"),
        _ => scaled(bytes, 30, "GiB"),
    }
}

fn scaled(bytes: u64, lg2: u32, unit: &str) -> String {
    let value = bytes as f64 / (1u64 << lg2) as f64;
    if value.fract() == 0.0 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}
