//! The system calls of VFIO: structures that the kernel reads and writes.
//!
//! linux/vfio.h. A call is named by a constant of this module, which has the type of its argument, so
//! that no other module can pair a number with the wrong structure. Those of iommufd are functions, since
//! more of them have memory behind their structures.

#![allow(unsafe_code)]

pub(crate) mod iommufd;
mod window;

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use portolan::platform::TrustedBase;
use rustix::fs::OFlags;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};
use vfio_bindings::bindings::vfio as sys;

pub(crate) use window::Window;

/// Bytes of the longest answer that is taken: a page of ranges is far more than any kernel has.
const LONGEST: usize = 1 << 16;

/// The kernel's IOMMU, as this crate asks for it.
pub(crate) fn kernel() -> TrustedBase {
    // SAFETY: the kernel maps and unmaps the given range before a call returns, and its answer is checked.
    unsafe { TrustedBase::new() }
}

/// A call whose argument is a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain(u8);

/// A call that fills a structure, and then capabilities as far as there is room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking(u8);

/// A call whose structure is `T`.
#[derive(Debug)]
pub(crate) struct With<T>(u8, std::marker::PhantomData<fn(T)>);

impl<T> With<T> {
    /// # Safety
    /// The call with this number reads and writes a `T` and nothing else of this process, but
    /// memory that the structure's caller has promised to the device.
    const unsafe fn new(number: u8) -> Self {
        Self(number, std::marker::PhantomData)
    }
}

pub(crate) const GET_API_VERSION: Plain = Plain(100);
pub(crate) const CHECK_EXTENSION: Plain = Plain(101);
pub(crate) const SET_IOMMU: Plain = Plain(102);
pub(crate) const DEVICE_RESET: Plain = Plain(111);
pub(crate) const DEVICE_GET_INFO: Asking = Asking(107);
pub(crate) const DEVICE_GET_REGION_INFO: Asking = Asking(108);
pub(crate) const DEVICE_GET_IRQ_INFO: Asking = Asking(109);
pub(crate) const IOMMU_GET_INFO: Asking = Asking(112);
// SAFETY: VFIO_GROUP_GET_STATUS fills a `vfio_group_status`.
const GROUP_GET_STATUS: With<sys::vfio_group_status> = unsafe { With::new(103) };
// SAFETY: VFIO_IOMMU_MAP_DMA reads a `vfio_iommu_type1_dma_map`; buffers promise that devices may reach
// the memory which it names.
pub(crate) const MAP_DMA: With<sys::vfio_iommu_type1_dma_map> = unsafe { With::new(113) };
// SAFETY: VFIO_IOMMU_UNMAP_DMA reads and writes this structure, which has no data behind it where no
// flag asks for any; its users set none.
pub(crate) const UNMAP_DMA: With<Unmap> = unsafe { With::new(114) };

// SAFETY: VFIO_DEVICE_FEATURE reads and writes as much as the structure says that it is long, which is this one.
const SET_VF_TOKEN: With<VfTokenFeature> = unsafe { With::new(117) };

/// `vfio_device_feature` with a token behind it.
#[repr(C)]
#[derive(Debug)]
struct VfTokenFeature {
    argsz: u32,
    flags: u32,
    token: [u8; 16],
}

/// `vfio_iommu_type1_dma_unmap` without flags, and so without data behind it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Unmap {
    argsz: u32,
    flags: u32,
    iova: u64,
    size: u64,
}

impl Unmap {
    pub(crate) const fn new(iova: u64, size: u64) -> Self {
        Self { argsz: size_of::<Self>() as u32, flags: 0, iova, size }
    }

    /// The bytes that there were, once the call has returned.
    pub(crate) const fn unmapped(&self) -> u64 {
        self.size
    }
}

/// A call with an argument that the kernel takes for a number or follows.
struct Raw {
    opcode: Opcode,
    argument: *mut c_void,
}

// SAFETY: the argument is handed on as it is, and the result is the call's own.
unsafe impl Ioctl for Raw {
    type Output = c_int;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.argument
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<c_int> {
        Ok(out)
    }
}

/// # Safety
/// The memory that the kernel reads and writes behind `argument` in the call with this number may be
/// read and written.
unsafe fn call(fd: BorrowedFd<'_>, number: u8, argument: *mut c_void) -> io::Result<c_int> {
    let opcode = opcode::none(sys::VFIO_TYPE, number);
    // SAFETY: the caller's promise.
    Ok(unsafe { ioctl(fd, Raw { opcode, argument }) }?)
}

/// Makes a call with a number.
pub(crate) fn plain(fd: BorrowedFd<'_>, Plain(number): Plain, value: usize) -> io::Result<c_int> {
    let argument = std::ptr::without_provenance_mut(value);
    // SAFETY: the kernel takes the argument of such a call for a number.
    unsafe { call(fd, number, argument) }
}

