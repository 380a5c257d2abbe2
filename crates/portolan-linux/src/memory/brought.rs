//! Memory that the application brought: files in memory, huge pages, memory that it has mapped itself.
//!
//! There are two promises. Memory that others reach while a device does (a client's, another process's, a pool whose
//! entries the CPU polls) is a [`HostMemory`], mapped for devices as a [`HostBuffer`]: no bytes of it are lent, so all
//! that follows the promise is safe. Memory of one owner is [`BroughtPages`]: a buffer like
//! [`Pages`](super::Pages), of which a [`BufferPool`](portolan::dma::BufferPool) lends slots.
//!
//! Not supported: files on disks, which the kernel does not keep in place for a device.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::dma::{Buffer, Failed, Pieces, Sharing};
use rustix::fs::{FileType, SealFlags, fcntl_get_seals, fstat, fstatfs};
use rustix::io::Errno;

use super::{Base, HostMemory, OutsideMemory, Placed, Source, fitting};
use crate::files::{FileMemoryError, FilePart};

/// Kinds of file systems (linux/magic.h).
const HUGETLBFS: i64 = 0x9584_58f6;
const TMPFS: i64 = 0x0102_1994;

/// Pages of a file, found by what the system says of it, and the length of the file.
fn pages_of(file: &OwnedFd) -> Result<(PageSize, u64), FileMemoryError> {
    let status = fstat(file)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return Err(FileMemoryError::NotMemory);
    }
    let system = fstatfs(file)?;
    let length = u64::try_from(status.st_size).unwrap_or(0);
    match system.f_type {
        TMPFS => Ok((PageSize::SIZE_4K, length)),
        HUGETLBFS => {
            let bytes = u64::try_from(system.f_bsize).unwrap_or(0);
            let lg2 = bytes.is_power_of_two().then(|| bytes.trailing_zeros());
            Ok((PageSize::of_lg2(lg2.ok_or(FileMemoryError::NotMemory)?), length))
        }
        _ => Err(FileMemoryError::NotMemory),
    }
}

impl HostMemory {
    /// A part of a file in memory that another process may have made: of `memfd_create`, of a tmpfs or a hugetlbfs,
    /// with huge pages or without. Others that have the file write the same bytes that devices and this process read.
    /// Where they punch holes into it, a device goes on with the pages that were there, and all others have new ones.
    ///
    /// Over iommufd, from Linux 6.13 on, it is mapped for devices by its descriptor (`IOMMU_IOAS_MAP_FILE`), so that a
    /// mapping does not need this process ([`UserUnit::charge`](crate::vfio::UserUnit::charge)); else by its address.
    ///
    /// ```
    /// use portolan_linux::memory::{Backing, Base, FilePart, HostMemory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let of_a_client = HostMemory::new(8192, Backing::File, Base::Host)?;
    /// # let descriptor = of_a_client.file().ok_or("no file")?.try_clone_to_owned()?;
    /// let part = FilePart { offset: 4096, bytes: 4096 };
    /// let memory = HostMemory::of_file(descriptor, part, Base::Host).map_err(|failed| failed.error)?;
    /// let buffer = memory.buffer(memory.range())?;
    /// // device.map(buffer, Bidirectional) maps it once; `memory` reads and writes it all the while.
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// With the descriptor; see [`FileMemoryError`].
    pub fn of_file(
        file: OwnedFd,
        part: FilePart,
        base: Base,
    ) -> Result<Self, Failed<OwnedFd, FileMemoryError>> {
        let sealed = || match fcntl_get_seals(&file) {
            Ok(seals) if seals.contains(SealFlags::SHRINK) => Ok(()),
            _ => Err(FileMemoryError::NotSealed),
        };
        match pages_of(&file).and_then(|_| sealed()) {
            Ok(()) => Self::of_file_part(file, part, base),
            Err(error) => Err(Failed { error, value: file }),
        }
    }

    /// The same of a file that cannot be sealed, as those of a mounted hugetlbfs cannot.
    ///
    /// # Errors
    /// As [`HostMemory::of_file`].
    ///
    /// # Safety
    /// While this value, a clone or a buffer of it lives, the file gets no shorter: an access past its end ends the
    /// process by a signal.
    pub unsafe fn of_unsealed_file(
        file: OwnedFd,
        part: FilePart,
        base: Base,
    ) -> Result<Self, Failed<OwnedFd, FileMemoryError>> {
        Self::of_file_part(file, part, base)
    }

