//! State that all handles to a unit share, and the ways on which requests are sent: registers,
//! memory, identifiers, and the PASIDs and devices under each identifier.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 11.4.4 and
//! 11.4.5 (one command at a time, repeating the bits that are on), 6.8 (write buffer), 11.4.7
//! (protected memory). Stages of an invalidation are told apart by waits with a fence: configuration
//! before translations before device TLBs (6.5.3), so that nothing is cached again from stale entries.
//! Units without a queue take one invalidation at a time through registers, each awaited (6.5.1,
//! 11.4.8.2, 11.4.9). They may do more than was asked, never less, and refuse while a queue is on.

use super::command::{CommandKind, Contexts, Counted, Counters, Drain, Iotlb, Request, fence};
use super::features::{Features, VtdFeature};
use super::tags::TagUsers;
use crate::chassis::{
    BatchEnd, Operation, Outcome, Present, Ring, Sorted, Submitters, Ticket, wait_for, wait_until,
    wait_while_it_works, with_room,
};
use crate::ids::Ids;
use alloc::sync::Arc;
use arrayvec::ArrayVec;
use portolan::addr::InvalTag;
use portolan::iommu::{Awaited, IommuError};
use portolan::platform::{Guarded, Mmio, Nanos, UnitPlatform};
use portolan_spec::vtd::Bits;
use portolan_spec::vtd::descriptor;
use portolan_spec::vtd::reg::{self, ccmd, command, pmen, prs};

/// New state of a control bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Switch {
    On,
    Off,
}

/// A control bit that was written, and its value in the status once the unit has followed.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    bit: u32,
    wanted: u32,
}

/// Registers, clock and identification of a unit.
pub(super) struct VtdControl<P: UnitPlatform> {
    pub(super) regs: P::Registers,
    pub(super) clock: P,
    pub(super) limit: Nanos,
    pub(super) features: Features,
    pub(super) counters: Counters,
    /// The last command given, until the unit has followed: the next one may not come before.
    under_way: Guarded<P, Option<UnderWay>>,
}

impl<P: UnitPlatform> VtdControl<P> {
    pub(super) fn new(regs: P::Registers, clock: P, limit: Nanos, features: Features) -> Self {
        Self {
            regs,
            clock,
            limit,
            features,
            counters: Counters::default(),
            under_way: Guarded::default(),
        }
    }

    /// Forgets a command that a unit without power will not follow any more.
    pub(super) fn begin_again(&self) {
        *self.under_way.lock() = None;
    }

    /// Waits until the bits `mask` of a 32-bit register are `wanted`.
    pub(super) fn wait32(
        &self,
        offset: usize,
        mask: u32,
        wanted: u32,
        awaited: Awaited,
    ) -> Result<(), IommuError> {
        let reached = || Ok(self.regs.present32(offset)? & mask == wanted);
        wait_until(&self.clock, self.limit, awaited, reached)
    }

    /// Control bits that are on.
    pub(super) fn status(&self) -> Result<u32, IommuError> {
        self.regs.present32(reg::GSTS)
    }

    /// Gives the command that `value` makes of the control bits that are on, unless it is `None`,
    /// and waits until the status shows it. Callers that come while the unit follows another
    /// command wait for the unit, not for the caller that gave that: they may have interrupted it.
    fn command(
        &self,
        shown: UnderWay,
        awaited: Awaited,
        value: impl Fn(u32) -> Option<u32>,
    ) -> Result<(), IommuError> {
        let give = || {
            let mut under_way = self.under_way.lock();
            let status = self.status()?;
            if let Some(UnderWay { bit, wanted }) = *under_way {
                if status & bit != wanted {
                    return Ok(None);
                }
                *under_way = None;
            }
            let value = value(status & command::STICKY);
            if let Some(value) = value {
                self.regs.write32(reg::GCMD, value);
                *under_way = Some(shown);
            }
            Ok(Some(value.is_some()))
        };
        let given = wait_for(&self.clock, self.limit, awaited, give)?;
        if given { self.wait32(reg::GSTS, shown.bit, shown.wanted, awaited) } else { Ok(()) }
    }

