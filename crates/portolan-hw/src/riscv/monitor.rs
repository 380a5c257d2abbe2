//! Hardware counters in use.

use portolan::platform::{Cpus, Guarded};

/// Most counters of a unit.
pub(super) const MOST: usize = 31;
/// Value of `iocountinh` where the cycles alone are counted.
pub(super) const NONE: u32 = !1;

/// A counter in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Used {
    /// Value of its selector.
    pub(super) word: u64,
    /// All that the counter can hold.
    pub(super) mask: u64,
    /// Events before its last overflow.
    pub(super) before: u64,
}

/// Hardware counters in use. Held while their registers are accessed, which waits for nothing.
#[derive(Debug)]
pub(super) struct Monitor<C: Cpus>(pub(super) Guarded<C, [Option<Used>; MOST]>);

impl<C: Cpus> Monitor<C> {
    pub(super) fn new() -> Self {
        Self(Guarded::new([None; MOST]))
    }
}

/// The counters in use count, and the cycles.
pub(super) fn inhibits(used: &[Option<Used>; MOST]) -> u32 {
    let counting = (1..).zip(used).filter(|(_, used)| used.is_some());
    counting.fold(NONE, |all, (bit, _)| all & !(1 << bit))
}
