//! Replay of one policy: the library's DMA layer with the buffers of a trace, in virtual time.
//!
//! Each CPU of the trace is a virtual one, which carries out its operations in order: each at the
//! trace's time, or when the one before has ended. A CPU waits for its invalidations, and for the map
//! of its buffer if that is another CPU's and late. Bounds on age are kept by a timer of each
//! CPU, which fires exactly when it is due.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, anyhow};
use portolan::addr::{Iova, IovaRange, StreamId};
use portolan::dma::{Constraints, Device, MapError, Policy as Unmaps, SpaceOptions};
use portolan::iommu::DomainError;
use portolan::iova::IovaError;
use portolan::platform::Clock as _;
use portolan::table::{Format, TableMapError as TableError};
use portolan_sim::cpus::{Schedule, VirtualCpus};
use portolan_sim::profile::Profile;

use super::SEED;
use super::bounce::{CountedPool, parts};
use super::chunk::{Chunk, ReplayMap, ReplayOp, ReplayOpKind, WINDOW_LG2};
use super::policy::Policy;
use super::report::PolicyReport;
use super::state::{LaneMapping, LaneState, ReplayedMapping};
use super::tally::WorkPrices;
use super::timeline::{EndRegions, ModelCounts};
use super::window::Window;
use crate::buffers::buffer;
use crate::fixture::{Fixture, FixtureSetup, Submitting};
use crate::machines::own_quirks;
use crate::trace::Class;

/// Devices that have streams of their own; a trace with more shares them.
const MOST_DEVICES: u32 = 256;

/// A policy's machine.
pub(super) struct Lane {
    // Before the fixture: mappings lead to its space.
    state: Mutex<LaneState>,
    devices: Vec<Device<VirtualCpus>>,
    /// The device of memory that is not copied, where other memory is.
    in_place: Option<Device<VirtualCpus>>,
    pool: Option<Arc<CountedPool>>,
    fixture: Fixture,
    policy: Policy,
    prices: WorkPrices,
}

/// State of a lane.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goes {
    On,
    Failed,
}

/// Table pages that a lane can need at most: every table of the window, as many that wait for an
/// invalidation, and the levels above.
fn most_table_pages<F: Format>() -> u32 {
    let leaf_span_lg2 = F::GRANULE.lg2() + F::INDEX_LG2;
    2 * (1 << WINDOW_LG2.saturating_sub(leaf_span_lg2)) + 64
}

impl Lane {
    /// `policy` on `cpus` virtual CPUs.
    pub(super) fn new<F: Format>(
        policy: Policy,
        profile: &Profile,
        format: F,
        cpus: usize,
    ) -> Result<Self> {
        let last = (1u64 << WINDOW_LG2.min(format.input_lg2())) - 1;
        let window = IovaRange::new(Iova::new(F::GRANULE.bytes()), Iova::new(last));
        let caps = profile.capabilities();
        let mut options = SpaceOptions::default();
        options.window = window.context("an empty window of addresses")?;
        options.policy = policy.unmaps();
        let setup = FixtureSetup {
            profile,
            layout: profile.format(),
            caps,
            quirks: policy.quirks(&caps, own_quirks(profile)?),
            cpus,
            submitting: match policy {
                Policy::Combined => Submitting::Combined,
                _ => Submitting::Alone,
            },
            options,
            table_pages: most_table_pages::<F>(),
        };
        let fixture = Fixture::new(format, &setup)?;
        let pool = match policy {
            Policy::Bounce(wanted) => {
                let pool = CountedPool::new(&fixture.cpus, &wanted);
                Some(Arc::new(pool.context("a pool of so many slots and areas")?))
            }
            _ => None,
        };
        Ok(Self {
            state: Mutex::new(LaneState::new(cpus)),
            devices: Vec::new(),
            in_place: match pool {
                Some(_) => Some(
                    fixture.untranslated(StreamId::new(MOST_DEVICES), Constraints::trusted())?,
                ),
                None => None,
            },
            pool,
            fixture,
            policy,
            prices: WorkPrices::of(policy, profile)?,
        })
    }

