//! A report's text and its order.

use crate::figure::Figure;

/// A report: the answer first, then sections with figures, at the end what brings the same report about again.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// The heading.
    pub title: String,
    /// What to do and what it gains, a paragraph each.
    pub answer: Vec<String>,
    /// Sections in the order of reading.
    pub sections: Vec<Section>,
    /// How the report came about.
    pub origin: Origin,
}

/// A part of a report under a heading of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    /// The heading.
    pub heading: String,
    /// Paragraphs below it.
    pub says: Vec<String>,
    /// Figures below those.
    pub figures: Vec<Figure>,
}

/// What brings the same report about again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The command and its arguments, as the shell took them.
    pub command: String,
    /// Further facts with their names, like the seed, the machine profile and versions.
    pub facts: Vec<(String, String)>,
}
