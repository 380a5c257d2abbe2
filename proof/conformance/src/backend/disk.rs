//! QEMU's NVMe controller as the disk of the scenarios.

use std::sync::{Mutex, PoisonError};

use portolan::addr::{Iova, StreamId};
use portolan_qemu::dma::DmaArea;
use portolan_qemu::machine::Machine;
use portolan_qemu::mmio::Registers;
use portolan_qemu::nvme::{BLOCK, GuestPage, ID};
use portolan_qemu::pci::{Function, Pci, PciError};

use crate::conformance::{Disk, SharedPage, Transfer};
use crate::nvme::Running;

/// Bytes of the disk.
pub const BYTES: u64 = 1 << 20;
/// An NVMe controller of a running machine.
pub struct NvmeDisk {
    function: Function,
    running: Mutex<Option<Running<Registers, GuestPage>>>,
}

impl NvmeDisk {
    /// The first on the bus.
    ///
    /// # Errors
    /// If there is none.
    pub fn new(pci: &Pci) -> Result<Self, PciError> {
        Ok(Self { function: pci.first(ID.0, ID.1)?.clone(), running: Mutex::default() })
    }

    /// The disk, in the machine that it is in.
    pub fn in_machine<'a>(&'a self, machine: &'a Machine) -> NvmeInMachine<'a> {
        NvmeInMachine { disk: self, machine }
    }
}

/// See [`NvmeDisk::in_machine`].
pub struct NvmeInMachine<'a> {
    disk: &'a NvmeDisk,
    machine: &'a Machine,
}

impl Disk for NvmeInMachine<'_> {
    fn stream(&self) -> StreamId {
        self.disk.function.stream()
    }

    fn blocks(&self) -> u64 {
        BYTES / BLOCK
    }

    fn start(&self, pages: [SharedPage; 5]) -> Result<(), String> {
        let function = &self.disk.function;
        let registers = function.bar(0).map_err(|error| error.to_string())?;
        function.enable().map_err(|error| error.to_string())?;
        let ram = self.machine.ram();
        let page = |page: SharedPage| GuestPage {
            ram: ram.clone(),
            area: DmaArea::new(page.pa, page.iova),
        };
        let started = Running::start(registers, pages.map(page))?;
        let running = &self.disk.running;
        *running.lock().unwrap_or_else(PoisonError::into_inner) = Some(started);
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
        let running = &self.disk.running;
        let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
        let running = running.as_mut().ok_or("the disk is not running")?;
        running.transfer(way, first, blocks, pages, offset)
    }

    fn read(&self, first: u64, into: &mut [u8]) {
        // Unreadable blocks keep their old contents, which the scenario notices.
        let disk = self.machine.disks().first();
        let _ = disk.map(|disk| disk.read(first * BLOCK, into));
    }

    fn write(&self, first: u64, from: &[u8]) {
        let disk = self.machine.disks().first();
        let _ = disk.map(|disk| disk.write(first * BLOCK, from));
    }
}
