//! What a unit and its domains share: registers, the command queue, the fault queue, identifiers.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, section "Guidelines for invalidations".

use core::sync::atomic::AtomicU64;

use portolan::addr::InvalTag;
use portolan::inval::{Command, InvalidationQueue, Step};
use portolan::iommu::{IommuError, TagPool};
use portolan::platform::{Cpus, Mmio, TableMem};

use super::command::{self, Counted};
use super::control::Control;
use super::faults::Faults;
use super::refusal;
use super::streams::Tag;
use crate::chassis::{Outcome, Ring};
use crate::ids::Ids;

/// How often everything is forgotten because others' refused commands may have undone it.
const ATTEMPTS: u32 = 4;

/// Shared by the unit, its handles and its domains.
#[derive(Debug)]
pub(super) struct Shared<R, M, C: Cpus> {
    pub(super) control: Control<R, M, C>,
    pub(super) queue: Ring<C>,
    pub(super) faults: Faults<C>,
    /// Tags of first stages (PSCID) and of second stages (GSCID). 0 stays in contexts without one.
    pub(super) firsts: Ids<C>,
    pub(super) seconds: Ids<C>,
}

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> Shared<R, M, C> {
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
        let code = refusal::INTERRUPTED;
        match outcome {
            Outcome::Done => Ok(()),
            Outcome::Again => Err(IommuError::Refused { code }),
        }
    }

    /// Forgets everything, device contexts included, and waits.
    pub(super) fn forget_everything(&self) -> Result<(), IommuError> {
        self.run(everything())
    }

    /// A free identifier of `ids`.
    pub(super) fn take(&self, ids: &Ids<C>) -> Result<u32, IommuError> {
        ids.take().ok_or(IommuError::OutOfContexts)
    }
}

/// Contexts first, and then, so that nothing is kept again by what is stale, translations.
fn everything() -> impl Iterator<Item = Counted> {
    [command::devices(), command::fence()]
        .into_iter()
        .chain(command::translations())
}

crate::chassis::handle!(RiscvQueue<R, M, C> of Shared);

/// How a round ended.
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
struct Round<'a, R, M, C: Cpus> {
    shared: &'a Shared<R, M, C>,
    steps: &'a mut dyn Iterator<Item = Step>,
    ended: Ended,
}

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> Iterator for Round<'_, R, M, C> {
    type Item = Counted;

    fn next(&mut self) -> Option<Counted> {
        let features = &self.shared.control.features;
        while self.ended == Ended::NotYet {
            match self.steps.next() {
                // There is no such buffer.
                Some(Step::FlushWriteBuffer) => {}
                Some(Step::Invalidate(Command::Global | Command::Configuration { .. })) => {
                    self.ended = Ended::Everything;
                }
                Some(Step::Invalidate(what)) => match command::invalidate(features, what) {
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

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> InvalidationQueue for RiscvQueue<R, M, C> {
    type Error = IommuError;

    fn execute(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), IommuError> {
        loop {
            let mut round = Round {
                shared: &self.0,
                steps: &mut *steps,
                ended: Ended::NotYet,
            };
            self.0.run(&mut round)?;
            match round.ended {
                Ended::Everything => self.0.forget_everything()?,
                Ended::Exhausted => return Ok(()),
                Ended::Sync | Ended::NotYet => {}
            }
        }
    }
}

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> TagPool for RiscvQueue<R, M, C> {
    fn release(&self, context: InvalTag) -> Result<(), IommuError> {
        let tag = Tag::of(context);
        self.0.run([command::context(tag)].into_iter())?;
        match tag {
            Tag::First(id) => self.0.firsts.give_back(id),
            Tag::Second(id) => self.0.seconds.give_back(id),
        }
        Ok(())
    }
}
