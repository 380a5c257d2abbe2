//! Lists under a lock whose memory is taken before the lock and given back after it.

use alloc::vec::Vec;

use portolan::platform::{Cpus, Guarded};

/// Values by key, in order. It never takes memory of its own: see [`with_room`].
#[derive(Debug)]
pub(super) struct Sorted<K, V>(Vec<(K, V)>);

impl<K, V> Default for Sorted<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord + Copy, V> Sorted<K, V> {
    pub(super) fn get(&self, key: K) -> Option<&V> {
        let at = self.place(key).ok()?;
        self.0.get(at).map(|(_, value)| value)
    }

    pub(super) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let at = self.place(key).ok()?;
        self.0.get_mut(at).map(|(_, value)| value)
    }

    /// Puts `value` in place of what it returns. There has to be room, see [`with_room`].
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.place(key) {
            Ok(at) => Some(core::mem::replace(&mut self.0.get_mut(at)?.1, value)),
            Err(at) => {
                self.0.insert(at, (key, value));
                None
            }
        }
    }

    pub(super) fn remove(&mut self, key: K) -> Option<V> {
        let at = self.place(key).ok()?;
        Some(self.0.remove(at).1)
    }

    /// Those from `first` to `last`.
    pub(super) fn range(&self, first: K, last: K) -> impl Iterator<Item = &(K, V)> {
        let at = self.0.partition_point(|(key, _)| *key < first);
        let from = self.0.iter().skip(at);
        from.take_while(move |(key, _)| *key <= last)
    }

    pub(super) fn list(&mut self) -> &mut Vec<(K, V)> {
        &mut self.0
    }

    fn place(&self, key: K) -> Result<usize, usize> {
        self.0.binary_search_by_key(&key, |(key, _)| *key)
    }
}

/// Does `work` under the lock, once the list that `list` names has room for `more`. What `work`
/// returns is dropped after the lock: what it takes out belongs there.
pub(super) fn with_room<C: Cpus, S: Send, T, X>(
    guarded: &Guarded<C, S>,
    list: impl Fn(&mut S) -> &mut Vec<T>,
    more: usize,
    work: impl FnOnce(&mut S) -> X,
) -> X {
    let mut spare: Vec<T> = Vec::new();
    loop {
        let mut held = guarded.lock();
        let here = list(&mut held);
        let wanted = here.len() + more;
        if here.capacity() < wanted && spare.capacity() >= wanted {
            spare.append(here);
            core::mem::swap(here, &mut spare);
        }
        if here.capacity() >= wanted {
            let done = work(&mut held);
            drop(held);
            return done;
        }
        drop(held);
        spare = Vec::with_capacity(wanted.next_power_of_two().max(8));
    }
}
