//! The command queue, and the state that a unit shares with its domains: identifiers, and the devices
//! that have to be told.
//!
//! IHI 0070, sections 3.5 (queues), 4.8 (CMD_SYNC) and 7.1 (command queue errors). A sync is seen
//! by the consumer index, or by the message that it writes to memory. The lock of `SmmuHardware`'s error
//! bits, a leaf, is taken under the ring's ([`crate::chassis::ring`]).
//!
//! Steps of plans become commands here. After translations were invalidated, devices with
//! translations of their own are told (section 3.9.1: first the unit, a sync, then the device, a sync);
//! under a second stage with first stages on top, combined translations of both are dropped as well
//! (section 3.17), once a sync has completed the second stage's own invalidation: commands between two
//! syncs have no order (section 4.8).

mod more;
mod place;
#[cfg(test)]
mod tests;

pub use more::{EnhancedQueues, MoreQueues, enhanced_queues};
pub(super) use more::{own_interface, places};
pub(super) use place::QueuePlace;

use super::command;
use super::command::SmmuTag;
use super::command::{CommandCounts, Counters};
use super::features::Features;
use super::machine::SmmuHardware;
use crate::chassis::sets::{Atc, Sets, TOUCHED, Touched};
use crate::chassis::{Block, Operation, OperationState, Ring, RingShape, Stop, Submitters, Unit};
use crate::ids::Ids;
use alloc::sync::Arc;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::cell::Cell;
use core::iter::once;
use portolan::addr::{InvalTag, IovaRange, PageSize, PhysAddr, StreamId};
use portolan::inval::{CombineOptions, Command, InvalidationQueue, Step, TablesLeft};
use portolan::iommu::{IommuError, TagPool};
use portolan::platform::{Nanos, UnitPlatform};
use portolan_spec::smmuv3::command::{Words, error, op};
use portolan_spec::smmuv3::{command as layout, reg};

/// The queue.
///
/// *Context.* Interrupt, but for [`CommandQueue::run`], which waits for the unit (atomic), and
/// [`CommandQueue::new`], which takes heap memory (task).
pub(super) struct CommandQueue<P: UnitPlatform> {
    machine: Arc<SmmuHardware<P>>,
    place: QueuePlace<P::Registers>,
    ring: Ring<P>,
    /// The unit's. Nothing has to be invalidated while it is off: the unit is disabled, and forgets everything when
    /// it is enabled.
    pub operation: Arc<Operation>,
    counters: Counters,
}

/// Settings of a queue's ring.
struct RingSettings {
    /// Exponent of the number of commands.
    lg2: u32,
    most_unsynced: u64,
    messages: bool,
}

impl<P: UnitPlatform> CommandQueue<P> {
    /// The unit's own queue, of `2^lg2` commands, with a sync at least after every `most_unsynced`; syncs write
    /// messages if `messages` says so.
    pub fn new(
        machine: Arc<SmmuHardware<P>>,
        lg2: u32,
        most_unsynced: u64,
        messages: bool,
    ) -> Result<Self, IommuError> {
        let (place, operation) = (QueuePlace::Own, Arc::default());
        Self::at(machine, place, operation, RingSettings { lg2, most_unsynced, messages })
    }

    fn at(
        machine: Arc<SmmuHardware<P>>,
        place: QueuePlace<P::Registers>,
        operation: Arc<Operation>,
        settings: RingSettings,
    ) -> Result<Self, IommuError> {
        let RingSettings { lg2, most_unsynced, messages } = settings;
        let shape = RingShape { lg2_slots: lg2, lg2_bytes: layout::LG2_BYTES };
        let ring = Ring::new(&machine.mem, shape, most_unsynced, messages)?;
        Ok(Self { machine, place, ring, operation, counters: Counters::default() })
    }

    /// Another queue of the unit, as long as this one.
    pub fn beside(
        &self,
        place: QueuePlace<P::Registers>,
        most_unsynced: u64,
        messages: bool,
    ) -> Result<Self, IommuError> {
        let (machine, operation) = (self.machine.clone(), self.operation.clone());
        let lg2 = self.ring.shape().lg2_slots;
        Self::at(machine, place, operation, RingSettings { lg2, most_unsynced, messages })
    }

    /// Gives the unit the queue, which must be disabled; returns the value of its base.
    pub fn install(&self) -> u64 {
        let (at, lg2) = (self.ring.commands().at, self.ring.shape().lg2_slots);
        let base = reg::BASE_ALLOCATE.at(1) | at.get() | u64::from(lg2);
        self.ring.restart::<Self>();
        self.machine.barrier();
        self.place.set(&self.machine, base);
        base
    }

