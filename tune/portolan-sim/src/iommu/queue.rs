//! The command queue: steps in, invalidations out.
//!
//! A by-page or by-range invalidation drops every IOTLB entry that overlaps it, of any size; an adversarial IOMMU
//! with [`Names::WholePage`] drops those that it covers. With [`Depth::AllLevels`] it drops walk-cache entries as
//! well, and entries that remember the absence of a table; where leaf-only invalidation does not exist, every depth
//! is that.

use portolan::addr::IovaRange;
use portolan::inval::{
    Command, Depth, InvalidationQueue, LeafOnly, PageForm, RangeForm, Run, Step, TablesLeft,
};

use super::{Iommu, IotlbEntry, ModelState, Names, Owed, QueueError, Temper};
use crate::adversary::{Rank, Visit, unordered};
use crate::cache::{Cache, Key, Reach};
use crate::counters::doorbells;
use crate::decode::WalkMemory;

impl<M: WalkMemory> InvalidationQueue for Iommu<M> {
    type Error = QueueError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), QueueError> {
        self.run(steps, Owed::AfterUnmap)
    }
}

/// An [`Iommu`]'s queue, for debts of maps only.
#[derive(Debug)]
pub struct MapSide<'i, M> {
    iommu: &'i Iommu<M>,
}

impl<M: WalkMemory> InvalidationQueue for MapSide<'_, M> {
    type Error = QueueError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), QueueError> {
        self.iommu.run(steps, Owed::AfterMap)
    }
}

