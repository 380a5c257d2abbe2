//! A device, attached.
//!
//! Devices behind a bridge that puts its own identifier in the place of theirs share a stream, or have
//! several. Each such stream is attached once, by a [`Device`] of its own that all have in common
//! ([`Device::beside`], [`Device::with_streams`]); it is blocked when the last of them is dropped.

mod direct;
mod map;

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::error::{DeviceError, Failed, PremapError, Quarantine};
use super::policy::{Coherency, Constraints, Trust};
use super::reach::{ContextCopies, Copying, DeviceContext, Premapped};
use super::space::{DmaSpace, Member};
use crate::addr::{Pasid, StreamId};
use crate::iommu::{Iommu, Requester};
use crate::platform::contract::{AllMemory, HostVisibility, TrustedBase};
use crate::platform::{Cpus, DataCache};
use crate::tdisp::{Running, SecurityManager};
pub(super) use map::MapTerms;
pub use map::{MapFailed, NotMapped};

/// Translation of a device's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dma) enum DeviceTranslation {
    /// By a space. A device whose stream another one has attached is no member of it.
    Space(Option<Member>),
    Identity(AllMemory),
    Blocked,
}

/// Treatment of a device's mappings when it leaves their space.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OldMappings {
    /// The device does not leave as long as there are some.
    Refuse,
    /// They stay in the space: the device reaches them again when it comes back, and they end there as
    /// they would have.
    Keep,
}

/// One stream of a unit, or its requests with one PASID, and the memory that it may reach; or a device
/// that no unit serves ([`Device::direct`]).
///
/// ```no_run
/// # use portolan::addr::StreamId;
/// # use portolan::dma::{Constraints, Device, DeviceError, DmaSpace};
/// # use portolan::platform::Platform;
/// # use std::sync::Arc;
/// /// A card that sends 32 bits of an address.
/// fn open<P: Platform>(space: Arc<DmaSpace<P>>) -> Result<Device<P>, DeviceError> {
///     let limits = Constraints::trusted().address_bits(32);
///     Device::translated(space, StreamId::new(0x300), limits)
/// }
/// ```
///
/// A stream has one device at a time: [`Device::move_to`] moves it to another space. One that is
/// made for the stream beside another is refused in the same space, and in another blocked when the
/// other one is dropped.
///
/// *Drop.* Task. It blocks the stream. If the hardware does not complete that, the unit keeps the
/// domain to which the stream was attached. Nothing blocks a device that no unit serves.
pub struct Device<P: Cpus + Clone> {
    /// None once the stream is another device's, and where there is none.
    unit: Option<Arc<dyn Iommu>>,
    pub(in crate::dma) translation: DeviceTranslation,
    /// Its own; its space's is among its limits.
    trust: Trust,
    pub(in crate::dma) contexts: ContextCopies<P>,
    /// Devices whose streams accesses of this one carry as well. They stay attached as long as it.
    beside: Vec<Arc<Device<P>>>,
}

impl<P: Cpus + Clone> Device<P> {
    /// Attaches `stream` of the unit that the space is of: it reaches all that is mapped there.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`DeviceError`]. If the unit does not move the stream, it is where it was, or blocked.
    pub fn translated(
        space: Arc<DmaSpace<P>>,
        stream: StreamId,
        constraints: Constraints,
    ) -> Result<Self, DeviceError> {
        let pasid = None;
        Self::open(space, Requester { stream, pasid }, constraints)
    }

