//! Binary recordings, read as the text that the kernel would have printed: `trace.dat` of trace-cmd and
//! `perf.data` of perf.
//!
//! The text goes to the reader of text: one reader knows the meaning of events. [`ring`] and [`events`] serve
//! [`crate::record`] too, whose pages come from the running kernel. Events are put in the order of time over all
//! CPUs; memory is bounded by the pages of the CPUs (trace-cmd) and by the records that wait for their turn (perf).
//! Lost events and parts that cannot be read stand in the text as lines of their own. A file that is packed, or comes
//! through a pipe, is copied to a temporary file first, as its parts are not in the order in which they are needed.

mod error;
pub(crate) mod events;
mod expression;
mod format;
mod input;
mod packed;
mod parser;
mod perf;
mod recipe;
pub(crate) mod ring;
mod sample;
#[cfg(test)]
mod tests;
mod trace_dat;
mod unpacking;
pub(crate) mod value;

use std::io::{self, Cursor, Read, Seek};

pub use error::RecordingError;
pub(super) use input::Seekable;

use super::RELEASE;
use perf::PerfData;
use trace_dat::TraceDat;

/// Bytes at the beginning of a file that tell its kind.
pub(super) const HEAD: usize = 10;

/// The program that wrote a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tool {
    TraceCmd,
    Perf,
}

impl Tool {
    /// The program that wrote a file which begins with `head`.
    pub(super) fn of(head: &[u8]) -> Option<Self> {
        const TRACE_CMD: &[u8] = b"\x17\x08\x44tracing";
        const PERF: [&[u8]; 4] = [b"PERFILE2", b"2ELIFREP", b"PERFFILE", b"ELIFFREP"];
        if head.starts_with(TRACE_CMD) {
            return Some(Self::TraceCmd);
        }
        let of_perf = PERF.iter().any(|magic| head.starts_with(magic));
        of_perf.then_some(Self::Perf)
    }

    /// Opens the recording in `file`.
    ///
    /// # Errors
    /// The reason for which it cannot be read.
    pub(super) fn open(self, file: Box<dyn Seekable>) -> Result<Box<dyn Read>, RecordingError> {
        let recording: Box<dyn Recording> = match self {
            Self::TraceCmd => Box::new(TraceDat::open(file)?),
            Self::Perf => Box::new(PerfData::open(file)?),
        };
        Ok(Box::new(Text { recording, line: Vec::new(), at: 0 }))
    }

    /// Opens the recording that `input` holds, by way of a temporary file.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(super) fn open_stream(self, mut input: impl Read) -> Result<Box<dyn Read>, RecordingError> {
        let mut file = tempfile::tempfile()?;
        io::copy(&mut input, &mut file)?;
        file.rewind()?;
        self.open(Box::new(file))
    }
}

/// Lines of a recording in the order of time.
trait Recording {
    /// Appends the next lines; returns `false` if there are none.
    fn write_lines(&mut self, out: &mut Vec<u8>) -> Result<bool, RecordingError>;
}

/// The line with the kernel's release; empty if that is not a plain word.
fn release_line(release: &str) -> String {
    let plain = !release.is_empty() && release.bytes().all(|byte| byte.is_ascii_graphic());
    if plain { format!("{RELEASE}{release}\n") } else { String::new() }
}

/// A recording as text.
struct Text {
    recording: Box<dyn Recording>,
    line: Vec<u8>,
    at: usize,
}

impl Read for Text {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.at == self.line.len() {
            self.line.clear();
            self.at = 0;
            match self.recording.write_lines(&mut self.line) {
                Ok(true) => {}
                Ok(false) => return Ok(0),
                Err(error) => return Err(io::Error::other(error.to_string())),
            }
        }
        let count = Cursor::new(&self.line[self.at..]).read(out)?;
        self.at += count;
        Ok(count)
    }
}
