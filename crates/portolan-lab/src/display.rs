//! Tables for people: fixed layout, no colour, no dependence on the width of a terminal.

use comfy_table::{
    CellAlignment, ContentArrangement, ContentLineStyle, LineStyle, Table, TableStyle,
};

/// A table with `header`, the columns in `numbers` right-aligned.
pub(crate) fn table(header: &[&str], numbers: &[usize], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    let lines = ContentLineStyle::none().junction(' ');
    table.load_style(
        TableStyle::new()
            .header_lines(lines)
            .header_separator(LineStyle::none().fill('-').junction(' '))
            .content_lines(lines),
    );
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.to_vec());
    for row in rows {
        table.add_row(row);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 0));
        if numbers.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// A whole number with its thousands apart.
pub(crate) fn grouped(number: u64) -> String {
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
pub(crate) fn micros(us: f64) -> String {
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
pub(crate) fn bytes(bytes: u64) -> String {
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
