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
