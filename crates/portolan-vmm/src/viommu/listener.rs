//! Listeners: users of an endpoint's mappings that hear of each before the guest is answered.
//!
//! A device that is passed through (VFIO, vfio-user, vDPA) accesses memory without a look-up in this process. Its
//! [`Listener`] puts the guest's mappings into the tables of the host. Not supported: one listener for several
//! endpoints, which would hear of each mapping of a shared domain once for each of them.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use portolan::addr::{IovaRange, PhysAddr};
use vm_memory::Permissions;

/// Kind of the memory that a mapping leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// The guest's memory.
    Ram,
    /// Device memory, in a range that [`VirtioIommu::set_device_memory`](super::VirtioIommu::set_device_memory)
    /// named.
    Device,
}

/// A mapping of the guest's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Addresses of the device.
    pub iova: IovaRange,
    /// Address in the guest that the first of them leads to.
    pub target: PhysAddr,
    /// Access that the device has; never none.
    pub access: Permissions,
    /// Kind of the memory.
    pub kind: MemoryKind,
}

/// Memory that a guest grants to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// All of the guest's memory, each address leading to itself.
    PassThrough,
    /// The memory of one mapping.
    Mapping(Mapping),
}

/// User of an endpoint's mappings, which hears of each before the guest is answered.
///
/// Calls come one at a time, in the order of the guest's requests. A listener may look up translations; it may
/// not call functions of [`VirtioIommu`](super::VirtioIommu) that change something, which wait for its return.
///
/// A call that fails has changed nothing. The request fails with it: calls for the same request that were made
/// before are undone by their opposites, the latest first, and the guest's mappings stay as they were.
pub trait Listener: fmt::Debug + Send + Sync {
    /// Makes `grant` reachable for the device. No other grant overlaps it.
    ///
    /// # Errors
    /// The reason why it is not reachable.
    fn map(&self, grant: &Grant) -> io::Result<()>;

    /// Takes back `grant`, which was mapped as it is. The device must not reach it any more afterwards.
    ///
    /// # Errors
    /// The reason why it may still be reachable.
    fn unmap(&self, grant: &Grant) -> io::Result<()>;
}

/// Counts of calls to listeners since the device was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListenerCounts {
    /// Calls that succeeded.
    pub made: u64,
    /// Calls that failed, other than to undo.
    pub failed: u64,
    /// Calls that were undone after a later one had failed.
    pub undone: u64,
    /// Calls that could not be undone: this listener's device reaches something else than its guest believes.
    pub not_undone: u64,
}

/// Counters of [`ListenerCounts`].
#[derive(Debug, Default)]
pub(super) struct ListenerCounters {
    made: AtomicU64,
    failed: AtomicU64,
    undone: AtomicU64,
    not_undone: AtomicU64,
}

impl ListenerCounters {
    pub(super) fn read(&self) -> ListenerCounts {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        ListenerCounts {
            made: of(&self.made),
            failed: of(&self.failed),
            undone: of(&self.undone),
            not_undone: of(&self.not_undone),
        }
    }
}

/// Call to a listener.
#[derive(Clone, Copy)]
enum Call<'g> {
    Map(&'g Grant),
    Unmap(&'g Grant),
}

impl Call<'_> {
    fn opposite(self) -> Self {
        match self {
            Self::Map(grant) => Self::Unmap(grant),
            Self::Unmap(grant) => Self::Map(grant),
        }
    }

    fn make(self, listener: &dyn Listener) -> io::Result<()> {
        match self {
            Self::Map(grant) => listener.map(grant),
            Self::Unmap(grant) => listener.unmap(grant),
        }
    }
}

/// Change of what one listener's device reaches.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) listener: Arc<dyn Listener>,
    /// Grants that it loses, before it gets others.
    pub(super) from: Arc<[Grant]>,
    pub(super) to: Arc<[Grant]>,
}

impl Change {
    fn calls(&self) -> impl DoubleEndedIterator<Item = (&dyn Listener, Call<'_>)> {
        let (from, to): (&[Grant], &[Grant]) = match self.from == self.to {
            // A device that keeps what it has is not interrupted.
            true => (&[], &[]),
            false => (&self.from, &self.to),
        };
        let calls = from.iter().map(Call::Unmap).chain(to.iter().map(Call::Map));
        calls.map(|call| (&*self.listener, call))
    }
}

/// Makes all changes, or none: after a call that failed those before it are undone, the latest first.
pub(super) fn make_all(changes: &[Change], counters: &ListenerCounters) -> io::Result<()> {
    let calls = || changes.iter().flat_map(Change::calls);
    for (number, (listener, call)) in calls().enumerate() {
        let Err(error) = call.make(listener) else {
            counters.made.fetch_add(1, Relaxed);
            continue;
        };
        counters.failed.fetch_add(1, Relaxed);
        let not_made = calls().count() - number;
        for (listener, call) in calls().rev().skip(not_made) {
            let counter = match call.opposite().make(listener) {
                Ok(()) => &counters.undone,
                Err(_) => &counters.not_undone,
            };
            counter.fetch_add(1, Relaxed);
        }
        return Err(error);
    }
    Ok(())
}

/// Makes all calls of the changes, also after one that failed; returns the number of those that failed.
pub(super) fn make_each(changes: &[Change], counters: &ListenerCounters) -> usize {
    let calls = changes.iter().flat_map(Change::calls);
    let failed = calls.filter(|(listener, call)| {
        let failed = call.make(*listener).is_err();
        let counter = if failed { &counters.failed } else { &counters.made };
        counter.fetch_add(1, Relaxed);
        failed
    });
    failed.count()
}
