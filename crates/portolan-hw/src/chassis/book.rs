//! Book of the streams of a unit: their attachments, the domains that these keep alive, and the
//! remains of failures.
//!
//! A stream is moved by one caller at a time. If the hardware does not complete a move, the stream
//! is blocked as far as the hardware looks, and the domains that it may still reach are
//! *unsettled*: kept alive until a later move has made the hardware forget them, which comes before
//! anything else happens to the stream. Domains that are unsettled when the unit goes are never
//! freed.
//!
//! *Context.* Interrupt: [`Book::try_with`], and looking at the value that it lends. Task: the
//! others, which wait for the hardware, allocate, and let go of domains.

use crate::turn::{Turn, TurnWait};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::fmt;
use core::ops::Bound;
use portolan::iommu::{Domain, IommuError};
use portolan::platform::Cpus;

/// Keeps a domain alive.
#[derive(Clone)]
pub(crate) struct Hold(pub(crate) Arc<dyn Domain>);

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hold")
    }
}

/// Attachment of a stream, or of one PASID of it. A blocked stream has no attachment.
#[derive(Clone, Debug)]
pub(crate) struct Attachment<T> {
    /// Data of the driver.
    pub(crate) to: T,
    /// The domain, kept alive; none where accesses pass through.
    pub(crate) domain: Option<Hold>,
}

impl<T> Attachment<T> {
    pub(crate) fn new<D: Domain + 'static>(to: T, domain: &Arc<D>) -> Self {
        let domain = Some(Hold(domain.clone()));
        Self { to, domain }
    }

    pub(crate) fn without_domain(to: T) -> Self {
        Self { to, domain: None }
    }
}

/// The attachments between which a move failed.
pub(crate) type Unsettled<T> = ArrayVec<Attachment<T>, 2>;

/// Entry of the book for one stream.
#[derive(Debug)]
struct BookedStream<T> {
    attachment: Option<Attachment<T>>,
    /// Present after a failure. The stream is blocked meanwhile.
    unsettled: Option<Unsettled<T>>,
}

impl<T> BookedStream<T> {
    const BLOCKED: Self = Self { attachment: None, unsettled: None };

    fn is_blocked(&self) -> bool {
        self.attachment.is_none() && self.unsettled.is_none()
    }

    /// Notes that the old attachment, and `new`, may still be reached.
    fn unsettle(&mut self, new: Option<Attachment<T>>) {
        let left = self.attachment.take().into_iter().chain(new);
        let unsettled = self.unsettled.get_or_insert_with(Unsettled::new_const);
        unsettled.extend(left.take(unsettled.remaining_capacity()));
    }
}

/// All streams, and other state that the driver keeps for the caller that moves them.
#[derive(Debug)]
pub(crate) struct Streams<K, T, S> {
    streams: BTreeMap<K, BookedStream<T>>,
    pub(crate) state: S,
}

/// A [`Streams`] that one caller has at a time.
#[derive(Debug)]
pub(crate) struct Book<C: Cpus, K: Send, T: Send, S: Send>(Turn<C, Streams<K, T, S>>);

impl<K: Ord + Copy, T, S> Streams<K, T, S> {
    pub(crate) fn new(state: S) -> Self {
        let streams = BTreeMap::new();
        Self { streams, state }
    }

    /// `key` has been attached from the start.
    pub(crate) fn begin(&mut self, key: K, attachment: Attachment<T>) {
        let attachment = Some(attachment);
        self.streams.insert(key, BookedStream { attachment, ..BookedStream::BLOCKED });
    }

    pub(crate) fn attachment(&self, key: K) -> Option<&Attachment<T>> {
        self.streams.get(&key)?.attachment.as_ref()
    }

    /// Those of `range` that are attached.
    pub(crate) fn attached(
        &self,
        range: impl core::ops::RangeBounds<K>,
    ) -> impl Iterator<Item = (K, &Attachment<T>)> {
        let all = self.streams.range(range);
        all.filter_map(|(key, stream)| Some((*key, stream.attachment.as_ref()?)))
    }

    /// Those of `range` that are attached or unsettled.
    pub(crate) fn not_blocked(
        &self,
        range: impl core::ops::RangeBounds<K>,
    ) -> impl Iterator<Item = K> {
        let all = self.streams.range(range);
        let some = all.filter(|(_, stream)| !stream.is_blocked());
        some.map(|(key, _)| *key)
    }

    /// Has memory for `key`, so that noting where it is needs none.
    pub(crate) fn name(&mut self, key: K) {
        self.streams.entry(key).or_insert(BookedStream::BLOCKED);
    }

    /// Calls `forget` to make the hardware forget the remains of a failure of `key`, which are
    /// returned then, to be let go of without the turn.
    pub(crate) fn settle(
        &mut self,
        key: K,
        forget: impl FnOnce(&mut S, &[Attachment<T>]) -> Result<(), IommuError>,
    ) -> Result<Unsettled<T>, IommuError> {
        let Some(stream) = self.streams.get_mut(&key) else {
            return Ok(Unsettled::new_const());
        };
        if let Some(unsettled) = &stream.unsettled {
            forget(&mut self.state, unsettled)?;
        }
        Ok(stream.unsettled.take().unwrap_or_default())
    }

    /// As [`Streams::settle`], for all streams at once.
    pub(crate) fn settle_all(
        &mut self,
        forget: impl FnOnce() -> Result<(), IommuError>,
    ) -> Result<Vec<(K, Attachment<T>)>, IommuError> {
        if self.streams.values().all(|stream| stream.unsettled.is_none()) {
            return Ok(Vec::new());
        }
        forget()?;
        let all = self.streams.iter_mut();
        let left = all.flat_map(|(key, stream)| {
            let unsettled = stream.unsettled.take().unwrap_or_default();
            unsettled.into_iter().map(|attachment| (*key, attachment))
        });
        Ok(left.collect())
    }

