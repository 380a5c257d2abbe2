//! The storage of a cache of a given size: sets of ways, and which slots are taken.

use super::{Entry, Key};
use crate::profile::CacheGeometry;

/// Slots in sets; a key can only be in its own set.
#[derive(Clone, Debug)]
pub(super) struct Sets<V> {
    ways: usize,
    sets: usize,
    slots: Vec<Option<Entry<V>>>,
    /// One bit for each slot that is taken, so that dropping visits only these.
    taken: Vec<u64>,
}

impl<V: Copy> Sets<V> {
    pub(super) fn new(geometry: CacheGeometry) -> Self {
        let ways = (geometry.ways as usize).max(1);
        let sets = (geometry.entries as usize / ways).max(1);
        let slots = vec![None; sets * ways];
        let taken = vec![0; slots.len().div_ceil(64)];
        Self { ways, sets, slots, taken }
    }

    pub(super) fn number(&self) -> usize {
        self.sets
    }

    fn of(&self, key: Key) -> std::ops::Range<usize> {
        let context = u64::from(key.context.get()).wrapping_mul(0x9e37_79b9);
        let spread = key.page.wrapping_add(context);
        let set = if self.sets.is_power_of_two() {
            spread & (self.sets as u64 - 1)
        } else {
            spread % self.sets as u64
        };
        let first = set as usize * self.ways;
        first..first + self.ways
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Entry<V>> {
        let set = self.of(key);
        self.slots[set].iter_mut().flatten().find(|entry| entry.key == key)
    }

    /// Inserts `entry`. It replaces the entry with its key, or, if its set is full, the one with the oldest stamp.
    /// Returns by how much the number of entries grew.
    pub(super) fn put(&mut self, entry: Entry<V>) -> usize {
        if let Some(old) = self.get_mut(entry.key) {
            *old = entry;
            return 0;
        }
        // An empty slot has no stamp and comes first.
        let set = self.of(entry.key);
        let stamp = |slot: &usize| self.slots[*slot].map(|old| old.stamp);
        let Some(slot) = set.min_by_key(stamp) else {
            return 0;
        };
        self.taken[slot / 64] |= 1 << (slot % 64);
        usize::from(self.slots[slot].replace(entry).is_none())
    }

    /// Takes the entries of the set of `key` that `which` agrees to.
    pub(super) fn drop_in_set(
        &mut self,
        key: Key,
        which: impl Fn(&Entry<V>) -> bool,
        mut dropped: impl FnMut(Entry<V>),
    ) {
        for slot in self.of(key) {
            self.drop_at(slot, &which, &mut dropped);
        }
    }

    /// Takes the entries that `which` agrees to.
    pub(super) fn drop_all(
        &mut self,
        which: impl Fn(&Entry<V>) -> bool,
        mut dropped: impl FnMut(Entry<V>),
    ) {
        for word in 0..self.taken.len() {
            let mut bits = self.taken[word];
            while bits != 0 {
                self.drop_at(word * 64 + bits.trailing_zeros() as usize, &which, &mut dropped);
                bits &= bits - 1;
            }
        }
    }

    fn drop_at(
        &mut self,
        slot: usize,
        which: impl Fn(&Entry<V>) -> bool,
        mut dropped: impl FnMut(Entry<V>),
    ) {
        if let Some(entry) = self.slots[slot].take_if(|entry| which(entry)) {
            self.taken[slot / 64] &= !(1 << (slot % 64));
            dropped(entry);
        }
    }
}
