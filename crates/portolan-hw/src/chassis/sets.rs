//! Sets of devices or units that have to be told of a change, by the tag of the change; most of the
//! time they are empty. And changes that commands have made, until those devices are told.

use super::atomic::{AtomicUsize, Ordering, fence};
use super::{Sorted, with_room};
use arrayvec::ArrayVec;
use portolan::addr::{IovaRange, Pasid, StreamId};
use portolan::platform::{Cpus, Guarded};

/// A device with translations of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Atc {
    pub(crate) stream: StreamId,
    pub(crate) pasid: Option<Pasid>,
}

/// Members that are copied out under one turn of the lock.
const CHUNK: usize = 16;

/// Sets by key. A member that was added twice is removed twice.
///
/// *Context.* Interrupt, but for [`Sets::add`], which takes heap memory and is for tasks.
#[derive(Debug)]
pub(crate) struct Sets<C: Cpus, K: Send, V: Send> {
    /// Number of members, for readers that do not hold the lock.
    count: AtomicUsize,
    /// Members, with the number of times that each was added.
    members: Guarded<C, Sorted<(K, V), usize>>,
}

impl<C: Cpus, K: Send, V: Send> Default for Sets<C, K, V> {
    fn default() -> Self {
        Self { count: AtomicUsize::new(0), members: Guarded::default() }
    }
}

impl<C: Cpus, K: Ord + Copy + Send, V: Ord + Copy + Send> Sets<C, K, V> {
    pub(crate) fn add(&self, key: K, value: V) {
        with_room(&self.members, Sorted::list, |members| {
            let before = members.get((key, value)).copied().unwrap_or_default();
            members.insert((key, value), before + 1);
            self.count.store(members.list().len(), Ordering::Relaxed);
        });
        // Before the unit or the device is told: see `is_empty`.
        fence(Ordering::SeqCst);
    }

    /// Tells if there are no members. A CPU that has taken an entry out of a table asks, a CPU that
    /// adds a member lets a device read tables afterwards: with a fence on each side, one of them
    /// sees the other's write.
    fn is_empty(&self) -> bool {
        fence(Ordering::SeqCst);
        self.count.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn remove(&self, key: K, value: V) {
        let mut members = self.members.lock();
        match members.get_mut((key, value)) {
            None => return,
            Some(1) => drop(members.remove((key, value))),
            Some(times) => *times -= 1,
        }
        self.count.store(members.list().len(), Ordering::Relaxed);
    }

    /// Removes the members that `which` names from all sets.
    pub(crate) fn remove_all(&self, which: impl Fn(V) -> bool) {
        let mut members = self.members.lock();
        members.list().retain(|((_, value), _)| !which(*value));
        self.count.store(members.list().len(), Ordering::Relaxed);
    }

    pub(crate) fn contains(&self, key: K, value: V) -> bool {
        !self.is_empty() && self.members.lock().get((key, value)).is_some()
    }

    /// The members of the set of `key`, each once. Members that are added or removed meanwhile may
    /// be among them or not.
    pub(crate) fn members(&self, key: K) -> Members<'_, C, K, V> {
        Members { key: Some(key), ..self.all() }
    }

    /// The members of all sets, each once for each set that it is in; otherwise as [`Sets::members`].
    pub(crate) fn all(&self) -> Members<'_, C, K, V> {
        Members { sets: self, key: None, chunk: ArrayVec::new().into_iter(), last: None }
    }
}

/// Members of a set, or of all sets.
pub(crate) struct Members<'a, C: Cpus, K: Send, V: Send> {
    sets: &'a Sets<C, K, V>,
    key: Option<K>,
    chunk: arrayvec::IntoIter<(K, V), CHUNK>,
    /// The last one copied.
    last: Option<(K, V)>,
}

impl<C: Cpus, K: Ord + Copy + Send, V: Ord + Copy + Send> Iterator for Members<'_, C, K, V> {
    type Item = V;

    fn next(&mut self) -> Option<V> {
        if let Some((_, next)) = self.chunk.next() {
            return Some(next);
        }
        if self.sets.is_empty() {
            return None;
        }
        let (key, last) = (self.key, self.last);
        let members = self.sets.members.lock();
        let rest = members.behind(|known| match last {
            Some(last) => known <= last,
            None => key.is_some_and(|key| known.0 < key),
        });
        let ours = |known: &(K, V)| key.is_none_or(|key| known.0 == key);
        let set = rest.map_while(|(known, _)| ours(known).then_some(*known));
        let chunk: ArrayVec<(K, V), CHUNK> = set.take(CHUNK).collect();
        self.last = chunk.last().copied().or(last);
        self.chunk = chunk.into_iter();
        Some(self.chunk.next()?.1)
    }
}

/// Contexts whose devices are told after one round of commands; with more of them the round ends earlier.
pub(crate) const TOUCHED: usize = 8;

/// The contexts that a round of commands touched, each with the addresses: all of them if `None`.
#[derive(Clone, Debug)]
pub(crate) struct Touched<T>(ArrayVec<(T, Option<IovaRange>), TOUCHED>);

impl<T: Copy + PartialEq> Touched<T> {
    pub(crate) fn new() -> Self {
        Self(ArrayVec::new())
    }

    /// Notes that `tag` was touched; there is room for it.
    pub(crate) fn touch(&mut self, tag: T, range: Option<IovaRange>) {
        match self.0.iter_mut().find(|(known, _)| *known == tag) {
            None => self.0.push((tag, range)),
            Some((_, all)) => *all = all.zip(range).map(|(old, new)| old.hull(new)),
        }
    }

    /// Tells if `tag` can be noted.
    pub(crate) fn has_room(&self, tag: T) -> bool {
        !self.0.is_full() || self.0.iter().any(|(known, _)| *known == tag)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (T, Option<IovaRange>)> {
        self.0.iter().copied()
    }
}
