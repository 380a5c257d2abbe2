//! The endpoints of an emulated unit, the context of each, and the guest's invalidations.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use portolan::addr::{InvalTag, Iova, IovaRange, PhysAddr};
use vm_memory::{Bytes, GuestAddress, GuestAddressSpace, Permissions};

use super::context::Context;
use super::hardware::{GuestEntry, Hardware};
use super::walk::FaultKind;
use crate::StillHeld;
use crate::endpoint::{Endpoint, EndpointId, Source};
use crate::faults::Faults;
use crate::iotlb::EVERYTHING;

/// Limits of a unit: the translations that it keeps, and the time that it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnitOptions {
    /// Translations that an endpoint's IOTLB keeps at most.
    pub capacity: NonZeroUsize,
    /// Longest time that an invalidation waits for guards on the translations that it takes away.
    pub invalidation_limit: Duration,
}

impl Default for UnitOptions {
    /// 4,096 translations, 5 seconds.
    fn default() -> Self {
        Self {
            capacity: const { NonZeroUsize::new(4096).unwrap() },
            invalidation_limit: Duration::from_secs(5),
        }
    }
}

/// There is an endpoint of this number already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is an endpoint {} already", .0.get())]
pub struct Taken(pub EndpointId);

/// Reason why an endpoint is not attached anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// There is none of this number.
    #[error("there is no endpoint {}", .0.get())]
    NoEndpoint(EndpointId),
    /// It is, but a guard on its translations from before was still held when the time was over.
    #[error(transparent)]
    StillHeld(#[from] StillHeld),
    /// It is passed through, and the context is of tables without the guest's entry ([`Context::with_entry`]).
    #[error("the host's IOMMU needs the guest's entry of endpoint {}", .0.get())]
    NoEntry(EndpointId),
    /// The host's IOMMU has refused: the endpoint is attached to what it was attached to.
    #[error("the host's IOMMU refuses the tables of endpoint {}: {kind}", .endpoint.get())]
    Hardware {
        /// The endpoint.
        endpoint: EndpointId,
        /// Kind of the hardware's error.
        kind: io::ErrorKind,
    },
}

/// Reason why translations may not be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidateError {
    /// A guard on one of them was still held when the time was over. All are forgotten all the same.
    #[error(transparent)]
    StillHeld(#[from] StillHeld),
    /// The host's IOMMU may still have them.
    #[error("the host's IOMMU has not forgotten translations of endpoint {}: {kind}", .endpoint.get())]
    Hardware {
        /// The endpoint.
        endpoint: EndpointId,
        /// Kind of the hardware's error.
        kind: io::ErrorKind,
    },
}

/// Of which contexts translations are invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Of all.
    All,
    /// Of those with this tag.
    Tag(InvalTag),
}

/// An access that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Endpoint that made the access.
    pub endpoint: EndpointId,
    /// The first address that could not be accessed.
    pub iova: Iova,
    /// Access that was refused.
    pub access: Permissions,
    /// Reason of the refusal.
    pub kind: FaultKind,
}

/// An endpoint and the source of its translations: its context.
#[derive(Debug)]
struct EmulatedEndpoint {
    endpoint: Endpoint,
    walker: Arc<Walker>,
}

/// The guest's memory, by the word.
#[derive(Clone)]
struct Words(Arc<dyn Fn(PhysAddr) -> Option<u64> + Send + Sync>);

/// Without the guest's memory.
impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Words").finish_non_exhaustive()
    }
}

/// Place of an endpoint: its context, and the host's IOMMU, which has it as well.
#[derive(Debug)]
struct Place {
    context: Context,
    /// None, unless the device is passed through.
    hardware: Option<Arc<dyn Hardware>>,
}

/// Walker for an endpoint.
#[derive(Debug)]
struct Walker {
    words: Words,
    /// Held for a walk and until its translations are in the IOTLB.
    place: Mutex<Place>,
    faults: Arc<Mutex<Faults<Fault>>>,
}

