//! A device that this process has.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use portolan::addr::StreamId;
use portolan::iommu::IommuError;
use rustix::io::{Errno, pread, pwrite};
use vfio_bindings::bindings::vfio as sys;

use super::bar::Bar;
use super::combined::CombinedBar;
use super::error::{Step, VfioError, errno};
use super::interrupts::{InterruptKind, Interrupts, Line, Removal};
use super::name::{DeviceName, VfToken};
use super::sysfs;
use crate::chain::{areas, capability, long, word};
use crate::dmabuf::DmaBuf;
use crate::files::{FileMemoryError, FilePart};
use crate::sys::{self as call, Window};

/// Bytes of `vfio_device_info`, `vfio_irq_info` and `vfio_region_info`, as far as they are used.
const DEVICE_INFO: usize = 16;
const IRQ_INFO: usize = 16;
const REGION_INFO: usize = 32;

const COMMAND: u64 = 4;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_BUS_MASTER: u16 = 1 << 2;

/// A device, opened: its registers and interrupts, and the configuration space of a PCI function.
///
/// *Context.* Task, all methods.
///
/// *Drop.* Once its [`Bar`]s and [`Interrupts`] are gone as well, the kernel resets the device and keeps it
/// from memory.
#[derive(Debug)]
pub struct VfioDevice {
    fd: Arc<OwnedFd>,
    name: DeviceName,
    flags: u32,
    /// None of a device that is no PCI function.
    config: Option<Region>,
}

/// Description of a region by the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Region {
    offset: u64,
    bytes: u64,
    /// The parts that may be mapped.
    areas: Vec<(u64, u64)>,
}

pub(super) fn region(info: &[u8], index: u32) -> Result<Region, VfioError> {
    let (flags, first) = (word(info, 4)?, word(info, 12)?);
    let (bytes, offset) = (long(info, 16)?, long(info, 24)?);
    if bytes == 0 {
        return Err(VfioError::NoRegion { index });
    }
    let mapped = flags & sys::VFIO_REGION_INFO_FLAG_MMAP != 0;
    let first = match flags & sys::VFIO_REGION_INFO_FLAG_CAPS {
        0 => 0,
        _ => first,
    };
    let sparse = capability(info, first, sys::VFIO_REGION_INFO_CAP_SPARSE_MMAP)?;
    let areas = match (mapped, sparse) {
        (false, _) => Vec::new(),
        (true, Some(body)) => areas(body, bytes)?,
        (true, None) => vec![(0, bytes)],
    };
    Ok(Region { offset, bytes, areas })
}

/// For a process that goes on with it ([`Candidate::bound`](super::Candidate::bound)).
impl AsFd for VfioDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (*self.fd).as_fd()
    }
}

impl VfioDevice {
    /// Takes `fd` over: memory space and bus mastering of a PCI function are on.
    pub(super) fn new(fd: Arc<OwnedFd>, name: DeviceName) -> Result<Self, VfioError> {
        let info = call::ask(fd.as_fd(), call::DEVICE_GET_INFO, DEVICE_INFO, &[]);
        let info = info.map_err(VfioError::of(Step::Info))?;
        let flags = word(&info, 4)?;
        if flags & sys::VFIO_DEVICE_FLAGS_PCI == 0 {
            return Ok(Self { flags, fd, name, config: None });
        }
        let config = Some(Self::region(&fd, sys::VFIO_PCI_CONFIG_REGION_INDEX)?);
        let device = Self { flags, fd, name, config };
        let command = device.config_read16(COMMAND)?;
        device.config_write16(COMMAND, command | COMMAND_MEMORY | COMMAND_BUS_MASTER)?;
        Ok(device)
    }

    fn region(fd: &OwnedFd, index: u32) -> Result<Region, VfioError> {
        let info = call::ask(fd.as_fd(), call::DEVICE_GET_REGION_INFO, REGION_INFO, &[0, index]);
        match info {
            Ok(info) => region(&info, index),
            Err(error) if error.raw_os_error() == Some(22) => Err(VfioError::NoRegion { index }),
            Err(error) => Err(VfioError::of(Step::Info)(error)),
        }
    }

    /// Its name.
    pub fn name(&self) -> DeviceName {
        self.name
    }

    /// The stream by which its unit knows it.
    pub fn stream(&self) -> StreamId {
        self.name.stream()
    }

