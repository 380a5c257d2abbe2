//! Strict unmaps of several CPUs that share syncs, in the trace's time.
//!
//! One submission is under way at a time. An unmap that comes while there is none is submitted at once;
//! those that come meanwhile are submitted together, with one sync, as soon as it has completed. A
//! CPU waits in each of its unmaps: if the trace has its next one before that, it comes when the
//! first has completed.

use portolan::inval::Gather;

use crate::iova::Block;

/// The submission under way, and the unmaps that wait for the next.
#[derive(Debug, Default)]
pub(super) struct Batches {
    /// When the submission under way completes.
    free_at: f64,
    /// Whose it is.
    running: Vec<u16>,
    /// Who waits for the next.
    callers: Vec<u16>,
    /// When the first of them came.
    first_ns: f64,
    /// What they owe.
    pub(super) gather: Gather,
    blocks: Vec<Block>,
    bytes: u64,
}

/// A batch whose turn has come.
pub(super) struct Batch {
    pub(super) gather: Gather,
    pub(super) blocks: Vec<Block>,
    pub(super) bytes: u64,
    pub(super) callers: usize,
    begin: f64,
    first_ns: f64,
}

impl Batches {
    /// When a call of `cpu` that begins at `ns` can go on: after what it waits for already.
    pub(super) fn waits_until(&self, cpu: u16, ns: f64) -> Option<f64> {
        let waits = self.callers.contains(&cpu) || self.running.contains(&cpu);
        (waits && self.free_at > ns).then_some(self.free_at)
    }

    /// Adds an unmap whose debt is in [`Self::gather`] already.
    pub(super) fn push(&mut self, ns: f64, cpu: u16, block: Block, bytes: u64) {
        if self.callers.is_empty() {
            self.first_ns = ns;
        }
        self.callers.push(cpu);
        self.blocks.push(block);
        self.bytes += bytes;
    }

    /// The batch that is to be submitted by `ns`, if any.
    pub(super) fn due(&mut self, ns: f64) -> Option<Batch> {
        if self.free_at > ns {
            return None;
        }
        self.running.clear();
        if self.callers.is_empty() {
            return None;
        }
        std::mem::swap(&mut self.running, &mut self.callers);
        Some(Batch {
            gather: std::mem::take(&mut self.gather),
            blocks: std::mem::take(&mut self.blocks),
            bytes: std::mem::take(&mut self.bytes),
            callers: self.running.len(),
            begin: self.free_at.max(self.first_ns),
            first_ns: self.first_ns,
        })
    }

    /// Notes that `batch` took `ns`; how long its first caller waited.
    pub(super) fn submitted(&mut self, begin: f64, first_ns: f64, ns: f64) -> f64 {
        self.free_at = begin + ns;
        self.free_at - first_ns
    }
}

impl Batch {
    /// When it is submitted, and when its first caller came.
    pub(super) fn times(&self) -> (f64, f64) {
        (self.begin, self.first_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iova::Space;
    use portolan::addr::PageSize;

    #[test]
    fn who_comes_while_a_sync_is_under_way_shares_the_next() {
        let mut space = Space::new(PageSize::SIZE_4K, 32);
        let mut batches = Batches::default();
        let mut push = |batches: &mut Batches, ns, cpu| {
            batches.push(ns, cpu, space.alloc(1).unwrap(), 4096);
        };
        push(&mut batches, 100.0, 0);
        let alone = batches.due(100.0).unwrap();
        assert_eq!(
            (alone.callers, alone.bytes, alone.times()),
            (1, 4096, (100.0, 100.0))
        );
        assert_eq!(batches.submitted(100.0, 100.0, 50.0), 50.0);
        push(&mut batches, 110.0, 1);
        push(&mut batches, 120.0, 2);
        assert!(batches.due(149.0).is_none());
        assert_eq!(batches.waits_until(0, 120.0), Some(150.0));
        assert_eq!(batches.waits_until(2, 130.0), Some(150.0));
        assert_eq!(batches.waits_until(3, 130.0), None);
        let both = batches.due(200.0).unwrap();
        assert_eq!((both.callers, both.blocks.len()), (2, 2));
        assert_eq!(both.times(), (150.0, 110.0));
        assert_eq!(batches.submitted(150.0, 110.0, 60.0), 100.0);
        assert_eq!(batches.waits_until(2, 160.0), Some(210.0));
        assert!(batches.due(300.0).is_none());
        assert_eq!(batches.waits_until(2, 300.0), None);
    }
}
