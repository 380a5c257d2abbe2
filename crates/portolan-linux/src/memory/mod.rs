//! Memory of this process that devices reach: one mapping, by physical address or by host address.
//!
//! A [`HostMemory`] holds pools and buffers of a user-space driver. Its bytes may change at any
//! time, because devices, other processes and other threads write them, so no reference to plain
//! bytes of it exists: words are atomics, and copies are made as a device would make them
//! (`transfer`). Every address is checked against the bounds; an access outside is an error, or for
//! [`PhysMemory`], which has none to return, nothing happens.
//!
//! It is made here, or brought by the application: a file in memory or in huge pages, or memory that the application
//! has mapped itself ([`HostMemory::of_file`], [`HostMemory::brought`]). A part of it is mapped for a device as a
//! [`HostBuffer`], whose bytes all reach at any time. Memory of another device is a [`DmaBuf`].
//!
//! [`Pages`] are a buffer with one owner, as is [`BroughtPages`], and [`Process`] is the platform that devices'
//! drivers run on.
//!
//! Not supported: memory that grows.

pub(crate) mod brought;
mod pool;
mod process;
mod transfer;
mod userfault;

#[cfg(test)]
mod tests;

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::platform::{Clearing, DmaMemory, PhysMemory, Transfer};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use thiserror::Error;

use crate::files::{self, FileBehind, FileKind};

pub use crate::dmabuf::DmaBuf;
pub use crate::files::{FileMemoryError, FilePart};
pub use brought::{BroughtPages, HostBuffer};
pub use pool::{DevicePoolError, with_device_pool};
pub use process::{Pages, Process};
pub use userfault::{MadeBy, Told, UserFaultError, UserFaults};

/// An access that is not wholly inside the memory, or not aligned to its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no {bytes} aligned bytes of host memory at {address}")]
pub struct OutsideMemory {
    /// The first byte's address.
    pub address: PhysAddr,
    /// Number of bytes.
    pub bytes: u64,
}

/// Kind of memory of a [`HostMemory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backing {
    /// Pages of this process alone.
    Anonymous,
    /// A file in memory, sealed against shrinking, that can be given to other processes.
    File,
    /// Huge pages of this process alone, of those that the system has set aside.
    Huge(HugePage),
    /// A file of such pages, sealed against shrinking.
    HugeFile(HugePage),
}

/// Size of huge pages (hugetlb).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HugePage {
    /// 2 MiB.
    Size2M,
    /// 1 GiB.
    Size1G,
}

impl HugePage {
    /// The size.
    pub const fn size(self) -> PageSize {
        match self {
            Self::Size2M => PageSize::SIZE_2M,
            Self::Size1G => PageSize::SIZE_1G,
        }
    }

    const fn map_flags(self) -> MapFlags {
        let size = match self {
            Self::Size2M => MapFlags::HUGE_2MB,
            Self::Size1G => MapFlags::HUGE_1GB,
        };
        MapFlags::HUGETLB.union(size)
    }

    const fn file_flags(self) -> MemfdFlags {
        let size = match self {
            Self::Size2M => MemfdFlags::HUGE_2MB,
            Self::Size1G => MemfdFlags::HUGE_1GB,
        };
        MemfdFlags::HUGETLB.union(size)
    }
}

impl Backing {
    /// Size of its pages.
    const fn page(self) -> PageSize {
        match self {
            Self::Anonymous | Self::File => PageSize::SIZE_4K,
            Self::Huge(page) | Self::HugeFile(page) => page.size(),
        }
    }
}

/// The physical address of a [`HostMemory`]'s first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Base {
    /// Its address in this process, which iommufd and VFIO are given as the address of the user.
    Host,
    /// An address of the embedder's choice, a multiple of 4 KiB.
    At(PhysAddr),
}

#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    base: PhysAddr,
    page: PageSize,
    source: Source,
}

/// Origin of a mapping.
#[derive(Debug)]
enum Source {
    Anonymous,
    File {
        file: Arc<File>,
        /// Offset of the first byte.
        offset: u64,
    },
    /// Mapped by the application, which unmaps it.
    Brought,
}

