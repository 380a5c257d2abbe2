//! The command buffer, and the state that a unit shares with its domains: registers, the event log
//! and identifiers.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.4 and
//! 2.5.6 to 2.5.7. Commands complete in any order, except around a COMPLETION_WAIT that flushes. The
//! sync is a COMPLETION_WAIT that stores its number. A unit that meets a bad command stops fetching, and
//! logs the reason as an event; fetching is turned on again at the same place, behind a harmless
//! command. The lock of the control register, a leaf, is taken under the ring's
//! ([`crate::chassis::ring`]).

use super::command::AmdControl;
use super::command::{AmdKept, CommandKind as Kind, Counted, GuestUse};
use super::faults::Logs;
use super::features::AmdFeature;
use super::{command, refusal};
use crate::chassis::entry::At;
use crate::chassis::sets::{Members, Sets, Touched};
use crate::chassis::{Operation, Ring, RingShape, Stop, Submitters, Unit, Words};
use crate::ids::Ids;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64};
use portolan::addr::{InvalTag, IovaRange, PhysAddr};
use portolan::inval::{Command, InvalidationQueue, Step, TablesLeft};
use portolan::iommu::{IommuError, TagPool};
use portolan::platform::{Mmio, Nanos, TableMem, UnitPlatform};
use portolan::table::format::DirtyTracking;
use portolan_spec::amd::command::LG2_BYTES;
use portolan_spec::amd::entry::{DOMAIN, MARKS, MODE, TV, V};
use portolan_spec::amd::reg;
use portolan_spec::amd::reg::{control, status};

/// Exponents of the number of commands that a ring can have.
const LG2_SLOTS: core::ops::RangeInclusive<u32> = 8..=15;

/// A ring of `2^lg2_slots` commands (8 to 15), not yet handed to the unit.
pub(super) fn ring<P: UnitPlatform>(
    mem: &impl TableMem<AtomicU64>,
    lg2_slots: u32,
) -> Result<Ring<P>, IommuError> {
    let shape = RingShape {
        lg2_slots: lg2_slots.clamp(*LG2_SLOTS.start(), *LG2_SLOTS.end()),
        lg2_bytes: LG2_BYTES,
    };
    Ring::new(mem, shape, u64::MAX, true)
}

/// Value of the base register.
pub(super) fn address<P: UnitPlatform>(ring: &Ring<P>) -> u64 {
    ring.commands().at.get() | reg::LENGTH.at(ring.shape().lg2_slots.into())
}

impl<P: UnitPlatform> Unit for AmdShared<P> {
    type Memory = P::Memory;
    type Cpus = P;
    type Command = Counted;

    const TURN_BITS: u32 = 0;
    const INDEX_COMPLETES: bool = false;
    const ABORTS_SYNCS: bool = false;
    const HEAD: usize = reg::COMMAND_HEAD;
    const OVERWRITTEN: u32 = refusal::UNKNOWN;

    fn machine(&self) -> (&P::Memory, &P, Nanos) {
        (&self.control.mem, &self.control.clock, self.control.limit)
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
        let words = at.map_or_else(command::nothing, |at| command::store(at.get(), number.into()));
        (Kind::Wait, words)
    }

    fn harmless(_: Option<PhysAddr>) -> Counted {
        (Kind::Replaced, command::nothing())
    }

    fn head(&self) -> Result<u64, IommuError> {
        self.control.read(reg::COMMAND_HEAD)
    }

    fn index(head: u64, shape: RingShape) -> u64 {
        match reg::INDEX.of(head) {
            // QEMU shows the head behind the last slot before it shows it at the first.
            end if end == 1 << shape.lg2_slots => 0,
            index => index,
        }
    }

    fn set_tail(&self, index: u64, _: RingShape) {
        let regs = &self.control.regs;
        regs.write64(reg::COMMAND_TAIL, reg::INDEX.at(index));
    }

