//! A cache of an IOMMU, with entries of several page sizes.
//!
//! Unbounded, it forgets nothing by itself. Of a given size, it replaces the entry of its set that was used least
//! recently. Entries are found by any address that they span.

mod sets;

use std::collections::BTreeMap;

use portolan::addr::{InvalTag, Iova, IovaRange, PageSize};

use crate::profile::CacheGeometry;
use sets::Sets;

/// Key of an entry: a page of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    context: InvalTag,
    lg2: u8,
    /// The address without its `lg2` low bits.
    page: u64,
}

impl Key {
    /// The page of `size` that holds `iova`, in `context`.
    pub const fn new(context: InvalTag, iova: Iova, size: PageSize) -> Self {
        Self { context, lg2: size.lg2() as u8, page: iova.get() >> size.lg2() }
    }

    /// Context of the entry.
    pub const fn context(self) -> InvalTag {
        self.context
    }

    /// The addresses that the entry spans.
    pub const fn range(self) -> IovaRange {
        let size = PageSize::of_lg2(self.lg2 as u32);
        IovaRange::page(Iova::new(self.page << self.lg2), size)
    }
}

/// Entries that an invalidation concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Entries of a context that share an address with the range.
    Range(InvalTag, IovaRange),
    /// Entries of a context.
    Context(InvalTag),
    /// Every entry.
    All,
}