    /// Turns one control bit on or off, and waits until it is.
    pub(super) fn switch(&self, bit: u32, to: Switch) -> Result<(), IommuError> {
        let wanted = match to {
            Switch::On => bit,
            Switch::Off => 0,
        };
        let value = |sticky: u32| (sticky & bit != wanted).then_some(sticky & !bit | wanted);
        self.command(UnderWay { bit, wanted }, Awaited::Control, value)
    }

    /// Gives the one-shot command `bit`, and waits until the status shows `wanted` of it.
    fn once(&self, bit: u32, wanted: u32, awaited: Awaited) -> Result<(), IommuError> {
        let value = |sticky| Some(sticky | bit);
        self.command(UnderWay { bit, wanted }, awaited, value)
    }

    /// Has the unit take over the interrupt table at `address`, with its size and mode.
    pub(super) fn set_interrupt_table(&self, address: u64) -> Result<(), IommuError> {
        self.regs.write64(reg::IRTA, address);
        self.once(command::SIRTP, command::SIRTP, Awaited::Control)?;
        self.regs.holds(reg::IRTA, address)
    }

    /// Has the unit take over the root table at `address`, with its mode.
    pub(super) fn set_root(&self, address: u64) -> Result<(), IommuError> {
        self.regs.write64(reg::RTADDR, address);
        self.once(command::SRTP, command::SRTP, Awaited::Control)?;
        self.regs.holds(reg::RTADDR, address)
    }

    /// Drains the write buffer, if there is one.
    pub(super) fn flush_write_buffer(&self) -> Result<(), IommuError> {
        if !self.features.has.contains(VtdFeature::WRITE_BUFFER) {
            return Ok(());
        }
        self.counters.add(CommandKind::WriteBuffer);
        self.once(command::WBF, 0, Awaited::WriteBuffer)
    }

    /// Turns the protected memory regions off, which firmware may have left on: translation
    /// protects from now on.
    pub(super) fn unprotect_memory(&self) -> Result<(), IommuError> {
        if !self.features.has.contains(VtdFeature::PROTECTED_MEMORY) {
            return Ok(());
        }
        let now = self.regs.present32(reg::PMEN)?;
        if now & (pmen::EPM | pmen::PRS) == 0 {
            return Ok(());
        }
        self.regs.write32(reg::PMEN, now & !pmen::EPM);
        self.wait32(reg::PMEN, pmen::PRS, 0, Awaited::Control)
    }
}

/// Refusals that are kept for callers that have yet to ask for them.
const MAX_REFUSALS: usize = 16;

/// A command that was given, counted since the start.
type Number = u64;

/// Command in a register.
#[derive(Clone, Copy, Debug)]
struct RegisterCommand {
    offset: usize,
    value: u64,
    /// Field of the register that falls when the command is done.
    busy: Bits,
    /// Field with the granularity of the command that was done; 0: refused.
    done: Bits,
}

/// The command that the unit is at.
#[derive(Clone, Copy, Debug)]
struct Running {
    number: Number,
    command: RegisterCommand,
}

#[derive(Debug, Default)]
struct RegisterCommands {
    /// The last command given.
    last: Number,
    /// The command whose outcome was not read yet.
    running: Option<Running>,
    /// Commands that were refused.
    refused: ArrayVec<Number, MAX_REFUSALS>,
    /// Up to this one any may have been refused: there was no room to say which.
    unsure: Number,
}

impl RegisterCommands {
    /// Reads the outcome of the running command, if it is done; tells if none is running any more.
    fn finish(&mut self, regs: &impl Mmio) -> Result<bool, IommuError> {
        let Some(running) = self.running else {
            return Ok(true);
        };
        let value = regs.present64(running.command.offset)?;
        if running.command.busy.of(value) != 0 {
            return Ok(false);
        }
        self.running = None;
        let refused = running.command.done.of(value) == 0;
        if refused && self.refused.try_push(running.number).is_err() {
            self.refused.clear();
            self.unsure = running.number;
        }
        Ok(true)
    }

    /// Outcome of a command in the register at `offset` that is done.
    fn outcome(&mut self, number: Number, offset: usize) -> Result<(), IommuError> {
        let at = self.refused.iter().position(|of| *of == number);
        at.map(|at| self.refused.swap_remove(at));
        if at.is_some() || number <= self.unsure {
            Err(IommuError::RefusedByRegister { offset })
        } else {
            Ok(())
        }
    }
}