    /// The registers of BAR `number`, 0 to 5.
    ///
    /// # Errors
    /// [`VfioError::NoRegion`] if it has none; otherwise the kernel's error.
    pub fn bar(&self, number: u8) -> Result<Bar, VfioError> {
        self.registers(self.bar_index(number)?)
    }

    fn bar_index(&self, number: u8) -> Result<u32, VfioError> {
        let index = u32::from(number);
        match index > sys::VFIO_PCI_BAR5_REGION_INDEX || self.config.is_none() {
            true => Err(VfioError::NoRegion { index }),
            false => Ok(index),
        }
    }

    /// The registers of region `index` of a platform device, as its firmware's tables list them. Of a PCI function it
    /// is that of [`VfioDevice::bar`].
    ///
    /// # Errors
    /// As [`VfioDevice::bar`].
    pub fn registers(&self, index: u32) -> Result<Bar, VfioError> {
        let Region { offset, bytes, areas } = Self::region(&self.fd, index)?;
        let outside = |at| VfioError::OutOfBounds { offset: at, bytes, length: bytes };
        let window = |(at, size): (u64, u64)| {
            let (start, size) = (offset.checked_add(at), usize::try_from(size));
            let (Some(start), Ok(size)) = (start, size) else {
                return Err(outside(at));
            };
            let window = Window::new(self.fd.as_fd(), start, size);
            Ok((at, window.map_err(VfioError::of(Step::Registers))?))
        };
        let windows: Result<_, VfioError> = areas.into_iter().map(window).collect();
        Ok(Bar { device: self.fd.clone(), offset, bytes, windows: windows? })
    }

    /// The registers of BAR `number` as memory whose writes are combined: for bursts of stores, such as descriptors
    /// that are written to a card. It needs the rights of root. [`VfioDevice::bar`] reads and writes it in order; a
    /// kernel with `CONFIG_IO_STRICT_DEVMEM` gives out a BAR in one of the two ways, that of the first call.
    ///
    /// # Errors
    /// [`VfioError::NoRegion`] if it has none; [`VfioError::NotCombined`] if it is not prefetchable; otherwise the
    /// kernel's error.
    pub fn bar_combined(&self, number: u8) -> Result<CombinedBar, VfioError> {
        let Region { bytes, .. } = Self::region(&self.fd, self.bar_index(number)?)?;
        CombinedBar::open(&self.fd, &sysfs::combined(self.name, number), bytes)
    }

    /// A part of BAR `number`, whole pages, as memory that other devices reach (peer to peer), over iommufd and from
    /// Linux 6.19 on. A reset of this device, the end of its memory space, and the drop of the last value that has its
    /// file take it back ([`DmaBuf`]).
    ///
    /// ```no_run
    /// # use portolan::dma::{Bidirectional, Device};
    /// # use portolan_linux::memory::{FilePart, Process};
    /// # use portolan_linux::vfio::VfioDevice;
    /// # fn share(card: &VfioDevice, disk: &Device<Process>) -> Result<(), Box<dyn std::error::Error>> {
    /// // The disk writes to the card's memory.
    /// let memory = card.bar_dma_buf(2, FilePart { offset: 0, bytes: 1 << 20 })?;
    /// let mapped = disk.map(memory, Bidirectional).map_err(|failed| failed.error)?;
    /// println!("the disk finds it at {}", mapped.iova());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`VfioError::NoRegion`] if it has none; [`VfioError::Iommu`] with `Unsupported` from a kernel that gives none;
    /// [`VfioError::Gone`] if its memory space is off; otherwise the kernel's error, for parts that are not inside.
    pub fn bar_dma_buf(&self, number: u8, part: FilePart) -> Result<DmaBuf, VfioError> {
        let index = self.bar_index(number)?;
        let FilePart { offset, bytes } = part;
        let file = call::dma_buf(self.fd.as_fd(), index, offset, bytes);
        let file = file.map_err(|error| match errno(&error) {
            Some(Errno::NOTTY | Errno::OPNOTSUPP) => IommuError::Unsupported.into(),
            _ => VfioError::of(Step::DmaBuf)(error),
        })?;
        let buffer = DmaBuf::new(file, FilePart { offset: 0, bytes });
        let step = Step::DmaBuf;
        buffer.map_err(|failed| match failed.error {
            FileMemoryError::System { code } => VfioError::System { step, code },
            _ => VfioError::System { step, code: Errno::INVAL.raw_os_error() },
        })
    }

