//! Units that are enabled, and the devices behind them.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use portolan::addr::{IovaRange, PciFunction, StreamId};
use portolan::dma::{
    Buffers, Constraints, Copying, Decision, Device, DeviceError, DeviceTlbPresence, DmaSpace,
    PolicyInputs, PolicyPreference, Shadowing, SpaceError, SpaceOptions, Trust, default_policy,
};
use portolan::iommu::IommuDomains;
use portolan::platform::{AllMemory, Nanos, Platform};

use super::enable::{Enabled, Outcome};
use super::pci::PciNode;
use super::{EnableError, OpenError, Served, Survey, Topology};
use crate::interrupt::ApicMode;
use crate::turn::{Turn, TurnWait};

/// Longest time that a caller waits until others have opened their devices.
const TURN: Nanos = Nanos::new(10_000_000_000);

/// A group of which a device is open, or was.
pub(super) struct OpenGroup<P: Platform> {
    key: GroupKey,
    /// The unit that serves those that are open: a space is one unit's.
    unit: usize,
    /// Scope of its space.
    scope: SpaceScope,
    pub(super) space: Weak<DmaSpace<P>>,
    /// Streams that accesses of several devices carry, or that are no function's own.
    shared: Vec<(StreamId, Weak<Device<P>>)>,
}

/// Name of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupKey {
    /// Its first function.
    Functions(PciFunction),
    /// The only stream that it is known to have, of a device that is no PCI function.
    Stream(StreamId),
}

/// Member of a group behind a unit, by that unit's number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member<'s> {
    pub(super) key: GroupKey,
    pub(super) unit: usize,
    pub(super) streams: &'s [StreamId],
}

/// Devices that are in one address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum SpaceScope {
    /// Those of a group, which cannot be kept apart.
    #[default]
    Group,
    /// All devices of a unit that are opened with this scope: for kernels with one address space for all devices, and
    /// for drivers that do not say for which device a buffer is. They reach each other's buffers.
    Unit,
}

/// Options of opening a device.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// Limits of the device, and the trust in it.
    pub constraints: Constraints,
    /// Ownership of its driver's buffers.
    pub buffers: Buffers,
    /// Policy that the administrator prefers.
    pub preference: PolicyPreference,
    /// Its address space; the policy in it is replaced by the one that is decided on.
    pub space: SpaceOptions,
    /// Devices that share it.
    pub scope: SpaceScope,
}

impl DeviceOptions {
    /// A driver that hands its buffers over, of a device with these limits and this trust.
    #[must_use]
    pub fn of(constraints: Constraints) -> Self {
        Self {
            constraints,
            buffers: Buffers::Owned,
            preference: PolicyPreference::None,
            space: SpaceOptions::default(),
            scope: SpaceScope::default(),
        }
    }

    /// The same of a device that is trusted, and whose limits are those that [most have](Constraints::of).
    #[must_use]
    pub fn trusted() -> Self {
        Self::of(Constraints::trusted())
    }

    /// The same of a device that is not trusted.
    #[must_use]
    pub fn untrusted() -> Self {
        Self::of(Constraints::untrusted())
    }

    /// The same with no more trust than `most`, in the device and in its space.
    pub(super) fn trusted_at_most(mut self, most: Trust) -> Self {
        self.constraints.trust = self.constraints.trust.least(most);
        self
    }

    /// The same for a device of whose addresses those of `reach` arrive at its unit; `None` if that leaves
    /// none.
    pub(super) fn within(mut self, reach: IovaRange) -> Option<Self> {
        let mask = self.constraints.dma_mask;
        self.constraints.dma_mask = mask.min(reach.last());
        self.space.window = self.space.window.intersection(reach)?;
        Some(self)
    }

    /// Trust in the devices of the space that the device would make.
    fn trust(&self) -> Trust {
        let own = self.constraints.trust;
        self.space.trust.map_or(own, |said| said.least(own))
    }
}