    /// Begins with a queue beside the unit's own, whatever state it is found in.
    pub fn start(&self) -> Result<(), IommuError> {
        self.place.disable(&self.machine)?;
        self.install();
        self.place.enable(&self.machine)
    }

    /// Ends a queue beside the unit's own.
    pub fn stop(&self) -> Result<(), IommuError> {
        self.place.disable(&self.machine)
    }

    /// Window of the registers, of one of CMDQV's.
    pub fn window(&self) -> Option<&P::Registers> {
        match &self.place {
            QueuePlace::Tegra241 { window, .. } => Some(window),
            QueuePlace::Own | QueuePlace::Enhanced { .. } => None,
        }
    }

    /// Memory of the commands.
    pub fn commands(&self) -> Block {
        self.ring.commands()
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Reads the progress of the unit, and puts it back to work if it stopped at a command.
    pub fn service(&self) -> Result<(), IommuError> {
        self.ring.service(self)
    }

    /// Waits until the unit has fetched everything.
    pub fn drain(&self) -> Result<(), IommuError> {
        self.ring.drain(self)
    }

    /// Writes `commands` and a sync, and waits until they are complete.
    pub fn run(&self, commands: impl Iterator<Item = Words>) -> Result<(), IommuError> {
        if self.operation.is_off() {
            return Ok(());
        }
        let devices = Cell::new(false);
        let commands = commands.inspect(|words| {
            if layout::OP.get(words) == op::ATC_INV {
                devices.set(true);
            }
        });
        self.ring.run(self, commands, &|_| devices.get()).map(drop)
    }

    /// Writes one command if there is room for it at once, and tells if there was; it waits for
    /// nothing. Only for commands that need no sync (4.6: answers to stalls and page requests).
    pub fn post(&self, words: &Words) -> Result<bool, IommuError> {
        if self.operation.is_off() {
            return Ok(true);
        }
        self.ring.post(self, words)
    }
}

impl<P: UnitPlatform> Unit for CommandQueue<P> {
    type Memory = P::Memory;
    type Cpus = P;
    type Command = Words;

    const TURN_BITS: u32 = 1;
    const INDEX_COMPLETES: bool = true;
    const ABORTS_SYNCS: bool = false;
    const HEAD: usize = reg::CMDQ_CONS;
    /// Of the codes that are recorded of commands, the one that section 7.1 defines.
    const OVERWRITTEN: u32 = error::ILL;

    fn machine(&self) -> (&P::Memory, &P, Nanos) {
        (&self.machine.mem, &self.machine.clock, self.machine.limit)
    }

    fn running(&self) -> Result<(), IommuError> {
        self.operation.running()
    }

    fn words(command: &Words) -> Words {
        *command
    }

    fn count(&self, command: &Words) {
        self.counters.count(command);
    }

    fn sync(at: Option<PhysAddr>, number: u32) -> Words {
        at.map_or_else(command::sync, |at| command::sync_message(at.get(), number))
    }

    fn harmless(_spare: Option<PhysAddr>) -> Words {
        command::sync()
    }

    fn clean(&self, at: PhysAddr, bytes: u64) {
        self.machine.clean(at, bytes);
    }

    fn barrier(&self) {
        self.machine.barrier();
    }

    fn head(&self) -> Result<u64, IommuError> {
        Ok(self.place.head(&self.machine.registers)?.into())
    }

    fn index(head: u64, shape: RingShape) -> u64 {
        head & ((2 << shape.lg2_slots) - 1)
    }

    fn set_tail(&self, index: u64, _: RingShape) {
        self.place.set_tail(&self.machine.registers, index as u32);
    }

    fn stopped(&self, head: u64) -> Result<Option<Stop>, IommuError> {
        let code = reg::CONS_ERR.of(head) as u32;
        if code == 0 {
            return Ok(None);
        }
        if self.machine.errors()? & reg::gerror::SFM != 0 {
            self.operation.set(OperationState::Stopped);
            return Err(IommuError::Stopped);
        }
        Ok(self.place.is_stopped(&self.machine, head as u32)?.then_some(Stop {
            seen: code,
            // What could not be fetched is fetched again, and a sync that a device did not answer
            // is done again.
            refused: (code != error::ABT && code != error::ATC_INV_SYNC).then_some(code),
            silent: (code == error::ATC_INV_SYNC).then_some(None),
        }))
    }

