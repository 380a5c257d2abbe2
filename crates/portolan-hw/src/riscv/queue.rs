//! The command queue, and the state that a unit shares with its domains: registers, the queues that
//! the unit fills, identifiers, and the devices that keep translations, by tag.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, sections "Command-queue CSR", "Command-Queue" and
//! "Guidelines for invalidations". The sync is an IOFENCE.C that stores its number; the head passes it
//! once all in front is complete, so that the index tells as well. A unit that meets a bad command stops
//! at it, and may have dropped commands in front of it that no IOFENCE.C has confirmed: the submitter of
//! the bad one is told, and all producers whose commands were under way submit them again. A device
//! that does not answer stops the unit at the IOFENCE.C that waited for it; with the bit cleared it
//! goes on. Devices are told once the unit has forgotten, as their new requests may otherwise be
//! answered from its caches.

use super::command::{self, CommandKind as Kind, Counted, RiscvControl, RiscvTag};
use super::faults::RecordQueue;
use super::refusal;
use crate::chassis::sets::{Atc, Sets, Touched};
use crate::chassis::{Operation, Outcome, Ring, RingShape, Stop, Submitters, Unit, Words};
use crate::ids::Ids;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use portolan::addr::{InvalTag, IovaRange, PhysAddr};
use portolan::inval::{Command, InvalidationQueue, Step, TablesLeft};
use portolan::iommu::{IommuError, TagPool};
use portolan::platform::{Cpus, Guarded, Mmio, Nanos, TableMem, UnitPlatform};
use portolan_spec::riscv::command::LG2_BYTES;
use portolan_spec::riscv::page_of;
use portolan_spec::riscv::reg::{self, LENGTH, queue};

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
pub(super) fn base<P: UnitPlatform>(ring: &Ring<P>) -> u64 {
    let length = LENGTH.at(u64::from(ring.shape().lg2_slots) - 1);
    page_of(ring.commands().at.get()) | length
}

impl<P: UnitPlatform> Unit for RiscvShared<P> {
    type Memory = P::Memory;
    type Cpus = P;
    type Command = Counted;