impl<M: WalkMemory> Iommu<M> {
    /// The queue for debts of maps only. By-page invalidations cost as much as they do after a map.
    pub fn map_side(&self) -> MapSide<'_, M> {
        MapSide { iommu: self }
    }

    fn run(&self, steps: &mut dyn Iterator<Item = Step>, owed: Owed) -> Result<(), QueueError> {
        // Devices and other CPUs come in between any two steps.
        for step in steps {
            self.carry_out(&mut self.lock(), step, owed)?;
        }
        Ok(())
    }

    fn carry_out(&self, state: &mut ModelState, step: Step, owed: Owed) -> Result<(), QueueError> {
        match step {
            Step::FlushWriteBuffer => {
                state.counters.write_buffer_flushes += 1;
                self.memory.drain_write_buffer();
            }
            Step::Invalidate(command) => self.submit(state, command, owed)?,
            Step::Sync => self.complete(state)?,
        }
        Ok(())
    }

    fn submit(
        &self,
        state: &mut ModelState,
        command: Command,
        owed: Owed,
    ) -> Result<(), QueueError> {
        if !self.is_legal(command) {
            return Err(QueueError::Illegal { command });
        }
        state.commands += 1;
        if state.queued >= self.setup.queue.depth {
            state.counters.queue_drains += 1;
            state.queued = 0;
        }
        state.queued += 1;
        state.unpublished += 1;
        self.setup.clock.charge(self.setup.prices.of_command(command, owed), 1);
        if state.injection.fail_command == Some(state.commands) {
            return Err(QueueError::Failed { ordinal: state.commands, command });
        }
        count(state, command, owed);
        match self.setup.temper {
            Temper::Adversarial => state.pending.push(command),
            Temper::Realistic(_) => self.invalidate(state, command),
        }
        Ok(())
    }

    fn complete(&self, state: &mut ModelState) -> Result<(), QueueError> {
        state.syncs += 1;
        if state.injection.stall_sync == Some(state.syncs) {
            let waited_ns = self.setup.queue.deadline_ns;
            self.setup.clock.advance_ns(waited_ns);
            return Err(QueueError::TimedOut { ordinal: state.syncs, waited_ns });
        }
        let doorbells = doorbells(std::mem::take(&mut state.unpublished));
        let prices = &self.setup.prices;
        self.setup.clock.charge(prices.sync, 1);
        self.setup.clock.charge(prices.exit, doorbells);
        state.counters.syncs += 1;
        state.counters.doorbells += doorbells;
        state.queued = 0;
        self.take_effect(state);
        Ok(())
    }

    /// Carries out the commands that the sync awaits: in no order, and devices go on before and between the commands.
    fn take_effect(&self, state: &mut ModelState) {
        let pending = unordered(std::mem::take(&mut state.pending), |command| self.rank(*command));
        let Some(last) = pending.len().checked_sub(1) else {
            return;
        };
        self.try_again(state);
        for (at, command) in pending.into_iter().enumerate() {
            let before = state.entries();
            self.invalidate(state, command);
            if at < last && state.entries() < before {
                self.try_again(state);
            }
        }
    }

    /// Devices try the places that they reached before. Nothing is counted.
    fn try_again(&self, state: &mut ModelState) {
        let counters = state.counters.clone();
        for Visit { of, .. } in state.visits.all() {
            let _ = self.look_up(state, of.stream, of.iova, of.access);
        }
        state.counters = counters;
    }

    fn rank(&self, command: Command) -> Rank {
        match command {
            Command::Configuration { .. } => Rank::Streams,
            Command::Context { .. } | Command::Global => Rank::Translations,
            Command::Page { depth, .. } | Command::Range { depth, .. } => {
                match self.reaches(depth) {
                    Depth::AllLevels => Rank::Translations,
                    Depth::LeafOnly => Rank::Leaves,
                }
            }
        }
    }

    /// Depth of an invalidation of `depth` on this hardware.
    fn reaches(&self, depth: Depth) -> Depth {
        match self.setup.capabilities.leaf_only {
            LeafOnly::Absent => Depth::AllLevels,
            LeafOnly::Present => depth,
        }
    }

    /// Tells if the hardware has the command, by its capabilities.
    fn is_legal(&self, command: Command) -> bool {
        let caps = &self.setup.capabilities;
        match command {
            Command::Page { iova, size, .. } => {
                caps.page != PageForm::Absent && size >= caps.granule && iova.is_aligned(size)
            }
            Command::Range { run, granule, .. } => {
                let fits = match (run, caps.range) {
                    (
                        Run::PowerOfTwo { start, lg2_pages },
                        RangeForm::PowerOfTwo { max_lg2_pages },
                    ) => {
                        let lg2 = granule.lg2() + u32::from(lg2_pages);
                        let low = 1u64.checked_shl(lg2).map_or(u64::MAX, |size| size - 1);
                        lg2_pages <= max_lg2_pages && start.get() & low == 0
                    }
                    (
                        Run::NumScale { start, num, scale },
                        RangeForm::NumScale { max_num, max_scale },
                    ) => {
                        let in_field = (1..=max_num).contains(&num) && scale <= max_scale;
                        in_field && start.is_aligned(granule)
                    }
                    _ => false,
                };
                fits && granule == caps.granule
            }
            Command::Context { .. } | Command::Global | Command::Configuration { .. } => true,
        }
    }

    fn invalidate(&self, state: &mut ModelState, command: Command) {
        match command {
            Command::Page { context, iova, size, depth } => {
                let reach = Reach::Range(context, IovaRange::page(iova, size));
                self.drop_translations(state, reach, depth);
            }
            Command::Range { context, run, granule, depth } => {
                self.drop_translations(state, Reach::Range(context, run.range(granule)), depth);
            }
            Command::Context { context } => {
                self.drop_translations(state, Reach::Context(context), Depth::AllLevels);
            }
            Command::Global => self.drop_translations(state, Reach::All, Depth::AllLevels),
            Command::Configuration { context } => {
                let ModelState { configuration, streams, .. } = state;
                let points = |config: Option<super::StreamConfig>| {
                    config.and_then(super::StreamConfig::context) == Some(context)
                };
                // By the cached configuration, and by that in memory now.
                configuration.drop_where(
                    Reach::All,
                    |_, cached| {
                        points(cached.config) || points(streams.get(&cached.stream).copied())
                    },
                    |_, _| {},
                );
            }
        }
    }

    fn drop_translations(&self, state: &mut ModelState, reach: Reach, depth: Depth) {
        let deep = self.reaches(depth);
        let whole = match (&self.setup.temper, self.setup.names, reach) {
            (Temper::Adversarial, Names::WholePage, Reach::Range(_, range)) => Some(range),
            _ => None,
        };
        let ModelState { iotlb, walk, tables, counters, .. } = state;
        let concerned = |key: Key, known: &IotlbEntry| match known {
            IotlbEntry::Present(_) => whole.is_none_or(|range| range.covers(key.range())),
            IotlbEntry::Absent { level } => *level == 0 || deep == Depth::AllLevels,
        };
        iotlb.drop_where(reach, concerned, |key, known| {
            let IotlbEntry::Present(leaf) = known else { return };
            let table = tables.get(&key.context());
            if self.still_holds(table, key.range().start(), &leaf) {
                counters.collateral += 1;
            }
        });
        if deep == Depth::AllLevels {
            for cache in walk {
                Cache::drop_where(cache, reach, |_, _| true, |_, _| {});
            }
        }
    }
}

fn count(state: &mut ModelState, command: Command, owed: Owed) {
    let counters = &mut state.counters;
    let kinds = &mut counters.invalidations;
    let kind = match command {
        Command::Page { .. } => {
            if owed == Owed::AfterMap {
                kinds.page_after_map += 1;
            }
            &mut kinds.page
        }
        Command::Range { run, .. } => {
            if let Run::PowerOfTwo { lg2_pages, .. } = run {
                *counters.range_masks.entry(lg2_pages).or_default() += 1;
            }
            &mut kinds.range
        }
        Command::Context { .. } => &mut kinds.context,
        Command::Global => &mut kinds.global,
        Command::Configuration { .. } => &mut kinds.configuration,
    };
    *kind += 1;
}
