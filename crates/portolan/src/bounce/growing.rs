//! A pool that takes more memory when it is full, up to a limit, and that refuses callers who can wait while it is
//! nearly full.
//!
//! Its memory comes in parts of one size, each a [`Pool`]. A caller that may wait adds a part when no slot of the parts
//! that are there fits; a handler fails, and the next caller that may wait adds one for it. Parts stay until the pool
//! is dropped. The scheme is Linux's `CONFIG_SWIOTLB_DYNAMIC`, without its pools of one buffer, and with the
//! throttling of `DMA_ATTR_MAY_BLOCK` that was proposed for it.
//!
//! *Context.* Interrupt, but where a function says otherwise.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

use once_cell::race::OnceBox;
use thiserror::Error;

use super::copy::sealed::Sealed;
use super::{
    BouncePool, GiveError, HostVisibility, Need, Pool, PoolError, PoolOptions, PoolUse, Slots,
    TakeError,
};
use crate::addr::{PageSize, PhysAddr, PhysRange};
use crate::platform::contract::{OwnedMemory, Unowned, Wanted};
use crate::platform::{
    CachePadded, Clearing, PhysMemory, Platform, SharedWord, Transfer, count_of,
};

/// Most parts of a pool: each is looked at, in order, by a caller who finds the ones before it full.
const MOST_PARTS: u16 = 64;

/// Takes of a CPU from one count of the slots in use to the next, while callers may be throttled: a count reads all
/// bitmaps.
const TAKES_A_COUNT: u64 = 16;

/// Growth of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Division of each part.
    pub division: PoolOptions,
    /// Bytes of a part: a multiple of 4 KiB, and of 64 slots for each area.
    pub part: u64,
    /// Parts at most, 1 to 64.
    pub parts: u16,
    /// Visibility of its memory: [`HostVisibility::Shared`] for the devices of a confidential guest.
    pub visibility: HostVisibility,
    /// Marks between which callers that may wait are refused; none if they never are.
    pub throttle: Option<Throttle>,
}

/// Marks of a throttle, in slots of the pool.
///
/// From a use of `from` slots on, a caller that may wait gets [`TakeError::Throttled`], until no more than `until`
/// are in use. The slots above the mark stay for handlers, which can do nothing but drop what finds no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    /// Slots in use from which such callers are refused.
    pub from: u32,
    /// Slots in use at which they are let in again; at most `from`.
    pub until: u32,
}

/// Error of the growth of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GrowError {
    /// The platform has no such memory.
    #[error(
        "the platform has no {bytes} bytes of memory for a part of the pool ({visibility:?} to a host)"
    )]
    NoMemory {
        /// Bytes of a part.
        bytes: u64,
        /// Visibility that was asked for.
        visibility: HostVisibility,
    },
    /// The pool has all parts that it may have.
    #[error("the pool has all of its {parts} parts")]
    Complete {
        /// Parts.
        parts: u16,
    },
    /// A part can't be divided so.
    #[error(transparent)]
    Part(#[from] PoolError),
}

/// Part of a pool.
struct PoolPart<P: Platform> {
    pool: Pool<P>,
    memory: OwnedMemory<P>,
}

impl<P: Platform> PoolPart<P> {
    fn new(platform: &P, growth: &Growth) -> Result<Self, GrowError> {
        let page = PageSize::SIZE_4K;
        let wanted = match growth.visibility {
            HostVisibility::Private => Wanted::Any,
            HostVisibility::Shared => Wanted::Shared,
        };
        let pages = growth.part.div_ceil(page.bytes());
        let (bytes, visibility) = (growth.part, growth.visibility);
        let memory = OwnedMemory::new(platform.clone(), pages, page, wanted);
        let memory = memory.ok_or(GrowError::NoMemory { bytes, visibility })?;
        let pool = Pool::new(platform.clone(), memory.promise(), growth.division);
        let pool = pool.map_err(|refused| refused.error)?;
        Ok(Self { pool, memory })
    }

    /// Tells if a byte of the part is at `at`.
    fn has(&self, at: PhysAddr) -> bool {
        self.pool.memory().contains(at)
    }
}

impl<P: Platform> Drop for PoolPart<P> {
    fn drop(&mut self) {
        if self.pool.is_lent() {
            self.memory.keep();
        }
    }
}

/// The place of a part.
type PartSlot<P> = OnceBox<PoolPart<P>>;

