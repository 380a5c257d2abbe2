//! Who has to be told of a change, by the tag of what changes: sets that are empty most of the time.

use crate::chassis::{Sorted, with_room};
use arrayvec::ArrayVec;
use core::sync::atomic::{AtomicUsize, Ordering};
use portolan::platform::{Cpus, Guarded};

/// Members that are copied out under one turn of the lock.
const CHUNK: usize = 16;

/// Sets by key. A member that was added twice is removed twice.
///
/// *Context.* Interrupt, but for [`Sets::add`], which takes heap memory and is for tasks.
#[derive(Debug)]
pub(super) struct Sets<C: Cpus, K: Send, V: Send> {
    /// How many members there are, for those who do not hold the lock.
    count: AtomicUsize,
    /// How often each was added.
    members: Guarded<C, Sorted<(K, V), usize>>,
}

impl<C: Cpus, K: Send, V: Send> Default for Sets<C, K, V> {
    fn default() -> Self {
        Self {
            count: AtomicUsize::new(0),
            members: Guarded::default(),
        }
    }
}

impl<C: Cpus, K: Ord + Copy + Send, V: Ord + Copy + Send> Sets<C, K, V> {
    pub fn add(&self, key: K, value: V) {
        with_room(&self.members, Sorted::list, |members| {
            let before = members.get((key, value)).copied().unwrap_or_default();
            members.insert((key, value), before + 1);
            self.count.store(members.list().len(), Ordering::SeqCst);
        });
    }

    pub fn remove(&self, key: K, value: V) {
        let mut members = self.members.lock();
        match members.get_mut((key, value)) {
            None => return,
            Some(1) => drop(members.remove((key, value))),
            Some(times) => *times -= 1,
        }
        self.count.store(members.list().len(), Ordering::SeqCst);
    }

    /// Removes the members that `which` names from all sets.
    pub fn remove_all(&self, which: impl Fn(V) -> bool) {
        let mut members = self.members.lock();
        members.list().retain(|((_, value), _)| !which(*value));
        self.count.store(members.list().len(), Ordering::SeqCst);
    }

    pub fn contains(&self, key: K, value: V) -> bool {
        self.count.load(Ordering::SeqCst) != 0 && self.members.lock().get((key, value)).is_some()
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
    /// The last one copied.
    last: Option<V>,
}

impl<C: Cpus, K: Ord + Copy + Send, V: Ord + Copy + Send> Iterator for Members<'_, C, K, V> {
    type Item = V;

    fn next(&mut self) -> Option<V> {
        if let Some(next) = self.chunk.next() {
            return Some(next);
        }
        if self.sets.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let members = self.sets.members.lock();
        let rest = members.behind(|(key, value)| match self.last {
            Some(last) => (key, value) <= (self.key, last),
            None => key < self.key,
        });
        let set = rest.map_while(|((key, value), _)| (*key == self.key).then_some(*value));
        let chunk: ArrayVec<V, CHUNK> = set.take(CHUNK).collect();
        self.last = chunk.last().copied().or(self.last);
        self.chunk = chunk.into_iter();
        self.chunk.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_model::interrupts::InterruptedCpu;

    #[test]
    fn members_come_once_each_in_any_number() {
        for count in [0u32, 1, 15, 16, 17, 100] {
            let sets = Sets::<InterruptedCpu, u8, u32>::default();
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
}