    /// Notes that `key` was moved to `new`, or that this failed; returns the attachments to be let
    /// go of without the turn.
    pub(crate) fn note<E>(
        &mut self,
        key: K,
        new: Option<Attachment<T>>,
        moved: Result<(), E>,
    ) -> Result<Option<Attachment<T>>, E> {
        let stream = self.streams.entry(key).or_insert(BookedStream::BLOCKED);
        match moved {
            Ok(()) => Ok(core::mem::replace(&mut stream.attachment, new)),
            Err(error) => {
                stream.unsettle(new);
                Err(error)
            }
        }
    }

    /// Moves `key` to `new` by `change`, which gets the old attachment and the new one; `forget` is
    /// as for [`Streams::settle`]. The caller drops the result without the turn.
    pub(crate) fn go(
        &mut self,
        key: K,
        new: Option<Attachment<T>>,
        forget: impl FnOnce(&mut S, &[Attachment<T>]) -> Result<(), IommuError>,
        change: impl FnOnce(
            &mut S,
            Option<&Attachment<T>>,
            Option<&Attachment<T>>,
        ) -> Result<(), IommuError>,
    ) -> Result<Left<T>, IommuError> {
        self.name(key);
        let mut left: Left<T> = self.settle(key, forget)?.into_iter().collect();
        let old = self.streams.get(&key).and_then(|s| s.attachment.as_ref());
        let moved = change(&mut self.state, old, new.as_ref());
        left.extend(self.note(key, new, moved)?);
        Ok(left)
    }

    /// All that is attached may still be reached, though all streams are blocked.
    pub(crate) fn unsettle(&mut self, range: impl core::ops::RangeBounds<K>) {
        let all = self.streams.range_mut(range);
        all.filter(|(_, stream)| stream.attachment.is_some())
            .for_each(|(_, stream)| stream.unsettle(None));
    }

    /// Notes that the hardware reaches nothing of `range` any more: takes out all that was
    /// unsettled, with the attachments.
    pub(crate) fn settled(
        &mut self,
        range: impl core::ops::RangeBounds<K>,
    ) -> Vec<(K, Attachment<T>)> {
        let all = self.streams.range_mut(range);
        all.flat_map(|(key, stream)| {
            let unsettled = stream.unsettled.take().unwrap_or_default();
            let all = unsettled.into_iter().chain(stream.attachment.take());
            all.map(|attachment| (*key, attachment))
        })
        .collect()
    }
}

/// Attachments that a move lets go of.
pub(crate) type Left<T> = ArrayVec<Attachment<T>, 3>;

impl<C: Cpus, K: Ord + Copy + Send, T: Send, S: Send> Book<C, K, T, S> {
    pub(crate) fn new(streams: Streams<K, T, S>) -> Self {
        Self(Turn::new(streams))
    }

    /// As [`Turn::with`].
    pub(crate) fn with<X>(
        &self,
        wait: TurnWait<'_, C>,
        work: impl FnOnce(&mut Streams<K, T, S>) -> X,
    ) -> Result<X, IommuError> {
        self.0.with(wait, work)
    }

    /// As [`Turn::try_with`].
    pub(crate) fn try_with<X>(&self, work: impl FnOnce(&mut Streams<K, T, S>) -> X) -> Option<X> {
        self.0.try_with(work)
    }

    /// Calls `block` for each stream that is not blocked. A stream that is attached meanwhile is
    /// blocked or not.
    ///
    /// # Errors
    /// The first failure; the others are tried all the same.
    pub(crate) fn block_all<E: From<IommuError>>(
        &self,
        wait: TurnWait<'_, C>,
        mut block: impl FnMut(K) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut result, mut from) = (Ok(()), Bound::Unbounded);
        while let Some(key) =
            self.with(wait, |all| all.not_blocked((from, Bound::Unbounded)).next())?
        {
            result = result.and(block(key));
            from = Bound::Excluded(key);
        }
        result
    }
}

impl<K: Ord + Copy, T, S: Default> Default for Streams<K, T, S> {
    fn default() -> Self {
        Self::new(S::default())
    }
}

impl<K, T, S> Drop for Streams<K, T, S> {
    /// Never frees memory that the hardware may still reach.
    fn drop(&mut self) {
        if !self.streams.values().all(BookedStream::is_blocked) {
            core::mem::forget(core::mem::take(&mut self.streams));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_chips::fixture::Still;

    const TURN: TurnWait<'static, Still> = TurnWait::new(&Still, portolan::platform::Nanos::new(1));

    #[test]
    fn streams_that_are_blocked_are_not_blocked_again() {
        let book: Book<Still, u32, u32, ()> = Book::new(Streams::default());
        let attached = |key| {
            let new = Some(Attachment::without_domain(key));
            book.with(TURN, |all| all.note(key, new, Ok::<(), IommuError>(())))
        };
        for key in [3, 5, 8] {
            assert!(attached(key).is_ok());
        }
        // One is blocked, and the move of another fails.
        let noted = book.with(TURN, |all| all.note(5, None, Ok::<(), IommuError>(())));
        assert_eq!(noted.unwrap().unwrap().map(|old| old.to), Some(5));
        let noted = book.with(TURN, |all| all.note(8, None, Err(IommuError::Gone)));
        assert!(matches!(noted, Ok(Err(IommuError::Gone))));
        let mut blocked = Vec::new();
        let result = book.block_all(TURN, |key| {
            blocked.push(key);
            Ok::<(), IommuError>(())
        });
        assert_eq!((result, blocked), (Ok(()), alloc::vec![3, 8]));
    }
}
