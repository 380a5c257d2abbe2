//! An SMMUv3 behind its registers.
//!
//! Arm System Memory Management Unit Architecture Specification, SMMU architecture version 3 (IHI
//! 0070), issue F: sections 3.5 (queues), 4 (commands), 5 (structures), 6 (registers) and 7
//! (events), of the non-secure programming interface. Written from the architecture, with no code
//! of the driver's.
//!
//! Modelled: linear and two-level stream tables and context-descriptor tables; stage 1, stage 2 and
//! both; substreams; caches of stream table entries and context descriptors that keep their entries
//! until told, malformed and absent ones included; translation and walk caches tagged by ASID
//! and VMID, global entries apart; range and level fields of TLB invalidations as hints that are
//! taken at their word; conflicts between a cached block and the pages that replaced it in a table;
//! event queue with overflow; queue errors; stalls of both stages, retried or ended by command; page
//! requests with overflow, and their responses; devices that keep translations (ATS); enhanced command queues, and
//! those of NVIDIA's CMDQV.
//!
//! Not modelled: secure and realm interfaces, EL2 and EL3 streams, the end of all stalls of a stream
//! (its command is accepted and counted), split-stage ATS, interrupts by message other than those of
//! syncs (lines are counted), hardware update of access flags, the upper half of addresses (TTB1).

mod beside;
mod commands;
mod entries;
mod events;
mod queue;
mod registers;
mod requests;
mod setup;
#[cfg(test)]
mod tests;
mod translate;
mod unit;

pub use beside::{Beside, CMDQV};
pub use commands::CommandKind;
pub use registers::SmmuSignals;
pub use setup::{EventRecord, Pages, SmmuCounts, SmmuIdentification, SmmuSetup};

use portolan::addr::{Iova, Pasid, StreamId};

use crate::asking::Transfer;
use crate::inject::{DmaFault, Piece};
use crate::machine::Machine;
use crate::unit::Unit;
use portolan_sim::decode::AccessKind;
use portolan_sim::request::Request;
pub use unit::SmmuV3;

/// An SMMUv3 over the memory of a machine.
pub type SmmuRegisters = Unit<SmmuV3>;

/// A machine with one, for the tests of a driver.
pub type SmmuMachine = Machine<SmmuV3>;

type State = crate::unit::DesignState<SmmuV3>;

impl SmmuRegisters {
    /// Every event so far, recorded or lost, oldest first.
    pub fn events(&self) -> Vec<EventRecord> {
        self.lock().own.events.clone()
    }

    /// Records an event that no access of a device led to, as if one had.
    pub fn record(&self, record: EventRecord) {
        self.append(&mut self.lock(), record);
    }

    /// Number of times that the unit has raised each of its lines.
    pub fn signals(&self) -> SmmuSignals {
        self.lock().own.registers.signals
    }

    /// Raises global errors, by their bits in `GERROR`, unless one of them is active.
    pub fn raise(&self, errors: u32) {
        self.lock().own.registers.raise(errors);
    }

    /// Lets a device access `bytes` bytes at `iova`: where each piece of it goes. An access that
    /// stalls is left waiting, and told as a fault without a code.
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
        match self.transfer(stream, pasid, iova, access, bytes) {
            Transfer::Done(pieces) => Ok(pieces),
            Transfer::Refused(fault) => Err(fault),
            Transfer::Stalled(_) => {
                let of = Request::new(stream, pasid, iova, access);
                Err(DmaFault::of(of, 0))
            }
        }
    }
}
