//! An SMMUv2 of the MMU-500 class behind its registers.
//!
//! Arm System Memory Management Unit Architecture Specification, SMMU architecture version 2.0 (IHI
//! 0062, issue D.c), non-secure programming interface. Written from the architecture, with no code
//! of the driver's.
//!
//! Modelled: stream matching and indexing, with the match of a stream cached until the translations of its context
//! are invalidated; context banks with AArch64 tables of stage 1 or stage 2; a micro TLB for each 1024 streams, the
//! main TLB and walk caches, tagged by ASID and VMID, global entries apart; invalidations that take effect at the
//! synchronisation behind them (adversarial) or at once (realistic); synchronisations that take their time, or for
//! ever; global and context faults, one record each; stalled accesses; firmware that bends writes.
//!
//! Not modelled: nested stages, AArch32 tables (both end in a fault of format), TTBR1, secure state,
//! hypervisor banks, address translation operations, interrupts.

mod banks;
mod faults;
mod maintenance;
mod registers;
mod setup;
mod space;
#[cfg(test)]
mod tests;
mod translate;
mod unit;

pub use faults::FaultRegisters;
pub use setup::{Firmware, SmmuV2Counts, SmmuV2Identification, SmmuV2Setup};

use portolan::addr::{Iova, StreamId};

use crate::inject::{DmaFault, Piece};
use crate::machine::Machine;
use crate::unit::Unit;
use maintenance::Safe;
use portolan_sim::decode::AccessKind;
use portolan_sim::request::Request;
pub use unit::SmmuV2;

/// An SMMUv2 over the memory of a machine, after reset and after a boot loader's changes to it.
///
/// With [`crate::inject::Drain::Never`] no synchronisation comes to its end; control registers have
/// no acknowledgement that could fail, and no command can be refused.
pub type SmmuV2Registers = Unit<SmmuV2>;

/// A machine with an SMMUv2.
pub type SmmuV2Machine = Machine<SmmuV2>;

type State = crate::unit::DesignState<SmmuV2>;

impl SmmuV2Registers {
    /// The call of the machine's firmware after which invalidations do not wait for real-time
    /// devices any more.
    pub fn turn_off_wait_for_safe(&self) {
        self.lock().own.safe = Safe::Off;
    }

    /// Records a fault in a context bank, by its number, or in the global registers.
    ///
    /// # Panics
    /// If there is no such bank.
    pub fn record(&self, bank: Option<usize>, record: FaultRegisters) {
        let own = &mut self.lock().own;
        match bank {
            Some(bank) => own.banks[bank].fault = record,
            None => own.global.fault = record,
        }
    }

    /// Results of stalled accesses that were answered since the last call.
    pub fn take_resumed(&self) -> Vec<Result<Piece, DmaFault>> {
        std::mem::take(&mut self.lock().own.resumed)
    }

    /// Lets a device access `bytes` bytes at `iova`: where each piece of it goes. An access that
    /// stalls is refused with [`SmmuV2Registers::STALLED`], and goes on when it is answered.
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
        let of = Request::new(stream, None, iova, access);
        if self.lock().is_gone() {
            // Matches of streams are in registers: they are gone as well.
            return Err(DmaFault::of(of, 0));
        }
        self.reach(of, bytes)
    }

    /// Code of an access that waits for an answer.
    pub const STALLED: u32 = 1 << 30;
}
