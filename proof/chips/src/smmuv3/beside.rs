//! Command queues beside the unit's own: enhanced ones, and those of NVIDIA's CMDQV.
//!
//! IHI 0070, section 3.5.6 and the registers of section 6.3 (ECMDQ). CMDQV after Linux's `tegra241-cmdqv.c`, since
//! NVIDIA publishes no manual: its window is the model's from [`CMDQV`] on. A synchronisation awaits the commands of
//! its own queue, and none of another.
//!
//! Not modelled: control pages in memory; interfaces of guests but for the commands that they may give.

use portolan_sim::decode::WalkMemory;

use super::commands::SmmuV3Invalidation;
use super::queue::{ERROR_ILLEGAL, Fetch};
use super::{SmmuRegisters, SmmuSetup, State};
use crate::inject::{Drain, Violation};
use crate::unit::set_half;

/// Queues that a unit has beside its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Beside {
    /// None.
    #[default]
    None,
    /// Enhanced: control pages, and queues of each, as exponents.
    Enhanced {
        /// Control pages.
        pages_lg2: u32,
        /// Queues of a page.
        queues_lg2: u32,
    },
    /// NVIDIA's: queues and virtual interfaces, as exponents.
    Tegra241 {
        /// Queues.
        queues_lg2: u32,
        /// Virtual interfaces.
        vintfs_lg2: u32,
    },
}

/// Offset of the first control page.
const PAGES: usize = 0x2_0000;
const PAGE: usize = 0x1_0000;
/// Offset of CMDQV's window, which is elsewhere on a real machine.
pub const CMDQV: usize = 0x10_0000;
const VINTF_PAGE0: usize = CMDQV + 0x3_0000;
const VINTF_PAGE1: usize = CMDQV + 0x4_0000;

const ENABLE: u32 = 1 << 31;
const ERROR: u32 = 1 << 23;
const CMDQP_ERROR: u32 = 1 << 9;
const HYP_OWN: u32 = 1 << 17;

/// A queue.
#[derive(Clone, Debug, Default)]
struct Queue {
    base: u64,
    prod: u32,
    /// Index, and the code of an error.
    cons: u32,
    enabled: bool,
    acknowledged: bool,
    /// Errors so far, and those that were seen: ECMDQ's bit, and CMDQV's registers.
    raised: u32,
    seen: u32,
    /// Invalidations that its next synchronisation awaits.
    pending: Vec<SmmuV3Invalidation>,
    /// Interface and number that CMDQV was told.
    allocated: u32,
    index_base: u64,
}

/// The queues, and CMDQV's own registers.
#[derive(Debug, Default)]
pub struct BesideState {
    queues: Vec<Queue>,
    config: u32,
    vintf: u32,
}

impl BesideState {
    pub(super) fn reset(setup: &SmmuSetup) -> Self {
        let count = match setup.beside {
            Beside::None => 0,
            Beside::Enhanced { pages_lg2, queues_lg2 } => 1 << (pages_lg2 + queues_lg2),
            Beside::Tegra241 { queues_lg2, vintfs_lg2 } => 1 << (queues_lg2 - vintfs_lg2),
        };
        Self { queues: vec![Queue::default(); count], ..Self::default() }
    }

    /// Number of commands that the queues have fetched to, for tests that want to know which were used.
    pub(super) fn used(&self) -> Vec<u32> {
        self.queues.iter().map(|queue| queue.cons).collect()
    }
}

impl SmmuRegisters {
    /// Consumer registers of the queues beside the unit's own.
    pub fn beside(&self) -> Vec<u32> {
        self.lock().own.beside.used()
    }

    /// The queue with registers at `offset`, and the offset in them. CMDQV's second page is from 0x40 on.
    fn queue_at(&self, offset: usize) -> Option<(usize, usize)> {
        match self.setup.beside {
            Beside::None => None,
            Beside::Enhanced { pages_lg2, queues_lg2 } => {
                let inside = offset.checked_sub(PAGES).filter(|at| *at < PAGE << pages_lg2)?;
                let gap = PAGE >> queues_lg2;
                (inside % gap < 0x10).then_some((inside / gap, inside % gap))
            }
            Beside::Tegra241 { .. } => {
                let page1 = offset.checked_sub(VINTF_PAGE1).map(|at| (at / 0x80, at % 0x80 + 0x40));
                let page0 = offset.checked_sub(VINTF_PAGE0).map(|at| (at / 0x80, at % 0x80));
                page1.or(page0).filter(|(_, at)| at % 0x40 < 0x18)
            }
        }
    }