/// Commands through registers. A caller that finds the unit at another's command waits for the
/// unit, and reads the outcome on the other's behalf: it may have interrupted it.
pub(super) struct Direct<P: UnitPlatform> {
    state: Guarded<P, RegisterCommands>,
}

impl<P: UnitPlatform> Default for Direct<P> {
    fn default() -> Self {
        Self { state: Guarded::default() }
    }
}

impl<P: UnitPlatform> Direct<P> {
    /// Invalidates part of the context cache.
    fn contexts(&self, control: &VtdControl<P>, what: Contexts) -> Result<(), IommuError> {
        let (kind, asked, fields) = match what {
            Contexts::All => (CommandKind::ContextGlobal, 1, 0),
            Contexts::Device { domain, stream } => (
                CommandKind::ContextDevice,
                3,
                ccmd::DID.at(domain.into()) | ccmd::SID.at(stream.into()),
            ),
        };
        let value = ccmd::ICC.mask() | ccmd::CIRG.at(asked) | fields;
        let offset = reg::CCMD;
        let order = RegisterCommand { offset, value, busy: ccmd::ICC, done: ccmd::CAIG };
        self.run(control, kind, None, order)
    }

    /// Invalidates part of the IOTLB.
    fn iotlb(&self, control: &VtdControl<P>, what: Iotlb) -> Result<(), IommuError> {
        let (kind, asked, domain, address) = match what {
            Iotlb::All => (CommandKind::IotlbGlobal, 1, 0, None),
            Iotlb::Domain { domain } => (CommandKind::IotlbDomain, 2, domain, None),
            Iotlb::Pages { domain, start, lg2_pages, hint } => {
                let fields = descriptor::AM.at(lg2_pages.into()) | descriptor::IH.at(hint.bit());
                (CommandKind::IotlbPages, 3, domain, Some(start | fields))
            }
        };
        let has = control.features.has;
        let drain = |flag, bits: Bits| bits.at(has.contains(flag).into());
        let value = reg::iotlb::IVT.mask()
            | reg::iotlb::IIRG.at(asked)
            | reg::iotlb::DID.at(domain.into())
            | drain(VtdFeature::DRAIN_READS, reg::iotlb::DR)
            | drain(VtdFeature::DRAIN_WRITES, reg::iotlb::DW);
        let base = control.features.iotlb;
        let address = address.map(|address| (base, address));
        let (busy, done) = (reg::iotlb::IVT, reg::iotlb::IAIG);
        let order = RegisterCommand { offset: base + 8, value, busy, done };
        self.run(control, kind, address, order)
    }

    /// Carries out `request`, as far as registers can.
    pub(super) fn carry_out(
        &self,
        control: &VtdControl<P>,
        request: Request,
    ) -> Result<(), IommuError> {
        match request {
            Request::Contexts(what) => self.contexts(control, what),
            Request::Iotlb(what) => self.iotlb(control, what),
            _ => Err(IommuError::Unsupported),
        }
    }

    /// Writes an address, if any, then a command, and waits for it to be done.
    fn run(
        &self,
        control: &VtdControl<P>,
        kind: CommandKind,
        address: Option<(usize, u64)>,
        order: RegisterCommand,
    ) -> Result<(), IommuError> {
        let RegisterCommand { offset, value, busy, .. } = order;
        let regs = &control.regs;
        let awaited = Awaited::Invalidation;
        let progress = || Ok(self.state.lock().last);
        let (clock, limit) = (&control.clock, control.limit);
        let give = || {
            let mut state = self.state.lock();
            if control.status()? & command::QIE != 0 {
                return Err(IommuError::Unsupported);
            }
            // The previous user of the unit may have left a command under way.
            if !state.finish(regs)? || busy.of(regs.read64(offset)) != 0 {
                return Ok(None);
            }
            if let Some((offset, address)) = address {
                regs.write64(offset, address);
            }
            control.counters.add(kind);
            regs.write64(offset, value);
            state.last += 1;
            state.running = Some(Running { number: state.last, command: order });
            Ok(Some(state.last))
        };
        let give = || give().transpose();
        let number = wait_while_it_works(clock, limit, awaited, give, progress)?;
        let look = || {
            let mut state = self.state.lock();
            if state.running.is_some_and(|of| of.number == number) && !state.finish(regs)? {
                return Ok(None);
            }
            state.outcome(number, offset).map(Some)
        };
        let look = || look().transpose();
        wait_while_it_works(clock, limit, awaited, look, progress)
    }
}

