//! Sorted lists under a lock, which allocate and free outside it.
//!
//! An interrupt handler may want the lock on the CPU that holds it, and a heap has locks of its own:
//! so a list grows into room that was made before the lock was taken.

use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::sync::atomic::{AtomicUsize, Ordering};
use portolan::platform::{Cpus, Guarded};

/// Entries that are copied out under one turn of the lock.
const CHUNK: usize = 16;

/// Values by key.
///
/// *Context.* Interrupt, but for what inserts, which takes heap memory and is for tasks. What
/// [`Book::take`] returns is freed by tasks.
#[derive(Debug)]
pub(super) struct Book<C: Cpus, K: Send, V: Send>(Guarded<C, Vec<(K, V)>>);

impl<C: Cpus, K: Send, V: Send> Default for Book<C, K, V> {
    fn default() -> Self {
        Self(Guarded::new(Vec::new()))
    }
}

impl<C: Cpus, K: Send, V: Send> Book<C, K, V> {
    /// Holds the lock during `work`, which may insert one entry.
    fn with_room<T>(&self, work: impl FnOnce(&mut Vec<(K, V)>) -> T) -> T {
        let mut spare = Vec::new();
        loop {
            let wanted = {
                let mut held = self.0.lock();
                if held.len() == held.capacity() && spare.capacity() > held.len() {
                    spare.append(&mut held);
                    core::mem::swap(&mut *held, &mut spare);
                }
                if held.len() < held.capacity() {
                    return work(&mut held);
                }
                held.len() * 2 + 4
            };
            spare = Vec::with_capacity(wanted);
        }
    }

    /// Takes everything out.
    pub fn take(&self) -> Vec<(K, V)> {
        core::mem::take(&mut *self.0.lock())
    }
}

impl<C: Cpus, K: Ord + Copy + Send, V: Send> Book<C, K, V> {
    /// Holds the lock during `work` on the value of `key`, if there is one.
    pub fn with<T>(&self, key: K, work: impl FnOnce(&mut V) -> T) -> Option<T> {
        let mut held = self.0.lock();
        let at = held.binary_search_by_key(&key, |entry| entry.0).ok()?;
        held.get_mut(at).map(|(_, value)| work(value))
    }

    /// Gives `key` a value, unless it has one; then `value` comes back.
    pub fn insert(&self, key: K, value: V) -> Result<(), V> {
        self.insert_and(key, value, || {})
    }

    /// As [`Book::insert`], with `work` done under the same turn of the lock if `key` had none.
    pub fn insert_and(&self, key: K, value: V, work: impl FnOnce()) -> Result<(), V> {
        self.with_room(
            |held| match held.binary_search_by_key(&key, |entry| entry.0) {
                Ok(_) => Err(value),
                Err(at) => {
                    work();
                    held.insert(at, (key, value));
                    Ok(())
                }
            },
        )
    }
}

/// Sets by key that are empty most of the time. A member that was added twice is removed twice.
///
/// *Context.* Interrupt, but for [`Sets::add`], which takes heap memory and is for tasks.
#[derive(Debug)]
pub(super) struct Sets<C: Cpus, K: Send, V: Send> {
    entries: AtomicUsize,
    book: Book<C, (K, V), ()>,
}

impl<C: Cpus, K: Send, V: Send> Default for Sets<C, K, V> {
    fn default() -> Self {
        Self {
            entries: AtomicUsize::new(0),
            book: Book::default(),
        }
    }
}

impl<C: Cpus, K: Ord + Copy + Send, V: Ord + Copy + Send> Sets<C, K, V> {
    pub fn add(&self, key: K, value: V) {
        self.book.with_room(|held| {
            let at = held.partition_point(|entry| entry.0 < (key, value));
            held.insert(at, ((key, value), ()));
        });
        self.entries.fetch_add(1, Ordering::SeqCst);
    }

