//! Why a controller does not do what it is asked.

use core::error::Error;
use core::fmt;

use portolan::dma::MapError;

use super::command::Status;

#[derive(Clone, Copy, Debug)]
pub enum NvmeError {
    /// Memory for the controller was not mapped.
    Map(MapError),
    /// The function has no registers in memory.
    NoRegisters,
    /// The controller cannot do what this driver needs.
    Unsupported { capabilities: u64 },
    /// The namespace has blocks that this driver does not know.
    Format { metadata: u16, bytes_lg2: u8 },
    /// All I/O queues are in use.
    NoQueue,
    /// Something was not done in time.
    TimedOut { status: u32 },
    /// The controller has given up.
    Fatal { status: u32 },
    /// A command failed.
    Command(Status),
    /// The controller says that it has completed a command that it was not given.
    Stray { id: u16 },
    /// As many commands are under way as can be.
    Full,
    /// The data is not that of blocks that there are.
    NoSuchBlocks,
    /// The data has more bytes than a command can have.
    TooLong,
    /// The data has a gap inside of a page.
    Gap,
}

impl fmt::Display for NvmeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Map(error) => error.fmt(f),
            Self::NoRegisters => f.write_str("the NVMe controller has no registers"),
            Self::Unsupported { capabilities } => {
                write!(
                    f,
                    "a controller of capabilities {capabilities:#x} is not supported"
                )
            }
            Self::Format {
                metadata,
                bytes_lg2,
            } => write!(
                f,
                "blocks of 2^{bytes_lg2} bytes with {metadata} bytes of metadata are not supported"
            ),
            Self::NoQueue => f.write_str("the controller has no I/O queue left"),
            Self::TimedOut { status } => {
                write!(f, "the controller took too long; its status is {status:#x}")
            }
            Self::Fatal { status } => write!(f, "the controller gave up: status {status:#x}"),
            Self::Command(status) => status.fmt(f),
            Self::Stray { id } => write!(f, "command {id} was completed, and is not under way"),
            Self::Full => f.write_str("as many commands are under way as can be"),
            Self::NoSuchBlocks => f.write_str("there are no such blocks"),
            Self::TooLong => f.write_str("the data is too long for one command"),
            Self::Gap => f.write_str("the data has a gap inside of a page"),
        }
    }
}

impl Error for NvmeError {}

impl From<MapError> for NvmeError {
    fn from(error: MapError) -> Self {
        Self::Map(error)
    }
}

impl From<Status> for NvmeError {
    fn from(status: Status) -> Self {
        Self::Command(status)
    }
}
