//! Stocks of one owner.

use core::ops::Deref;
use core::sync::atomic::Ordering;

use super::class::Kind;
use super::magazine::Stocks;
use super::space::{Holder, IovaSpace};
use super::{FreeError, IovaError, Request};
use crate::addr::IovaRange;
use crate::platform::{Cpus, SharedWord};
use core::marker::PhantomData;

/// Stocks that one owner has for itself: a device queue, a thread, a CPU with preemption off.
///
/// It gives and takes without a lock or an atomic step while its magazines last, and exchanges
/// them with the depots that all share. What one lane gave out any other, and the space, may take
/// back.
///
/// *When addresses run out.* Others cannot reach into a lane. They ask instead, and the lane gives
/// back everything at its next call; what a lane holds that makes no call is out of their reach, at
/// most two magazines of each size. Dropping a lane gives all back.
///
/// *Context.* As [`IovaSpace`]'s methods of the same names; [`new`](Self::new) is for interrupts,
/// [`trim`](Self::trim) and dropping a lane for tasks.
pub struct IovaLane<P: Cpus, S: Deref<Target = IovaSpace<P>>> {
    space: S,
    stocks: Stocks,
    /// Calls to give back that were followed.
    seen: u64,
    of: PhantomData<fn(P)>,
}

struct Owned<'l>(&'l mut Stocks);

impl Holder for Owned<'_> {
    #[inline]
    fn stocks<R>(&mut self, f: impl FnOnce(&mut Stocks) -> R) -> R {
        f(self.0)
    }
}

impl<P: Cpus, S: Deref<Target = IovaSpace<P>>> IovaLane<P, S> {
    /// A lane of `space`, with nothing in it.
    pub fn new(space: S) -> Self {
        let seen = space.recalls.0.load(Ordering::Relaxed);
        Self {
            space,
            stocks: Stocks::default(),
            seen,
            of: PhantomData,
        }
    }

    /// The space.
    pub fn space(&self) -> &S {
        &self.space
    }

    /// As [`IovaSpace::alloc`].
    ///
    /// # Errors
    /// See [`IovaError`].
    #[inline]
    pub fn alloc(&mut self, request: &Request) -> Result<IovaRange, IovaError> {
        self.follow();
        let mut holder = Owned(&mut self.stocks);
        self.space.alloc_from(&mut holder, request)
    }

    /// As [`IovaSpace::free`].
    ///
    /// # Errors
    /// See [`FreeError`]; nothing is taken back.
    #[inline]
    pub fn free(&mut self, range: IovaRange) -> Result<(), FreeError> {
        self.follow();
        self.space.free_to(&mut Owned(&mut self.stocks), range)
    }

    /// As [`IovaSpace::free_all`].
    pub fn free_all(&mut self, given: &[IovaRange]) -> u64 {
        self.follow();
        self.space.free_all_to(&mut Owned(&mut self.stocks), given)
    }

    /// Gives everything back to the ranges.
    pub fn trim(&mut self) {
        let top = self.space.top();
        self.space.empty_stocks(&mut Owned(&mut self.stocks), top);
    }

    /// What it holds.
    #[cfg(test)]
    pub(super) fn held(&mut self) -> &mut Stocks {
        &mut self.stocks
    }

    /// Does what others asked for.
    #[inline]
    fn follow(&mut self) {
        // No order needed: what is given back goes through locks.
        let asked = self.space.recalls.0.load(Ordering::Relaxed);
        if asked != self.seen {
            self.seen = asked;
            self.trim();
        }
    }
}

impl<P: Cpus, S: Deref<Target = IovaSpace<P>>> Drop for IovaLane<P, S> {
    fn drop(&mut self) {
        for kind in Kind::all() {
            for magazine in self.stocks.of(kind).clear() {
                self.space.keep(kind, magazine);
            }
        }
    }
}