    fn of_file_part(
        file: OwnedFd,
        part: FilePart,
        base: Base,
    ) -> Result<Self, Failed<OwnedFd, FileMemoryError>> {
        let checked = pages_of(&file).and_then(|(page, length)| {
            let FilePart { offset, bytes } = part;
            let aligned = offset.is_multiple_of(page.bytes());
            let count = fitting(bytes, page, base).filter(|_| aligned);
            let count = count.ok_or(FileMemoryError::Unaligned { page })?;
            match offset.checked_add(bytes).is_some_and(|end| end <= length) {
                true => Ok((page, count)),
                false => Err(FileMemoryError::TooShort { offset, wanted: bytes, length }),
            }
        });
        let (page, count) = match checked {
            Ok(checked) => checked,
            Err(error) => return Err(Failed { error, value: file }),
        };
        let system = |error: &io::Error| {
            let code = error.raw_os_error().unwrap_or(Errno::NOMEM.raw_os_error());
            FileMemoryError::System { code }
        };
        let kept = file.try_clone().map(File::from);
        let placed = kept.and_then(|kept| Placed::of_file(kept, part.offset, count));
        let memory = placed.and_then(|placed| Self::of_mapping(placed, base, page));
        memory.map_err(|error| Failed { error: system(&error), value: file })
    }

    /// Memory that the application has mapped itself, and that others may reach while devices do: a packet pool, a
    /// segment that is shared with a client. The promise is made once; all that is done with the value is safe. It is
    /// not unmapped when the value is dropped.
    ///
    /// # Errors
    /// `InvalidInput` if it is not whole pages of 4 KiB, or there are none.
    ///
    /// # Safety
    /// As long as this value, a clone or a buffer of it lives, the memory stays mapped where it is, readable and
    /// writable, and is as [`Sharing::Shared`] says: no reference to its bytes is alive but to atomics, and threads of
    /// this program reach it by atomics or as this value does.
    pub unsafe fn brought(memory: NonNull<[u8]>, base: Base) -> io::Result<Self> {
        let page = PageSize::SIZE_4K;
        let start = memory.cast::<u8>();
        let aligned = (start.addr().get() as u64).is_multiple_of(page.bytes());
        let bytes = fitting(memory.len() as u64, page, base).filter(|_| aligned);
        let bytes = bytes.ok_or(io::ErrorKind::InvalidInput)?;
        let placed = Placed { start: start.as_ptr().cast(), bytes, source: Source::Brought };
        Self::of_mapping(placed, base, page)
    }

    /// A part of it as a buffer for the devices of this process. Parts may overlap: all reach all bytes at any time.
    ///
    /// # Errors
    /// [`OutsideMemory`].
    pub fn buffer(&self, range: PhysRange) -> Result<HostBuffer, OutsideMemory> {
        let outside = |bytes| OutsideMemory { address: range.start(), bytes };
        let bytes = range.len_minus_one().checked_add(1).ok_or(outside(u64::MAX))?;
        let count = usize::try_from(bytes).map_err(|_| outside(bytes))?;
        let start = self.locate::<u8>(range.start(), count)?;
        let host = PhysAddr::new(start.addr().get() as u64);
        let host = PhysRange::from_len(host, bytes).ok_or(outside(bytes))?;
        let memory = self.clone();
        Ok(HostBuffer { memory, range, host, view: NonNull::slice_from_raw_parts(start, count) })
    }
}

/// A part of a [`HostMemory`] for devices, by the second promise of buffers ([`Sharing::Shared`]): it may be mapped for
/// as long as one likes, while the process, its clients and devices read and write it.
#[derive(Debug)]
pub struct HostBuffer {
    memory: HostMemory,
    range: PhysRange,
    host: PhysRange,
    view: NonNull<[u8]>,
}

// SAFETY: the view is memory of the `HostMemory`, which any thread may reach.
unsafe impl Send for HostBuffer {}
// SAFETY: as above.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// The memory that it is a part of.
    pub fn memory(&self) -> &HostMemory {
        &self.memory
    }

    /// Its physical addresses there.
    pub fn range(&self) -> PhysRange {
        self.range
    }
}

