//! The invalidation queue, and the requests that the steps of a plan become.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 6.5.2 and
//! 11.4.9. Descriptors have 128 or 256 bits. A sync is a wait that writes its number as status. After
//! a stop (6.5.2.10) a refused descriptor is replaced by a wait for which no caller waits; a device's
//! time-out is told to the callers that asked that device, and aborts waits; and only the bits that
//! were dealt with are cleared.
//!
//! Device TLBs are told once the unit's own invalidation is complete (6.5.3). Nothing here takes
//! memory: debts of a plan to devices, and requests that may have to be sent again, are lists of fixed
//! length, and an item that does not fit makes the invalidation wider.

use super::command::{
    CommandKind as Kind, Contexts, Counted, Drain, Extent, Hint, Iotlb, Request, fence, wait_words,
};
use super::control::{ATTEMPTS, Core, Sending, Way};
use super::features::VtdFeature;
use super::tags::{TagUsers, context_id, split_id};
use crate::chassis::{BatchEnd, Outcome, Present, Ring, RingShape, Stop, Ticket, Unit};
use alloc::sync::Arc;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::sync::atomic::AtomicU64;
use portolan::addr::{InvalTag, PageSize, PhysAddr, PhysRange};
use portolan::inval::{Command, Depth, InvalidationQueue, Run, Step, TablesLeft};
use portolan::iommu::{IommuError, Stage, TagPool};
use portolan::platform::{Mmio, Nanos, TableMem, UnitPlatform};
use portolan::table::format::DirtyTracking;
use portolan_spec::vtd::descriptor::Words;
use portolan_spec::vtd::reg::{self, command, fsts, iqercd, queue};

crate::chassis::handle!(VtdQueue of Core, AtomicU64);

/// Width of the descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    Bits128,
    Bits256,
}

/// Exponent of the bytes of a descriptor of 256 bits.
const WIDE: u32 = 5;

/// A ring of `2^lg2_pages` pages (at most 7), not yet handed to the unit.
pub(super) fn ring<P: UnitPlatform>(
    mem: &impl TableMem<AtomicU64>,
    lg2_pages: u32,
    width: Width,
) -> Result<Ring<P>, IommuError> {
    let lg2_bytes = match width {
        Width::Bits128 => WIDE - 1,
        Width::Bits256 => WIDE,
    };
    let lg2_slots = 12 + lg2_pages.min(7) - lg2_bytes;
    let shape = RingShape { lg2_slots, lg2_bytes };
    Ring::new(mem, shape, u64::MAX, true)
}

/// Value of the address register.
pub(super) fn address<P: UnitPlatform>(ring: &Ring<P>) -> u64 {
    let block = ring.commands();
    let wide = queue::WIDE.at((ring.shape().lg2_bytes == WIDE).into());
    block.at.get() | queue::SIZE.at((block.size.lg2() - 12).into()) | wide
}

impl<P: UnitPlatform> Unit for Core<P> {
    type Memory = P::Memory;
    type Cpus = P;
    type Command = Counted;

    const TURN_BITS: u32 = 0;
    const INDEX_COMPLETES: bool = false;
    const ABORTS_SYNCS: bool = true;
    const HEAD: usize = reg::IQH;
    /// `IQERCD.IQEI` without information.
    const OVERWRITTEN: u32 = 0;

    fn machine(&self) -> (&P::Memory, &P, Nanos) {
        (&self.mem, &self.control.clock, self.control.limit)
    }

    fn running(&self) -> Result<(), IommuError> {
        self.operation.running()
    }

    fn words((_, words): &Counted) -> Words {
        *words
    }

    fn count(&self, (kind, _): &Counted) {
        self.control.counters.add(*kind);
    }

    fn sync(at: Option<PhysAddr>, number: u32) -> Counted {
        let at = at.map_or(0, PhysAddr::get);
        (Kind::Wait, wait_words(at, number, Drain::Nothing))
    }

    fn harmless(spare: Option<PhysAddr>) -> Counted {
        (Kind::Replaced, fence(spare, Drain::Nothing))
    }

