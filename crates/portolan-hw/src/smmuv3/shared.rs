//! Parts that a unit and its domains share: the queue, the identifiers, and the devices that have
//! to be told.
//!
//! Steps of plans become commands here. After translations were invalidated, devices with
//! translations of their own are told (IHI 0070, section 3.9.1: first the unit, a sync, then the
//! device, a sync); under a second stage with first stages on top, combined translations of both
//! are dropped as well (section 3.17), once a sync has completed the second stage's own
//! invalidation: commands between two syncs have no order (section 4.8).

use super::command::{self, CommandCounts};
use super::context::Tag;
use super::features::Features;
use super::machine::Machine;
use super::queue::CommandQueue;
use crate::chassis::Submitters;
use crate::chassis::arm::Has;
use crate::chassis::sets::{Atc, Sets, TOUCHED, Touched};
use crate::ids::Ids;
use alloc::sync::Arc;
use arrayvec::ArrayVec;
use core::iter::once;
use portolan::addr::{InvalTag, IovaRange, PageSize, StreamId};
use portolan::inval::{CombineOptions, Command, InvalidationQueue, Step, TablesLeft};
use portolan::iommu::{IommuError, TagPool};
use portolan::platform::UnitPlatform;
use portolan_spec::smmuv3::command::Words;

/// Parts that a unit and its domains share.
///
/// *Context.* Atomic: [`Shared::run`] waits for the unit. Functions that make and count wait for
/// nothing.
pub(super) struct Shared<P: UnitPlatform> {
    pub machine: Arc<Machine<P>>,
    pub queue: CommandQueue<P>,
    pub features: Features,
    pub asids: Ids<P>,
    pub vmids: Ids<P>,
    /// Devices with translations of their own.
    pub atcs: Sets<P, Tag, Atc>,
    /// Streams with first stages of a guest's over one of our second stages.
    pub nested: Sets<P, Tag, StreamId>,
    pub submitters: Submitters<P>,
}

crate::chassis::handle!(SmmuQueue of Shared, AtomicU64);

impl<P: UnitPlatform> Shared<P> {
    pub fn new(
        machine: Arc<Machine<P>>,
        queue: CommandQueue<P>,
        features: Features,
        combining: Option<CombineOptions>,
    ) -> Self {
        let ranges = features.ranges();
        Self {
            submitters: Submitters::new(&machine.clock, ranges, combining),
            machine,
            queue,
            features,
            asids: Ids::new(1, (1 << features.asid_lg2) - 1),
            // VMID 0 tags the first stages that have no second.
            vmids: Ids::new(1, (1 << features.vmid_lg2) - 1),
            atcs: Sets::default(),
            nested: Sets::default(),
        }
    }
}

impl<P: UnitPlatform> Shared<P> {
    /// The CPUs that submit.
    pub(super) fn cpus(&self) -> &P {
        &self.machine.clock
    }

    /// Commands, a sync, and the wait for it.
    pub fn run<const N: usize>(&self, commands: [Words; N]) -> Result<(), IommuError> {
        self.queue.run(commands.into_iter())
    }

    pub fn counts(&self) -> CommandCounts {
        self.queue.counters().read()
    }

    /// Has devices that use `tag` forget `range`, or everything.
    fn invalidate_atcs(&self, tag: Tag, range: Option<IovaRange>) -> Result<(), IommuError> {
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
        self.queue.run(commands)
    }
}

/// End of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    NotYet,
    /// With a sync.
    Sync,
    /// There are no more steps.
    Exhausted,
    /// With a step that means nothing here.
    Bad,
}

/// The commands up to the next sync.
struct Round<'a, P: UnitPlatform> {
    shared: &'a Shared<P>,
    steps: &'a mut dyn Iterator<Item = Step>,
    /// A command for the next round.
    held: Option<Command>,
    touched: Touched<Tag>,
    ended: Ended,
}

impl<P: UnitPlatform> Round<'_, P> {
    /// Tells if the context of `command` can be noted.
    fn has_room(&self, command: Command) -> bool {
        let context = match command {
            Command::Page { context, .. }
            | Command::Range { context, .. }
            | Command::Context { context } => context,
            Command::Global | Command::Configuration { .. } => return true,
        };
        Tag::of(context).is_none_or(|tag| self.touched.has_room(tag))
    }

    fn command(&mut self, command: Command) -> Option<Words> {
        let ranged = self.shared.features.range;
        Some(match command {
            Command::Page { context, iova, size, depth } => {
                let tag = Tag::of(context)?;
                self.touched.touch(tag, Some(IovaRange::page(iova, size)));
                command::invalidate_page(tag, iova, size, depth, ranged)
            }
            Command::Range { context, run, granule, depth } => {
                // A granule that has no code, or a unit without ranges.
                let known = [12, 14, 16].contains(&granule.lg2()) && ranged == Has::Yes;
                let tag = Tag::of(context).filter(|_| known)?;
                self.touched.touch(tag, Some(run.range(granule)));
                command::invalidate_run(tag, run, granule, depth)
            }
            Command::Context { context } => {
                let tag = Tag::of(context)?;
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
            (tag @ Tag::Vmid(vmid), Some(_))
                if self.shared.nested.members(tag).next().is_some() =>
            {
                Some(command::invalidate_first_stages(vmid.get()))
            }
            _ => None,
        });
        both.collect()
    }
}

impl<P: UnitPlatform> Iterator for Round<'_, P> {
    type Item = Words;

    fn next(&mut self) -> Option<Words> {
        while self.ended == Ended::NotYet {
            let held = self.held.take().map(Step::Invalidate);
            match held.or_else(|| self.steps.next()) {
                // There is no such buffer.
                Some(Step::FlushWriteBuffer) => {}
                Some(Step::Invalidate(command)) if !self.has_room(command) => {
                    self.held = Some(command);
                    self.ended = Ended::Sync;
                }
                Some(Step::Invalidate(command)) => match self.command(command) {
                    Some(words) => return Some(words),
                    None => self.ended = Ended::Bad,
                },
                Some(Step::Sync) => self.ended = Ended::Sync,
                None => self.ended = Ended::Exhausted,
            }
        }
        None
    }
}

impl<P: UnitPlatform> InvalidationQueue for Shared<P> {
    type Error = IommuError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        let mut held = None;
        loop {
            let mut round = Round {
                shared: self,
                steps: &mut *steps,
                held,
                touched: Touched::new(),
                ended: Ended::NotYet,
            };
            let first = round.next();
            if first.is_none() && round.ended == Ended::Exhausted {
                return Ok(());
            }
            self.queue.run(first.into_iter().chain(&mut round).fuse())?;
            let first_stages = round.combined();
            if !first_stages.is_empty() {
                self.queue.run(first_stages.into_iter())?;
            }
            let (touched, ended) = (round.touched, round.ended);
            held = round.held;
            for (tag, range) in touched.iter() {
                self.invalidate_atcs(tag, range)?;
            }
            match ended {
                Ended::Bad => return Err(IommuError::Unsupported),
                Ended::Exhausted => return Ok(()),
                Ended::Sync | Ended::NotYet => {}
            }
        }
    }
}

impl<P: UnitPlatform> TagPool for SmmuQueue<P> {
    fn release(&self, context: InvalTag) -> Result<(), IommuError> {
        let tag = Tag::of(context).ok_or(IommuError::Unsupported)?;
        self.0.queue.run(once(command::invalidate_tag(tag)))?;
        match tag {
            Tag::Asid(asid) => self.0.asids.give_back(asid.get().into()),
            Tag::Vmid(vmid) => self.0.vmids.give_back(vmid.get().into()),
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