    const TURN_BITS: u32 = 0;
    const INDEX_COMPLETES: bool = true;
    const ABORTS_SYNCS: bool = true;
    const HEAD: usize = reg::COMMAND_HEAD;
    const OVERWRITTEN: u32 = refusal::ILLEGAL;

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
        let words = at.map_or_else(command::nothing, |at| command::store(at.get(), number));
        (Kind::Wait, words)
    }

    fn harmless(_: Option<PhysAddr>) -> Counted {
        (Kind::Replaced, command::nothing())
    }

    fn head(&self) -> Result<u64, IommuError> {
        Ok(self.control.read(reg::COMMAND_HEAD)?.into())
    }

    fn index(head: u64, _: RingShape) -> u64 {
        head
    }

    fn set_tail(&self, index: u64, _: RingShape) {
        let regs = &self.control.regs;
        regs.write32(reg::COMMAND_TAIL, index as u32);
    }

    fn stopped(&self, _: u64) -> Result<Option<Stop>, IommuError> {
        let status = self.control.read(reg::COMMAND_CONTROL)?;
        if status & queue::ON == 0 {
            return Err(IommuError::Stopped);
        }
        let seen = status & (queue::ILLEGAL | queue::MEMORY_FAULT | queue::TIME_OUT);
        let refused = [queue::ILLEGAL, queue::MEMORY_FAULT];
        Ok((seen != 0).then_some(Stop {
            seen,
            refused: refused.into_iter().find(|bit| seen & bit != 0),
            silent: Some(None),
        }))
    }

    fn resume(&self, stop: Stop, _: RingShape, _: u64, _: u64) -> Result<(), IommuError> {
        // While a change is under way nothing may be written: the next look finds it stopped still.
        if self.control.read(reg::COMMAND_CONTROL)? & queue::BUSY == 0 {
            let regs = &self.control.regs;
            regs.write32(reg::COMMAND_CONTROL, queue::ENABLE | stop.seen);
            if stop.seen & queue::TIME_OUT != 0 {
                self.silences.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

/// Number of times that everything is forgotten because others' refused commands may have undone
/// it.
const ATTEMPTS: u32 = 4;

/// Shared by the unit, its handles and its domains.
pub(super) struct RiscvShared<P: UnitPlatform> {
    pub(super) control: RiscvControl<P>,
    pub(super) queue: Ring<P>,
    pub(super) faults: RecordQueue<P>,
    pub(super) requests: Option<RecordQueue<P>>,
    pub(super) monitor: Monitor<P>,
    /// A context that let its device send requests was closed: the unit has answered since, and no
    /// caller has heard of it.
    pub(super) requests_cut: AtomicBool,
    /// Width of the numbers of devices in bits.
    pub(super) streams_lg2: u32,
    /// Devices with translations of their own, by the tag of the tables that those are of.
    pub(super) atcs: Sets<P, RiscvTag, Atc>,
    /// Number of times that the unit was set going again after a device that did not answer.
    pub(super) silences: AtomicU64,
    /// Tags of first stages (PSCID) and of second stages (GSCID). 0 stays in contexts without one.
    pub(super) firsts: Ids<P>,
    pub(super) seconds: Ids<P>,
    pub(super) submitters: Submitters<P>,
    pub(super) operation: Operation,
}

impl<P: UnitPlatform> RiscvShared<P> {
    /// The CPUs that submit.
    pub(super) fn cpus(&self) -> &P {
        &self.control.clock
    }

    pub(super) fn operation(&self) -> &Operation {
        &self.operation
    }

    /// Submits `commands`, and waits until they are complete. Without commands there is nothing to
    /// wait for. If others' commands that were refused may have taken some with them, everything is
    /// forgotten, which is more than any of them asked for.
    pub(super) fn run(&self, commands: impl Iterator<Item = Counted>) -> Result<(), IommuError> {
        let mut commands = commands.fuse().peekable();
        if commands.peek().is_none() {
            return Ok(());
        }
        let mut outcome = self.queue.run(self, commands, &|_| false)?;
        for _ in 0..ATTEMPTS {
            if outcome == Outcome::Done {
                return Ok(());
            }
            outcome = self.queue.run(self, everything(), &|_| false)?;
        }
        match outcome {
            Outcome::Done => Ok(()),
            Outcome::Again => Err(IommuError::Interrupted { attempts: ATTEMPTS }),
        }
    }

    /// Forgets everything, device contexts included, and waits.
    pub(super) fn forget_everything(&self) -> Result<(), IommuError> {
        self.run(everything())
    }

    /// Makes devices forget a range, or everything: those that `atcs` names, each time anew. A
    /// device is asked for one thing at a time, even if it could take more. The unit does not name
    /// the silent device: this is an error only if it happens once more, as the first time it may
    /// have been another's.
    pub(super) fn ask<I: Iterator<Item = Atc>>(
        &self,
        atcs: impl Fn() -> I,
        range: Option<IovaRange>,
    ) -> Result<(), IommuError> {
        let mut silent = None;
        for _ in 0..ATTEMPTS {
            let before = self.silences.load(Ordering::Relaxed);
            let (lg2, mut last) = (self.streams_lg2, None);
            let asking = atcs().flat_map(move |Atc { stream, pasid }| {
                let again = last.replace(stream) == Some(stream);
                let fence = again.then(command::fence);
                let to = command::DeviceSpace { stream, pasid, lg2 };
                fence.into_iter().chain([command::forget(to, range)])
            });
            let mut asking = asking.peekable();
            if asking.peek().is_none() {
                return Ok(());
            }
            if self.queue.run(self, asking, &|_| false)? == Outcome::Done {
                return Ok(());
            }
            if self.silences.load(Ordering::Relaxed) != before && silent.replace(()).is_some() {
                return Err(IommuError::DeviceSilent { stream: None });
            }
        }
        Err(IommuError::Interrupted { attempts: ATTEMPTS })
    }

    /// Has the devices that keep translations of `tag` forget a range of them, or all.
    pub(super) fn ask_all(
        &self,
        tag: RiscvTag,
        range: Option<IovaRange>,
    ) -> Result<(), IommuError> {
        self.ask(|| self.atcs.members(tag), range)
    }

    /// A free identifier of `ids`.
    pub(super) fn take(&self, ids: &Ids<P>) -> Result<u32, IommuError> {
        ids.take().ok_or(IommuError::OutOfContexts)
    }
}

/// Contexts first, and then translations, so that nothing is kept again by a stale context.
fn everything() -> impl Iterator<Item = Counted> {
    [command::devices(), command::fence()].into_iter().chain(command::translations())
}

crate::chassis::handle!(RiscvQueue of RiscvShared, AtomicU64);

/// End of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RiscvRoundEnd {
    NotYet,
    /// With a sync.
    Sync,
    /// Because there was no room to note another context.
    Full,
    /// There are no more steps.
    Exhausted,
    /// With a command for everything, which is a round of its own.
    Everything,
}

/// The commands up to the next sync.
struct RiscvRound<'a, P: UnitPlatform> {
    shared: &'a RiscvShared<P>,
    steps: &'a mut dyn Iterator<Item = Step>,
    /// A command for the next round.
    held: Option<Command>,
    touched: Touched<RiscvTag>,
    ended: RiscvRoundEnd,
}

/// Tag and range of the translations that a command is about; all of them if `None`.
fn concerned(command: Command) -> Option<(RiscvTag, Option<IovaRange>)> {
    let (context, range) = match command {
        Command::Page { context, iova, size, .. } => (context, Some(IovaRange::page(iova, size))),
        Command::Range { context, run, granule, .. } => (context, Some(run.range(granule))),
        Command::Context { context } => (context, None),
        Command::Global | Command::Configuration { .. } => return None,
    };
    Some((RiscvTag::of(context), range))
}

impl<P: UnitPlatform> Iterator for RiscvRound<'_, P> {
    type Item = Counted;

    fn next(&mut self) -> Option<Counted> {
        let features = &self.shared.control.features;
        while self.ended == RiscvRoundEnd::NotYet {
            let held = self.held.take().map(Step::Invalidate);
            match held.or_else(|| self.steps.next()) {
                // There is no such buffer.
                Some(Step::FlushWriteBuffer) => {}
                Some(Step::Invalidate(Command::Global | Command::Configuration { .. })) => {
                    self.ended = RiscvRoundEnd::Everything;
                }
                Some(Step::Invalidate(what)) => {
                    let concerned = concerned(what);
                    if concerned.is_some_and(|(tag, _)| !self.touched.has_room(tag)) {
                        self.held = Some(what);
                        self.ended = RiscvRoundEnd::Full;
                        continue;
                    }
                    if let Some((tag, range)) = concerned {
                        self.touched.touch(tag, range);
                    }
                    match command::invalidate(features, what) {
                        Some(command) => return Some(command),
                        None => self.ended = RiscvRoundEnd::Everything,
                    }
                }
                Some(Step::Sync) => self.ended = RiscvRoundEnd::Sync,
                None => self.ended = RiscvRoundEnd::Exhausted,
            }
        }
        None
    }
}

