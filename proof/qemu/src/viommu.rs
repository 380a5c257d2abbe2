//! The virtio transport of a virtio-iommu device of QEMU's, as the driver in `portolan-hw` wants it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::dma::{Direction, DmaArea};
use crate::machine::Machine;
use crate::pci::{Pci, PciError};
use crate::ram::GuestRam;
use crate::virtio_pci::{self, LiveQueue, VirtioError, VirtioPci};
use crate::virtqueue::Segment;
use portolan::addr::{PageSize, PhysAddr};
use portolan::iommu::{Awaited, IommuError};
use portolan::platform::{Mmio, Nanos, OutOfTableMemory};
use portolan_hw::virtio::Transport;
use portolan_spec::virtio::{DRIVER_FEATURES, FAULT_BYTES};
use thiserror::Error;

const LIMIT: Duration = Duration::from_secs(5);
/// Buffers for faults, and their distance.
const BUFFERS: u16 = 16;
const STRIDE: u64 = 32;
/// Offset of an answer in its page.
const ANSWER: u64 = 2048;

#[derive(Debug)]
struct Requests {
    queue: LiveQueue,
    page: PhysAddr,
}

#[derive(Debug)]
struct Faults {
    queue: LiveQueue,
    page: PhysAddr,
    /// Buffer of each head.
    buffers: Vec<(u16, u64)>,
}

/// Reason why the device was not started.
#[derive(Debug, Error)]
pub enum TransportError {
    /// The device is not on the bus.
    #[error(transparent)]
    Pci(#[from] PciError),
    /// The device does not behave like a virtio device.
    #[error(transparent)]
    Virtio(#[from] VirtioError),
    /// No guest memory is left for its queues.
    #[error(transparent)]
    Memory(#[from] OutOfTableMemory),
}

/// A running device.
#[derive(Debug)]
pub struct PciTransport {
    virtio: VirtioPci,
    ram: GuestRam,
    features: u64,
    requests: Mutex<Requests>,
    faults: Mutex<Faults>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn buffer(page: PhysAddr, offset: u64, bytes: usize, direction: Direction) -> Segment {
    // Offsets and lengths stay within a page.
    let at = PhysAddr::new(page.get().saturating_add(offset));
    Segment {
        iova: DmaArea::identity(at).iova,
        bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        direction,
    }
}

fn failed(error: VirtioError) -> IommuError {
    match error {
        VirtioError::TimedOut { limit } => IommuError::TimedOut {
            awaited: Awaited::Completion,
            waited: Nanos::new(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)),
        },
        _ => IommuError::Gone,
    }
}

impl PciTransport {
    /// Finds the device on the scanned bus and starts it.
    ///
    /// # Errors
    /// [`TransportError`].
    pub fn start(machine: &Machine, pci: &Pci) -> Result<Self, TransportError> {
        let function = pci.first(virtio_pci::VENDOR, virtio_pci::IOMMU)?;
        let virtio = VirtioPci::new(function, LIMIT)?;
        let features = virtio.negotiate(0, DRIVER_FEATURES)?;
        let page = || machine.tables().alloc(PageSize::SIZE_4K);
        let queue = |index| -> Result<LiveQueue, TransportError> {
            let area = DmaArea::identity(page()?);
            Ok(virtio.queue(index, machine.ram(), area)?)
        };
        let requests = Requests { queue: queue(0)?, page: page()? };
        let mut faults = Faults { queue: queue(1)?, page: page()?, buffers: Vec::new() };
        virtio.driver_ok()?;
        for index in 0..u64::from(BUFFERS) {
            faults.offer(index * STRIDE);
        }
        virtio.notify(&faults.queue);
        Ok(Self {
            virtio,
            ram: machine.ram().clone(),
            features,
            requests: Mutex::new(requests),
            faults: Mutex::new(faults),
        })
    }
}

impl Faults {
    fn offer(&mut self, offset: u64) {
        let one = buffer(self.page, offset, FAULT_BYTES, Direction::FromDevice);
        // A ring that is broken takes no buffer, and the next look at it says so.
        if let Ok(head) = self.queue.ring.push(&[one]) {
            self.buffers.push((head, offset));
        }
    }
}

impl Transport for PciTransport {
    fn features(&self) -> u64 {
        self.features
    }

    fn config32(&self, offset: usize) -> Result<u32, IommuError> {
        Ok(self.virtio.config().read32(offset))
    }

    fn config64(&self, offset: usize) -> Result<u64, IommuError> {
        Ok(self.virtio.config().read64(offset))
    }

    fn set_config8(&self, offset: usize, value: u8) -> Result<u8, IommuError> {
        self.virtio.config().write8(offset, value);
        Ok(self.virtio.config().read8(offset))
    }

    fn request(&self, request: &[u8], answer: &mut [u8]) -> Result<(), IommuError> {
        let mut requests = lock(&self.requests);
        let page = requests.page;
        let to = buffer(page, 0, request.len(), Direction::ToDevice);
        let from = buffer(page, ANSWER, answer.len(), Direction::FromDevice);
        let at = page.checked_add(ANSWER).ok_or(IommuError::Gone)?;
        self.ram.write(page, request).map_err(|_| IommuError::Gone)?;
        self.ram.write(at, answer).map_err(|_| IommuError::Gone)?;
        self.virtio.request(&mut requests.queue, &[to, from]).map_err(failed)?;
        self.ram.read(at, answer).map_err(|_| IommuError::Gone)
    }

    fn next_fault(&self) -> Result<Option<([u8; FAULT_BYTES], usize)>, IommuError> {
        let mut faults = lock(&self.faults);
        let used = faults.queue.ring.pop().map_err(|_| IommuError::Gone)?;
        let Some(used) = used else { return Ok(None) };
        let index = faults.buffers.iter().position(|(head, _)| *head == used.head);
        let (_, offset) = faults.buffers.swap_remove(index.ok_or(IommuError::Gone)?);
        let mut bytes = [0; FAULT_BYTES];
        let at = faults.page.checked_add(offset).ok_or(IommuError::Gone)?;
        self.ram.read(at, &mut bytes).map_err(|_| IommuError::Gone)?;
        faults.offer(offset);
        self.virtio.notify(&faults.queue);
        Ok(Some((bytes, used.written as usize)))
    }
}
