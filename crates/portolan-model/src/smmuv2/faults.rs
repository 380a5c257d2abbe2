//! What is recorded of accesses that do not go through, and what becomes of those that wait.

use portolan::addr::{Iova, StreamId};

use super::banks::StalledAccess;
use super::{SmmuV2Registers, State};
use crate::decode::AccessKind;
use crate::inject::{DmaFault, Piece};

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
pub(super) enum Refusal {
    /// With a global record.
    Global(u32),
    /// With the record of a bank.
    Context { bank: usize, code: u32 },
    /// Under a fault that is recorded already.
    Silent,
}

impl SmmuV2Registers {
    /// Records a refusal and returns what the device is told.
    pub(super) fn refuse(
        &self,
        state: &mut State,
        refusal: Refusal,
        stream: StreamId,
        iova: Iova,
        access: AccessKind,
    ) -> DmaFault {
        state.counts.faults += 1;
        let write = match access {
            AccessKind::Read => 0,
            AccessKind::Write => 1,
        };
        let code = match refusal {
            Refusal::Silent => 0,
            Refusal::Global(code) => {
                let global = &mut state.global;
                if global.gfsr == 0 {
                    global.gfsr = code;
                    global.gfar = iova.get();
                    global.gfsynr0 = write << 1;
                    global.gfsynr1 = stream.get() & 0xffff;
                } else {
                    global.gfsr |= MULTI;
                }
                code
            }
            Refusal::Context { bank, code } => {
                let Some(bank) = state.banks.get_mut(bank) else {
                    return Self::told(stream, iova, access, code);
                };
                let stalls = bank.stalls() && bank.stalled.is_none();
                if bank.fsr == 0 {
                    bank.fsr = code;
                    bank.far = iova.get();
                    bank.fsynr0 = write << 4;
                    bank.frsynra = stream.get() & 0xffff;
                } else {
                    bank.fsr |= MULTI;
                }
                if stalls {
                    bank.fsr |= STALLED;
                    bank.stalled = Some(StalledAccess {
                        stream,
                        iova,
                        access,
                    });
                    return Self::told(stream, iova, access, STALLED);
                }
                code
            }
        };
        Self::told(stream, iova, access, code)
    }

    pub(super) fn told(stream: StreamId, iova: Iova, access: AccessKind, code: u32) -> DmaFault {
        DmaFault {
            stream,
            pasid: None,
            iova,
            access,
            code,
        }
    }

    /// Takes the answer to a bank's stalled access: 0 tries it again.
    pub(super) fn resume(&self, state: &mut State, bank: usize, answer: u32) {
        state.banks[bank].fsr &= !STALLED;
        let Some(access) = state.banks[bank].stalled.take() else {
            return;
        };
        let StalledAccess {
            stream,
            iova,
            access,
        } = access;
        let result = match answer & 1 {
            0 => self.access(state, stream, iova, access),
            _ => Err(Self::told(stream, iova, access, 0)),
        };
        let bytes = 4;
        let result = result.map(|pa| Piece { iova, pa, bytes });
        // One that stalls again is not answered yet.
        if !matches!(result, Err(DmaFault { code: STALLED, .. })) {
            state.resumed.push(result);
        }
    }
}
