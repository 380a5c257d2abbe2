//! An AMD-Vi unit behind its registers.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10: sections 2.2
//! (device table and page tables), 2.4 (commands), 2.5 (events) and 3.4 (registers). Written from the
//! specification, with no code of the driver's.
//!
//! Modelled: a device table whose entries are kept until told, malformed ones and those that let all pass included;
//! host page tables of three levels and more; guest tables by PASID, over host tables as well; translation and
//! walk caches tagged by domain, and by PASID; absence cached as well where the capability block says so (`NpCache`);
//! commands that take effect at the COMPLETION_WAIT behind them, which later ones may overtake unless it flushes; the
//! exclusion range; the event log with overflow, whose records
//! may come after its tail has moved; commands that stop the unit; devices that keep translations, and may leave an
//! invalidation of them without an answer; page requests and their log, with overflow.
//!
//! Of a page that INVALIDATE_IOMMU_PAGES names in part nothing is dropped. Interrupt messages are
//! a call of their own (`AmdRegisters::message`), with a cache of entries of either form; some are posted to guest
//! virtual APICs, with a log. The unit's interrupts for events and for that log are counted, with their targets. Not
//! modelled: interrupts of other kinds, device TLBs of PASIDs, suppressed events (SE, SA), skipped
//! levels and sizes in between (such entries count as malformed), one, two and six levels, memory that
//! the unit does not snoop.

mod commands;
mod counters;
mod entries;
mod events;
mod guest;
mod interrupts;
mod posted;
mod queue;
mod registers;
mod requests;
mod setup;
#[cfg(test)]
mod tests;
mod translate;
mod unit;

pub use commands::CommandKind;
pub use interrupts::{AmdDelivered, AmdInterrupt};
pub use setup::{AmdCounts, AmdEvent, AmdIdentification, AmdSetup};
pub use unit::AmdVi;

use portolan::addr::{Iova, Pasid, StreamId};

use crate::inject::{DmaFault, Piece};
use crate::machine::Machine;
use crate::unit::Unit;
use portolan_sim::decode::AccessKind;
use portolan_sim::request::Request;

/// An AMD-Vi unit over the memory of a machine.
///
/// The code of a refused command ([`crate::inject::RegisterFaults::refuse`]) is that of the event
/// which is logged of it; with a code of 0 the record stays empty.
pub type AmdRegisters = Unit<AmdVi>;

/// A machine with one, for the tests of a driver.
pub type AmdMachine = Machine<AmdVi>;

type State = crate::unit::DesignState<AmdVi>;

impl AmdRegisters {
    /// Identification of the unit.
    pub fn identification(&self) -> AmdIdentification {
        self.setup.identification
    }

    /// Every event so far, logged or lost, oldest first.
    pub fn events(&self) -> Vec<AmdEvent> {
        self.lock().own.events.clone()
    }

    /// Lets the device with identifier `stream` (its low 16 bits) access `bytes` bytes at `iova`: where
    /// each piece of it goes.
    ///
    /// # Errors
    /// The first [`DmaFault`]; nothing of the transfer counts as done.
    pub fn dma(
        &self,
        stream: StreamId,
        iova: Iova,
        access: AccessKind,
        bytes: u64,
    ) -> Result<Vec<Piece>, DmaFault> {
        self.dma_as(stream, None, iova, access, bytes)
    }

    /// As [`AmdRegisters::dma`], with a PASID or without.
    ///
    /// # Errors
    /// As there.
    pub fn dma_as(
        &self,
        stream: StreamId,
        pasid: Option<Pasid>,
        iova: Iova,
        access: AccessKind,
        bytes: u64,
    ) -> Result<Vec<Piece>, DmaFault> {
        let of = Request::new(stream, pasid, iova, access);
        self.reach(of, bytes)
    }
}
