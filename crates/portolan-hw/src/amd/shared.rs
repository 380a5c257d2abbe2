//! Registers, the command buffer, the event log and identifiers, which a unit and its domains
//! share.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, section 2.4:
//! commands complete in any order, except around a COMPLETION_WAIT that flushes.

use portolan::addr::InvalTag;
use portolan::inval::{Command, InvalidationQueue, Step, TablesLeft};
use portolan::iommu::{IommuError, TagPool};
use portolan::platform::UnitPlatform;

use super::command::{self, Counted};
use super::control::Control;
use super::events::Events;
use super::features::InvalidateAll;
use crate::chassis::{Ring, Submitters};
use crate::ids::Ids;

/// Domains that there are.
pub(super) const DOMAINS: u32 = 1 << 16;
/// Domain identifier of tables in which nothing is mapped: the last one.
pub(super) const NOTHING: u16 = (DOMAINS - 1) as u16;

/// Shared by the unit, its handles and its domains.
pub(super) struct Shared<P: UnitPlatform> {
    pub(super) control: Control<P>,
    pub(super) queue: Ring<P>,
    pub(super) events: Events<P>,
    pub(super) ids: Ids<P>,
    /// Streams that the device table has entries for.
    pub(super) streams: u32,
    pub(super) submitters: Submitters<P>,
}

impl<P: UnitPlatform> Shared<P> {
    /// The CPUs that submit.
    pub(super) fn cpus(&self) -> &P {
        &self.control.clock
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
        match self.control.features.invalidate_all {
            InvalidateAll::Present => self.run([command::all()].into_iter()),
            InvalidateAll::Absent => {
                let streams = (0..self.streams).map(|stream| stream as u16);
                let entries = streams.map(command::device_entry);
                let domains = (0..DOMAINS).map(|domain| command::domain(domain as u16));
                self.run(entries.chain([command::fence()]).chain(domains))
            }
        }
    }

    /// A free domain identifier.
    pub(super) fn take_id(&self) -> Result<u16, IommuError> {
        let id = self.ids.take().ok_or(IommuError::OutOfContexts)?;
        u16::try_from(id).map_err(|_| IommuError::OutOfContexts)
    }
}

crate::chassis::handle!(AmdQueue of Shared, AtomicU64);

/// End of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    NotYet,
    /// With a sync.
    Sync,
    /// There are no more steps.
    Exhausted,
    /// With a command for everything, which is a round of its own.
    Everything,
}

/// The commands up to the next sync.
struct Round<'a> {
    steps: &'a mut dyn Iterator<Item = Step>,
    ended: Ended,
}

impl Iterator for Round<'_> {
    type Item = Counted;

    fn next(&mut self) -> Option<Counted> {
        while self.ended == Ended::NotYet {
            match self.steps.next() {
                // There is no such buffer.
                Some(Step::FlushWriteBuffer) => {}
                Some(Step::Invalidate(Command::Global | Command::Configuration { .. })) => {
                    self.ended = Ended::Everything;
                }
                Some(Step::Invalidate(what)) => match command::invalidate(what) {
                    Some(command) => return Some(command),
                    None => self.ended = Ended::Everything,
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
        loop {
            let mut round = Round { steps: &mut *steps, ended: Ended::NotYet };
            self.run(&mut round)?;
            match round.ended {
                Ended::Everything => self.forget_everything()?,
                Ended::Exhausted => return Ok(()),
                Ended::Sync | Ended::NotYet => {}
            }
        }
    }
}

impl<P: UnitPlatform> TagPool for AmdQueue<P> {
    fn release(&self, context: InvalTag) -> Result<(), IommuError> {
        let domain = command::domain_of(context);
        self.0.run([command::domain(domain)].into_iter())?;
        self.0.ids.give_back(domain.into());
        Ok(())
    }
}