/// A pool that grows by memory of its platform.
///
/// ```no_run
/// # use portolan::bounce::{BouncePool, GrowError, GrowingPool, Growth, HostVisibility, PoolOptions, Throttle};
/// # use portolan::platform::Platform;
/// # use std::sync::Arc;
/// /// 4 MiB of memory that the host of a confidential guest sees, and up to 64 MiB as devices need it.
/// fn shared<P: Platform>(kernel: P) -> Result<Arc<dyn BouncePool>, GrowError> {
///     let slots = (64 << 20) / 2048;
///     let growth = Growth {
///         division: PoolOptions::for_cpus(&kernel),
///         part: 4 << 20,
///         parts: 16,
///         visibility: HostVisibility::Shared,
///         throttle: Some(Throttle { from: slots / 8 * 7, until: slots / 4 * 3 }),
///     };
///     Ok(Arc::new(GrowingPool::new(kernel, growth)?))
/// }
/// ```
///
/// *Locking.* None. Memory of a part in which a slot is still taken when the pool is dropped stays allocated: a device
/// may reach it.
///
/// *Context.* Interrupt, but for making and dropping it, and [`GrowingPool::grow`] (task). A take by a caller that may
/// wait ([`Need::may_block`]) may take memory.
pub struct GrowingPool<P: Platform> {
    platform: P,
    growth: Growth,
    parts: Box<[PartSlot<P>]>,
    /// Set while a part is wanted by callers who could not wait for it.
    wanted: P::Word,
    /// Set while callers that may wait are refused.
    throttled: P::Word,
    /// Takes of each CPU, on a line of its own.
    takes: Box<[CachePadded<P::Word>]>,
}

impl<P: Platform> GrowingPool<P> {
    /// A pool of one part.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`GrowError`].
    pub fn new(platform: P, growth: Growth) -> Result<Self, GrowError> {
        let parts = usize::from(growth.parts.clamp(1, MOST_PARTS));
        let cpus = count_of(&platform);
        let (mut slots, mut takes) = (Vec::new(), Vec::new());
        let reserved = slots.try_reserve_exact(parts).and_then(|()| takes.try_reserve_exact(cpus));
        reserved.map_err(|_| PoolError::Memory)?;
        slots.extend((0..parts).map(|_| PartSlot::new()));
        takes.extend((0..cpus).map(|_| CachePadded(SharedWord::new(0))));
        let pool = Self {
            growth,
            parts: slots.into_boxed_slice(),
            wanted: SharedWord::new(0),
            throttled: SharedWord::new(0),
            takes: takes.into_boxed_slice(),
            platform,
        };
        pool.grow()?;
        Ok(pool)
    }

    /// Adds a part. Two callers at once may add one each.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`GrowError`]; the pool is as it was.
    pub fn grow(&self) -> Result<(), GrowError> {
        let complete = GrowError::Complete { parts: self.parts.len() as u16 };
        if self.part_count() == self.parts.len() {
            return Err(complete);
        }
        let mut part = Box::new(PoolPart::new(&self.platform, &self.growth)?);
        for slot in &self.parts {
            match slot.set(part) {
                Ok(()) => {
                    self.wanted.store(0, Relaxed);
                    return Ok(());
                }
                Err(back) => part = back,
            }
        }
        Err(complete)
    }

    /// Tells if a caller that could not wait found no slot since the pool last grew: a worker should call
    /// [`GrowingPool::grow`].
    pub fn is_growth_wanted(&self) -> bool {
        self.wanted.load(Relaxed) != 0 && self.part_count() < self.parts.len()
    }

    /// Tells if callers that may wait are refused, and counts the slots in use to find out.
    pub fn is_throttled(&self) -> bool {
        self.growth.throttle.is_some_and(|marks| self.count(marks).is_some())
    }

    /// Number of its parts.
    pub fn part_count(&self) -> usize {
        self.all().count()
    }