    pub fn remove(&self, key: K, value: V) {
        let mut held = self.book.0.lock();
        if let Ok(at) = held.binary_search_by_key(&(key, value), |entry| entry.0) {
            held.remove(at);
            self.entries.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Removes the members that `which` names from all sets.
    pub fn remove_all(&self, which: impl Fn(V) -> bool) {
        let mut held = self.book.0.lock();
        let before = held.len();
        held.retain(|((_, value), ())| !which(*value));
        self.entries
            .fetch_sub(before - held.len(), Ordering::SeqCst);
    }

    pub fn contains(&self, key: K, value: V) -> bool {
        self.entries.load(Ordering::SeqCst) != 0 && self.book.with((key, value), |()| ()).is_some()
    }

    /// The members of the set of `key`, each once. What is added or removed meanwhile may be among
    /// them or not.
    pub fn members(&self, key: K) -> Members<'_, C, K, V> {
        Members {
            sets: self,
            key,
            chunk: ArrayVec::new().into_iter(),
            last: None,
        }
    }
}

/// Members of a set.
pub(super) struct Members<'a, C: Cpus, K: Send, V: Send> {
    sets: &'a Sets<C, K, V>,
    key: K,
    chunk: arrayvec::IntoIter<V, CHUNK>,
    last: Option<V>,
}

impl<C: Cpus, K: Ord + Copy + Send, V: Ord + Copy + Send> Members<'_, C, K, V> {
    /// Copies the members behind the last one; nothing if there are none.
    fn refill(&mut self) -> Option<()> {
        if self.sets.entries.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let held = self.sets.book.0.lock();
        let first = held.partition_point(|(entry, ())| match self.last {
            Some(last) => *entry <= (self.key, last),
            None => entry.0 < self.key,
        });
        let rest = held.get(first..).unwrap_or_default();
        let members = rest.iter().take_while(|(entry, ())| entry.0 == self.key);
        let members = members.map(|(entry, ())| entry.1);
        let chunk: ArrayVec<V, CHUNK> = members.take(CHUNK).collect();
        self.chunk = chunk.into_iter();
        (self.chunk.len() != 0).then_some(())
    }
}

impl<C: Cpus, K: Ord + Copy + Send, V: Ord + Copy + Send> Iterator for Members<'_, C, K, V> {
    type Item = V;

    fn next(&mut self) -> Option<V> {
        loop {
            match self.chunk.next() {
                None => self.refill()?,
                next if next == self.last => {}
                next => {
                    self.last = next;
                    return next;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smmuv3::mock::Ticks;

    #[test]
    fn members_come_once_each_in_any_number() {
        for count in [0u32, 1, 15, 16, 17, 100] {
            let sets = Sets::<Ticks, u8, u32>::default();
            for value in (0..count).rev() {
                for key in [1, 2, 3] {
                    sets.add(key, value);
                }
                sets.add(2, value);
            }
            assert!(sets.members(2).eq(0..count), "{count}");
            assert!(sets.members(4).next().is_none());
            sets.remove(2, 0);
            assert!(sets.members(2).eq(0..count), "added twice");
            sets.remove(2, 0);
            assert!(sets.members(2).eq(1..count.max(1)));
            sets.remove_all(|value| value % 2 == 0);
            assert!(
                sets.members(3)
                    .eq((0..count).filter(|value| value % 2 == 1))
            );
            assert_eq!(sets.contains(3, 1), count > 1);
        }
    }

    #[test]
    fn a_key_has_one_value() {
        let book = Book::<Ticks, u32, u32>::default();
        for key in 0..50 {
            assert_eq!(book.insert(key ^ 0x15, key), Ok(()));
            assert_eq!(book.insert(key ^ 0x15, 99), Err(99));
        }
        assert!((0..50).all(|key| book.with(key ^ 0x15, |value| *value) == Some(key)));
        assert_eq!(book.take().len(), 50);
        assert_eq!(book.with(0, |value| *value), None);
    }
}
