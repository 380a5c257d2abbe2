//! Tables that fit: words are wrapped inside their column, columns that can be spared are left out, and as the last
//! resort cells are cut with a sign. A line below the table names the columns left out, and says that cells are cut.

use super::{CUT, cut, plain, width, wrapped};

/// Columns of a table that words are not wrapped to less than, unless nothing else is left.
const COMFORTABLE: usize = 12;
/// Longer words do not keep a column from being narrower.
const LONG_WORD: usize = 24;
/// Columns of a table that words are never wrapped to less than.
const LEAST: usize = 6;

/// A column of numbers that may be left out.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Text above it.
    pub header: &'static str,
    /// Order in which the column is left out: 0 never, then the largest first.
    pub spare: u8,
}

/// [`fitted`] for a column of words and columns of numbers: the table, and the headers of the columns that
/// were left out.
pub fn fitting_table(
    header: &[Column],
    rows: Vec<Vec<String>>,
    columns: usize,
) -> (String, Vec<&'static str>) {
    let heads: Vec<_> = header.iter().map(|head| (head.header, head.spare)).collect();
    let numbers: Vec<usize> = (1..header.len()).collect();
    let table = fitted(&heads, &numbers, &rows, columns);
    let left_out = header
        .iter()
        .map(|head| head.header)
        .filter(|head| table.left_out.iter().any(|out| out == head));
    (table.text, left_out.collect())
}

/// A table in so many columns of a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fitted {
    /// The table; no line end after the last row.
    pub text: String,
    /// The headers of the columns that had no room.
    pub left_out: Vec<String>,
    /// Cells were cut.
    pub is_cut: bool,
}

impl Fitted {
    /// Words on the parts that the table lacks, in lines of `columns`, with the way to have them; nothing if it has
    /// all.
    pub fn lacks(&self, columns: usize) -> String {
        let mut said = String::new();
        if !self.left_out.is_empty() {
            said = format!(
                "Left out for want of room: {}. `--wide` prints them.\n",
                self.left_out.join(", ")
            );
        }
        if self.is_cut {
            said += &format!("{CUT} ends what was cut for want of room. `--wide` prints it.\n");
        }
        wrapped(&said, columns)
    }
}

/// A table in lines of `columns`, and the parts that it lacks in lines below; each line is ended.
///
/// `header` has the text above each column and the order in which it is left out: 0 never (while the first column and
/// another have room), then the largest first. Those in `numbers` are right-aligned and never cut; the others hold
/// words.
pub fn table(
    header: &[(&str, u8)],
    numbers: &[usize],
    rows: Vec<Vec<String>>,
    columns: usize,
) -> String {
    let table = fitted(header, numbers, &rows, columns);
    let lacks = table.lacks(columns);
    format!("{}\n{lacks}", table.text)
}

/// Parts of a table as [`table`] prints it.
pub fn fitted(
    header: &[(&str, u8)],
    numbers: &[usize],
    rows: &[Vec<String>],
    columns: usize,
) -> Fitted {
    let cells = |row: &Vec<String>| row.iter().map(|cell| plain(cell).into_owned()).collect();
    let source = Source {
        header: header.iter().map(|(name, _)| plain(name).into_owned()).collect(),
        numbers,
        rows: rows.iter().map(cells).collect(),
    };
    let mut kept: Vec<usize> = (0..header.len()).collect();
    let widths = loop {
        if let Some(widths) = source.widths(&kept, columns, COMFORTABLE) {
            break widths;
        }
        let spare = |&at: &usize| header.get(kept[at]).map_or(0, |(_, spare)| *spare);
        let least_needed = (1..kept.len()).filter(|at| spare(at) > 0).max_by_key(spare);
        let Some(index) = least_needed else {
            match source.widths(&kept, columns, LEAST) {
                Some(widths) => break widths,
                None if kept.len() > 2 => kept.len() - 1,
                None => break source.least(&kept, columns),
            };
            kept.pop();
            continue;
        };
        kept.remove(index);
    };
    source.print(&kept, &widths)
}

/// Position of a cell that has fewer lines than others of its row.
#[derive(Clone, Copy)]
enum Stands {
    AtTheTop,
    AtTheFoot,
}

struct Source<'t> {
    header: Vec<String>,
    numbers: &'t [usize],
    rows: Vec<Vec<String>>,
}

