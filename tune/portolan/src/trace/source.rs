//! Sources of lines: files and bytes, compressed or not.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

use super::binary::{self, RecordingError, Tool};
use super::unpack;

/// Longest line that is looked at.
const MAX_LINE: usize = 1 << 20;
/// Bytes read at once, and looked ahead to learn which events a trace has.
const CHUNK: usize = 4 << 20;

const HOW_TO: &str = "record one with `portolan record`, or pass a trace.dat of trace-cmd, a perf.data of perf, what \
     `trace-cmd report` or `perf script` print, or a copy of /sys/kernel/tracing/trace";

/// Reason why a trace cannot be read.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The file cannot be opened or read.
    #[error("cannot read {}: {error}; check the path and its permissions", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The file is empty.
    #[error("the trace is empty; {HOW_TO}")]
    Empty,
    /// Binary data.
    #[error("the trace is binary data, not text; {HOW_TO}")]
    Binary,
    /// A recording of trace-cmd or perf that is not read.
    #[error(
        "the trace is a recording that cannot be read: {0}; or pass what `trace-cmd report` or \
         `perf script` print of it"
    )]
    Recording(RecordingError),
    /// Compressed data that cannot be unpacked.
    #[error("the trace cannot be unpacked: {0}; copy it again, or unpack it first")]
    Packed(io::Error),
    /// A recording of latencies.
    #[error(
        "the recording has latencies of the kernel's functions and no events: `portolan calibrate` reads it; \
         to replay, record again while the devices work"
    )]
    LatenciesAlone,
    /// Lines that end with a carriage return only.
    #[error(
        "its lines end with a carriage return and no line feed: `tr '\\r' '\\n'` makes lines of them"
    )]
    CarriageReturns,
    /// Events without CPU and time.
    #[error(
        "its events have neither a CPU nor a time (ftrace's option nocontext-info, or text copied without them); \
         {HOW_TO}"
    )]
    WithoutContext,
    /// A trace of functions.
    #[error("it is a trace of functions, which `portolan calibrate` reads; for a replay, {HOW_TO}")]
    Functions,
    /// Text without a single line of a trace.
    #[error("no line of it looks like a trace event; {HOW_TO}")]
    NotATrace,
}

/// The text of a `RecordingError` is part of the message, so it is not also its source.
impl From<RecordingError> for OpenError {
    fn from(error: RecordingError) -> Self {
        Self::Recording(error)
    }
}

/// Counts the bytes of a (packed) file that were read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter {
    read: Arc<AtomicU64>,
    /// The size of the file, if it is one.
    size: Option<u64>,
}

/// A file with its meter.
struct Metered {
    file: File,
    meter: Meter,
}

impl Seek for Metered {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

impl Read for Metered {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(out)?;
        self.meter.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// Opens `path`, or standard input for `-`, unpacking if need be; returns a meter of the bytes read too.
pub(crate) fn open_file(path: &Path) -> Result<(Box<dyn Read>, Meter), OpenError> {
    let failed = |error| OpenError::File { path: path.to_owned(), error };
    if path == Path::new("-") {
        return Ok((open_bytes(Box::new(io::stdin()))?, Meter::default()));
    }
    let file = File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if found.is_dir() {
        return Err(if is_folder_of_perf(path) {
            RecordingError::Folder.into()
        } else {
            failed(io::Error::other("it is a directory"))
        });
    }
    let meter = Meter { size: found.is_file().then_some(found.len()), ..Meter::default() };
    let mut file = Metered { file, meter: meter.clone() };
    let mut head = Vec::new();
    let looked = file.by_ref().take(binary::HEAD as u64).read_to_end(&mut head);
    looked.map_err(failed)?;
    let input = match Tool::of(&head) {
        Some(tool) if found.is_file() => tool.open(Box::new(file))?,
        _ => open_bytes(Box::new(Cursor::new(head).chain(file)))?,
    };
    Ok((input, meter))
}

/// Tells if `perf record --threads` made the folder at `path`.
pub(crate) fn is_folder_of_perf(path: &Path) -> bool {
    let mut head = Vec::new();
    let file = File::open(path.join("data"));
    let read = file.and_then(|file| file.take(binary::HEAD as u64).read_to_end(&mut head));
    read.is_ok() && Tool::of(&head) == Some(Tool::Perf)
}

/// Unpacks `input` if its first bytes say that it is xz, zstd or gzip, and reads recordings of trace-cmd and
/// perf as text.
///
/// # Errors
/// If its first bytes cannot be read, or a recording cannot.
pub fn open_bytes(input: Box<dyn Read>) -> Result<Box<dyn Read>, OpenError> {
    let mut input = unpack::unpacked(input).map_err(OpenError::Packed)?;
    let mut head = Vec::new();
    let looked = input.by_ref().take(binary::HEAD as u64).read_to_end(&mut head);
    // An error at once is for the reader of lines to report.
    let error = looked.err();
    let head_is_of = Tool::of(&head);
    let whole = Cursor::new(head).chain(Broken(error)).chain(input);
    match head_is_of {
        Some(tool) => Ok(tool.open_stream(whole)?),
        None => Ok(Box::new(whole)),
    }
}

/// The end of a stream, or the error that broke it off.
struct Broken(Option<io::Error>);

impl Read for Broken {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

/// A line without its line break.
pub(crate) struct RawLine<'l> {
    pub(crate) number: u64,
    pub(crate) bytes: &'l [u8],
    pub(crate) too_long: bool,
}

/// Lines of a stream, in a buffer of fixed size.
pub(crate) struct Lines {
    input: Box<dyn Read>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    number: u64,
    bytes_read: u64,
    at_end: bool,
    error: Option<io::Error>,
}

impl Lines {
    /// Reads the beginning and checks that it is text with a line that `is_one`; otherwise returns the error that
    /// `otherwise` makes.
    pub(crate) fn new(
        input: Box<dyn Read>,
        is_one: impl Fn(&[u8]) -> bool,
        otherwise: impl Fn(&[u8]) -> OpenError,
    ) -> Result<Self, OpenError> {
        let mut lines = Self {
            input,
            buffer: vec![0; CHUNK + MAX_LINE],
            start: 0,
            end: 0,
            number: 0,
            bytes_read: 0,
            at_end: false,
            error: None,
        };
        lines.fill();
        let head = &lines.buffer[..lines.end];
        match (head.is_empty(), lines.error.take()) {
            (true, Some(error)) => return Err(OpenError::Packed(error)),
            (true, None) => return Err(OpenError::Empty),
            (false, error) => lines.error = error,
        }
        if head.iter().all(u8::is_ascii_whitespace) {
            return Err(OpenError::Empty);
        }
        let odd = head.iter().filter(|&&b| b < 9 || (13 < b && b < 32) || b == 127).count();
        if odd * 20 > head.len() {
            return Err(OpenError::Binary);
        }
        let returns = head.trim_ascii().iter().filter(|b| **b == b'\r').count();
        if returns > 0 && !head.contains(&b'\n') {
            return Err(OpenError::CarriageReturns);
        }
        if !head.split(|&b| b == b'\n').any(is_one) {
            return Err(otherwise(head));
        }
        Ok(lines)
    }

