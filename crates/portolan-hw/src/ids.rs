//! Identifiers given out and taken back: ASIDs, VMIDs, domain ids.
//!
//! A bitmap under a lock: identifiers are taken when a domain is made and given back when it is
//! dropped, never while mapping.

use alloc::vec::Vec;
use portolan::platform::{Cpus, Guarded};

use crate::chassis::with_room;

/// A set of numbers from `first` to `last`, each given out at most once at a time.
#[derive(Debug)]
pub struct Ids<C: Cpus> {
    first: u32,
    last: u32,
    used: Guarded<C, Vec<u64>>,
}

impl<C: Cpus> Ids<C> {
    /// All numbers from `first` to `last` are free. An empty set if `last` is below `first`.
    ///
    /// *Context.* Interrupt.
    pub fn new(first: u32, last: u32) -> Self {
        Self { first, last, used: Guarded::new(Vec::new()) }
    }

    /// The smallest free number.
    ///
    /// *Context.* Task: the bitmap may grow, outside the lock.
    pub fn take(&self) -> Option<u32> {
        with_room(
            &self.used,
            |used| used,
            |used| {
                let word = used.iter().position(|&word| word != u64::MAX);
                let word = word.unwrap_or(used.len());
                let bit = used.get(word).map_or(0, |word| word.trailing_ones());
                let first = u32::try_from(word).ok()?.checked_mul(64)?;
                let id = self.first.checked_add(first.checked_add(bit)?)?;
                if id > self.last {
                    return None;
                }
                if word == used.len() {
                    used.push(0);
                }
                used[word] |= 1 << bit;
                Some(id)
            },
        )
    }

    /// Takes `id` out of the free ones; tells if it was one.
    ///
    /// *Context.* Task: the bitmap may grow.
    pub fn take_this(&self, id: u32) -> bool {
        let Some(index) = id.checked_sub(self.first).filter(|_| id <= self.last) else {
            return false;
        };
        let (word, bit) = (index as usize / 64, 1 << (index % 64));
        loop {
            let here = {
                let mut used = self.used.lock();
                used.get_mut(word).map(|used| core::mem::replace(used, *used | bit) & bit == 0)
            };
            if let Some(free) = here {
                return free;
            }
            with_room(&self.used, |used| used, |used| used.push(0));
        }
    }

    /// Takes `id` back. Numbers that are not out are left alone.
    ///
    /// *Context.* Interrupt.
    pub fn give_back(&self, id: u32) {
        if let Some(index) = id.checked_sub(self.first) {
            if let Some(word) = self.used.lock().get_mut(index as usize / 64) {
                *word &= !(1 << (index % 64));
            }
        }
    }

    /// Number of identifiers in use.
    ///
    /// *Context.* Interrupt.
    pub fn out(&self) -> u32 {
        self.used.lock().iter().map(|word| word.count_ones()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::Ids;
    use portolan_chips::fixture::Still;

    #[test]
    fn all_of_them_once_and_again() {
        let ids = Ids::<Still>::new(1, 130);
        let all: alloc::vec::Vec<_> = core::iter::from_fn(|| ids.take()).collect();
        assert_eq!(all, (1..=130).collect::<alloc::vec::Vec<_>>());
        ids.give_back(77);
        ids.give_back(0);
        ids.give_back(5000);
        assert_eq!((ids.out(), ids.take(), ids.take()), (129, Some(77), None));
    }

    #[test]
    fn a_number_is_taken_by_its_name_once() {
        let ids = Ids::<Still>::new(2, 200);
        assert_eq!([1, 150, 150, 201].map(|id| ids.take_this(id)), [false, true, false, false]);
        let all: alloc::vec::Vec<_> = core::iter::from_fn(|| ids.take()).collect();
        assert_eq!((all.len(), all.contains(&150)), (198, false));
        ids.give_back(150);
        assert!(ids.take_this(150));
    }

    #[test]
    fn none_in_an_empty_set() {
        assert_eq!(Ids::<Still>::new(4, 3).take(), None);
    }
}