/// The way that invalidations take.
pub(super) enum Way<P: UnitPlatform> {
    Ring(Ring<P>),
    Direct(Direct<P>),
}

/// Shared by the unit, its handles and its domains.
pub(super) struct Core<P: UnitPlatform> {
    pub(super) control: VtdControl<P>,
    pub(super) mem: P::Memory,
    pub(super) way: Way<P>,
    pub(super) ids: Ids<P>,
    pub(super) tags: Guarded<P, Sorted<u32, Arc<TagUsers>>>,
    pub(super) operation: Operation,
    pub(super) submitters: Submitters<P>,
}

impl<P: UnitPlatform> Core<P> {
    /// The CPUs that submit.
    pub(super) fn cpus(&self) -> &P {
        &self.control.clock
    }

    pub(super) fn operation(&self) -> &Operation {
        &self.operation
    }

    /// Changes the data under `context`. Memory is taken and given back outside the lock, so
    /// another change may come in between, and this one is made again.
    pub(super) fn tag(&self, context: InvalTag, change: impl Fn(&mut TagUsers)) {
        loop {
            let old = self.tag_of(context);
            let mut new = old.as_deref().cloned().unwrap_or_default();
            change(&mut new);
            let new = Arc::new(new);
            let made = with_room(&self.tags, Sorted::list, |tags| {
                let same = match (tags.get(context.get()), &old) {
                    (Some(now), Some(old)) => Arc::ptr_eq(now, old),
                    (now, old) => now.is_none() && old.is_none(),
                };
                if same { Ok(tags.insert(context.get(), new)) } else { Err(new) }
            });
            if made.is_ok() {
                return;
            }
        }
    }

    pub(super) fn tag_of(&self, context: InvalTag) -> Option<Arc<TagUsers>> {
        self.tags.lock().get(context.get()).cloned()
    }

    /// The first context from `first` with data, and its data.
    pub(super) fn next_tag(&self, first: u32) -> Option<(InvalTag, Arc<TagUsers>)> {
        let tags = self.tags.lock();
        let (id, tag) = tags.behind(|id| id < first).next()?;
        Some((InvalTag::new(*id), Arc::clone(tag)))
    }

    /// Removes from the data under `context`, which takes no memory if no other caller is looking.
    pub(super) fn untag(&self, context: InvalTag, change: impl Fn(&mut TagUsers)) {
        let here = {
            let mut tags = self.tags.lock();
            let tag = tags.get_mut(context.get()).and_then(Arc::get_mut);
            tag.map(&change)
        };
        if here.is_none() {
            self.tag(context, change);
        }
    }

    /// A free domain identifier.
    pub(super) fn take_id(&self) -> Result<u16, IommuError> {
        let id = self.ids.take().ok_or(IommuError::OutOfContexts)?;
        u16::try_from(id).map_err(|_| IommuError::OutOfContexts)
    }
}

/// Number of times that a request is submitted which another device's time-out interrupts, each a
/// different one.
pub(super) const ATTEMPTS: u32 = 16;

impl<P: UnitPlatform> Core<P> {
    /// Carries out `stages` one after another, each complete before the next begins, and waits.
    pub(super) fn run(&self, stages: &[&[Request]]) -> Result<(), IommuError> {
        self.run_to(stages, Drain::Nothing)
    }

    /// As [`Core::run`], to another ending. After [`Drain::PageRequests`] no page request that a device
    /// sent before is still on its way to the queue in memory (7.10): if the queue had no room for
    /// one, it has to be emptied, and everything is done once more.
    pub(super) fn run_to(&self, stages: &[&[Request]], drain: Drain) -> Result<(), IommuError> {
        for _ in 0..ATTEMPTS {
            self.run_once(stages, drain)?;
            if drain == Drain::Nothing || !self.has_lost_requests()? {
                return Ok(());
            }
            // For the reader of the page requests.
            let has_room = || Ok(!self.has_lost_requests()?);
            wait_until(&self.control.clock, self.control.limit, Awaited::Turn, has_room)?;
        }
        let (awaited, waited) = (Awaited::Turn, Nanos::default());
        Err(IommuError::TimedOut { awaited, waited })
    }

