//! The SMMU of a Tegra's memory controller behind its registers.
//!
//! Tegra X1 Technical Reference Manual, chapters 17.5 (SMMU) and 18 (memory controller), and public headers on the
//! older chips. Written with no code of the driver's.
//!
//! Modelled: the flush registers of both caches; a translation buffer (TLB) whose lines hold the
//! four pages of 16 KiB, absent ones included, tagged by address space; a page-table cache (PTC)
//! that holds lines of table memory as they were read, from any table; address spaces with
//! their directories; clients that are translated or not, swgroup by swgroup; walks that do not
//! snoop; the one fault record.
//!
//! Not modelled: sections of 4 MiB beyond being decoded, security, interrupts, the GPU's choice by
//! an address bit, arbitration, bandwidth; more clients than a few for each chip.

mod caches;
mod registers;
mod setup;
#[cfg(test)]
mod tests;
mod translate;
mod unit;

pub use setup::{RegisterUse, TegraChip, TegraClient, TegraCounts, TegraSetup};
pub use unit::TegraSmmu;

use portolan::addr::{Iova, StreamId};

use crate::inject::{DmaFault, Piece};
use crate::machine::Machine;
use crate::unit::Unit;
use portolan_sim::decode::AccessKind;
use portolan_sim::request::Request;

/// A Tegra SMMU over the memory of a machine. It has no queue, so nothing can be stuck in one or be refused.
pub type TegraRegisters = Unit<TegraSmmu>;

/// A machine with a Tegra SMMU.
pub type TegraMachine = Machine<TegraSmmu>;

type State = crate::unit::DesignState<TegraSmmu>;

impl TegraRegisters {
    /// Lines in the translation buffer and in the page-table cache.
    pub fn cached(&self) -> [usize; 2] {
        let own = &self.lock().own;
        [own.tlb.len(), own.ptc.len()]
    }

    /// Lets a client access `bytes` bytes at `iova`: where each piece of it goes.
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
        self.reach(Request::new(stream, None, iova, access), bytes)
    }
}