/// The devices behind an emulated IOMMU, and their page tables in the guest's memory.
///
/// A walk and an invalidation of the same endpoint wait for each other, so a translation that was found before its
/// invalidation is not kept after it. Look-ups that hit take no lock.
#[derive(Debug)]
pub struct EmulatedUnit {
    words: Words,
    options: UnitOptions,
    endpoints: RwLock<BTreeMap<EndpointId, EmulatedEndpoint>>,
    faults: Arc<Mutex<Faults<Fault>>>,
}

impl EmulatedUnit {
    /// A unit without endpoints, whose tables are in `memory`.
    pub fn new<M>(memory: M, options: UnitOptions) -> Self
    where
        M: GuestAddressSpace + Send + Sync + 'static,
    {
        let read = move |at: PhysAddr| {
            let word = memory.memory().load::<u64>(GuestAddress(at.get()), Acquire).ok()?;
            Some(u64::from_le(word))
        };
        Self::reading(read, options)
    }

    /// The same in memory of the monitor's own type: `read` reads a word as the host has it, in one access, and
    /// returns nothing where the guest has no memory.
    pub fn reading<R>(read: R, options: UnitOptions) -> Self
    where
        R: Fn(PhysAddr) -> Option<u64> + Send + Sync + 'static,
    {
        let words = Words(Arc::new(read));
        Self { words, options, endpoints: RwLock::default(), faults: Arc::default() }
    }

    /// Adds a device, which is blocked.
    ///
    /// # Errors
    /// [`Taken`].
    pub fn add(&self, id: EndpointId) -> Result<Endpoint, Taken> {
        let mut endpoints = self.endpoints.write().unwrap_or_else(PoisonError::into_inner);
        if endpoints.contains_key(&id) {
            return Err(Taken(id));
        }
        let walker = Arc::new(Walker {
            words: self.words.clone(),
            place: Mutex::new(Place { context: Context::blocked(), hardware: None }),
            faults: Arc::clone(&self.faults),
        });
        let source: Arc<dyn Source> = walker.clone();
        let capacity = self.options.capacity;
        let endpoint = Endpoint::new(id, Arc::downgrade(&source), capacity);
        let entry = EmulatedEndpoint { endpoint: endpoint.clone(), walker };
        endpoints.insert(id, entry);
        Ok(endpoint)
    }

    /// Takes a device away: its accesses are refused from now on.
    ///
    /// # Errors
    /// See [`AttachError`]. The device is taken away all the same, unless the host's IOMMU refuses to block it.
    pub fn remove(&self, id: EndpointId) -> Result<(), AttachError> {
        let attached = self.attach(id, Context::blocked());
        if !matches!(attached, Err(AttachError::Hardware { .. })) {
            let mut endpoints = self.endpoints.write().unwrap_or_else(PoisonError::into_inner);
            endpoints.remove(&id);
        }
        attached
    }

    /// Has `hardware` translate a device's accesses: it hears of the endpoint's context at once, and of each later one
    /// and each invalidation before the guest is answered. It takes the place of the hardware before, which the caller
    /// has taken the device from.
    ///
    /// # Errors
    /// See [`AttachError`]; then the endpoint has what it had.
    pub fn pass_through(
        &self,
        id: EndpointId,
        hardware: Arc<dyn Hardware>,
    ) -> Result<(), AttachError> {
        let walker = self.walker(id)?;
        let mut place = walker.place();
        tell(id, &*hardware, &place.context)?;
        place.hardware = Some(hardware);
        Ok(())
    }

    fn walker(&self, id: EndpointId) -> Result<Arc<Walker>, AttachError> {
        let endpoints = self.endpoints.read().unwrap_or_else(PoisonError::into_inner);
        let entry = endpoints.get(&id).ok_or(AttachError::NoEndpoint(id))?;
        Ok(entry.walker.clone())
    }

