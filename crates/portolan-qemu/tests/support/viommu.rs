//! The virtio transport of a virtio-iommu device of QEMU's, as the driver wants it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use portolan::addr::{PageSize, PhysAddr};
use portolan::platform::{Mmio, Nanos};
use portolan::unit::{Awaited, UnitError};
use portolan_hw::virtio::Transport;
use portolan_hw::virtio::spec::{DRIVER_FEATURES, FAULT_BYTES};
use portolan_qemu::dma::{Direction, DmaArea};
use portolan_qemu::machine::Machine;
use portolan_qemu::pci::Pci;
use portolan_qemu::ram::GuestRam;
use portolan_qemu::virtio_pci::{self, LiveQueue, VirtioError, VirtioPci};
use portolan_qemu::virtqueue::Segment;

const LIMIT: Duration = Duration::from_secs(5);
/// Buffers for faults, and their distance.
const BUFFERS: u16 = 16;
const STRIDE: u64 = 32;
/// Where in its page an answer begins.
const ANSWER: u64 = 2048;

struct Requests {
    queue: LiveQueue,
    page: PhysAddr,
}

struct Faults {
    queue: LiveQueue,
    page: PhysAddr,
    /// Buffer of each head.
    buffers: Vec<(u16, u64)>,
}

/// A running device.
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
    let at = page.checked_add(offset).unwrap();
    Segment {
        iova: DmaArea::identity(at).iova,
        bytes: u32::try_from(bytes).unwrap(),
        direction,
    }
}

fn failed(error: VirtioError) -> UnitError {
    match error {
        VirtioError::TimedOut { limit } => UnitError::TimedOut {
            awaited: Awaited::Completion,
            waited: Nanos::new(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)),
        },
        _ => UnitError::Gone,
    }
}

impl PciTransport {
    /// Finds the device on the scanned bus and starts it.
    pub fn start(machine: &Machine, pci: &Pci) -> Self {
        let function = pci.first(virtio_pci::VENDOR, virtio_pci::IOMMU).unwrap();
        let virtio = VirtioPci::new(function, LIMIT).unwrap();
        let features = virtio.negotiate(0, DRIVER_FEATURES).unwrap();
        let page = || machine.tables().alloc(PageSize::SIZE_4K).unwrap();
        let queue = |index| {
            let area = DmaArea::identity(page());
            virtio.queue(index, machine.ram(), area).unwrap()
        };
        let requests = Requests {
            queue: queue(0),
            page: page(),
        };
        let mut faults = Faults {
            queue: queue(1),
            page: page(),
            buffers: Vec::new(),
        };
        virtio.driver_ok().unwrap();
        for index in 0..u64::from(BUFFERS) {
            faults.offer(index * STRIDE);
        }
        virtio.notify(&faults.queue);
        Self {
            virtio,
            ram: machine.ram().clone(),
            features,
            requests: Mutex::new(requests),
            faults: Mutex::new(faults),
        }
    }
}

impl Faults {
    fn offer(&mut self, offset: u64) {
        let one = buffer(self.page, offset, FAULT_BYTES, Direction::FromDevice);
        let head = self.queue.ring.push(&[one]).unwrap();
        self.buffers.push((head, offset));
    }
}

impl Transport for PciTransport {
    fn features(&self) -> u64 {
        self.features
    }

    fn config32(&self, offset: usize) -> Result<u32, UnitError> {
        Ok(self.virtio.config().read32(offset))
    }

    fn config64(&self, offset: usize) -> Result<u64, UnitError> {
        Ok(self.virtio.config().read64(offset))
    }

    fn set_config8(&self, offset: usize, value: u8) -> Result<u8, UnitError> {
        self.virtio.config().write8(offset, value);
        Ok(self.virtio.config().read8(offset))
    }

    fn request(&self, request: &[u8], answer: &mut [u8]) -> Result<(), UnitError> {
        let mut requests = lock(&self.requests);
        let page = requests.page;
        let to = buffer(page, 0, request.len(), Direction::ToDevice);
        let from = buffer(page, ANSWER, answer.len(), Direction::FromDevice);
        let at = page.checked_add(ANSWER).ok_or(UnitError::Gone)?;
        self.ram.write(page, request).map_err(|_| UnitError::Gone)?;
        self.ram.write(at, answer).map_err(|_| UnitError::Gone)?;
        self.virtio
            .request(&mut requests.queue, &[to, from])
            .map_err(failed)?;
        self.ram.read(at, answer).map_err(|_| UnitError::Gone)
    }

    fn next_fault(&self) -> Result<Option<([u8; FAULT_BYTES], usize)>, UnitError> {
        let mut faults = lock(&self.faults);
        let used = faults.queue.ring.pop().map_err(|_| UnitError::Gone)?;
        let Some(used) = used else { return Ok(None) };
        let index = faults
            .buffers
            .iter()
            .position(|(head, _)| *head == used.head);
        let (_, offset) = faults.buffers.swap_remove(index.ok_or(UnitError::Gone)?);
        let mut bytes = [0; FAULT_BYTES];
        let at = faults.page.checked_add(offset).ok_or(UnitError::Gone)?;
        self.ram.read(at, &mut bytes).map_err(|_| UnitError::Gone)?;
        faults.offer(offset);
        self.virtio.notify(&faults.queue);
        Ok(Some((bytes, used.written as usize)))
    }
}
