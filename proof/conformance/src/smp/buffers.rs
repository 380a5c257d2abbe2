//! Buffers through the DMA layer: each CPU maps some, lets the device read them, unmaps them in one of the ways that
//! the policy has, and lets the device try the old addresses.

use std::sync::Arc;

use portolan::addr::{InvalTag, Iova, IovaRange, PageSize, PhysRange, StreamId};
use portolan::dma::{
    Constraints, Device, DmaSpace, LazyBounds, Mapping, NotUnmapped, SpaceOptions, ToDevice,
};
use portolan::inval::{CombineOptions, Combined, Ranges};
use portolan::iommu::{BoundDomain, TagPool};
use portolan::platform::{Clock as _, Cpus as _, Nanos};
use portolan::table::format::DirtyTracking;
use portolan_chips::fixture::Attached;
use portolan_sim::decode::AccessKind;
use portolan_sim::iommu::Setup;

use super::UnmapMode;
use super::cpu::SmpCpu;
use super::machine::{BETWEEN_NS, Domain, SmpMachine, SpaceCpus};
use super::world::{Block, FrameReached, PAGE};
use crate::promise::simulated;

const CONTEXT: InvalTag = InvalTag::new(1);
/// Stream of the device that reads the buffers.
const STREAM: StreamId = StreamId::new(1);
/// First stream of devices that are attached and detached, one for each CPU.
const OTHERS: u32 = 2;
/// Bounds of each CPU's queue under the lazy policy.
const BOUNDS: LazyBounds = LazyBounds { entries: 24, bytes: 512 << 10, age: Nanos::new(40_000) };
/// Nanoseconds between two looks of a CPU's timer at its queue.
const TIMER_NS: u64 = BOUNDS.age.get() / 4;
/// Mappings that a CPU holds at most.
const LIVE: usize = 12;
/// Buffers that a CPU has lent at most.
const LENT: u64 = LIVE as u64 + 32;
/// Pages of the longest buffer.
const LONGEST: u64 = 9;
/// Old addresses that a CPU remembers.
const OLD: usize = 64;
/// Tries at the end to get everything back from hardware that fails.
const PATIENCE: usize = 1000;

/// A space, and the device that reads its buffers.
pub(super) struct Buffers<'m> {
    machine: &'m SmpMachine,
    mode: UnmapMode,
    space: Arc<DmaSpace<SpaceCpus>>,
    device: Device<SpaceCpus>,
}

impl<'m> Buffers<'m> {
    pub(super) fn new(machine: &'m SmpMachine, mode: UnmapMode) -> Self {
        let server = machine.server.clone();
        let space = match mode {
            UnmapMode::Strict => space(machine, mode, server),
            _ => {
                // Ranges instead of pages, and in one mode a separate CPU besides the batches.
                let beside = usize::from(mode == UnmapMode::Combined);
                let options = CombineOptions { beside, ..CombineOptions::default() };
                let ranges = Ranges::of(&Setup::able(PageSize::SIZE_4K));
                let combined = Combined::new(machine.cpus.clone(), server, ranges, options);
                space(machine, mode, combined)
            }
        };
        let device = Device::translated(space.clone(), STREAM, Constraints::trusted());
        Self { machine, mode, space, device: device.expect("a device") }
    }

    /// Does something at random.
    pub(super) fn step(&self, cpu: &mut SmpCpu) {
        let now_ns = self.machine.cpus.now().get();
        if self.mode == UnmapMode::Lazy && now_ns >= cpu.hands.timer_ns {
            self.tick();
            cpu.hands.timer_ns = now_ns + TIMER_NS;
        }
        match cpu.rng.u32(..10) {
            0..=3 if cpu.hands.live.len() < LIVE => self.map(cpu),
            0..=5 if !cpu.hands.live.is_empty() => self.unmap(cpu),
            6 => self.read(cpu),
            7 if cpu.hands.deferred.len() > 8 => self.reclaim(cpu),
            8 if self.mode == UnmapMode::Lazy => self.tick(),
            9 if cpu.rng.u32(..64) == 0 => self.attach(cpu),
            9 => self.recover(),
            _ => self.retry(cpu),
        }
    }

    /// Takes everything back, from hardware that fails as well.
    pub(super) fn finish(&self, cpu: &mut SmpCpu) {
        for _ in 0..PATIENCE {
            if cpu.hands.live.is_empty() && cpu.hands.deferred.is_empty() {
                return;
            }
            self.recover();
            for _ in 0..cpu.hands.live.len() {
                self.unmap(cpu);
            }
            self.reclaim(cpu);
        }
        let (live, deferred) = (cpu.hands.live.len(), cpu.hands.deferred.len());
        self.machine.violation(format!("{live} mappings and {deferred} buffers do not come back"));
    }

