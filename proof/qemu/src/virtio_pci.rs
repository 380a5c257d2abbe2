//! The modern PCI transport of virtio: features, queues, notifications, configuration.
//!
//! Virtual I/O Device 1.2, sections 3.1.1 and 4.1. For virtio-blk here, and for a virtio-iommu
//! driver, whose queue 0 takes requests and whose queue 1 takes buffers for faults. Without
//! interrupts and without the legacy interface.

use std::time::Duration;

use portolan::platform::Mmio;
use portolan_spec::pci::{Capability, id};
use thiserror::Error;

use crate::dma::{DmaArea, poll};
use crate::mmio::Registers;
use crate::pci::{Function, PciError};
use crate::qtest::QtestError;
use crate::ram::GuestRam;
use crate::virtqueue::{QueueError, Segment, Used, Virtqueue};

/// PCI vendor of all virtio devices; the device id is 0x1040 plus the type.
pub const VENDOR: u16 = 0x1af4;
/// PCI device id of virtio-iommu.
pub const IOMMU: u16 = 0x1040 + 23;
/// VIRTIO_F_VERSION_1.
pub const VERSION_1: u64 = 1 << 32;
/// VIRTIO_F_ACCESS_PLATFORM: the device's DMA goes through the IOMMU.
pub const ACCESS_PLATFORM: u64 = 1 << 33;

const COMMON: u8 = 1;
const NOTIFY: u8 = 2;
const DEVICE: u8 = 4;

const DEVICE_FEATURE_SELECT: usize = 0x00;
const DEVICE_FEATURE: usize = 0x04;
const DRIVER_FEATURE_SELECT: usize = 0x08;
const DRIVER_FEATURE: usize = 0x0c;
const STATUS: usize = 0x14;
const QUEUE_SELECT: usize = 0x16;
const QUEUE_SIZE: usize = 0x18;
const QUEUE_ENABLE: usize = 0x1c;
const QUEUE_NOTIFY_OFFSET: usize = 0x1e;
/// Descriptors, available ring, used ring.
const QUEUE_ADDRESSES: [usize; 3] = [0x20, 0x28, 0x30];

const ACKNOWLEDGE: u8 = 1;
const DRIVER: u8 = 2;
const DRIVER_OK: u8 = 4;
const FEATURES_OK: u8 = 8;
const NEEDS_RESET: u8 = 64;

