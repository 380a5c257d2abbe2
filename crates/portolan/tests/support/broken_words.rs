//! Words whose operations are broken in one way each, which a test of interleavings has to notice.

#![allow(dead_code)] // Each test binary uses its part.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use portolan::addr::CpuId;
use portolan::platform::{Clock, Cpus, Nanos, SharedWord};

use super::loom_cpus::{LoomCpus, LoomLock, LoomWord};

/// Way in which a word is broken.
pub trait Breakage: Send + Sync + Debug + 'static {
    /// [`SharedWord::swap`].
    fn swap(word: &LoomWord, value: u64, order: Ordering) -> u64 {
        word.swap(value, order)
    }

    /// [`SharedWord::compare_exchange_weak`].
    fn compare_exchange(word: &LoomWord, old: u64, new: u64, order: Ordering) -> Result<u64, u64> {
        word.compare_exchange_weak(old, new, order, Ordering::Relaxed)
    }
}

/// Takes a value in two steps: a read and a write.
#[derive(Clone, Copy, Debug)]
pub struct TakenInTwoSteps;

impl Breakage for TakenInTwoSteps {
    fn swap(word: &LoomWord, value: u64, _order: Ordering) -> u64 {
        let held = word.load(Ordering::Acquire);
        word.store(value, Ordering::Release);
        held
    }
}

/// Puts a value in two steps: a compare and a write.
#[derive(Clone, Copy, Debug)]
pub struct PutInTwoSteps;

impl Breakage for PutInTwoSteps {
    fn compare_exchange(word: &LoomWord, old: u64, new: u64, _: Ordering) -> Result<u64, u64> {
        match word.load(Ordering::Acquire) {
            found if found == old => {
                word.store(new, Ordering::Release);
                Ok(found)
            }
            found => Err(found),
        }
    }
}

/// Puts a value over any other that is there.
#[derive(Clone, Copy, Debug)]
pub struct PutUnseen;

impl Breakage for PutUnseen {
    fn compare_exchange(word: &LoomWord, old: u64, new: u64, _: Ordering) -> Result<u64, u64> {
        word.store(new, Ordering::Release);
        Ok(old)
    }
}

/// A taker does not see the writes that came before its value was put.
#[derive(Clone, Copy, Debug)]
pub struct TakenUnordered;

impl Breakage for TakenUnordered {
    fn swap(word: &LoomWord, value: u64, _order: Ordering) -> u64 {
        word.swap(value, Ordering::Release)
    }
}

/// A caller that puts a value does not show its earlier writes.
#[derive(Clone, Copy, Debug)]
pub struct PutUnordered;

impl Breakage for PutUnordered {
    fn compare_exchange(word: &LoomWord, old: u64, new: u64, _: Ordering) -> Result<u64, u64> {
        word.compare_exchange_weak(old, new, Ordering::Acquire, Ordering::Relaxed)
    }
}

/// A word that is broken.
#[derive(Debug)]
pub struct BrokenWord<B>(LoomWord, PhantomData<B>);

impl<B: Breakage> SharedWord for BrokenWord<B> {
    fn new(value: u64) -> Self {
        Self(LoomWord::new(value), PhantomData)
    }

    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        B::swap(&self.0, value, order)
    }

    fn compare_exchange_weak(
        &self,
        old: u64,
        new: u64,
        success: Ordering,
        _failure: Ordering,
    ) -> Result<u64, u64> {
        B::compare_exchange(&self.0, old, new, success)
    }

    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_add(value, order)
    }

    fn fetch_or(&self, mask: u64, order: Ordering) -> u64 {
        self.0.fetch_or(mask, order)
    }
}

/// CPUs whose words are broken.
#[derive(Clone, Copy, Debug)]
pub struct Broken<B>(LoomCpus, PhantomData<B>);

impl<B> Broken<B> {
    pub fn new(count: usize) -> Self {
        Self(LoomCpus::new(count), PhantomData)
    }
}

impl<B: Breakage> Clock for Broken<B> {
    fn now(&self) -> Nanos {
        self.0.now()
    }

    fn relax(&self) {
        self.0.relax();
    }
}

impl<B: Breakage> Cpus for Broken<B> {
    type Word = BrokenWord<B>;
    type Lock<T: Send> = LoomLock<T>;

    fn count(&self) -> usize {
        self.0.count()
    }

    fn current(&self) -> CpuId {
        self.0.current()
    }

    fn flush_wanted(&self) {
        self.0.flush_wanted();
    }

    fn drop_later(&self, left: portolan::platform::LeftBehind) {
        self.0.drop_later(left);
    }
}
