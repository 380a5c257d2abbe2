//! A pool of slots: areas, homes of CPUs, and where in the pool a buffer may lie.
//!
//! *Context.* Interrupt, but where a function says otherwise: making a pool, and dropping one.

use alloc::boxed::Box;
use alloc::collections::TryReserveError;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

use super::area::{Area, Want};
use super::bits::WORD;
use super::error::{GiveError, PoolError, PoolRefused, TakeError};
use super::lockfree::LockFree;
use crate::addr::{PageSize, PhysAddr, PhysRange};
use crate::platform::contract::{Buffer as _, HostVisibility, MemoryKind, Unowned};
use crate::platform::{CachePadded, Cpus, SharedWord};

/// Division of a pool into slots and areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Size of a slot.
    pub slot: PageSize,
    /// Areas; a power of two, or rounded up to one.
    pub areas: u32,
}

impl PoolOptions {
    /// Slots of 2 KiB, in so many areas.
    pub const fn of_areas(areas: u32) -> Self {
        Self { slot: PageSize::of_lg2(11), areas }
    }

    /// The same with an area for each CPU.
    pub fn for_cpus(cpus: &impl Cpus) -> Self {
        Self::of_areas(u32::try_from(cpus.count()).unwrap_or(u32::MAX))
    }
}

/// Requirements on a buffer in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Length in bytes.
    pub bytes: u64,
    /// Alignment of the first slot, and of the length that is taken: whole pages, where others must
    /// not share them.
    pub align: PageSize,
    /// Address whose lowest bits the buffer's has to share.
    pub like: PhysAddr,
    /// Number of those bits, as a size; up to the alignment of areas.
    pub keep: PageSize,
    /// The highest address that the device reaches.
    pub limit: PhysAddr,
    /// Set if it reaches shared memory alone.
    pub reach: HostVisibility,
    /// Set if the caller may wait, take memory, and try again later: a pool may grow for it, or refuse it before it
    /// is full ([`Throttle`](super::Throttle)).
    pub may_block: bool,
}

impl Need {
    /// `bytes`, anywhere.
    pub const fn bytes(bytes: u64) -> Self {
        Self {
            bytes,
            align: PageSize::of_lg2(0),
            like: PhysAddr::new(0),
            keep: PageSize::of_lg2(0),
            limit: PhysAddr::new(u64::MAX),
            reach: HostVisibility::Private,
            may_block: false,
        }
    }
}

/// A buffer in the pool. Not a number that can be copied: it is given back once.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "slots that are dropped stay taken"]
pub struct Slots {
    first: u32,
    count: u32,
    data: PhysRange,
    pool: PhysAddr,
}

impl Slots {
    /// Range of the bytes that were asked for.
    pub fn data(&self) -> PhysRange {
        self.data
    }
}

/// Use of a pool's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUse {
    /// All slots.
    pub slots: u32,
    /// Those in use now, as counted one area after the other.
    pub used: u32,
    /// The most in use at any time at which an area was counted: whenever a search had to leave
    /// its own area, and here.
    pub high_water: u32,
    /// The longest free run.
    pub longest_free: u32,
}

/// Slots of one piece of memory, shared by CPUs.
///
/// Each CPU has a home area, where it looks first; the others follow in order, each once.
///
/// ```no_run
/// # use portolan::addr::PhysRange;
/// # use portolan::bounce::{Pool, PoolOptions, PoolRefused};
/// # use portolan::dma::Unowned;
/// # use portolan::platform::Platform;
/// /// A pool in the lowest memory, for cards that reach no other.
/// fn low<P: Platform>(platform: P, memory: PhysRange) -> Result<Pool<P>, PoolRefused> {
///     // SAFETY: the boot loader kept that memory out of the kernel's, for this pool.
///     let memory = unsafe { Unowned::new(memory) };
///     let options = PoolOptions::for_cpus(&platform);
///     Pool::new(platform, memory, options)
/// }
/// ```
///
/// *Locking.* None with [`LockFree`] areas, which every pool of this library has. `A` is for others,
/// to compare with.
///
/// *Context.* Interrupt, all methods but [`Pool::new`]; dropping it is for tasks, since it frees
/// memory.
pub struct Pool<P: Cpus, A: Area = LockFree<<P as Cpus>::Word>> {
    cpus: P,
    promise: Unowned,
    /// Its memory.
    memory: PhysRange,
    slot: PageSize,
    /// Slots of an area; a power of two times 64.
    area_slots: u32,
    areas: Box<[CachePadded<A>]>,
    /// Number of slots of the buffer that begins at each slot; 0 where none begins.
    taken: Box<[P::Word]>,
    high_water: P::Word,
}

/// Slots of a pool.
struct Records<A, W> {
    area_slots: u32,
    areas: Box<[CachePadded<A>]>,
    taken: Box<[W]>,
}

