//! The kernel's own device for tests of iommufd (`CONFIG_IOMMUFD_TEST`, drivers/iommu/iommufd/iommufd_test.h of
//! Linux 6.12): an IOMMU in software that keeps dirty marks, and a device that asks for pages when it is told to.

use std::io;
use std::os::fd::BorrowedFd;

use super::{command, size, sys};

const TEST: u32 = sys::IOMMUFD_CMD_BASE + 32;
const MOCK_DOMAIN: u32 = 2;
const MOCK_DOMAIN_REPLACE: u32 = 10;
const DIRTY: u32 = 13;
const TRIGGER_IOPF: u32 = 15;
/// Of nested page tables.
const DATA_SELFTEST: u32 = 0xdead;
/// Its pages.
pub(crate) const PAGE: u64 = 2048;

/// `iommu_test_cmd`; the meaning of `words` depends on the operation.
#[repr(C)]
struct Test {
    size: u32,
    op: u32,
    id: u32,
    reserved: u32,
    words: [u64; 6],
    last: u32,
}

/// # Safety
/// Words that the operation takes for addresses have to lead to memory that the kernel may read.
unsafe fn test(fd: BorrowedFd<'_>, op: u32, id: u32, words: [u64; 6]) -> io::Result<[u64; 6]> {
    let mut value = Test { size: size::<Test>(), op, id, reserved: 0, words, last: 0 };
    // SAFETY: the caller's promise.
    unsafe { command(fd, TEST, &mut value) }?;
    Ok(value.words)
}

/// A new device in the address space `ioas`: its numbers as a device under test and as one of iommufd's.
pub(crate) fn new_device(fd: BorrowedFd<'_>, ioas: u32) -> io::Result<(u32, u32)> {
    // SAFETY: the operation takes no address.
    let [first, second, ..] = unsafe { test(fd, MOCK_DOMAIN, ioas, [0; 6]) }?;
    Ok((first as u32, second as u32))
}

/// Moves a device under test to other page tables.
pub(crate) fn replace(fd: BorrowedFd<'_>, device: u32, tables: u32) -> io::Result<()> {
    // SAFETY: as above.
    unsafe { test(fd, MOCK_DOMAIN_REPLACE, device, [tables.into(), 0, 0, 0, 0, 0]) }.map(drop)
}

/// Has the device mark one of its pages; returns if it was mapped.
pub(crate) fn write(fd: BorrowedFd<'_>, tables: u32, iova: u64) -> io::Result<bool> {
    let bits = [1u64];
    let words = [0, iova, PAGE, PAGE, bits.as_ptr() as u64, 0];
    // SAFETY: the kernel reads a bit there.
    let [.., marked] = unsafe { test(fd, DIRTY, tables, words) }?;
    Ok(marked == 1)
}

/// Has a device ask for the page at `iova`, to read and write, as `group`.
pub(crate) fn ask(fd: BorrowedFd<'_>, device: u32, group: u32, iova: u64) -> io::Result<()> {
    // `pasid` is the one that says that there is none.
    let words = [device.into(), u64::from(group) | 3 << 32, iova, 0, 0, 0];
    // SAFETY: the operation takes no address of this process's.
    unsafe { test(fd, TRIGGER_IOPF, 0, words) }.map(drop)
}

/// Page tables that lie above others (`parent`), and whose faults go to a queue.
pub(crate) fn new_nested(
    fd: BorrowedFd<'_>,
    device: u32,
    parent: u32,
    fault_queue: u32,
) -> io::Result<u32> {
    let data = 0u32;
    let mut value = sys::iommu_hwpt_alloc {
        size: size::<sys::iommu_hwpt_alloc>(),
        flags: sys::iommufd_hwpt_alloc_flags_IOMMU_HWPT_FAULT_ID_VALID,
        dev_id: device,
        pt_id: parent,
        data_type: DATA_SELFTEST,
        data_len: 4,
        data_uptr: std::ptr::from_ref(&data) as u64,
        fault_id: fault_queue,
        ..Default::default()
    };
    // SAFETY: the kernel reads four bytes there.
    unsafe { command(fd, sys::IOMMUFD_CMD_HWPT_ALLOC, &mut value) }?;
    Ok(value.out_hwpt_id)
}