/// Reason why the device cannot be driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum VirtioError {
    /// QEMU did not answer.
    #[error(transparent)]
    Qtest(#[from] QtestError),
    /// Not a modern virtio device.
    #[error(transparent)]
    Pci(#[from] PciError),
    /// A queue is wrong.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The device lacks a feature that is needed, or refused the choice.
    #[error("features {wanted:#x} wanted, {offered:#x} offered")]
    Features {
        /// Features that the driver needs.
        wanted: u64,
        /// Features that the device offers.
        offered: u64,
    },
    /// The device has no such queue.
    #[error("no queue {index}")]
    NoQueue {
        /// Its number.
        index: u16,
    },
    /// The device did not finish in time.
    #[error("nothing within {limit:?}")]
    TimedOut {
        /// The time it had.
        limit: Duration,
    },
    /// The device set DEVICE_NEEDS_RESET.
    #[error("the device needs a reset (status {status:#x})")]
    NeedsReset {
        /// Its status.
        status: u8,
    },
}

/// A queue that the device knows, and the means to notify it.
#[derive(Debug)]
pub struct LiveQueue {
    /// Its rings.
    pub ring: Virtqueue,
    index: u16,
    notify: usize,
}

/// A device behind the modern transport.
#[derive(Clone, Debug)]
pub struct VirtioPci {
    function: Function,
    common: Registers,
    notify: Registers,
    notify_multiplier: u32,
    device: Registers,
    limit: Duration,
}

impl VirtioPci {
    /// Finds the parts of the transport and resets the device; its DMA gets enabled.
    ///
    /// `limit` is the longest wait for a reset or an answer.
    ///
    /// # Errors
    /// [`VirtioError::Pci`] if a part is missing.
    pub fn new(function: &Function, limit: Duration) -> Result<Self, VirtioError> {
        let (mut common, mut notify, mut device) = (None, None, None);
        let mut notify_multiplier = 0;
        for Capability { id, at, head } in function.capabilities()? {
            if id != id::VENDOR {
                continue;
            }
            let kind = (head >> 24) as u8;
            let slot = match kind {
                COMMON => &mut common,
                NOTIFY => &mut notify,
                DEVICE => &mut device,
                _ => continue,
            };
            // The first of a kind is the one to use.
            if slot.is_some() {
                continue;
            }
            let bar = (function.read32(at + 4)? & 0xff) as usize;
            let offset = function.read32(at + 8)?.into();
            let bytes = function.read32(at + 12)?.into();
            *slot = Some(function.bar(bar)?.part(offset, bytes));
            if kind == NOTIFY {
                notify_multiplier = function.read32(at + 16)?;
            }
        }
        let absent = PciError::Absent { what: "virtio capability", at: function.id() };
        let virtio = Self {
            function: function.clone(),
            common: common.ok_or(absent)?,
            notify: notify.ok_or(absent)?,
            notify_multiplier,
            device: device.ok_or(absent)?,
            limit,
        };
        function.enable()?;
        virtio.reset()?;
        Ok(virtio)
    }

    /// Its place on the bus.
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// The device's own configuration.
    pub fn config(&self) -> &Registers {
        &self.device
    }

    fn status(&self) -> Result<u8, QtestError> {
        self.common.qtest().read8(self.common.base() + STATUS as u64)
    }

    /// Resets the device; it forgets features and queues.
    ///
    /// # Errors
    /// [`VirtioError::TimedOut`].
    pub fn reset(&self) -> Result<(), VirtioError> {
        self.common.write8(STATUS, 0);
        let limit = self.limit;
        let done = poll(limit, || Ok::<_, VirtioError>((self.status()? == 0).then_some(())))?;
        done.ok_or(VirtioError::TimedOut { limit })
    }

    /// Features that the device offers.
    pub fn features(&self) -> u64 {
        let half = |select| {
            self.common.write32(DEVICE_FEATURE_SELECT, select);
            u64::from(self.common.read32(DEVICE_FEATURE))
        };
        half(0) | half(1) << 32
    }

    /// Accepts `needed`, and the offered ones of `optional`; returns the accepted features.
    ///
    /// # Errors
    /// [`VirtioError::Features`] if something needed is not offered, or the device refuses.
    pub fn negotiate(&self, needed: u64, optional: u64) -> Result<u64, VirtioError> {
        let (wanted, offered) = (needed | VERSION_1, self.features());
        if wanted & !offered != 0 {
            return Err(VirtioError::Features { wanted, offered });
        }
        self.common.write8(STATUS, ACKNOWLEDGE | DRIVER);
        let chosen = wanted | optional & offered;
        for (select, half) in [(0, chosen as u32), (1, (chosen >> 32) as u32)] {
            self.common.write32(DRIVER_FEATURE_SELECT, select);
            self.common.write32(DRIVER_FEATURE, half);
        }
        self.common.write8(STATUS, ACKNOWLEDGE | DRIVER | FEATURES_OK);
        if self.status()? & FEATURES_OK == 0 {
            return Err(VirtioError::Features { wanted: chosen, offered });
        }
        Ok(chosen)
    }

    /// Sets up queue `index` in the page at `area`; after the features, before
    /// [`VirtioPci::driver_ok`].
    ///
    /// # Errors
    /// [`VirtioError::NoQueue`], [`VirtioError::Queue`].
    pub fn queue(
        &self,
        index: u16,
        ram: &GuestRam,
        area: DmaArea,
    ) -> Result<LiveQueue, VirtioError> {
        self.common.write16(QUEUE_SELECT, index);
        let most = self.common.read16(QUEUE_SIZE);
        if most == 0 || most == u16::MAX {
            return Err(VirtioError::NoQueue { index });
        }
        let ring = Virtqueue::new(ram, area, most)?;
        self.common.write16(QUEUE_SIZE, ring.entries());
        for (register, address) in QUEUE_ADDRESSES.into_iter().zip(ring.addresses()) {
            // The registers are pairs of 32 bits each.
            self.common.write32(register, address as u32);
            self.common.write32(register + 4, (address >> 32) as u32);
        }
        let offset = u64::from(self.common.read16(QUEUE_NOTIFY_OFFSET));
        let notify = offset.saturating_mul(self.notify_multiplier.into());
        let notify = usize::try_from(notify).unwrap_or(usize::MAX);
        self.common.write16(QUEUE_ENABLE, 1);
        Ok(LiveQueue { ring, index, notify })
    }

    /// Tells the device that all is set up.
    ///
    /// # Errors
    /// [`VirtioError::NeedsReset`].
    pub fn driver_ok(&self) -> Result<(), VirtioError> {
        self.common.write8(STATUS, ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK);
        self.alive()
    }

    /// Checks that the device goes on without a reset.
    ///
    /// # Errors
    /// [`VirtioError::NeedsReset`].
    pub fn alive(&self) -> Result<(), VirtioError> {
        match self.status()? {
            status if status & NEEDS_RESET != 0 => Err(VirtioError::NeedsReset { status }),
            _ => Ok(()),
        }
    }

    /// Tells the device to look at a queue.
    pub fn notify(&self, queue: &LiveQueue) {
        self.notify.write16(queue.notify, queue.index);
    }

    /// Offers one request, notifies, and waits until it is finished.
    ///
    /// # Errors
    /// [`VirtioError::TimedOut`], [`VirtioError::NeedsReset`], [`VirtioError::Queue`].
    pub fn request(
        &self,
        queue: &mut LiveQueue,
        segments: &[Segment],
    ) -> Result<Used, VirtioError> {
        let head = queue.ring.push(segments)?;
        self.notify(queue);
        let limit = self.limit;
        let done = poll(limit, || {
            // An older request that was given up may end only now.
            while let Some(used) = queue.ring.pop()? {
                if used.head == head {
                    return Ok(Some(used));
                }
            }
            self.alive()?;
            Ok::<_, VirtioError>(None)
        })?;
        done.ok_or(VirtioError::TimedOut { limit })
    }
}
