//! The unit: which endpoint is where.
//!
//! Virtual I/O Device (VIRTIO) 1.2, sections 5.13.6.3 (attach), 5.13.6.4 (detach), 5.13.6.7 (probe)
//! and 5.13.6.8 (faults).

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use portolan::addr::{PageSizes, StreamId};
use portolan::iommu::{
    Attach, AttachError, Domain, FaultAccess, FaultEvent, FaultReason, FaultRecord, Iommu,
    IommuError, ReservedRegion,
};
use portolan::platform::Cpus;
use portolan::table::Access;

use super::answer::{self, NO_SUCH};
use super::device::{Config, Counts, Device};
use super::domain::VirtioDomain;
use super::probe;
use super::spec::{self, Request};
use super::transport::Transport;
use crate::turn::{Taken, Turn};

/// Where an endpoint is, or may be.
enum Place<T: Transport + Send + Sync, C: Cpus> {
    /// The domain that passes through.
    Bypass(u32),
    /// A domain.
    Domain(Arc<VirtioDomain<T, C>>),
}

impl<T: Transport + Send + Sync, C: Cpus> Place<T, C> {
    fn id(&self) -> u32 {
        match self {
            Self::Bypass(id) => *id,
            Self::Domain(domain) => domain.number(),
        }
    }

    fn gained(&self) {
        if let Self::Domain(domain) = self {
            domain.gained_endpoint();
        }
    }

    fn lost(&self) {
        if let Self::Domain(domain) = self {
            domain.lost_endpoint();
        }
    }
}

/// All places where an endpoint may be: none if it is blocked, more than one only after the device
/// did not answer.
type Places<T, C> = Vec<Place<T, C>>;

/// Where endpoints are. Who has it moves them, and waits for the device meanwhile.
type Streams<T, C> = BTreeMap<u32, Places<T, C>>;

/// One virtio-iommu.
///
/// Endpoints without a domain are blocked. They are moved one at a time; whoever waits for that waits
/// no longer than [`Config::turn_timeout`]. No lock is held while the device answers. When the unit is
/// dropped its endpoints are detached; domains of endpoints that the device does not detach are kept
/// for good.
pub struct Viommu<T: Transport + Send + Sync, C: Cpus> {
    device: Arc<Device<T, C>>,
    bypass: Option<u32>,
    streams: Turn<C, Streams<T, C>>,
}

impl<T: Transport + Send + Sync, C: Cpus> fmt::Debug for Viommu<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Viommu")
            .field("page_sizes", &self.device.page_sizes)
            .field("input", &self.device.input)
            .field("bypass", &self.bypass)
            .finish_non_exhaustive()
    }
}

impl<T: Transport + Send + Sync, C: Cpus> Viommu<T, C> {
    /// Takes over a device that runs. Endpoints that have no domain are blocked from here on.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] if it cannot map, [`IommuError::Nonsense`] if its configuration
    /// makes no sense, or what the transport says.
    pub fn start(transport: T, clock: C, config: Config) -> Result<Self, IommuError> {
        let device = Device::start(transport, clock, config)?;
        let bypass = if device.features & spec::F_BYPASS_CONFIG != 0 {
            device.domains.take()
        } else {
            None
        };
        Ok(Self {
            device: Arc::new(device),
            bypass,
            streams: Turn::new(BTreeMap::new()),
        })
    }

    /// An empty address space.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`IommuError::OutOfContexts`].
    pub fn domain(&self) -> Result<Arc<VirtioDomain<T, C>>, IommuError> {
        VirtioDomain::new(self.device.clone()).map(Arc::new)
    }

    /// The page sizes of the device; the smallest is the granule of mappings.
    ///
    /// *Context.* Interrupt.
    pub fn page_sizes(&self) -> PageSizes {
        self.device.page_sizes
    }

    /// Addresses that must not be mapped for `stream`.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`AttachError::NoSuchStream`]; [`IommuError::Unsupported`] if the device cannot tell.
    pub fn reserved(&self, stream: StreamId) -> Result<Vec<ReservedRegion>, AttachError> {
        match self.device.probe(stream.get()) {
            Ok(properties) => Ok(probe::reserved(&properties)?),
            Err(NO_SUCH) => Err(AttachError::NoSuchStream { stream }),
            Err(error) => Err(error.into()),
        }
    }

    /// Requests sent so far.
    ///
    /// *Context.* Interrupt.
    pub fn counts(&self) -> Counts {
        self.device.counts()
    }

    /// The transport.
    ///
    /// *Context.* Interrupt.
    pub fn transport(&self) -> &T {
        &self.device.transport
    }

