//! Reading Linux DMA traces: lines, events, and the operations they add up to.
//!
//! Understood are the text forms of ftrace (`trace`, `trace_pipe`), `trace-cmd report` and
//! `perf script`, and the recordings of `trace-cmd` and `perf` themselves, which `binary` turns
//! into such text, plain or compressed with xz, zstd or gzip. Events: `dma:*`, `iommu:*`,
//! `swiotlb:*`, `intel_iommu:*` as of Linux 6.12; others are counted. `docs/traces.md` has the forms that are not
//! read.
//!
//! Memory is bounded by the mappings that are live, not by the length of the trace. The contents of a file are
//! counted or reported, never trusted.

mod before;
pub(crate) mod binary;
mod devices;
mod event;
mod intake;
mod latencies;
mod line;
mod list;
mod mappings;
mod numbers;
mod op;
mod outbox;
mod pair;
mod pieces;
mod recent_events;
mod skew;
mod source;
mod summary;
#[cfg(test)]
mod tests;
mod ticks;
mod unclaimed;
mod understood;
mod unpack;

pub use binary::RecordingError;
use event::is_of_dma;
pub(crate) use event::{Event, parse as parse_event};
pub(crate) use intake::Intake;
pub use line::Clock;
pub(crate) use line::{TraceLine, parse as parse_line};
pub(crate) use numbers::{decimal, fixed, hexadecimal};
pub(crate) use op::Mix;
pub use op::{Api, At, Class, DeviceId, MapId, Op, OpKind, Piece, Running};
pub(crate) use source::{Lines, RawLine, is_folder_of_perf, open_file};
pub use source::{OpenError, open_bytes};
pub use summary::{BadLine, Excerpt, KernelInvalidations, RecorderStatus, Summary};
pub use understood::{Understood, UnderstoodPct};

use std::io::{Cursor, Read};
use std::path::Path;

use crate::facts::{self, Facts, HEAD};
use source::Meter;

/// Beginning of the line with the kernel's release.
const RELEASE: &str = "# os release : ";

/// A trace being read.
pub struct Reader {
    /// Name for people; empty if it was given none.
    name: String,
    lines: Lines,
    meter: Meter,
    intake: Intake,
    place: ReadTo,
    /// Lines of the kernel's latencies that the recorder put before the events.
    latencies: Vec<u8>,
}

/// Progress of a reader.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadTo {
    Middle,
    /// All lines have been read, and operations are left.
    LastLine,
    End,
}

/// Opens a trace file, or standard input for `-`, compressed or not, and looks at its beginning.
///
/// # Errors
/// If the file cannot be read or is not a trace; the message has advice.
pub fn open(path: &Path) -> Result<Reader, OpenError> {
    let (input, meter) = source::open_file(path)?;
    let mut reader = Reader::new(input)?;
    reader.meter = meter;
    Ok(reader)
}

/// Reads a trace from bytes already in memory, compressed or not.
///
/// # Errors
/// If it is not a trace.
pub fn from_bytes(bytes: impl AsRef<[u8]> + 'static) -> Result<Reader, OpenError> {
    Reader::new(open_bytes(Box::new(Cursor::new(bytes)))?)
}

impl Reader {
    /// Reads a trace from `input`, uncompressed.
    ///
    /// # Errors
    /// If it is not a trace.
    pub fn new(input: Box<dyn Read>) -> Result<Self, OpenError> {
        let (input, latencies) = latencies::split(input).map_err(OpenError::Packed)?;
        // A recording in which nothing was mapped is one.
        let is_one = |text: &[u8]| {
            let begins = latencies.is_empty() && text.starts_with(HEAD.as_bytes());
            begins || matches!(line::parse(text), TraceLine::Event(_))
        };
        let otherwise = |head: &[u8]| {
            if latencies.is_empty() { none_is_an_event(head) } else { OpenError::LatenciesAlone }
        };
        let lines = Lines::new(input, is_one, otherwise)?;
        Ok(Self {
            name: String::new(),
            lines,
            meter: Meter::default(),
            intake: Intake::default(),
            place: ReadTo::Middle,
            latencies,
        })
    }

    /// The reader with the name that reports have.
    #[must_use]
    pub fn named(self, name: String) -> Self {
        Self { name, ..self }
    }

    /// Its name for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next operation; `None` at the end.
    pub fn next_op(&mut self) -> Option<Op<'_>> {
        while !self.intake.advance() {
            match self.place {
                ReadTo::End => return None,
                ReadTo::LastLine => {
                    self.intake.close();
                    self.place = ReadTo::End;
                }
                ReadTo::Middle => {
                    if !self.read_line() {
                        self.end();
                    }
                }
            }
        }
        self.intake.op()
    }

    /// Notes the end of the lines.
    fn end(&mut self) {
        self.place = ReadTo::LastLine;
        self.intake.finish();
        if let Some(error) = self.lines.error() {
            self.intake.note_cut(self.lines.number(), &error);
        }
    }

    /// Facts of the recorder on its machine, if they are at the beginning.
    ///
    /// # Errors
    /// If they cannot be read: the reason.
    pub fn facts(&self) -> Option<serde_json::Result<Facts>> {
        Facts::parse(self.lines.first_with(HEAD)?)
    }

    /// Latencies of the kernel's functions as `function_graph` prints them; empty if they were not recorded.
    pub(crate) fn latencies(&self) -> &[u8] {
        &self.latencies
    }

    /// The kernel's release as two numbers, if the trace begins with it, like the output of `perf script --header`.
    pub fn release(&self) -> Option<(u32, u32)> {
        let line = self.lines.first_with(RELEASE)?;
        facts::version(std::str::from_utf8(line.strip_prefix(RELEASE.as_bytes())?).ok()?)
    }

    /// Number of the machine's CPUs, where the trace begins with it: `#P:4` of ftrace, `cpus=4` of `trace-cmd report`.
    pub fn cpus(&self) -> Option<u32> {
        let head = self
            .lines
            .first_with("# entries-in-buffer/")
            .and_then(|line| Some(&line[memchr::memmem::find(line, b"#P:")? + 3..]));
        let cpus = head.or_else(|| self.lines.first_with("cpus=")?.strip_prefix(b"cpus="))?;
        let cpus = decimal(cpus.trim_ascii())?;
        u32::try_from(cpus).ok().filter(|cpus| *cpus > 0)
    }

    /// Counts of the lines read so far.
    pub fn summary(&self) -> &Summary {
        self.intake.summary()
    }

    /// Uncompressed bytes read so far.
    pub fn bytes_read(&self) -> u64 {
        self.lines.bytes_read()
    }

    /// Bytes of the (packed) file that were replayed so far, and its size; `None` for pipes.
    pub fn bytes_done(&self) -> Option<(u64, u64)> {
        self.lines.bytes_done(&self.meter)
    }

    /// Reads one line; false at the end.
    fn read_line(&mut self) -> bool {
        let line = self.lines.next_line();
        line.is_some_and(|line| {
            self.intake.line(&line);
            true
        })
    }
}

/// Error for a text without a single event.
fn none_is_an_event(head: &[u8]) -> OpenError {
    let any = |is: fn(&[u8]) -> bool| head.split(|b| *b == b'\n').any(is);
    if any(line::is_without_context) {
        OpenError::WithoutContext
    } else if any(line::is_of_function_graph) {
        OpenError::Functions
    } else {
        OpenError::NotATrace
    }
}