    fn stopped(&self, _: u64) -> Result<Option<Stop>, IommuError> {
        let control = &self.control;
        if control.read(reg::STATUS)? & status::COMMANDS_RUN != 0 {
            return Ok(None);
        }
        if control.read(reg::CONTROL)? & control::ENABLE == 0 {
            return Err(IommuError::Stopped);
        }
        Ok(Some(Stop { seen: 0, refused: Some(refusal::UNKNOWN), silent: None }))
    }

    fn why(&self, _: u32, at: PhysAddr) -> u32 {
        self.logs.events.of_command(&self.control, at.get())
    }

    fn resume(&self, _: Stop, shape: RingShape, head: u64, tail: u64) -> Result<(), IommuError> {
        let unit = &self.control;
        unit.switch(!control::COMMANDS, 0)?;
        unit.regs.write64(reg::COMMAND_HEAD, reg::INDEX.at(head));
        self.set_tail(tail, shape);
        unit.switch(u64::MAX, control::COMMANDS)
    }
}

/// Domains that there are.
pub(super) const DOMAINS: u32 = 1 << 16;
/// Domain identifier of tables in which nothing is mapped: the last one.
pub(super) const NOTHING: u16 = (DOMAINS - 1) as u16;
/// Domain identifier of streams that pass through. Identifier 0 stays in entries that block.
pub(super) const PASS: u16 = 1;
/// First identifier of a domain.
pub(super) const FIRST: u16 = 2;

/// Shared by the unit, its handles and its domains.
pub(super) struct AmdShared<P: UnitPlatform> {
    pub(super) control: AmdControl<P>,
    pub(super) queue: Ring<P>,
    pub(super) logs: Logs<P>,
    /// An entry that let its device send page requests was closed: the unit has answered since, and no
    /// caller has heard of it.
    pub(super) requests_cut: AtomicBool,
    /// Translations that devices keep, by the context that they are of.
    pub(super) atcs: Sets<P, InvalTag, AmdKept>,
    pub(super) ids: Ids<P>,
    /// Names of domains with guest tables.
    pub(super) guest_ids: Ids<P>,
    /// Tags of the translations of domains with guest tables.
    pub(super) guests: Sets<P, InvalTag, GuestUse>,
    /// Identifiers of guests' tables, by the context of the domain with the host tables below.
    pub(super) nested: Sets<P, InvalTag, u16>,
    /// Streams that the device table has entries for.
    pub(super) streams: u32,
    /// The first entry of the device table; the others follow.
    pub(super) entries: At,
    pub(super) submitters: Submitters<P>,
    pub(super) operation: Operation,
}

impl<P: UnitPlatform> AmdShared<P> {
    /// The CPUs that submit.
    pub(super) fn cpus(&self) -> &P {
        &self.control.clock
    }

    pub(super) fn operation(&self) -> &Operation {
        &self.operation
    }

    /// Submits `commands`, and waits until they are complete. Without commands there is nothing to
    /// wait for.
    pub(super) fn run(&self, commands: impl Iterator<Item = Counted>) -> Result<(), IommuError> {
        let mut commands = commands.fuse().peekable();
        match commands.peek() {
            Some(_) => self.queue.run(self, commands, &|_| false).map(drop),
            None => Ok(()),
        }
    }

    /// Forgets everything, entries of the device table included, and waits.
    pub(super) fn forget_everything(&self) -> Result<(), IommuError> {
        if self.control.features.has.contains(AmdFeature::INVALIDATE_ALL) {
            return self.run([command::all()].into_iter());
        }
        let streams = (0..self.streams).map(|stream| stream as u16);
        let entries = streams.map(command::device_entry);
        let domains = (0..DOMAINS).map(|domain| command::domain(domain as u16));
        self.run(entries.chain([command::fence()]).chain(domains))
    }

    /// A free domain identifier.
    pub(super) fn take_id(&self) -> Result<u16, IommuError> {
        let id = self.ids.take().ok_or(IommuError::OutOfContexts)?;
        u16::try_from(id).map_err(|_| IommuError::OutOfContexts)
    }
}

