//! Tables and sentences for people: no colour, and no line wider than it may be.

/// Columns of lines that no terminal shows.
const NO_TERMINAL: usize = 80;
/// Fewer columns than this are taken for so many.
const NARROWEST: usize = 40;

/// How many columns a line on standard output has: those of the terminal, or 80 where it is none.
pub fn width_of_output() -> usize {
    let found = terminal_size::terminal_size_of(std::io::stdout());
    let found = found.map_or(NO_TERMINAL, |(columns, _)| usize::from(columns.0));
    found.max(NARROWEST)
}

/// `text` with each line that is wider than `columns` broken at spaces. A word that is wider stays whole.
pub fn wrapped(text: &str, columns: usize) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 32);
    for line in text.split_inclusive('\n') {
        let (sentence, end) = match line.strip_suffix('\n') {
            Some(sentence) => (sentence, "\n"),
            None => (line, ""),
        };
        let mut at = 0;
        for word in sentence.split(' ') {
            let takes = width(word);
            if at > 0 && at + 1 + takes > columns {
                out.push('\n');
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

/// A column of a table that may be left out.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// What stands above it.
    pub header: &'static str,
    /// How soon it is left out: 0 never, then the largest first.
    pub spare: u8,
}

/// A table as [`table`] makes it, without the columns that `columns` have no room for, all but the first
/// right-aligned; and the headers of those that were left out.
pub fn fitting_table(
    header: &[Column],
    mut rows: Vec<Vec<String>>,
    columns: usize,
) -> (String, Vec<&'static str>) {
    let mut kept = header.to_vec();
    let mut left_out = Vec::new();
    loop {
        let headers: Vec<&str> = kept.iter().map(|column| column.header).collect();
        let numbers: Vec<usize> = (1..kept.len()).collect();
        let table = table(&headers, &numbers, rows.clone());
        let widest = table.lines().map(width).max().unwrap_or(0);
        let spare = kept.iter().map(|column| column.spare).max();
        let Some(spare) = spare.filter(|&spare| spare > 0 && widest > columns) else {
            let order = |name: &&str| header.iter().position(|column| column.header == *name);
            left_out.sort_by_key(order);
            return (table, left_out);
        };
        let Some(index) = kept.iter().rposition(|column| column.spare == spare) else {
            return (table, left_out);
        };
        left_out.push(kept.remove(index).header);
        for row in rows.iter_mut().filter(|row| index < row.len()) {
            row.remove(index);
        }
    }
}

/// A table with `header`, the columns in `numbers` right-aligned; no line end after the last row.
pub fn table(header: &[&str], numbers: &[usize], rows: Vec<Vec<String>>) -> String {
    let header: Vec<String> = header.iter().map(|&name| name.to_owned()).collect();
    let mut widths: Vec<usize> = header.iter().map(|name| width(name)).collect();
    for row in &rows {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = width(cell).max(*widest);
        }
    }
    let rule: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
    let lines = [&header, &rule].into_iter().chain(&rows);
    let lines: Vec<String> = lines.map(|row| line(row, &widths, numbers)).collect();
    lines.join("\n")
}

/// Columns that `text` takes: nothing that is printed here is wider than a column a character.
fn width(text: &str) -> usize {
    text.chars().count()
}

fn line(row: &[String], widths: &[usize], numbers: &[usize]) -> String {
    let cells = row.iter().zip(widths).enumerate();
    let cells = cells.map(|(index, (cell, &width))| match numbers.contains(&index) {
        true => format!("{cell:>width$}"),
        false => format!("{cell:<width$}"),
    });
    let cells: Vec<String> = cells.collect();
    cells.join(" ").trim_end().to_owned()
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
    if value.fract() == 0.0 {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(micros(1.846), "1.85");
        assert_eq!(micros(123_456.7), "123,457");
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(128 << 10), "128 KiB");
        assert_eq!(bytes(3 << 19), "1.5 MiB");
    }

    #[test]
    fn sentences_break_at_spaces_only() {
        let text = "one two three\n\nµµµµ 5.9 MiB unbreakable";
        assert_eq!(wrapped(text, 80), text);
        let narrow = wrapped(text, 8);
        assert_eq!(narrow, "one two\nthree\n\nµµµµ 5.9\nMiB\nunbreakable");
        assert_eq!(narrow.replace('\n', " "), text.replace('\n', " "));
    }

    #[test]
    fn a_table_leaves_out_what_does_not_fit_and_says_so() {
        let column = |header, spare| Column { header, spare };
        let header = [
            column("name", 0),
            column("first", 2),
            column("total", 0),
            column("last", 1),
        ];
        let row = ["a", "1", "2", "3"].map(str::to_owned).to_vec();
        let of = |columns| fitting_table(&header, vec![row.clone()], columns);
        assert_eq!(of(21).1, Vec::<&str>::new());
        let (text, left_out) = of(20);
        assert_eq!(left_out, ["first"]);
        assert_eq!(text.lines().next(), Some("name total last"));
        assert_eq!(text.lines().nth(2), Some("a        2    3"));
        assert_eq!(of(1).1, ["first", "last"]);
    }

    #[test]
    fn columns_line_up() {
        let rows = vec![
            vec!["a".into(), "1".into()],
            vec!["bcd".into(), "1,000".into()],
        ];
        let text = table(&["name", "count"], &[1], rows);
        let ends: Vec<usize> = text.lines().map(|l| l.trim_end().chars().count()).collect();
        assert_eq!(ends.len(), 4, "{text}");
        assert!(
            text.lines().nth(2).is_some_and(|l| l.starts_with('a')),
            "{text}"
        );
    }
}
