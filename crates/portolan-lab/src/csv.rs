//! Published tables as CSV: `#` comments, a header, rows of as many fields, no quotes.

use anyhow::{Result, bail};

/// One row.
#[derive(Debug)]
pub(crate) struct Row<'t> {
    /// Line in the file, from 1.
    pub(crate) line: usize,
    /// Fields, without the space around them.
    pub(crate) fields: Vec<&'t str>,
}

/// The rows of `text` after its header.
///
/// # Errors
/// A row with another number of fields than the header, or with a quote.
pub(crate) fn rows(text: &str) -> Result<Vec<Row<'_>>> {
    let lines = (1..).zip(text.lines());
    let lines = lines.filter(|(_, text)| !text.is_empty() && !text.starts_with('#'));
    let mut rows = lines.map(|(line, text)| Row {
        line,
        fields: text.split(',').map(str::trim).collect(),
    });
    let Some(header) = rows.next() else {
        bail!("a published table has no header");
    };
    let mut checked = Vec::new();
    for row in rows {
        let (line, count, wanted) = (row.line, row.fields.len(), header.fields.len());
        if count != wanted {
            bail!("line {line}: {count} columns, {wanted} wanted");
        }
        if row.fields.iter().any(|field| field.contains('"')) {
            bail!("line {line}: quotes are not read");
        }
        checked.push(row);
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_the_header_are_passed_over_and_lines_keep_their_numbers() {
        let rows = rows("# \"a\", b\nname,count\n\none, 1\n# two\nthree,\n").unwrap();
        let found: Vec<_> = rows.iter().map(|row| (row.line, &row.fields[..])).collect();
        assert_eq!(found, [(4, &["one", "1"][..]), (6, &["three", ""])]);
    }

    #[test]
    fn a_row_of_another_length_is_an_error_with_its_line() {
        let error = rows("a,b\n1,2\n1,2,3\n").unwrap_err().to_string();
        assert!(error.contains("line 3") && error.contains('3'), "{error}");
        assert!(rows("a,b\n\"1,5\",2\n").is_err());
        assert!(rows("a\n\"1\"\n").is_err());
        assert!(rows("# nothing\n").is_err());
    }
}