    /// Has a device's accesses go through `context`, and no longer through the one before: to be called when the
    /// guest invalidates the unit's entry of the device, or gives it another table of them.
    ///
    /// # Errors
    /// See [`AttachError`]. Where the host's IOMMU refuses, nothing has changed.
    pub fn attach(&self, id: EndpointId, context: Context) -> Result<(), AttachError> {
        let endpoints = self.endpoints.read().unwrap_or_else(PoisonError::into_inner);
        let entry = endpoints.get(&id).ok_or(AttachError::NoEndpoint(id))?;
        let (endpoint, walker) = (entry.endpoint.clone(), entry.walker.clone());
        drop(endpoints);
        let mut place = walker.place();
        if let Some(hardware) = &place.hardware {
            tell(id, &**hardware, &context)?;
        }
        place.context = context;
        drop(place);
        Ok(endpoint.forget(EVERYTHING, self.options.invalidation_limit)?)
    }

    /// Forgets translations of `range`, or of all addresses, that `scope` selects, and waits until no device uses one.
    /// The guest's tables have to be changed before; it may be told that its command is done afterwards.
    ///
    /// # Errors
    /// See [`InvalidateError`]; all endpoints have forgotten or been told all the same.
    pub fn invalidate(
        &self,
        scope: Scope,
        range: Option<IovaRange>,
    ) -> Result<(), InvalidateError> {
        let endpoints = self.endpoints.read().unwrap_or_else(PoisonError::into_inner);
        let all = endpoints.values().map(|entry| (entry.endpoint.clone(), entry.walker.clone()));
        let all: Vec<_> = all.collect();
        drop(endpoints);
        let (mut selected, mut told) = (Vec::new(), Ok(()));
        for (endpoint, walker) in all {
            // A walk that has begun is waited for here: its translations are taken away below.
            let place = walker.place();
            let tag = place.context.tag().map(Scope::Tag);
            if scope != Scope::All && tag != Some(scope) {
                continue;
            }
            if let (Some(hardware), Some(_)) = (&place.hardware, tag) {
                let refused = |kind| InvalidateError::Hardware { endpoint: endpoint.id(), kind };
                let forgotten = hardware.invalidate(range);
                told = told.and(forgotten.map_err(|error| refused(error.kind())));
            }
            drop(place);
            selected.push(endpoint);
        }
        let (range, limit) = (range.unwrap_or(EVERYTHING), self.options.invalidation_limit);
        let forgotten = selected.iter().map(|endpoint| endpoint.forget(range, limit));
        let forgotten = forgotten.fold(Ok(()), Result::and);
        told.and(forgotten.map_err(InvalidateError::from))
    }

    /// The oldest record of an access that was refused.
    pub fn next_fault(&self) -> Option<Fault> {
        lock(&self.faults).next()
    }

    /// Records for which there was no room.
    pub fn faults_lost(&self) -> u64 {
        lock(&self.faults).lost()
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has the host's IOMMU take a device to its context.
fn tell(
    endpoint: EndpointId,
    hardware: &dyn Hardware,
    context: &Context,
) -> Result<(), AttachError> {
    let entry: GuestEntry<'_> = context.entry().ok_or(AttachError::NoEntry(endpoint))?;
    let refused = |error: io::Error| AttachError::Hardware { endpoint, kind: error.kind() };
    hardware.attach(entry).map_err(refused)
}

impl Walker {
    fn place(&self) -> MutexGuard<'_, Place> {
        lock(&self.place)
    }
}

impl Source for Walker {
    fn fill(&self, endpoint: &Endpoint, at: Iova, range: IovaRange, access: Permissions) -> bool {
        let place = self.place();
        let find = |from| place.context.find(from, access, &*self.words.0);
        let filled = endpoint.fill(at, range, find);
        drop(place);
        if let Err(kind) = filled {
            lock(&self.faults).record(Fault { endpoint: endpoint.id(), iova: at, access, kind });
        }
        filled.is_ok()
    }
}
