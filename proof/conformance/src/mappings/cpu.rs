//! The part of one CPU: its buffers, and its random work.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fastrand::Rng;
use portolan::addr::{Iova, PhysRange, StreamId};
use portolan::dma::{
    Constraints, Deferred, Device, DmaSpace, LazyBounds, Mapping, NotUnmapped, ToDevice,
};
use portolan::platform::{Clock as _, Cpus as _, Nanos, SlabTables};
use portolan_sim::cpus::VirtualCpus;
use portolan_sim::decode::{AccessKind, TableReader};
use portolan_sim::iommu::Iommu;

use super::failing::{Ailment, Health};
use super::world::{Block, BlockReached, BlockWorld, LONGEST, PAGE};
use super::{MappingReport, UnmapMode};

pub(super) const STREAM: StreamId = StreamId::new(1);

/// Bounds of each CPU's queue under the lazy policy.
pub(super) const BOUNDS: LazyBounds =
    LazyBounds { entries: 24, bytes: 512 << 10, age: Nanos::new(40_000) };

pub(crate) type Tables = &'static SlabTables<AtomicU64>;
/// The IOMMU.
pub type Model = Iommu<TableReader<AtomicU64, Tables>>;
pub(super) type Space = DmaSpace<VirtualCpus>;

/// Mappings that a CPU holds at most.
pub(super) const LIVE: usize = 12;
/// Old addresses that a CPU remembers.
const OLD: usize = 64;
/// Tries at the end to get everything back from hardware that fails.
const PATIENCE: usize = 1000;
/// Stream of a device that is attached and detached.
const OTHER: StreamId = StreamId::new(2);
/// Violations that are told.
const TOLD: usize = 5;
/// Nanoseconds between two looks of a CPU's timer at its queue.
const TIMER_NS: u64 = BOUNDS.age.get() / 4;
/// Longest computation of a CPU between two operations, in nanoseconds.
const BETWEEN_NS: f64 = 400.0;

/// Events of a run, counted.
#[derive(Default)]
pub(super) struct MappingTally {
    pub(super) operations: AtomicU64,
    accesses: AtomicU64,
    retries: AtomicU64,
    waiting: AtomicU64,
    exposed: AtomicU64,
    /// Longest time of an operation, in nanoseconds.
    operation_ns: AtomicU64,
    longest: AtomicU64,
    failures: AtomicU64,
    refused: AtomicU64,
    recovered: AtomicU64,
    pub(super) quarantined: AtomicU64,
    pub(super) violations: Mutex<Vec<String>>,
}

impl MappingTally {
    pub(super) fn violation(&self, text: String) {
        let mut all = self.violations.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < TOLD {
            all.push(text);
        }
    }

    /// Counts submissions that the hardware of a round failed.
    pub(super) fn failed(&self, failures: u64) {
        self.failures.fetch_add(failures, Ordering::Relaxed);
    }

    fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn report(
        self,
        (way, health): (UnmapMode, Health),
        seed: u64,
        cpus: u64,
        syncs: u64,
    ) -> MappingReport {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        MappingReport {
            way,
            health,
            seed,
            cpus,
            operations: read(&self.operations),
            accesses: read(&self.accesses),
            retries: read(&self.retries),
            reached_waiting: read(&self.waiting),
            reached_exposed: read(&self.exposed),
            longest_window_ns: read(&self.longest),
            syncs,
            failures: read(&self.failures),
            refused: read(&self.refused),
            recovered: read(&self.recovered),
            quarantined_bytes: read(&self.quarantined),
            violations: (self.violations.into_inner()).unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// A machine.
pub(super) struct MappingRig<'r> {
    pub(super) way: UnmapMode,
    pub(super) cpus: &'r VirtualCpus,
    pub(super) model: &'r Model,
    pub(super) space: &'r Arc<Space>,
    pub(super) device: &'r Device<VirtualCpus>,
    pub(super) world: &'r Arc<BlockWorld>,
    pub(super) tally: &'r MappingTally,
    pub(super) ailment: &'r Ailment,
}

/// A mapping and the memory of its buffer.
type Live = (Mapping<VirtualCpus, Block, ToDevice>, PhysRange);

/// Buffers and old addresses of one CPU.
struct Hands {
    live: Vec<Live>,
    deferred: Vec<Deferred<VirtualCpus, Block>>,
    old: VecDeque<Iova>,
    rng: Rng,
    cpu: u64,
}

impl MappingRig<'_> {
    fn context(&self, hands: &Hands) -> String {
        let operation = self.tally.operations.load(Ordering::Relaxed);
        let (way, cpu) = (self.way.name(), hands.cpu);
        format!("{way}, CPU {cpu}, operation {operation}")
    }

    fn map(&self, hands: &mut Hands) {
        let rng = &mut hands.rng;
        let pages = match rng.u32(..4) {
            0 => rng.u64(1..=LONGEST),
            _ => 1,
        };
        let offset = rng.u64(..PAGE);
        let bytes = rng.u64(1..=pages * PAGE - offset);
        let Some(block) = self.world.block(offset, bytes) else {
            return;
        };
        let memory = block.range;
        match self.device.map(block, ToDevice) {
            Ok(mapping) => {
                self.world.map(mapping.iova(), memory);
                hands.live.push((mapping, memory));
            }
            Err(refused) => {
                self.failed(hands, &refused.error);
                match refused.value.into_buffer() {
                    Ok(block) => self.world.back(&block),
                    Err(deferred) => hands.deferred.push(deferred),
                }
            }
        }
    }

    /// Reads a place of a live mapping.
    fn read(&self, hands: &mut Hands) {
        if hands.live.is_empty() {
            return;
        }
        let at = hands.rng.usize(..hands.live.len());
        let Some(segment) = hands.live[at].0.segments().next() else {
            return;
        };
        let inside = hands.rng.u64(..segment.bytes.get());
        let iova = Iova::new(segment.iova.get() + inside);
        MappingTally::add(&self.tally.accesses);
        match self.model.translate(STREAM, iova, AccessKind::Read) {
            Ok(found) if self.world.judge(iova, found.pa) == BlockReached::Another => {}
            found => {
                let context = self.context(hands);
                self.tally.violation(format!("{context}: {iova} is mapped and leads to {found:?}"));
            }
        }
    }

    /// Tries an old address.
    fn retry(&self, hands: &mut Hands) {
        if hands.old.is_empty() {
            return;
        }
        let at = hands.rng.usize(..hands.old.len());
        let iova = hands.old[at];
        MappingTally::add(&self.tally.retries);
        let Ok(found) = self.model.translate(STREAM, iova, AccessKind::Read) else {
            return;
        };
        let pa = found.pa;
        match self.world.judge(iova, pa) {
            BlockReached::Another => {}
            BlockReached::Waiting => MappingTally::add(&self.tally.waiting),
            BlockReached::Exposed(since_ns) if self.way == UnmapMode::Lazy => {
                MappingTally::add(&self.tally.exposed);
                let window = self.cpus.now().get().saturating_sub(since_ns);
                self.tally.longest.fetch_max(window, Ordering::Relaxed);
                // Three operations: the unmap, the CPU's operation when the queue was due, and the flush.
                let operation = self.tally.operation_ns.load(Ordering::Relaxed);
                let three = 3 * (operation + BETWEEN_NS as u64);
                let bound = BOUNDS.age.get() + TIMER_NS + three;
                let (entries, bytes) = self.space.waiting();
                let cpus = self.cpus.count();
                let most = 2 * BOUNDS.entries * cpus;
                let late = window > bound && self.ailment.failures() == 0;
                if late || entries > most {
                    let context = self.context(hands);
                    self.tally.violation(format!(
                        "{context}: {iova} was reached {window} ns after its unmap, \
                         {entries} mappings and {bytes} bytes waiting"
                    ));
                }
            }
            wrong @ (BlockReached::Exposed(_) | BlockReached::Strange) => {
                let context = self.context(hands);
                self.tally.violation(format!("{context}: {iova} still leads to {pa}: {wrong:?}"));
            }
        }
    }

    fn unmap(&self, hands: &mut Hands) {
        if hands.live.is_empty() {
            return;
        }
        let at = hands.rng.usize(..hands.live.len());
        let (mapping, memory) = hands.live.swap_remove(at);
        let iova = mapping.iova();
        MappingTally::add(&self.tally.operations);
        self.world.unmap(iova, memory, self.cpus.now().get());
        self.end(hands, mapping, memory);
        for page in 0..memory.last().get() / PAGE - memory.start().get() / PAGE + 1 {
            if hands.old.len() == OLD {
                hands.old.pop_front();
            }
            hands.old.push_back(Iova::new((iova.get() / PAGE + page) * PAGE));
        }
    }

    /// Ends a mapping, in one of the ways.
    fn end(
        &self,
        hands: &mut Hands,
        mapping: Mapping<VirtualCpus, Block, ToDevice>,
        memory: PhysRange,
    ) {
        let defer = match self.way {
            UnmapMode::Deferred => true,
            _ => hands.rng.u32(..8) == 0,
        };
        if defer {
            match mapping.defer() {
                Ok(deferred) => hands.deferred.push(deferred),
                Err(kept) => {
                    self.failed(hands, &kept.error);
                    self.keep(hands, kept.value, memory);
                }
            }
            return;
        }
        match mapping.unmap() {
            Ok(block) => self.world.back(&block),
            Err(failed) => {
                self.failed(hands, &failed.error);
                match failed.value {
                    NotUnmapped::Mapped(mapping) => self.keep(hands, mapping, memory),
                    NotUnmapped::Deferred(deferred) => hands.deferred.push(deferred),
                }
            }
        }
    }

    fn reclaim(&self, hands: &mut Hands) {
        for deferred in std::mem::take(&mut hands.deferred) {
            if hands.rng.u32(..4) == 0 {
                match deferred.try_reclaim() {
                    Ok(block) => self.world.back(&block),
                    Err(deferred) => hands.deferred.push(deferred),
                }
                continue;
            }
            match deferred.reclaim() {
                Ok(block) => self.world.back(&block),
                Err(kept) => {
                    self.failed(hands, &kept.error);
                    hands.deferred.push(kept.value);
                }
            }
        }
    }

    /// Checks that a mapping which was not ended is unchanged.
    fn keep(
        &self,
        hands: &mut Hands,
        mapping: Mapping<VirtualCpus, Block, ToDevice>,
        memory: PhysRange,
    ) {
        self.world.map(mapping.iova(), memory);
        hands.live.push((mapping, memory));
    }

    /// Something did not work, which only failing hardware and scarce memory excuse.
    fn failed(&self, hands: &Hands, error: &dyn std::fmt::Display) {
        if self.ailment.health() == Health::Failing {
            MappingTally::add(&self.tally.refused);
            return;
        }
        let context = self.context(hands);
        self.tally.violation(format!("{context}: {error}"));
    }

    /// Recovers, as the handler of the unit's errors does.
    fn recover(&self) {
        if self.space.failure().is_some() && self.space.recover().is_ok() {
            MappingTally::add(&self.tally.recovered);
        }
    }

    /// A CPU's timer, or a caller that flushes earlier than it would.
    fn tick(&self, hands: &Hands) {
        if let Err(error) = self.space.tick() {
            self.failed(hands, &error);
        }
    }

    /// Attaches and detaches a second device of the same driver.
    fn attach(&self, hands: &Hands) {
        let limits = Constraints::trusted();
        // Each CPU has its own stream, because a stream has one device in a space.
        let stream = StreamId::new(OTHER.get() + hands.cpu as u32);
        let device = Device::translated(self.space.clone(), stream, limits);
        match device.map(Device::detach) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.failed(hands, &error),
            Err(error) => self.failed(hands, &error),
        }
    }