/// Makes a call with a structure.
pub(crate) fn with<T>(fd: BorrowedFd<'_>, name: &With<T>, value: &mut T) -> io::Result<c_int> {
    // SAFETY: `With::new` has the promise that the call keeps to a `T`.
    unsafe { call(fd, name.0, std::ptr::from_mut(value).cast()) }
}

/// Makes a call that answers with a structure of `fixed` bytes and capabilities behind it. `words` are
/// those of the structure behind its length. The answer is as long as the kernel says that it is, but no
/// longer than a bound.
pub(crate) fn ask(
    fd: BorrowedFd<'_>,
    Asking(number): Asking,
    fixed: usize,
    words: &[u32],
) -> io::Result<Vec<u8>> {
    let mut bytes = fixed;
    loop {
        // Words of eight bytes, for the alignment of the structures in them.
        let mut answer = vec![0u64; bytes.div_ceil(8)];
        let room = answer.len() * 8;
        let mut put = |word: usize, value: u32| {
            if let Some(pair) = answer.get_mut(word / 2) {
                let mut halves = pair.to_ne_bytes();
                let at = word % 2 * 4;
                halves[at..at + 4].copy_from_slice(&value.to_ne_bytes());
                *pair = u64::from_ne_bytes(halves);
            }
        };
        put(0, room as u32);
        for (at, word) in words.iter().enumerate() {
            put(at + 1, *word);
        }
        // SAFETY: the first word has the number of bytes, and the kernel keeps to that.
        unsafe { call(fd, number, answer.as_mut_ptr().cast()) }?;
        let answer: Vec<u8> = answer.into_iter().flat_map(u64::to_ne_bytes).collect();
        let wanted = answer.first_chunk().copied().map_or(0, u32::from_ne_bytes) as usize;
        if wanted <= room {
            return Ok(answer);
        }
        if wanted > LONGEST || bytes != fixed {
            return Err(io::ErrorKind::InvalidData.into());
        }
        bytes = wanted;
    }
}

/// `vfio_iommu_type1_dirty_bitmap` with its `vfio_iommu_type1_dirty_bitmap_get` behind it.
#[repr(C)]
struct Dirty {
    argsz: u32,
    flags: u32,
    range: sys::vfio_iommu_type1_dirty_bitmap_get,
}

fn dirty_pages(container: BorrowedFd<'_>, dirty: &mut Dirty) -> io::Result<()> {
    // SAFETY: the kernel writes a bit of the bitmap for each page of the range, for which its users in this
    // module have room.
    unsafe { call(container, 117, std::ptr::from_mut(dirty).cast()) }?;
    Ok(())
}

/// VFIO_IOMMU_DIRTY_PAGES: starts or stops to track, as `flags` say.
pub(crate) fn track_dirty(container: BorrowedFd<'_>, flags: u32) -> io::Result<()> {
    let range = sys::vfio_iommu_type1_dirty_bitmap_get {
        iova: 0,
        size: 0,
        bitmap: sys::vfio_bitmap { pgsize: 0, size: 0, data: std::ptr::null_mut() },
    };
    let get = sys::VFIO_IOMMU_DIRTY_PAGES_FLAG_GET_BITMAP;
    let argsz = size_of::<Dirty>() as u32;
    let flags = flags & !get;
    dirty_pages(container, &mut Dirty { argsz, flags, range })
}

/// VFIO_IOMMU_DIRTY_PAGES: sets a bit of `bitmap` for each page that may have been written, and begins anew.
pub(crate) fn dirty(
    container: BorrowedFd<'_>,
    iova: u64,
    size: u64,
    pgsize: u64,
    bitmap: &mut [u64],
) -> io::Result<()> {
    iommufd::room(size, pgsize, bitmap)?;
    let bitmap = sys::vfio_bitmap {
        pgsize,
        size: std::mem::size_of_val(bitmap) as u64,
        data: bitmap.as_mut_ptr(),
    };
    let mut dirty = Dirty {
        argsz: size_of::<Dirty>() as u32,
        flags: sys::VFIO_IOMMU_DIRTY_PAGES_FLAG_GET_BITMAP,
        range: sys::vfio_iommu_type1_dirty_bitmap_get { iova, size, bitmap },
    };
    dirty_pages(container, &mut dirty)
}

/// VFIO_GROUP_GET_STATUS: the flags.
pub(crate) fn group_status(group: BorrowedFd<'_>) -> io::Result<u32> {
    let argsz = size_of::<sys::vfio_group_status>() as u32;
    let mut status = sys::vfio_group_status { argsz, flags: 0 };
    with(group, &GROUP_GET_STATUS, &mut status)?;
    Ok(status.flags)
}