impl<P: UnitPlatform> AmdShared<P> {
    /// Makes devices forget a range, or everything, of what `kept` names, each time anew.
    pub(super) fn ask<I: Iterator<Item = AmdKept>>(
        &self,
        kept: impl Fn() -> I,
        range: Option<IovaRange>,
    ) -> Result<(), IommuError> {
        self.ask_by(|| kept().flat_map(|kept| kept.forget(range)))
    }

    /// Carries out `commands`, which devices answer. The unit goes on without a device that does not answer in
    /// time, and logs it; this is an error only if it happens once more, as the first time it may have been another
    /// caller's. Records that were lost may have been such.
    pub(super) fn ask_by<I: Iterator<Item = Counted>>(
        &self,
        commands: impl Fn() -> I,
    ) -> Result<(), IommuError> {
        for _ in 0..2 {
            let mut asking = commands().peekable();
            if asking.peek().is_none() {
                return Ok(());
            }
            self.logs.events.make_room(&self.control)?;
            let before = self.logs.events.silences_at_least(&self.control);
            self.queue.run(self, asking, &|_| false).map(drop)?;
            let silent = self.logs.events.silences_at_most(&self.control) > before
                || self.logs.events.log.has_overflown(&self.control)?;
            if !silent {
                return Ok(());
            }
        }
        Err(IommuError::DeviceSilent { stream: None })
    }

    /// Commands that make the unit forget all translations of guests' tables over the host tables of `context`. They
    /// are tagged by the guests' identifiers and addresses, so no range of the host's tells them.
    fn forget_nested(&self, context: InvalTag) -> impl Iterator<Item = Counted> {
        self.nested.members(context).map(command::domain)
    }

    /// As [`AmdShared::ask`], of one member and everything.
    pub(super) fn ask_one(&self, kept: AmdKept) -> Result<(), IommuError> {
        self.ask(|| core::iter::once(kept), None)
    }
}

crate::chassis::handle!(AmdQueue of AmdShared, AtomicU64);

/// End of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AmdRoundEnd {
    NotYet,
    /// With a sync.
    Sync,
    /// Because there was no room to note another domain.
    Full,
    /// There are no more steps.
    Exhausted,
    /// With a command for everything, which is a round of its own.
    Everything,
}

/// The commands up to the next sync.
struct AmdRound<'a, P: UnitPlatform> {
    shared: &'a AmdShared<P>,
    steps: &'a mut dyn Iterator<Item = Step>,
    /// A command for guest tables, and the tags that are still to be told.
    guest: Option<(Command, Members<'a, P, InvalTag, GuestUse>)>,
    /// A command for the next round.
    held: Option<Command>,
    touched: Touched<InvalTag>,
    ended: AmdRoundEnd,
}

/// Context and range of the translations that a command is about; all of them if `None`.
fn concerned(command: Command) -> Option<(InvalTag, Option<IovaRange>)> {
    match command {
        Command::Page { context, iova, size, .. } => {
            Some((context, Some(IovaRange::page(iova, size))))
        }
        Command::Range { context, run, granule, .. } => Some((context, Some(run.range(granule)))),
        Command::Context { context } => Some((context, None)),
        Command::Global | Command::Configuration { .. } => None,
    }
}