    /// The register at `offset`; none if these queues have none there.
    pub(super) fn read_beside(&self, state: &State, offset: usize) -> Option<u32> {
        let beside = &state.own.beside;
        let halves = |value: u64| [value as u32, (value >> 32) as u32][offset / 4 % 2];
        match (self.setup.beside, offset) {
            (Beside::Enhanced { .. }, 0x04) => {
                return Some(self.setup.identification.idr[1] | 1 << 31);
            }
            (Beside::Enhanced { pages_lg2, queues_lg2 }, 0x190) => {
                return Some(pages_lg2 << 24 | queues_lg2 << 16);
            }
            (Beside::Enhanced { pages_lg2, .. }, 0x4000..0x8000) => {
                let page = (offset - 0x4000) / 32;
                let is_there = page < 1 << pages_lg2 && offset % 32 < 8;
                return is_there.then(|| halves((PAGES + page * PAGE) as u64 | 1));
            }
            (Beside::Tegra241 { queues_lg2, vintfs_lg2 }, CMDQV..VINTF_PAGE0) => {
                return match offset - CMDQV {
                    0x0 | 0x8 => Some(beside.config),
                    0x4 => Some(queues_lg2 << 4 | vintfs_lg2 << 8),
                    0x1000 => Some(beside.vintf),
                    0x1004 => Some(beside.vintf & beside.config & 1),
                    at @ 0x200..0x1000 => Some(beside.queues.get((at - 0x200) / 4)?.allocated),
                    _ => None,
                };
            }
            _ => {}
        }
        let (number, at) = self.queue_at(offset)?;
        let queue = beside.queues.get(number)?;
        let error = |bits: u32| if bits & 1 != 0 { ERROR } else { 0 };
        let on = |bit: u32| if queue.acknowledged { bit } else { 0 };
        match (self.setup.beside, at) {
            (Beside::Enhanced { .. }, 0x0 | 0x4) => Some(halves(queue.base)),
            (Beside::Enhanced { .. }, 0x8) => {
                let enable = if queue.enabled { ENABLE } else { 0 };
                Some(queue.prod | enable | error(queue.seen))
            }
            (Beside::Enhanced { .. }, 0xc) => Some(queue.cons | on(ENABLE) | error(queue.raised)),
            (Beside::Tegra241 { .. }, 0x0) => Some(queue.cons),
            (Beside::Tegra241 { .. }, 0x4) => Some(queue.prod),
            (Beside::Tegra241 { .. }, 0x8) => Some(u32::from(queue.enabled)),
            (Beside::Tegra241 { .. }, 0xc) => Some(on(1)),
            (Beside::Tegra241 { .. }, 0x10) => Some(queue.raised),
            (Beside::Tegra241 { .. }, 0x14) => Some(queue.seen),
            (Beside::Tegra241 { .. }, 0x40 | 0x44) => Some(halves(queue.base)),
            (Beside::Tegra241 { .. }, 0x48 | 0x4c) => Some(halves(queue.index_base)),
            _ => None,
        }
    }

    /// Writes the register at `offset`, and tells if it is one of these queues.
    pub(super) fn write_beside(&self, state: &mut State, offset: usize, value: u32) -> bool {
        let acknowledged = state.faults.control == Drain::Runs;
        if let (Beside::Tegra241 { .. }, CMDQV..VINTF_PAGE0) = (self.setup.beside, offset) {
            return self.write_cmdqv(state, offset - CMDQV, value);
        }
        let Some((number, at)) = self.queue_at(offset) else {
            return false;
        };
        let is_lent = self.is_lent(state, number);
        let Some(queue) = state.own.beside.queues.get_mut(number) else {
            return false;
        };
        let (in_use, size) = (queue.enabled, queue.base & 0x1f);
        let mut overrun = false;
        match (self.setup.beside, at) {
            _ if !is_lent => return false,
            (_, 0x0 | 0x4) if in_use && matches!(self.setup.beside, Beside::Enhanced { .. }) => {
                state.violations.push(Violation::WrittenInUse { offset });
                return true;
            }
            (Beside::Enhanced { .. }, 0x0 | 0x4) | (Beside::Tegra241 { .. }, 0x40 | 0x44)
                if !in_use =>
            {
                set_half(&mut queue.base, offset, value);
            }
            (Beside::Enhanced { .. }, 0x8) => {
                (queue.prod, queue.enabled) = (value & 0xf_ffff, value & ENABLE != 0);
                queue.seen = queue.seen & !1 | u32::from(value & ERROR != 0);
                if acknowledged {
                    queue.acknowledged = queue.enabled;
                }
                overrun = queue.enabled && queue.is_overrun(size as u32);
            }
            (Beside::Enhanced { .. }, 0xc) | (Beside::Tegra241 { .. }, 0x0) if !in_use => {
                queue.cons = value & 0xf_ffff;
            }
            (Beside::Tegra241 { .. }, 0x4) => {
                queue.prod = value;
                overrun = queue.enabled && queue.is_overrun(size as u32);
            }
            (Beside::Tegra241 { .. }, 0x8) => {
                queue.enabled = value & 1 != 0;
                if acknowledged {
                    queue.acknowledged = queue.enabled;
                }
            }
            (Beside::Tegra241 { .. }, 0x14) => queue.seen = value,
            (Beside::Tegra241 { .. }, 0x48 | 0x4c) => {
                set_half(&mut queue.index_base, offset, value)
            }
            _ => {
                state.violations.push(Violation::WrittenInUse { offset });
                return true;
            }
        }
        if overrun {
            let tail = queue.prod.into();
            state.violations.push(Violation::QueueOverrun { tail });
        }
        self.go_on(state);
        true
    }

