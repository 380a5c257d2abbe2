//! Values of CPUs, each made when its CPU first wants it: a machine of many CPUs does not pay for those
//! that never use a space.
//!
//! The first CPU's value is there from the start, and serves every CPU that has none of its own. Making
//! one takes heap memory, so a caller that may take none asks for it ([`PerCpu::want`]), and a later one
//! that may makes it ([`PerCpu::make_wanted`]). A value stays until all go.
//!
//! *Context.* Interrupt, but for those that make values, which are for atomic code.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use once_cell::race::OnceBox;

use super::{CachePadded, SharedWord};

/// A value on lines of its own, on the heap: the standard library makes a box of one value, which fails
/// without memory, only through a list.
type Own<T> = Box<[CachePadded<T>; 1]>;

/// The place of one.
type Slot<T> = OnceBox<[CachePadded<T>; 1]>;

/// No heap memory for the value of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PerCpuError;

/// Values of CPUs.
pub(crate) struct PerCpu<T, W> {
    /// The first CPU's, and that of each CPU which has none.
    first: Own<T>,
    others: Box<[Slot<T>]>,
    /// CPUs that asked for a value, a bit each.
    wanted: Box<[W]>,
}

/// A list of what `make` makes.
fn list<E>(count: usize, make: impl Fn() -> E) -> Result<Box<[E]>, PerCpuError> {
    let mut list = Vec::new();
    list.try_reserve_exact(count).map_err(|_| PerCpuError)?;
    list.extend((0..count).map(|_| make()));
    Ok(list.into_boxed_slice())
}

/// A value on lines of its own, on the heap.
fn boxed<T>(value: T) -> Result<Own<T>, PerCpuError> {
    let mut one = Vec::new();
    one.try_reserve_exact(1).map_err(|_| PerCpuError)?;
    one.push(CachePadded(value));
    one.into_boxed_slice().try_into().map_err(|_| PerCpuError)
}

impl<T, W: SharedWord> PerCpu<T, W> {
    /// Places for the values of `count` CPUs, of which the first has `first`.
    ///
    /// # Errors
    /// Without memory for them.
    pub fn new(count: usize, first: T) -> Result<Self, PerCpuError> {
        let others = list(count.saturating_sub(1), Slot::new)?;
        let wanted = list(count.div_ceil(64), || W::new(0))?;
        Ok(Self { first: boxed(first)?, others, wanted })
    }

    /// Number of places.
    pub fn len(&self) -> usize {
        self.others.len() + 1
    }

    /// The value of `cpu`, if it has one.
    #[inline]
    pub fn own(&self, cpu: usize) -> Option<&T> {
        match cpu.checked_sub(1) {
            None => Some(self.first()),
            Some(other) => self.others.get(other)?.get().map(|[value]| &value.0),
        }
    }

    /// The value that serves CPUs without one.
    #[inline]
    pub fn first(&self) -> &T {
        let [value] = &*self.first;
        &value.0
    }

    /// All values.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len()).filter_map(|cpu| self.own(cpu))
    }

    /// Asks for a value of `cpu`; tells if there is a place for one.
    #[cold]
    pub fn want(&self, cpu: usize) -> bool {
        let word = self.wanted.get(cpu / 64).filter(|_| cpu < self.len());
        let Some(word) = word else {
            return false;
        };
        let bit = 1 << (cpu % 64);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        true
    }

    /// Gives each CPU that asked for one the value that `make` makes.
    ///
    /// *Context.* Atomic: takes heap memory.
    pub fn make_wanted(&self, make: impl Fn() -> Option<T>) {
        for (at, word) in self.wanted.iter().enumerate() {
            let mut asked = word.swap(0, Ordering::Relaxed);
            while asked != 0 {
                self.make(64 * at + asked.trailing_zeros() as usize, &make);
                asked &= asked - 1;
            }
        }
    }

    /// Gives `cpu` a value if it has none and there is memory for it; of two callers at once, the first.
    ///
    /// *Context.* Atomic: takes heap memory.
    #[cold]
    pub fn make(&self, cpu: usize, make: impl Fn() -> Option<T>) -> Option<&T> {
        let slot = cpu.checked_sub(1).and_then(|other| self.others.get(other));
        if let Some(slot) = slot.filter(|slot| slot.get().is_none()) {
            drop(slot.set(boxed(make()?).ok()?));
        }
        self.own(cpu)
    }
}

#[cfg(test)]
mod tests;