    /// Tells if page requests were lost since they were last all read.
    fn has_lost_requests(&self) -> Result<bool, IommuError> {
        Ok(self.control.regs.present32(reg::PRS)? & prs::PRO != 0)
    }

    fn run_once(&self, stages: &[&[Request]], drain: Drain) -> Result<(), IommuError> {
        if self.operation.is_off() {
            return Ok(());
        }
        for attempt in 0..ATTEMPTS {
            let mut ticket = None;
            let mut sending = Sending::new(self, &mut ticket);
            // An abort takes waits. A second answer to the same request would be one too many.
            let again =
                |request: &Request| attempt == 0 || !matches!(request, Request::Response { .. });
            if sending.all(stages, drain, again)? == Outcome::Done {
                return Ok(());
            }
        }
        Err(IommuError::Interrupted { attempts: ATTEMPTS })
    }
}

/// Commands handed over at a time.
const BATCH: usize = 16;

/// Requests under way from one caller.
pub(super) struct Sending<'a, P: UnitPlatform> {
    core: &'a Core<P>,
    ticket: &'a mut Option<Ticket>,
    batch: ArrayVec<Counted, BATCH>,
}

impl<'a, P: UnitPlatform> Sending<'a, P> {
    /// Requests behind those of `ticket`.
    pub(super) fn new(core: &'a Core<P>, ticket: &'a mut Option<Ticket>) -> Self {
        Self { core, ticket, batch: ArrayVec::new() }
    }

    fn all(
        &mut self,
        stages: &[&[Request]],
        drain: Drain,
        wanted: impl Fn(&Request) -> bool,
    ) -> Result<Outcome, IommuError> {
        let asks = |request: &Request, stream: Option<u16>| {
            let of = request.asks();
            of.is_some() && (stream.is_none() || stream == of)
        };
        let asked = |stream| {
            let mut all = stages.iter().flat_map(|stage| stage.iter());
            all.any(|request| asks(request, stream))
        };
        let mut first = true;
        for stage in stages.iter().filter(|stage| !stage.is_empty()) {
            if !core::mem::take(&mut first) {
                self.fence(Drain::Nothing)?;
            }
            for request in stage.iter().filter(|request| wanted(request)) {
                self.send(*request)?;
            }
        }
        if first {
            return Ok(Outcome::Done);
        }
        if drain == Drain::PageRequests {
            self.fence(drain)?;
        }
        self.wait(&asked)
    }

    pub(super) fn send(&mut self, request: Request) -> Result<(), IommuError> {
        let control = &self.core.control;
        match &self.core.way {
            Way::Ring(_) => self.push(request.counted(&control.features)),
            Way::Direct(direct) => direct.carry_out(control, request),
        }
    }

    pub(super) fn push(&mut self, command: Counted) -> Result<(), IommuError> {
        if let (true, Way::Ring(ring)) = (self.batch.is_full(), &self.core.way) {
            ring.place(self.core, self.ticket, &self.batch, BatchEnd::More)?;
            self.batch.clear();
        }
        self.batch.push(command);
        Ok(())
    }

    /// Everything before is complete before anything after begins; with [`Drain::PageRequests`], page
    /// requests on their way are as well.
    pub(super) fn fence(&mut self, drain: Drain) -> Result<(), IommuError> {
        match &self.core.way {
            Way::Ring(ring) => self.push((CommandKind::Wait, fence(ring.spare(), drain))),
            Way::Direct(_) => Ok(()),
        }
    }

    /// Waits for everything that was sent. `asked` tells if a device was asked; any, if it is
    /// `None`.
    pub(super) fn wait(
        &mut self,
        asked: &dyn Fn(Option<u16>) -> bool,
    ) -> Result<Outcome, IommuError> {
        match &self.core.way {
            Way::Ring(ring) => ring.finish(self.core, self.ticket, &self.batch, asked),
            Way::Direct(_) => Ok(Outcome::Done),
        }
    }
}