    fn clean(&self, at: PhysAddr, bytes: u64) {
        if let Some(bytes) = PhysRange::from_len(at, bytes) {
            self.mem.clean(bytes);
        }
    }

    fn barrier(&self) {
        self.mem.clean_barrier();
    }

    fn head(&self) -> Result<u64, IommuError> {
        self.control.regs.present64(reg::IQH)
    }

    fn index(head: u64, shape: RingShape) -> u64 {
        queue::OFFSET.of(head) >> shape.lg2_bytes
    }

    fn set_tail(&self, index: u64, shape: RingShape) {
        self.control.regs.write64(reg::IQT, index << shape.lg2_bytes);
    }

    fn stopped(&self, _: u64) -> Result<Option<Stop>, IommuError> {
        let regs = &self.control.regs;
        let seen = regs.present32(reg::FSTS)? & (fsts::IQE | fsts::ITE | fsts::ICE);
        if seen == 0 {
            return Ok(None);
        }
        let record = regs.present64(reg::IQERCD)?;
        let code = iqercd::IQEI.of(record) as u32;
        let stream = iqercd::ITESID.of(record) as u16;
        Ok(Some(Stop {
            seen,
            refused: (seen & fsts::IQE != 0).then_some(code),
            silent: (seen & fsts::ITE != 0).then_some((stream != 0).then_some(stream)),
        }))
    }

    /// A unit that was reset in between has forgotten its queue.
    fn reason(&self, error: IommuError) -> IommuError {
        match error {
            IommuError::TimedOut { .. } | IommuError::Nonsense { .. } => {
                match self.control.status() {
                    Ok(status) if status & command::QIE == 0 => IommuError::Stopped,
                    Ok(_) => error,
                    Err(gone) => gone,
                }
            }
            error => error,
        }
    }

    fn resume(&self, stop: Stop, shape: RingShape, _: u64, tail: u64) -> Result<(), IommuError> {
        self.control.regs.write32(reg::FSTS, stop.seen);
        self.set_tail(tail, shape);
        Ok(())
    }
}

/// Device-TLB invalidations of one plan beyond which each device forgets everything instead.
const MAX_DEVICE_EXTENTS: usize = 64;

/// Commands to the unit itself that are kept in case they have to be sent again. Of more than
/// these the unit forgets everything instead.
const MAX_KEPT: usize = 16;

/// Ranges that device TLBs have to forget, once the unit itself has.
#[derive(Debug, Default)]
struct Owed {
    extents: ArrayVec<(InvalTag, Extent), MAX_DEVICE_EXTENTS>,
    /// Set if there were too many contexts to name: all devices forget everything.
    everything: bool,
}

impl Owed {
    fn add(&mut self, context: InvalTag, extent: Extent) {
        let extent = extent.without_hint();
        let known = |all: &[(InvalTag, Extent)]| {
            let covers = |of: &Extent| *of == Extent::All || *of == extent;
            all.iter().any(|(of, there)| *of == context && covers(there))
        };
        if known(&self.extents) {
            return;
        }
        if self.extents.is_full() {
            self.collapse();
        }
        if !known(&self.extents) && self.extents.try_push((context, extent)).is_err() {
            self.everything = true;
        }
    }

    /// Each context once, with all of it.
    fn collapse(&mut self) {
        let mut whole = ArrayVec::<_, MAX_DEVICE_EXTENTS>::new();
        for &(context, _) in &self.extents {
            let all = (context, Extent::All);
            if !whole.contains(&all) {
                // As many as there were at most.
                let _ = whole.try_push(all);
            }
        }
        self.extents = whole;
    }

