//! The kernel's own device for tests of iommufd (`CONFIG_IOMMUFD_TEST`, drivers/iommu/iommufd/iommufd_test.h of
//! Linux 7.3): an IOMMU in software that keeps dirty marks, takes nested page tables and virtual IOMMUs, and devices
//! that ask for pages and report events when they are told to.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use super::{command, size, sys};

const TEST: u32 = sys::IOMMUFD_CMD_BASE + 32;
const MOCK_DOMAIN: u32 = 2;
const MOCK_DOMAIN_REPLACE: u32 = 10;
const MOCK_DOMAIN_FLAGS: u32 = 12;
const DIRTY: u32 = 13;
const MD_CHECK_MAP: u32 = 3;
const MD_CHECK_IOTLB: u32 = 14;
const TRIGGER_IOPF: u32 = 15;
const DEV_CHECK_CACHE: u32 = 16;
const TRIGGER_VEVENT: u32 = 17;
const PASID_ATTACH: u32 = 18;
const PASID_REPLACE: u32 = 19;
const PASID_DETACH: u32 = 20;
const PASID_CHECK_HWPT: u32 = 21;
const MD_CHECK_REFS: u32 = 4;
const DMABUF_GET: u32 = 22;
const DMABUF_REVOKE: u32 = 23;
/// Flag of a device with PASIDs.
const DEVICE_PASID: u64 = 1 << 2;
/// Nested page tables (`IOMMU_HWPT_DATA_SELFTEST`).
pub(crate) const TABLES: u32 = 0xdead;
/// Invalidations, and a virtual IOMMU.
pub(crate) const INVALIDATION: u32 = 0xdead_beef;
pub(crate) const VIOMMU: u32 = 0xdead_beef;
/// Queues of such a virtual IOMMU in its guest's memory, and the first word of its registers.
pub(crate) const QUEUE: u32 = 0xdead_beef;
pub(crate) const FIRST: u32 = 0x5eed;
/// Events of such a virtual IOMMU.
pub(crate) const EVENTS: u32 = 0xbeef_beef;
/// The description of its hardware: its kind, and the value of its register.
pub(crate) const HARDWARE: u32 = 0xfeed_beef;
pub(crate) const REGISTER: u32 = 0xdead_beef;
/// Bits of its PASIDs.
pub(crate) const PASID_BITS: u8 = 20;
/// Entries of each cache, and their values at first: those of a device, and those of nested tables as the caller says.
pub(crate) const ENTRIES: u32 = 4;
pub(crate) const DEVICE_CACHED: u32 = 0xba_ddad;
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

/// A new device that has PASIDs, in the address space `ioas`: its numbers as [`new_device`]'s.
pub(crate) fn new_device_with_pasids(fd: BorrowedFd<'_>, ioas: u32) -> io::Result<(u32, u32)> {
    let flags = [0, DEVICE_PASID << 32, 0, 0, 0, 0];
    // SAFETY: the operation takes no address.
    let [first, second, ..] = unsafe { test(fd, MOCK_DOMAIN_FLAGS, ioas, flags) }?;
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

/// Tells if `tables` translate the pages from `iova` on to the memory from `memory` on.
pub(crate) fn leads_to(fd: BorrowedFd<'_>, tables: u32, iova: u64, memory: &[u8]) -> bool {
    leads_to_address(fd, tables, iova, memory.as_ptr() as u64, memory.len() as u64)
}

/// The same of memory at an address.
pub(crate) fn leads_to_address(
    fd: BorrowedFd<'_>,
    tables: u32,
    iova: u64,
    at: u64,
    length: u64,
) -> bool {
    // SAFETY: the kernel looks the pages up that are at the address, if there are any.
    unsafe { test(fd, MD_CHECK_MAP, tables, [iova, length, at, 0, 0, 0]) }.is_ok()
}

/// Tells if each page of memory at an address is pinned `times` times.
pub(crate) fn is_pinned(fd: BorrowedFd<'_>, at: u64, length: u64, times: u32) -> bool {
    // SAFETY: as above.
    unsafe { test(fd, MD_CHECK_REFS, 0, [length, at, times.into(), 0, 0, 0]) }.is_ok()
}

/// A dma-buf of `length` bytes.
pub(crate) fn new_dma_buf(fd: BorrowedFd<'_>, length: u32) -> io::Result<OwnedFd> {
    // The kernel makes the lowest free descriptor, and does not say which: that of this copy.
    let free = fd.try_clone_to_owned()?.as_raw_fd();
    // SAFETY: the operation takes no address.
    unsafe { test(fd, DMABUF_GET, 0, [length.into(), 0, 0, 0, 0, 0]) }?;
    // SAFETY: the call has made a new descriptor, which no other code has, as tests run one at a time.
    Ok(unsafe { OwnedFd::from_raw_fd(free) })
}

/// Access of others to a dma-buf.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Giving {
    Given,
    TakenBack,
}

