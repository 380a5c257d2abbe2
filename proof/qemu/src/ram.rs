//! Guest RAM, shared with QEMU by mmap, reached by guest-physical address.
//!
//! All access is by atomics of 1, 4 or 8 bytes, because QEMU's devices read and write the same
//! memory at any time. Every access is checked against the bounds; an access outside is an error or
//! an empty slice, never other memory of the process. Byte order is the host's, which has to be
//! little-endian.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use portolan::addr::PhysAddr;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use thiserror::Error;

/// An access outside guest RAM, or across its end, or not aligned to its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no {bytes} aligned bytes of guest RAM at {address}")]
pub struct OutsideRam {
    /// The first byte's address.
    pub address: PhysAddr,
    /// Number of bytes.
    pub bytes: u64,
}

#[derive(Debug)]
struct Mapping {
    start: NonNull<c_void>,
    bytes: usize,
    base: PhysAddr,
}

// SAFETY: the mapping is plain memory that stays until drop; it is reached through atomics only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: start and length are those of a mapping made in `GuestRam::map`, which nothing
        // refers to any more: every reference borrows from a `GuestRam` that holds this.
        let unmapped = unsafe { munmap(self.start.as_ptr(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// The RAM of a guest; clones share it. It outlives QEMU.
#[derive(Clone, Debug)]
pub struct GuestRam {
    mapping: Arc<Mapping>,
}

impl GuestRam {
    /// Maps the first `bytes` bytes of `file` as the RAM at guest-physical `base`.
    ///
    /// The file has to be sealed against shrinking: an access past its end would be a signal.
    ///
    /// # Errors
    /// The error of mmap; `InvalidInput` if the file is shorter than `bytes`.
    pub(crate) fn map(file: &File, base: PhysAddr, bytes: u64) -> io::Result<Self> {
        let length = usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        if file.metadata()?.len() < bytes || base.checked_add(bytes).is_none() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { mmap(null, length, protection, MapFlags::SHARED, file, 0) }?;
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        let bytes = length;
        let mapping = Arc::new(Mapping { start, bytes, base });
        Ok(Self { mapping })
    }

    /// Guest-physical address of the first byte.
    pub fn base(&self) -> PhysAddr {
        self.mapping.base
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.mapping.bytes as u64
    }

    /// Start of `count` values of type `T`, if they lie in RAM and are aligned.
    fn locate<T>(&self, at: PhysAddr, count: usize) -> Result<NonNull<T>, OutsideRam> {
        let size = size_of::<T>();
        let outside = OutsideRam { address: at, bytes: (count as u64).saturating_mul(size as u64) };
        let offset = at.get().checked_sub(self.base().get()).ok_or(outside)?;
        let offset = usize::try_from(offset).map_err(|_| outside)?;
        let end = count.checked_mul(size).and_then(|bytes| bytes.checked_add(offset));
        if end.is_none_or(|end| end > self.mapping.bytes) || offset % size != 0 {
            return Err(outside);
        }
        // SAFETY: the offset is within the mapping, as just checked.
        Ok(unsafe { self.mapping.start.byte_add(offset) }.cast())
    }

    fn atomics<T>(&self, at: PhysAddr, count: usize) -> Result<&[T], OutsideRam> {
        let start = self.locate::<T>(at, count)?;
        // SAFETY: private, used for atomic integers only: valid for any bits, and shared access
        // may change them. The range is mapped and aligned, and lives as long as `self`.
        Ok(unsafe { std::slice::from_raw_parts(start.as_ptr(), count) })
    }

    /// `count` words of eight bytes.
    ///
    /// # Errors
    /// [`OutsideRam`].
    pub fn words64(&self, at: PhysAddr, count: usize) -> Result<&[AtomicU64], OutsideRam> {
        self.atomics(at, count)
    }

    /// `count` words of four bytes.
    ///
    /// # Errors
    /// [`OutsideRam`].
    pub fn words32(&self, at: PhysAddr, count: usize) -> Result<&[AtomicU32], OutsideRam> {
        self.atomics(at, count)
    }

    /// Reads eight bytes with acquire ordering.
    ///
    /// # Errors
    /// [`OutsideRam`].
    pub fn read64(&self, at: PhysAddr) -> Result<u64, OutsideRam> {
        self.one::<AtomicU64>(at).map(|word| word.load(Ordering::Acquire))
    }

    /// Writes eight bytes with release ordering.
    ///
    /// # Errors
    /// [`OutsideRam`].
    pub fn write64(&self, at: PhysAddr, value: u64) -> Result<(), OutsideRam> {
        self.one::<AtomicU64>(at).map(|word| word.store(value, Ordering::Release))
    }

    /// Reads four bytes with acquire ordering.
    ///
    /// # Errors
    /// [`OutsideRam`].
    pub fn read32(&self, at: PhysAddr) -> Result<u32, OutsideRam> {
        self.one::<AtomicU32>(at).map(|word| word.load(Ordering::Acquire))
    }

    /// Writes four bytes with release ordering.
    ///
    /// # Errors
    /// [`OutsideRam`].
    pub fn write32(&self, at: PhysAddr, value: u32) -> Result<(), OutsideRam> {
        self.one::<AtomicU32>(at).map(|word| word.store(value, Ordering::Release))
    }

    /// Reads two bytes, aligned, with acquire ordering.
    ///
    /// # Errors
    /// [`OutsideRam`].
    pub fn read16(&self, at: PhysAddr) -> Result<u16, OutsideRam> {
        self.one::<AtomicU16>(at).map(|word| word.load(Ordering::Acquire))
    }

    /// Writes two bytes, aligned, with release ordering.
    ///
    /// # Errors
    /// [`OutsideRam`].
    pub fn write16(&self, at: PhysAddr, value: u16) -> Result<(), OutsideRam> {
        self.one::<AtomicU16>(at).map(|word| word.store(value, Ordering::Release))
    }

    fn one<T>(&self, at: PhysAddr) -> Result<&T, OutsideRam> {
        let bytes = size_of::<T>() as u64;
        let outside = OutsideRam { address: at, bytes };
        self.atomics::<T>(at, 1)?.first().ok_or(outside)
    }

    /// Copies bytes out of RAM.
    ///
    /// # Errors
    /// [`OutsideRam`]; then nothing is copied.
    pub fn read(&self, at: PhysAddr, into: &mut [u8]) -> Result<(), OutsideRam> {
        let from = self.atomics::<AtomicU8>(at, into.len())?;
        for (to, from) in into.iter_mut().zip(from) {
            *to = from.load(Ordering::Acquire);
        }
        Ok(())
    }

    /// Copies bytes into RAM.
    ///
    /// # Errors
    /// [`OutsideRam`]; then nothing is copied.
    pub fn write(&self, at: PhysAddr, from: &[u8]) -> Result<(), OutsideRam> {
        let into = self.atomics::<AtomicU8>(at, from.len())?;
        for (to, from) in into.iter().zip(from) {
            to.store(*from, Ordering::Release);
        }
        Ok(())
    }

    /// Sets `bytes` bytes to `value`.
    ///
    /// # Errors
    /// [`OutsideRam`]; then nothing is written.
    pub fn fill(&self, at: PhysAddr, bytes: u64, value: u8) -> Result<(), OutsideRam> {
        let outside = OutsideRam { address: at, bytes };
        let count = usize::try_from(bytes).map_err(|_| outside)?;
        if count.is_multiple_of(8) && at.get().is_multiple_of(8) {
            for word in self.words64(at, count / 8)? {
                word.store(u64::from_ne_bytes([value; 8]), Ordering::Release);
            }
            return Ok(());
        }
        for byte in self.atomics::<AtomicU8>(at, count)? {
            byte.store(value, Ordering::Release);
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const BASE: PhysAddr = PhysAddr::new(0x4000_0000);

    pub(crate) fn ram(bytes: u64) -> GuestRam {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = File::from(rustix::fs::memfd_create("ram", flags).unwrap());
        file.set_len(bytes).unwrap();
        GuestRam::map(&file, BASE, bytes).unwrap()
    }

    fn at(offset: i64) -> PhysAddr {
        PhysAddr::new(BASE.get().wrapping_add_signed(offset))
    }

    #[test]
    fn widths_agree() {
        let ram = ram(0x2000);
        ram.write64(at(0x1ff8), 0x0807_0605_0403_0201).unwrap();
        assert_eq!(ram.read32(at(0x1ffc)), Ok(0x0807_0605));
        assert_eq!(ram.read16(at(0x1ffe)), Ok(0x0807));
        let mut bytes = [0; 3];
        ram.read(at(0x1ffd), &mut bytes).unwrap();
        assert_eq!(bytes, [6, 7, 8]);
        ram.fill(at(0x1000), 0x1000, 0xee).unwrap();
        assert_eq!(ram.read16(at(0x1000)), Ok(0xeeee));
        assert_eq!(ram.words64(at(0), 0x400).unwrap().len(), 0x400);
    }

    #[test]
    fn nothing_outside() {
        let ram = ram(0x1000);
        assert!(ram.read64(at(0xff9)).is_err());
        assert!(ram.read64(at(0xffc)).is_err());
        assert!(ram.read64(at(0x1000)).is_err());
        assert!(ram.read32(at(-4)).is_err());
        assert!(ram.write(at(0xfff), &[0; 2]).is_err());
        assert!(ram.fill(at(0), u64::MAX, 0).is_err());
        assert!(ram.words64(PhysAddr::new(u64::MAX - 7), usize::MAX).is_err());
        assert!(ram.words32(at(0), usize::MAX).is_err());
        assert!(ram.words32(at(0x1000), 0).is_ok_and(<[_]>::is_empty));
    }

    #[test]
    fn a_short_file_is_refused() {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = File::from(rustix::fs::memfd_create("ram", flags).unwrap());
        assert!(GuestRam::map(&file, BASE, 0x1000).is_err());
    }
}
