//! What is recorded of accesses that do not go through, and what becomes of those that wait.

use super::{SmmuV2Registers, State};
use crate::asking::Request;
use crate::decode::AccessKind;
use crate::inject::DmaFault;

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

/// Why an access does not go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// With a global record.
    Global(u32),
    /// With the record of a bank.
    Context { bank: usize, code: u32 },
    /// Under a fault that is recorded already.
    Silent,
}

/// Records a refusal and returns what the device is told.
pub(super) fn refuse(state: &mut State, refusal: Refusal, of: Request) -> DmaFault {
    state.counts.faults += 1;
    let write = match of.access {
        AccessKind::Read => 0,
        AccessKind::Write => 1,
    };
    let code = match refusal {
        Refusal::Silent => 0,
        Refusal::Global(code) => {
            let global = &mut state.own.global;
            if global.gfsr == 0 {
                global.gfsr = code;
                global.gfar = of.iova.get();
                global.gfsynr0 = write << 1;
                global.gfsynr1 = of.stream.get() & 0xffff;
            } else {
                global.gfsr |= MULTI;
            }
            code
        }
        Refusal::Context { bank, code } => {
            let Some(bank) = state.own.banks.get_mut(bank) else {
                return of.refused(code);
            };
            let stalls = bank.stalls() && bank.stalled.is_none();
            if bank.fsr == 0 {
                bank.fsr = code;
                bank.far = of.iova.get();
                bank.fsynr0 = write << 4;
                bank.frsynra = of.stream.get() & 0xffff;
            } else {
                bank.fsr |= MULTI;
            }
            if stalls {
                bank.fsr |= STALLED;
                bank.stalled = Some(of);
                return of.refused(STALLED);
            }
            code
        }
    };
    of.refused(code)
}

impl SmmuV2Registers {
    /// Takes the answer to a bank's stalled access: 0 tries it again.
    pub(super) fn resume(&self, state: &mut State, bank: usize, answer: u32) {
        state.own.banks[bank].fsr &= !STALLED;
        let Some(of) = state.own.banks[bank].stalled.take() else {
            return;
        };
        let result = match answer & 1 {
            0 => self.go_through(state, of, 4),
            _ => {
                state.own.resumed.push(Err(of.refused(0)));
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
