//! An IOMMU: caches in front of table walks, and a command queue that invalidates them.
//!
//! Table memory is read through [`WalkMemory`], as far as the walker can see it. Streams are configured in memory
//! that the IOMMU reads and caches; changing that memory drops nothing. All calls are through `&self` behind one
//! lock, so several CPUs and devices can share it.

mod fault;
mod queue;
mod setup;
#[cfg(test)]
mod tests;
mod translate;

pub use fault::{Fault, FaultKind};
pub use queue::MapSide;
pub use setup::{CommandPrices, Injection, Names, Owed, QueueError, Setup, StreamConfig, Temper};

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan::addr::{InvalTag, Iova, PageSize, PhysAddr, StreamId};
use portolan::inval::{Capabilities, Command};

use crate::adversary::{AddressType, Visit, Visits};
use crate::cache::{Cache, Key};
use crate::clock::VirtualClock;
use crate::counters::Counters;
use crate::decode::{AccessKind, Cursor, Leaf, TableRoot, WalkMemory};
use crate::profile::CacheGeometry;
use crate::request::Request;
use setup::CachedConfig;

/// Levels that any format has.
const LEVELS: usize = 6;

/// An IOMMU over table memory `M`.
#[derive(Debug)]
pub struct Iommu<M> {
    memory: M,
    setup: Setup,
    state: Mutex<ModelState>,
}

/// An entry of the IOTLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IotlbEntry {
    Present(Leaf),
    /// The entry of this level was not present.
    Absent {
        level: u8,
    },
}

/// Configuration, caches and pending invalidations.
#[derive(Debug)]
struct ModelState {
    /// Configuration in memory.
    streams: BTreeMap<StreamId, StreamConfig>,
    /// The last table that memory named for a context, for telling collateral.
    tables: BTreeMap<InvalTag, TableRoot>,
    iotlb: Cache<IotlbEntry>,
    /// Walk caches, by the level of the table that an entry points to.
    walk: [Cache<Cursor>; LEVELS],
    configuration: Cache<CachedConfig>,
    /// Invalidations that take effect at the next sync.
    pending: Vec<Command>,
    /// Places that devices got to, if they try it again.
    visits: Visits,
    /// Commands since the queue last drained.
    queued: u32,
    /// Commands since the last sync.
    unpublished: u64,
    commands: u64,
    syncs: u64,
    injection: Injection,
    counters: Counters,
}

/// Result of a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Translated {
    /// The memory address of the access.
    pub pa: PhysAddr,
    /// Size of the page that translates it.
    pub size: PageSize,
}

/// Number of entries in each cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Entries of the cache of leaf translations, which includes cached absence.
    pub iotlb: usize,
    /// Pointers at tables, of all levels.
    pub walk: usize,
    /// Streams.
    pub configuration: usize,
    /// Invalidations that wait for a sync.
    pub pending: usize,
}

impl<M: WalkMemory> Iommu<M> {
    /// An IOMMU with empty caches and no stream configured.
    pub fn new(setup: Setup, memory: M) -> Self {
        let state = Mutex::new(ModelState::new(&setup.temper));
        Self { memory, setup, state }
    }

    /// Capabilities of the hardware.
    pub fn capabilities(&self) -> &Capabilities {
        &self.setup.capabilities
    }

    /// Clock that commands, syncs and cache cleaning are charged to.
    pub fn clock(&self) -> &Arc<VirtualClock> {
        &self.setup.clock
    }

    /// The memory that it walks.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Writes the configuration of a stream. Cached entries of the old one stay until they are invalidated.
    pub fn attach(&self, stream: StreamId, config: StreamConfig) {
        let mut state = self.lock();
        if let StreamConfig::Translate { context, table } = config {
            state.tables.insert(context, table);
        }
        state.streams.insert(stream, config);
    }

    /// Removes the configuration of a stream. Cached entries of it stay until they are invalidated.
    pub fn detach(&self, stream: StreamId) {
        self.lock().streams.remove(&stream);
    }

    /// Translates an access to one address; counts as an access of no bytes.
    ///
    /// # Errors
    /// [`Fault`] if it does not go through.
    pub fn translate(
        &self,
        stream: StreamId,
        iova: Iova,
        access: AccessKind,
    ) -> Result<Translated, Fault> {
        self.transfer(&mut self.lock(), stream, iova, 0, access)
    }

