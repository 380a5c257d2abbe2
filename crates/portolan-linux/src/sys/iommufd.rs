//! The system calls of iommufd, and those by which a VFIO device is bound to it.
//!
//! linux/iommufd.h, linux/vfio.h, as of Linux 7.3. Objects of the kernel's are numbers, which mean something
//! only together with the file that they are of: a wrong one is an error of the kernel's, no danger.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use iommufd_bindings::iommufd as sys;
use rustix::io::Errno;
use rustix::ioctl::{ioctl, opcode};
use vfio_bindings::bindings::vfio;

use super::{Raw, call};

pub(crate) mod nested;
#[cfg(test)]
pub(crate) mod selftest;
#[cfg(test)]
mod tests;

/// Ranges that are taken at most: more than any kernel has.
const MOST_RANGES: usize = 4096;

/// # Safety
/// The call with this number reads and writes a `T`, and behind it only memory that may be.
unsafe fn command<T>(fd: BorrowedFd<'_>, number: u32, value: &mut T) -> io::Result<()> {
    let opcode = opcode::none(sys::IOMMUFD_TYPE, number as u8);
    let argument = std::ptr::from_mut(value).cast();
    // SAFETY: the caller's promise.
    unsafe { ioctl(fd, Raw { opcode, argument }) }?;
    Ok(())
}

/// The length of a structure, which is its first field.
const fn size<T>() -> u32 {
    size_of::<T>() as u32
}

/// IOMMU_DESTROY.
pub(crate) fn destroy(fd: BorrowedFd<'_>, id: u32) -> io::Result<()> {
    let size = size::<sys::iommu_destroy>();
    let mut value = sys::iommu_destroy { size, id };
    // SAFETY: there is nothing behind the structure.
    unsafe { command(fd, sys::IOMMUFD_CMD_DESTROY, &mut value) }
}

/// IOMMU_IOAS_ALLOC: an empty address space.
pub(crate) fn new_ioas(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut value =
        sys::iommu_ioas_alloc { size: size::<sys::iommu_ioas_alloc>(), ..Default::default() };
    // SAFETY: as above.
    unsafe { command(fd, sys::IOMMUFD_CMD_IOAS_ALLOC, &mut value) }?;
    Ok(value.out_ioas_id)
}

/// IOMMU_IOAS_IOVA_RANGES: the addresses that may be mapped, as pairs of a first and a last one, and the
/// size that they are multiples of.
pub(crate) fn ranges(fd: BorrowedFd<'_>, ioas: u32) -> io::Result<(Vec<(u64, u64)>, u64)> {
    let mut room = 16;
    loop {
        let mut ranges = vec![sys::iommu_iova_range::default(); room];
        let mut value = sys::iommu_ioas_iova_ranges {
            size: size::<sys::iommu_ioas_iova_ranges>(),
            ioas_id: ioas,
            num_iovas: room as u32,
            allowed_iovas: ranges.as_mut_ptr() as u64,
            ..Default::default()
        };
        // SAFETY: the kernel writes `num_iovas` ranges at most, for which there is room.
        let asked = unsafe { command(fd, sys::IOMMUFD_CMD_IOAS_IOVA_RANGES, &mut value) };
        let there = value.num_iovas as usize;
        match asked {
            Ok(()) if there <= room => {
                let pairs = ranges.iter().take(there);
                let pairs = pairs.map(|range| (range.start, range.last)).collect();
                return Ok((pairs, value.out_iova_alignment));
            }
            Err(error) if there <= room => return Err(error),
            _ if there > MOST_RANGES => return Err(io::ErrorKind::InvalidData.into()),
            _ => room = there,
        }
    }
}

/// IOMMU_IOAS_MAP at an address of the caller's choice; `flags` give the access of devices. Buffers
/// promise that they may reach the memory.
pub(crate) fn map(
    fd: BorrowedFd<'_>,
    ioas: u32,
    iova: u64,
    memory: u64,
    length: u64,
    flags: u32,
) -> io::Result<()> {
    let mut value = sys::iommu_ioas_map {
        size: size::<sys::iommu_ioas_map>(),
        flags: flags | sys::iommufd_ioas_map_flags_IOMMU_IOAS_MAP_FIXED_IOVA,
        ioas_id: ioas,
        user_va: memory,
        length,
        iova,
        ..Default::default()
    };
    // SAFETY: the kernel reads and writes the structure alone.
    unsafe { command(fd, sys::IOMMUFD_CMD_IOAS_MAP, &mut value) }
}

/// A file, and the offset of the first byte of it that is mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FromFile<'a> {
    pub(crate) file: BorrowedFd<'a>,
    pub(crate) start: u64,
}

