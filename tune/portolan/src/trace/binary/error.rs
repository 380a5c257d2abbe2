//! Errors of binary recordings.

use std::io;

use thiserror::Error;

/// Reason why a recording of `trace-cmd` or `perf` cannot be read.
#[derive(Debug, Error)]
pub enum RecordingError {
    /// A version without a reader.
    #[error("version {0} of the file's form is not known; 6 and 7 are read")]
    Version(String),
    /// perf's first form, of before 2013.
    #[error("it is of perf's first form (PERFFILE), which is not read")]
    FirstPerf,
    /// The file has the other byte order.
    #[error("a big-endian machine wrote it; those of little-endian ones are read")]
    BigEndian,
    /// Words of another size.
    #[error("a machine with words of {0} bytes wrote it; those of 8 are read")]
    WordSize(u64),
    /// The file is shorter than it says.
    #[error("it ends within {0}: it was cut, or its recorder was killed")]
    Cut(&'static str),
    /// More than can be meant.
    #[error("{0} are larger than any recorder's: the file is damaged")]
    TooLarge(&'static str),
    /// Unexpected contents.
    #[error("something else stands where {0} should: the file is damaged")]
    Odd(&'static str),
    /// Parts that are packed with another program.
    #[error("its parts are packed with {0}; zstd and zlib are read")]
    Compression(String),
    /// A part that cannot be unpacked.
    #[error("{0} cannot be unpacked: {1}")]
    Packed(&'static str, io::Error),
    /// Times that are no times.
    #[error("its clock {0} does not count nanoseconds; record with another one")]
    Clock(String),
    /// Text of a latency tracer.
    #[error("it holds the text of a latency tracer and no events")]
    Latency,
    /// The file describes no event.
    #[error("it describes no events: {0}")]
    NoEvents(&'static str),
    /// Events lie in other buffers than the main one.
    #[error(
        "the main buffer is empty, and others are not read ({0}); `trace-cmd split -B` takes one out"
    )]
    OtherBuffers(String),
    /// Samples without a part that is needed.
    #[error("its samples lack {0}")]
    Lacking(&'static str),
    /// A folder that `perf record --threads` made.
    #[error("it is a folder of `perf record --threads`; record without that option")]
    Folder,
    /// The operating system's error.
    #[error("{0}")]
    Io(#[from] io::Error),
}