    /// Tells if the queue of this number is there for software: CMDQV's have to be given to the interface.
    fn is_lent(&self, state: &State, number: usize) -> bool {
        let beside = &state.own.beside;
        match self.setup.beside {
            Beside::None => false,
            Beside::Enhanced { .. } => true,
            Beside::Tegra241 { .. } => {
                let own = (number as u32) << 1 | 1;
                let allocated = beside.queues.get(number).is_some_and(|of| of.allocated == own);
                allocated && beside.config & beside.vintf & 1 != 0
            }
        }
    }

    fn write_cmdqv(&self, state: &mut State, at: usize, value: u32) -> bool {
        let fresh = BesideState::reset(&self.setup);
        let beside = &mut state.own.beside;
        match at {
            // Off, it forgets everything.
            0x0 if value & 1 == 0 => *beside = fresh,
            0x0 => beside.config = value & 1,
            0x1000 if beside.vintf & 1 != 0 && value & 1 != 0 => return false,
            // The owner is taken while the interface is off.
            0x1000 if value & 1 != 0 => beside.vintf |= 1,
            0x1000 => beside.vintf = value,
            0x200..0x1000 => match beside.queues.get_mut((at - 0x200) / 4) {
                Some(queue) => queue.allocated = value,
                None => return false,
            },
            _ => return false,
        }
        true
    }

    /// Carries out the commands of these queues.
    pub(super) fn fetch_beside(&self, state: &mut State) {
        for number in 0..state.own.beside.queues.len() {
            while self.fetch_one(state, number) {}
        }
    }

    /// Carries out one command, if one is due, and tells if it did. A queue that is stopped fetches none, so that the
    /// calls end for any pointers: the indices wrap after twice its size, where the producer's does not move.
    fn fetch_one(&self, state: &mut State, number: usize) -> bool {
        let is_lent = self.is_lent(state, number);
        let by_guest = matches!(self.setup.beside, Beside::Tegra241 { .. })
            && state.own.beside.vintf & HYP_OWN == 0;
        let rests = self.rests(state);
        let Some(queue) = state.own.beside.queues.get_mut(number) else {
            return false;
        };
        let lg2 = (queue.base & 0x1f) as u32;
        let (mask, positions) = ((1u32 << lg2) - 1, (2u32 << lg2) - 1);
        let at = queue.cons & positions;
        let stopped = !queue.enabled || !is_lent || (queue.raised ^ queue.seen) & 1 != 0;
        if stopped || rests || at == queue.prod & positions {
            return false;
        }
        let base = queue.base & 0x000f_ffff_ffff_ffe0;
        let entry = base + u64::from(at & mask) * 16;
        std::mem::swap(&mut queue.pending, &mut state.pending);
        let first = self.memory.read_u64(portolan::addr::PhysAddr::new(entry));
        let result = match first {
            Some(first) if by_guest && !is_a_guests(first) => Err(ERROR_ILLEGAL),
            _ => self.carry_out(state, entry, Fetch::Beside),
        };
        let Some(queue) = state.own.beside.queues.get_mut(number) else {
            return false;
        };
        std::mem::swap(&mut queue.pending, &mut state.pending);
        match result {
            Ok(()) => {
                queue.cons = (at + 1) & positions;
                true
            }
            Err(code) => {
                queue.cons = at | (code & 0x7f) << 24;
                queue.raised ^= 1;
                if let Beside::Enhanced { .. } = self.setup.beside {
                    state.own.registers.raise(CMDQP_ERROR);
                }
                false
            }
        }
    }
}

/// Commands of an interface that is a guest's: first stages by address space and address, devices, synchronisation.
fn is_a_guests(first: u64) -> bool {
    matches!(first & 0xff, 0x11 | 0x12 | 0x40 | 0x46)
}

impl Queue {
    /// Tells if more is in the queue than fits, or its index is beyond its positions.
    fn is_overrun(&self, lg2: u32) -> bool {
        let positions = (2u32 << lg2) - 1;
        let filled = self.prod.wrapping_sub(self.cons) & positions;
        self.prod & !positions != 0 || filled > 1 << lg2
    }
}