    /// Offset of `bytes` bytes of configuration space at `offset` in the device's file.
    fn config(&self, offset: u64, bytes: u64) -> Result<u64, VfioError> {
        let none = VfioError::NoRegion { index: sys::VFIO_PCI_CONFIG_REGION_INDEX };
        let config = self.config.as_ref().ok_or(none)?;
        let (length, at) = (config.bytes, config.offset.checked_add(offset));
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= length);
        at.filter(|_| inside).ok_or(VfioError::OutOfBounds { offset, bytes, length })
    }

    /// Reads two bytes of configuration space.
    ///
    /// # Errors
    /// [`VfioError::OutOfBounds`]; [`VfioError::NoRegion`] of a device that is no PCI function; otherwise the kernel's
    /// error.
    pub fn config_read16(&self, offset: u64) -> Result<u16, VfioError> {
        let mut bytes = [0; 2];
        self.config_read(offset, &mut bytes)?;
        Ok(u16::from_le_bytes(bytes))
    }

    /// Writes two bytes of configuration space. Some of it the kernel keeps to itself: BARs and
    /// message-signalled interrupts are written and change nothing.
    ///
    /// # Errors
    /// As [`VfioDevice::config_read16`].
    pub fn config_write16(&self, offset: u64, value: u16) -> Result<(), VfioError> {
        let at = self.config(offset, 2)?;
        let written = pwrite(self.fd.as_fd(), &value.to_le_bytes(), at);
        match written.map_err(|error| VfioError::of(Step::Config)(error.into()))? {
            2 => Ok(()),
            _ => Err(VfioError::Gone),
        }
    }

    /// Reads configuration space.
    ///
    /// # Errors
    /// As [`VfioDevice::config_read16`].
    pub fn config_read(&self, offset: u64, into: &mut [u8]) -> Result<(), VfioError> {
        let at = self.config(offset, into.len() as u64)?;
        let read = pread(self.fd.as_fd(), &mut *into, at);
        match read.map_err(|error| VfioError::of(Step::Config)(error.into()))? {
            all if all == into.len() => Ok(()),
            _ => Err(VfioError::Gone),
        }
    }

    /// Number of interrupts of a kind that the device has.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn interrupt_count(&self, kind: InterruptKind) -> Result<u32, VfioError> {
        match kind.is_pci() == self.config.is_some() {
            true => self.count_of(kind.index(), sys::VFIO_IRQ_INFO_EVENTFD),
            false => Ok(0),
        }
    }

    /// Number of the interrupts of `index` that have all of `wanted`.
    fn count_of(&self, index: u32, wanted: u32) -> Result<u32, VfioError> {
        let info = call::ask(self.fd.as_fd(), call::DEVICE_GET_IRQ_INFO, IRQ_INFO, &[0, index]);
        let info = match info {
            Ok(info) => info,
            Err(error) if error.raw_os_error() == Some(22) => return Ok(0),
            Err(error) => return Err(VfioError::of(Step::Interrupts)(error)),
        };
        match word(&info, 4)? & wanted == wanted {
            false => Ok(0),
            true => Ok(word(&info, 12)?),
        }
    }

    /// Has the device signal its first `count` interrupts. One kind is on at a time.
    ///
    /// # Errors
    /// [`VfioError::NoInterrupts`] if it has fewer; otherwise the kernel's error.
    pub fn interrupts(&self, kind: InterruptKind, wanted: u32) -> Result<Interrupts, VfioError> {
        let there = self.interrupt_count(kind)?;
        self.signalled(kind.index(), wanted, there)
    }

    /// Has the device signal its interrupt pin (INTx).
    ///
    /// # Errors
    /// [`VfioError::NoInterrupts`] if it has none; otherwise the kernel's error.
    pub fn intx(&self) -> Result<Line, VfioError> {
        match self.config {
            Some(_) => self.level(sys::VFIO_PCI_INTX_IRQ_INDEX),
            None => Err(VfioError::NoInterrupts { wanted: 1, there: 0 }),
        }
    }

    /// Has a platform device signal its interrupt of that number, which is a level.
    ///
    /// # Errors
    /// [`VfioError::NoInterrupts`] if it has none of that number, or that is an edge; otherwise the kernel's error.
    pub fn line(&self, number: u32) -> Result<Line, VfioError> {
        match self.config {
            Some(_) => Err(VfioError::NoInterrupts { wanted: 1, there: 0 }),
            None => self.level(number),
        }
    }

    fn level(&self, index: u32) -> Result<Line, VfioError> {
        let level = sys::VFIO_IRQ_INFO_MASKABLE | sys::VFIO_IRQ_INFO_AUTOMASKED;
        let there = self.count_of(index, level | sys::VFIO_IRQ_INFO_EVENTFD)?;
        Ok(Line { asked: self.signalled(index, 1, there)? })
    }

    fn signalled(&self, index: u32, wanted: u32, there: u32) -> Result<Interrupts, VfioError> {
        if wanted == 0 || wanted > there {
            return Err(VfioError::NoInterrupts { wanted, there });
        }
        Interrupts::new(self.fd.clone(), index, wanted)
    }

    /// Has the kernel say when it wants the device back.
    ///
    /// # Errors
    /// [`VfioError::NoInterrupts`] if it never says so; otherwise its error.
    pub fn removal(&self) -> Result<Removal, VfioError> {
        let index = sys::VFIO_PCI_REQ_IRQ_INDEX;
        let there = match self.config {
            Some(_) => self.count_of(index, sys::VFIO_IRQ_INFO_EVENTFD)?,
            None => 0,
        };
        let asked = self.signalled(index, 1, there)?;
        Ok(Removal { asked })
    }

    /// Sets the token that users of its virtual functions have to name from now on, where it is a physical function
    /// with virtual ones.
    ///
    /// # Errors
    /// [`VfioError::System`] of [`Step::Token`] if it is none.
    pub fn set_vf_token(&self, token: &VfToken) -> Result<(), VfioError> {
        call::set_vf_token(self.fd.as_fd(), token.bytes()).map_err(VfioError::of(Step::Token))
    }

    /// Resets the function. Its work ends; its registers are as after power-on, bus mastering and
    /// interrupts as they were.
    ///
    /// # Errors
    /// [`VfioError::NoReset`] if the function cannot be reset by itself; otherwise the kernel's error.
    pub fn reset(&self) -> Result<(), VfioError> {
        if self.flags & sys::VFIO_DEVICE_FLAGS_RESET == 0 {
            return Err(VfioError::NoReset);
        }
        let reset = call::plain(self.fd.as_fd(), call::DEVICE_RESET, 0);
        reset.map(drop).map_err(VfioError::of(Step::Reset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::InfoError;

    fn info(flags: u32, first: u32, bytes: u64, more: &[u32]) -> Vec<u8> {
        let (low, high) = (bytes as u32, (bytes >> 32) as u32);
        let words = [32 + 4 * more.len() as u32, flags, 2, first, low, high, 0, 2 << 8];
        words.iter().chain(more).flat_map(|word| word.to_ne_bytes()).collect()
    }

    const ALL: u32 = 7;

    #[test]
    fn a_region_is_mapped_as_far_as_the_kernel_lets_it_be() {
        let whole = region(&info(ALL, 0, 0x4000, &[]), 2).unwrap();
        let offset = 2 << 40;
        assert_eq!((whole.offset, whole.bytes, whole.areas), (offset, 0x4000, vec![(0, 0x4000)]));
        assert!(region(&info(3, 0, 0x4000, &[]), 2).unwrap().areas.is_empty());
        let sparse = [1 | 1 << 16, 0, 2, 0, 0, 0, 0x1000, 0, 0x3000, 0, 0x1000, 0];
        let areas = region(&info(ALL | 8, 32, 0x4000, &sparse), 2).unwrap().areas;
        assert_eq!(areas, [(0, 0x1000), (0x3000, 0x1000)]);
    }

    #[test]
    fn regions_that_make_no_sense_are_refused() {
        let none = VfioError::NoRegion { index: 2 };
        assert_eq!(region(&info(0, 0, 0, &[]), 2), Err(none));
        let past = [1 | 1 << 16, 0, 1, 0, 0x3000, 0, 0x2000, 0];
        let (offset, bytes) = (0x3000, 0x2000);
        let area = InfoError::Area { offset, bytes };
        assert_eq!(region(&info(ALL | 8, 32, 0x4000, &past), 2), Err(area.into()));
        let cut = region(&info(ALL | 8, 0x1000, 0x4000, &[]), 2);
        assert!(matches!(cut, Err(VfioError::Info(InfoError::Cut { .. }))));
        assert!(region(&info(ALL, 0, 0x4000, &[])[..24], 2).is_err());
    }
}