impl Reach {
    fn concerns(self, key: Key) -> bool {
        match self {
            Self::Range(context, range) => key.context == context && key.range().overlaps(range),
            Self::Context(context) => key.context == context,
            Self::All => true,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry<V> {
    key: Key,
    value: V,
    /// Time at which it was put in (unbounded) or last used (of a given size), as a count.
    stamp: u64,
}

#[derive(Clone, Debug)]
enum Entries<V> {
    Unbounded(BTreeMap<Key, Entry<V>>),
    Sized(Sets<V>),
}

/// A cache of `V`.
#[derive(Clone, Debug)]
pub struct Cache<V> {
    entries: Entries<V>,
    /// Bit `n` is set once there has been an entry that spans `2^n` bytes.
    sizes: u64,
    held: usize,
    stamp: u64,
}

impl<V: Copy> Cache<V> {
    /// A cache that never forgets by itself. Where entries overlap, the oldest answers.
    pub fn unbounded() -> Self {
        Self { entries: Entries::Unbounded(BTreeMap::new()), sizes: 0, held: 0, stamp: 0 }
    }

    /// A cache of the given size with least-recently-used replacement. Where entries overlap, the
    /// smallest answers. A geometry without a whole set is taken as one entry.
    pub fn of_size(geometry: CacheGeometry) -> Self {
        Self { entries: Entries::Sized(Sets::new(geometry)), sizes: 0, held: 0, stamp: 0 }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.held
    }

    /// Tells if there are none.
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// The entry of `context` that spans `iova`.
    pub fn lookup(&mut self, context: InvalTag, iova: Iova) -> Option<V> {
        self.stamp += 1;
        if self.held == 0 {
            return None;
        }
        let keys = Sizes(self.sizes).map(|size| Key::new(context, iova, size));
        match &mut self.entries {
            Entries::Unbounded(map) => {
                let hits = keys.filter_map(|key| map.get(&key));
                hits.min_by_key(|entry| entry.stamp).map(|entry| entry.value)
            }
            Entries::Sized(sets) => {
                for key in keys {
                    if let Some(entry) = sets.get_mut(key) {
                        entry.stamp = self.stamp;
                        return Some(entry.value);
                    }
                }
                None
            }
        }
    }

    /// Puts an entry in, in place of one with the same key.
    pub fn insert(&mut self, key: Key, value: V) {
        self.stamp += 1;
        self.sizes |= 1 << (key.lg2 & 63);
        let entry = Entry { key, value, stamp: self.stamp };
        match &mut self.entries {
            Entries::Unbounded(map) => {
                map.insert(key, entry);
                self.held = map.len();
            }
            Entries::Sized(sets) => self.held += sets.put(entry),
        }
    }

    /// Drops the entries that `reach` concerns and `which` agrees to, and tells `dropped` of each.
    pub fn drop_where(
        &mut self,
        reach: Reach,
        which: impl Fn(Key, &V) -> bool,
        mut dropped: impl FnMut(Key, V),
    ) {
        if self.held == 0 {
            return;
        }
        match &mut self.entries {
            Entries::Unbounded(map) => {
                for key in keys_within(map, self.sizes, reach, which) {
                    if let Some(entry) = map.remove(&key) {
                        dropped(key, entry.value);
                    }
                }
                self.held = map.len();
            }
            Entries::Sized(sets) => {
                let concerned =
                    |entry: &Entry<V>| reach.concerns(entry.key) && which(entry.key, &entry.value);
                let mut gone = |entry: Entry<V>| {
                    self.held -= 1;
                    dropped(entry.key, entry.value);
                };
                let sizes = Sizes(self.sizes);
                match reach {
                    // A few pages: look at their sets. Otherwise at everything.
                    Reach::Range(context, range)
                        if pages_of_all(sizes, range) < sets.number() as u64 =>
                    {
                        for size in sizes {
                            let first = range.start().get() >> size.lg2();
                            for page in first..first + range.pages(size) {
                                let lg2 = size.lg2() as u8;
                                sets.drop_in_set(Key { context, lg2, page }, concerned, &mut gone);
                            }
                        }
                    }
                    _ => sets.drop_all(concerned, gone),
                }
            }
        }
    }
}

/// Number of pages that the range touches, of all the sizes together.
fn pages_of_all(sizes: Sizes, range: IovaRange) -> u64 {
    sizes.map(|size| range.pages(size)).fold(0, u64::saturating_add)
}

/// The sizes in a set, smallest first.
#[derive(Clone, Copy)]
struct Sizes(u64);

impl Iterator for Sizes {
    type Item = PageSize;

    fn next(&mut self) -> Option<PageSize> {
        let size = PageSize::from_lg2(self.0.trailing_zeros())?;
        self.0 &= self.0 - 1;
        Some(size)
    }
}

fn keys_within<V>(
    map: &BTreeMap<Key, Entry<V>>,
    sizes: u64,
    reach: Reach,
    which: impl Fn(Key, &V) -> bool,
) -> Vec<Key> {
    let wanted = |entry: &&Entry<V>| which(entry.key, &entry.value);
    let key = |entry: &Entry<V>| entry.key;
    let context_keys = |context| {
        let first = Key { context, lg2: 0, page: 0 };
        first..=Key { context, lg2: u8::MAX, page: u64::MAX }
    };
    match reach {
        Reach::All => map.values().filter(wanted).map(key).collect(),
        Reach::Context(context) => map
            .range(context_keys(context))
            .map(|(_, entry)| entry)
            .filter(wanted)
            .map(key)
            .collect(),
        Reach::Range(context, range) => Sizes(sizes)
            .flat_map(|size| {
                let first = Key::new(context, range.start(), size);
                map.range(first..=Key::new(context, range.last(), size))
            })
            .map(|(_, entry)| entry)
            .filter(wanted)
            .map(key)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: InvalTag = InvalTag::new(1);
    const B: InvalTag = InvalTag::new(2);

    fn key(context: InvalTag, iova: u64, lg2: u32) -> Key {
        Key::new(context, Iova::new(iova), PageSize::of_lg2(lg2))
    }

    fn at(cache: &mut Cache<u32>, context: InvalTag, iova: u64) -> Option<u32> {
        cache.lookup(context, Iova::new(iova))
    }

    fn both() -> [Cache<u32>; 2] {
        [Cache::unbounded(), Cache::of_size(CacheGeometry { entries: 8, ways: 4 })]
    }

    fn drop_all(cache: &mut Cache<u32>, reach: Reach) -> Vec<u32> {
        let mut gone = Vec::new();
        cache.drop_where(reach, |_, _| true, |_, value| gone.push(value));
        gone.sort_unstable();
        gone
    }

    #[test]
    fn finds_by_any_address_and_size() {
        for mut cache in both() {
            cache.insert(key(A, 0x5000, 12), 1);
            cache.insert(key(A, 0x20_0000, 21), 2);
            assert_eq!(at(&mut cache, A, 0x5fff), Some(1));
            assert_eq!(at(&mut cache, A, 0x3f_ffff), Some(2));
            assert_eq!(at(&mut cache, A, 0x6000), None);
            assert_eq!(at(&mut cache, B, 0x5000), None);
            assert_eq!(cache.len(), 2);
        }
    }

    #[test]
    fn drops_what_overlaps_and_nothing_else() {
        for mut cache in both() {
            cache.insert(key(A, 0x5000, 12), 1);
            cache.insert(key(A, 0x20_0000, 21), 2);
            cache.insert(key(A, 0x40_0000, 12), 3);
            cache.insert(key(B, 0x5000, 12), 4);
            let page = |iova| IovaRange::page(Iova::new(iova), PageSize::SIZE_4K);
            assert_eq!(drop_all(&mut cache, Reach::Range(A, page(0x6000))), []);
            // One page of a block drops the block.
            assert_eq!(drop_all(&mut cache, Reach::Range(A, page(0x3f_f000))), [2]);
            let wide = IovaRange::new(Iova::new(0), Iova::new(u64::MAX)).unwrap();
            assert_eq!(drop_all(&mut cache, Reach::Range(A, wide)), [1, 3]);
            assert_eq!(drop_all(&mut cache, Reach::Context(A)), []);
            assert_eq!(drop_all(&mut cache, Reach::Context(B)), [4]);
            assert!(cache.is_empty());
            cache.insert(key(A, u64::MAX, 12), 5);
            assert_eq!(drop_all(&mut cache, Reach::Range(A, page(u64::MAX))), [5]);
            cache.insert(key(B, 0, 12), 6);
            assert_eq!(drop_all(&mut cache, Reach::All), [6]);
        }
    }

    #[test]
    fn replaces_what_was_used_least_recently() {
        let mut cache = Cache::of_size(CacheGeometry { entries: 2, ways: 2 });
        cache.insert(key(A, 0x1000, 12), 1);
        cache.insert(key(A, 0x2000, 12), 2);
        assert_eq!(at(&mut cache, A, 0x1000), Some(1));
        cache.insert(key(A, 0x3000, 12), 3);
        assert_eq!(at(&mut cache, A, 0x2000), None);
        assert_eq!(at(&mut cache, A, 0x1000), Some(1));
        assert_eq!(at(&mut cache, A, 0x3000), Some(3));
        cache.insert(key(A, 0x1000, 12), 4);
        assert_eq!((at(&mut cache, A, 0x1000), cache.len()), (Some(4), 2));
    }

    #[test]
    fn pages_compete_only_within_their_set() {
        let mut cache = Cache::of_size(CacheGeometry { entries: 4, ways: 1 });
        for page in 0..4u64 {
            cache.insert(key(A, page << 12, 12), page as u32);
        }
        assert_eq!(cache.len(), 4);
        cache.insert(key(A, 4 << 12, 12), 4);
        assert_eq!(cache.len(), 4);
        assert_eq!(at(&mut cache, A, 0), None);
        assert_eq!(at(&mut cache, A, 1 << 12), Some(1));
    }

    #[test]
    fn unbounded_keeps_all_and_the_oldest_answers() {
        let mut cache = Cache::unbounded();
        for page in 0..10_000u64 {
            cache.insert(key(A, page << 12, 12), page as u32);
        }
        assert_eq!(cache.len(), 10_000);
        cache.insert(key(A, 0, 21), 77_777);
        assert_eq!(at(&mut cache, A, 0x3000), Some(3));
        cache.drop_where(Reach::All, |_, value| *value == 3, |_, _| {});
        assert_eq!(at(&mut cache, A, 0x3000), Some(77_777));
    }
}
