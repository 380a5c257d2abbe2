//! Tables for people: fixed layout, no colour, no dependence on the width of a terminal.

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
