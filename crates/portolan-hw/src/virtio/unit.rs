//! The unit: which endpoint is where.
//!
//! Virtual I/O Device (VIRTIO) 1.2, sections 5.13.6.3 (attach), 5.13.6.4 (detach), 5.13.6.7 (probe)
//! and 5.13.6.8 (faults).

use super::device::{Config, Counts, Device};
use super::domain::VirtioDomain;
use super::transport;
use super::transport::{NO_SUCH, Transport};
use crate::chassis::book;
use crate::chassis::book::Book;
use crate::chassis::{Operation, OperationState, played};
use crate::promise;
use crate::turn::TurnWait;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use portolan::addr::{PageSizes, StreamId};
use portolan::iommu::{
    Attach, AttachError, BoundDomain, Conditions, Domain, FaultAccess, FaultEvent, FaultReason,
    FaultRecord, Iommu, IommuDomains, IommuError, ReservedRegion, Shadowing, Stage,
};
use portolan::platform::{AllMemory, Cpus};
use portolan::table::Access;
use portolan_spec::virtio as spec;
use portolan_spec::virtio::Request;

/// Attachment of an endpoint; it keeps the domain alive itself.
pub(super) enum To<T: Transport + Send + Sync, C: Cpus> {
    /// The domain that passes through.
    Bypass(u32),
    /// A domain.
    Domain(Arc<VirtioDomain<T, C>>),
}

impl<T: Transport + Send + Sync, C: Cpus> To<T, C> {
    fn id(&self) -> u32 {
        match self {
            Self::Bypass(id) => *id,
            Self::Domain(domain) => domain.number(),
        }
    }

    /// The same once more.
    pub(super) fn again(&self) -> Self {
        match self {
            Self::Bypass(id) => Self::Bypass(*id),
            Self::Domain(domain) => Self::Domain(domain.clone()),
        }
    }