    /// Checks that nothing is left: no buffer, no address, no waiting range. The table goes with the space.
    pub(super) fn take_down(self) {
        let Self { machine, space, device, .. } = self;
        drop(device);
        if let (Some(_), Err(error)) = (space.failure(), space.recover()) {
            machine.violation(format!("not recovered: {error}"));
        }
        if let Err(error) = space.flush() {
            machine.violation(format!("the last flush: {error}"));
        }
        let (waiting, lent, lost) = (space.waiting(), machine.world.lent(), space.quarantine());
        machine.tally.add("quarantined_bytes", lost.bytes);
        if waiting != (0, 0) || lent != 0 || lost != Default::default() {
            machine
                .violation(format!("{waiting:?} waiting, {lent} blocks out, {lost:?} at the end"));
        }
        space.trim_addresses();
        if space.address_stats().fragments != 1 {
            machine.violation("addresses are missing at the end");
        }
    }

    fn map(&self, cpu: &mut SmpCpu) {
        let rng = &mut cpu.rng;
        let pages = match rng.u32(..4) {
            0 => rng.u64(1..=LONGEST),
            _ => 1,
        };
        let offset = rng.u64(..PAGE);
        let bytes = rng.u64(1..=pages * PAGE - offset);
        let world = &self.machine.world;
        if world.lent() >= self.machine.plan.cpus * LENT {
            return;
        }
        let Some(block) = world.block(offset, bytes) else {
            return;
        };
        let memory = block.range;
        match self.device.map(block, ToDevice) {
            Ok(mapping) => self.hold(cpu, mapping, memory),
            Err(refused) => {
                self.failed(&refused.error);
                if let Err(deferred) = refused.value.into_buffer() {
                    cpu.hands.deferred.push(deferred);
                }
            }
        }
    }

    /// Notes a mapping that the CPU has; one that was not ended is unchanged.
    fn hold(
        &self,
        cpu: &mut SmpCpu,
        mapping: Mapping<SpaceCpus, Block, ToDevice>,
        memory: PhysRange,
    ) {
        self.machine.world.map(mapping.iova(), memory);
        cpu.hands.live.push((mapping, memory));
    }

    /// Reads a place of a live mapping.
    fn read(&self, cpu: &mut SmpCpu) {
        let Some(at) = cpu.rng.choice(0..cpu.hands.live.len()) else {
            return;
        };
        let Some(segment) = cpu.hands.live[at].0.segments().next() else {
            return;
        };
        let inside = cpu.rng.u64(..segment.bytes.get());
        let iova = Iova::new(segment.iova.get() + inside);
        self.machine.tally.count("accesses");
        match self.machine.model.translate(STREAM, iova, AccessKind::Read) {
            Ok(found) if self.machine.world.judge(iova, found.pa) == FrameReached::Own => {}
            found => self.machine.violation(format!("{iova} is mapped and leads to {found:?}")),
        }
    }

    /// Tries an old address.
    fn retry(&self, cpu: &mut SmpCpu) {
        let Some(at) = cpu.rng.choice(0..cpu.hands.old.len()) else {
            return;
        };
        let iova = cpu.hands.old[at];
        let SmpMachine { tally, model, world, .. } = self.machine;
        tally.count("retries");
        let Ok(found) = model.translate(STREAM, iova, AccessKind::Read) else {
            return;
        };
        match world.judge(iova, found.pa) {
            FrameReached::Own => {}
            FrameReached::Leaving => tally.count("reached_waiting"),
            FrameReached::Exposed(since_ns) if self.mode == UnmapMode::Lazy => {
                self.exposed(iova, since_ns);
            }
            wrong => {
                let pa = found.pa;
                self.machine.violation(format!("{iova} still leads to {pa}: {wrong:?}"));
            }
        }
    }