/// IOMMU_IOAS_MAP_FILE: as [`map`], of `length` bytes of a file in memory, or of a dma-buf, from `start` on. Its owner
/// promises that devices may reach them.
pub(crate) fn map_file(
    fd: BorrowedFd<'_>,
    ioas: u32,
    iova: u64,
    FromFile { file, start }: FromFile<'_>,
    length: u64,
    flags: u32,
) -> io::Result<()> {
    let mut value = sys::iommu_ioas_map_file {
        size: size::<sys::iommu_ioas_map_file>(),
        flags: flags | sys::iommufd_ioas_map_flags_IOMMU_IOAS_MAP_FIXED_IOVA,
        ioas_id: ioas,
        fd: file.as_raw_fd(),
        start,
        length,
        iova,
    };
    // SAFETY: as above.
    unsafe { command(fd, sys::IOMMUFD_CMD_IOAS_MAP_FILE, &mut value) }
}

/// A part of an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) ioas: u32,
    pub(crate) iova: u64,
}

/// IOMMU_IOAS_COPY: maps `length` bytes that `from` has at `into`; `flags` give the access of devices. They are pinned
/// once for both.
pub(crate) fn copy(
    fd: BorrowedFd<'_>,
    into: Part,
    from: Part,
    length: u64,
    flags: u32,
) -> io::Result<()> {
    let mut value = sys::iommu_ioas_copy {
        size: size::<sys::iommu_ioas_copy>(),
        flags: flags | sys::iommufd_ioas_map_flags_IOMMU_IOAS_MAP_FIXED_IOVA,
        dst_ioas_id: into.ioas,
        src_ioas_id: from.ioas,
        length,
        dst_iova: into.iova,
        src_iova: from.iova,
    };
    // SAFETY: there is nothing behind the structure. Buffers promise that devices may reach the memory.
    unsafe { command(fd, sys::IOMMUFD_CMD_IOAS_COPY, &mut value) }
}

/// IOMMU_IOAS_CHANGE_PROCESS: this process pays for all that is pinned.
pub(crate) fn change_process(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut value = sys::iommu_ioas_change_process {
        size: size::<sys::iommu_ioas_change_process>(),
        ..Default::default()
    };
    // SAFETY: there is nothing behind the structure.
    unsafe { command(fd, sys::IOMMUFD_CMD_IOAS_CHANGE_PROCESS, &mut value) }
}

/// IOMMU_IOAS_UNMAP: the bytes that there were.
pub(crate) fn unmap(fd: BorrowedFd<'_>, ioas: u32, iova: u64, length: u64) -> io::Result<u64> {
    let mut value = sys::iommu_ioas_unmap {
        size: size::<sys::iommu_ioas_unmap>(),
        ioas_id: ioas,
        iova,
        length,
    };
    // SAFETY: as above.
    unsafe { command(fd, sys::IOMMUFD_CMD_IOAS_UNMAP, &mut value) }?;
    Ok(value.length)
}

/// IOMMU_HWPT_ALLOC: page tables of an address space, for a device and those like it.
pub(crate) fn new_hwpt(
    fd: BorrowedFd<'_>,
    device: u32,
    ioas: u32,
    flags: u32,
    fault_queue: u32,
) -> io::Result<u32> {
    let mut value = sys::iommu_hwpt_alloc {
        size: size::<sys::iommu_hwpt_alloc>(),
        flags,
        dev_id: device,
        pt_id: ioas,
        fault_id: fault_queue,
        ..Default::default()
    };
    // SAFETY: the structure names no data.
    unsafe { command(fd, sys::IOMMUFD_CMD_HWPT_ALLOC, &mut value) }?;
    Ok(value.out_hwpt_id)
}

/// IOMMU_HWPT_SET_DIRTY_TRACKING.
pub(crate) fn set_dirty_tracking(fd: BorrowedFd<'_>, hwpt: u32, flags: u32) -> io::Result<()> {
    let mut value = sys::iommu_hwpt_set_dirty_tracking {
        size: size::<sys::iommu_hwpt_set_dirty_tracking>(),
        flags,
        hwpt_id: hwpt,
        ..Default::default()
    };
    // SAFETY: there is nothing behind the structure.
    unsafe { command(fd, sys::IOMMUFD_CMD_HWPT_SET_DIRTY_TRACKING, &mut value) }
}

