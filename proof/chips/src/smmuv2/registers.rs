//! The register file: global spaces 0 and 1, and the context banks.

use portolan::platform::Mmio;

use super::maintenance::{LeafOnly, SmmuV2Invalidation, page};
use super::space::Space;
use super::{Firmware, SmmuV2Registers, State};
use crate::inject::Violation;
use crate::unit::{Invalidated, half, set_half};

/// Place of an offset.
#[derive(Clone, Copy, Debug)]
enum RegisterSpace {
    Space0(usize),
    Space1(usize),
    Bank(usize, usize),
}

/// The name under which a write is counted.
fn name(place: RegisterSpace) -> &'static str {
    match place {
        RegisterSpace::Space0(0x48) | RegisterSpace::Bank(_, 0x58 | 0x08) => "FSR",
        RegisterSpace::Space0(0x64) => "TLBIVMID",
        RegisterSpace::Space0(0x68) => "TLBIALLNSNH",
        RegisterSpace::Space0(0x6c) => "TLBIALLH",
        RegisterSpace::Space0(0x70) => "sTLBGSYNC",
        RegisterSpace::Space0(0x800..=0x9ff) => "SMR",
        RegisterSpace::Space0(0xc00..=0xdff) => "S2CR",
        RegisterSpace::Bank(_, 0x600) => "TLBIVA",
        RegisterSpace::Bank(_, 0x608) => "TLBIVAA",
        RegisterSpace::Bank(_, 0x610) => "TLBIASID",
        RegisterSpace::Bank(_, 0x618) => "TLBIALL",
        RegisterSpace::Bank(_, 0x620) => "TLBIVAL",
        RegisterSpace::Bank(_, 0x628) => "TLBIVAAL",
        RegisterSpace::Bank(_, 0x630) => "TLBIIPAS2",
        RegisterSpace::Bank(_, 0x638) => "TLBIIPAS2L",
        RegisterSpace::Bank(_, 0x7f0) => "TLBSYNC",
        _ => "configuration",
    }
}

/// Commands whose value means nothing, which hypervisors trap. Qualcomm's get a store of the zero register
/// wrong (`QCOM_DUMMY_VAL` in Linux): here it is lost.
fn is_trapped(place: RegisterSpace) -> bool {
    matches!(
        place,
        RegisterSpace::Space0(0x68 | 0x6c | 0x70) | RegisterSpace::Bank(_, 0x618 | 0x7f0)
    )
}

impl SmmuV2Registers {
    fn place(&self, state: &State, offset: usize) -> Option<RegisterSpace> {
        let id = &self.setup.identification;
        let (page, within) = (offset >> id.page_lg2(), offset & ((1 << id.page_lg2()) - 1));
        match page.checked_sub(id.pages()) {
            Some(bank) if bank < state.own.banks.len() => Some(RegisterSpace::Bank(bank, within)),
            Some(_) => None,
            None if page == 0 => Some(RegisterSpace::Space0(within)),
            None if page == 1 => Some(RegisterSpace::Space1(within)),
            None => None,
        }
    }

    /// Checks a write like [`SmmuV2Registers::arrive`]; returns the place of the access.
    fn arrive_at(&self, state: &mut State, offset: usize, bytes: usize) -> Option<RegisterSpace> {
        self.arrive(state, offset, bytes)?;
        let place = self.place(state, offset);
        if place.is_none() {
            state.violations.push(Violation::BadAccess { offset });
        }
        place
    }

    fn read(&self, state: &State, place: RegisterSpace) -> Option<u32> {
        let id = &self.setup.identification;
        let global = &state.own.global;
        Some(match place {
            RegisterSpace::Space0(offset) => match offset {
                0x00 => global.cr0,
                0x10 => global.acr,
                0x20 | 0x24 | 0x28 => id.idr[(offset - 0x20) / 4],
                0x3c => id.revision,
                0x40 | 0x44 => half(global.fault.address, offset),
                0x48 => global.fault.status,
                0x50 => global.fault.syndrome,
                0x54 => global.fault.stream,
                0x74 => state.own.sync.is_active().into(),
                0x800..=0x9ff => global.smr[(offset - 0x800) / 4],
                0xc00..=0xdff => global.s2cr[(offset - 0xc00) / 4],
                _ => return None,
            },
            RegisterSpace::Space1(offset) => {
                let bank = state.own.banks.get(offset % 0x400 / 4)?;
                match offset {
                    0..=0x3ff => bank.cbar,
                    0x400..=0x7ff => bank.fault.stream,
                    0x800..=0xbff => bank.cba2r,
                    _ => return None,
                }
            }
            RegisterSpace::Bank(bank, offset) => {
                let bank = state.own.banks.get(bank)?;
                match offset {
                    0x00 => bank.sctlr,
                    0x04 => bank.actlr,
                    0x10 => bank.tcr2,
                    0x20 | 0x24 => half(bank.ttbr[0], offset),
                    0x28 | 0x2c => half(bank.ttbr[1], offset),
                    0x30 => bank.tcr,
                    0x34 => bank.contextidr,
                    0x38 => bank.mair[0],
                    0x3c => bank.mair[1],
                    0x58 => bank.fault.status,
                    0x60 | 0x64 => half(bank.fault.address, offset),
                    0x68 => bank.fault.syndrome,
                    0x7f4 => bank.sync.is_active().into(),
                    _ => return None,
                }
            }
        })
    }