impl<P: UnitPlatform> InvalidationQueue for RiscvShared<P> {
    type Error = IommuError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        let mut held = None;
        loop {
            let mut round = RiscvRound {
                shared: self,
                steps: &mut *steps,
                held,
                touched: Touched::new(),
                ended: RiscvRoundEnd::NotYet,
            };
            self.run(&mut round)?;
            let (touched, ended) = (round.touched, round.ended);
            held = round.held;
            for (tag, range) in touched.iter() {
                self.ask_all(tag, range)?;
            }
            match ended {
                RiscvRoundEnd::Everything => {
                    self.forget_everything()?;
                    self.ask(|| self.atcs.all(), None)?;
                }
                RiscvRoundEnd::Exhausted => return Ok(()),
                RiscvRoundEnd::Full | RiscvRoundEnd::Sync | RiscvRoundEnd::NotYet => {}
            }
        }
    }
}

impl<P: UnitPlatform> TagPool for RiscvQueue<P> {
    fn release(&self, context: InvalTag) -> Result<(), IommuError> {
        let tag = RiscvTag::of(context);
        let forgotten = self.0.run([command::context(tag)].into_iter());
        self.0.operation.paid(forgotten)?;
        match tag {
            RiscvTag::First(id) => self.0.firsts.give_back(id),
            RiscvTag::Second(id) => self.0.seconds.give_back(id),
        }
        Ok(())
    }
}

/// Most counters of a unit.
pub(super) const MOST: usize = 31;
/// Value of `iocountinh` where the cycles alone are counted.
pub(super) const NONE: u32 = !1;

/// A counter in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Used {
    /// Value of its selector.
    pub(super) word: u64,
    /// All that the counter can hold.
    pub(super) mask: u64,
    /// Events before its last overflow.
    pub(super) before: u64,
}

/// Hardware counters in use. Held while their registers are accessed, which waits for nothing.
#[derive(Debug)]
pub(super) struct Monitor<C: Cpus>(pub(super) Guarded<C, [Option<Used>; MOST]>);

impl<C: Cpus> Monitor<C> {
    pub(super) fn new() -> Self {
        Self(Guarded::new([None; MOST]))
    }
}

/// The counters in use count, and the cycles.
pub(super) fn inhibits(used: &[Option<Used>; MOST]) -> u32 {
    let counting = (1..).zip(used).filter(|(_, used)| used.is_some());
    counting.fold(NONE, |all, (bit, _)| all & !(1 << bit))
}