/// A machine's units, enabled.
///
/// *Context.* Task, also to drop it: units without devices are dropped then, as their drivers say.
///
/// ```no_run
/// # use portolan::addr::PciFunction;
/// # use portolan::dma::{Buffer, Direction};
/// # use portolan::platform::Platform;
/// # use portolan_hw::TrustedDescription;
/// # use portolan_hw::topology::{Options, Topology};
/// # fn of<K: Platform, B: Buffer>(kernel: K, tables: &[&[u8]], packet: B) -> Result<(), Box<dyn std::error::Error>> {
/// // SAFETY: these are this machine's tables.
/// let described = unsafe { TrustedDescription::new() };
/// let iommus = Topology::from_acpi(tables.iter().copied())?.enable(kernel, Options::default(), described)?;
/// let device = iommus.trusted_device(PciFunction::of(0, 3, 0))?;
/// let mapping = device.map(packet, Direction::FromDevice)?;
/// let packet = mapping.unmap()?;
/// # Ok(())
/// # }
/// ```
pub struct Iommus<P: Platform> {
    pub(super) topology: Topology,
    pub(super) survey: Survey,
    pub(super) platform: P,
    pub(super) units: Vec<Outcome>,
    pub(super) groups: Turn<P, Vec<OpenGroup<P>>>,
    pub(super) copying: Option<Copying>,
    /// Form of the destinations of remapped interrupts.
    pub(super) apic: Option<ApicMode>,
    /// Leave for functions that no unit serves.
    pub(super) unserved: Option<AllMemory>,
}

impl<P: Platform> Iommus<P> {
    pub(super) fn new(
        topology: Topology,
        survey: Survey,
        platform: P,
        apic: Option<ApicMode>,
        units: Vec<Outcome>,
    ) -> Result<Self, EnableError> {
        // A table without a unit makes no topology.
        if let (Some(&Err(first)), true) = (units.first(), units.iter().all(Result::is_err)) {
            return Err(first);
        }
        let groups = Turn::new(Vec::new());
        let (copying, unserved) = (None, None);
        Ok(Self { topology, survey, platform, units, groups, copying, apic, unserved })
    }

    /// Survey of firmware and the PCI functions when the units were enabled: groups, reserved
    /// ranges, and remarks.
    pub fn survey(&self) -> &Survey {
        &self.survey
    }

    /// The units, in the order of firmware's table; of one that did not come up, the reason. One at least
    /// did, unless the machine has [none](Self::none).
    ///
    /// ```
    /// # use portolan::platform::Platform;
    /// # use portolan_hw::topology::Iommus;
    /// fn show<P: Platform>(iommus: &Iommus<P>) {
    ///     for (number, unit) in iommus.units().iter().enumerate() {
    ///         if let Err(error) = unit {
    ///             println!("unit {number} was not enabled, stop its devices: {error}");
    ///         }
    ///     }
    /// }
    /// ```
    pub fn units(&self) -> &[Result<Arc<dyn IommuDomains>, EnableError>] {
        &self.units
    }

    /// The unit that serves `function`, and the function's stream there.
    ///
    /// # Errors
    /// If the table is damaged, no unit serves it, or that one was not enabled.
    pub fn unit_of(
        &self,
        function: PciFunction,
    ) -> Result<(&Arc<dyn IommuDomains>, StreamId), OpenError> {
        let none = OpenError::NotServed { function };
        let (unit, stream) = self.find(function)?.ok_or(none)?;
        Ok((self.enabled(function, unit)?, stream))
    }

    /// The unit of that number, which serves `function`.
    pub(super) fn enabled(
        &self,
        function: PciFunction,
        unit: usize,
    ) -> Result<&Enabled, OpenError> {
        let outcome = self.units.get(unit);
        let outcome = outcome.ok_or(OpenError::NotServed { function })?;
        outcome.as_ref().map_err(|&error| OpenError::NotEnabled { function, unit, error })
    }

    fn find(&self, function: PciFunction) -> Result<Option<(usize, StreamId)>, OpenError> {
        let read = |of, at| self.platform.pci_config(of, at);
        Ok(self.topology.find(&self.survey, &read, function)?)
    }

    /// The policy for a device behind `unit`, and the reason for it.
    pub fn decide(&self, unit: &dyn IommuDomains, options: &DeviceOptions) -> Decision {
        let conditions = unit.conditions();
        default_policy(&PolicyInputs {
            trust: options.trust(),
            stage: conditions.stage,
            shadowing: match conditions.shadowing {
                Shadowing::None => options.space.shadowing,
                told => told,
            },
            device_tlb: DeviceTlbPresence::Absent,
            exits: conditions.exits,
            buffers: options.buffers,
            wish: options.preference,
        })
    }