    /// As [`Device::translated`], of the requests of `stream` with `pasid`: one address space of a
    /// device that has several, such as a process's or a virtual function's. Its other requests stay
    /// where they are. The unit may have to be told before that the stream has PASIDs.
    ///
    /// ```no_run
    /// # use portolan::addr::{Pasid, StreamId};
    /// # use portolan::dma::{Constraints, Device, DeviceError, DmaSpace};
    /// # use portolan::platform::Platform;
    /// # use std::sync::Arc;
    /// /// A queue of an accelerator, in the address space of the process that uses it.
    /// fn queue<P: Platform>(process: Arc<DmaSpace<P>>) -> Result<Device<P>, DeviceError> {
    ///     let (card, queue) = (StreamId::new(0x300), Pasid::new(7));
    ///     Device::translated_pasid(process, card, queue, Constraints::trusted())
    /// }
    /// ```
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// As [`Device::translated`]; where the unit has none,
    /// [`AttachError::NoPasids`](crate::iommu::AttachError::NoPasids).
    pub fn translated_pasid(
        space: Arc<DmaSpace<P>>,
        stream: StreamId,
        pasid: Pasid,
        constraints: Constraints,
    ) -> Result<Self, DeviceError> {
        let pasid = Some(pasid);
        Self::open(space, Requester { stream, pasid }, constraints)
    }

    fn open(
        space: Arc<DmaSpace<P>>,
        requester: Requester,
        constraints: Constraints,
    ) -> Result<Self, DeviceError> {
        let trust = constraints.trust;
        let constraints = space.admit(constraints)?;
        if let Some(error) = space.failure() {
            return Err(DeviceError::Broken(error));
        }
        let member = space.join(requester)?;
        let attached = space
            .keep_off_reserved(requester.stream)
            .and_then(|()| Ok(requester.attach(&space.bound)?));
        if let Err(error) = attached {
            space.leave(member);
            return Err(error);
        }
        let unit = Some(space.bound.unit().clone());
        let translation = DeviceTranslation::Space(Some(member));
        let context = DeviceContext::new(space.cpus.clone(), Some(space), requester, constraints);
        let device = Self {
            unit,
            translation,
            trust,
            contexts: ContextCopies::new(context),
            beside: Vec::new(),
        };
        match device.space().and_then(|space| space.failure()) {
            None => Ok(device),
            // It broke meanwhile, and may have blocked the stream before it was attached: dropping
            // the device blocks it.
            Some(error) => Err(DeviceError::Broken(error)),
        }
    }

    /// Attaches the stream again as it was, with its mappings: after [`DmaSpace::recover`], since a
    /// space that breaks blocks its streams, or after the unit has forgotten it.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// As [`Device::translated`]. The stream is where it was, or blocked.
    pub fn attach_again(&self) -> Result<(), DeviceError> {
        self.beside.iter().try_for_each(|device| device.attach_again())?;
        let (Some(unit), stream) = (&self.unit, self.context().requester.stream) else {
            return Ok(());
        };
        let space = match (self.translation, self.space()) {
            (DeviceTranslation::Space(_), Some(space)) => space,
            (DeviceTranslation::Identity(all), _) => return Ok(unit.pass_through(stream, all)?),
            _ => return Ok(self.context().requester.block(&**unit)?),
        };
        if let Some(error) = space.failure() {
            return Err(DeviceError::Broken(error));
        }
        self.context().requester.attach(&space.bound)?;
        match space.failure() {
            None => Ok(()),
            // It broke meanwhile, and may have blocked the stream before.
            Some(error) => {
                let _ = self.context().requester.block(&**unit);
                Err(DeviceError::Broken(error))
            }
        }
    }