    fn resume(&self, _: Stop, _: RingShape, _: u64, tail: u64) -> Result<(), IommuError> {
        self.place.resume(&self.machine, tail as u32)
    }
}

impl<P: UnitPlatform> Drop for CommandQueue<P> {
    /// Gives the memory back if the unit is known to be disabled. *Context.* Task.
    fn drop(&mut self) {
        if self.operation.is_off() {
            self.ring.free(&self.machine.mem);
        }
    }
}

/// Parts that a unit and its domains share.
///
/// *Context.* Atomic: [`SmmuShared::run`] waits for the unit. Functions that make and count wait for
/// nothing.
pub(super) struct SmmuShared<P: UnitPlatform> {
    pub machine: Arc<SmmuHardware<P>>,
    pub queue: CommandQueue<P>,
    /// Queues of CPUs, for invalidations of translations. With none, all CPUs use the unit's own.
    pub more: Vec<CommandQueue<P>>,
    pub features: Features,
    pub asids: Ids<P>,
    pub vmids: Ids<P>,
    /// Devices with translations of their own.
    pub atcs: Sets<P, SmmuTag, Atc>,
    /// Streams with first stages of a guest's over one of our second stages.
    pub nested: Sets<P, SmmuTag, StreamId>,
    pub submitters: Submitters<P>,
}

crate::chassis::handle!(SmmuQueue of SmmuShared, AtomicU64);

impl<P: UnitPlatform> SmmuShared<P> {
    pub fn new(
        machine: Arc<SmmuHardware<P>>,
        queue: CommandQueue<P>,
        more: Vec<CommandQueue<P>>,
        features: Features,
        combining: Option<CombineOptions>,
    ) -> Self {
        let ranges = features.ranges();
        Self {
            submitters: Submitters::new(&machine.clock, ranges, combining),
            machine,
            queue,
            more,
            features,
            asids: Ids::new(1, (1 << features.asid_lg2) - 1),
            // VMID 0 tags the first stages that have no second.
            vmids: Ids::new(1, (1 << features.vmid_lg2) - 1),
            atcs: Sets::default(),
            nested: Sets::default(),
        }
    }
}

impl<P: UnitPlatform> SmmuShared<P> {
    /// The CPUs that submit.
    pub(super) fn cpus(&self) -> &P {
        &self.machine.clock
    }

    pub(super) fn operation(&self) -> &Operation {
        &self.queue.operation
    }

    /// Commands, a sync, and the wait for it.
    pub fn run<const N: usize>(&self, commands: [Words; N]) -> Result<(), IommuError> {
        self.queue.run(commands.into_iter())
    }

    pub fn counts(&self) -> CommandCounts {
        let counts = self.queue.counters().read();
        self.more.iter().fold(counts, |sum, queue| sum.plus(&queue.counters().read()))
    }

    /// The calling CPU's queue. Any would do: a caller waits for the sync of the queue that it used.
    #[inline]
    fn own_queue(&self) -> &CommandQueue<P> {
        if self.more.is_empty() {
            return &self.queue;
        }
        let cpu = self.cpus().current().get() as usize;
        self.more.get(cpu % self.more.len()).unwrap_or(&self.queue)
    }

    /// All queues.
    pub fn queues(&self) -> impl Iterator<Item = &CommandQueue<P>> {
        once(&self.queue).chain(&self.more)
    }

    /// Has devices that use `tag` forget `range`, or everything.
    fn invalidate_atcs(&self, tag: SmmuTag, range: Option<IovaRange>) -> Result<(), IommuError> {
        let mut atcs = self.atcs.members(tag).peekable();
        if atcs.peek().is_none() {
            return Ok(());
        }
        let commands = atcs.map(|atc| {
            // Under a guest's first stage the device knows other addresses than ours.
            let nested = self.nested.contains(tag, atc.stream);
            let range = range.filter(|_| !nested);
            command::invalidate_device(atc.stream, atc.pasid, range)
        });
        self.own_queue().run(commands)
    }
}

/// End of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SmmuRoundEnd {
    NotYet,
    /// With a sync.
    Sync,
    /// There are no more steps.
    Exhausted,
    /// With a step that means nothing here.
    Bad,
}

/// The commands up to the next sync.
struct SmmuRound<'a, P: UnitPlatform> {
    shared: &'a SmmuShared<P>,
    steps: &'a mut dyn Iterator<Item = Step>,
    /// A command for the next round.
    held: Option<Command>,
    touched: Touched<SmmuTag>,
    ended: SmmuRoundEnd,
}