impl<P: UnitPlatform> Iterator for AmdRound<'_, P> {
    type Item = Counted;

    fn next(&mut self) -> Option<Counted> {
        while self.ended == AmdRoundEnd::NotYet {
            if let Some((command, tags)) = &mut self.guest {
                match tags.next().and_then(|tagged| command::guest(tagged, *command)) {
                    Some(command) => return Some(command),
                    None => self.guest = None,
                }
            }
            let held = self.held.take().map(Step::Invalidate);
            match held.or_else(|| self.steps.next()) {
                // There is no such buffer.
                Some(Step::FlushWriteBuffer) => {}
                Some(Step::Invalidate(what)) => {
                    let Some((context, range)) = concerned(what) else {
                        self.ended = AmdRoundEnd::Everything;
                        continue;
                    };
                    if !self.touched.has_room(context) {
                        self.held = Some(what);
                        self.ended = AmdRoundEnd::Full;
                        continue;
                    }
                    self.touched.touch(context, range);
                    if command::guest_name(context).is_some() {
                        self.guest = Some((what, self.shared.guests.members(context)));
                    } else if let Some(command) = command::invalidate(what) {
                        return Some(command);
                    }
                }
                Some(Step::Sync) => self.ended = AmdRoundEnd::Sync,
                None => self.ended = AmdRoundEnd::Exhausted,
            }
        }
        None
    }
}

impl<P: UnitPlatform> InvalidationQueue for AmdShared<P> {
    type Error = IommuError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        let mut held = None;
        loop {
            let mut round = AmdRound {
                shared: self,
                guest: None,
                steps: &mut *steps,
                held,
                touched: Touched::new(),
                ended: AmdRoundEnd::NotYet,
            };
            self.run(&mut round)?;
            let (touched, ended) = (round.touched, round.ended);
            held = round.held;
            self.run(touched.iter().flat_map(|(context, _)| self.forget_nested(context)))?;
            // Behind the unit, from whose caches a device might be answered otherwise.
            for (context, range) in touched.iter() {
                self.ask(|| self.atcs.members(context), range)?;
            }
            match ended {
                AmdRoundEnd::Everything => {
                    self.forget_everything()?;
                    self.ask(|| self.atcs.all(), None)?;
                }
                AmdRoundEnd::Exhausted => return Ok(()),
                AmdRoundEnd::Full | AmdRoundEnd::Sync | AmdRoundEnd::NotYet => {}
            }
        }
    }
}

impl<P: UnitPlatform> TagPool for AmdQueue<P> {
    fn release(&self, context: InvalTag) -> Result<(), IommuError> {
        if let Some(name) = command::guest_name(context) {
            // The last attachment that named it is forgotten with its PASID. A unit that completes nothing any more
            // keeps the tables all the same.
            self.0.operation.paid(self.0.run([command::fence()].into_iter()))?;
            self.0.guest_ids.give_back(name);
            return Ok(());
        }
        let domain = command::domain_of(context);
        let forgotten = self.0.run([command::domain(domain)].into_iter());
        self.0.operation.paid(forgotten)?;
        self.0.ids.give_back(domain.into());
        Ok(())
    }
    /// *Context.* Task: looks at every entry of the device table. An entry that means something else by the time that
    /// it is written stays as it is.
    fn track_dirty(&self, context: InvalTag, marks: DirtyTracking) -> Result<(), IommuError> {
        // The unit always marks guest tables.
        if command::guest_name(context).is_some() {
            return Ok(());
        }
        let (domain, bits) = (command::domain_of(context), command::marks(marks));
        let (mem, entries) = (&self.0.control.mem, self.0.entries);
        let nested: Vec<u16> = self.0.nested.members(context).collect();
        let mut commands = Vec::new();
        for stream in (0..=u16::MAX).take(self.0.streams as usize) {
            let at = At { first: usize::from(stream) * entries.words, ..entries };
            let ours = at.update(mem, |words| {
                let counts = V | TV;
                let tables = words[0] & counts == counts && MODE.of(words[0]) != 0;
                let id = DOMAIN.of(words[1]) as u16;
                let ours = tables && (id == domain || nested.contains(&id));
                ours.then_some(words[0] & !MARKS.mask() | bits)
            });
            if ours {
                commands.push(command::device_entry(stream));
            }
        }
        let forgotten = nested.into_iter().chain([domain]).map(command::domain);
        self.0.run(commands.into_iter().chain([command::fence()]).chain(forgotten))
    }
}
