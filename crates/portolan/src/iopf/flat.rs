//! A map whose memory is made where allocation is allowed, and handed in.

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

/// There is no room for another entry; nothing was inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoRoom;

/// Entries in order of their keys, in one allocation. It never allocates and never frees: it is
/// used with a lock held.
#[derive(Debug)]
pub(super) struct FlatMap<K, V>(Vec<(K, V)>);

impl<K, V> Default for FlatMap<K, V> {
    /// No entries, and no room for any.
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// Room for `count` entries.
pub(super) fn room<T>(count: usize) -> Result<Vec<T>, TryReserveError> {
    let mut room = Vec::new();
    room.try_reserve_exact(count)?;
    Ok(room)
}

impl<K: Ord + Copy, V> FlatMap<K, V> {
    /// A map that lives in `room`.
    pub(super) fn new(room: Vec<(K, V)>) -> Self {
        Self(room)
    }

    fn place(&self, key: &K) -> Result<usize, usize> {
        self.0.binary_search_by(|(other, _)| other.cmp(key))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn has_room(&self) -> bool {
        self.0.len() < self.0.capacity()
    }

    /// Moves into `room` if that is larger, and leaves its old memory there.
    pub(super) fn move_to(&mut self, room: &mut Vec<(K, V)>) {
        if room.capacity() > self.0.capacity() && room.is_empty() {
            room.append(&mut self.0);
            core::mem::swap(room, &mut self.0);
        }
    }

    pub(super) fn contains(&self, key: &K) -> bool {
        self.place(key).is_ok()
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        let at = self.place(key).ok()?;
        self.0.get(at).map(|(_, value)| value)
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let at = self.place(key).ok()?;
        self.0.get_mut(at).map(|(_, value)| value)
    }

    /// Inserts an entry whose key is new. One that is there stays as it is.
    pub(super) fn insert(&mut self, key: K, value: V) -> Result<(), NoRoom> {
        let Err(at) = self.place(&key) else {
            return Ok(());
        };
        if !self.has_room() {
            return Err(NoRoom);
        }
        self.0.insert(at, (key, value));
        Ok(())
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.place(key).ok()?;
        Some(self.0.remove(at).1)
    }

    /// The entry with the lowest key, taken out.
    pub(super) fn pop_first(&mut self) -> Option<(K, V)> {
        (!self.0.is_empty()).then(|| self.0.remove(0))
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The entries, in order.
    pub(super) fn entries(&self) -> &[(K, V)] {
        &self.0
    }

    /// The entries from `first` on, in order.
    pub(super) fn entries_from(&self, first: &K) -> &[(K, V)] {
        let (Ok(at) | Err(at)) = self.place(first);
        self.0.get(at..).unwrap_or(&[])
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = (K, &mut V)> {
        self.0.iter_mut().map(|(key, value)| (*key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_in_order_and_never_more_than_there_is_room_for() {
        let mut map = FlatMap::new(room(3).unwrap());
        for key in [5, 1, 3] {
            assert_eq!(map.insert(key, key * 10), Ok(()));
        }
        assert_eq!(map.insert(2, 20), Err(NoRoom));
        assert_eq!(map.insert(5, 0), Ok(()));
        assert_eq!(map.entries(), [(1, 10), (3, 30), (5, 50)]);
        assert_eq!(map.entries_from(&2), [(3, 30), (5, 50)]);
        let mut larger = room(8).unwrap();
        map.move_to(&mut larger);
        assert!(map.has_room() && larger.is_empty() && larger.capacity() == 3);
        assert_eq!((map.remove(&3), map.remove(&3)), (Some(30), None));
        assert_eq!(map.get(&5), Some(&50));
        assert_eq!(map.pop_first(), Some((1, 10)));
    }
}
