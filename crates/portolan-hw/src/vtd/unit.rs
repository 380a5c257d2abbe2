//! A unit: making it, its parts, devices with translations of their own or that are gone, and letting go
//! of it.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 3.9, 3.14,
//! 6.5.2.10 (a device that does not complete an invalidation), 6.6 to 6.8, 7.7 and 11.4.4.
//! Several units are several instances; nothing is shared between them.

use super::command::{Counts, Request};
use super::control::{Core, Direct, Switch, Way};
use super::faults::{FaultReader, PageEvent, PageQueue};
use super::features::{Config, Features, Mode, Quirks, VtdFeature};
use super::former::FormerTags;
use super::queue::{self, VtdQueue, Width};
use super::tables::{
    ABSENT, AttachedContext, Attachment, EntryRequests, InheritedTranslation, Key, OwnMessages,
    Root, Streams, Structures, VtdInterruptTable, change,
};
use crate::chassis::book::{Book, Hold};
use crate::chassis::entry::At;
use crate::chassis::handed::Adopted;
use crate::chassis::handed::handover_methods;
use crate::chassis::{OperationState, Sorted, common_methods, plain, played, with_room};
use crate::promise;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;
use portolan::addr::{InvalTag, Pasid, StreamId};
use portolan::iommu::{
    Attach as _, AttachError, BoundDomain, Conditions, DeviceTlb, InterruptTarget, Iommu,
    IommuDomains, IommuError, RecoverableFaults, RemapInterrupts, Shadowing, Stage,
};
use portolan::iopf::{ReplyName, ReplyTo, Responder, Response};
use portolan::platform::{AllMemory, Guarded, TableMem, UnitPlatform};
use portolan::table::format::{VtdFirstLevels, VtdLevels};
use portolan_spec::vtd::reg::command;

/// A first stage on top of a second: its parent.
#[derive(Clone, Debug)]
pub(super) struct Parent {
    pub(super) root: u64,
    pub(super) levels: VtdLevels,
    pub(super) context: InvalTag,
    /// Held, not read.
    pub(super) _domain: Hold,
}

/// Translations in a device's TLB that this unit has never given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum History {
    Nothing,
    /// Translations of a previous owner, or those that it was not told to forget while it was gone.
    Unknown,
}

/// A device whose TLB may be used.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceTlbUse {
    pub(super) tlb: DeviceTlb,
    pub(super) history: History,
}

/// Devices and domains that the unit remembers.
#[derive(Debug, Default)]
pub(super) struct KnownDevices {
    /// Device TLBs that may be used.
    pub(super) devices: Sorted<u16, DeviceTlbUse>,
    /// Devices that were gone once.
    pub(super) gone: Sorted<u16, ()>,
    /// Parents of nested first stages, by domain identifier.
    pub(super) parents: Sorted<u16, Parent>,
}

/// One IOMMU with VT-d's registers on the machine `P`.
///
/// *Locking.* Streams are moved one at a time; a caller waits for its turn no longer than the
/// limit. When it is dropped, all streams are blocked, and nothing that the hardware may use is
/// freed: neither its own tables nor, if it does not follow, the domains of its streams.
///
/// *Context.* Task, also to drop it. Methods that may be called from elsewhere say so.
pub struct Vtd<P: UnitPlatform> {
    pub(super) core: Arc<Core<P>>,
    pub(crate) config: Config,
    pub(super) book: Book<P, Key, AttachedContext, Structures>,
    pub(super) known: Guarded<P, KnownDevices>,
    pub(super) faults: FaultReader<P>,
    pub(super) requests: PageQueue,
    pub(super) root: Root,
    pub(super) former: Guarded<P, FormerTags>,
    pub(super) remap: Option<VtdInterruptTable<P>>,
    pub(super) messages: OwnMessages<P>,
    pub(super) adopted: Adopted<P, Self>,
}

crate::chassis::opaque!(Vtd, AtomicU64);

/// Memory that the hardware is going to be told of.
pub(super) struct VtdAllocations<P: UnitPlatform> {
    pub(super) structures: Structures,
    pub(super) way: Way<P>,
    pub(super) remap: Option<VtdInterruptTable<P>>,
}

impl<P: UnitPlatform> VtdAllocations<P> {
    /// Tables alone.
    pub(super) fn new(structures: Structures) -> Self {
        Self { structures, way: Way::Direct(Direct::default()), remap: None }
    }

    /// A queue with descriptors of `width`, if there is to be one.
    pub(super) fn make_ring(
        &mut self,
        mem: &impl TableMem<AtomicU64>,
        config: &Config,
        width: Option<Width>,
    ) -> Result<(), IommuError> {
        if let Some(width) = width {
            self.way = Way::Ring(queue::ring(mem, config.queue_lg2_pages, width)?);
        }
        Ok(())
    }

