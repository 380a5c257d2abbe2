//! Costs of invalidations to the devices: translations that are dropped while they are in use are walked for once
//! more.
//!
//! The first walk of a buffer is the same under every policy and is part of the device's time. Translations that a
//! command drops of buffers that are still mapped and not yet transferred are walked for again: one step where walk
//! caches keep the levels above, all levels where they were dropped too. It delays the transfer and takes none of the
//! device's own time, since units walk for many transactions at once. Pessimistic: each buffer that was mapped when
//! the command completed is taken to have been translated already.

use std::sync::{Mutex, MutexGuard, PoisonError};

use portolan::addr::{Iova, IovaRange};
use portolan::inval::{Command, Depth, Step};
use portolan::iommu::IommuError;
use portolan_sim::cpus::Hardware;

/// Log of invalidations.
#[derive(Debug)]
pub struct Walks {
    levels: u32,
    step_ns: f64,
    done: Mutex<Vec<Dropped>>,
}

#[derive(Clone, Copy, Debug)]
struct Dropped {
    /// Range; `None` for all addresses.
    range: Option<IovaRange>,
    depth: Depth,
}

/// A point in time: the number of invalidations so far.
#[derive(Clone, Copy, Debug)]
pub struct Since(usize);

impl Walks {
    /// Log for tables of so many levels, each of whose steps takes `step_ns` nanoseconds.
    pub fn new(levels: u32, step_ns: f64) -> Self {
        Self { levels, step_ns, done: Mutex::default() }
    }

    fn done(&self) -> MutexGuard<'_, Vec<Dropped>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Now.
    pub fn now(&self) -> Since {
        Since(self.done().len())
    }

    /// Nanoseconds that a transfer at `iova` waits because of invalidations since `since`.
    pub fn again_ns(&self, iova: Iova, since: Since) -> f64 {
        let done = self.done();
        let steps = done[since.0.min(done.len())..].iter().map(|dropped| {
            let hit = dropped.range.is_none_or(|range| range.contains(iova));
            match (hit, dropped.depth) {
                (false, _) => 0,
                (true, Depth::LeafOnly) => 1,
                (true, Depth::AllLevels) => self.levels,
            }
        });
        f64::from(steps.max().unwrap_or(0)) * self.step_ns
    }
}

impl Hardware for Walks {
    fn complete(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), IommuError> {
        let dropped = steps.filter_map(|step| match step {
            Step::Invalidate(Command::Page { iova, size, depth, .. }) => {
                Some((Some(IovaRange::page(iova, size)), depth))
            }
            Step::Invalidate(Command::Range { run, granule, depth, .. }) => {
                Some((Some(run.range(granule)), depth))
            }
            Step::Invalidate(Command::Context { .. } | Command::Global) => {
                Some((None, Depth::AllLevels))
            }
            _ => None,
        });
        let dropped = dropped.map(|(range, depth)| Dropped { range, depth });
        self.done().extend(dropped);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan::addr::{InvalTag, PageSize};

    const CONTEXT: InvalTag = InvalTag::new(1);

    fn again(command: Command) -> f64 {
        let walks = Walks::new(4, 100.0);
        let before = walks.now();
        let mut steps = [Step::Invalidate(command), Step::Sync].into_iter();
        walks.complete(&mut steps).unwrap();
        assert_eq!(walks.again_ns(Iova::new(0x5000), walks.now()), 0.0);
        walks.again_ns(Iova::new(0x5000), before)
    }

    #[test]
    fn only_what_was_in_use_is_walked_for_again() {
        let page = |number: u64| Command::Page {
            context: CONTEXT,
            iova: Iova::new(number << 12),
            size: PageSize::SIZE_4K,
            depth: Depth::LeafOnly,
        };
        assert_eq!(again(page(4)), 0.0);
        assert_eq!(again(page(5)), 100.0);
        assert_eq!(again(Command::Context { context: CONTEXT }), 400.0);
    }
}
