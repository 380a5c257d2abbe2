//! The system calls of iommufd for a guest's own tables: nested page tables, virtual IOMMUs, their devices and events,
//! and the description of the hardware below them.
//!
//! linux/iommufd.h, as of Linux 7.3. Data of one kind of hardware are words of eight bytes, which iommufd checks
//! against that kind.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd as _, OwnedFd};

use super::{command, size, sys};

/// Words of the longest description that is taken.
pub(crate) const WORDS: usize = 8;

/// Answer of IOMMU_GET_HW_INFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    pub(crate) kind: u32,
    pub(crate) words: [u64; WORDS],
    pub(crate) capabilities: u64,
    pub(crate) pasid_bits: u8,
}

/// IOMMU_GET_HW_INFO: the IOMMU that is between a device and memory; with `kind` a part of it, of that kind.
pub(crate) fn describe(
    fd: BorrowedFd<'_>,
    device: u32,
    kind: Option<u32>,
) -> io::Result<Described> {
    let mut words = [0; WORDS];
    let mut value = sys::iommu_hw_info {
        size: size::<sys::iommu_hw_info>(),
        dev_id: device,
        data_len: size_of_val(&words) as u32,
        data_uptr: words.as_mut_ptr() as u64,
        flags: kind.map_or(0, |_| sys::iommufd_hw_info_flags_IOMMU_HW_INFO_FLAG_INPUT_TYPE),
        ..Default::default()
    };
    value.__bindgen_anon_1.in_data_type = kind.unwrap_or(0);
    // SAFETY: the kernel writes `data_len` bytes at most, for which there is room.
    unsafe { command(fd, sys::IOMMUFD_CMD_GET_HW_INFO, &mut value) }?;
    // SAFETY: both fields of the union are this number.
    let kind = unsafe { value.__bindgen_anon_1.out_data_type };
    let (capabilities, pasid_bits) = (value.out_capabilities, value.out_max_pasid_log2);
    Ok(Described { kind, words, capabilities, pasid_bits })
}

/// Page tables of a guest, as the kernel is told of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nested<'a> {
    pub(crate) device: u32,
    /// Page tables, or virtual IOMMU, below them.
    pub(crate) parent: u32,
    pub(crate) flags: u32,
    pub(crate) kind: u32,
    pub(crate) words: &'a [u64],
    pub(crate) fault_queue: Option<u32>,
}

/// IOMMU_HWPT_ALLOC of tables whose addresses another stage translates.
pub(crate) fn new_nested(fd: BorrowedFd<'_>, nested: Nested<'_>) -> io::Result<u32> {
    let queue = match nested.fault_queue {
        Some(_) => sys::iommufd_hwpt_alloc_flags_IOMMU_HWPT_FAULT_ID_VALID,
        None => 0,
    };
    let mut value = sys::iommu_hwpt_alloc {
        size: size::<sys::iommu_hwpt_alloc>(),
        flags: nested.flags | queue,
        dev_id: nested.device,
        pt_id: nested.parent,
        data_type: nested.kind,
        data_len: size_of_val(nested.words) as u32,
        data_uptr: nested.words.as_ptr() as u64,
        fault_id: nested.fault_queue.unwrap_or(0),
        ..Default::default()
    };
    // SAFETY: the kernel reads `data_len` bytes there; tables hold addresses of the stage below, which the
    // kernel maps.
    unsafe { command(fd, sys::IOMMUFD_CMD_HWPT_ALLOC, &mut value) }?;
    Ok(value.out_hwpt_id)
}

/// IOMMU_HWPT_INVALIDATE: hands requests of `N` words to the hardware in their order.
///
/// # Errors
/// The kernel's error, with the number of requests that the hardware has carried out.
pub(crate) fn invalidate<const N: usize>(
    fd: BorrowedFd<'_>,
    tables: u32,
    kind: u32,
    requests: &[[u64; N]],
) -> Result<(), (u32, io::Error)> {
    let too_many = |_| (0, io::ErrorKind::InvalidInput.into());
    let wanted = u32::try_from(requests.len()).map_err(too_many)?;
    let mut value = sys::iommu_hwpt_invalidate {
        size: size::<sys::iommu_hwpt_invalidate>(),
        hwpt_id: tables,
        data_uptr: requests.as_ptr() as u64,
        data_type: kind,
        entry_len: size_of::<[u64; N]>() as u32,
        entry_num: wanted,
        ..Default::default()
    };
    // SAFETY: the kernel reads `entry_num` requests of `entry_len` bytes there.
    match unsafe { command(fd, sys::IOMMUFD_CMD_HWPT_INVALIDATE, &mut value) } {
        Ok(()) if value.entry_num == wanted => Ok(()),
        Ok(()) => Err((value.entry_num.min(wanted), io::ErrorKind::InvalidData.into())),
        // A call that was refused before it reached a driver leaves the number as it was.
        Err(error) if value.entry_num >= wanted => Err((0, error)),
        Err(error) => Err((value.entry_num, error)),
    }
}

