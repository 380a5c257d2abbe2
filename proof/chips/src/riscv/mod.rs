//! A RISC-V IOMMU behind its registers.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0: chapters "Data structures", "In-memory queue
//! interface" and "Memory-mapped register interface", with the extensions for ranges and for entries
//! above the leaves. Written from the specification, with no code of the driver's.
//!
//! Modelled: a device directory of one to three levels, contexts of both formats, and caches of contexts and of
//! directory entries that lead to them; tables of either stage, with caches of translations by their tag and of
//! pointers at tables; commands that take effect at the IOFENCE.C behind them, and, where one is refused, those
//! before it that none has confirmed lost; devices that keep translations, whose answers come only while their
//! context lets them have some, and their page requests with overflow and with the unit's own answers; process
//! directories of one to three levels, with caches of process contexts and of directory entries that lead to them;
//! MSI page tables, whose entries are kept by the second stage's tag, and memory-resident interrupt files; the fault
//! queue with overflow and with memory that is not there; interrupts of that queue by wire or by message, counted;
//! registers that keep only values that the unit supports; changes for which a unit takes its time.
//!
//! Not modelled: a first stage over a second (such contexts count as malformed), global invalidations of devices'
//! translations, memory-resident interrupt files without atomic updates, global translations, tables of 32-bit schemes,
//! big-endian structures, silenced faults (`DTF`), counters of devices' translations, the translation-request
//! interface.

mod commands;
mod contexts;
mod faults;
mod messages;
mod monitor;
mod queue;
mod registers;
mod requests;
mod setup;
#[cfg(test)]
mod tests;
mod translate;
mod unit;

pub use commands::CommandKind;
pub use faults::RiscvFault;
pub use messages::RiscvDelivered;
pub use setup::{RiscvCounts, RiscvIdentification, RiscvSetup};
pub use unit::Riscv;

use portolan::addr::{Iova, Pasid, StreamId};

use crate::inject::{DmaFault, Piece};
use crate::machine::Machine;
use crate::unit::Unit;
use portolan_sim::decode::AccessKind;
use portolan_sim::request::Request;

/// A RISC-V IOMMU over the memory of a machine.
///
/// The code of a refused command ([`crate::inject::RegisterFaults::refuse`]) is the bits of `cqcsr` that
/// the unit sets when it stops at it.
pub type RiscvRegisters = Unit<Riscv>;

/// A machine with one, for the tests of a driver.
pub type RiscvMachine = Machine<Riscv>;

type State = crate::unit::DesignState<Riscv>;

impl RiscvRegisters {
    /// Identification of the unit.
    pub fn identification(&self) -> RiscvIdentification {
        self.setup.identification
    }

    /// Every fault so far, recorded or lost, oldest first.
    pub fn faults(&self) -> Vec<RiscvFault> {
        self.lock().own.faults.clone()
    }

    /// Lets the device with identifier `stream` access `bytes` bytes at `iova`, in the address space
    /// `pasid` if it names one: where each piece of it goes.
    ///
    /// # Errors
    /// The first [`DmaFault`]; nothing of the transfer counts as done.
    pub fn dma(
        &self,
        stream: StreamId,
        pasid: Option<Pasid>,
        iova: Iova,
        access: AccessKind,
        bytes: u64,
    ) -> Result<Vec<Piece>, DmaFault> {
        let mut state = self.lock();
        state.counts.happened(monitor::event::UNTRANSLATED, stream.get());
        drop(state);
        let of = Request::new(stream, pasid, iova, access);
        self.reach(of, bytes)
    }
}