/// VFIO_DEVICE_FEATURE: sets the token of a physical function's virtual ones.
pub(crate) fn set_vf_token(device: BorrowedFd<'_>, token: &[u8; 16]) -> io::Result<()> {
    let flags = sys::VFIO_DEVICE_FEATURE_SET | sys::VFIO_DEVICE_FEATURE_PCI_VF_TOKEN;
    let argsz = size_of::<VfTokenFeature>() as u32;
    with(device, &SET_VF_TOKEN, &mut VfTokenFeature { argsz, flags, token: *token })?;
    Ok(())
}

/// `vfio_device_feature` with a `vfio_device_feature_dma_buf` of one range behind it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct DmaBufFeature {
    argsz: u32,
    flags: u32,
    region: u32,
    open_flags: u32,
    dma_buf_flags: u32,
    ranges: u32,
    range: sys::vfio_region_dma_range,
}

/// VFIO_DEVICE_FEATURE: `length` bytes of a region from `offset` on, as a dma-buf.
pub(crate) fn dma_buf(
    device: BorrowedFd<'_>,
    region: u32,
    offset: u64,
    length: u64,
) -> io::Result<OwnedFd> {
    let mut value = DmaBufFeature {
        argsz: size_of::<DmaBufFeature>() as u32,
        flags: sys::VFIO_DEVICE_FEATURE_GET | sys::VFIO_DEVICE_FEATURE_DMA_BUF,
        region,
        open_flags: (OFlags::RDWR | OFlags::CLOEXEC).bits(),
        dma_buf_flags: 0,
        ranges: 1,
        range: sys::vfio_region_dma_range { offset, length },
    };
    // SAFETY: the kernel reads the structure, which has the one range that it names.
    let fd = unsafe { call(device, 117, std::ptr::from_mut(&mut value).cast()) }?;
    // SAFETY: the call has returned a new descriptor, which no other code has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// VFIO_GROUP_SET_CONTAINER.
pub(crate) fn set_container(group: BorrowedFd<'_>, container: BorrowedFd<'_>) -> io::Result<()> {
    let mut container: RawFd = container.as_raw_fd();
    // SAFETY: the kernel reads a descriptor there.
    unsafe { call(group, 104, std::ptr::from_mut(&mut container).cast()) }?;
    Ok(())
}

/// VFIO_GROUP_GET_DEVICE_FD.
pub(crate) fn device_of(group: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads a string with its end there, and writes nothing.
    let fd = unsafe { call(group, 106, name.as_ptr().cast_mut().cast()) }?;
    // SAFETY: the call has returned a new descriptor, which no other code has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Masking of an interrupt.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LineMask {
    Masked,
    Unmasked,
}

/// VFIO_DEVICE_SET_IRQS: masks the first interrupt of `index`, or ends that.
pub(crate) fn mask(device: BorrowedFd<'_>, index: u32, mask: LineMask) -> io::Result<()> {
    let action = match mask {
        LineMask::Masked => sys::VFIO_IRQ_SET_ACTION_MASK,
        LineMask::Unmasked => sys::VFIO_IRQ_SET_ACTION_UNMASK,
    };
    let flags = sys::VFIO_IRQ_SET_DATA_NONE | action;
    let mut words = [20, flags, index, 0, 1];
    // SAFETY: the first word has the number of bytes, and the kernel reads no more.
    unsafe { call(device, 110, words.as_mut_ptr().cast()) }?;
    Ok(())
}

/// VFIO_DEVICE_SET_IRQS: has the interrupts of `index` from 0 on signal these eventfds; with none, none
/// of them signals any.
pub(crate) fn signal_by(
    device: BorrowedFd<'_>,
    index: u32,
    eventfds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let data = match eventfds {
        [] => sys::VFIO_IRQ_SET_DATA_NONE,
        _ => sys::VFIO_IRQ_SET_DATA_EVENTFD,
    };
    let count = u32::try_from(eventfds.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let bytes = count.checked_add(5).and_then(|words| words.checked_mul(4));
    let bytes = bytes.ok_or(io::ErrorKind::InvalidInput)?;
    let flags = data | sys::VFIO_IRQ_SET_ACTION_TRIGGER;
    let fds = eventfds.iter().map(|fd| fd.as_raw_fd() as u32);
    let mut words: Vec<u32> = [bytes, flags, index, 0, count].into_iter().chain(fds).collect();
    // SAFETY: the first word has the number of bytes, and the kernel reads no more.
    unsafe { call(device, 110, words.as_mut_ptr().cast()) }?;
    Ok(())
}
