//! QEMU's NVMe controller as the disk of the scenarios.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use portolan::addr::{Iova, PhysAddr, StreamId};
use portolan_qemu::dma::{Direction, DmaArea};
use portolan_qemu::machine::Machine;
use portolan_qemu::nvme::{BLOCK, ID, Nvme, NvmeQueues, Prp};
use portolan_qemu::pci::{Function, Pci, PciError};

use crate::conformance::{Disk, Shared, Transfer};

/// Bytes of the disk.
pub const BYTES: u64 = 1 << 20;
/// How long a command may take.
const LIMIT: Duration = Duration::from_secs(5);

struct Running {
    nvme: Nvme,
    /// Where lists of addresses go.
    list: Shared,
}

/// An NVMe controller of a running machine.
pub struct NvmeDisk {
    function: Function,
    running: Mutex<Option<Running>>,
}

impl NvmeDisk {
    /// The first on the bus.
    ///
    /// # Errors
    /// If there is none.
    pub fn new(pci: &Pci) -> Result<Self, PciError> {
        Ok(Self {
            function: pci.first(ID.0, ID.1)?.clone(),
            running: Mutex::default(),
        })
    }

    /// The disk, in the machine that it is in.
    pub fn in_machine<'a>(&'a self, machine: &'a Machine) -> NvmeInMachine<'a> {
        NvmeInMachine {
            disk: self,
            machine,
        }
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

    fn start(&self, pages: [Shared; 5]) -> Result<(), String> {
        let [queues @ .., list] = pages;
        let [
            admin_submission,
            admin_completion,
            io_submission,
            io_completion,
        ] = queues.map(|page| DmaArea::new(page.pa, page.iova));
        let queues = NvmeQueues {
            admin_submission,
            admin_completion,
            io_submission,
            io_completion,
        };
        let nvme = Nvme::start(&self.disk.function, self.machine.ram(), &queues, LIMIT);
        let nvme = nvme.map_err(|error| format!("starting the disk: {error}"))?;
        let running = &self.disk.running;
        *running.lock().unwrap_or_else(PoisonError::into_inner) = Some(Running { nvme, list });
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
        let Running { nvme, list } = running.as_mut().ok_or("the disk is not running")?;
        let at = |page: Iova| Iova::new(page.get() + offset);
        let data = match pages {
            [] => return Err("no page".to_owned()),
            [one] => Prp::One(at(*one)),
            [one, two] => Prp::Two(at(*one), *two),
            [one, rest @ ..] => {
                for (n, page) in (0..).zip(rest) {
                    let entry = PhysAddr::new(list.pa.get() + 8 * n);
                    let written = self.machine.ram().write64(entry, page.get());
                    written.map_err(|error| error.to_string())?;
                }
                Prp::List(at(*one), list.iova)
            }
        };
        let direction = match way {
            Transfer::Write => Direction::ToDevice,
            Transfer::Read => Direction::FromDevice,
        };
        let done = nvme.transfer(direction, first, blocks, data);
        done.map_err(|error| error.to_string())
    }

    fn read(&self, first: u64, into: &mut [u8]) {
        // What cannot be read stays as it is, which the scenario sees.
        let disk = self.machine.disks().first();
        let _ = disk.map(|disk| disk.read(first * BLOCK, into));
    }

    fn write(&self, first: u64, from: &[u8]) {
        let disk = self.machine.disks().first();
        let _ = disk.map(|disk| disk.write(first * BLOCK, from));
    }
}