    fn is_something(&self) -> bool {
        self.everything || !self.extents.is_empty()
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Calls `each` with every debt and the tag with its devices.
fn each_owed<P: UnitPlatform>(
    core: &Core<P>,
    owed: &Owed,
    mut each: impl FnMut(&TagUsers, Extent) -> Result<(), IommuError>,
) -> Result<(), IommuError> {
    if owed.everything {
        let mut first = Some(0);
        while let Some((context, tag)) = first.and_then(|first| core.next_tag(first)) {
            each(&tag, Extent::All)?;
            first = context.get().checked_add(1);
        }
        return Ok(());
    }
    let mut last: Option<(InvalTag, Option<Arc<TagUsers>>)> = None;
    for &(context, extent) in &owed.extents {
        let tag = match last.take() {
            Some((of, tag)) if of == context => tag,
            _ => core.tag_of(context),
        };
        if let Some(tag) = &tag {
            each(tag, extent)?;
        }
        last = Some((context, tag));
    }
    Ok(())
}

/// The devices that a plan asks.
struct Devices<'a, P: UnitPlatform> {
    core: &'a Core<P>,
    owed: &'a Owed,
}

impl<P: UnitPlatform> Devices<'_, P> {
    fn count(&self, counts: impl Fn(u16) -> bool) -> usize {
        let mut count = 0;
        let counted = each_owed(self.core, self.owed, |tag, _| {
            let these = tag.remotes.iter().filter(|remote| counts(remote.stream));
            count += these.count();
            Ok(())
        });
        counted.map_or(0, |()| count)
    }
}

/// Steps of a plan being turned into requests. Those to the unit itself go to its ring with the sync
/// behind them.
struct Paying<'a, P: UnitPlatform> {
    core: &'a Core<P>,
    ticket: Option<Ticket>,
    /// Commands since the last sync.
    commands: ArrayVec<Counted, MAX_KEPT>,
    /// Commands before them, of which it is known only which kinds there were.
    before: SentBefore,
    owed: Owed,
}

/// Kinds of commands that the ring has, and that no sync has confirmed.
#[derive(Clone, Copy, Debug, Default)]
struct SentBefore {
    translations: bool,
    configuration: bool,
}

impl<'a, P: UnitPlatform> Paying<'a, P> {
    fn new(core: &'a Core<P>) -> Self {
        let (ticket, commands) = (None, ArrayVec::new());
        let (before, owed) = (SentBefore::default(), Owed::default());
        Self { core, ticket, commands, before, owed }
    }

    fn send(&mut self, request: Request) -> Result<(), IommuError> {
        let control = &self.core.control;
        match &self.core.way {
            Way::Ring(ring) => {
                if self.commands.is_full() {
                    self.make_room(ring)?;
                }
                self.commands.push(request.counted(&control.features));
                Ok(())
            }
            Way::Direct(direct) => direct.carry_out(control, request),
        }
    }

    /// Hands the commands to the ring.
    #[cold]
    fn make_room(&mut self, ring: &Ring<P>) -> Result<(), IommuError> {
        for (kind, _) in &self.commands {
            match kind {
                Kind::ContextGlobal | Kind::PasidCache => self.before.configuration = true,
                _ => self.before.translations = true,
            }
        }
        ring.place(self.core, &mut self.ticket, &self.commands, BatchEnd::More)?;
        self.commands.clear();
        Ok(())
    }

    /// Tells the devices and waits; all of it once more if another device's time-out came between.
    fn sync(&mut self) -> Result<(), IommuError> {
        for _ in 0..ATTEMPTS {
            let outcome = match &self.core.way {
                _ if self.owed.is_something() => self.sync_with_devices()?,
                Way::Ring(ring) => {
                    ring.finish(self.core, &mut self.ticket, &self.commands, &|_| false)?
                }
                Way::Direct(_) => Outcome::Done,
            };
            if outcome == Outcome::Done {
                self.commands.clear();
                self.before = SentBefore::default();
                self.owed.clear();
                return Ok(());
            }
            self.begin_again()?;
        }
        Err(IommuError::Interrupted { attempts: ATTEMPTS })
    }