    /// The first line that begins with `start`, if it is in the beginning of the trace.
    pub(crate) fn first_with(&self, start: &str) -> Option<&[u8]> {
        let mut lines = self.buffer[self.start..self.end].split(|&b| b == b'\n');
        lines.find(|line| line.starts_with(start.as_bytes()))
    }

    /// Number of the last line.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Bytes of `meter`'s file that the lines so far take, and the file's size, if known.
    ///
    /// Bytes that wait in the buffer were read and are not yet lines; the rest is in proportion.
    pub(super) fn bytes_done(&self, meter: &Meter) -> Option<(u64, u64)> {
        let waits = (self.end - self.start) as f64;
        let part = 1.0 - waits / (self.bytes_read as f64).max(1.0);
        let read = meter.read.load(Ordering::Relaxed) as f64;
        let size = meter.size?;
        // Parts of a recording may be read twice.
        Some((((read * part) as u64).min(size), size))
    }

    /// Error that ended the stream early.
    pub(crate) fn error(&mut self) -> Option<String> {
        self.error.take().map(|error| format!("the stream breaks off: {error}"))
    }

    /// The next line; a line above the limit is cut.
    pub(crate) fn next_line(&mut self) -> Option<RawLine<'_>> {
        let mut found = memchr::memchr(b'\n', &self.buffer[self.start..self.end]);
        if found.is_none() && !self.at_end {
            self.fill();
            found = memchr::memchr(b'\n', &self.buffer[self.start..self.end]);
        }
        if self.start == self.end {
            return None;
        }
        self.number += 1;
        let start = self.start;
        let (stop, too_long) = match found {
            Some(length) => {
                self.start += length + 1;
                (start + length, length > MAX_LINE)
            }
            None if self.at_end => {
                self.start = self.end;
                (self.end, false)
            }
            None => {
                self.skip_line();
                return Some(RawLine { number: self.number, bytes: b"", too_long: true });
            }
        };
        let bytes = &self.buffer[start..stop];
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        Some(RawLine { number: self.number, bytes, too_long })
    }

    /// Drops a line that does not fit the buffer.
    fn skip_line(&mut self) {
        loop {
            if let Some(length) = memchr::memchr(b'\n', &self.buffer[self.start..self.end]) {
                self.start += length + 1;
                return;
            }
            self.start = self.end;
            if self.at_end {
                return;
            }
            self.fill();
        }
    }

    /// Moves the rest to the front and fills the buffer behind it.
    fn fill(&mut self) {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        while self.end < self.buffer.len() {
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(0) => {
                    self.at_end = true;
                    return;
                }
                Ok(count) => {
                    self.end += count;
                    self.bytes_read += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.error = Some(error);
                    self.at_end = true;
                    return;
                }
            }
        }
    }
}
