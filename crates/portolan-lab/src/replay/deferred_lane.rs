//! The deferred policy at work: the library's DMA layer, with buffers that are handed over.
//!
//! An unmap defers the mapping and returns; its buffer comes back once the flush of its CPU's queue
//! has completed. A queue is flushed when it holds 256 mappings or 64 MiB, when its oldest is 10 ms
//! old by the trace's clock, and when the trace ends. Until then the device may reach what was
//! unmapped, but neither its addresses nor its memory belong to anybody else.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use portolan::addr::{IovaRange, PhysRange};
use portolan::dma::{Bidirectional, Bounds, MapError, Policy as DmaPolicy};
use portolan::iommu::DomainError;
use portolan::iova::IovaError;
use portolan::platform::SlabTables;
use portolan::table::{Format, MapError as TableError, Segment};
use portolan_model::profile::Profile;

use super::lane::{At, IdHasher, Lane, Taken, WINDOW_LG2, touch};
use super::policy::Policy;
use super::report::PolicyReport;
use super::tally::Tally;
use crate::buffers::Memory;
use crate::dma_rig::{DmaRig, LabDeferred, LabMapping, SpaceSetup};
use crate::reproduce::own_quirks;
use crate::rig::Rig;

/// CPUs that have queues of their own; a trace with more shares them.
const MOST_CPUS: u32 = 256;

struct Live {
    mapping: LabMapping,
    bytes: u64,
    entries: u64,
}

struct Waiting {
    deferred: LabDeferred,
    bytes: u64,
    since_ns: u64,
}

/// A lane over table format `F`.
pub(super) struct DeferredLane<F: Format> {
    // Before the rig: what waits or is mapped leads to its space.
    waiting: VecDeque<Waiting>,
    live: HashMap<u64, Live, BuildHasherDefault<IdHasher>>,
    rig: DmaRig<F>,
    age_ns: u64,
    waiting_bytes: u64,
    tally: Tally,
}

impl<F: Format> DeferredLane<F> {
    pub(super) fn new(
        profile: &Profile,
        format: F,
        memory: Arc<SlabTables<F::Word>>,
    ) -> Result<Self> {
        let bounds = Bounds::default();
        let setup = SpaceSetup {
            policy: DmaPolicy::Deferred,
            bounds,
            caps: profile.capabilities(),
            quirks: own_quirks(profile)?,
            window_lg2: WINDOW_LG2.min(format.input_lg2()),
            cpus: profile.cpus().min(MOST_CPUS) as usize,
        };
        let rig = DmaRig::new(format, memory.clone(), &setup, |root| {
            Rig::new(profile, memory, root)
        })?;
        Ok(Self {
            waiting: VecDeque::new(),
            live: HashMap::default(),
            rig,
            age_ns: bounds.age.get(),
            waiting_bytes: 0,
            tally: Tally::default(),
        })
    }

    /// Notes and gives back what has become quiet at `at_ns`, after `took_ns` of flushing.
    fn collect(&mut self, at_ns: u64, took_ns: f64) {
        let mut kept = VecDeque::new();
        // Queues are flushed one at a time, so those that are quiet may stand anywhere.
        for waiting in self.waiting.drain(..) {
            let Waiting {
                deferred,
                bytes,
                since_ns,
            } = waiting;
            match deferred.try_reclaim() {
                Ok(buffer) => {
                    self.waiting_bytes -= bytes;
                    let waited = at_ns.saturating_sub(since_ns) as f64;
                    self.tally.exposed(0, waited + took_ns);
                    drop(buffer);
                }
                Err(deferred) => kept.push_back(Waiting {
                    deferred,
                    bytes,
                    since_ns,
                }),
            }
        }
        self.waiting = kept;
    }

    /// Runs `act` at `now_ns`, and collects if it flushed anything.
    fn acting<R>(&mut self, now_ns: u64, act: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let (syncs, begin) = (self.rig.rig.counters().syncs, self.rig.rig.now_ns());
        let pages = self.rig.table().pages();
        let done = act(self)?;
        self.tally.tables_freed += pages.saturating_sub(self.rig.table().pages()) as u64;
        if self.rig.rig.counters().syncs != syncs {
            self.collect(now_ns, self.rig.rig.now_ns() - begin);
        }
        Ok(done)
    }