    /// Opens a device that is trusted, for a driver that hands its buffers over. Devices of one group
    /// ([`Survey::groups`]) are in one address space, which the first one of them makes: its options
    /// hold for the others' space as well. Of these, one that is trusted less than the first is
    /// refused, and one that is trusted more is trusted no further than it: they reach each other's
    /// buffers. So the least trusted is opened first, or the first with `space.trust` in its options.
    /// Devices of other groups have other spaces. The unit knows the device by each requester
    /// identifier that its accesses may carry.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn trusted_device(&self, function: PciFunction) -> Result<Device<P>, OpenError> {
        self.device_with(function, &DeviceOptions::trusted())
    }

    /// As [`Iommus::trusted_device`], with `options`. A device below a port that leads out of the
    /// machine ([`Topology::external_ports`]) is not trusted whatever they say, and so is each of
    /// its group: its space is not lazy, and what shares a page with its buffers is copied, or the
    /// buffers are refused ([`Iommus::copying_for_untrusted`]).
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn device_with(
        &self,
        function: PciFunction,
        options: &DeviceOptions,
    ) -> Result<Device<P>, OpenError> {
        let Some((unit, _)) = self.find(function)? else {
            return self.open_unserved(function, options);
        };
        self.enabled(function, unit)?;
        let options = options.trusted_at_most(self.survey.trust(function));
        let reach = self.topology.reach(&self.survey, function)?;
        let within = reach.and_then(|reach| options.within(reach));
        let options = &within.ok_or(OpenError::NoAddress { function })?;
        self.with_groups(|groups| {
            let first = self.survey.groups().first(self.survey.tree(), function);
            let key = GroupKey::Functions(first);
            let streams = &self.streams(function).streams;
            let (at, space) = self.group(groups, Member { key, unit, streams }, options)?;
            // It was found or added there.
            let group = groups.get_mut(at).ok_or(OpenError::NotServed { function })?;
            self.open(group, &space, function, options)
        })
    }

    /// Does `work` once other callers have opened their devices.
    pub(super) fn with_groups<R>(
        &self,
        work: impl FnOnce(&mut Vec<OpenGroup<P>>) -> Result<R, OpenError>,
    ) -> Result<R, OpenError> {
        let done = self.groups.with(TurnWait::new(&self.platform, TURN), work);
        done.map_err(OpenError::Turn)?
    }

    /// The place in `groups` of a member's group, with its space, which is made if need be, by `options`.
    pub(super) fn group(
        &self,
        groups: &mut Vec<OpenGroup<P>>,
        member: Member<'_>,
        options: &DeviceOptions,
    ) -> Result<(usize, Arc<DmaSpace<P>>), OpenError> {
        let Member { key, unit, .. } = member;
        groups.retain(|group| group.space.strong_count() > 0);
        let found = groups.iter().position(|group| (group.key, group.unit) == (key, unit));
        if let Some((at, group)) = found.and_then(|at| Some((at, groups.get(at)?))) {
            if options.scope == SpaceScope::Unit && group.scope == SpaceScope::Group {
                return Err(OpenError::OtherSpace);
            }
            if let Some(space) = group.space.upgrade() {
                return Ok((at, space));
            }
        }
        let common = |group: &&OpenGroup<P>| {
            options.scope == SpaceScope::Unit
                && (group.unit, group.scope) == (unit, SpaceScope::Unit)
        };
        let space = match groups.iter().find(common).and_then(|group| group.space.upgrade()) {
            Some(space) => space,
            None => self.new_space(member, options)?,
        };
        if let GroupKey::Functions(PciFunction { segment, .. }) = key {
            let here = |group: &OpenGroup<P>| {
                core::ptr::eq(group.space.as_ptr(), Arc::as_ptr(&space))
                    && matches!(group.key, GroupKey::Functions(one) if one.segment == segment)
            };
            if !groups.iter().any(here) {
                let read = |of, at| self.platform.pci_config(of, at);
                for window in self.survey.tree().windows(segment, &read) {
                    // A space that other segments have as well may use them already.
                    space.reserve(window).map_err(|_| SpaceError::Memory)?;
                }
            }
        }
        let (scope, of, shared) = (options.scope, Arc::downgrade(&space), Vec::new());
        groups.push(OpenGroup { key, unit, scope, space: of, shared });
        Ok((groups.len() - 1, space))
    }

    /// A space of a member's unit, which is enabled; that of a former kernel, if it has left the member one.
    fn new_space(
        &self,
        member: Member<'_>,
        options: &DeviceOptions,
    ) -> Result<Arc<DmaSpace<P>>, OpenError> {
        let Some(Ok(unit)) = self.units.get(member.unit) else {
            return Err(OpenError::OtherSpace);
        };
        let mut streams = member.streams.iter();
        let adopted = streams.find_map(|stream| unit.clone().adopted(*stream));
        let (bound, in_use) = match adopted {
            Some(adopted) => (adopted.bound, adopted.in_use),
            None => (unit.clone().new_domain().map_err(OpenError::Domain)?, Vec::new()),
        };
        let mut how = options.space;
        how.trust = Some(options.trust());
        how.policy = self.decide(&**unit, options).policy;
        let space = DmaSpace::new(bound, self.platform.clone(), &how)?;
        for range in in_use {
            space.keep_former(range).map_err(|_| SpaceError::Memory)?;
        }
        Ok(Arc::new(space))
    }

    /// Opens `function` in the space of its group, by all its streams.
    fn open(
        &self,
        group: &mut OpenGroup<P>,
        space: &Arc<DmaSpace<P>>,
        function: PciFunction,
        options: &DeviceOptions,
    ) -> Result<Device<P>, OpenError> {
        let limits = options.constraints;
        let served = self.streams(function);
        let none = OpenError::NotServed { function };
        let (&own, others) = served.streams.split_first().ok_or(none)?;
        let unit = served.unit.ok_or(none)?;
        let device = match group.has(own) || self.survey.is_shared(function, unit, own) {
            true => Device::beside(group.shared(space, own, limits)?, limits)?,
            false => Device::translated(space.clone(), own, limits)?,
        };
        let others = others.iter().map(|other| group.shared(space, *other, limits));
        let others: Vec<_> = others.collect::<Result<_, _>>()?;
        let device = device.with_streams(others)?;
        Ok(self.copying(device))
    }

    /// The device, with the pool for those that are not trusted if it is none.
    pub(super) fn copying(&self, device: Device<P>) -> Device<P> {
        let copying = self.copying.as_ref();
        match copying.filter(|_| device.constraints().trust == Trust::Untrusted) {
            Some(copying) => device.with_copies(copying.clone()),
            None => device,
        }
    }

    /// Opens every PCI function that a unit serves and that is no bridge, as `options` say: with
    /// [`SpaceScope::Unit`], one address space for each unit has all of them.
    ///
    /// ```no_run
    /// # use portolan::dma::Device;
    /// # use portolan::platform::Platform;
    /// # use portolan_hw::topology::{DeviceOptions, Iommus, OpenError, SpaceScope};
    /// /// A kernel that has one table for all devices.
    /// fn everything<P: Platform>(iommus: &Iommus<P>) -> Result<Vec<Device<P>>, OpenError> {
    ///     let mut options = DeviceOptions::trusted();
    ///     options.scope = SpaceScope::Unit;
    ///     iommus.all_devices(options).map(|(_, device)| device).collect()
    /// }
    /// ```
    pub fn all_devices(
        &self,
        options: DeviceOptions,
    ) -> impl Iterator<Item = (PciFunction, Result<Device<P>, OpenError>)> {
        let served = self.survey.served().iter().filter(|served| served.unit.is_some());
        let functions = served.map(|served| served.function);
        let is_bridge = |at| self.survey.tree().node(at).is_some_and(PciNode::is_bridge);
        functions
            .filter(move |at| !is_bridge(*at))
            .map(move |at| (at, self.device_with(at, &options)))
    }

    /// The streams of `function` at its unit.
    pub(super) fn streams(&self, function: PciFunction) -> Served {
        let find = |_: &Survey, of| self.find(of).ok().flatten();
        self.survey.serving(function, find).0
    }
}

impl<P: Platform> OpenGroup<P> {
    fn has(&self, stream: StreamId) -> bool {
        let mut shared = self.shared.iter();
        shared.any(|(its, device)| *its == stream && device.strong_count() > 0)
    }

    /// The device of a stream that several may have: the one that is there, or a new one.
    fn shared(
        &mut self,
        space: &Arc<DmaSpace<P>>,
        stream: StreamId,
        constraints: Constraints,
    ) -> Result<Arc<Device<P>>, DeviceError> {
        self.shared.retain(|(_, device)| device.strong_count() > 0);
        let mut shared = self.shared.iter();
        let found = shared.find(|(its, _)| *its == stream);
        if let Some(found) = found.and_then(|(_, device)| device.upgrade()) {
            return Ok(found);
        }
        let device = Arc::new(Device::translated(space.clone(), stream, constraints)?);
        self.shared.push((stream, Arc::downgrade(&device)));
        Ok(device)
    }
}