// SAFETY: the mapping is plain memory that stays until drop; it is reached through atomics and
// `transfer` only, both of which any number of threads may use at once.
#[allow(unsafe_code)]
unsafe impl Send for Mapping {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        if matches!(self.source, Source::Brought) {
            return;
        }
        files::forget(self.start.addr().get() as u64);
        // SAFETY: start and length are those of a mapping made for this value, which nothing
        // refers to any more: every reference borrows from a `HostMemory` that holds this.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Zeroed memory of fixed size; clones share it, and the last one gives it back.
#[derive(Clone, Debug)]
pub struct HostMemory {
    mapping: Arc<Mapping>,
}

impl HostMemory {
    /// `bytes` bytes, a multiple of the size of its pages, which are taken as they are first written; huge ones are
    /// set aside at once.
    ///
    /// # Errors
    /// `InvalidInput` if `bytes` is 0 or no multiple of a page, or the base is not, or the memory
    /// would not end below 2^64; otherwise the system's error, `OutOfMemory` if it has not as many huge pages.
    #[allow(unsafe_code)]
    pub fn new(bytes: u64, backing: Backing, base: Base) -> io::Result<Self> {
        let page = backing.page();
        let length = fitting(bytes, page, base).ok_or(io::ErrorKind::InvalidInput)?;
        let anonymous = |flags| {
            let (null, protection) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
            let flags = MapFlags::PRIVATE | flags;
            // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
            let start = unsafe { mmap_anonymous(null, length, protection, flags) }?;
            Ok(Placed { start, bytes: length, source: Source::Anonymous })
        };
        let file = |flags| Placed::of_file(sealed_file(bytes, flags)?, 0, length);
        let placed: io::Result<Placed> = match backing {
            Backing::Anonymous => anonymous(MapFlags::empty()),
            Backing::Huge(page) => anonymous(page.map_flags()),
            Backing::File => file(MemfdFlags::empty()),
            Backing::HugeFile(page) => file(page.file_flags()),
        };
        Self::of_mapping(placed?, base, page)
    }

    fn of_mapping(placed: Placed, base: Base, page: PageSize) -> io::Result<Self> {
        let Placed { start, bytes, source } = placed;
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // Devices' drivers find it by its address.
        let host = start.as_ptr().expose_provenance() as u64;
        let base = match base {
            Base::Host => PhysAddr::new(host),
            Base::At(base) => base,
        };
        let host = PhysRange::from_len(PhysAddr::new(host), bytes as u64);
        if let (Some(host), Source::File { file, offset }) = (host, &source) {
            let (file, offset, kind) = (file.clone(), *offset, FileKind::Memory);
            files::note(host, FileBehind { file, offset, kind });
        }
        let mapping = Arc::new(Mapping { start, bytes, base, page, source });
        Ok(Self { mapping })
    }

    /// Size of the pages that it is made of, as far as that is known: transparent huge pages are not.
    pub fn page(&self) -> PageSize {
        self.mapping.page
    }

    /// Its physical addresses.
    pub fn range(&self) -> PhysRange {
        // Not empty, and it does not wrap around, as `new` has checked.
        PhysRange::from_len(self.mapping.base, self.bytes())
            .unwrap_or(PhysRange::page(self.mapping.base, PageSize::of_lg2(0)))
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.mapping.bytes as u64
    }

