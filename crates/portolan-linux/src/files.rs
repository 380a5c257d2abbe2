//! Files as memory of devices, and files behind addresses of this process.
//!
//! A domain knows memory by its address, and iommufd maps a file by its descriptor (`IOMMU_IOAS_MAP_FILE`). Each value
//! that has a file at addresses of this process notes it here, as long as the addresses are its own. The addresses are
//! the process's, so the list is as well.
//!
//! Not supported: one mapping over the ends of two files, which is by address.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use portolan::addr::{PageSize, PhysRange};
use rustix::io::Errno;
use thiserror::Error;

/// Reason why a file is no memory for devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FileMemoryError {
    /// It is none of memfd_create, of a tmpfs or of a hugetlbfs.
    #[error("the descriptor is of no file in memory: memfd_create, tmpfs and hugetlbfs have such")]
    NotMemory,
    /// It is no dma-buf.
    #[error("the descriptor is of no dma-buf")]
    NotDmaBuf,
    /// Another process may make it shorter, and an access past its end is a signal.
    #[error("the file is not sealed against shrinking: F_ADD_SEALS with F_SEAL_SHRINK")]
    NotSealed,
    /// It ends before the bytes that were asked for.
    #[error("the file has {length} bytes, and {wanted} from {offset:#x} were asked for")]
    TooShort {
        /// The first byte.
        offset: u64,
        /// Bytes that were asked for.
        wanted: u64,
        /// Bytes of the file.
        length: u64,
    },
    /// Offset, length or base are not whole pages of it, or there are none.
    #[error("the file is of pages of {} bytes: offset, length and base have to be multiples", .page.bytes())]
    Unaligned {
        /// Size of its pages.
        page: PageSize,
    },
    /// The system refused.
    #[error("{}", io::Error::from_raw_os_error(*.code))]
    System {
        /// The system's number of the error.
        code: i32,
    },
}

impl From<Errno> for FileMemoryError {
    fn from(errno: Errno) -> Self {
        Self::System { code: errno.raw_os_error() }
    }
}

/// Bytes of a file that are to be memory for devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePart {
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Contents of a file that devices reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// Memory, which is at these addresses as well.
    Memory,
    /// A dma-buf. There is nothing at these addresses.
    DmaBuf,
}

/// A part of a file.
#[derive(Clone, Debug)]
pub(crate) struct FileBehind {
    pub(crate) file: Arc<File>,
    pub(crate) offset: u64,
    pub(crate) kind: FileKind,
}

#[derive(Debug)]
struct Noted {
    last: u64,
    behind: FileBehind,
}

/// Files by the first of their addresses.
static FILES: RwLock<BTreeMap<u64, Noted>> = RwLock::new(BTreeMap::new());

/// Notes that `behind` is at `range`, until [`forget`] is called.
pub(crate) fn note(range: PhysRange, behind: FileBehind) {
    let noted = Noted { last: range.last().get(), behind };
    let mut files = FILES.write().unwrap_or_else(PoisonError::into_inner);
    files.insert(range.start().get(), noted);
}

/// Ends the note of a file from `start` on, before its addresses become free for others.
pub(crate) fn forget(start: u64) {
    FILES.write().unwrap_or_else(PoisonError::into_inner).remove(&start);
}

/// The part of a file at `range`, if one file is at all of it.
pub(crate) fn behind(range: PhysRange) -> Option<FileBehind> {
    let files = FILES.read().unwrap_or_else(PoisonError::into_inner);
    let (start, noted) = files.range(..=range.start().get()).next_back()?;
    let offset = noted.behind.offset.checked_add(range.start().get() - start)?;
    (range.last().get() <= noted.last).then(|| FileBehind { offset, ..noted.behind.clone() })
}

#[cfg(test)]
mod tests;
