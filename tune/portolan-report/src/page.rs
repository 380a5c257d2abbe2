//! A report's text and its order.

use crate::figure::{Figure, Table};

/// A report: its numbers and the answer first, then sections with figures, at the end the command that makes the same
/// report again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The heading, short.
    pub title: String,
    /// Subject of the report, like the path of a file; left out if empty.
    pub subject: String,
    /// The numbers that decide, the first things to be seen.
    pub tiles: Vec<Tile>,
    /// Advice and its gain, a paragraph each.
    pub answer: Vec<String>,
    /// Sections in the order of reading.
    pub sections: Vec<Section>,
    /// Origin of the report.
    pub origin: Origin,
}

/// A number that decides, with its meaning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tile {
    /// Its name.
    pub name: String,
    /// The number, or a word.
    pub value: String,
    /// Meaning of the number, in a sentence or less.
    pub says: String,
}

/// A part of a report with a heading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// The heading.
    pub heading: String,
    /// Paragraphs below it.
    pub says: Vec<String>,
    /// A table of words below those, open; left out if it has no row. Words between backticks are code.
    pub table: Table,
    /// Figures below it.
    pub figures: Vec<Figure>,
    /// Paragraphs below the figures that readers may open.
    pub notes: Vec<String>,
}

/// Command and facts that make the same report again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The command and its arguments, as the shell took them.
    pub command: String,
    /// Further facts with their names, like the seed, the machine profile and versions.
    pub facts: Vec<(String, String)>,
}
