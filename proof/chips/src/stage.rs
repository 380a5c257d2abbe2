//! The caches of one translation stage and a walk through them, for the register interfaces.
//!
//! The walk reads entries wherever `locate` puts them, so that the tables of a first stage may lie
//! behind a second.

use portolan::addr::{InvalTag, Iova, IovaRange, PageSize, PhysAddr};

use crate::memory::ModelMemory;
use portolan_sim::cache::{Cache, Key, Reach};
use portolan_sim::decode::{
    AccessKind, Cursor, Leaf, Permissions, Stepped, TableFormat, WalkFault, WalkMemory, step,
};
use portolan_sim::iommu::{Names, Temper};
use portolan_sim::profile::CacheGeometry;

const LEVELS: usize = 6;

/// Owners of a cache entry in addition to its tag: the invalidation of any of them drops the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnedEntry<T> {
    pub what: T,
    /// The tag that several contexts share: a VMID, a domain.
    pub owner: u32,
    /// The page, for invalidations that go through all contexts of an owner.
    pub page: Iova,
    pub size: PageSize,
}

/// A cached leaf, or the absence of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CachedWalk {
    Present {
        /// The translation: the smaller of both pages, where two stages were combined.
        leaf: Leaf,
        /// The page in the tables of the stage whose addresses the entry is found by.
        page: PageSize,
    },
    Absent {
        level: u8,
    },
}

impl CachedWalk {
    /// Tells if it may be what a unit that marks leaves kept from before one was written.
    pub(crate) fn wants_mark(self, access: AccessKind) -> bool {
        let leaf = match self {
            Self::Present { leaf, .. } => leaf,
            Self::Absent { .. } => return false,
        };
        access == AccessKind::Write && !leaf.permissions.allow(access)
    }
}

/// Sizes of pages, or spans of table entries: bit `n` means `2^n` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes(u64);

impl Sizes {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const ALL: Self = Self(u64::MAX);

    pub(crate) const fn one(size: PageSize) -> Self {
        Self(1 << size.lg2())
    }

    /// Sizes of all levels of tables with `granule` and entries of eight bytes.
    pub(crate) fn of_granule(granule: PageSize) -> Self {
        let levels = 0..LEVELS as u32;
        let sizes = levels.map(|level| granule.lg2() + level * (granule.lg2() - 3));
        Self(sizes.filter(|lg2| *lg2 < 64).fold(0, |all, lg2| all | 1 << lg2))
    }

    fn hold(self, size: PageSize) -> bool {
        self.0 >> size.lg2() & 1 == 1
    }
}

/// Entries that an invalidation is guaranteed to drop among those that it names. The others stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drops {
    /// Leaves, by their size in the tables.
    pub leaves: Sizes,
    /// Pointers at tables, by the span of the entry.
    pub pointers: Sizes,
    pub names: Names,
}

impl Drops {
    /// Leaves and pointers of all sizes.
    pub(crate) const ALL: Self =
        Self { leaves: Sizes::ALL, pointers: Sizes::ALL, names: Names::AnyPart };
    /// Leaves of all sizes.
    pub(crate) const LEAVES: Self = Self { pointers: Sizes::NONE, ..Self::ALL };

    /// Tells if `held` is dropped; it shares an address with `range`, if there is one.
    fn drop_leaf(self, held: &OwnedEntry<CachedWalk>, range: Option<IovaRange>) -> bool {
        match held.what {
            CachedWalk::Present { page, .. } => {
                let named = || match (self.names, range) {
                    (Names::AnyPart, _) | (_, None) => true,
                    (Names::WholePage, Some(range)) => {
                        range.covers(IovaRange::page(held.page, page))
                    }
                };
                self.leaves.hold(page) && named()
            }
            // Above the leaves an entry would be a pointer.
            CachedWalk::Absent { level: 0 } => self.leaves != Sizes::NONE,
            CachedWalk::Absent { .. } => self.pointers != Sizes::NONE,
        }
    }
}

/// A walk that did not end in a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WalkError<E> {
    /// Refused by an entry of this stage.
    Here(WalkFault),
    /// The place of an entry could not be found.
    Locating(E),
}

/// Result of a walk: the leaf, its level, and the address of its entry in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WalkedLeaf {
    pub leaf: Leaf,
    pub level: u8,
    pub entry: PhysAddr,
}

