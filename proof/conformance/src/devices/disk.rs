//! A disk that the process has.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use portolan::addr::{Iova, StreamId};
use portolan_linux::memory::HostMemory;
use portolan_linux::vfio::Bar;
use portolan_qemu::nvme::{PAGE, RingMemory};

use crate::conformance::{Disk, SharedPage, Transfer};
use crate::nvme::Running;

/// Blocks that scenarios use.
const BLOCKS: u64 = 2048;

#[derive(Clone)]
struct DiskPage {
    memory: HostMemory,
    page: SharedPage,
}

impl RingMemory for DiskPage {
    fn iova(&self) -> Iova {
        self.page.iova
    }

    fn words(&self) -> &[AtomicU64] {
        self.memory.words64(self.page.pa, PAGE as usize / 8).unwrap_or_default()
    }
}

/// An NVMe controller, and the contents of its disk: QEMU does not show them, so the controller reads them,
/// through memory that stays mapped.
pub(super) struct HostNvmeDisk {
    registers: Arc<Bar>,
    stream: StreamId,
    memory: HostMemory,
    running: Mutex<Option<Running<Arc<Bar>, DiskPage>>>,
}

impl HostNvmeDisk {
    pub(super) fn new(bar: Bar, stream: StreamId, memory: HostMemory) -> Self {
        Self { registers: Arc::new(bar), stream, memory, running: Mutex::default() }
    }

    fn with<T>(
        &self,
        work: impl FnOnce(&mut Running<Arc<Bar>, DiskPage>) -> Result<T, String>,
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
        let page = |page| DiskPage { memory: self.memory.clone(), page };
        let started = Running::start(self.registers.clone(), pages.map(page))?;
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