impl<A, W: SharedWord> Records<A, W> {
    fn new(
        memory: &Unowned,
        options: PoolOptions,
        make: impl Fn(u32) -> Result<A, TryReserveError>,
    ) -> Result<Self, PoolError> {
        let (kind, memory) = (memory.memory_kind(), memory.memory());
        if kind == MemoryKind::Registers {
            return Err(PoolError::Registers { memory });
        }
        let slot = options.slot;
        let areas = options.areas.clamp(1, 1 << 16).next_power_of_two();
        let bytes = memory.len_minus_one().saturating_add(1);
        let wanted = (u64::from(areas) * u64::from(WORD)).saturating_mul(slot.bytes());
        let shape = PoolError::Shape { memory, areas, slot, wanted };
        let slots = u32::try_from(bytes >> slot.lg2()).map_err(|_| shape)?;
        let aligned = memory.start().get() % slot.bytes() == 0;
        if bytes % wanted != 0 || !aligned || slots > 1 << 30 {
            return Err(shape);
        }
        let area_slots = slots / areas;
        let (mut all, mut taken) = (Vec::new(), Vec::new());
        let reserved = all.try_reserve_exact(areas as usize);
        reserved.map_err(|_| PoolError::Memory)?;
        for _ in 0..areas {
            let area = make(area_slots).map_err(|_| PoolError::Memory)?;
            all.push(CachePadded(area));
        }
        let reserved = taken.try_reserve_exact(slots as usize);
        reserved.map_err(|_| PoolError::Memory)?;
        taken.extend((0..slots).map(|_| W::new(0)));
        Ok(Self { area_slots, areas: all.into_boxed_slice(), taken: taken.into_boxed_slice() })
    }
}

impl<P: Cpus> Pool<P> {
    /// A pool of `memory`, all of it free. [`Pool::into_memory`] gives it back; a pool that is dropped
    /// does not.
    ///
    /// *Context.* Task: allocates its records.
    ///
    /// # Errors
    /// See [`PoolError`].
    pub fn new(cpus: P, memory: Unowned, options: PoolOptions) -> Result<Self, PoolRefused> {
        Self::with_areas(cpus, memory, options, |slots| LockFree::new(slots / WORD))
    }
}

impl<P: Cpus, A: Area> Pool<P, A> {
    /// A pool of `memory` whose areas `make` makes: with so many slots, all free.
    ///
    /// *Context.* Task: allocates its records.
    ///
    /// # Errors
    /// See [`PoolError`].
    pub fn with_areas(
        cpus: P,
        memory: Unowned,
        options: PoolOptions,
        make: impl Fn(u32) -> Result<A, TryReserveError>,
    ) -> Result<Self, PoolRefused> {
        let records = match Records::new(&memory, options, make) {
            Ok(records) => records,
            Err(error) => return Err(PoolRefused { error, memory }),
        };
        Ok(Self {
            cpus,
            memory: memory.memory(),
            promise: memory,
            slot: options.slot,
            area_slots: records.area_slots,
            areas: records.areas,
            taken: records.taken,
            high_water: SharedWord::new(0),
        })
    }

    /// Ends the pool, and gives its memory back.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// The pool, if some of its slots are taken: a device may reach them.
    pub fn into_memory(self) -> Result<Unowned, Self> {
        if self.is_lent() { Err(self) } else { Ok(self.promise) }
    }

    /// Tells if a slot is taken.
    pub(super) fn is_lent(&self) -> bool {
        self.taken.iter().any(|count| count.load(Relaxed) != 0)
    }

    /// The memory, as it was promised.
    pub(crate) const fn promise(&self) -> &Unowned {
        &self.promise
    }

    /// The memory.
    ///
    /// *Context.* Interrupt.
    pub fn memory(&self) -> PhysRange {
        self.memory
    }

    /// Number of its areas.
    ///
    /// *Context.* Interrupt.
    pub fn areas(&self) -> u32 {
        self.areas.len() as u32
    }

    /// The largest alignment that can be asked for.
    fn most_align(&self) -> PageSize {
        let start = self.memory.start().get();
        let area = u64::from(self.area_slots) << self.slot.lg2();
        PageSize::of_lg2((start | area).trailing_zeros().min(63))
    }

    /// Takes slots for `need`.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// See [`TakeError`]; nothing is taken.
    #[inline(always)]
    pub fn take(&self, need: &Need) -> Result<Slots, TakeError> {
        let (want, inside) = self.want(need)?;
        let areas = self.areas.len();
        let home = self.cpus.current().get() as usize & (areas - 1);
        let found = match self.take_in(home, want) {
            Some(first) => Some(first),
            None => self.steal(home, want),
        };
        let first = found.ok_or_else(|| self.full(want.count, home))?;
        self.taken[first as usize].store(want.count.into(), Relaxed);
        let at = self.memory.start().get() + (u64::from(first) << self.slot.lg2()) + inside;
        // Not empty, and inside the pool.
        let data = PhysRange::from_len(PhysAddr::new(at), need.bytes).ok_or(TakeError::Empty)?;
        Ok(Slots { first, count: want.count, data, pool: self.memory.start() })
    }