    fn streams(&self) -> Result<Taken<'_, C, Streams<T, C>>, IommuError> {
        let device = &self.device;
        self.streams.take(&device.clock, device.limits.turn_timeout)
    }

    /// Moves `stream` to `place`, which it leaves the others for.
    fn attach_to(
        &self,
        stream: StreamId,
        place: Place<T, C>,
        places: &mut Places<T, C>,
    ) -> Result<(), AttachError> {
        let flags = match place {
            Place::Bypass(_) => spec::ATTACH_BYPASS,
            Place::Domain(_) => 0,
        };
        // Memory is there before the device is told.
        places.reserve(1);
        let sent = self.device.send(Request::Attach {
            domain: place.id(),
            endpoint: stream.get(),
            flags,
        });
        match sent {
            Ok(()) => {
                place.gained();
                for old in places.drain(..) {
                    old.lost();
                }
                places.push(place);
                Ok(())
            }
            Err(NO_SUCH) => Err(AttachError::NoSuchStream { stream }),
            Err(error @ (IommuError::TimedOut { .. } | IommuError::Gone)) => {
                place.gained();
                places.push(place);
                Err(error.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Detaches `stream` from wherever it may be.
    fn detach(&self, stream: StreamId, places: &mut Places<T, C>) -> Result<(), AttachError> {
        let sure = places.len() == 1;
        let mut failed = Ok(());
        for place in places.iter() {
            let sent = self.device.send(Request::Detach {
                domain: place.id(),
                endpoint: stream.get(),
            });
            match sent {
                // Where the endpoint may be, it may also not be.
                Err(IommuError::Refused { .. }) if !sure => {}
                sent => failed = failed.and(sent),
            }
        }
        failed?;
        for old in places.drain(..) {
            old.lost();
        }
        Ok(())
    }

    /// Says more exactly why, by what the driver knows now: which endpoints have no domain, and
    /// whether a mapping is missing or forbids the access.
    fn refine(&self, record: &mut FaultRecord) {
        const UNKNOWN: FaultReason = FaultReason::Other {
            code: spec::R_UNKNOWN as u32,
        };
        // While somebody moves streams, it is told less exactly: this waits for nobody.
        let Some(streams) = self.streams.try_take() else {
            return;
        };
        let places = streams.get(&record.stream.get());
        if places.is_none() && record.reason == UNKNOWN {
            record.reason = FaultReason::Blocked;
        }
        let (FaultReason::NotMapped, Some(iova)) = (record.reason, record.iova) else {
            return;
        };
        let Some([Place::Domain(domain)]) = places.map(Vec::as_slice) else {
            return;
        };
        let Some(found) = domain.translate(iova) else {
            return;
        };
        let wanted = match record.access {
            Some(FaultAccess::Read) => Access::READ,
            Some(FaultAccess::Write) => Access::WRITE,
            None => Access::READ | Access::WRITE,
        };
        if !found.access.contains(wanted) {
            record.reason = FaultReason::Permission;
        }
    }
}

/// *Context.* [`Iommu::next_fault`]: interrupt. [`Iommu::reserved`]: task. The others: atomic; they are
/// tasks where they let go of the last handle of a domain, or a stream is named for the first time.
impl<T: Transport + Send + Sync, C: Cpus> Iommu for Viommu<T, C> {
    fn reserved(&self, stream: StreamId, each: &mut dyn FnMut(ReservedRegion)) {
        // A device that cannot tell reserves nothing.
        let found = self.reserved(stream).unwrap_or_default();
        found.into_iter().for_each(each);
    }

    fn block(&self, stream: StreamId) -> Result<(), AttachError> {
        let mut streams = self.streams()?;
        match streams.get_mut(&stream.get()) {
            Some(places) => {
                self.detach(stream, places)?;
                streams.remove(&stream.get());
                Ok(())
            }
            None if self.device.features & spec::F_PROBE != 0 => self.reserved(stream).map(drop),
            None => Ok(()),
        }
    }

    fn pass_through(&self, stream: StreamId) -> Result<(), AttachError> {
        let id = self.bypass.ok_or(IommuError::Unsupported)?;
        let mut streams = self.streams()?;
        let places = streams.entry(stream.get()).or_default();
        if matches!(places.as_slice(), [Place::Bypass(_)]) {
            return Ok(());
        }
        let done = self.attach_to(stream, Place::Bypass(id), places);
        if places.is_empty() {
            streams.remove(&stream.get());
        }
        done
    }

    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        let Some((bytes, written)) = self.device.transport.next_fault()? else {
            return Ok(None);
        };
        let mut record = answer::fault(&bytes, written)?;
        self.refine(&mut record);
        Ok(Some(FaultEvent::Fault(record)))
    }
}

/// *Context.* Task, as what moves streams by [`Iommu`].
impl<T: Transport + Send + Sync, C: Cpus> Attach<VirtioDomain<T, C>> for Viommu<T, C> {
    /// Between the move and the last of the mappings that were made before the domain had an
    /// endpoint, accesses to those still to come fault.
    fn attach(
        &self,
        stream: StreamId,
        domain: &Arc<VirtioDomain<T, C>>,
    ) -> Result<(), AttachError> {
        if !domain.is_of(&self.device) {
            return Err(AttachError::Mismatch);
        }
        let mut streams = self.streams()?;
        let places = streams.entry(stream.get()).or_default();
        let there = matches!(places.as_slice(), [Place::Domain(at)] if Arc::ptr_eq(at, domain));
        let done = if there {
            Ok(())
        } else {
            let place = Place::Domain(domain.clone());
            self.attach_to(stream, place, places).and_then(|()| {
                domain.replay().or_else(|error| {
                    self.detach(stream, places)?;
                    Err(error.into())
                })
            })
        };
        if places.is_empty() {
            streams.remove(&stream.get());
        }
        done
    }
}

impl<T: Transport + Send + Sync, C: Cpus> Drop for Viommu<T, C> {
    /// *Context.* Task: waits for the device.
    fn drop(&mut self) {
        // Nobody else has it any more.
        let Ok(mut streams) = self.streams() else {
            return;
        };
        for (stream, mut places) in core::mem::take(&mut *streams) {
            if self.detach(StreamId::new(stream), &mut places).is_err() {
                core::mem::forget(places);
            }
        }
    }
}
