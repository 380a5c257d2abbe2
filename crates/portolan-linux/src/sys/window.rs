//! Registers of a device, mapped into this process.

use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A part of a device's region, mapped as long as the value lives. Accesses outside do nothing.
#[derive(Debug)]
pub(crate) struct Window {
    start: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: the window is registers, reached by volatile accesses alone, which any thread may make.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// Maps `bytes` bytes of `device` from `offset`, which the kernel has said to be a part of a region.
    pub(crate) fn new(device: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<Self> {
        let (null, protection) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { mmap(null, bytes, protection, MapFlags::SHARED, device, offset) }?;
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    /// Address of a `T` at `offset`, if it is inside and aligned.
    fn at<T>(&self, offset: usize) -> Option<NonNull<T>> {
        let end = offset.checked_add(size_of::<T>())?;
        let inside = end <= self.bytes && offset.is_multiple_of(size_of::<T>());
        // SAFETY: the offset is within the mapping.
        inside.then(|| unsafe { self.start.byte_add(offset) }.cast())
    }

    /// All of it.
    pub(crate) fn view(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.start.cast(), self.bytes)
    }

    /// The `bytes` bytes at `offset`, if they are inside.
    pub(crate) fn part(&self, offset: usize, bytes: usize) -> Option<NonNull<[u8]>> {
        let inside = offset.checked_add(bytes)? <= self.bytes;
        // SAFETY: the offset is within the mapping, or just at its end.
        let start = inside.then(|| unsafe { self.start.byte_add(offset) })?;
        Some(NonNull::slice_from_raw_parts(start.cast(), bytes))
    }

    /// Writes `words` from `offset` on, without an order among them; tells if there is room.
    pub(crate) fn write_burst(&self, offset: usize, words: &[u64]) -> bool {
        let part = words.len().checked_mul(8).and_then(|bytes| self.part(offset, bytes));
        let Some(part) = part.filter(|_| offset.is_multiple_of(8)) else {
            return false;
        };
        for (at, word) in words.iter().enumerate() {
            // SAFETY: inside the mapping, which begins at a page, and aligned.
            unsafe { part.cast::<u64>().add(at).write_volatile(*word) };
        }
        true
    }

    /// Has all writes so far leave the CPU before those that follow.
    pub(crate) fn flush(&self) {
        #[cfg(target_arch = "aarch64")]
        // SAFETY: a barrier touches no memory.
        unsafe {
            core::arch::asm!("dsb st", options(nostack, preserves_flags));
        }
        // On x86-64 an instruction that drains the buffers in which writes are combined.
        fence(Ordering::SeqCst);
    }

    /// Reads a register.
    pub(crate) fn read<T: RegisterValue>(&self, offset: usize) -> Option<T> {
        let at = self.at::<T>(offset)?;
        // SAFETY: inside the mapping, aligned, and any bits are a valid `T`.
        let value = unsafe { at.read_volatile() };
        // Memory that the device wrote before is read after.
        fence(Ordering::Acquire);
        Some(value)
    }

    /// Writes a register; tells if there is one.
    pub(crate) fn write<T: RegisterValue>(&self, offset: usize, value: T) -> bool {
        let Some(at) = self.at::<T>(offset) else {
            return false;
        };
        // Earlier writes to memory are there when the device looks.
        fence(Ordering::SeqCst);
        // SAFETY: inside the mapping and aligned.
        unsafe { at.write_volatile(value) };
        true
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new`, and nothing refers to it any more.
        let unmapped = unsafe { munmap(self.start.as_ptr(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Value that one access of a register moves.
pub(crate) trait RegisterValue: Copy {}

impl RegisterValue for u32 {}
impl RegisterValue for u64 {}
