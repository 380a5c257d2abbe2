//! A disk that the process has.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use portolan::addr::{Iova, PhysAddr, StreamId};
use portolan::platform::Mmio;
use portolan_linux::memory::HostMemory;
use portolan_linux::vfio::Bar;
use portolan_qemu::nvme::QueueMemory;
use portolan_qemu::ram::OutsideRam;

use crate::conformance::{Disk, SharedPage, Transfer};
use crate::nvme::Running;

/// Blocks that scenarios use.
const BLOCKS: u64 = 2048;

/// Registers that outlive a start.
#[derive(Clone)]
struct Registers(Arc<Bar>);

impl Mmio for Registers {
    fn read32(&self, offset: usize) -> u32 {
        self.0.read32(offset)
    }

    fn write32(&self, offset: usize, value: u32) {
        self.0.write32(offset, value);
    }

    fn read64(&self, offset: usize) -> u64 {
        self.0.read64(offset)
    }

    fn write64(&self, offset: usize, value: u64) {
        self.0.write64(offset, value);
    }
}

#[derive(Clone)]
struct DiskMemory(HostMemory);

impl QueueMemory for DiskMemory {
    fn words(&self, at: PhysAddr, count: usize) -> Result<&[AtomicU64], OutsideRam> {
        let words = self.0.words64(at, count);
        words.map_err(|outside| OutsideRam { address: outside.address, bytes: outside.bytes })
    }
}

/// An NVMe controller, and the contents of its disk: QEMU does not show them, so the controller reads them,
/// through memory that stays mapped.
pub(super) struct HostNvmeDisk {
    registers: Registers,
    stream: StreamId,
    memory: DiskMemory,
    running: Mutex<Option<Running<Registers, DiskMemory>>>,
}

impl HostNvmeDisk {
    pub(super) fn new(bar: Bar, stream: StreamId, memory: HostMemory) -> Self {
        Self {
            registers: Registers(Arc::new(bar)),
            stream,
            memory: DiskMemory(memory),
            running: Mutex::default(),
        }
    }

    fn with<T>(
        &self,
        work: impl FnOnce(&mut Running<Registers, DiskMemory>) -> Result<T, String>,
    ) -> Result<T, String> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        work(running.as_mut().ok_or("the disk is not running")?)
    }
}

impl Disk for HostNvmeDisk {
    fn stream(&self) -> StreamId {
        self.stream
    }

    fn blocks(&self) -> u64 {
        BLOCKS
    }

    fn start(&self, pages: [SharedPage; 5]) -> Result<(), String> {
        let started = Running::start(self.registers.clone(), self.memory.clone(), pages)?;
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(started);
        Ok(())
    }

    fn transfer(
        &self,
        way: Transfer,
        first: u64,
        blocks: u32,
        pages: &[Iova],
        offset: u64,
    ) -> Result<(), String> {
        self.with(|running| running.transfer(way, first, blocks, pages, offset))
    }

    fn read(&self, first: u64, into: &mut [u8]) {
        // Unreadable blocks keep their old contents, which the scenario notices.
        let _ = self.with(|running| running.aside(Transfer::Read, first, into));
    }

    fn write(&self, first: u64, from: &[u8]) {
        let mut data = from.to_vec();
        let _ = self.with(|running| running.aside(Transfer::Write, first, &mut data));
    }
}