/// Marks that a unit sets in leaves, in one access that finds the leaf as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafMarks {
    /// Bit of a leaf that was used.
    pub accessed: u64,
    /// Bit of a leaf that was written through; 0 if there is none.
    pub dirty: u64,
}

impl LeafMarks {
    /// The leaf that a walk has found for `access`, as it is and as it is marked.
    fn marked(
        self,
        memory: &ModelMemory,
        found: WalkedLeaf,
        access: AccessKind,
    ) -> Option<[u64; 2]> {
        let raw = memory.snooped().read_u64(found.entry)?;
        let written = match access {
            AccessKind::Read => 0,
            AccessKind::Write => self.dirty,
        };
        let allowed = found.leaf.permissions.allow(access);
        Some([raw, if allowed { raw | self.accessed | written } else { raw }])
    }

    /// Tells if [`LeafMarks::set`] writes the leaf.
    pub fn wants(self, memory: &ModelMemory, found: WalkedLeaf, access: AccessKind) -> bool {
        self.marked(memory, found, access).is_some_and(|[raw, marked]| raw != marked)
    }

    /// Marks the leaf that a walk has found for an access that it allows. Returns it as it may be kept: one that is not
    /// marked as written cannot be written before it is. `None` if it has changed since.
    pub fn set(
        self,
        memory: &ModelMemory,
        found: WalkedLeaf,
        access: AccessKind,
    ) -> Option<WalkedLeaf> {
        let [raw, marked] = self.marked(memory, found, access)?;
        if marked != raw && !memory.exchange_u64(found.entry, raw, marked)? {
            return None;
        }
        let permissions = match marked & self.dirty {
            0 if self.dirty != 0 => found.leaf.permissions.and(Permissions::READ),
            _ => found.leaf.permissions,
        };
        Some(WalkedLeaf { leaf: Leaf { permissions, ..found.leaf }, ..found })
    }
}

/// Leaves that hand their dirty state to the unit: a clean one forbids writes, and is made writable by the first.
/// Tables above that forbid them as well are not told apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ManagedLeaves {
    /// Bit of such a leaf.
    pub managed: u64,
    /// Bit that says that it was written.
    pub mark: u64,
    /// That bit once it was.
    pub written: u64,
}

impl ManagedLeaves {
    /// Marks the leaf that a walk has found as written, if `access` writes and it hands its state over.
    pub fn set(self, memory: &ModelMemory, found: WalkedLeaf, access: AccessKind) -> WalkedLeaf {
        let raw = memory.snooped().read_u64(found.entry).unwrap_or(0);
        let wants = access == AccessKind::Write && !found.leaf.permissions.allow(access);
        let marked = raw & !self.mark | self.written;
        if !wants || raw & self.managed == 0 {
            return found;
        }
        if memory.exchange_u64(found.entry, raw, marked) != Some(true) {
            return found;
        }
        let permissions = found.leaf.permissions.or(Permissions::WRITE);
        WalkedLeaf { leaf: Leaf { permissions, ..found.leaf }, ..found }
    }
}

/// Tag of the translations that a walk finds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tag {
    pub context: InvalTag,
    pub owner: u32,
}

/// Part of a page that an invalidation drops if it names a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartialDrop {
    /// The part that the specification promises.
    AsPromised,
    /// Everything may be cached.
    Generous,
}

/// The caches of one stage.
#[derive(Debug)]
pub struct Stage {
    manner: PartialDrop,
    leaves: Cache<OwnedEntry<CachedWalk>>,
    pointers: [Cache<OwnedEntry<Cursor>>; LEVELS],
    pub(crate) walk_steps: u64,
}

impl Stage {
    pub(crate) fn new(temper: &Temper) -> Self {
        fn cache<V: Copy>(geometry: Option<CacheGeometry>) -> Cache<V> {
            geometry.map_or_else(Cache::unbounded, Cache::of_size)
        }
        let (manner, leaves, pointers) = match temper {
            Temper::Adversarial => (PartialDrop::AsPromised, None, None),
            Temper::Realistic(sizes) => {
                (PartialDrop::Generous, Some(sizes.iotlb), Some(sizes.walk))
            }
        };
        Self {
            manner,
            leaves: cache(leaves),
            pointers: std::array::from_fn(|_| cache(pointers)),
            walk_steps: 0,
        }
    }

