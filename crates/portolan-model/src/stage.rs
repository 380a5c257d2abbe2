//! The caches of one translation stage and a walk through them, for the register interfaces.
//!
//! The walk reads entries wherever `locate` puts them, so that the tables of a first stage may lie
//! behind a second.

use portolan::addr::{ContextId, Iova, PageSize, PhysAddr};

use crate::cache::{Cache, Key, Reach};
use crate::decode::{Cursor, Leaf, Stepped, TableFormat, WalkFault, WalkMemory, step};
use crate::iommu::Temper;
use crate::profile::CacheGeometry;

const LEVELS: usize = 6;

/// What a cache entry belongs to beside the tag that it is found by: what else drops it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held<T> {
    pub what: T,
    /// The tag that several contexts share: a VMID, a domain.
    pub owner: u32,
    /// The page, for invalidations that go through all contexts of an owner.
    pub page: Iova,
    pub size: PageSize,
}

/// A leaf, or that there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Present { leaf: Leaf, level: u8 },
    Absent { level: u8 },
}

/// Which levels an invalidation drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drops {
    /// Leaves; of one level only, where the command says which.
    Leaves { level: Option<u8> },
    /// Leaves, of one level only where the command says which, and all pointers at tables.
    All { level: Option<u8> },
}

/// A walk that did not end in a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended<E> {
    /// An entry of this stage says so.
    Here(WalkFault),
    /// The place of an entry could not be found.
    Locating(E),
}

/// What a walk found: the leaf, its level, and where its entry is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub leaf: Leaf,
    pub level: u8,
    pub entry: PhysAddr,
}

/// Whose translations a walk finds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tag {
    pub context: ContextId,
    pub owner: u32,
}

/// The caches of one stage.
#[derive(Debug)]
pub(crate) struct Stage {
    leaves: Cache<Held<Known>>,
    pointers: [Cache<Held<Cursor>>; LEVELS],
    pub walk_steps: u64,
}

impl Stage {
    pub(crate) fn new(temper: &Temper) -> Self {
        fn cache<V: Copy>(geometry: Option<CacheGeometry>) -> Cache<V> {
            geometry.map_or_else(Cache::unbounded, Cache::of_size)
        }
        let (leaves, pointers) = match temper {
            Temper::Adversarial => (None, None),
            Temper::Realistic(sizes) => (Some(sizes.iotlb), Some(sizes.walk)),
        };
        Self {
            leaves: cache(leaves),
            pointers: std::array::from_fn(|_| cache(pointers)),
            walk_steps: 0,
        }
    }

    /// Entries in all its caches.
    pub(crate) fn len(&self) -> usize {
        self.leaves.len() + self.pointers.iter().map(Cache::len).sum::<usize>()
    }

    pub(crate) fn lookup(&mut self, context: ContextId, at: Iova) -> Option<Known> {
        self.leaves.lookup(context, at).map(|held| held.what)
    }

    pub(crate) fn insert(&mut self, tag: Tag, at: Iova, size: PageSize, what: Known) {
        let held = Held {
            what,
            owner: tag.owner,
            page: at.align_down(size),
            size,
        };
        self.leaves.insert(Key::new(tag.context, at, size), held);
    }

    /// Walks from the deepest pointer that a cache knows, or from `top`.
    pub(crate) fn walk<M: WalkMemory + ?Sized, E>(
        &mut self,
        memory: &M,
        tag: Tag,
        format: TableFormat,
        top: Cursor,
        at: Iova,
        mut locate: impl FnMut(PhysAddr) -> Result<PhysAddr, E>,
    ) -> Result<Found, Ended<E>> {
        let mut cursor = top;
        for level in 0..usize::from(top.level).min(LEVELS) {
            if let Some(held) = self.pointers[level].lookup(tag.context, at) {
                cursor = held.what;
                break;
            }
        }
        loop {
            self.walk_steps += 1;
            let level = cursor.level;
            let offset = format.index(at, level) * format.entry_bytes();
            let nominal = PhysAddr::new(cursor.table.get().saturating_add(offset));
            let entry = locate(nominal).map_err(Ended::Locating)?;
            let table = PhysAddr::new(entry.get().saturating_sub(offset));
            let placed = Cursor { table, ..cursor };
            match step(memory, format, placed, at).map_err(Ended::Here)? {
                Stepped::Found(leaf) => return Ok(Found { leaf, level, entry }),
                Stepped::Down(next) => {
                    let size = format.span(level);
                    let held = Held {
                        what: next,
                        owner: tag.owner,
                        page: at.align_down(size),
                        size,
                    };
                    let key = Key::new(tag.context, at, size);
                    if let Some(cache) = self.pointers.get_mut(usize::from(next.level)) {
                        cache.insert(key, held);
                    }
                    cursor = next;
                }
            }
        }
    }

    /// Drops what `reach` concerns and `owner` owns, if it names one.
    pub(crate) fn invalidate(&mut self, reach: Reach, owner: Option<u32>, drops: Drops) {
        let (level, pointers) = match drops {
            Drops::Leaves { level } => (level, false),
            Drops::All { level } => (level, true),
        };
        let owned = |of: u32| owner.is_none_or(|owner| owner == of);
        let of_level = |known: &Known| match *known {
            Known::Present { level: found, .. } => level.is_none_or(|level| level == found),
            Known::Absent { level: found } => found == 0 || pointers,
        };
        self.leaves.drop_where(
            reach,
            |held| owned(held.owner) && of_level(&held.what),
            |_, _| {},
        );
        if pointers {
            for cache in &mut self.pointers {
                cache.drop_where(reach, |held| owned(held.owner), |_, _| {});
            }
        }
    }

    /// As [`Stage::invalidate`] of a range, in all contexts of an owner.
    pub(crate) fn invalidate_range_of_owner(
        &mut self,
        range: portolan::addr::IovaRange,
        owner: u32,
        drops: Drops,
    ) {
        let (level, pointers) = match drops {
            Drops::Leaves { level } => (level, false),
            Drops::All { level } => (level, true),
        };
        let hit = |of: u32, page: Iova, size: PageSize| {
            of == owner && portolan::addr::IovaRange::page(page, size).overlaps(range)
        };
        self.leaves.drop_where(
            Reach::All,
            |held| {
                let known = match held.what {
                    Known::Present { level: found, .. } => level.is_none_or(|l| l == found),
                    Known::Absent { level: found } => found == 0 || pointers,
                };
                known && hit(held.owner, held.page, held.size)
            },
            |_, _| {},
        );
        if pointers {
            for cache in &mut self.pointers {
                cache.drop_where(
                    Reach::All,
                    |held| hit(held.owner, held.page, held.size),
                    |_, _| {},
                );
            }
        }
    }
}

/// The first cursor of a walk whose root may be several tables side by side, as many as the width
/// of addresses asks for: `level` is that of the root.
pub(crate) fn top_of(format: TableFormat, root: PhysAddr, level: u8, at: Iova) -> Cursor {
    let spans = format.span(level).lg2() + format.granule().lg2() - 3;
    let which = at.get().checked_shr(spans).unwrap_or(0);
    let offset = which.saturating_mul(format.granule().bytes());
    Cursor {
        table: PhysAddr::new(root.get().saturating_add(offset)),
        level,
        permissions: crate::decode::Permissions::ALL,
    }
}