impl<P: UnitPlatform> SmmuRound<'_, P> {
    /// Tells if the context of `command` can be noted.
    fn has_room(&self, command: Command) -> bool {
        let context = match command {
            Command::Page { context, .. }
            | Command::Range { context, .. }
            | Command::Context { context } => context,
            Command::Global | Command::Configuration { .. } => return true,
        };
        SmmuTag::of(context).is_none_or(|tag| self.touched.has_room(tag))
    }

    fn command(&mut self, command: Command) -> Option<Words> {
        let ranged = self.shared.features.range;
        Some(match command {
            Command::Page { context, iova, size, depth } => {
                let tag = SmmuTag::of(context)?;
                self.touched.touch(tag, Some(IovaRange::page(iova, size)));
                command::invalidate_page(tag, iova, size, depth, ranged)
            }
            Command::Range { context, run, granule, depth } => {
                // A granule that has no code, or a unit without ranges.
                let known = [12, 14, 16].contains(&granule.lg2()) && ranged;
                let tag = SmmuTag::of(context).filter(|_| known)?;
                self.touched.touch(tag, Some(run.range(granule)));
                command::invalidate_run(tag, run, granule, depth)
            }
            Command::Context { context } => {
                let tag = SmmuTag::of(context)?;
                self.touched.touch(tag, None);
                command::invalidate_tag(tag)
            }
            Command::Global => command::invalidate_everything(),
            Command::Configuration { .. } => command::config_everything(),
        })
    }

    /// Commands that second stages with first stages on top add, once the sync of the round is
    /// complete: before it, a walk may still fill a combined entry from the stale second stage,
    /// after the first stages' own invalidation has passed.
    fn combined(&self) -> ArrayVec<Words, TOUCHED> {
        let both = self.touched.iter().filter_map(|touched| match touched {
            (tag @ SmmuTag::Vmid(vmid), Some(_))
                if self.shared.nested.members(tag).next().is_some() =>
            {
                Some(command::invalidate_first_stages(vmid.get()))
            }
            _ => None,
        });
        both.collect()
    }
}

impl<P: UnitPlatform> Iterator for SmmuRound<'_, P> {
    type Item = Words;

    fn next(&mut self) -> Option<Words> {
        while self.ended == SmmuRoundEnd::NotYet {
            let held = self.held.take().map(Step::Invalidate);
            match held.or_else(|| self.steps.next()) {
                // There is no such buffer.
                Some(Step::FlushWriteBuffer) => {}
                Some(Step::Invalidate(command)) if !self.has_room(command) => {
                    self.held = Some(command);
                    self.ended = SmmuRoundEnd::Sync;
                }
                Some(Step::Invalidate(command)) => match self.command(command) {
                    Some(words) => return Some(words),
                    None => self.ended = SmmuRoundEnd::Bad,
                },
                Some(Step::Sync) => self.ended = SmmuRoundEnd::Sync,
                None => self.ended = SmmuRoundEnd::Exhausted,
            }
        }
        None
    }
}

impl<P: UnitPlatform> InvalidationQueue for SmmuShared<P> {
    type Error = IommuError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        let mut held = None;
        loop {
            let mut round = SmmuRound {
                shared: self,
                steps: &mut *steps,
                held,
                touched: Touched::new(),
                ended: SmmuRoundEnd::NotYet,
            };
            let first = round.next();
            if first.is_none() && round.ended == SmmuRoundEnd::Exhausted {
                return Ok(());
            }
            self.own_queue().run(first.into_iter().chain(&mut round).fuse())?;
            let first_stages = round.combined();
            if !first_stages.is_empty() {
                self.own_queue().run(first_stages.into_iter())?;
            }
            let (touched, ended) = (round.touched, round.ended);
            held = round.held;
            for (tag, range) in touched.iter() {
                self.invalidate_atcs(tag, range)?;
            }
            match ended {
                SmmuRoundEnd::Bad => return Err(IommuError::Unsupported),
                SmmuRoundEnd::Exhausted => return Ok(()),
                SmmuRoundEnd::Sync | SmmuRoundEnd::NotYet => {}
            }
        }
    }
}

impl<P: UnitPlatform> TagPool for SmmuQueue<P> {
    fn release(&self, context: InvalTag) -> Result<(), IommuError> {
        let tag = SmmuTag::of(context).ok_or(IommuError::Unsupported)?;
        self.0.queue.run(once(command::invalidate_tag(tag)))?;
        match tag {
            SmmuTag::Asid(asid) => self.0.asids.give_back(asid.get().into()),
            SmmuTag::Vmid(vmid) => self.0.vmids.give_back(vmid.get().into()),
        }
        Ok(())
    }
}

/// Exponents of the granules that the architecture has, for `G`.
pub(super) const fn granule_code(granule: PageSize) -> u64 {
    use portolan_spec::smmuv3::cd::granule;
    match granule.lg2() {
        14 => granule::SIZE_16K,
        16 => granule::SIZE_64K,
        _ => granule::SIZE_4K,
    }
}
