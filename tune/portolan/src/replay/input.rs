//! Traces that can be replayed: files, standard input, and the one that comes with the program.

use std::fmt;
use std::path::Path;

use crate::trace::{self, OpenError, Reader};

const BUNDLED: &[u8] = include_bytes!("../../../../data/traces/vtd-strict.mixed-sg-4j.trace.xz");

/// A trace that is not open yet. Its text is its name for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceInput<'a> {
    /// The file at this path, or standard input for `-`.
    File(&'a Path),
    /// The trace that comes with the program.
    Bundled,
}

impl<'a> TraceInput<'a> {
    /// The trace at `path`, or the bundled one.
    pub fn of(path: Option<&'a Path>) -> Self {
        path.map_or(Self::Bundled, Self::File)
    }

    /// Opens it; the reader has its name.
    ///
    /// # Errors
    /// If the trace cannot be read; the error does not always name it.
    pub fn open(self) -> Result<Reader, OpenError> {
        let reader = match self {
            Self::File(path) => trace::open(path)?,
            Self::Bundled => trace::from_bytes(BUNDLED)?,
        };
        Ok(reader.named(self.to_string()))
    }
}

impl fmt::Display for TraceInput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) if *path == Path::new("-") => f.write_str("standard input"),
            Self::File(path) => path.display().fmt(f),
            Self::Bundled => f.write_str("bundled trace vtd-strict.mixed-sg-4j"),
        }
    }
}