    /// Moves the device to `space`, of the same unit, without a time in which it is blocked: its
    /// accesses in the space that it leaves end. Its pool does not stay mapped there.
    ///
    /// ```no_run
    /// # use portolan::dma::{Device, DeviceError, DmaSpace, Failed, OldMappings};
    /// # use portolan::platform::Platform;
    /// # use std::sync::Arc;
    /// # type Moved<P> = Result<Device<P>, Failed<Device<P>, DeviceError>>;
    /// /// Lends a card to a guest, and takes it back.
    /// fn lend<P: Platform>(card: Device<P>, guest: Arc<DmaSpace<P>>, own: Arc<DmaSpace<P>>) -> Moved<P> {
    ///     let lent = card.move_to(guest, OldMappings::Keep)?;
    ///     // ... the guest's driver has it ...
    ///     lent.move_to(own, OldMappings::Refuse)
    /// }
    /// ```
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// With the device: as [`Device::translated`], and [`DeviceError::InUse`] for another unit,
    /// [`DeviceError::NoUnit`] of a device that no unit serves, [`DeviceError::Mapped`] if it has mappings
    /// that do not stay, [`DeviceError::Shared`] if it has streams with others. If the unit does not move
    /// the stream, it is where it was, or blocked.
    pub fn move_to(
        mut self,
        space: Arc<DmaSpace<P>>,
        mappings: OldMappings,
    ) -> Result<Self, Failed<Self, DeviceError>> {
        let unit = space.bound.unit();
        let error = if self.is_direct() {
            Some(DeviceError::NoUnit)
        } else if !self.beside.is_empty() {
            Some(DeviceError::Shared)
        } else if !self.unit.as_ref().is_some_and(|its| same(its, unit)) {
            Some(DeviceError::InUse)
        } else if mappings == OldMappings::Refuse && self.contexts.is_kept() {
            Some(DeviceError::Mapped)
        } else {
            None
        };
        let moved = match error {
            None => {
                let constraints = Constraints { trust: self.trust, ..self.context().constraints };
                Self::open(space, self.context().requester, constraints)
            }
            Some(error) => Err(error),
        };
        let mut moved = match moved {
            Ok(moved) => moved,
            Err(error) => return Err(Failed { error, value: self }),
        };
        moved.contexts.change(|context| {
            context.cache = self.context().cache.clone();
            context.copying = self.context().copying.clone();
            context.admission = self.context().admission.clone();
        });
        moved.context().spares.fill();
        self.unit = None;
        Ok(moved)
    }

    /// Passes `stream` through, as `all` gives leave to: it reaches all memory at its physical
    /// address, and mappings only check that the device can reach the buffer.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// As [`Device::translated`]; a device that is not trusted is not passed through.
    pub fn identity(
        platform: P,
        unit: Arc<dyn Iommu>,
        stream: StreamId,
        constraints: Constraints,
        all: AllMemory,
    ) -> Result<Self, DeviceError> {
        if constraints.trust == Trust::Untrusted {
            return Err(DeviceError::Untrusted);
        }
        unit.pass_through(stream, all)?;
        let translation = DeviceTranslation::Identity(all);
        Ok(Self::without_space(platform, unit, stream, translation, constraints))
    }

    /// Blocks `stream`: it reaches nothing, and nothing can be mapped.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// As [`Device::translated`].
    pub fn blocked(
        platform: P,
        unit: Arc<dyn Iommu>,
        stream: StreamId,
        constraints: Constraints,
    ) -> Result<Self, DeviceError> {
        unit.block(stream)?;
        let translation = DeviceTranslation::Blocked;
        Ok(Self::without_space(platform, unit, stream, translation, constraints))
    }

    fn without_space(
        platform: P,
        unit: Arc<dyn Iommu>,
        stream: StreamId,
        translation: DeviceTranslation,
        constraints: Constraints,
    ) -> Self {
        let pasid = None;
        let requester = Requester { stream, pasid };
        let trust = constraints.trust;
        let context = DeviceContext::new(platform, None, requester, constraints);
        Self {
            unit: Some(unit),
            translation,
            trust,
            contexts: ContextCopies::new(context),
            beside: Vec::new(),
        }
    }