/// Has the owner of a dma-buf take it back from all that have mapped it, or give it again.
pub(crate) fn revoke(fd: BorrowedFd<'_>, buffer: BorrowedFd<'_>, to: Giving) -> io::Result<()> {
    let buffer = buffer.as_raw_fd() as u32;
    let words = [u64::from(buffer) | (to as u64) << 32, 0, 0, 0, 0, 0];
    // SAFETY: the operation takes no address.
    unsafe { test(fd, DMABUF_REVOKE, 0, words) }.map(drop)
}

/// Tells if the entry `entry` of what nested tables have cached is `value`.
pub(crate) fn has_cached(fd: BorrowedFd<'_>, tables: u32, entry: u32, value: u32) -> bool {
    let words = [u64::from(entry) | u64::from(value) << 32, 0, 0, 0, 0, 0];
    // SAFETY: the operation takes no address.
    unsafe { test(fd, MD_CHECK_IOTLB, tables, words) }.is_ok()
}

/// Tells if the entry `entry` of what a device has cached is `value`.
pub(crate) fn device_has_cached(fd: BorrowedFd<'_>, device: u32, entry: u32, value: u32) -> bool {
    let words = [u64::from(entry) | u64::from(value) << 32, 0, 0, 0, 0, 0];
    // SAFETY: as above.
    unsafe { test(fd, DEV_CHECK_CACHE, device, words) }.is_ok()
}

/// Has a device report an event to the virtual IOMMU that it is behind.
pub(crate) fn report(fd: BorrowedFd<'_>, device: u32) -> io::Result<()> {
    // SAFETY: as above.
    unsafe { test(fd, TRIGGER_VEVENT, 0, [device.into(), 0, 0, 0, 0, 0]) }.map(drop)
}

/// Moves the requests with `pasid` of a device under test to tables, or from tables.
pub(crate) fn move_pasid(fd: BorrowedFd<'_>, device: u32, pasid: u32, to: Move) -> io::Result<()> {
    let (op, tables) = match to {
        Move::Into(tables) => (PASID_ATTACH, tables),
        Move::Over(tables) => (PASID_REPLACE, tables),
        Move::Away => (PASID_DETACH, 0),
    };
    let words = [u64::from(pasid) | u64::from(tables) << 32, 0, 0, 0, 0, 0];
    // SAFETY: as above.
    unsafe { test(fd, op, device, words) }.map(drop)
}

/// Way of requests with a PASID.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Move {
    /// From nowhere to tables.
    Into(u32),
    /// From other tables to these.
    Over(u32),
    /// To nowhere.
    Away,
}

/// Tells if the requests with `pasid` of a device under test are in `tables`; with 0, in none.
pub(crate) fn is_in(fd: BorrowedFd<'_>, device: u32, pasid: u32, tables: u32) -> bool {
    let words = [u64::from(pasid) | u64::from(tables) << 32, 0, 0, 0, 0, 0];
    // SAFETY: as above.
    unsafe { test(fd, PASID_CHECK_HWPT, device, words) }.is_ok()
}
