//! The register file.

use std::collections::BTreeMap;

use portolan::addr::{Iova, IovaRange, PageSize};
use portolan::platform::Mmio;

use super::caches::{Cleaned, Flush, forget};
use super::{RegisterUse, State, TegraRegisters};
use crate::inject::{Drain, Violation};
use portolan_sim::iommu::Temper;

/// Enables of clients, 32 in each.
pub(super) const ENABLES: [usize; 5] = [0x228, 0x22c, 0x230, 0x234, 0xb98];
/// Clients whose enables software cannot change: the GPU's, and the PTC itself.
const READ_ONLY: [u32; 5] = [1, 0, 0x0300_0000, 0, 0x0300];

/// The contents of the registers.
#[derive(Debug)]
pub(super) struct Registers {
    pub intstatus: u32,
    pub intmask: u32,
    pub err_status: u32,
    pub err_adr: u32,
    pub config: u32,
    pub tlb_config: u32,
    pub ptc_config: u32,
    pub ptb_asid: u32,
    pub ptc_flush_hi: u32,
    pub directories: [u32; 128],
    pub enables: [u32; 5],
    /// Registers of swgroups, by offset.
    pub asids: BTreeMap<usize, u32>,
}

impl Default for Registers {
    fn default() -> Self {
        Self {
            intstatus: 0,
            intmask: 0,
            err_status: 0,
            err_adr: 0,
            config: 0,
            tlb_config: 0,
            ptc_config: 0,
            ptb_asid: 0,
            ptc_flush_hi: 0,
            directories: [0; 128],
            enables: [0; 5],
            asids: BTreeMap::new(),
        }
    }
}

fn is_swgroup(offset: usize) -> bool {
    matches!(offset, 0x238..=0x29c | 0xa94..=0xad4)
}

impl Registers {
    fn read(&self, offset: usize) -> Option<u32> {
        Some(match offset {
            0x00 => self.intstatus,
            0x04 => self.intmask,
            0x08 => self.err_status,
            0x0c => self.err_adr,
            0x10 => self.config,
            0x14 => self.tlb_config,
            0x18 => self.ptc_config,
            0x1c => self.ptb_asid,
            0x20 => *self.directories.get(self.ptb_asid as usize)?,
            0x30 | 0x34 => 0,
            0x9b8 => self.ptc_flush_hi,
            _ if is_swgroup(offset) => self.asids.get(&offset).copied().unwrap_or(0),
            _ => {
                let n = ENABLES.iter().position(|at| *at == offset)?;
                self.enables[n]
            }
        })
    }
}

impl TegraRegisters {
    fn write(&self, state: &mut State, offset: usize, value: u32) {
        let asids = self.setup.chip.asids();
        let enabled = state.own.registers.config & 1 != 0;
        let registers = &mut state.own.registers;
        let used = match offset {
            0x00 => {
                registers.intstatus &= !value;
                Some(RegisterUse::Intstatus)
            }
            0x04 => {
                registers.intmask = value;
                None
            }
            0x10 => {
                self.write_config(state, value);
                Some(RegisterUse::Config)
            }
            0x14 | 0x18 if enabled => {
                state.violations.push(Violation::WrittenInUse { offset });
                None
            }
            0x14 => {
                registers.tlb_config = value;
                Some(RegisterUse::Config)
            }
            0x18 => {
                registers.ptc_config = value;
                Some(RegisterUse::Config)
            }
            0x1c if value < asids => {
                registers.ptb_asid = value;
                Some(RegisterUse::PtbAsid)
            }
            0x20 if value & 0x1fc0_0000 == 0 => {
                registers.directories[registers.ptb_asid as usize % 128] = value;
                Some(RegisterUse::PtbData)
            }
            0x30 => self.write_tlb_flush(state, value),
            0x34 => self.write_ptc_flush(state, value),
            0x9b8 if self.setup.chip.memory_lg2() > 32 && value < 4 => {
                registers.ptc_flush_hi = value;
                Some(RegisterUse::PtcFlushHi)
            }
            _ if is_swgroup(offset) && value & 0x7fff_ffff < asids => {
                registers.asids.insert(offset, value);
                Some(RegisterUse::SwgroupAsid)
            }
            _ => match ENABLES.iter().position(|at| *at == offset) {
                Some(n) => {
                    registers.enables[n] = value & !READ_ONLY[n];
                    Some(RegisterUse::TranslationEnable)
                }
                None => {
                    state.violations.push(Violation::BadAccess { offset });
                    None
                }
            },
        };
        if let Some(used) = used {
            *state.counts.registers.entry(used).or_default() += 1;
        }
    }

