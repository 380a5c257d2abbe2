//! Translation of a device's access to memory: configuration, IOTLB, walk caches, walk.

use portolan::addr::{InvalTag, Iova, PhysAddr, StreamId};
use portolan::inval::Caching;

use super::setup::CachedConfig;
use super::{
    FaultKind, Iommu, IotlbEntry, ModelState, StreamConfig, Translated, stream_address, stream_key,
};
use crate::cache::Key;
use crate::decode::{AccessKind, Cursor, Leaf, Stepped, TableRoot, WalkFault, WalkMemory, step};

impl<M: WalkMemory> Iommu<M> {
    pub(super) fn look_up(
        &self,
        state: &mut ModelState,
        stream: StreamId,
        iova: Iova,
        access: AccessKind,
    ) -> Result<Translated, FaultKind> {
        let (context, table) = match self.configuration(state, stream) {
            None => return Err(FaultKind::NoContext),
            Some(StreamConfig::Blocked) => return Err(FaultKind::Blocked),
            Some(StreamConfig::Bypass) => {
                let size = self.setup.capabilities.granule;
                return Ok(Translated { pa: PhysAddr::new(iova.get()), size });
            }
            Some(StreamConfig::Translate { context, table }) => (context, table),
        };
        let known = match state.iotlb.lookup(context, iova) {
            Some(known) => {
                state.counters.iotlb_hits += 1;
                known
            }
            None => {
                state.counters.iotlb_misses += 1;
                self.walk(state, context, &table, iova)?
            }
        };
        match known {
            IotlbEntry::Absent { level } => Err(FaultKind::NoTranslation { level }),
            IotlbEntry::Present(leaf) if leaf.permissions.allow(access) => {
                Ok(Translated { pa: leaf.address(iova), size: leaf.size })
            }
            IotlbEntry::Present(_) => Err(FaultKind::Permission),
        }
    }

    fn configuration(&self, state: &mut ModelState, stream: StreamId) -> Option<StreamConfig> {
        let cached = state.configuration.lookup(InvalTag::default(), stream_address(stream));
        if let Some(cached) = cached {
            return cached.config;
        }
        state.counters.config_misses += 1;
        let config = state.streams.get(&stream).copied();
        if config.is_some() || self.setup.capabilities.caching == Caching::NotPresentToo {
            state.configuration.insert(stream_key(stream), CachedConfig { stream, config });
        }
        config
    }

    /// Walks the table from the deepest table that a walk cache knows.
    fn walk(
        &self,
        state: &mut ModelState,
        context: InvalTag,
        table: &TableRoot,
        iova: Iova,
    ) -> Result<IotlbEntry, FaultKind> {
        let format = table.format;
        let top = Cursor::top(table);
        let mut at = top;
        for level in 0..top.level {
            let cached = state.walk.get_mut(usize::from(level));
            if let Some(known) = cached.and_then(|cache| cache.lookup(context, iova)) {
                state.counters.walk_cache_hits += 1;
                at = known;
                break;
            }
        }
        loop {
            state.counters.walk_steps += 1;
            match step(&self.memory, format, at, iova) {
                Ok(Stepped::Down(next)) => {
                    let key = Key::new(context, iova, format.span(at.level));
                    if let Some(cache) = state.walk.get_mut(usize::from(next.level)) {
                        cache.insert(key, next);
                    }
                    at = next;
                }
                Ok(Stepped::Found(leaf)) => {
                    let known = IotlbEntry::Present(leaf);
                    state.iotlb.insert(Key::new(context, iova, leaf.size), known);
                    return Ok(known);
                }
                Err(WalkFault::NoTranslation { level }) => {
                    let known = IotlbEntry::Absent { level };
                    let caches = self.setup.capabilities.caching == Caching::NotPresentToo;
                    if caches && format.holds(iova) {
                        state.iotlb.insert(Key::new(context, iova, format.span(level)), known);
                    }
                    return Ok(known);
                }
                Err(fault) => return Err(fault.into()),
            }
        }
    }

    /// Tells if the tables in memory still have the leaf of an entry.
    pub(super) fn still_holds(&self, table: Option<&TableRoot>, iova: Iova, leaf: &Leaf) -> bool {
        let now = table.and_then(|table| crate::decode::walk(&self.memory, table, iova).ok());
        now.is_some_and(|now| now == *leaf)
    }
}