    /// Has the devices that are owed something forget it, once the unit has, and waits.
    #[cold]
    fn sync_with_devices(&mut self) -> Result<Outcome, IommuError> {
        let core = self.core;
        let told = match (Devices { core, owed: &self.owed }).count(|_| true) {
            0 => false,
            count if count > MAX_DEVICE_EXTENTS => {
                self.owed.collapse();
                true
            }
            _ => true,
        };
        let owed = &self.owed;
        let mut sending = Sending::new(core, &mut self.ticket);
        for command in &self.commands {
            sending.push(*command)?;
        }
        if told {
            sending.fence(Drain::Nothing)?;
            each_owed(core, owed, |tag, extent| {
                let mut all = tag.remotes.iter().flat_map(|remote| remote.forget(extent));
                all.try_for_each(|request| sending.send(request))
            })?;
        }
        let devices = Devices { core, owed };
        sending.wait(&|stream| devices.count(|of| stream.is_none_or(|stream| of == stream)) != 0)
    }

    /// Makes commands of those since the last sync, or more.
    #[cold]
    fn begin_again(&mut self) -> Result<(), IommuError> {
        self.ticket = None;
        let SentBefore { translations, configuration } = self.before;
        let kept = core::mem::take(&mut self.commands);
        if configuration {
            self.send_configuration()?;
        }
        let Way::Ring(ring) = &self.core.way else { return Ok(()) };
        for command in kept {
            if self.commands.is_full() {
                self.make_room(ring)?;
            }
            self.commands.push(command);
        }
        match translations {
            true => self.send(Request::Iotlb(Iotlb::All)),
            false => Ok(()),
        }
    }

    fn send_configuration(&mut self) -> Result<(), IommuError> {
        self.send(Request::Contexts(Contexts::All))?;
        match self.core.control.features.has.contains(VtdFeature::SCALABLE) {
            true => self.send(Request::PasidCacheAll),
            false => Ok(()),
        }
    }

    /// Everything that holds translations that `command` names forgets them.
    fn invalidate(&mut self, command: Command) -> Result<(), IommuError> {
        let features = &self.core.control.features;
        let hint = |depth| match depth {
            Depth::LeafOnly => Hint::LeavesOnly,
            Depth::AllLevels => Hint::AllLevels,
        };
        let (context, start, lg2, hint) = match command {
            Command::Page { context, iova, size, depth } => {
                (context, iova.get(), size.lg2() - 12, hint(depth))
            }
            Command::Range { context, run, granule, depth } => {
                let (start, lg2) = aligned(run, granule);
                (context, start, lg2, hint(depth))
            }
            // More than any page.
            Command::Context { context } => (context, 0, u32::MAX, Hint::AllLevels),
            Command::Global => return self.send(Request::Iotlb(Iotlb::All)),
            Command::Configuration { .. } => return self.send_configuration(),
        };
        let selective = features.has.contains(VtdFeature::PAGE_SELECTIVE);
        let extent = match selective && lg2 <= u32::from(features.max_mask) {
            true => Extent::Pages {
                start: start >> (12 + lg2) << (12 + lg2),
                lg2_pages: lg2 as u8,
                hint,
            },
            false => Extent::All,
        };
        let (domain, stage) = split_id(context);
        if stage == Stage::Second {
            self.send(Request::Iotlb(iotlb(domain, extent)))?;
        }
        match self.core.tag_of(context) {
            Some(tag) => self.invalidate_users(context, &tag, extent),
            None => Ok(()),
        }
    }

    /// PASIDs, domains and devices that use `context` forget `extent`.
    fn invalidate_users(
        &mut self,
        context: InvalTag,
        tag: &TagUsers,
        extent: Extent,
    ) -> Result<(), IommuError> {
        let (domain, stage) = split_id(context);
        if stage == Stage::First {
            self.pasids(domain, tag, extent)?;
        }
        // Translations of a nested domain are tagged by first-stage addresses, so no range of the second
        // stage names them: the whole domain is invalidated.
        for &domain in &tag.nested {
            self.send(Request::Iotlb(Iotlb::Domain { domain }))?;
            let context = context_id(domain, Stage::First);
            if let Some(tag) = self.core.tag_of(context) {
                self.pasids(domain, &tag, Extent::All)?;
                self.owe(context, &tag, Extent::All);
            }
        }
        self.owe(context, tag, extent);
        Ok(())
    }

