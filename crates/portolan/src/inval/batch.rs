//! The commands of several callers, to be carried out with one sync.
//!
//! *Context.* Interrupt: everything here is a value, and takes a bounded number of steps.

use arrayvec::ArrayVec;

use super::runs::covering;
use super::{Command, Depth, RangeForm, Step};
use crate::addr::{InvalTag, IovaRange, PageSize};

/// Commands of one batch.
pub(super) const BATCH: usize = 64;
/// Commands of one caller that can be handed over; a plan with more has its own sync to itself.
pub(super) const OWN: usize = 4;

/// When commands of one context are made fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merging {
    /// The hardware's range command.
    pub form: RangeForm,
    /// What it counts in.
    pub granule: PageSize,
    /// With more page and range commands than this of one context, one range that covers them all.
    pub above: usize,
    /// The longest range that may come of that, in granules: what lies between the commands loses
    /// its cached translations for nothing.
    pub granules: u64,
    /// With more commands than this of one context, one for the context.
    pub context_above: usize,
}

/// What one caller hands over.
pub(super) type Own = ArrayVec<Command, OWN>;

/// What was found at the head of a caller's steps.
pub(super) enum Parsed {
    /// All of it: commands and the sync that ends them.
    Whole(Own),
    /// Too many commands, or not the form of one batch: what was taken out, to be put back in
    /// front.
    Other(Own, ArrayVec<Step, 2>),
}

/// Takes the commands out of `steps`, at whose head there is no preparation any more.
pub(super) fn parse(first: Option<Step>, steps: &mut dyn Iterator<Item = Step>) -> Parsed {
    let mut own = Own::new();
    let mut rest = ArrayVec::new();
    let mut next = first;
    while let Some(step) = next {
        match step {
            Step::Invalidate(command) if !own.is_full() => own.push(command),
            Step::Sync => {
                let Some(more) = steps.next() else {
                    return Parsed::Whole(own);
                };
                rest.push(Step::Sync);
                rest.push(more);
                return Parsed::Other(own, rest);
            }
            other => {
                rest.push(other);
                return Parsed::Other(own, rest);
            }
        }
        next = steps.next();
    }
    // Nobody asked for a sync.
    Parsed::Other(own, rest)
}

/// Commands of several callers, none of which another one covers.
#[derive(Debug, Default)]
pub(super) struct Batch(ArrayVec<Command, BATCH>);

impl Batch {
    /// Adds `own`, or nothing if there is no room. Where one context has more commands than
    /// `merging` allows, one for all of them takes their place.
    pub(super) fn add(&mut self, own: &Own, merging: &Merging) -> Added {
        if self.0.remaining_capacity() < own.len() {
            return Added::NoRoom;
        }
        for &command in own {
            if self.covers(command) {
                continue;
            }
            match target(command) {
                Some(context) => self.add_part(command, context, merging),
                None => self.replace(command),
            }
        }
        Added::All
    }

    /// Adds a command for a part of `context`.
    fn add_part(&mut self, command: Command, context: InvalTag, merging: &Merging) {
        let count = self.count(context);
        if count >= merging.above {
            if let Some(range) = self.merged(command, context, merging) {
                self.drop_parts(context);
                self.0.push(range);
                return;
            }
        }
        match count >= merging.context_above {
            true => self.replace(Command::Context { context }),
            false => self.0.push(command),
        }
    }

    /// One range command for all parts of `context` and `command`, if the hardware has one.
    fn merged(&self, command: Command, context: InvalTag, merging: &Merging) -> Option<Command> {
        let (mut range, mut depth) = part(command)?;
        for &there in self
            .0
            .iter()
            .filter(|there| target(**there) == Some(context))
        {
            let (more, deep) = part(there)?;
            range = range.hull(more);
            if deep == Depth::AllLevels {
                depth = deep;
            }
        }
        let granule = merging.granule;
        if range.pages(granule) > merging.granules {
            return None;
        }
        let run = covering(merging.form, granule, range)?;
        Some(Command::Range {
            context,
            run,
            granule,
            depth,
        })
    }

    fn covers(&self, command: Command) -> bool {
        let context = target(command);
        self.0.iter().any(|&there| match there {
            Command::Global => !matches!(command, Command::Configuration { .. }),
            Command::Context { context: all } => context == Some(all) || there == command,
            Command::Range { context: same, .. } if context == Some(same) => {
                match (part(there), part(command)) {
                    (Some((all, depth)), Some((range, wanted))) => {
                        let deep = depth == Depth::AllLevels || wanted == Depth::LeafOnly;
                        deep && all.covers(range)
                    }
                    _ => false,
                }
            }
            _ => there == command,
        })
    }

    /// Commands that name a part of `context`.
    fn count(&self, context: InvalTag) -> usize {
        let same = |there: &&Command| target(**there) == Some(context);
        self.0.iter().filter(same).count()
    }

    fn drop_parts(&mut self, context: InvalTag) {
        self.0.retain(|there| target(*there) != Some(context));
    }

    /// Drops what `command` covers, and adds it. There is room: it was seen to, or made.
    fn replace(&mut self, command: Command) {
        self.0.retain(|there| match command {
            Command::Global => matches!(there, Command::Configuration { .. }),
            Command::Context { context } => target(*there) != Some(context),
            _ => true,
        });
        self.0.push(command);
    }

    /// The steps, with the one sync at their end.
    pub(super) fn steps(&self) -> impl Iterator<Item = Step> {
        sealed(&self.0)
    }
}

/// Whether a caller's commands are in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    All,
    NoRoom,
}

/// `commands`, and a sync.
pub(super) fn sealed(commands: &[Command]) -> impl Iterator<Item = Step> {
    let commands = commands.iter().copied().map(Step::Invalidate);
    commands.chain(core::iter::once(Step::Sync))
}

/// The addresses that a command names, and which levels of them.
fn part(command: Command) -> Option<(IovaRange, Depth)> {
    match command {
        Command::Page {
            iova, size, depth, ..
        } => Some((IovaRange::page(iova, size), depth)),
        Command::Range {
            run,
            granule,
            depth,
            ..
        } => Some((run.range(granule), depth)),
        Command::Context { .. } | Command::Global | Command::Configuration { .. } => None,
    }
}

/// The context of which a command names a part.
fn target(command: Command) -> Option<InvalTag> {
    match command {
        Command::Page { context, .. } | Command::Range { context, .. } => Some(context),
        Command::Context { .. } | Command::Global | Command::Configuration { .. } => None,
    }
}

#[cfg(test)]
mod tests;
