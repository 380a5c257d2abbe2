//! Memory of other devices: dma-bufs.
//!
//! linux/dma-buf.h, linux/magic.h. The memory is another device's, a BAR for example
//! ([`VfioDevice::bar_dma_buf`](crate::vfio::VfioDevice::bar_dma_buf)), and a device reaches it without this process. A
//! [`DmaBuf`] is a buffer, so it is mapped as any other, by iommufd alone. Its addresses in this process are kept free:
//! they name it, and an access to them is a signal.
//!
//! Not supported: reads and writes by this process, fences of other users.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::dma::{Buffer, Failed, MemoryKind, Pieces, Sharing};
use rustix::fs::{fstat, fstatfs};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::files::{self, FileBehind, FileKind, FileMemoryError, FilePart};

/// Kind of the file system of dma-bufs (linux/magic.h).
const DMA_BUF: i64 = 0x444d_4142;

/// Addresses that are kept free.
#[derive(Debug)]
struct Addresses {
    start: NonNull<u8>,
    range: PhysRange,
    bytes: usize,
    file: Arc<File>,
}

// SAFETY: the addresses are never read or written.
unsafe impl Send for Addresses {}
// SAFETY: as above.
unsafe impl Sync for Addresses {}

impl Addresses {
    fn new(file: File, offset: u64, bytes: usize) -> rustix::io::Result<Self> {
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { mmap_anonymous(null, bytes, ProtFlags::empty(), MapFlags::PRIVATE) }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::NOMEM)?;
        let at = PhysAddr::new(start.addr().get() as u64);
        let range = PhysRange::from_len(at, bytes as u64);
        // Not empty, and a process's addresses end below 2^64.
        let range = range.unwrap_or(PhysRange::page(at, PageSize::SIZE_4K));
        let file = Arc::new(file);
        files::note(range, FileBehind { file: file.clone(), offset, kind: FileKind::DmaBuf });
        Ok(Self { start, range, bytes, file })
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        files::forget(self.range.start().get());
        // SAFETY: the mapping was made in `new`, and nothing refers to it any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A part of another device's memory, for devices of this process (peer to peer). Clones are the same part.
///
/// The device that has the memory may take it back at any time (*revoke*): a reset, the end of its memory space, its
/// removal. Then the kernel unmaps it, and an access of a device is a fault, while the mapping stays until it is
/// unmapped. Where the device gives the memory again, a new mapping reaches it, and an old one never does. A map of
/// memory that is taken back fails with [`IommuError::Gone`](portolan::iommu::IommuError), and one of an exporter that
/// the kernel's iommufd does not know (Linux 7.3 knows VFIO alone) with `Unsupported`.
#[derive(Clone, Debug)]
pub struct DmaBuf {
    addresses: Arc<Addresses>,
}

impl DmaBuf {
    /// A part of a dma-buf, of any exporter.
    ///
    /// ```
    /// use portolan_linux::memory::{DmaBuf, FileMemoryError, FilePart};
    /// use std::os::fd::OwnedFd;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let (socket, _) = std::os::unix::net::UnixStream::pair()?;
    /// let refused = DmaBuf::new(socket.into(), FilePart { offset: 0, bytes: 4096 });
    /// let refused = refused.expect_err("a socket is none");
    /// assert_eq!(refused.error, FileMemoryError::NotDmaBuf);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// With the descriptor; see [`FileMemoryError`].
    pub fn new(file: OwnedFd, part: FilePart) -> Result<Self, Failed<OwnedFd, FileMemoryError>> {
        match Self::check(&file) {
            Ok(()) => Self::of(file, part),
            Err(error) => Err(Failed { error, value: file }),
        }
    }

    fn check(file: &OwnedFd) -> Result<(), FileMemoryError> {
        match fstatfs(file)?.f_type {
            DMA_BUF => Ok(()),
            _ => Err(FileMemoryError::NotDmaBuf),
        }
    }

    /// The same of a file that is known to be one.
    fn of(
        file: OwnedFd,
        FilePart { offset, bytes }: FilePart,
    ) -> Result<Self, Failed<OwnedFd, FileMemoryError>> {
        let page = PageSize::SIZE_4K;
        let length = fstat(&file).map(|status| u64::try_from(status.st_size).unwrap_or(0));
        let checked = length.map_err(FileMemoryError::from).and_then(|length| {
            let whole = bytes.is_multiple_of(page.bytes()) && offset.is_multiple_of(page.bytes());
            let count = usize::try_from(bytes).ok().filter(|count| *count != 0 && whole);
            let count = count.ok_or(FileMemoryError::Unaligned { page })?;
            match offset.checked_add(bytes).is_some_and(|end| end <= length) {
                true => Ok(count),
                false => Err(FileMemoryError::TooShort { offset, wanted: bytes, length }),
            }
        });
        let kept = |count| {
            let kept = file.try_clone().map_err(|_| Errno::MFILE)?;
            Ok(Addresses::new(kept.into(), offset, count)?)
        };
        match checked.and_then(kept) {
            Ok(addresses) => Ok(Self { addresses: Arc::new(addresses) }),
            Err(error) => Err(Failed { error, value: file }),
        }
    }

    /// A file that stands in for a dma-buf.
    #[cfg(test)]
    pub(crate) fn stand_in(file: OwnedFd, part: FilePart) -> Self {
        Self::of(file, part).map_err(|failed| failed.error).unwrap()
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.addresses.bytes as u64
    }
}

/// The descriptor, to be given to another process or interface.
impl AsFd for DmaBuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.addresses.file.as_fd()
    }
}

// SAFETY: the pieces are addresses that stay this value's, and no memory is there; the kernel keeps the device's memory
// as long as it is mapped.
unsafe impl Buffer for DmaBuf {
    fn pieces(&self) -> Pieces<'_> {
        Pieces::One(self.addresses.range)
    }

    fn device_may_write(&self) -> bool {
        true
    }

    fn sharing(&self) -> Sharing {
        Sharing::Shared
    }

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Registers
    }
}

#[cfg(test)]
mod tests;
