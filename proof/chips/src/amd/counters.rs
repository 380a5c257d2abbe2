//! Performance counters: accesses that were translated, and commands that were processed.

use std::collections::BTreeMap;

use portolan_sim::request::Request;

/// Events that the model counts.
pub(super) const ACCESS: u64 = 5;
pub(super) const COMMAND: u64 = 0x11;

/// Registers of counters: the first of each is the count, followed by the source and the filters of PASIDs, domains and
/// devices.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Banks and counters of each.
    numbers: u64,
    /// By bank and number.
    each: BTreeMap<(u64, u64), [u64; 6]>,
}

impl Counters {
    pub(super) fn reset(numbers: u64) -> Self {
        let (banks, counters) = (numbers >> 12 & 0x3f, numbers >> 7 & 0xf);
        let all = (0..banks).flat_map(|bank| (0..counters).map(move |number| (bank, number)));
        Self { numbers, each: all.map(|at| (at, [0; 6])).collect() }
    }

    /// The register at `offset`, if there is one.
    pub(super) fn at(&mut self, offset: usize) -> Option<&mut u64> {
        if offset == 0x4000 && self.numbers != 0 {
            return Some(&mut self.numbers);
        }
        let within = (offset as u64).checked_sub(0x4_0000)?;
        let counter = self.each.get_mut(&(within >> 12, within >> 8 & 0xf))?;
        counter.get_mut((within & 0xff) as usize / 8)
    }

    /// Counts `event`, of an access of `device` or of none.
    pub(super) fn count(&mut self, event: u64, device: Option<Request>) {
        for [count, source, _, _, wanted, _] in self.each.values_mut() {
            let mask = *wanted >> 32 & 0xffff;
            let all = *wanted >> 31 & 1 == 0;
            let same = |of: Request| (u64::from(of.stream.get()) ^ *wanted) & mask == 0;
            if *source & 0xff == event && (all || device.is_some_and(same)) {
                *count = (*count + 1) & ((1 << 48) - 1);
            }
        }
    }
}