    /// An interrupt table, if there is to be one.
    pub(super) fn make_remap(
        &mut self,
        mem: &impl TableMem<AtomicU64>,
        config: &Config,
        features: &Features,
    ) -> Result<(), IommuError> {
        self.remap = match (config.interrupts, &self.way) {
            (None, _) => None,
            (Some(wanted), Way::Ring(_)) => Some(VtdInterruptTable::new(mem, features, wanted)?),
            (Some(_), Way::Direct(_)) => return Err(IommuError::Unsupported),
        };
        Ok(())
    }

    pub(super) fn free(&mut self, mem: &impl TableMem<AtomicU64>) {
        self.structures.free(mem);
        self.free_others(mem);
    }

    /// Gives all but the tables back.
    pub(super) fn free_others(&self, mem: &impl TableMem<AtomicU64>) {
        if let Way::Ring(ring) = &self.way {
            ring.free(mem);
        }
        if let Some(remap) = &self.remap {
            remap.free(mem);
        }
    }
}

/// Domain identifier of streams that pass through. Identifier 0 is left alone: with caching mode it
/// tags entries that are not present (6.1).
pub(super) const PASS: u16 = 1;

impl<P: UnitPlatform> Vtd<P> {
    /// Takes the unit over: streams reach the memory that [`Config::reserved`] names for them, and all others
    /// are blocked. Translation that firmware or an earlier system left on stays on, until the unit uses the
    /// new tables instead of the old; see [`Takeover`](super::Takeover) and [`Vtd::take_over`]. The old queue
    /// goes off, and so do protected memory regions. Streams that reach memory so are never blocked meanwhile, but
    /// for the moment in which a unit whose translation is on forgets the old tables; [`Vtd::prepare`], which
    /// reads them, does without it.
    ///
    /// A unit that does not translate ([`Features::translates`]) has no streams to block: it remaps
    /// interrupts, and devices behind it reach all memory.
    ///
    /// # Errors
    /// See [`IommuError`]. Memory that the hardware may have been told of is then not freed.
    pub fn enable(
        regs: P::Registers,
        mem: P::Memory,
        clock: P,
        config: Config,
    ) -> Result<Self, IommuError> {
        let unit = Self::begin(regs, mem, clock, config)?;
        if unit.features().translates() {
            // Next to tables that are not known, the streams at work could hit translations of others.
            let known = unit.former.lock().are_known();
            if known {
                unit.keep_at_work()?;
            }
            unit.translate()?;
            if !known {
                unit.keep_at_work()?;
            }
        }
        Ok(unit)
    }

    /// The stage of a domain that the unit chooses.
    pub(crate) fn new_stage(&self) -> Stage {
        let features = self.features();
        let first = features.has_first(VtdFirstLevels::Four);
        match (self.config.mode, first) {
            (Mode::Scalable, true) => Stage::First,
            _ => Stage::Second,
        }
    }

    /// Attaches the streams that firmware has at work, to domains of the kind that others get.
    fn keep_at_work(&self) -> Result<(), IommuError> {
        let reserved = &self.config.reserved;
        match self.new_stage() {
            Stage::First => {
                let new = || self.first_stage(VtdFirstLevels::Four);
                reserved.keep_at_work(new, |stream, domain| self.attach(stream, domain))
            }
            Stage::Second => {
                let new = || self.second_stage();
                reserved.keep_at_work(new, |stream, domain| self.attach(stream, domain))
            }
        }
    }
}

impl<P: UnitPlatform> Vtd<P> {
    /// Features of the unit.
    ///
    /// *Context.* Interrupt.
    pub fn features(&self) -> &Features {
        &self.core.control.features
    }

    /// A handle to its invalidations.
    ///
    /// *Context.* Interrupt.
    pub fn queue(&self) -> VtdQueue<P> {
        VtdQueue(Arc::clone(&self.core))
    }

    /// Commands submitted so far.
    ///
    /// *Context.* Interrupt.
    pub fn counts(&self) -> Counts {
        self.core.control.counters.read()
    }