    /// Runs one CPU's part: `operations` unmaps.
    pub(super) fn work(&self, cpu: u64, seed: u64, operations: u64) {
        let mut hands = Hands {
            live: Vec::new(),
            deferred: Vec::new(),
            old: VecDeque::new(),
            rng: Rng::with_seed(seed ^ (cpu << 40)),
            cpu,
        };
        let mut done = 0;
        let mut timer_ns = 0;
        while done < operations {
            self.cpus.work(hands.rng.f64() * BETWEEN_NS);
            let begin = self.cpus.now().get();
            if self.way == UnmapMode::Lazy && begin >= timer_ns {
                self.tick(&hands);
                timer_ns = begin + TIMER_NS;
            }
            match hands.rng.u32(..10) {
                0..=3 if hands.live.len() < LIVE => self.map(&mut hands),
                0..=5 if !hands.live.is_empty() => {
                    self.unmap(&mut hands);
                    done += 1;
                }
                6 => self.read(&mut hands),
                7 if hands.deferred.len() > 8 => self.reclaim(&mut hands),
                8 if self.way == UnmapMode::Lazy => self.tick(&hands),
                9 if hands.rng.u32(..64) == 0 => self.attach(&hands),
                9 => self.recover(),
                _ => self.retry(&mut hands),
            }
            let took = self.cpus.now().get() - begin;
            self.tally.operation_ns.fetch_max(took, Ordering::Relaxed);
        }
        for _ in 0..PATIENCE {
            if hands.live.is_empty() && hands.deferred.is_empty() {
                return;
            }
            self.recover();
            for _ in 0..hands.live.len() {
                self.unmap(&mut hands);
            }
            self.reclaim(&mut hands);
        }
        let (live, deferred) = (hands.live.len(), hands.deferred.len());
        let context = self.context(&hands);
        self.tally.violation(format!(
            "{context}: {live} mappings and {deferred} buffers do not come back"
        ));
    }
}