// SAFETY: the memory stays at its place as long as the value has a clone of it; no reference to plain bytes of it
// exists, and all others that reach it have promised the same.
unsafe impl Buffer for HostBuffer {
    fn pieces(&self) -> Pieces<'_> {
        Pieces::One(self.host)
    }

    fn device_may_write(&self) -> bool {
        true
    }

    fn sharing(&self) -> Sharing {
        Sharing::Shared
    }

    fn view(&self) -> Option<NonNull<[u8]>> {
        Some(self.view)
    }
}

/// Memory of one owner that the application brought: huge pages, or memory of another allocator. A buffer for devices;
/// its bytes are lent while no device has it. `K` keeps it, and comes back with [`BroughtPages::into_keeper`].
///
/// ```
/// use portolan_linux::memory::{Backing, Base, BroughtPages, HostMemory};
///
/// # fn main() -> std::io::Result<()> {
/// let memory = HostMemory::new(1 << 21, Backing::Anonymous, Base::Host)?;
/// let mut pages = BroughtPages::of(memory).expect("nothing else has it");
/// pages[..4].copy_from_slice(b"ping");
/// // device.map_aligned(pages, FromDevice, PageSize::SIZE_2M), and BufferPool::new of the mapping.
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct BroughtPages<K> {
    memory: NonNull<[u8]>,
    keeper: K,
}

// SAFETY: the memory is the value's alone.
unsafe impl<K: Send> Send for BroughtPages<K> {}
// SAFETY: a shared value can only be read.
unsafe impl<K: Sync> Sync for BroughtPages<K> {}

impl<K> BroughtPages<K> {
    /// Takes `memory` over; `None` if it is empty. Parts of pages at its ends are mapped with the pages around them,
    /// or copied, as of any buffer.
    ///
    /// # Safety
    /// As long as the value lives, `memory` stays allocated at its place, initialised, readable and writable, and
    /// nothing else reaches it ([`Sharing::Exclusive`]), `keeper` neither.
    pub unsafe fn new(memory: NonNull<[u8]>, keeper: K) -> Option<Self> {
        let _ = memory.cast::<u8>().as_ptr().expose_provenance();
        (!memory.is_empty()).then_some(Self { memory, keeper })
    }

    /// Gives the memory back to its keeper.
    pub fn into_keeper(self) -> K {
        self.keeper
    }
}

impl BroughtPages<HostMemory> {
    /// Takes anonymous memory over that nothing else has.
    ///
    /// # Errors
    /// With the memory, if there are clones or buffers of it, or it is a file, or brought: others may reach it.
    pub fn of(mut memory: HostMemory) -> Result<Self, HostMemory> {
        let alone = std::sync::Arc::get_mut(&mut memory.mapping);
        let own = alone.filter(|mapping| matches!(mapping.source, Source::Anonymous));
        match own.map(|mapping| NonNull::slice_from_raw_parts(mapping.start, mapping.bytes)) {
            Some(bytes) => Ok(Self { memory: bytes, keeper: memory }),
            None => Err(memory),
        }
    }
}

impl<K> Deref for BroughtPages<K> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is the value's, and initialised. While a device may reach it the value is with the
        // library, which does not come here.
        unsafe { self.memory.as_ref() }
    }
}

impl<K> DerefMut for BroughtPages<K> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { self.memory.as_mut() }
    }
}

// SAFETY: the memory stays at its place as long as the value lives, no other code reaches it, and the view is that
// memory.
unsafe impl<K: Send + 'static> Buffer for BroughtPages<K> {
    fn pieces(&self) -> Pieces<'_> {
        let at = PhysAddr::new(self.memory.cast::<u8>().addr().get() as u64);
        let memory = PhysRange::from_len(at, self.memory.len() as u64);
        // Not empty, and memory ends below 2^64.
        Pieces::One(memory.unwrap_or(PhysRange::page(at, PageSize::of_lg2(0))))
    }

    fn device_may_write(&self) -> bool {
        true
    }

    fn view(&self) -> Option<NonNull<[u8]>> {
        Some(self.memory)
    }
}

#[cfg(test)]
pub(crate) mod tests;