    fn write_config(&self, state: &mut State, value: u32) {
        if state.faults.control == Drain::Never {
            return;
        }
        let turned_on = value & !state.own.registers.config & 1 != 0;
        if turned_on && state.own.cleaned != [Cleaned::Done; 2] {
            state.violations.push(Violation::EnabledUnclean);
        }
        state.own.registers.config = value & 1;
    }

    fn write_tlb_flush(&self, state: &mut State, value: u32) -> Option<RegisterUse> {
        let chip = self.setup.chip;
        let asid = value >> chip.flush_asid_lsb() & (chip.asids() - 1);
        let asid = (value >> 31 == 1).then_some(asid);
        // The address is without its low twelve bits, of which the match takes two.
        let at = Iova::new(u64::from(value & 0xf_fffc) << 12);
        let (lg2, used) = match value & 3 {
            0 if asid.is_none() => (None, RegisterUse::TlbFlushAll),
            0 => (None, RegisterUse::TlbFlushAsid),
            2 => (Some(22), RegisterUse::TlbFlushSection),
            3 => (Some(14), RegisterUse::TlbFlushGroup),
            _ => {
                state.violations.push(Violation::BadAccess { offset: 0x30 });
                return None;
            }
        };
        let range = lg2.map(|lg2| IovaRange::page(at, PageSize::of_lg2(lg2)));
        if range.is_none() && asid.is_none() {
            state.own.cleaned[0] = Cleaned::Done;
        }
        self.flush(state, Flush::Tlb { asid, range });
        Some(used)
    }

    fn write_ptc_flush(&self, state: &mut State, value: u32) -> Option<RegisterUse> {
        let (line, used) = match value & 1 {
            0 => (None, RegisterUse::PtcFlushAll),
            _ => {
                let high = match self.setup.chip.memory_lg2() {
                    32 => 0,
                    _ => u64::from(state.own.registers.ptc_flush_hi) << 32,
                };
                let at = Iova::new(high | u64::from(value & !0xf));
                let line = IovaRange::page(at, self.setup.chip.line());
                (Some(line), RegisterUse::PtcFlushLine)
            }
        };
        if line.is_none() {
            state.own.cleaned[1] = Cleaned::Done;
        }
        self.flush(state, Flush::Ptc { line });
        Some(used)
    }

    fn flush(&self, state: &mut State, flush: Flush) {
        match self.setup.temper {
            Temper::Adversarial => state.own.pending.push((flush, state.own.now)),
            Temper::Realistic(_) => forget(state, flush, state.own.now),
        }
    }
}

impl Mmio for TegraRegisters {
    fn read32(&self, offset: usize) -> u32 {
        let mut state = self.lock();
        if self.arrive(&mut state, offset, 4).is_none() {
            return u32::MAX;
        }
        // Earlier writes have taken effect when a read returns.
        for (flush, then) in std::mem::take(&mut state.own.pending) {
            forget(&mut state, flush, then);
        }
        if offset == 0x1c {
            let used = RegisterUse::ReadBack;
            *state.counts.registers.entry(used).or_default() += 1;
        }
        state.own.registers.read(offset).unwrap_or_else(|| {
            state.violations.push(Violation::BadAccess { offset });
            0
        })
    }

    fn write32(&self, offset: usize, value: u32) {
        let mut state = self.lock();
        if self.arrive(&mut state, offset, 4).is_some() {
            self.write(&mut state, offset, value);
        }
    }
}