    fn write(&self, state: &mut State, offset: usize, place: RegisterSpace, value: u32) {
        if value == 0 && self.setup.firmware == Firmware::Qualcomm && is_trapped(place) {
            return;
        }
        match place {
            RegisterSpace::Space0(at) => self.write_space0(state, at, value),
            RegisterSpace::Space1(at) => self.write_space1(state, offset, at, value),
            RegisterSpace::Bank(bank, at) => self.write_bank(state, offset, bank, at, value),
        }
    }

    fn write_space0(&self, state: &mut State, offset: usize, value: u32) {
        match offset {
            0x00 => {
                let turned_on = state.own.global.cr0 & !value & 1 == 1;
                if turned_on && state.cleaned.1 == Invalidated::NotYet {
                    state.violations.push(Violation::EnabledUnclean);
                }
                state.own.global.cr0 = value;
            }
            0x10 => state.own.global.acr = value,
            0x48 => state.own.global.fault.status &= !value,
            0x64 => self.take(state, SmmuV2Invalidation::Vmid(value as u16 & 0xff)),
            0x68 => self.take(state, SmmuV2Invalidation::Everything),
            0x6c => {}
            0x70 => self.begin_global_sync(state),
            0x800..=0x9ff => self.write_match(state, (offset - 0x800) / 4, value),
            0xc00..=0xdff => {
                let slot = (offset - 0xc00) / 4;
                match (self.setup.firmware, value >> 16 & 3) {
                    (Firmware::Qualcomm, 2) => {}
                    (Firmware::Qualcomm, 1) => state.own.global.s2cr[slot] = value ^ 3 << 16,
                    _ => state.own.global.s2cr[slot] = value,
                }
            }
            _ => state.violations.push(Violation::BadAccess { offset }),
        }
    }

    fn write_match(&self, state: &mut State, slot: usize, value: u32) {
        let id = &self.setup.identification;
        if slot >= id.streams() {
            return;
        }
        let kept = u32::from(id.stream_bits);
        let value = value & (1 << 31 | kept << 16 | kept);
        let overlap = |other: u32| {
            let free = (value | other) >> 16 & 0x7fff;
            (value & other) >> 31 == 1 && (value ^ other) & 0x7fff & !free == 0
        };
        let mut others =
            state.own.global.smr.iter().enumerate().filter(|(other, _)| *other != slot);
        if others.any(|(_, other)| overlap(*other)) {
            let offset = 0x800 + 4 * slot;
            let value = value.into();
            let what = Violation::SeveralAtOnce { offset, value };
            state.violations.push(what);
        }
        state.own.global.smr[slot] = value;
    }

    fn write_space1(&self, state: &mut State, offset: usize, at: usize, value: u32) {
        let in_use = |old: u32, on: bool| on && old != value;
        let Some(bank) = state.own.banks.get_mut(at % 0x400 / 4) else {
            state.violations.push(Violation::BadAccess { offset });
            return;
        };
        let on = bank.is_on();
        let register = match at {
            0..=0x3ff => &mut bank.cbar,
            0x800..=0xbff => &mut bank.cba2r,
            _ => {
                state.violations.push(Violation::BadAccess { offset });
                return;
            }
        };
        let violated = in_use(*register, on);
        *register = value;
        if violated {
            state.violations.push(Violation::WrittenInUse { offset });
        }
    }

