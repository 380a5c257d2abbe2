//! Lists under a lock whose memory is taken before the lock and given back after it: an interrupt
//! handler may want the lock on the CPU that holds it, and a heap has locks of its own.

use alloc::vec::Vec;

use portolan::platform::{Cpus, Guarded};

/// Values by key, in order. It never takes memory of its own: see [`with_room`].
#[derive(Debug)]
pub(crate) struct Sorted<K, V>(Vec<(K, V)>);

impl<K, V> Default for Sorted<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord + Copy, V> Sorted<K, V> {
    pub(crate) fn get(&self, key: K) -> Option<&V> {
        let at = self.place(key).ok()?;
        self.0.get(at).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let at = self.place(key).ok()?;
        self.0.get_mut(at).map(|(_, value)| value)
    }

    /// Puts `value` in, and returns the value that it replaces. There has to be room, see
    /// [`with_room`].
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.place(key) {
            Ok(at) => Some(core::mem::replace(&mut self.0.get_mut(at)?.1, value)),
            Err(at) => {
                self.0.insert(at, (key, value));
                None
            }
        }
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<V> {
        let at = self.place(key).ok()?;
        Some(self.0.remove(at).1)
    }

    /// Those behind all keys that are `before`, which the smallest keys are.
    pub(crate) fn behind(&self, before: impl Fn(K) -> bool) -> impl Iterator<Item = &(K, V)> {
        let at = self.0.partition_point(|(key, _)| before(*key));
        self.0.iter().skip(at)
    }

    pub(crate) fn list(&mut self) -> &mut Vec<(K, V)> {
        &mut self.0
    }

    fn place(&self, key: K) -> Result<usize, usize> {
        self.0.binary_search_by_key(&key, |(key, _)| *key)
    }
}

/// Does `work` under the lock, once the list that `list` names has room for one more. The result of
/// `work` is dropped after the lock: it holds the values that `work` takes out. *Context.* Task.
pub(crate) fn with_room<C: Cpus, S: Send, T, X>(
    guarded: &Guarded<C, S>,
    list: impl Fn(&mut S) -> &mut Vec<T>,
    work: impl FnOnce(&mut S) -> X,
) -> X {
    let mut spare: Vec<T> = Vec::new();
    loop {
        let mut held = guarded.lock();
        let here = list(&mut held);
        let wanted = here.len() + 1;
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

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_chips::fixture::Still;

    #[test]
    fn a_key_has_one_value_and_keys_are_in_order() {
        let list = Guarded::<Still, Sorted<u32, u32>>::default();
        let put = |key, value| with_room(&list, Sorted::list, |list| list.insert(key, value));
        for key in 0..50 {
            assert_eq!(put(key ^ 0x15, 99), None);
            assert_eq!(put(key ^ 0x15, key), Some(99));
        }
        let mut list = list.lock();
        assert!((0..50).all(|key| list.get(key ^ 0x15) == Some(&key)));
        let mut keys: Vec<u32> = (0..50).map(|key| key ^ 0x15).collect();
        keys.sort_unstable();
        let behind = keys.split_off(20);
        assert!(list.behind(|key| key < behind[0]).map(|(key, _)| key).eq(&behind));
        assert_eq!((list.remove(7), list.get(7)), (Some(7 ^ 0x15), None));
    }
}