impl Source<'_> {
    fn cells(&self, column: usize) -> impl Iterator<Item = &str> {
        let cells = self.rows.iter();
        cells.map(move |row| row.get(column).map_or("", String::as_str))
    }

    fn is_number(&self, column: usize) -> bool {
        self.numbers.contains(&column)
    }

    /// Width of each of `kept`, if that fits `columns` with no words in less than `least`.
    fn widths(&self, kept: &[usize], columns: usize, least: usize) -> Option<Vec<usize>> {
        let widest = |column| self.cells(column).map(width).max().unwrap_or(0);
        let header = |column: usize| self.header.get(column).map_or("", String::as_str);
        let whole = kept.iter().map(|&at| widest(at).max(width(header(at)))).collect::<Vec<_>>();
        if fits(&whole, columns) {
            return Some(whole);
        }
        // Headers break at spaces; so do words.
        let mut widths: Vec<usize> =
            kept.iter().map(|&at| widest(at).max(longest_word(header(at)))).collect();
        let floors: Vec<usize> = kept
            .iter()
            .zip(&widths)
            .map(|(&at, &width)| {
                if self.is_number(at) {
                    return width;
                }
                let words = self.cells(at).map(longest_word).max().unwrap_or(0);
                let words = match least < COMFORTABLE {
                    true => least,
                    // A row's name stays in one piece.
                    false if at == 0 => LONG_WORD,
                    false => words.min(LONG_WORD).max(least),
                };
                width.min(words.max(longest_word(header(at)).min(LONG_WORD)))
            })
            .collect();
        while !fits(&widths, columns) {
            let slack = |&at: &usize| widths[at] > floors[at];
            let index = (0..widths.len()).filter(slack).max_by_key(|&at| widths[at])?;
            widths[index] -= 1;
        }
        self.spread(kept, &mut widths, columns);
        Some(widths)
    }

    /// Gives spare room to columns whose headers take most lines.
    fn spread(&self, kept: &[usize], widths: &mut [usize], columns: usize) {
        let between = widths.len().saturating_sub(1);
        let taken = widths.iter().sum::<usize>() + between;
        for _ in taken..columns {
            let lines = kept.iter().zip(&*widths).map(|(&at, &width)| {
                let header = self.header.get(at).map_or("", String::as_str);
                wrapped(header, width).lines().count()
            });
            // Of equals the first, so that the gain is in one place.
            let lines = lines.enumerate().rev().max_by_key(|(_, lines)| *lines);
            match lines.filter(|(_, lines)| *lines > 1) {
                Some((index, _)) => widths[index] += 1,
                None => return,
            }
        }
    }

    /// Widths where nothing fits: the columns share the room.
    fn least(&self, kept: &[usize], columns: usize) -> Vec<usize> {
        let each = (columns + 1) / kept.len().max(1);
        kept.iter().map(|_| each.saturating_sub(1).max(1)).collect()
    }

    fn print(&self, kept: &[usize], widths: &[usize]) -> Fitted {
        let mut is_cut = false;
        let mut lines = Vec::new();
        let header: Vec<&str> =
            kept.iter().map(|&at| self.header.get(at).map_or("", String::as_str)).collect();
        lines.extend(self.row(kept, &header, widths, Stands::AtTheFoot, &mut is_cut));
        let rule: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
        lines.push(rule.join(" "));
        for row in &self.rows {
            let cells: Vec<&str> =
                kept.iter().map(|&at| row.get(at).map_or("", String::as_str)).collect();
            lines.extend(self.row(kept, &cells, widths, Stands::AtTheTop, &mut is_cut));
        }
        let left_out = (0..self.header.len()).filter(|at| !kept.contains(at));
        Fitted {
            text: lines.join("\n"),
            left_out: left_out.map(|at| self.header[at].clone()).collect(),
            is_cut,
        }
    }

    /// The lines of one row.
    fn row(
        &self,
        kept: &[usize],
        cells: &[&str],
        widths: &[usize],
        stands: Stands,
        is_cut: &mut bool,
    ) -> Vec<String> {
        let mut columns: Vec<Vec<String>> = Vec::with_capacity(cells.len());
        for (cell, &width) in cells.iter().zip(widths) {
            let broken = wrapped(cell, width);
            let lines = broken.lines().map(|line| cut(line.trim_end(), width).into_owned());
            let lines: Vec<String> = lines.collect();
            *is_cut |= lines.concat().matches(CUT).count() > cell.matches(CUT).count();
            columns.push(lines);
        }
        let height = columns.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let line = |number: usize| {
            let cells = columns.iter().zip(widths).zip(kept).map(|((lines, &columns), &column)| {
                let above = match stands {
                    Stands::AtTheTop => 0,
                    Stands::AtTheFoot => height - lines.len(),
                };
                let at = number.checked_sub(above);
                let cell = at.and_then(|at| lines.get(at)).map_or("", String::as_str);
                let space = " ".repeat(columns.saturating_sub(width(cell)));
                if self.is_number(column) { space + cell } else { cell.to_owned() + &space }
            });
            let cells: Vec<String> = cells.collect();
            cells.join(" ").trim_end().to_owned()
        };
        (0..height).map(line).collect()
    }
}

fn fits(widths: &[usize], columns: usize) -> bool {
    let between = widths.len().saturating_sub(1);
    widths.iter().sum::<usize>() + between <= columns
}

fn longest_word(text: &str) -> usize {
    let indent = text.len() - text.trim_start_matches(' ').len();
    text.split(' ').map(width).max().unwrap_or(0) + indent
}