    /// A device whose accesses carry the stream of `owner`, which stays attached as long as either is
    /// there. The two are in one space and cannot be told apart by the unit; each has limits of its
    /// own.
    ///
    /// ```no_run
    /// # use portolan::addr::StreamId;
    /// # use portolan::dma::{Constraints, Device, DeviceError, DmaSpace};
    /// # use portolan::platform::Platform;
    /// # use std::sync::Arc;
    /// /// Two cards behind a bridge, which sends what they send as its own.
    /// fn cards<P: Platform>(space: Arc<DmaSpace<P>>) -> Result<[Device<P>; 2], DeviceError> {
    ///     let limits = Constraints::trusted();
    ///     let bridge = Arc::new(Device::translated(space, StreamId::new(0x200), limits)?);
    ///     Ok([Device::beside(bridge.clone(), limits)?, Device::beside(bridge, limits)?])
    /// }
    /// ```
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`DeviceError::InUse`] if `owner` is in no space; the others as of [`Device::translated`].
    pub fn beside(owner: Arc<Self>, constraints: Constraints) -> Result<Self, DeviceError> {
        let space = owner.space().ok_or(DeviceError::InUse)?.clone();
        let trust = constraints.trust;
        let constraints = space.admit(constraints)?;
        if let Some(error) = space.failure() {
            return Err(DeviceError::Broken(error));
        }
        let requester = owner.context().requester;
        let context = DeviceContext::new(space.cpus.clone(), Some(space), requester, constraints);
        Ok(Self {
            unit: None,
            translation: DeviceTranslation::Space(None),
            trust,
            contexts: ContextCopies::new(context),
            beside: alloc::vec![owner],
        })
    }

    /// The same, whose accesses carry the streams of `others` as well: those stay attached as long as
    /// it. They have to be in the same space.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`DeviceError::InUse`] if one is in another space.
    pub fn with_streams(
        mut self,
        others: impl IntoIterator<Item = Arc<Self>>,
    ) -> Result<Self, DeviceError> {
        let mut beside: Vec<Arc<Self>> = others.into_iter().collect();
        let same = |other: &Arc<Self>| match (self.space(), other.space()) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        if !beside.iter().all(same) {
            return Err(DeviceError::InUse);
        }
        self.beside.append(&mut beside);
        Ok(self)
    }

    /// The settings, for callers that do not keep them.
    #[inline]
    pub(in crate::dma) fn context(&self) -> &Arc<DeviceContext<P>> {
        self.contexts.first()
    }

    /// The calling CPU's copy of the settings, for a mapping to keep.
    #[inline]
    pub(in crate::dma) fn own_context(&self) -> Arc<DeviceContext<P>> {
        self.contexts.own().clone()
    }

    /// The same, with `cache` in place of the platform's for a device that does not snoop: of a machine with more
    /// caches than those of its CPUs, or of [`Cpus`] that are no [`Platform`](crate::platform::Platform). One that
    /// snoops never touches it. `_base` is the promise for it: lines that it leaves in a cache overwrite bytes that a
    /// device wrote, or a neighbour's.
    ///
    /// *Context.* Task.
    #[must_use]
    pub fn with_cache(mut self, cache: Arc<dyn DataCache>, _base: TrustedBase) -> Self {
        let cache = match self.context().constraints.coherency {
            Coherency::Coherent => None,
            Coherency::NotCoherent => Some(cache),
        };
        self.contexts.change(|context| context.cache = cache.clone());
        self
    }

    /// The same, with copies of bytes that must not, or cannot, be reached in place. An earlier pool does not stay
    /// mapped.
    ///
    /// *Context.* Task.
    #[must_use]
    pub fn with_copies(mut self, copying: Copying) -> Self {
        self.contexts.change(|context| {
            context.copying = Some(copying.clone());
            // That of another pool is not this one's.
            context.premapped = None;
        });
        self.context().spares.fill();
        self
    }

    /// The same, of a device whose `interface` a confidential guest has let in: it reaches private buffers and shared
    /// ones in place, and rings lie in private memory. Once the interface does not run any more
    /// ([`Running::check`], [`Running::stop`]) maps fail with [`MapError::NotRunning`](super::MapError::NotRunning).
    /// Mappings that are there stay, and are unmapped as ever; the device reaches nothing private by them.
    ///
    /// It has no pool any more: one in private memory can be given to it afterwards, for limits of its own
    /// ([`Device::with_copies`]). In a shared pool the host would see the copies, so maps that need one fail with
    /// [`MapError::SharedPool`](super::MapError::SharedPool).
    ///
    /// *Context.* Task.
    #[must_use]
    pub fn let_in<M: SecurityManager>(mut self, interface: &Running<M>) -> Self {
        let admission = interface.admission();
        self.contexts.change(|context| {
            context.admission = Some(admission.clone());
            (context.copying, context.premapped) = (None, None);
            context.constraints.reach = HostVisibility::Shared;
        });
        self
    }

    /// The same, with the memory of its pool mapped as long as the device, or a mapping of it, is
    /// there: buffers that are copied whole ([`CopyWhen::UpTo`](crate::dma::CopyWhen::UpTo),
    /// [`CopyWhen::Always`](crate::dma::CopyWhen::Always)) then owe no invalidation. For a pool of its own
    /// and a device that is trusted; it reaches all of the pool's memory. Buffers for which there is no room
    /// are mapped in place, where that is enough.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`PremapError`].
    pub fn with_premapped_pool(mut self) -> Result<Self, PremapError> {
        let Some(space) = self.context().space.clone() else {
            return Err(PremapError::NotTranslated);
        };
        let copying = self.context().copying.as_ref();
        let memory = copying.ok_or(PremapError::NoPool)?.pool.memory();
        let memory = memory.ok_or(PremapError::Grows)?;
        let premapped = Premapped::new(space, memory, &self.context().constraints)?;
        self.contexts.change(|context| context.premapped = Some(premapped.clone()));
        self.context().spares.fill();
        Ok(self)
    }

    /// The stream.
    ///
    /// *Context.* Interrupt.
    pub fn stream(&self) -> StreamId {
        self.context().requester.stream
    }

    /// The PASID, if it is not all of the stream.
    ///
    /// *Context.* Interrupt.
    pub fn pasid(&self) -> Option<Pasid> {
        self.context().requester.pasid
    }

    /// The limits; the trust is that of the space.
    ///
    /// *Context.* Interrupt.
    pub fn constraints(&self) -> &Constraints {
        &self.context().constraints
    }

    /// Buffers and addresses that the device's mappings gave up; in a space, those of all its
    /// devices.
    ///
    /// *Context.* Interrupt.
    pub fn quarantine(&self) -> Quarantine {
        match self.space() {
            Some(space) => space.quarantine(),
            None => self.context().lost.get(),
        }
    }

    /// The space, if its addresses are translated.
    ///
    /// *Context.* Interrupt.
    pub fn space(&self) -> Option<&Arc<DmaSpace<P>>> {
        self.context().space.as_ref()
    }

    /// Blocks the stream: when it returns `Ok`, no access of the device arrives any more.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`DeviceError::Attach`] if the hardware did not complete; [`DeviceError::Shared`] if its accesses
    /// carry a stream that another device has as well, which is not blocked then;
    /// [`DeviceError::NoUnit`] of a device that no unit serves: its driver has to stop it.
    pub fn detach(mut self) -> Result<(), DeviceError> {
        let mut detached = match &self.unit {
            Some(unit) => self.context().requester.block(&**unit).map_err(Into::into),
            None if self.is_direct() => Err(DeviceError::NoUnit),
            None => Ok(()),
        };
        for beside in core::mem::take(&mut self.beside) {
            let alone = Arc::into_inner(beside).ok_or(DeviceError::Shared);
            detached = detached.and(alone.and_then(Self::detach));
        }
        detached
    }
}

fn same(one: &Arc<dyn Iommu>, other: &Arc<dyn Iommu>) -> bool {
    core::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

impl<P: Cpus + Clone> core::fmt::Debug for Device<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut shown = f.debug_struct("Device");
        shown.field("requester", &self.context().requester).finish_non_exhaustive()
    }
}

impl<P: Cpus + Clone> Drop for Device<P> {
    fn drop(&mut self) {
        if let Some(unit) = &self.unit {
            // After `detach` this is a second time, which is cheap.
            let _ = self.context().requester.block(&**unit);
        }
        if let (DeviceTranslation::Space(Some(member)), Some(space)) =
            (self.translation, self.space())
        {
            space.leave(member);
        }
    }
}