    /// Turns translation, the remapping of interrupts and the queue off and frees the unit's own
    /// tables: from now on devices reach all memory, as `_all` gives leave to, and raise any interrupt. For handing
    /// the machine over.
    ///
    /// # Errors
    /// If the hardware does not follow. Memory that it may use then stays allocated.
    pub fn release(self, _all: AllMemory) -> Result<(), IommuError> {
        let control = &self.core.control;
        let kept_on = self.config.chip.contains(Quirks::KEEP_TRANSLATION);
        if kept_on {
            return Err(IommuError::Unsupported);
        }
        self.revoke_interrupts(None)?;
        control.switch(command::TE, Switch::Off)?;
        self.forget_everything()?;
        let left = self.book.with(self.turn(), |streams| streams.settled(..))?;
        let parents = core::mem::take(&mut self.known.lock().parents);
        // While the queue is on: a domain without another holder still invalidates when it is
        // dropped.
        drop((left, parents));
        if let Way::Ring(ring) = &self.core.way {
            ring.drain(&*self.core)?;
            if self.remap.is_some() {
                control.switch(command::IRE, Switch::Off)?;
            }
            control.switch(command::QIE, Switch::Off)?;
        }
        if let Some(remap) = &self.remap {
            remap.free(&self.core.mem);
        }
        self.core.operation.set(OperationState::Off);
        self.requests.free(&self.core);
        let free = |streams: &mut Streams| streams.state.free(&self.core.mem);
        self.book.with(self.turn().always(), free)?;
        let core = Arc::clone(&self.core);
        drop(self);
        // While domains are still held so is the ring, in which one of them may be writing.
        if let Some(core) = Arc::into_inner(core) {
            if let Way::Ring(ring) = &core.way {
                ring.free(&core.mem);
            }
        }
        Ok(())
    }
}

impl<P: UnitPlatform> Vtd<P> {
    /// Declares that `stream` has a TLB of its own, to be used from its next attachment on: nothing
    /// checks addresses that its device has translated, to which `_all` gives leave.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] if the unit has no part for them.
    pub fn use_device_tlb(
        &self,
        stream: StreamId,
        device: DeviceTlb,
        _all: AllMemory,
    ) -> Result<(), IommuError> {
        let stream = u16::try_from(stream.get()).map_err(|_| IommuError::Unsupported)?;
        let queued = matches!(self.core.way, Way::Ring(_));
        if !queued || !self.features().has.contains(VtdFeature::DEVICE_TLB) {
            return Err(IommuError::Unsupported);
        }
        with_room(
            &self.known,
            |known| known.devices.list(),
            |known| {
                let unknown = self.root.inherited() == InheritedTranslation::Translation;
                let history = if unknown || known.gone.get(stream).is_some() {
                    History::Unknown
                } else {
                    History::Nothing
                };
                let tlb = device;
                known.devices.insert(stream, DeviceTlbUse { tlb, history });
            },
        );
        Ok(())
    }

    /// Blocks `stream`, all its PASIDs and its interrupts too, without asking the device for
    /// anything: for one that was removed by surprise, or no longer completes invalidations of its
    /// TLB. Returns once nothing is under way through its domains, which may then be dropped, and
    /// from then on their invalidations no longer ask it.
    ///
    /// No promise about the device is needed: its TLB may still hold translations, but the unit
    /// refuses translated requests of a stream without an entry (3.9). If it comes back, its TLB
    /// has to be declared again ([`Vtd::use_device_tlb`]), and is told to forget everything before
    /// its stream is attached.
    ///
    /// # Errors
    /// As [`Iommu::block`]; to be tried again.
    pub fn device_gone(&self, stream: StreamId) -> Result<(), AttachError> {
        let sid = u16::try_from(stream.get()).map_err(|_| AttachError::NoSuchStream { stream })?;
        with_room(&self.known, |known| known.gone.list(), |known| known.gone.insert(sid, ()));
        let leave = |streams: &mut Streams| self.leave_behind(streams, sid);
        let left = self.book.with(self.turn(), leave)?;
        left.map(drop)?;
        Ok(self.revoke_interrupts(Some(stream))?)
    }

    /// Blocks a stream as [`Vtd::device_gone`] does; returns its attachments.
    fn leave_behind(
        &self,
        streams: &mut Streams,
        stream: u16,
    ) -> Result<Vec<(Key, Attachment)>, IommuError> {
        // From here on nothing asks the device again because the stream is moved.
        self.known.lock().devices.remove(stream);
        let all = (stream, 0)..=(stream, u32::MAX);
        let keys: Vec<Key> = streams.not_blocked(all.clone()).collect();
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let tables = &mut streams.state;
        self.clear(tables.context(&self.core, stream)?)?;
        if self.config.mode == Mode::Scalable {
            for (_, pasid) in keys {
                self.clear(tables.pasid(&self.core, stream, pasid)?)?;
            }
        }
        // Until the unit has forgotten it, the hardware may still reach all of it.
        tables.stale.insert(stream);
        streams.unsettle(all.clone());
        // Everything, as what the stream had may be tagged by any domain.
        self.forget_everything()?;
        streams.state.stale.remove(&stream);
        let left = streams.settled(all);
        for (key, attachment) in &left {
            self.forget_note(attachment.to, *key);
        }
        Ok(left)
    }