    fn state(&self) -> MutexGuard<'_, LaneState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> f64 {
        self.fixture.cpus.now_exact_ns()
    }

    /// Carries out the operations of `chunk`.
    ///
    /// # Errors
    /// If the library or the model refuses an operation that it should take.
    pub(super) fn run(&mut self, chunk: &Chunk) -> Result<()> {
        self.attach(chunk)?;
        self.run_until(chunk, chunk.end_ns as f64)
    }

    /// Lets the timers run that are left, and reports.
    ///
    /// # Errors
    /// As [`Lane::run`].
    pub(super) fn finish(&mut self) -> Result<PolicyReport> {
        let nothing = Chunk::new(self.state().clocks.len());
        self.run_until(&nothing, f64::INFINITY)?;
        let so_far = self.fixture.model.with_counters(ModelCounts::of);
        let mut state = self.state();
        let (windows, pool) = (&state.windows, self.pool.as_deref());
        let mut report =
            (state.tally).report(self.policy, &self.prices, windows, &self.fixture, pool);
        report.timeline = state.timeline.finish(so_far);
        Ok(report)
    }

    /// Attaches the devices of `chunk` that were not seen before.
    fn attach(&mut self, chunk: &Chunk) -> Result<()> {
        let most = chunk.ops().iter().map(|op| op.device + 1).max().unwrap_or(0).min(MOST_DEVICES);
        for number in self.devices.len() as u32..most {
            let stream = StreamId::new(number);
            self.devices.push(match (&self.pool, self.policy) {
                (Some(pool), Policy::Bounce(wanted)) => {
                    let device = self.fixture.untranslated(stream, wanted.limits())?;
                    device.with_copies(pool.copying())
                }
                _ => self.fixture.device(stream)?,
            });
        }
        Ok(())
    }

    fn run_until(&self, chunk: &Chunk, end_ns: f64) -> Result<()> {
        let schedule = Schedule { limit_ns: u64::MAX, ..Schedule::of_seed(SEED) };
        self.fixture.cpus.run(&schedule, |cpu| {
            if let Err(error) = self.operate(cpu.get() as usize, chunk, end_ns) {
                self.state().failure.get_or_insert(error);
            }
        })?;
        self.state().failure.take().map_or(Ok(()), Err)
    }

    /// Runs the operations of one CPU until `end_ns`.
    fn operate(&self, cpu: usize, chunk: &Chunk, end_ns: f64) -> Result<()> {
        let clock = self.state().clocks[cpu];
        self.fixture.cpus.sleep_until(clock);
        for op in chunk.of(cpu) {
            self.fire_timers(cpu, op.at_ns as f64)?;
            self.fixture.cpus.sleep_until(op.at_ns as f64);
            if self.begin() == Goes::Failed {
                return Ok(());
            }
            let done = match &op.kind {
                ReplayOpKind::Map(map) => self.map(op, map, chunk),
                ReplayOpKind::Unmap => self.unmap(cpu, op),
            };
            done.with_context(|| format!("line {}", op.line))?;
        }
        self.fire_timers(cpu, end_ns)?;
        self.state().clocks[cpu] = self.now();
        Ok(())
    }

    /// Lets a CPU's timer fire at each moment at which its queue is due by `until_ns`.
    fn fire_timers(&self, cpu: usize, until_ns: f64) -> Result<()> {
        loop {
            let due = self.state().windows.due_ns(cpu);
            let Some(due) = due.filter(|due| *due <= until_ns) else {
                return Ok(());
            };
            self.fixture.cpus.sleep_until(due);
            self.begin();
            self.tick(cpu)?;
        }
    }

    /// Flushes all queues that are due, and always the queue of `cpu`.
    fn tick(&self, cpu: usize) -> Result<()> {
        let now = self.now();
        let (own, due) = {
            let windows = &mut self.state().windows;
            (windows.take(cpu), windows.take_due(now))
        };
        self.fixture.space.tick()?;
        self.close(own)?;
        self.close(due)
    }

    /// Something begins on the calling CPU.
    fn begin(&self) -> Goes {
        let now = self.now();
        let mut state = self.state();
        let so_far = || self.fixture.model.with_counters(ModelCounts::of);
        state.timeline.begin(now, so_far);
        match state.failure {
            None => Goes::On,
            Some(_) => Goes::Failed,
        }
    }

    /// Takes back the buffers of `window`, which has been flushed, and notes that.
    fn close(&self, window: Window) -> Result<()> {
        // Another CPU may have begun the flush and not ended it.
        for deferred in window.deferred {
            deferred.reclaim().map_err(|kept| anyhow!(kept.error))?;
        }
        self.note_tables();
        let now = self.now();
        self.state().close(window.bytes, window.since, window.ends, now);
        Ok(())
    }

    /// Notes the number of table pages; returns how many were freed since the last call.
    fn note_tables(&self) -> u64 {
        if self.pool.is_some() {
            // Copied memory needs none.
            return 0;
        }
        let pages = self.fixture.table_pages();
        let mut state = self.state();
        let freed = state.table_pages.saturating_sub(pages) as u64;
        state.table_pages = pages;
        state.tally.pages_peak = state.tally.pages_peak.max(pages);
        state.tally.tables_freed += freed;
        freed
    }

    fn map(&self, op: &ReplayOp, map: &ReplayMap, chunk: &Chunk) -> Result<()> {
        let pieces = chunk.pieces(map);
        if pieces.is_empty() {
            self.state().live.insert(op.id, None);
            return Ok(());
        }
        let own = self.devices.get((op.device % MOST_DEVICES) as usize);
        let (device, pieces) = match (&self.pool, map.class) {
            (None, _) => (own, pieces.to_vec()),
            (Some(_), Class::Streaming) => (own, parts(pieces, map.bytes)),
            // It lies where the device reaches it, and is not copied.
            (Some(_), Class::Coherent) => (self.in_place.as_ref(), pieces.to_vec()),
        };
        let device = device.context("a device that was not attached")?;
        let (queue, space) = (&self.fixture.queue, &self.fixture.space);
        let submitted = queue.submitted();
        let map_it = || device.map(buffer(pieces), map.direction);
        let mapped = self.fixture.while_mapping(map_it);
        if queue.submitted() != submitted && space.waiting() == (0, 0) {
            // Without free addresses the library has flushed all queues.
            let all = self.state().windows.take_due(f64::INFINITY);
            self.close(all)?;
        }
        self.note_tables();
        let mapping = match mapped {
            Ok(mapping) => mapping,
            Err(refused) => return self.reject(op, refused.error),
        };
        map.taken.fetch_add(1, Ordering::Relaxed);
        self.fixture.use_once(device, &mapping, map.direction);
        let (live, now) = (self.live(mapping, map.padded), self.now());
        self.state().mapped(op.id, live, now);
        Ok(())
    }

    fn live(&self, mapping: LaneMapping, padded: u64) -> ReplayedMapping {
        let granule = self.fixture.space.granule();
        let pages = IovaRange::from_len(mapping.iova().align_down(granule), padded);
        // With a pool, nothing is mapped.
        let mapped = pages.filter(|_| self.pool.is_none());
        ReplayedMapping {
            mapping,
            padded,
            entries: mapped.map_or(0, |pages| self.fixture.entries(pages)),
            ends: mapped.map(EndRegions::of),
        }
    }

    fn reject(&self, op: &ReplayOp, error: MapError) -> Result<()> {
        let rejected = match error {
            MapError::Iova(IovaError::Full { .. }) | MapError::TooLong | MapError::Copy(_) => true,
            MapError::Domain(DomainError::Map(error)) => {
                !matches!(error, TableError::AlreadyMapped { .. } | TableError::Memory(_))
            }
            _ => false,
        };
        if !rejected {
            return Err(anyhow!(error).context("the library refused a map it should take"));
        }
        let mut state = self.state();
        state.tally.rejected += 1;
        state.live.insert(op.id, None);
        Ok(())
    }

    /// The mapping that `op` ends, once its map has been carried out; none if it was rejected.
    fn take(&self, op: &ReplayOp) -> Option<ReplayedMapping> {
        loop {
            {
                let mut state = self.state();
                match state.live.remove(&op.id) {
                    Some(found) => return found,
                    None if state.failure.is_some() => return None,
                    None => {}
                }
            }
            self.fixture.cpus.relax();
        }
    }

    fn unmap(&self, cpu: usize, op: &ReplayOp) -> Result<()> {
        let Some(live) = self.take(op) else {
            return Ok(());
        };
        let (begin, unmaps) = (self.now(), self.policy.unmaps());
        // Memory that is not mapped does not stay reachable.
        let bytes = if self.pool.is_some() { 0 } else { live.padded };
        let queued_by = (unmaps != Unmaps::Strict).then_some(cpu);
        self.state().unmapped(&live, bytes, begin, queued_by);
        let ReplayedMapping { mapping, ends, .. } = live;
        if mapping.is_copied() {
            let pages = live.padded >> self.fixture.space.granule().lg2();
            self.state().tally.save(pages);
        }
        let (queue, space) = (&self.fixture.queue, &self.fixture.space);
        match unmaps {
            Unmaps::Deferred => {
                let deferred = mapping.defer().map_err(|not| anyhow!(not.error))?;
                self.state().windows.keep(cpu, deferred);
                // A worker, which is there at once.
                if space.is_flush_due() { self.tick(cpu) } else { Ok(()) }
            }
            Unmaps::Lazy => {
                let submitted = queue.submitted();
                mapping.unmap().map_err(|not| anyhow!(not.error))?;
                if queue.submitted() == submitted {
                    return Ok(());
                }
                let window = self.state().windows.take(cpu);
                self.close(window)
            }
            Unmaps::Strict => {
                mapping.unmap().map_err(|not| anyhow!(not.error))?;
                if self.note_tables() > 0 {
                    self.state().tally.table_unmaps += 1;
                }
                let now = self.now();
                self.state().close(bytes, Some(begin), ends, now);
                Ok(())
            }
        }
    }
}
