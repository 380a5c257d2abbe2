//! A device's registers.

use std::os::fd::{AsFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use portolan::platform::Mmio;
use rustix::io::{pread, pwrite};

use crate::sys::Window;

/// A region of a device: a BAR. Where the kernel lets it be mapped, an access is a load or a store; the
/// rest, such as the page of the MSI-X table on some kernels, is read and written by system calls.
///
/// The device stays open as long as this lives. An access outside the region, not aligned to its width, or
/// to a device that is gone, reads all ones and writes nothing.
///
/// *Context.* Interrupt, except for the parts that are not mapped (task).
#[derive(Debug)]
pub struct Bar {
    pub(super) device: Arc<OwnedFd>,
    /// Offset of the region in the device's file.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// Parts that are mapped, and where in the region they are.
    pub(super) windows: Vec<(u64, Window)>,
}

impl Bar {
    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The window that holds the `width` bytes at `offset`, and where they are in it.
    fn mapped(&self, offset: usize) -> impl Iterator<Item = (&Window, usize)> {
        self.windows.iter().filter_map(move |(start, window)| {
            let inside = (offset as u64).checked_sub(*start)?;
            Some((window, usize::try_from(inside).ok()?))
        })
    }

    /// The `bytes` bytes at `offset` as a pointer, where they are mapped: for stores of other widths, by code that
    /// answers for them. It is valid as long as the value lives; accesses are volatile.
    pub fn view(&self, offset: u64, bytes: u64) -> Option<NonNull<[u8]>> {
        let (offset, count) = (usize::try_from(offset).ok()?, usize::try_from(bytes).ok()?);
        self.mapped(offset).find_map(|(window, at)| window.part(at, count))
    }

    /// Offset of the four bytes at `offset` in the device's file.
    fn in_file(&self, offset: usize) -> Option<u64> {
        let offset = offset as u64;
        let inside = offset.is_multiple_of(4) && offset.checked_add(4)? <= self.bytes;
        self.offset.checked_add(offset).filter(|_| inside)
    }
}

impl Mmio for Bar {
    fn read32(&self, offset: usize) -> u32 {
        let mut mapped = self.mapped(offset);
        if let Some(value) = mapped.find_map(|(window, at)| window.read(at)) {
            return value;
        }
        let mut bytes = [0; 4];
        let read = self.in_file(offset).map(|at| pread(self.device.as_fd(), &mut bytes, at));
        match read {
            Some(Ok(4)) => u32::from_le_bytes(bytes),
            _ => u32::MAX,
        }
    }

    fn write32(&self, offset: usize, value: u32) {
        let mut mapped = self.mapped(offset);
        if mapped.any(|(window, at)| window.write(at, value)) {
            return;
        }
        if let Some(at) = self.in_file(offset) {
            // There is no caller to tell: a device that is gone takes no writes.
            let _ = pwrite(self.device.as_fd(), &value.to_le_bytes(), at);
        }
    }

    fn read64(&self, offset: usize) -> u64 {
        let mut mapped = self.mapped(offset);
        mapped.find_map(|(window, at)| window.read(at)).unwrap_or_else(|| {
            let low = self.read32(offset);
            let high = offset.checked_add(4).map_or(u32::MAX, |high| self.read32(high));
            u64::from(high) << 32 | u64::from(low)
        })
    }

    fn write64(&self, offset: usize, value: u64) {
        let mut mapped = self.mapped(offset);
        if mapped.any(|(window, at)| window.write(at, value)) {
            return;
        }
        self.write32(offset, value as u32);
        if let Some(high) = offset.checked_add(4) {
            self.write32(high, (value >> 32) as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    /// A file in the place of a device: a region of three pages at 0x1000, whose middle is not mapped.
    fn bar() -> Bar {
        let file = memfd_create("bar", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 0x4000).unwrap();
        let window = |at| (at, Window::new(file.as_fd(), 0x1000 + at, 0x1000).unwrap());
        let windows = vec![window(0), window(0x2000)];
        Bar { device: Arc::new(file), offset: 0x1000, bytes: 0x3000, windows }
    }

    #[test]
    fn mapped_or_not_a_register_is_where_it_is() {
        let bar = bar();
        for offset in [0, 0xffc, 0x1000, 0x1ffc, 0x2000, 0x2ffc] {
            bar.write32(offset, 0x1234_0000 | offset as u32);
        }
        for offset in [0, 0xffc, 0x1000, 0x1ffc, 0x2000, 0x2ffc] {
            assert_eq!(bar.read32(offset), 0x1234_0000 | offset as u32);
            let mut bytes = [0; 4];
            pread(bar.device.as_fd(), &mut bytes, 0x1000 + offset as u64).unwrap();
            assert_eq!(u32::from_le_bytes(bytes), 0x1234_0000 | offset as u32);
        }
        bar.write64(0x10, 0x0807_0605_0403_0201);
        bar.write64(0x1010, 0x1817_1615_1413_1211);
        // From a part that is mapped into one that is not.
        bar.write64(0xffc, 0x2827_2625_2423_2221);
        assert_eq!((bar.read32(0x14), bar.read64(0x10)), (0x0807_0605, 0x0807_0605_0403_0201));
        assert_eq!(bar.read64(0x1010), 0x1817_1615_1413_1211);
        assert_eq!((bar.read64(0xffc), bar.read32(0x1000)), (0x2827_2625_2423_2221, 0x2827_2625));
    }

    #[test]
    fn a_pointer_leads_to_registers_that_are_mapped_alone() {
        let bar = bar();
        for (offset, bytes) in [(0x1000, 1), (0xfff, 2), (0x3000, 1), (u64::MAX, 2), (0, u64::MAX)]
        {
            assert!(bar.view(offset, bytes).is_none(), "{offset:#x} {bytes:#x}");
        }
        let first = bar.view(0, 0x1000).unwrap().cast::<u8>().addr().get();
        let part = bar.view(0xff8, 8).unwrap();
        assert_eq!((part.cast::<u8>().addr().get(), part.len()), (first + 0xff8, 8));
        assert!(bar.view(0x2000, 0x1000).is_some());
    }

    #[test]
    fn what_is_outside_is_all_ones_and_stays_as_it_is() {
        let bar = bar();
        for offset in [2, 0x1001, 0x2ffd, 0x3000, usize::MAX, usize::MAX - 3, usize::MAX - 4] {
            bar.write32(offset, 0);
            assert_eq!(bar.read32(offset), u32::MAX, "{offset:#x}");
        }
        bar.write64(0x2ffc, 0);
        assert_eq!(bar.read64(0x2ffc), 0xffff_ffff_0000_0000);
        assert_eq!(bar.read64(usize::MAX - 3), u64::MAX);
    }
}