    /// Does a transfer of `bytes` bytes page by page, and tells `visit` each piece: its device address, its memory
    /// address, and its bytes. Pages before a fault have been visited.
    ///
    /// # Errors
    /// The first [`Fault`].
    pub fn dma(
        &self,
        stream: StreamId,
        iova: Iova,
        bytes: u64,
        access: AccessKind,
        mut visit: impl FnMut(Iova, PhysAddr, u64),
    ) -> Result<(), Fault> {
        let mut at = iova;
        let mut left = bytes;
        while left > 0 {
            // Pieces end where the smallest page may end.
            let granule = self.setup.capabilities.granule;
            let room = granule.bytes() - (at.get() & (granule.bytes() - 1));
            let piece = left.min(room);
            let found = self.transfer(&mut self.lock(), stream, at, piece, access)?;
            visit(at, found.pa, piece);
            left -= piece;
            if left > 0 {
                let past = Fault { stream, iova: at, access, kind: FaultKind::PastTheTop };
                at = at.checked_add(piece).ok_or(past)?;
            }
        }
        Ok(())
    }

    fn transfer(
        &self,
        state: &mut ModelState,
        stream: StreamId,
        iova: Iova,
        bytes: u64,
        access: AccessKind,
    ) -> Result<Translated, Fault> {
        match self.look_up(state, stream, iova, access) {
            Ok(found) => {
                state.counters.dma_accesses += 1;
                state.counters.dma_bytes = state.counters.dma_bytes.saturating_add(bytes);
                if self.setup.temper == Temper::Adversarial {
                    let of = Request::new(stream, None, iova, access);
                    let way = AddressType::Untranslated;
                    state.visits.note(Visit { of, way });
                }
                Ok(found)
            }
            Err(kind) => {
                state.counters.faults += 1;
                Err(Fault { stream, iova, access, kind })
            }
        }
    }

    /// Counts of events so far.
    pub fn counters(&self) -> Counters {
        self.lock().counters.clone()
    }

    /// Looks at the counts so far, without a copy of them.
    pub fn with_counters<R>(&self, look: impl FnOnce(&Counters) -> R) -> R {
        look(&self.lock().counters)
    }

    /// Takes the counts since the last call of this kind.
    pub fn take_counters(&self) -> Counters {
        std::mem::take(&mut self.lock().counters)
    }

    /// Nanoseconds that devices waited for table walks, by the walk steps counted so far.
    pub fn stall_ns(&self) -> f64 {
        self.lock().counters.walk_steps as f64 * self.setup.prices.miss_step
    }

    /// Number of entries in each cache.
    pub fn occupancy(&self) -> Occupancy {
        let state = self.lock();
        Occupancy {
            iotlb: state.iotlb.len(),
            walk: state.walk.iter().map(Cache::len).sum(),
            configuration: state.configuration.len(),
            pending: state.pending.len(),
        }
    }

    /// Sets the faults on demand.
    pub fn inject(&self, injection: Injection) {
        self.lock().injection = injection;
    }

    fn lock(&self) -> MutexGuard<'_, ModelState> {
        // Nothing panics while it holds the lock; if it did, counters would be all that is off.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ModelState {
    fn new(temper: &Temper) -> Self {
        fn cache<V: Copy>(geometry: Option<CacheGeometry>) -> Cache<V> {
            geometry.map_or_else(Cache::unbounded, Cache::of_size)
        }
        let (iotlb, walk, configuration) = match temper {
            Temper::Adversarial => (None, None, None),
            Temper::Realistic(sizes) => {
                (Some(sizes.iotlb), Some(sizes.walk), Some(sizes.configuration))
            }
        };
        Self {
            streams: BTreeMap::new(),
            tables: BTreeMap::new(),
            iotlb: cache(iotlb),
            walk: std::array::from_fn(|_| cache(walk)),
            configuration: cache(configuration),
            pending: Vec::new(),
            visits: Visits::default(),
            queued: 0,
            unpublished: 0,
            commands: 0,
            syncs: 0,
            injection: Injection::default(),
            counters: Counters::default(),
        }
    }
}

impl ModelState {
    /// Entries in all caches.
    fn entries(&self) -> usize {
        let walk: usize = self.walk.iter().map(Cache::len).sum();
        self.iotlb.len() + walk + self.configuration.len()
    }
}

/// Key of a stream's configuration in its cache: streams take the place of addresses.
fn stream_key(stream: StreamId) -> Key {
    Key::new(InvalTag::default(), stream_address(stream), PageSize::of_lg2(0))
}

fn stream_address(stream: StreamId) -> Iova {
    Iova::new(stream.get().into())
}
