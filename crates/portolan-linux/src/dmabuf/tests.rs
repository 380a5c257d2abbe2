//! Dma-bufs over a kernel in miniature, by files in memory that stand in for them.

use std::os::fd::AsRawFd as _;

use portolan::dma::{Bidirectional, Device};
use portolan::table::Access;

use super::*;
use crate::memory::brought::tests::{device, memfd, sealed};
use crate::memory::{Process, with_device_pool};

const PAGE: u64 = 4096;

fn stand_in(offset: u64, pages: u64) -> DmaBuf {
    DmaBuf::stand_in(sealed(8 * PAGE), FilePart { offset, bytes: pages * PAGE })
}

#[test]
fn a_dma_buf_is_mapped_by_its_file() {
    let (kernel, device) = device();
    let buffer = stand_in(2 * PAGE, 3);
    let (file, range) = (buffer.addresses.file.clone(), buffer.addresses.range);
    let mapping = device.map(buffer, Bidirectional).map_err(|failed| failed.error).unwrap();
    let (start, pages) = (mapping.iova(), kernel.pages());
    for page in 0..3 {
        let at = PhysAddr::new(pages[&(start.get() + page * PAGE)]);
        let behind = files::behind(PhysRange::page(at, PageSize::SIZE_4K)).unwrap();
        assert!(Arc::ptr_eq(&behind.file, &file));
        assert_eq!(behind.kind, FileKind::DmaBuf);
        assert_eq!(behind.offset, (2 + page) * PAGE);
    }
    let access = kernel.access(start).unwrap();
    assert_eq!(access, Access::READ_WRITE | Access::DEVICE);
    let buffer = mapping.unmap().map_err(|failed| failed.error).unwrap();
    assert_eq!((kernel.pages().len(), buffer.bytes()), (0, 3 * PAGE));
    drop(buffer);
    // Another thread may have its own there already.
    assert!(!files::behind(range).is_some_and(|found| Arc::ptr_eq(&found.file, &file)));
}

#[test]
fn a_dma_buf_is_never_copied() {
    let (kernel, device) = device();
    let device: Device<Process> = with_device_pool(device, 1 << 20).unwrap();
    let (before, _) = kernel.counts();
    // A device whose buffers are all copied reaches it in place.
    let mapping = device.map(stand_in(0, 1), Bidirectional);
    let mapping = mapping.map_err(|failed| failed.error).unwrap();
    assert_eq!(kernel.counts().0, before + 1);
    let access = kernel.access(mapping.iova()).unwrap();
    assert!(access.contains(Access::DEVICE));
    assert!(mapping.unmap().is_ok());
}

#[test]
fn descriptors_of_something_else_come_back() {
    let file = memfd(rustix::fs::MemfdFlags::empty(), PAGE);
    let number = file.as_raw_fd();
    let part = FilePart { offset: 0, bytes: PAGE };
    let failed = DmaBuf::new(file, part).unwrap_err();
    assert_eq!((failed.error, failed.value.as_raw_fd()), (FileMemoryError::NotDmaBuf, number));
    let refused = |offset, bytes| {
        let part = FilePart { offset, bytes };
        DmaBuf::of(sealed(2 * PAGE), part).unwrap_err().error
    };
    let unaligned = FileMemoryError::Unaligned { page: PageSize::SIZE_4K };
    for (offset, bytes) in [(1, PAGE), (0, 1), (0, 0)] {
        assert_eq!(refused(offset, bytes), unaligned, "{offset} {bytes}");
    }
    for (offset, wanted) in [(0, 3 * PAGE), (2 * PAGE, PAGE), (u64::MAX - (PAGE - 1), PAGE)] {
        let error = FileMemoryError::TooShort { offset, wanted, length: 2 * PAGE };
        assert_eq!(refused(offset, wanted), error);
    }
}
