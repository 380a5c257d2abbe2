//! QEMU's NVMe controller as a disk: real reads and writes through the IOMMU.
//!
//! The driver is `portolan-bare`'s, over memory that a scenario maps or leaves unmapped. One pair of I/O queues,
//! one command at a time.
//!
//! A command whose DMA is blocked may still complete without error: compare the data. A blocked
//! fetch from a submission queue sets CSTS.CFS, which is reported as [`NvmeError::Fatal`]; a
//! blocked write of a completion shows as [`NvmeError::TimedOut`]. After either
//! [`Nvme::start`] resets the controller.

use std::sync::atomic::AtomicU64;

use portolan::addr::Iova;
use portolan::platform::{Mmio, Nanos};
use portolan_bare::nvme::spec::{Command, Described};
use portolan_bare::nvme::{Access, Controller, Ring};
pub use portolan_bare::nvme::{NvmeError, Operation, RingMemory, spec::PAGE};

use crate::dma::DmaArea;
use crate::mmio::{HostClock, Registers};
use crate::ram::GuestRam;

/// Vendor and device.
pub const ID: (u16, u16) = (0x1b36, 0x0010);
/// Bytes of a block of QEMU's namespace.
pub const BLOCK: u64 = 512;

/// A page of guest RAM.
#[derive(Clone, Debug)]
pub struct GuestPage {
    /// The memory.
    pub ram: GuestRam,
    /// Its place in there, and for the device.
    pub area: DmaArea,
}

impl RingMemory for GuestPage {
    fn iova(&self) -> Iova {
        self.area.iova
    }

    /// None outside of the memory.
    fn words(&self) -> &[AtomicU64] {
        self.ram.words64(self.area.phys, PAGE as usize / 8).unwrap_or_default()
    }
}

/// A running controller: of a machine that is driven over qtest, or by its registers and memory.
#[derive(Debug)]
pub struct Nvme<R = Registers, M = GuestPage> {
    controller: Controller<R, HostClock, M>,
    io: Ring<R, HostClock, M>,
}

impl<R: Mmio + Clone, M: RingMemory> Nvme<R, M> {
    /// Resets the controller behind `registers`, BAR 0, and gives it queues of a page each: admin commands, their
    /// completions, I/O commands, their completions. `limit` is the longest wait for a command.
    ///
    /// # Errors
    /// [`NvmeError`]. The controller is left as it is; starting again resets it.
    pub fn start(registers: R, queues: [M; 4], limit: Nanos) -> Result<Self, NvmeError> {
        let [admin_commands, admin_completions, commands, completions] = queues;
        let access = Access { registers, clock: HostClock::new(), limit };
        let mut controller = Controller::start(access, [admin_commands, admin_completions])?;
        let io = controller.queue(1, [commands, completions], None)?;
        Ok(Self { controller, io })
    }

    /// Lets the device write its 4096 bytes of identification at `data`, the start of a page.
    ///
    /// # Errors
    /// [`NvmeError`].
    pub fn identify(&mut self, data: Iova) -> Result<(), NvmeError> {
        self.controller.execute(&Command::identify(Described::Controller, data)).map(|_| ())
    }

    /// Reads or writes `blocks` blocks of 512 bytes from block `first` of namespace 1. `data` is the first page,
    /// whose address may be anywhere in it, and the second page, or one with the addresses of all but the first.
    ///
    /// # Errors
    /// [`NvmeError::Command`] for blocks past the end; otherwise as said.
    pub fn transfer(
        &mut self,
        operation: Operation,
        first: u64,
        blocks: u32,
        data: [Iova; 2],
    ) -> Result<(), NvmeError> {
        if !(1..=0x1_0000).contains(&blocks) {
            return Err(NvmeError::NoSuchBlocks);
        }
        let data = data.map(Iova::get);
        self.io.execute(&Command::transfer(operation, first, blocks, data)).map(|_| ())
    }
}
