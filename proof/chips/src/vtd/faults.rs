//! Fault reasons and the fault records: sections 7.1 to 7.3.

use super::{State, VtdFault, VtdRegisters};
use crate::inject::DmaFault;
use portolan_sim::decode::AccessKind;
use portolan_sim::request::Request;

/// The specification's numbers.
pub(super) mod reason {
    pub const ROOT_ABSENT: u8 = 0x01;
    pub const CONTEXT_ABSENT: u8 = 0x02;
    pub const CONTEXT_INVALID: u8 = 0x03;
    pub const BEYOND_WIDTH: u8 = 0x04;
    pub const WRITE: u8 = 0x05;
    pub const READ: u8 = 0x06;
    pub const TABLE_UNREADABLE: u8 = 0x07;
    pub const ROOT_UNREADABLE: u8 = 0x08;
    pub const CONTEXT_UNREADABLE: u8 = 0x09;
    pub const ROOT_RESERVED: u8 = 0x0a;
    pub const CONTEXT_RESERVED: u8 = 0x0b;
    pub const TABLE_RESERVED: u8 = 0x0c;
    pub const REQUEST_BLOCKED: u8 = 0x0d;
    pub const INTERRUPT_RESERVED: u8 = 0x20;
    pub const INTERRUPT_BEYOND: u8 = 0x21;
    pub const INTERRUPT_ABSENT: u8 = 0x22;
    pub const INTERRUPT_UNREADABLE: u8 = 0x23;
    pub const INTERRUPT_ENTRY_RESERVED: u8 = 0x24;
    pub const INTERRUPT_COMPATIBLE: u8 = 0x25;
    pub const INTERRUPT_SOURCE: u8 = 0x26;
    pub const DESCRIPTOR_UNREADABLE: u8 = 0x27;
    pub const SM_ROOT_POINTER: u8 = 0x30;
    pub const SM_ROOT_UNREADABLE: u8 = 0x38;
    pub const SM_ROOT_ABSENT: u8 = 0x39;
    pub const SM_ROOT_RESERVED: u8 = 0x3a;
    pub const SM_CONTEXT_UNREADABLE: u8 = 0x40;
    pub const SM_CONTEXT_ABSENT: u8 = 0x41;
    pub const SM_CONTEXT_RESERVED: u8 = 0x42;
    pub const SM_PASID_DISABLED: u8 = 0x45;
    pub const SM_PASID_TOO_LARGE: u8 = 0x46;
    pub const SM_DIRECTORY_UNREADABLE: u8 = 0x50;
    pub const SM_DIRECTORY_ABSENT: u8 = 0x51;
    pub const SM_PASID_UNREADABLE: u8 = 0x58;
    pub const SM_PASID_ABSENT: u8 = 0x59;
    pub const SM_PASID_RESERVED: u8 = 0x5a;
    pub const SM_PASID_INVALID: u8 = 0x5b;
    pub const FIRST_UNREADABLE: u8 = 0x70;
    pub const FIRST_ABSENT: u8 = 0x71;
    pub const FIRST_RESERVED: u8 = 0x72;
    pub const SECOND_UNREADABLE: u8 = 0x78;
    pub const SECOND_PERMISSION: u8 = 0x79;
    pub const SECOND_RESERVED: u8 = 0x7a;
    pub const NOT_CANONICAL: u8 = 0x80;
    pub const SECOND_BEYOND: u8 = 0x84;
    pub const SM_WRITE: u8 = 0x85;
    pub const SM_READ: u8 = 0x86;
}

/// Recording of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultProcessing {
    Faults,
    Nothing,
}

/// Reason why an access is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VtdRefusal {
    pub reason: u8,
    pub recorded: FaultProcessing,
}

impl VtdRefusal {
    pub(super) fn recorded(reason: u8) -> Self {
        let recorded = FaultProcessing::Faults;
        Self { reason, recorded }
    }
}

/// `FSTS.PFO`: a fault found no room.
pub(super) const OVERFLOW: u32 = 1;
/// Bit 127 of a record.
pub(super) const PENDING: u64 = 1 << 63;

impl VtdRegisters {
    /// Records a refusal and returns the fault for the device.
    pub(super) fn refuse(&self, state: &mut State, refusal: VtdRefusal, of: Request) -> DmaFault {
        state.counts.faults += 1;
        if refusal.recorded == FaultProcessing::Faults {
            let read = match of.access {
                AccessKind::Read => 1 << 62,
                AccessKind::Write => 0,
            };
            // Bit 31 of the upper word says that there is a PASID.
            let pasid = of.pasid;
            let pasid = pasid.map_or(0, |pasid| 1 << 31 | u64::from(pasid.get() & 0xf_ffff) << 40);
            let source = u64::from(of.stream.get() & 0xffff);
            let high = u64::from(refusal.reason) << 32 | read | pasid | source;
            let words = [of.iova.get() & !0xfff, high];
            state.own.records.push(VtdFault { words });
            self.enter(state, words);
        }
        DmaFault::of(of, refusal.reason.into())
    }

    /// Records a fault that no access of a device led to, as if one had.
    pub fn record(&self, fault: VtdFault) {
        self.enter(&mut self.lock(), fault.words);
    }

    pub(super) fn enter(&self, state: &mut State, [low, high]: [u64; 2]) {
        let lost = &mut state.counts.lost_faults;
        let words = [low, high | PENDING];
        state.own.registers.faulted(|registers| *lost += registers.keep(words));
    }
}
