//! Context banks: their registers, and the meaning of those.

use portolan::addr::{PageSize, PhysAddr};

use super::SmmuV2Registers;
use super::faults::FaultRegisters;
use super::maintenance::{SmmuV2Invalidation, Sync};
use super::space::Space;
use portolan_sim::decode::TableFormat;
use portolan_sim::request::Request;

/// The registers of one bank, and the operations under way in it.
#[derive(Debug, Default)]
pub(super) struct BankRegisters {
    pub cbar: u32,
    pub cba2r: u32,
    pub sctlr: u32,
    pub actlr: u32,
    pub tcr: u32,
    pub tcr2: u32,
    pub ttbr: [u64; 2],
    pub contextidr: u32,
    pub mair: [u32; 2],
    pub fault: FaultRegisters,
    /// Upper halves of invalidation registers that were written apart.
    pub upper: u32,
    pub pending: Vec<SmmuV2Invalidation>,
    pub sync: Sync,
    /// An access that waits for an answer.
    pub stalled: Option<Request>,
}

/// Treatment of an access by a bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Walks {
    /// Nothing.
    Not,
    /// Translation by tables.
    Table { space: Space, format: TableFormat, root: PhysAddr, level: u8 },
    /// Table walks are disabled for the address.
    Disabled,
    /// The registers request a feature that the unit does not have.
    Malformed,
}

impl BankRegisters {
    /// Tells if translation is on.
    pub fn is_on(&self) -> bool {
        self.sctlr & 1 == 1
    }

    /// Tells if faulting accesses stall.
    pub fn stalls(&self) -> bool {
        self.sctlr >> 7 & 1 == 1
    }

    /// Tells if accesses go on under a fault that is recorded.
    pub fn goes_on(&self) -> bool {
        self.sctlr >> 8 & 1 == 1 || self.fault.status == 0
    }

    /// Address space of its translations.
    pub fn space(&self) -> Space {
        let vmid = (self.cbar & 0xff) as u16;
        if self.cbar >> 16 & 3 == 0 {
            return Space::Two { vmid };
        }
        let asid = (self.ttbr[0] >> 48) as u16;
        let wide = self.tcr2 >> 4 & 1 == 1;
        let asid = if wide { asid } else { asid & 0xff };
        Space::One { vmid, asid }
    }

    /// Treatment of an access.
    pub fn walks(&self, unit: &SmmuV2Registers) -> Walks {
        let id = &unit.setup.identification;
        let kind = self.cbar >> 16 & 3;
        let has = |stage: u32| id.idr[0] >> stage & 1 == 1;
        let there = match kind {
            0 => has(29),
            1 => has(30),
            // Nested, or refused by the second stage.
            _ => false,
        };
        if !there {
            return Walks::Malformed;
        }
        if !self.is_on() {
            return Walks::Not;
        }
        // AArch64 tables only.
        if self.cba2r & 1 == 0 {
            return Walks::Malformed;
        }
        let (granule, bit) = match self.tcr >> 14 & 3 {
            0 => (12, 12),
            1 => (16, 14),
            2 => (14, 13),
            _ => return Walks::Malformed,
        };
        if id.idr[2] >> bit & 1 == 0 {
            return Walks::Malformed;
        }
        let Some(input) = 64u32.checked_sub(self.tcr & 0x3f) else {
            return Walks::Malformed;
        };
        let size = match kind {
            0 => self.tcr >> 16 & 7,
            _ => self.tcr2 & 7,
        };
        let output = [32, 36, 40, 42, 44, 48, 48, 48][size as usize];
        let widest = [32, 36, 40, 42, 44, 48][(id.idr[2] >> 4 & 0xf).min(5) as usize];
        let (page, output) = (PageSize::of_lg2(granule), std::cmp::min(output, widest));
        let format = match kind {
            0 => TableFormat::armv8_stage2(page, input as u8, output),
            _ => TableFormat::armv8_stage1(page, input as u8, output),
        };
        let Ok(format) = format else {
            return Walks::Malformed;
        };
        let level = match kind {
            0 => {
                let begin = (self.tcr >> 6 & 3) as u8;
                let level = if granule == 12 { begin + 1 } else { begin };
                // As many levels as the width asks for; roots of several tables are not here.
                if begin == 3 || level + 1 != format.levels() {
                    return Walks::Malformed;
                }
                level
            }
            _ if self.tcr >> 7 & 1 == 1 => return Walks::Disabled,
            _ => format.levels() - 1,
        };
        let root = PhysAddr::new(self.ttbr[0] & 0x0000_ffff_ffff_fff0);
        let space = self.space();
        Walks::Table { space, format, root, level }
    }
}
