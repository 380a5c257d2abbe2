//! Published tables as CSV: `#` comments, a header, rows of as many fields, no quotes.

use anyhow::{Context, Result, bail};

/// A row.
#[derive(Debug)]
pub(crate) struct CsvRow<'t> {
    /// Line in the file, from 1.
    pub(crate) line: usize,
    /// Fields, without the space around them.
    pub(crate) fields: Vec<&'t str>,
}

impl<'t> CsvRow<'t> {
    /// A field; empty if there are not so many.
    pub(crate) fn text(&self, column: usize) -> &'t str {
        self.fields.get(column).copied().unwrap_or_default()
    }

    /// A field that is a positive number.
    ///
    /// # Errors
    /// If it is none.
    pub(crate) fn number(&self, column: usize) -> Result<f64> {
        let value = self.text(column).parse::<f64>().ok();
        let positive = |value: &f64| value.is_finite() && *value > 0.0;
        (value.filter(positive)).with_context(|| self.wrong(column, "a positive number"))
    }

    /// A field that is a positive whole number.
    ///
    /// # Errors
    /// If it is none.
    pub(crate) fn count(&self, column: usize) -> Result<u64> {
        let value = self.text(column).parse().ok().filter(|count| *count != 0);
        value.with_context(|| self.wrong(column, "a positive whole number"))
    }

    /// Finds the value of `all` that a field names.
    ///
    /// # Errors
    /// If it names none.
    pub(crate) fn one_of<T: Copy, const N: usize>(
        &self,
        column: usize,
        all: [T; N],
        name: impl Fn(T) -> &'static str,
    ) -> Result<T> {
        let found = all.into_iter().find(|one| name(*one) == self.text(column));
        let names = || self.wrong(column, &all.map(&name).join(" or "));
        found.with_context(names)
    }

    fn wrong(&self, column: usize, wanted: &str) -> String {
        format!("line {}: `{}` is not {wanted}", self.line, self.text(column))
    }
}

/// The rows of `text` after its header, if they have `columns` columns.
///
/// # Errors
/// As [`rows`], and if they have not.
pub(crate) fn rows_of(text: &str, columns: usize) -> Result<Vec<CsvRow<'_>>> {
    let rows = rows(text)?;
    if let Some(row) = rows.iter().find(|row| row.fields.len() != columns) {
        let count = row.fields.len();
        bail!("line {}: {count} columns, {columns} wanted", row.line);
    }
    Ok(rows)
}

/// The rows of `text` after its header.
///
/// # Errors
/// A row with another number of fields than the header, or with a quote.
pub(crate) fn rows(text: &str) -> Result<Vec<CsvRow<'_>>> {
    let lines = (1..).zip(text.lines());
    let lines = lines.filter(|(_, text)| !text.is_empty() && !text.starts_with('#'));
    let mut rows =
        lines.map(|(line, text)| CsvRow { line, fields: text.split(',').map(str::trim).collect() });
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
