//! Numbers that are free, for CPUs that take and give them without a lock.
//!
//! A stack, with a tag against a number that goes and comes back between the load and the exchange.
//! `tests/table_pages.rs` explores its interleavings.
//!
//! *Context.* Interrupt, but for constructors, which take heap memory (task).

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::atomic::{AtomicU32, AtomicU64, Ordering};

const NIL: u32 = u32::MAX;

/// The free numbers below a limit.
#[derive(Debug)]
pub(crate) struct FreeList {
    next: Box<[AtomicU32]>,
    /// The first free number, and above it a tag that every change steps.
    first: AtomicU64,
}

impl FreeList {
    /// All numbers below `count` are free; `None` if there is no memory.
    pub fn try_new(count: u32) -> Option<Self> {
        let count = count.min(NIL - 1);
        let mut next = Vec::new();
        next.try_reserve_exact(count as usize).ok()?;
        next.extend((0..count).map(|i| AtomicU32::new(if i + 1 < count { i + 1 } else { NIL })));
        let first = if count == 0 { NIL } else { 0 };
        Some(Self { next: next.into_boxed_slice(), first: AtomicU64::new(u64::from(first)) })
    }

    /// No number at all.
    pub fn empty() -> Self {
        Self { next: Box::default(), first: AtomicU64::new(u64::from(NIL)) }
    }

    /// Takes a number, if one is free.
    #[inline]
    pub fn take(&self) -> Option<u32> {
        // Acquire: the last owner's writes to what the number stands for are seen. The exchange
        // takes the value that was seen here or nothing, since each change has a tag of its own.
        let mut first = self.first.load(Ordering::Acquire);
        loop {
            let number = first as u32;
            let next = self.next.get(number as usize)?.load(Ordering::Relaxed);
            let new = Self::step(first, next);
            let (done, failed) = (Ordering::Relaxed, Ordering::Acquire);
            match self.first.compare_exchange_weak(first, new, done, failed) {
                Ok(_) => return Some(number),
                Err(now) => first = now,
            }
        }
    }

    /// Takes a number back. It was taken, and is given back once.
    #[inline]
    pub fn give(&self, number: usize) {
        let Some(next) = self.next.get(number) else {
            return;
        };
        let mut first = self.first.load(Ordering::Relaxed);
        loop {
            next.store(first as u32, Ordering::Relaxed);
            let new = Self::step(first, number as u32);
            let (done, failed) = (Ordering::Release, Ordering::Relaxed);
            match self.first.compare_exchange_weak(first, new, done, failed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// Count of all numbers, free and taken.
    pub fn len(&self) -> usize {
        self.next.len()
    }

    /// Count of the numbers that are taken, while no CPU takes or gives one.
    pub fn taken(&self) -> usize {
        let mut left = self.len();
        let mut at = self.first.load(Ordering::Relaxed) as u32;
        while let Some(next) = self.next.get(at as usize).filter(|_| left > 0) {
            left -= 1;
            at = next.load(Ordering::Relaxed);
        }
        left
    }

    fn step(tagged: u64, number: u32) -> u64 {
        ((tagged >> 32).wrapping_add(1) << 32) | u64::from(number)
    }
}