    /// Lets the timer run at each moment at which something is due by `now_ns`.
    fn tick(&mut self, now_ns: u64) -> Result<()> {
        while let Some(oldest) = self.waiting.front() {
            let due = oldest.since_ns.saturating_add(self.age_ns);
            if due > now_ns {
                break;
            }
            self.rig.moment.set_ns(due);
            let before = self.waiting.len();
            self.acting(due, |lane| Ok(lane.rig.space.tick()?))?;
            if self.waiting.len() == before {
                return Err(anyhow!(
                    "what was deferred stays reachable beyond its bound"
                ));
            }
        }
        Ok(())
    }

    fn range(live: &Live) -> Option<IovaRange> {
        IovaRange::from_len(live.mapping.iova().align_down(F::GRANULE), live.bytes)
    }

    fn entries(&self, range: IovaRange) -> u64 {
        let pages = range.pages(F::GRANULE);
        if pages >> F::INDEX_LG2 == 0 {
            return pages;
        }
        self.rig.table().mappings(range).count() as u64
    }

    fn reject(&mut self, error: MapError) -> Result<Taken> {
        let too_much = matches!(
            error,
            MapError::Iova(IovaError::Full { .. }) | MapError::TooLong
        );
        let inexpressible = match error {
            MapError::Domain(DomainError::Map(error)) => !matches!(
                error,
                TableError::AlreadyMapped { .. } | TableError::Memory(_)
            ),
            _ => false,
        };
        if too_much || inexpressible {
            self.tally.rejected += 1;
            return Ok(Taken::Rejected);
        }
        Err(anyhow!(error).context("the library refused a map it should take"))
    }
}

impl<F: Format> Lane for DeferredLane<F> {
    fn map(&mut self, at: At, id: u64, pieces: &[Segment], bytes: u64) -> Result<Taken> {
        self.tick(at.now_ns)?;
        self.rig.moment.set(at.now_ns, at.cpu);
        let whole = pieces.iter();
        let whole = whole.filter_map(|piece| PhysRange::from_len(piece.pa, piece.bytes));
        let buffer = Memory(whole.collect());
        let mapped = self.acting(at.now_ns, |lane| {
            let map = || lane.rig.device.map(buffer, Bidirectional);
            Ok(lane.rig.while_mapping(map))
        })?;
        let mapping = match mapped {
            Ok(mapping) => mapping,
            Err(refused) => return self.reject(refused.error),
        };
        let mut live = Live {
            mapping,
            bytes,
            entries: 0,
        };
        let range = Self::range(&live).ok_or_else(|| anyhow!("an empty mapping"))?;
        live.entries = self.entries(range);
        self.tally.maps += 1;
        self.tally.entries_mapped += live.entries;
        self.live.insert(id, live);
        self.tally.mapped_peak = self.tally.mapped_peak.max(self.live.len() as u64);
        self.tally.pages_peak = self.tally.pages_peak.max(self.rig.table().pages());
        touch::<F>(&self.rig.rig, range);
        Ok(Taken::Yes)
    }

    fn unmap(&mut self, at: At, id: u64) -> Result<()> {
        self.tick(at.now_ns)?;
        self.rig.moment.set(at.now_ns, at.cpu);
        let Some(Live {
            mapping,
            bytes,
            entries,
        }) = self.live.remove(&id)
        else {
            return Ok(());
        };
        self.tally.unmaps += 1;
        self.tally.entries_unmapped += entries;
        self.waiting_bytes += bytes;
        self.tally.exposed(self.waiting_bytes, 0.0);
        self.acting(at.now_ns, |lane| {
            let deferred = mapping.defer().map_err(|not| anyhow!(not.error))?;
            lane.waiting.push_back(Waiting {
                deferred,
                bytes,
                since_ns: at.now_ns,
            });
            // Nobody else would: the timer runs at moments of its own.
            if lane.rig.space.is_flush_due() {
                lane.rig.space.tick()?;
            }
            Ok(())
        })
    }

    fn finish(&mut self) -> Result<PolicyReport> {
        self.tick(u64::MAX)?;
        Ok(self.tally.report(Policy::Deferred.name(), &self.rig.rig))
    }
}