    /// Memory of each part.
    pub fn parts(&self) -> impl Iterator<Item = PhysRange> + '_ {
        self.all().map(|part| part.pool.memory())
    }

    fn all(&self) -> impl Iterator<Item = &PoolPart<P>> {
        // A part is added at the first free place.
        self.parts.iter().map_while(OnceBox::get)
    }

    /// Refuses a caller that may wait while the pool is nearly full.
    #[inline]
    fn admit(&self) -> Result<(), TakeError> {
        let Some(marks) = self.growth.throttle else {
            return Ok(());
        };
        let refused = self.throttled.load(Relaxed) != 0 || self.is_count_due();
        match refused.then(|| self.count(marks)).flatten() {
            Some(used) => Err(TakeError::Throttled {
                used: used.used,
                slots: used.slots,
                until: marks.until.min(marks.from),
            }),
            None => Ok(()),
        }
    }

    /// Counts a take of the calling CPU. Another CPU's take may be lost, if the caller moves there.
    fn is_count_due(&self) -> bool {
        let cpu = self.platform.cpu().get() as usize % self.takes.len().max(1);
        let Some(CachePadded(takes)) = self.takes.get(cpu) else {
            return true;
        };
        let before = takes.load(Relaxed);
        takes.store(before.wrapping_add(1), Relaxed);
        before % TAKES_A_COUNT == 0
    }

    /// Counts the slots in use, and returns them if callers that may wait are to be refused.
    fn count(&self, marks: Throttle) -> Option<PoolUse> {
        let used = BouncePool::in_use(self);
        let throttled = self.throttled.load(Relaxed) != 0;
        let now = match throttled {
            true => used.used > marks.until.min(marks.from),
            false => used.used >= marks.from,
        };
        if now != throttled {
            self.throttled.store(u64::from(now), Relaxed);
        }
        now.then_some(used)
    }

    /// Takes slots of the parts that are there.
    #[inline]
    fn take_there(&self, need: &Need) -> Result<Slots, TakeError> {
        let mut full: Option<TakeError> = None;
        for part in self.all() {
            match part.pool.take(need) {
                Ok(slots) => return Ok(slots),
                Err(error) => full = Some(error.beside(full)),
            }
        }
        // There is one part from the start.
        Err(full.unwrap_or(TakeError::Empty))
    }
}

impl<P: Platform> Sealed for GrowingPool<P> {}

impl<P: Platform> BouncePool for GrowingPool<P> {
    #[inline]
    fn take(&self, need: &Need) -> Result<Slots, TakeError> {
        if need.may_block {
            self.admit()?;
        }
        let mut taken = self.take_there(need);
        while let Err(TakeError::Full { .. }) = taken {
            if !need.may_block {
                self.wanted.store(1, Relaxed);
                break;
            }
            // Each turn adds a part, and there is a limit.
            if self.grow().is_err() {
                break;
            }
            taken = self.take_there(need);
        }
        taken
    }

    #[inline]
    fn give(&self, slots: Slots) -> Result<(), GiveError> {
        let at = slots.data().start();
        let part = self.all().find(|part| part.has(at)).ok_or(GiveError::Foreign { at })?;
        part.pool.give(slots)
    }

    #[inline]
    fn copy(&self, transfer: &Transfer) {
        let (from, to) = (transfer.from(), transfer.to());
        if let Some(part) = self.all().find(|part| part.has(to) || part.has(from)) {
            part.memory.copy(transfer);
        }
    }

    #[inline]
    fn clear(&self, clearing: &Clearing) {
        let start = clearing.memory().start();
        if let Some(part) = self.all().find(|part| part.has(start)) {
            part.memory.clear(clearing);
        }
    }

    fn in_use(&self) -> PoolUse {
        let none = PoolUse { slots: 0, used: 0, high_water: 0, longest_free: 0 };
        self.all().fold(none, |sum, part| {
            let one = part.pool.in_use();
            PoolUse {
                slots: sum.slots.saturating_add(one.slots),
                used: sum.used.saturating_add(one.used),
                high_water: sum.high_water.saturating_add(one.high_water),
                longest_free: sum.longest_free.max(one.longest_free),
            }
        })
    }

    fn memory(&self) -> Option<&Unowned> {
        None
    }

    fn visibility(&self) -> HostVisibility {
        self.growth.visibility
    }
}

impl TakeError {
    /// The error of a pool of which one part answered with this one, and those before it with `before`.
    fn beside(self, before: Option<Self>) -> Self {
        match (self, before) {
            (
                Self::Full { wanted, slots, used, longest, area, areas },
                Some(Self::Full { slots: more, used: also, longest: other, areas: others, .. }),
            ) => Self::Full {
                wanted,
                slots: slots.saturating_add(more),
                used: used.saturating_add(also),
                longest: longest.max(other),
                area: area.saturating_add(others),
                areas: areas.saturating_add(others),
            },
            // Full ones can be waited for; a part that lies elsewhere may refuse for good.
            (_, Some(full @ Self::Full { .. })) => full,
            (error, _) => error,
        }
    }
}
