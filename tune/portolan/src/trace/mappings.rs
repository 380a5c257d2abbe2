//! Mappings that live, by the names that an unmap may have: a DMA address, a list of memory, or addresses in a table.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use super::event::MOST_PRINTED;
use super::list::List;
use super::op::{Class, DeviceId, Mix};

/// The kind of `dma:*` events that map and unmap it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    Page,
    List,
    Coherent,
}

impl Named {
    pub(super) fn of(class: Class) -> Self {
        match class {
            Class::Streaming => Self::Page,
            Class::Coherent => Self::Coherent,
        }
    }

    pub(super) fn class(self) -> Class {
        match self {
            Self::Page | Self::List => Class::Streaming,
            Self::Coherent => Class::Coherent,
        }
    }
}

/// Key of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct MappingKey {
    device: u32,
    what: u64,
}

impl MappingKey {
    pub(super) fn of_address(device: DeviceId, dma: u64) -> Self {
        Self { device: device.0, what: dma }
    }

    /// Key of a list: the pieces that the kernel prints of a long list when it maps it.
    pub(super) fn of_list(device: DeviceId, pas: List<'_>) -> Self {
        let mut mix = Mix::default();
        for pa in pas.iter().take(MOST_PRINTED) {
            mix.write_u64(pa);
        }
        Self { device: device.0, what: mix.finish() }
    }
}

/// A mapping, and where in a table it begins, if its pieces are in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LiveMapping {
    pub(super) id: u64,
    pub(super) start: Option<u64>,
}

/// Mappings that are alike, oldest first.
struct Alike {
    first: LiveMapping,
    more: VecDeque<LiveMapping>,
}

/// Mappings of one kind of event.
#[derive(Default)]
pub(super) struct LiveMappings(HashMap<MappingKey, Alike, BuildHasherDefault<Mix>>);

impl LiveMappings {
    pub(super) fn add(&mut self, key: MappingKey, mapping: LiveMapping) {
        let alike = || Alike { first: mapping, more: VecDeque::new() };
        self.0.entry(key).and_modify(|alike| alike.more.push_back(mapping)).or_insert_with(alike);
    }

    /// The oldest that `key` names.
    pub(super) fn oldest(&self, key: MappingKey) -> Option<LiveMapping> {
        self.0.get(&key).map(|alike| alike.first)
    }

    /// Mappings with the key `key`, oldest first.
    pub(super) fn alike(&self, key: MappingKey) -> impl Iterator<Item = LiveMapping> {
        let alike = self.0.get(&key).into_iter();
        alike.flat_map(|alike| std::iter::once(alike.first).chain(alike.more.iter().copied()))
    }

    pub(super) fn take(&mut self, key: MappingKey) -> Option<LiveMapping> {
        let alike = self.0.get_mut(&key)?;
        let taken = alike.first;
        match alike.more.pop_front() {
            Some(next) => alike.first = next,
            None => {
                self.0.remove(&key);
            }
        }
        Some(taken)
    }

    /// Takes the one called `id` out.
    pub(super) fn remove(&mut self, key: MappingKey, id: u64) {
        let Some(alike) = self.0.get_mut(&key) else {
            return;
        };
        if alike.first.id == id {
            self.take(key);
        } else {
            alike.more.retain(|one| one.id != id);
        }
    }
}

impl LiveMappings {
    /// Notes that the mapping called `id` begins at `start` of its table.
    pub(super) fn begins_at(&mut self, key: MappingKey, id: u64, start: u64) {
        let Some(alike) = self.0.get_mut(&key) else {
            return;
        };
        let mut all = std::iter::once(&mut alike.first).chain(&mut alike.more);
        if let Some(mapping) = all.find(|one| one.id == id) {
            mapping.start = Some(start);
        }
    }
}

/// A mapping in a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct InTable {
    pub(super) last: u64,
    /// Bytes of it that are still there.
    pub(super) left: u64,
    pub(super) device: DeviceId,
    /// Kind and key of its `dma:*` event, if that claimed it.
    pub(super) claimed: Option<(Named, MappingKey)>,
}

/// Mappings whose pieces the trace has, by first address and name.
#[derive(Default)]
pub(super) struct Tables(BTreeMap<(u64, u64), InTable>);

/// A mapping that was found in a table.
pub(super) struct FoundInTable {
    pub(super) start: u64,
    pub(super) id: u64,
    pub(super) mapping: InTable,
    /// True if the same words could mean another one.
    pub(super) ambiguous: bool,
}

impl Tables {
    pub(super) fn add(&mut self, start: u64, id: u64, mapping: InTable) {
        self.0.insert((start, id), mapping);
    }

    pub(super) fn remove(&mut self, start: u64, id: u64) -> Option<InTable> {
        self.0.remove(&(start, id))
    }

    /// Takes the mapping of exactly these addresses. If several domains have one, a mapping that waits for its
    /// `dma:*` event comes first, then the oldest.
    pub(super) fn take_exact(&mut self, start: u64, last: u64) -> Option<FoundInTable> {
        let here = self.0.range((start, 0)..=(start, u64::MAX));
        let mut exact = here.filter(|(_, one)| one.last == last && one.left == last - start + 1);
        let first = exact.next()?;
        let (mut best, mut others) = (first, false);
        for one in exact {
            others = true;
            if best.1.claimed.is_none() && one.1.claimed.is_some() {
                best = one;
            }
        }
        let ((start, id), mapping) = (*best.0, *best.1);
        self.0.remove(&(start, id));
        Some(FoundInTable { start, id, mapping, ambiguous: others && mapping.claimed.is_none() })
    }

    /// Removes `start` to `last` from the mappings there. Mappings that are then empty are added to `ended`. Returns
    /// `true` if any was found.
    pub(super) fn take_within(
        &mut self,
        start: u64,
        last: u64,
        ended: &mut Vec<FoundInTable>,
    ) -> bool {
        let before =
            self.0.range_mut(..(start, 0)).next_back().filter(|(_, one)| one.last >= start);
        let (mut gone, mut found) = (Vec::new(), false);
        let mut take = |key: &(u64, u64), one: &mut InTable| {
            let bytes = one.last.min(last) - key.0.max(start) + 1;
            one.left = one.left.saturating_sub(bytes);
            found = true;
            if one.left == 0 {
                gone.push(*key);
            }
        };
        if let Some((key, one)) = before {
            take(key, one);
        }
        for (key, one) in self.0.range_mut((start, 0)..=(last, u64::MAX)) {
            take(key, one);
        }
        for (start, id) in gone {
            if let Some(mapping) = self.0.remove(&(start, id)) {
                ended.push(FoundInTable { start, id, mapping, ambiguous: false });
            }
        }
        found
    }
}