    /// Empties its caches.
    pub(crate) fn clear(&mut self, temper: &Temper) {
        let walk_steps = self.walk_steps;
        *self = Self::new(temper);
        self.walk_steps = walk_steps;
    }

    /// Entries in all its caches.
    pub(crate) fn len(&self) -> usize {
        self.leaves.len() + self.pointers.iter().map(Cache::len).sum::<usize>()
    }

    pub(crate) fn lookup(&mut self, context: InvalTag, at: Iova) -> Option<CachedWalk> {
        self.leaves.lookup(context, at).map(|held| held.what)
    }

    pub(crate) fn insert(&mut self, tag: Tag, at: Iova, size: PageSize, what: CachedWalk) {
        let held = OwnedEntry { what, owner: tag.owner, page: at.align_down(size), size };
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
    ) -> Result<WalkedLeaf, WalkError<E>> {
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
            let entry = locate(nominal).map_err(WalkError::Locating)?;
            let table = PhysAddr::new(entry.get().saturating_sub(offset));
            let placed = Cursor { table, ..cursor };
            match step(memory, format, placed, at).map_err(WalkError::Here)? {
                Stepped::Found(leaf) => return Ok(WalkedLeaf { leaf, level, entry }),
                Stepped::Down(next) => {
                    let size = format.span(level);
                    let held = OwnedEntry {
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

    /// Drops the entries of `reach` that `owner` owns, or all of them if it is `None`.
    pub(crate) fn invalidate(&mut self, reach: Reach, owner: Option<u32>, drops: Drops) {
        let range = match reach {
            Reach::Range(_, range) => Some(range),
            Reach::Context(_) | Reach::All => None,
        };
        let drops = self.as_promised(drops);
        let owned = |of: u32| owner.is_none_or(|owner| owner == of);
        let leaf =
            |_, held: &OwnedEntry<CachedWalk>| owned(held.owner) && drops.drop_leaf(held, range);
        self.leaves.drop_where(reach, leaf, |_, _| {});
        let pointer =
            |_, held: &OwnedEntry<Cursor>| owned(held.owner) && drops.pointers.hold(held.size);
        for cache in &mut self.pointers {
            cache.drop_where(reach, pointer, |_, _| {});
        }
    }

    /// Invalidates a range like [`Stage::invalidate`], in all contexts of an owner.
    pub(crate) fn invalidate_range_of_owner(&mut self, range: IovaRange, owner: u32, drops: Drops) {
        let drops = self.as_promised(drops);
        let hit = |of: u32, page: Iova, size: PageSize| {
            of == owner && IovaRange::page(page, size).overlaps(range)
        };
        let leaf = |_, held: &OwnedEntry<CachedWalk>| {
            hit(held.owner, held.page, held.size) && drops.drop_leaf(held, Some(range))
        };
        self.leaves.drop_where(Reach::All, leaf, |_, _| {});
        let pointer = |_, held: &OwnedEntry<Cursor>| {
            hit(held.owner, held.page, held.size) && drops.pointers.hold(held.size)
        };
        for cache in &mut self.pointers {
            cache.drop_where(Reach::All, pointer, |_, _| {});
        }
    }

    /// Adjusts `drops` for realistic hardware, which does more than it must if a page is named in part.
    fn as_promised(&self, drops: Drops) -> Drops {
        match self.manner {
            PartialDrop::AsPromised => drops,
            PartialDrop::Generous => Drops { names: Names::AnyPart, ..drops },
        }
    }
}

/// First cursor of a walk. The root, at `level`, may be several tables side by side if addresses are wide.
pub(crate) fn top_of(format: TableFormat, root: PhysAddr, level: u8, at: Iova) -> Cursor {
    let spans = format.span(level).lg2() + format.granule().lg2() - 3;
    let which = at.get().checked_shr(spans).unwrap_or(0);
    let offset = which.saturating_mul(format.granule().bytes());
    Cursor {
        table: PhysAddr::new(root.get().saturating_add(offset)),
        level,
        permissions: portolan_sim::decode::Permissions::ALL,
    }
}
