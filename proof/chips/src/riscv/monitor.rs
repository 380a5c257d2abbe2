//! Hardware counters: sections "Performance-monitoring event counters" and those around it. Events of
//! translations that devices keep are not counted; nor is by address space or by tag.

use super::{RiscvCounts, RiscvRegisters, State};

/// Bits of a counter.
const MASK: u64 = (1 << 40) - 1;
/// Writable bits of a selector: event, device, whether the device counts, overflow.
const KEPT: u64 = 0x7fff | 0xff_ffff << 36 | 5 << 61;
const OVERFLOW: u64 = 1 << 63;
/// `ipsr.pmip`.
const PENDING: u32 = 1 << 2;

/// Standard events that are counted.
pub(super) mod event {
    pub const UNTRANSLATED: u16 = 1;
    pub const MISS: u16 = 4;
    pub const DEVICE_WALK: u16 = 5;
    pub const PROCESS_WALK: u16 = 6;
    pub const FIRST_WALK: u16 = 7;
    pub const SECOND_WALK: u16 = 8;
}

/// A counter.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    value: u64,
    selector: u64,
    /// Events of its kind when it was last looked at.
    seen: u64,
}

/// The counters.
#[derive(Debug, Default)]
pub(super) struct Monitor {
    inhibited: u32,
    counters: [Counter; 31],
}

impl RiscvCounts {
    /// Something happened because of a device.
    pub(super) fn happened(&mut self, event: u16, device: u32) {
        *self.events.entry((event, device)).or_default() += 1;
    }

    /// Number of events that a selector names.
    fn selected(&self, selector: u64) -> u64 {
        let (event, device) = ((selector & 0x7fff) as u16, (selector >> 36) as u32 & 0xff_ffff);
        let any = selector >> 61 & 1 == 0;
        let all = self.events.iter();
        all.filter(|((of, by), _)| *of == event && (any || *by == device))
            .map(|(_, count)| count)
            .sum()
    }
}

fn kept(selector: u64) -> u64 {
    match selector & 0x7fff {
        1 | 4..=8 => selector & KEPT,
        _ => selector & KEPT & !0x7fff,
    }
}

impl RiscvRegisters {
    /// Brings the counters up to date.
    pub(super) fn tally(&self, state: &mut State) {
        let registers = &mut state.own.registers;
        let monitor = &mut registers.monitor;
        for (bit, counter) in (1..).zip(&mut monitor.counters) {
            let now = state.counts.selected(counter.selector);
            let news = now - std::mem::replace(&mut counter.seen, now);
            if monitor.inhibited >> bit & 1 == 1 {
                continue;
            }
            counter.value += news;
            if counter.value > MASK {
                counter.value &= MASK;
                if counter.selector & OVERFLOW == 0 {
                    counter.selector |= OVERFLOW;
                    registers.ipsr |= PENDING;
                }
            }
        }
    }

    /// A register of the counters.
    pub(super) fn read_monitor(&self, state: &mut State, offset: usize) -> u32 {
        self.tally(state);
        let half = |word: u64| (word >> (8 * (offset & 4))) as u32;
        let monitor = &state.own.registers.monitor;
        let overflown = (1..).zip(&monitor.counters);
        match offset {
            88 => overflown
                .fold(0, |all, (bit, counter)| all | ((counter.selector >> 63) as u32) << bit),
            92 => monitor.inhibited,
            96 | 100 => half(self.clock().now_ns() & !OVERFLOW),
            104..352 => half(monitor.counters[(offset - 104) / 8].value),
            _ => half(monitor.counters[(offset - 352) / 8].selector),
        }
    }

    /// Writes such a register. Registers of missing counters keep nothing.
    pub(super) fn write_monitor(&self, state: &mut State, offset: usize, value: u32) {
        self.tally(state);
        let count = usize::from(self.setup.identification.counters);
        let counts = &state.counts;
        let monitor = &mut state.own.registers.monitor;
        let set = |word: &mut u64| crate::unit::set_half(word, offset, value);
        match offset {
            92 => monitor.inhibited = value,
            104..352 if (offset - 104) / 8 < count => {
                let counter = &mut monitor.counters[(offset - 104) / 8];
                set(&mut counter.value);
                counter.value &= MASK;
            }
            352..600 if (offset - 352) / 8 < count => {
                let counter = &mut monitor.counters[(offset - 352) / 8];
                set(&mut counter.selector);
                counter.selector = kept(counter.selector);
                counter.seen = counts.selected(counter.selector);
            }
            _ => {}
        }
    }
}