    fn clear(&self, at: At) -> Result<(), IommuError> {
        change(&self.core, at, &ABSENT, EntryRequests::NOTHING)
    }
}

impl<P: UnitPlatform> Vtd<P> {
    /// Sets up a page-request queue of `2^lg2_pages` pages (7 at most), to be read with
    /// [`Vtd::next_page_request`]. Devices whose TLB is used may send requests from their next
    /// attachment on.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] outside scalable mode, without page requests, or if there is a
    /// queue already; [`IommuError::Memory`].
    pub fn read_page_requests(&self, lg2_pages: u32) -> Result<(), IommuError> {
        let scalable = self.config.mode == Mode::Scalable;
        if !scalable || !self.features().has.contains(VtdFeature::PAGE_REQUESTS) {
            return Err(IommuError::Unsupported);
        }
        self.requests.set_up(&self.core, lg2_pages)
    }

    /// The oldest request. For one caller at a time.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] without a queue, [`IommuError::Gone`], or
    /// [`IommuError::Nonsense`] if the tail is outside it.
    pub fn next_page_request(&self) -> Result<Option<PageEvent>, IommuError> {
        self.requests.next(&self.core)
    }
}

impl<P: UnitPlatform> Responder for Vtd<P> {
    type Error = IommuError;

    /// *Context.* Atomic. Sends a descriptor and waits until the unit has taken it; [`IommuError::Unsupported`]
    /// without a queue of page requests, and for a stall, which this architecture has not.
    fn respond(&self, to: ReplyTo, response: Response) -> Result<(), IommuError> {
        let ReplyName::Group(group) = to.name else {
            return Err(IommuError::Unsupported);
        };
        if !self.requests.is_read() {
            return Err(IommuError::Unsupported);
        }
        let stream = u16::try_from(to.stream.get()).map_err(|_| IommuError::Unsupported)?;
        let response = Request::Response {
            stream,
            pasid: to.pasid.map(Pasid::get),
            group: group.get(),
            response,
        };
        self.core.run(&[&[response]])
    }
}

impl<P: UnitPlatform> Drop for Vtd<P> {
    /// *Context.* Task.
    fn drop(&mut self) {
        // A failure leaves what it concerns unsettled, which is kept, and with it what it hangs on.
        // What the unit does not forget is closed in its table, which is not freed.
        let _ = self.revoke_interrupts(None);
        if self.block_all().is_err() {
            core::mem::forget(core::mem::take(&mut self.known.lock().parents));
        }
    }
}

impl<P: UnitPlatform> IommuDomains for Vtd<P> {
    /// First-stage tables in scalable mode: a hypervisor need not shadow them. Second-stage tables
    /// otherwise.
    fn new_domain(self: Arc<Self>) -> Result<BoundDomain, IommuError> {
        match self.new_stage() {
            Stage::First => {
                let domain = Arc::new(self.first_stage(VtdFirstLevels::Four)?);
                Ok(BoundDomain::new(self, domain, promise::drivers()))
            }
            Stage::Second => {
                let domain = Arc::new(self.second_stage()?);
                Ok(BoundDomain::new(self, domain, promise::drivers()))
            }
        }
    }

    fn conditions(&self) -> Conditions {
        let stage = self.new_stage();
        // Virtual units have caching mode, and there an invalidation is an exit.
        if self.features().has.contains(VtdFeature::CACHING_MODE) {
            played(stage, Shadowing::CachingMode)
        } else {
            plain(stage)
        }
    }

    fn recoverable_faults(&self) -> RecoverableFaults {
        let requests = self.features().has.contains(VtdFeature::PAGE_REQUESTS);
        match (self.config.mode, requests) {
            (Mode::Scalable, true) => RecoverableFaults::Present,
            _ => RecoverableFaults::Absent,
        }
    }

    fn interrupts(&self) -> Option<&dyn RemapInterrupts> {
        self.config.interrupts.map(|_| self as _)
    }

    fn signal_faults(&self, target: Option<InterruptTarget>) -> Result<(), IommuError> {
        self.signal(target)
    }

    fn use_device_tlb(
        &self,
        stream: StreamId,
        tlb: DeviceTlb,
        all: AllMemory,
    ) -> Result<(), IommuError> {
        Vtd::use_device_tlb(self, stream, tlb, all)
    }

    common_methods!();
    handover_methods!();
}