    /// Each PASID of a first stage forgets `extent`.
    fn pasids(&mut self, domain: u16, tag: &TagUsers, extent: Extent) -> Result<(), IommuError> {
        let mut before = None;
        for &pasid in &tag.pasids {
            if before.replace(pasid) != Some(pasid) {
                self.send(Request::PasidIotlb { domain, pasid, extent })?;
            }
        }
        Ok(())
    }

    fn owe(&mut self, context: InvalTag, tag: &TagUsers, extent: Extent) {
        if !tag.remotes.is_empty() {
            self.owed.add(context, extent);
        }
    }
}

/// The smallest aligned power of two of 4 KiB pages that covers `run`: start and exponent.
fn aligned(run: Run, granule: PageSize) -> (u64, u32) {
    let range = run.range(granule);
    let differ = (range.start().get() ^ range.last().get()) >> 12;
    (range.start().get(), 64 - differ.leading_zeros())
}

fn iotlb(domain: u16, extent: Extent) -> Iotlb {
    match extent {
        Extent::All => Iotlb::Domain { domain },
        Extent::Pages { start, lg2_pages, hint } => Iotlb::Pages { domain, start, lg2_pages, hint },
    }
}

impl<P: UnitPlatform> Core<P> {
    /// Has all device TLBs forget everything, and waits.
    pub(super) fn forget_devices(&self) -> Result<(), IommuError> {
        let mut paying = Paying::new(self);
        paying.owed.everything = matches!(self.way, Way::Ring(_));
        paying.sync()
    }
}

impl<P: UnitPlatform> InvalidationQueue for Core<P> {
    type Error = IommuError;

    /// *Context.* Atomic: waits for the hardware; uses no heap.
    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        if self.operation.is_off() {
            return Ok(());
        }
        let mut paying = Paying::new(self);
        for step in steps {
            match step {
                Step::FlushWriteBuffer => self.control.flush_write_buffer()?,
                Step::Invalidate(command) => paying.invalidate(command)?,
                Step::Sync => paying.sync()?,
            }
        }
        Ok(())
    }

    fn pay_by(&self, command: Command, _: TablesLeft) -> Result<(), IommuError> {
        if self.operation.is_off() {
            return Ok(());
        }
        let mut paying = Paying::new(self);
        paying.invalidate(command)?;
        paying.sync()
    }
}

impl<P: UnitPlatform> TagPool for VtdQueue<P> {
    /// *Context.* Task.
    fn release(&self, context: InvalTag) -> Result<(), IommuError> {
        let (domain, stage) = split_id(context);
        let tag = self.0.tag_of(context).unwrap_or_default();
        let all = Request::Iotlb(Iotlb::Domain { domain });
        let pasids = tag.pasids.iter().map(|&pasid| Request::PasidIotlb {
            domain,
            pasid,
            extent: Extent::All,
        });
        let translations: Vec<_> = pasids.chain([all]).collect();
        let remotes = tag.remotes.iter();
        let remote: Vec<_> = remotes.flat_map(|r| r.forget(Extent::All)).collect();
        self.0.run(&[&translations, &remote])?;
        let gone = self.0.tags.lock().remove(context.get());
        drop(gone);
        let mut first = match stage {
            Stage::First => Some(0),
            Stage::Second => None,
        };
        while let Some((parent, tag)) = first.and_then(|first| self.0.next_tag(first)) {
            if tag.nested.contains(&domain) {
                let other = |of: &u16| *of != domain;
                self.0.tag(parent, |tag| tag.nested.retain(other));
            }
            first = parent.get().checked_add(1);
        }
        self.0.ids.give_back(domain.into());
        Ok(())
    }
    /// The first stage is always marked.
    fn track_dirty(&self, context: InvalTag, marks: DirtyTracking) -> Result<(), IommuError> {
        match split_id(context).1 {
            Stage::First => Ok(()),
            Stage::Second => self.0.switch_marks(context, marks),
        }
    }
}