/// IOMMU_VIOMMU_ALLOC: a virtual IOMMU above page tables that others may lie above. `data` is what a kind hands the
/// kernel, and the kernel's answer.
pub(crate) fn new_viommu(
    fd: BorrowedFd<'_>,
    device: u32,
    tables: u32,
    kind: u32,
    data: &mut [u64],
) -> io::Result<u32> {
    let mut value = sys::iommu_viommu_alloc {
        size: size::<sys::iommu_viommu_alloc>(),
        type_: kind,
        dev_id: device,
        hwpt_id: tables,
        data_len: size_of_val(data) as u32,
        data_uptr: data.as_mut_ptr() as u64,
        ..Default::default()
    };
    // SAFETY: the kernel reads and writes `data_len` bytes there.
    unsafe { command(fd, sys::IOMMUFD_CMD_VIOMMU_ALLOC, &mut value) }?;
    Ok(value.out_viommu_id)
}

/// IOMMU_VDEVICE_ALLOC: the device `device` as a guest names it.
pub(crate) fn new_vdevice(
    fd: BorrowedFd<'_>,
    viommu: u32,
    device: u32,
    name: u64,
) -> io::Result<u32> {
    let mut value = sys::iommu_vdevice_alloc {
        size: size::<sys::iommu_vdevice_alloc>(),
        viommu_id: viommu,
        dev_id: device,
        virt_id: name,
        ..Default::default()
    };
    // SAFETY: there is nothing behind the structure.
    unsafe { command(fd, sys::IOMMUFD_CMD_VDEVICE_ALLOC, &mut value) }?;
    Ok(value.out_vdevice_id)
}

/// A queue in a guest's memory that the hardware reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HwQueue {
    pub(crate) viommu: u32,
    pub(crate) kind: u32,
    pub(crate) index: u32,
    pub(crate) start: u64,
    pub(crate) length: u64,
}

/// IOMMU_HW_QUEUE_ALLOC.
pub(crate) fn new_hw_queue(fd: BorrowedFd<'_>, queue: HwQueue) -> io::Result<u32> {
    let mut value = sys::iommu_hw_queue_alloc {
        size: size::<sys::iommu_hw_queue_alloc>(),
        viommu_id: queue.viommu,
        type_: queue.kind,
        index: queue.index,
        nesting_parent_iova: queue.start,
        length: queue.length,
        ..Default::default()
    };
    // SAFETY: there is nothing behind the structure; the memory is the guest's, which the domain below maps.
    unsafe { command(fd, sys::IOMMUFD_CMD_HW_QUEUE_ALLOC, &mut value) }?;
    Ok(value.out_hw_queue_id)
}

/// IOMMU_VEVENTQ_ALLOC: a queue of `depth` events; its number, and the file that it is read by.
pub(crate) fn new_event_queue(
    fd: BorrowedFd<'_>,
    viommu: u32,
    kind: u32,
    depth: u32,
) -> io::Result<(u32, OwnedFd)> {
    let mut value = sys::iommu_veventq_alloc {
        size: size::<sys::iommu_veventq_alloc>(),
        viommu_id: viommu,
        type_: kind,
        veventq_depth: depth,
        ..Default::default()
    };
    // SAFETY: there is nothing behind the structure.
    unsafe { command(fd, sys::IOMMUFD_CMD_VEVENTQ_ALLOC, &mut value) }?;
    // SAFETY: the call has returned a new descriptor, which no other code has.
    let file = unsafe { OwnedFd::from_raw_fd(value.out_veventq_fd as i32) };
    Ok((value.out_veventq_id, file))
}