    /// Checks that memory which the device reached after its unmap is within the bounds of the policy.
    fn exposed(&self, iova: Iova, since_ns: u64) {
        let SmpMachine { tally, cpus, .. } = self.machine;
        tally.count("reached_exposed");
        let window = cpus.now().get().saturating_sub(since_ns);
        tally.most("longest_window_ns", window);
        // Three steps: the unmap, the CPU's step when the queue was due, and the flush.
        let three = 3 * (tally.most("longest_step_ns", 0) + BETWEEN_NS as u64);
        let bound = BOUNDS.age.get() + TIMER_NS + three;
        let (entries, bytes) = self.space.waiting();
        let late = window > bound && tally.most("failures", 0) == 0;
        if late || entries > 2 * BOUNDS.entries * cpus.count() {
            self.machine.violation(format!(
                "{iova} was reached {window} ns after its unmap, {entries} mappings and {bytes} bytes waiting"
            ));
        }
    }

    fn unmap(&self, cpu: &mut SmpCpu) {
        let Some(at) = cpu.rng.choice(0..cpu.hands.live.len()) else {
            return;
        };
        let (mapping, memory) = cpu.hands.live.swap_remove(at);
        let iova = mapping.iova();
        self.machine.tally.operation();
        self.machine.world.unmap(iova, memory);
        self.end(cpu, mapping, memory);
        for page in 0..memory.last().get() / PAGE - memory.start().get() / PAGE + 1 {
            if cpu.hands.old.len() == OLD {
                cpu.hands.old.pop_front();
            }
            cpu.hands.old.push_back(Iova::new((iova.get() / PAGE + page) * PAGE));
        }
    }

    /// Ends a mapping, in one of the ways.
    fn end(
        &self,
        cpu: &mut SmpCpu,
        mapping: Mapping<SpaceCpus, Block, ToDevice>,
        memory: PhysRange,
    ) {
        if self.mode == UnmapMode::Deferred || cpu.rng.u32(..8) == 0 {
            match mapping.defer() {
                Ok(deferred) => cpu.hands.deferred.push(deferred),
                Err(kept) => {
                    self.failed(&kept.error);
                    self.hold(cpu, kept.value, memory);
                }
            }
            return;
        }
        if let Err(failed) = mapping.unmap() {
            self.failed(&failed.error);
            match failed.value {
                NotUnmapped::Mapped(mapping) => self.hold(cpu, mapping, memory),
                NotUnmapped::Deferred(deferred) => cpu.hands.deferred.push(deferred),
            }
        }
    }

    fn reclaim(&self, cpu: &mut SmpCpu) {
        for deferred in std::mem::take(&mut cpu.hands.deferred) {
            let kept = if cpu.rng.u32(..4) == 0 {
                deferred.try_reclaim().err()
            } else {
                deferred.reclaim().err().map(|kept| {
                    self.failed(&kept.error);
                    kept.value
                })
            };
            cpu.hands.deferred.extend(kept);
        }
    }

    /// Something did not work, which only failing hardware and scarce memory excuse.
    fn failed(&self, error: &dyn std::fmt::Display) {
        match self.machine.failures.excuse() {
            true => self.machine.tally.count("refused"),
            false => self.machine.violation(error),
        }
    }

    /// Recovers, as the handler of the unit's errors does.
    fn recover(&self) {
        if self.space.failure().is_some() && self.space.recover().is_ok() {
            self.machine.tally.count("recovered");
        }
    }

    /// A CPU's timer, or a caller that flushes earlier than it would.
    fn tick(&self) {
        if let Err(error) = self.space.tick() {
            self.failed(&error);
        }
    }

    /// Attaches and detaches a second device of the same driver.
    fn attach(&self, cpu: &SmpCpu) {
        // Each CPU has its own stream, because a stream has one device in a space.
        let stream = StreamId::new(OTHERS + cpu.number as u32);
        let device = Device::translated(self.space.clone(), stream, Constraints::trusted());
        match device.map(Device::detach) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.failed(&error),
            Err(error) => self.failed(&error),
        }
    }
}

/// A space over a domain whose queue is `queue`.
fn space<Q>(machine: &SmpMachine, mode: UnmapMode, queue: Q) -> Arc<DmaSpace<SpaceCpus>>
where
    Q: TagPool + 'static,
{
    let streams = std::iter::once(STREAM);
    let domain: Domain<Q> = machine.domain(CONTEXT, DirtyTracking::Off, queue, streams);
    let window = IovaRange::new(Iova::new(1 << 20), Iova::new((1 << 28) - 1));
    let mut options = SpaceOptions::default();
    options.window = window.expect("a range");
    options.policy = mode.policy();
    options.bounds = BOUNDS;
    let bound = BoundDomain::new(Arc::new(Attached), Arc::new(domain), simulated());
    let space = DmaSpace::with_cpus(bound, machine.space_cpus(), &options, simulated());
    Arc::new(space.expect("a space"))
}