    /// The run for `need`, and the offset of its data in the first slot.
    #[inline(always)]
    fn want(&self, need: &Need) -> Result<(Want, u64), TakeError> {
        if need.bytes == 0 {
            return Err(TakeError::Empty);
        }
        if self.memory.last().get() > need.limit.get() {
            let (last, limit) = (self.memory.last(), need.limit);
            return Err(TakeError::AboveLimit { last, limit });
        }
        let visibility = self.promise.host_visibility();
        if (need.reach, visibility) == (HostVisibility::Shared, HostVisibility::Private) {
            let memory = self.memory;
            return Err(TakeError::Private { memory });
        }
        let stride = need.align.max(need.keep).max(self.slot);
        if stride > self.slot && stride > self.most_align() {
            let most = self.most_align();
            return Err(TakeError::Alignment { align: stride, most });
        }
        let kept = need.like.get() & (need.keep.bytes() - 1);
        // Address bits to share are below the alignment of the first slot where pages are not shared.
        let begin = kept & !(need.align.max(self.slot).bytes() - 1);
        let inside = kept - begin;
        let unit = need.align.max(self.slot).bytes();
        let most = u64::from(self.area_slots) << self.slot.lg2();
        let bytes = need.bytes.checked_add(inside);
        let bytes = bytes.and_then(|bytes| bytes.checked_next_multiple_of(unit));
        let bytes = bytes.unwrap_or(u64::MAX);
        if bytes > most {
            return Err(TakeError::TooLong { bytes, most });
        }
        let lg2 = self.slot.lg2();
        let want = Want {
            count: (bytes >> lg2) as u32,
            stride: (stride.bytes() >> lg2) as u32,
            phase: (begin >> lg2) as u32,
        };
        Ok((want, inside))
    }

    #[inline(always)]
    fn take_in(&self, area: usize, want: Want) -> Option<u32> {
        let local = self.areas[area].0.take(want)?;
        // Another crate's area may be wrong: then nothing beside the area is lent.
        if local > self.area_slots - want.count || local & (want.stride - 1) != want.phase {
            return None;
        }
        Some(area as u32 * self.area_slots + local)
    }

    /// Tells if `slots` are of this pool.
    #[inline]
    pub(super) fn lent(&self, slots: &Slots) -> bool {
        // Another pool may begin where this one does, and be longer.
        slots.pool == self.memory.start() && self.memory.covers(slots.data)
    }

    /// Looks in the other areas, each once, and notes the number of slots in use.
    #[cold]
    fn steal(&self, home: usize, want: Want) -> Option<u32> {
        self.in_use();
        let areas = self.areas.len();
        (1..areas).find_map(|step| self.take_in((home + step) & (areas - 1), want))
    }

    #[cold]
    fn full(&self, wanted: u32, home: usize) -> TakeError {
        let used = self.in_use();
        TakeError::Full {
            wanted,
            slots: used.slots,
            used: used.used,
            longest: used.longest_free,
            area: home as u32,
            areas: self.areas.len() as u32,
        }
    }

    /// Gives slots back. The device must not reach them any more.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// See [`GiveError`]; nothing is given back.
    #[inline(always)]
    pub fn give(&self, slots: Slots) -> Result<(), GiveError> {
        if !self.lent(&slots) {
            let at = slots.data.start();
            return Err(GiveError::Foreign { at });
        }
        self.give_run(slots.first, slots.count)
    }

    /// The slot that holds `at`.
    fn slot_of(&self, at: PhysAddr) -> Option<u32> {
        let above = at.get().checked_sub(self.memory.start().get())?;
        let inside = self.memory.contains(at);
        inside.then_some((above >> self.slot.lg2()) as u32)
    }

    #[inline(always)]
    fn give_run(&self, first: u32, given: u32) -> Result<(), GiveError> {
        let word = &self.taken[first as usize];
        let taken = word.load(Relaxed) as u32;
        if taken == 0 {
            return Err(GiveError::AlreadyFree { slot: first });
        }
        if taken != given {
            return Err(GiveError::OtherSize { slot: first, taken, given });
        }
        word.store(0, Relaxed);
        let (area, local) = (first / self.area_slots, first % self.area_slots);
        self.areas[area as usize].0.give(local, given)
    }

    /// Tells if `at` lies in a slot that is taken.
    ///
    /// *Context.* Interrupt.
    pub fn is_taken(&self, at: PhysAddr) -> bool {
        let Some(slot) = self.slot_of(at) else {
            return false;
        };
        let (area, local) = (slot / self.area_slots, slot % self.area_slots);
        self.areas[area as usize].0.is_taken(local, 1)
    }

    /// Use of the pool's slots. Counts each area in turn.
    ///
    /// *Context.* Interrupt.
    pub fn in_use(&self) -> PoolUse {
        let (mut longest_free, mut free) = (0, 0);
        for area in &self.areas {
            let (longest, total) = area.0.survey();
            longest_free = longest_free.max(longest);
            free += total;
        }
        let slots = self.area_slots * self.areas.len() as u32;
        let used = slots - free.min(slots);
        let before = self.high_water.load(Relaxed) as u32;
        let high_water = before.max(used);
        if high_water != before {
            self.high_water.store(high_water.into(), Relaxed);
        }
        PoolUse { slots, used, high_water, longest_free }
    }
}