/// An error unless `bitmap` has a bit for each page of `length` bytes.
pub(super) fn room(length: u64, page: u64, bitmap: &[u64]) -> io::Result<()> {
    let bits = bitmap.len() as u64 * 64;
    match page != 0 && length.div_ceil(page) <= bits {
        true => Ok(()),
        false => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// IOMMU_HWPT_GET_DIRTY_BITMAP: sets a bit of `bitmap` for each page that was written, and clears the marks
/// unless `flags` keep them.
pub(crate) fn dirty(
    fd: BorrowedFd<'_>,
    hwpt: u32,
    flags: u32,
    iova: u64,
    length: u64,
    page: u64,
    bitmap: &mut [u64],
) -> io::Result<()> {
    room(length, page, bitmap)?;
    let mut value = sys::iommu_hwpt_get_dirty_bitmap {
        size: size::<sys::iommu_hwpt_get_dirty_bitmap>(),
        hwpt_id: hwpt,
        flags,
        iova,
        length,
        page_size: page,
        data: bitmap.as_mut_ptr() as u64,
        ..Default::default()
    };
    // SAFETY: the kernel writes a bit for each page of the length, for which there is room.
    unsafe { command(fd, sys::IOMMUFD_CMD_HWPT_GET_DIRTY_BITMAP, &mut value) }
}

/// IOMMU_FAULT_QUEUE_ALLOC: the queue's number, and the file that it is read by.
pub(crate) fn new_fault_queue(fd: BorrowedFd<'_>) -> io::Result<(u32, OwnedFd)> {
    let mut value =
        sys::iommu_fault_alloc { size: size::<sys::iommu_fault_alloc>(), ..Default::default() };
    // SAFETY: there is nothing behind the structure.
    unsafe { command(fd, sys::IOMMUFD_CMD_FAULT_QUEUE_ALLOC, &mut value) }?;
    // SAFETY: the call has returned a new descriptor, which no other code has.
    let file = unsafe { OwnedFd::from_raw_fd(value.out_fault_fd as i32) };
    Ok((value.out_fault_id, file))
}

/// IOMMU_OPTION: tells if `fd` is one of iommufd's, by a question that any of them answers.
pub(crate) fn answers(fd: BorrowedFd<'_>) -> bool {
    let mut value = sys::iommu_option {
        size: size::<sys::iommu_option>(),
        option_id: sys::iommufd_option_IOMMU_OPTION_RLIMIT_MODE,
        op: sys::iommufd_option_ops_IOMMU_OPTION_OP_GET as u16,
        ..Default::default()
    };
    // SAFETY: there is nothing behind the structure.
    unsafe { command(fd, sys::IOMMUFD_CMD_OPTION, &mut value) }.is_ok()
}

/// Tells if `fd` is a device's that knows the call which binds it: it is made without a structure, so that the kernel
/// finds none to read.
pub(crate) fn can_bind(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: the kernel reads no byte at that address.
    let asked = unsafe { call(fd, 118, std::ptr::null_mut()) };
    let errno = |error: io::Error| error.raw_os_error().map(Errno::from_raw_os_error);
    asked.err().and_then(errno) == Some(Errno::FAULT)
}

/// VFIO_DEVICE_BIND_IOMMUFD: the device's number.
pub(crate) fn bind(
    device: BorrowedFd<'_>,
    iommufd: BorrowedFd<'_>,
    token: Option<&[u8; 16]>,
) -> io::Result<u32> {
    let mut value = vfio::vfio_device_bind_iommufd {
        argsz: size::<vfio::vfio_device_bind_iommufd>(),
        flags: token.map_or(0, |_| vfio::VFIO_DEVICE_BIND_FLAG_TOKEN),
        iommufd: iommufd.as_raw_fd(),
        out_devid: 0,
        token_uuid_ptr: token.map_or(0, |token| token.as_ptr().addr() as u64),
    };
    // SAFETY: the kernel reads the 16 bytes behind the pointer, if the flag says that there is one.
    unsafe { call(device, 118, std::ptr::from_mut(&mut value).cast()) }?;
    Ok(value.out_devid)
}

/// VFIO_DEVICE_ATTACH_IOMMUFD_PT: the device is in these page tables, or this address space; with `pasid` only its
/// requests that have it.
pub(crate) fn attach(device: BorrowedFd<'_>, table: u32, pasid: Option<u32>) -> io::Result<()> {
    let mut value = vfio::vfio_device_attach_iommufd_pt {
        argsz: size::<vfio::vfio_device_attach_iommufd_pt>(),
        flags: pasid.map_or(0, |_| vfio::VFIO_DEVICE_ATTACH_PASID),
        pt_id: table,
        pasid: pasid.unwrap_or(0),
    };
    // SAFETY: as above.
    unsafe { call(device, 119, std::ptr::from_mut(&mut value).cast()) }?;
    Ok(())
}

/// VFIO_DEVICE_DETACH_IOMMUFD_PT: the device reaches nothing; with `pasid` only its requests that have it.
pub(crate) fn detach(device: BorrowedFd<'_>, pasid: Option<u32>) -> io::Result<()> {
    let mut value = vfio::vfio_device_detach_iommufd_pt {
        argsz: size::<vfio::vfio_device_detach_iommufd_pt>(),
        flags: pasid.map_or(0, |_| vfio::VFIO_DEVICE_DETACH_PASID),
        pasid: pasid.unwrap_or(0),
    };
    // SAFETY: as above.
    unsafe { call(device, 120, std::ptr::from_mut(&mut value).cast()) }?;
    Ok(())
}
