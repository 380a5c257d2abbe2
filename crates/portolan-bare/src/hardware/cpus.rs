//! Number of CPUs of a machine, and the number of the CPU that calls.
//!
//! *Context.* Interrupt.

use portolan::addr::CpuId;

/// The CPUs of a machine.
#[derive(Clone, Copy)]
pub(super) struct Cpus {
    /// At least one.
    count: u32,
    current: fn() -> CpuId,
}

impl Cpus {
    /// The only one.
    pub(super) fn one() -> Self {
        let current = || CpuId::new(0);
        Self { count: 1, current }
    }

    /// `count` CPUs, at least one, of which `current` names the caller's.
    pub(super) fn new(count: usize, current: fn() -> CpuId) -> Self {
        let count = u32::try_from(count).unwrap_or(u32::MAX).max(1);
        Self { count, current }
    }

    pub(super) fn count(self) -> usize {
        self.count as usize
    }

    /// The CPU that calls. A number that is too high counts from the start again.
    pub(super) fn current(self) -> CpuId {
        match self.count {
            // One CPU alone: its number is known.
            1 => CpuId::new(0),
            count => CpuId::new((self.current)().get() % count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cpu_has_a_number_below_their_count() {
        assert_eq!((Cpus::one().count(), Cpus::one().current().get()), (1, 0));
        for (count, number) in [(0, 0), (1, 0), (2, 1), (3, 1), (4, 3), (7, 0), (8, 7)] {
            let cpus = Cpus::new(count, || CpuId::new(7));
            assert_eq!(cpus.count(), count.max(1));
            assert_eq!(cpus.current().get(), number, "of {count}");
        }
    }
}