    /// Sends the mappings that its domain has.
    pub(super) fn replay(&self) -> Result<(), IommuError> {
        match self {
            Self::Bypass(_) => Ok(()),
            Self::Domain(domain) => domain.replay(),
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

pub(super) type Attachment<T, C> = book::Attachment<To<T, C>>;
/// Endpoints that are detached while the unit is suspended.
type Detached<T, C> = Vec<(u32, To<T, C>)>;
/// Endpoints with their attachments, and those that are detached.
pub(super) type Streams<T, C> = book::Streams<u32, To<T, C>, Detached<T, C>>;
type Left<T, C> = book::Left<To<T, C>>;

/// One virtio-iommu.
///
/// Endpoints without a domain are blocked. They are moved one at a time; a caller waits for its
/// turn no longer than [`Config::turn_timeout`]. No lock is held while the device answers. When the
/// unit is dropped its endpoints are detached; domains of endpoints that the device does not detach
/// are kept for good.
pub struct Viommu<T: Transport + Send + Sync, C: Cpus> {
    pub(super) device: Arc<Device<T, C>>,
    bypass: Option<u32>,
    pub(super) book: Book<C, u32, To<T, C>, Detached<T, C>>,
    pub(super) operation: Operation,
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
    /// makes no sense, or the transport's own error.
    pub fn start(transport: T, clock: C, config: Config) -> Result<Self, IommuError> {
        let device = Device::start(transport, clock, config)?;
        let bypass =
            if device.features & spec::F_BYPASS_CONFIG != 0 { device.domains.take() } else { None };
        let operation = Operation::default();
        operation.set(OperationState::Running);
        let book = Book::new(Streams::new(Vec::new()));
        Ok(Self { device: Arc::new(device), bypass, book, operation })
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
            Ok(properties) => Ok(transport::reserved(&properties)?),
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

    pub(super) fn turn(&self) -> TurnWait<'_, C> {
        let wait = TurnWait::new(&self.device.clock, self.device.limits.turn_timeout);
        wait.while_running(&self.operation)
    }

    /// Calls `go` with the streams, in a turn; the caller drops the result without the turn.
    fn with<X>(&self, go: impl FnOnce(&mut Streams<T, C>) -> X) -> Result<X, IommuError> {
        self.book.with(self.turn(), go)
    }

    /// Detaches `stream` from all that an unanswered request may have attached it to.
    pub(super) fn settle(
        &self,
        stream: StreamId,
        streams: &mut Streams<T, C>,
    ) -> Result<Left<T, C>, IommuError> {
        let settled = streams.settle(stream.get(), |_, unsettled| {
            let mut failed = Ok(());
            for attachment in unsettled {
                match self.detach(stream, attachment) {
                    // Where the endpoint may be, it may also not be.
                    Err(IommuError::Refused { .. }) => {}
                    sent => failed = failed.and(sent),
                }
            }
            failed
        })?;
        settled.iter().for_each(|attachment| attachment.to.lost());
        Ok(settled.into_iter().collect())
    }

    fn detach(&self, stream: StreamId, from: &Attachment<T, C>) -> Result<(), IommuError> {
        self.device.send(Request::Detach { domain: from.to.id(), endpoint: stream.get() })
    }

    /// Moves `stream` to `new`.
    pub(super) fn attach_to(
        &self,
        stream: StreamId,
        new: Attachment<T, C>,
        streams: &mut Streams<T, C>,
    ) -> Result<Left<T, C>, AttachError> {
        let mut left = self.settle(stream, streams)?;
        let flags = match new.to {
            To::Bypass(_) => spec::ATTACH_BYPASS,
            To::Domain(_) => 0,
        };
        let sent = self.device.send(Request::Attach {
            domain: new.to.id(),
            endpoint: stream.get(),
            flags,
        });
        let moved = match sent {
            Ok(()) | Err(IommuError::TimedOut { .. } | IommuError::Gone) => sent,
            Err(NO_SUCH) => return Err(AttachError::NoSuchStream { stream }),
            Err(error) => return Err(error.into()),
        };
        new.to.gained();
        let old = streams.note(stream.get(), Some(new), moved)?;
        old.iter().for_each(|old| old.to.lost());
        left.extend(old);
        Ok(left)
    }

    /// Detaches `stream` from the domain to which it is or may be attached.
    pub(super) fn leave(
        &self,
        stream: StreamId,
        streams: &mut Streams<T, C>,
    ) -> Result<Left<T, C>, IommuError> {
        let mut left = self.settle(stream, streams)?;
        if let Some(attachment) = streams.attachment(stream.get()) {
            let detached = self.detach(stream, attachment);
            if let Err(error @ IommuError::Refused { .. }) = detached {
                return Err(error);
            }
            let old = streams.note(stream.get(), None, detached)?;
            old.iter().for_each(|old| old.to.lost());
            left.extend(old);
        }
        Ok(left)
    }

    /// Makes the reason more exact, by the driver's present knowledge: endpoints without a domain,
    /// and mappings that are missing or forbid the access.
    fn refine(&self, record: &mut FaultRecord) {
        const UNKNOWN: FaultReason = FaultReason::Other { code: spec::R_UNKNOWN as u32 };
        // While another caller moves streams, the record is less exact: this function does not
        // wait.
        let seen = self.book.try_with(|streams| {
            let key = record.stream.get();
            let blocked = streams.not_blocked(key..=key).next().is_none();
            if blocked && record.reason == UNKNOWN {
                record.reason = FaultReason::Blocked;
            }
            match (record.reason, record.iova, &streams.attachment(key)?.to) {
                (FaultReason::NotMapped, Some(iova), To::Domain(domain)) => domain.translate(iova),
                _ => None,
            }
        });
        let Some(Some(found)) = seen else { return };
        let wanted = match record.access {
            Some(FaultAccess::Read) => Access::READ,
            Some(FaultAccess::Write) => Access::WRITE,
            None => Access::READ_WRITE,
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
        let blocked = self.with(|streams| {
            let key = stream.get();
            let blocked = streams.not_blocked(key..=key).next().is_none();
            (!blocked).then(|| self.leave(stream, streams)).transpose()
        })??;
        match blocked {
            None if self.device.features & spec::F_PROBE != 0 => self.reserved(stream).map(drop),
            _ => Ok(()),
        }
    }

    fn pass_through(&self, stream: StreamId, _all: AllMemory) -> Result<(), AttachError> {
        let id = self.bypass.ok_or(IommuError::Unsupported)?;
        let left = self.with(|streams| match streams.attachment(stream.get()) {
            Some(now) if matches!(now.to, To::Bypass(_)) => Ok(Left::new_const()),
            _ => {
                let new = Attachment::without_domain(To::Bypass(id));
                self.attach_to(stream, new, streams)
            }
        })?;
        left.map(drop)
    }

    fn suspend(&self) -> Result<(), IommuError> {
        self.power_down()
    }

    fn resume(&self) -> Result<(), IommuError> {
        self.power_up()
    }

    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        let Some((bytes, written)) = self.device.transport.next_fault()? else {
            return Ok(None);
        };
        let mut record = transport::fault(&bytes, written)?;
        self.refine(&mut record);
        Ok(Some(FaultEvent::Fault(record)))
    }
}

/// *Context.* Task, as the methods that move streams by [`Iommu`].
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
        let left = self.with(|streams| match streams.attachment(stream.get()) {
            Some(now) if matches!(&now.to, To::Domain(at) if Arc::ptr_eq(at, domain)) => {
                Ok(Left::new_const())
            }
            _ => {
                let new = Attachment::without_domain(To::Domain(domain.clone()));
                let left = self.attach_to(stream, new, streams)?;
                domain.replay().or_else(|error| {
                    self.leave(stream, streams)?;
                    Err(error)
                })?;
                Ok(left)
            }
        })?;
        left.map(drop)
    }
}

impl<T: Transport + Send + Sync, C: Cpus> Drop for Viommu<T, C> {
    /// *Context.* Task: waits for the device.
    fn drop(&mut self) {
        let _ = self.book.block_all(self.turn(), |stream| {
            let block = |streams: &mut _| self.leave(StreamId::new(stream), streams);
            self.with(block)?.map(drop)
        });
    }
}

impl<T: Transport + Send + Sync + 'static, C: Cpus> IommuDomains for Viommu<T, C> {
    fn new_domain(self: Arc<Self>) -> Result<BoundDomain, IommuError> {
        let domain = self.domain()?;
        Ok(BoundDomain::new(self, domain, promise::drivers()))
    }

    fn as_iommu(self: Arc<Self>) -> Arc<dyn Iommu> {
        self
    }

    /// Each map and unmap is a request to the hypervisor.
    fn conditions(&self) -> Conditions {
        played(Stage::Second, Shadowing::Requests)
    }

    fn commands(&self, each: &mut dyn FnMut(&'static str, u64)) {
        let counts = self.counts();
        each("ATTACH", counts.attach);
        each("DETACH", counts.detach);
        each("MAP", counts.map);
        each("UNMAP", counts.unmap);
        each("PROBE", counts.probe);
    }
}
