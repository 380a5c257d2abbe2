//! A VT-d unit behind its registers.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1: chapters 3 (structures),
//! 5 (interrupts), 6 (caching and invalidation), 7 (faults), 9 (entries) and 11 (registers). Written from the
//! specification, with no code of the driver's.
//!
//! Modelled: legacy and scalable mode; second stage, first stage, nested and pass-through; context cache and PASID
//! cache that keep their entries until told; translation and walk caches tagged by domain and PASID; caching mode, in
//! which absence is cached as well, except that of a first stage; register-based and queued invalidation, descriptors
//! of 128 and 256 bits; accessed and dirty bits of leaves (first stage: always; second: where the PASID entry says
//! so), with caches that keep a leaf as clean or as written; the write buffer; primary fault recording with overflow;
//! queue errors; in scalable mode page requests with overflow, and their responses, and devices that keep translations.
//!
//! The unit's view of memory is the memory's affair ([`crate::memory`]); the bits that tell a driver of it (`ECAP.C`,
//! `CAP.RWBF`) are the identification's. The queue and the page walks of a PASID entry that asks for it snoop always.
//!
//! Interrupt messages are a call of their own (`VtdRegisters::message`): remapped format, with a cache of the entries
//! that it read; compatibility format.
//!
//! The unit's own messages, for faults and page requests, are kept (`VtdRegisters::take_messages`).
//!
//! Not modelled: the message for completions, posted interrupts, messages of I/O APICs, device TLBs in
//! legacy mode (their invalidations are accepted and counted), advanced fault logging, protected memory regions,
//! accessed bits above the leaves, execute and privileged requests.

mod descriptors;
mod entries;
mod faults;
mod forget;
mod interrupts;
mod queue;
mod registers;
mod requests;
mod setup;
#[cfg(test)]
mod tests;
mod translate;
mod unit;

pub use descriptors::DescriptorKind;
pub use interrupts::{Addressing, Arrived, Delivered};
pub use setup::{VtdCounts, VtdFault, VtdIdentification, VtdSetup};
pub use unit::Vtd;

use portolan::addr::{Iova, Pasid, StreamId};

use crate::inject::{DmaFault, Piece};
use crate::machine::Machine;
use crate::unit::Unit;
use portolan_sim::decode::AccessKind;
use portolan_sim::request::Request;

/// A VT-d unit over the memory of a machine.
///
/// The code of a refused command ([`crate::inject::RegisterFaults::refuse`]) is the bits of the fault
/// status register that it sets: `IQE` (bit 4), `ICE` (bit 5) or `ITE` (bit 6).
pub type VtdRegisters = Unit<Vtd>;

/// A machine with one, for the tests of a driver.
pub type VtdMachine = Machine<Vtd>;

type State = crate::unit::DesignState<Vtd>;

impl VtdRegisters {
    /// Every fault so far, recorded or lost, oldest first.
    pub fn faults(&self) -> Vec<VtdFault> {
        self.lock().own.records.clone()
    }

    /// Lets the device with source identifier `stream` (its low 16 bits) access `bytes` bytes at
    /// `iova`: where each piece of it goes.
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
        let of = Request::new(stream, pasid, iova, access);
        self.reach(of, bytes)
    }
}
