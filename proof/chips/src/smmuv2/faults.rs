//! Records of accesses that do not go through, and the end of those that wait.

use super::{SmmuV2Registers, State};
use crate::inject::DmaFault;
use portolan_sim::decode::AccessKind;
use portolan_sim::request::Request;

pub(super) const MULTI: u32 = 1 << 31;
pub(super) const STALLED: u32 = SmmuV2Registers::STALLED;

/// Bits of a bank's fault status.
pub(super) mod context {
    pub const TRANSLATION: u32 = 1 << 1;
    pub const ACCESS_FLAG: u32 = 1 << 2;
    pub const PERMISSION: u32 = 1 << 3;
    pub const EXTERNAL: u32 = 1 << 4;
    pub const CONFLICT: u32 = 1 << 5;
    pub const ADDRESS_SIZE: u32 = 1 << 7;
    pub const FORMAT: u32 = 1 << 8;
}

/// Bits of the global fault status.
pub(super) mod global {
    pub const INVALID_CONTEXT: u32 = 1 << 0;
    pub const UNIDENTIFIED: u32 = 1 << 1;
    pub const CONFLICT: u32 = 1 << 2;
    pub const NO_BANK: u32 = 1 << 3;
}

/// A record of a fault as registers hold it, of a context bank or of the whole unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRegisters {
    /// `FSR`, or `sGFSR`: nothing is recorded at zero.
    pub status: u32,
    /// `FAR`, or `sGFAR`: the address that the device used.
    pub address: u64,
    /// `FSYNR0`, or `sGFSYNR0`: a bit for writes.
    pub syndrome: u32,
    /// `CBFRSYNRA`, or `sGFSYNR1`: the device's stream number.
    pub stream: u32,
}

/// Reason why an access is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmmuV2Refusal {
    /// Recorded globally.
    Global(u32),
    /// Recorded by a context bank.
    Context { bank: usize, code: u32 },
    /// Under a fault that is recorded already.
    Silent,
}

/// Records a refusal and returns the fault for the device.
pub(super) fn refuse(state: &mut State, refusal: SmmuV2Refusal, of: Request) -> DmaFault {
    state.counts.faults += 1;
    let (code, held, written, stalls) = match refusal {
        SmmuV2Refusal::Silent => return DmaFault::of(of, 0),
        SmmuV2Refusal::Global(code) => (code, &mut state.own.global.fault, 1 << 1, None),
        SmmuV2Refusal::Context { bank, code } => {
            let Some(bank) = state.own.banks.get_mut(bank) else {
                return DmaFault::of(of, code);
            };
            let stalls = bank.stalls() && bank.stalled.is_none();
            let stalls = stalls.then_some(&mut bank.stalled);
            (code, &mut bank.fault, 1 << 4, stalls)
        }
    };
    if held.status == 0 {
        *held = FaultRegisters {
            status: code,
            address: of.iova.get(),
            syndrome: match of.access {
                AccessKind::Read => 0,
                AccessKind::Write => written,
            },
            stream: of.stream.get() & 0xffff,
        };
    } else {
        held.status |= MULTI;
    }
    if let Some(stalled) = stalls {
        held.status |= STALLED;
        *stalled = Some(of);
        return DmaFault::of(of, STALLED);
    }
    DmaFault::of(of, code)
}

impl SmmuV2Registers {
    /// Takes the answer to a bank's stalled access: 0 tries it again.
    pub(super) fn resume(&self, state: &mut State, bank: usize, answer: u32) {
        state.own.banks[bank].fault.status &= !STALLED;
        let Some(of) = state.own.banks[bank].stalled.take() else {
            state.asking.note_stray();
            return;
        };
        let result = match answer & 1 {
            0 => self.go_through(state, of, 4),
            _ => {
                state.own.resumed.push(Err(DmaFault::of(of, 0)));
                return;
            }
        };
        match result {
            Ok(pieces) => state.own.resumed.extend(pieces.into_iter().map(Ok)),
            Err((of, refusal)) => {
                let fault = refuse(state, refusal, of);
                // One that stalls again is not answered yet.
                if fault.code != STALLED {
                    state.own.resumed.push(Err(fault));
                }
            }
        }
    }
}