    fn write_bank(&self, state: &mut State, offset: usize, n: usize, at: usize, value: u32) {
        let bank = &mut state.own.banks[n];
        if matches!(at, 0x10 | 0x20..=0x30 | 0x38 | 0x3c) && bank.is_on() {
            state.violations.push(Violation::WrittenInUse { offset });
            return;
        }
        match at {
            0x00 => bank.sctlr = value,
            // From r2p0 of an MMU-500 on, ACR.CACHE_LOCK keeps it.
            0x04 if self.setup.identification.revision >> 4 >= 2
                && state.own.global.acr >> 26 & 1 == 1 => {}
            0x04 => bank.actlr = value,
            0x08 => self.resume(state, n, value),
            0x10 => bank.tcr2 = value,
            0x20 | 0x24 => set_half(&mut bank.ttbr[0], at, value),
            0x28 | 0x2c => set_half(&mut bank.ttbr[1], at, value),
            0x30 => bank.tcr = value,
            0x34 => bank.contextidr = value,
            0x38 => bank.mair[0] = value,
            0x3c => bank.mair[1] = value,
            // The stall itself ends with its answer.
            0x58 => bank.fault.status &= !(value & !super::faults::STALLED),
            0x604 | 0x60c | 0x624 | 0x62c | 0x634 | 0x63c => bank.upper = value,
            0x600..=0x638 => {
                let wide = u64::from(bank.upper) << 32 | u64::from(value);
                self.write_invalidation(state, offset, n, at, wide);
            }
            0x7f0 => self.begin_sync(state, n),
            _ => state.violations.push(Violation::BadAccess { offset }),
        }
    }

    fn write_invalidation(
        &self,
        state: &mut State,
        offset: usize,
        n: usize,
        at: usize,
        value: u64,
    ) {
        let here = state.own.banks[n].space();
        let vmid = here.vmid();
        let asid = (value >> 48) as u16;
        let second = Space::Two { vmid };
        let by_page = |space, bits, leaf_only| SmmuV2Invalidation::Page {
            space,
            range: page(value, bits),
            leaf_only,
        };
        let first = Space::One { vmid, asid };
        let any =
            |leaf_only| SmmuV2Invalidation::AnyAsid { vmid, range: page(value, 44), leaf_only };
        let what = match (at, here) {
            (0x600, Space::One { .. }) => by_page(first, 44, LeafOnly::No),
            (0x608, Space::One { .. }) => any(LeafOnly::No),
            (0x610, Space::One { .. }) => {
                let asid = value as u16;
                SmmuV2Invalidation::Space(Space::One { vmid, asid })
            }
            (0x618, Space::One { .. }) => SmmuV2Invalidation::Vmid(vmid),
            (0x620, Space::One { .. }) => by_page(first, 44, LeafOnly::Yes),
            (0x628, Space::One { .. }) => any(LeafOnly::Yes),
            (0x630, Space::Two { .. }) => by_page(second, 36, LeafOnly::No),
            (0x638, Space::Two { .. }) => by_page(second, 36, LeafOnly::Yes),
            _ => {
                state.violations.push(Violation::BadAccess { offset });
                return;
            }
        };
        self.invalidate(state, n, what);
    }

    fn count(state: &mut State, place: RegisterSpace) {
        *state.counts.writes.entry(name(place)).or_default() += 1;
    }
}

impl Mmio for SmmuV2Registers {
    fn read32(&self, offset: usize) -> u32 {
        let mut state = self.lock();
        let Some(place) = self.arrive_at(&mut state, offset, 4) else {
            return u32::MAX;
        };
        match self.read(&state, place) {
            Some(value) => value,
            None => {
                state.violations.push(Violation::BadAccess { offset });
                0
            }
        }
    }

    fn write32(&self, offset: usize, value: u32) {
        let mut state = self.lock();
        if let Some(place) = self.arrive_at(&mut state, offset, 4) {
            Self::count(&mut state, place);
            self.write(&mut state, offset, place, value);
            self.go_on(&mut state);
        }
    }

    fn write64(&self, offset: usize, value: u64) {
        let mut state = self.lock();
        let Some(place) = self.arrive_at(&mut state, offset, 8) else {
            return;
        };
        Self::count(&mut state, place);
        // The half that acts comes last.
        let upper = match place {
            RegisterSpace::Space0(at) => RegisterSpace::Space0(at + 4),
            RegisterSpace::Space1(at) => RegisterSpace::Space1(at + 4),
            RegisterSpace::Bank(bank, at) => RegisterSpace::Bank(bank, at + 4),
        };
        self.write(&mut state, offset + 4, upper, (value >> 32) as u32);
        self.disturb(&mut state);
        self.write(&mut state, offset, place, value as u32);
        self.go_on(&mut state);
    }
}
