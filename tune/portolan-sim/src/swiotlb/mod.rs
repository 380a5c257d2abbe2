//! Bounce pools of other designs, to compare the library's with: Linux's first, and the steps that
//! were published for it. Each is areas of the library's own [`Pool`], so that nothing but the search
//! for free slots differs.

mod locked;

use std::collections::TryReserveError;

use portolan::bounce::{Area, GiveError, LockFree, Pool, PoolOptions, PoolRefused, Want};
use portolan::dma::Unowned;
use portolan::platform::{Cpus, Lock as _};

use locked::{Bits, List, Order, WORD};

/// Strategies of the search for free slots, each step with an improvement on the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// One lock and one area. Each slot has the number of free slots from there on. Next fit.
    OneLock,
    /// The same, with a lock for each area.
    AreaLocks,
    /// A lock and a bitmap for each area; next fit.
    AreaBitmaps,
    /// The same; the search begins at the run that was freed last.
    RecentFirst,
    /// The library's own: bitmaps without locks, the word that was freed last first.
    LockFree,
}

impl Strategy {
    /// All strategies, in the order of the steps.
    pub const ALL: [Self; 5] =
        [Self::OneLock, Self::AreaLocks, Self::AreaBitmaps, Self::RecentFirst, Self::LockFree];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneLock => "one-lock",
            Self::AreaLocks => "area-locks",
            Self::AreaBitmaps => "area-bitmaps",
            Self::RecentFirst => "recent-first",
            Self::LockFree => "lock-free",
        }
    }

    fn area<P: Cpus>(self, slots: u32) -> Result<AreaKind<P>, TryReserveError> {
        let words = slots / WORD;
        let bits = |order| Ok(AreaKind::Bits(P::Lock::new(Bits::new(words, order)?)));
        match self {
            Self::OneLock | Self::AreaLocks => Ok(AreaKind::List(P::Lock::new(List::new(slots)?))),
            Self::AreaBitmaps => bits(Order::Next),
            Self::RecentFirst => bits(Order::Recent),
            Self::LockFree => Ok(AreaKind::Free(LockFree::new(words)?)),
        }
    }
}

/// A pool of any strategy.
pub type AnyPool<P> = Pool<P, AnyArea<P>>;

/// A pool of `memory` that finds slots by `strategy`.
///
/// # Errors
/// See [`PoolRefused`].
pub fn pool<P: Cpus>(
    cpus: P,
    memory: Unowned,
    options: PoolOptions,
    strategy: Strategy,
) -> Result<AnyPool<P>, PoolRefused> {
    let areas = match strategy {
        Strategy::OneLock => 1,
        _ => options.areas,
    };
    let options = PoolOptions { areas, ..options };
    Pool::with_areas(cpus, memory, options, |slots| Ok(AnyArea(strategy.area(slots)?)))
}

/// An area of any strategy.
pub struct AnyArea<P: Cpus>(AreaKind<P>);

/// Areas of the strategies.
enum AreaKind<P: Cpus> {
    List(P::Lock<List>),
    Bits(P::Lock<Bits>),
    Free(LockFree<P::Word>),
}

impl<P: Cpus> Area for AnyArea<P> {
    #[inline]
    fn take(&self, want: Want) -> Option<u32> {
        match &self.0 {
            AreaKind::Free(area) => area.take(want),
            AreaKind::List(area) => area.with(|area| area.take(want)),
            AreaKind::Bits(area) => area.with(|area| area.take(want)),
        }
    }

    #[inline]
    fn give(&self, first: u32, count: u32) -> Result<(), GiveError> {
        match &self.0 {
            AreaKind::Free(area) => area.give(first, count),
            AreaKind::List(area) => area.with(|area| area.give(first, count)),
            AreaKind::Bits(area) => area.with(|area| area.give(first, count)),
        }
    }

    fn is_taken(&self, first: u32, count: u32) -> bool {
        match &self.0 {
            AreaKind::Free(area) => area.is_taken(first, count),
            AreaKind::List(area) => area.with(|area| area.is_taken(first, count)),
            AreaKind::Bits(area) => area.with(|area| area.is_taken(first, count)),
        }
    }

    fn survey(&self) -> (u32, u32) {
        match &self.0 {
            AreaKind::Free(area) => area.survey(),
            AreaKind::List(area) => area.with(|area| area.survey()),
            AreaKind::Bits(area) => area.with(|area| area.survey()),
        }
    }
}