    /// The file that it is made of, to be given to another process.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.mapping.source {
            Source::File { file, .. } => Some(file.as_fd()),
            Source::Anonymous | Source::Brought => None,
        }
    }

    /// Address of `bytes` bytes at `at` in this process; for system calls that take such addresses.
    /// The address is good for as long as this memory is.
    ///
    /// # Errors
    /// [`OutsideMemory`].
    pub fn host_address(&self, at: PhysAddr, bytes: u64) -> Result<u64, OutsideMemory> {
        let count = usize::try_from(bytes).map_err(|_| OutsideMemory { address: at, bytes })?;
        let start = self.locate::<u8>(at, count)?;
        Ok(start.addr().get() as u64)
    }

    /// The `bytes` bytes at `at` as a device is given them. They are unmapped before this memory goes:
    /// callers keep it as long.
    ///
    /// # Errors
    /// [`OutsideMemory`].
    #[allow(unsafe_code)]
    pub(crate) fn for_devices(&self, at: PhysAddr, bytes: u64) -> Result<DmaMemory, OutsideMemory> {
        let outside = OutsideMemory { address: at, bytes };
        let memory = PhysRange::from_len(at, bytes).filter(|one| self.range().covers(*one));
        // SAFETY: the caller has this memory as long as it is mapped, and no reference to plain bytes of
        // it exists.
        memory.map(|one| unsafe { DmaMemory::new(one) }).ok_or(outside)
    }

    /// Has the system provide all pages now, so that no later access is the first.
    pub fn populate(&self) {
        let step = self.mapping.page.bytes();
        let mut at = self.mapping.base;
        while let Ok(word) = self.one::<AtomicU64>(at) {
            // A write of any word; adding nothing may become a mere read.
            let _ = word.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
            match at.checked_add(step) {
                Some(next) => at = next,
                None => break,
            }
        }
    }

    /// Gives whole pages back to the system: they read as zero, and the next access takes new ones.
    /// A file's pages are gone for all processes that have it. The caller sees to it that no device
    /// reaches the old pages.
    ///
    /// # Errors
    /// `InvalidInput` if the bytes are not whole pages inside; `Unsupported` for memory that the application has mapped
    /// itself; otherwise the system's error.
    #[allow(unsafe_code)]
    pub fn discard(&self, range: PhysRange) -> io::Result<()> {
        let page = self.mapping.page;
        let bytes = range.len_minus_one().wrapping_add(1);
        if !range.start().is_aligned(page) || !bytes.is_multiple_of(page.bytes()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let count = usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        let start = self.locate::<u8>(range.start(), count);
        let start = start.map_err(|_| io::ErrorKind::InvalidInput)?;
        let advice = match self.mapping.source {
            Source::File { .. } => Advice::LinuxRemove,
            Source::Anonymous => Advice::LinuxDontNeed,
            Source::Brought => return Err(io::ErrorKind::Unsupported.into()),
        };
        // SAFETY: the pages are of this mapping, as `locate` has checked, and stay mapped; all users
        // of this memory expect that their bytes change at any time.
        unsafe { madvise(start.as_ptr().cast(), count, advice) }?;
        Ok(())
    }

    /// Start of `count` values of type `T`, if they lie inside and are aligned.
    #[inline]
    #[allow(unsafe_code)]
    fn locate<T>(&self, at: PhysAddr, count: usize) -> Result<NonNull<T>, OutsideMemory> {
        let size = size_of::<T>();
        let outside =
            OutsideMemory { address: at, bytes: (count as u64).saturating_mul(size as u64) };
        let offset = at.get().checked_sub(self.mapping.base.get()).ok_or(outside)?;
        let offset = usize::try_from(offset).map_err(|_| outside)?;
        let end = count.checked_mul(size).and_then(|bytes| bytes.checked_add(offset));
        if end.is_none_or(|end| end > self.mapping.bytes) || offset % size != 0 {
            return Err(outside);
        }
        // SAFETY: the offset is within the mapping, or just at its end, as just checked.
        Ok(unsafe { self.mapping.start.add(offset) }.cast())
    }

    #[allow(unsafe_code)]
    fn atomics<T>(&self, at: PhysAddr, count: usize) -> Result<&[T], OutsideMemory> {
        let start = self.locate::<T>(at, count)?;
        // SAFETY: private, used for atomic integers only: valid for any bits, and shared access
        // may change them. The range is mapped and aligned, and lives as long as `self`.
        Ok(unsafe { std::slice::from_raw_parts(start.as_ptr(), count) })
    }

    fn one<T>(&self, at: PhysAddr) -> Result<&T, OutsideMemory> {
        let bytes = size_of::<T>() as u64;
        let outside = OutsideMemory { address: at, bytes };
        self.atomics::<T>(at, 1)?.first().ok_or(outside)
    }

    /// `count` words of eight bytes.
    ///
    /// # Errors
    /// [`OutsideMemory`].
    pub fn words64(&self, at: PhysAddr, count: usize) -> Result<&[AtomicU64], OutsideMemory> {
        self.atomics(at, count)
    }

    /// `count` words of four bytes.
    ///
    /// # Errors
    /// [`OutsideMemory`].
    pub fn words32(&self, at: PhysAddr, count: usize) -> Result<&[AtomicU32], OutsideMemory> {
        self.atomics(at, count)
    }

    /// The word of two bytes at `at`.
    ///
    /// # Errors
    /// [`OutsideMemory`].
    pub fn word16(&self, at: PhysAddr) -> Result<&AtomicU16, OutsideMemory> {
        self.one(at)
    }

    /// The byte at `at`.
    ///
    /// # Errors
    /// [`OutsideMemory`].
    pub fn byte(&self, at: PhysAddr) -> Result<&AtomicU8, OutsideMemory> {
        self.one(at)
    }

    /// Copies bytes out of the memory, in no particular order.
    ///
    /// # Errors
    /// [`OutsideMemory`]; then nothing is copied.
    #[allow(unsafe_code)]
    pub fn read(&self, at: PhysAddr, into: &mut [u8]) -> Result<(), OutsideMemory> {
        let from = self.locate::<u8>(at, into.len())?;
        // SAFETY: the source is inside the mapping, and the target is a slice of its own.
        unsafe { transfer::copy(from.as_ptr(), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies bytes into the memory, in no particular order.
    ///
    /// # Errors
    /// [`OutsideMemory`]; then nothing is copied.
    #[allow(unsafe_code)]
    pub fn write(&self, at: PhysAddr, from: &[u8]) -> Result<(), OutsideMemory> {
        let into = self.locate::<u8>(at, from.len())?;
        // SAFETY: the target is inside the mapping, and the source is a slice.
        unsafe { transfer::copy(from.as_ptr(), into.as_ptr(), from.len()) };
        Ok(())
    }

    /// Copies from one place to another, in no particular order.
    ///
    /// # Errors
    /// [`OutsideMemory`] of the place that is not inside; then nothing is copied.
    #[inline]
    #[allow(unsafe_code)]
    pub fn copy_within(
        &self,
        from: PhysAddr,
        to: PhysAddr,
        bytes: u64,
    ) -> Result<(), OutsideMemory> {
        let outside = OutsideMemory { address: from, bytes };
        let count = usize::try_from(bytes).map_err(|_| outside)?;
        let from = self.locate::<u8>(from, count)?;
        let to = self.locate::<u8>(to, count)?;
        // SAFETY: both places are inside the mapping; places that overlap get unspecified bytes.
        unsafe { transfer::copy(from.as_ptr(), to.as_ptr(), count) };
        Ok(())
    }

    /// Sets `bytes` bytes to `value`.
    ///
    /// # Errors
    /// [`OutsideMemory`]; then nothing is written.
    #[allow(unsafe_code)]
    pub fn fill(&self, at: PhysAddr, bytes: u64, value: u8) -> Result<(), OutsideMemory> {
        let count = usize::try_from(bytes).map_err(|_| OutsideMemory { address: at, bytes })?;
        let to = self.locate::<u8>(at, count)?;
        // SAFETY: the place is inside the mapping.
        unsafe { transfer::fill(to.as_ptr(), value, count) };
        Ok(())
    }
}

impl PhysMemory for HostMemory {
    #[inline]
    fn copy(&self, transfer: &Transfer) {
        // Bytes outside are not touched.
        let _ = self.copy_within(transfer.from(), transfer.to(), transfer.bytes());
    }

    fn clear(&self, clearing: &Clearing) {
        let memory = clearing.memory();
        let bytes = memory.len_minus_one().saturating_add(1);
        let _ = self.fill(memory.start(), bytes, 0);
    }
}

/// Maps other pages in the place of `range`, for tests of the threads that hear of it.
#[cfg(test)]
#[allow(unsafe_code)]
pub(crate) fn replace(memory: &HostMemory, range: PhysRange) -> io::Result<()> {
    let bytes = range.len_minus_one() as usize + 1;
    let at = memory.locate::<u8>(range.start(), bytes);
    let at = at.map_err(|_| io::ErrorKind::InvalidInput)?;
    let (protection, flags) =
        (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
    // SAFETY: the pages are of this memory, whose bytes change at any time, and are mapped afterwards too.
    unsafe { mmap_anonymous(at.as_ptr().cast(), bytes, protection, flags) }?;
    Ok(())
}

/// `bytes` as a length, if they are whole pages that lie at `base` below 2^64.
fn fitting(bytes: u64, page: PageSize, base: Base) -> Option<usize> {
    let length = isize::try_from(bytes).ok().filter(|length| *length != 0)?;
    let fits = match base {
        Base::Host => true,
        Base::At(base) => base.is_aligned(page) && PhysRange::from_len(base, bytes).is_some(),
    };
    (fits && bytes.is_multiple_of(page.bytes())).then(|| length.unsigned_abs())
}

/// Memory at its place in this process.
struct Placed {
    start: *mut c_void,
    bytes: usize,
    source: Source,
}

impl Placed {
    /// Maps `bytes` bytes of `file` from `offset`, shared.
    #[allow(unsafe_code)]
    fn of_file(file: File, offset: u64, bytes: usize) -> io::Result<Self> {
        let (null, protection) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { mmap(null, bytes, protection, MapFlags::SHARED, &file, offset) }?;
        let file = Arc::new(file);
        Ok(Self { start, bytes, source: Source::File { file, offset } })
    }
}

/// A file in memory of `bytes` bytes that cannot be made shorter: an access past its end would be a signal.
fn sealed_file(bytes: u64, flags: MemfdFlags) -> io::Result<File> {
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("portolan", flags)?);
    ftruncate(&file, bytes)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(file)
}
