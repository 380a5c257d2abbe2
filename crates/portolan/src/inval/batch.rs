//! The commands of several callers, to be carried out with one sync.
//!
//! *Context.* Interrupt: everything here is a value, and takes a bounded number of steps.

use arrayvec::ArrayVec;

use super::runs::covering;
use super::{Capabilities, Command, Depth, RangeForm, Step, TablesLeft};
use crate::addr::{InvalTag, IovaRange, PageSize};

/// Commands of one batch.
pub(super) const BATCH: usize = 64;
/// Commands of one caller that can be handed over; a plan with more has its own sync to itself.
pub(super) const OWN: usize = 4;

/// Bounds above which commands of one context are made fewer.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merging {
    /// With more page and range commands than this of one context, one range that covers them all,
    /// if the hardware has one.
    pub above: usize,
    /// The longest range that may come of that, in granules: addresses between the commands lose
    /// their cached translations for nothing.
    pub granules: u64,
    /// With more commands than this of one context, one for the context.
    pub context_above: usize,
}

/// Range commands of hardware, and the granules in which they count.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// Form.
    pub form: RangeForm,
    /// Granules.
    pub granules: Granules,
}

/// Granules of the tables behind one queue.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granules {
    /// This one.
    One(PageSize),
    /// Those of Armv8's tables, of which a unit may have several: a range command has to name that of
    /// its context (IHI 0070, section 4.4.1.1, TG). No two of them have a size of pages in common.
    Armv8,
}

impl Granules {
    /// The granule of tables that have pages of `size`.
    fn of(self, size: PageSize) -> Option<PageSize> {
        match self {
            Self::One(granule) => Some(granule),
            Self::Armv8 => {
                let all = [PageSize::SIZE_4K, PageSize::SIZE_16K, PageSize::SIZE_64K];
                all.into_iter().find(|granule| {
                    // A table of one granule has entries of 8 bytes.
                    let bits = granule.lg2() - 3;
                    size.lg2() >= granule.lg2() && (size.lg2() - granule.lg2()) % bits == 0
                })
            }
        }
    }
}

impl Ranges {
    /// Of hardware without them.
    pub const ABSENT: Self =
        Self { form: RangeForm::Absent, granules: Granules::One(PageSize::SIZE_4K) };

    /// Of hardware with `caps`, whose tables all have the granule that they name.
    pub fn of(caps: &Capabilities) -> Self {
        Self { form: caps.range, granules: Granules::One(caps.granule) }
    }
}

/// Merging of commands, as the hardware can.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merger {
    pub(super) ranges: Ranges,
    pub(super) limits: Merging,
}

/// Commands of one caller.
pub(super) type Own = ArrayVec<Command, OWN>;

/// Commands of one caller.
#[derive(Debug)]
pub(super) struct Debt {
    pub(super) commands: Own,
    pub(super) tables: TablesLeft,
}

/// Head of a caller's steps.
pub(super) enum Parsed {
    /// All of it: commands and the sync that ends them.
    Whole(Own),
    /// Too many commands, or not the form of one batch: the steps that were taken out, to be put
    /// back in front.
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
    // The caller asked for no sync.
    Parsed::Other(own, rest)
}

/// Commands of several callers, none of which another one covers.
#[derive(Debug)]
pub(super) struct Batch {
    commands: ArrayVec<Command, BATCH>,
    tables: TablesLeft,
}

impl Default for Batch {
    fn default() -> Self {
        Self { commands: ArrayVec::new(), tables: TablesLeft::No }
    }
}

impl Batch {
    /// Adds `own`, or nothing if there is no room. Where one context has more commands than
    /// `merger` allows, one for all of them takes their place.
    pub(super) fn add(&mut self, own: &Debt, merger: &Merger) -> Added {
        if self.commands.remaining_capacity() < own.commands.len() {
            return Added::NoRoom;
        }
        self.tables = self.tables.with(own.tables);
        for &command in &own.commands {
            if self.covers(command) {
                continue;
            }
            match target(command) {
                Some(context) => self.add_part(command, context, merger),
                None => self.replace(command),
            }
        }
        Added::All
    }

    /// Adds a command for a part of `context`.
    fn add_part(&mut self, command: Command, context: InvalTag, merger: &Merger) {
        let count = self.count(context);
        if count >= merger.limits.above {
            if let Some(range) = self.merged(command, context, merger) {
                self.drop_parts(context);
                self.commands.push(range);
                return;
            }
        }
        match count >= merger.limits.context_above {
            true => self.replace(Command::Context { context }),
            false => self.commands.push(command),
        }
    }

    /// One range command for all parts of `context` and `command`, if the hardware has one.
    fn merged(&self, command: Command, context: InvalTag, merger: &Merger) -> Option<Command> {
        let (mut range, mut depth) = part(command)?;
        let granule = granule(command, merger.ranges.granules)?;
        let same = |there: &&Command| target(**there) == Some(context);
        for &there in self.commands.iter().filter(same) {
            let (more, deep) = part(there)?;
            range = range.hull(more);
            if deep == Depth::AllLevels {
                depth = deep;
            }
        }
        if range.pages(granule) > merger.limits.granules {
            return None;
        }
        let run = covering(merger.ranges.form, granule, range)?;
        Some(Command::Range { context, run, granule, depth })
    }

    fn covers(&self, command: Command) -> bool {
        let context = target(command);
        self.commands.iter().any(|&there| match there {
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
        self.commands.iter().filter(same).count()
    }

    fn drop_parts(&mut self, context: InvalTag) {
        self.commands.retain(|there| target(*there) != Some(context));
    }

    /// Drops the commands that `command` covers, and adds it. There is room: it was seen to, or
    /// made.
    fn replace(&mut self, command: Command) {
        self.commands.retain(|there| match command {
            Command::Global => matches!(there, Command::Configuration { .. }),
            Command::Context { context } => target(*there) != Some(context),
            _ => true,
        });
        self.commands.push(command);
    }

    /// Tells if one of the debts holds tables.
    pub(super) fn tables(&self) -> TablesLeft {
        self.tables
    }

    /// The steps, with the one sync at their end.
    pub(super) fn steps(&self) -> impl Iterator<Item = Step> {
        sealed(&self.commands)
    }
}

/// Result of adding a caller's commands to a batch.
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
        Command::Page { iova, size, depth, .. } => Some((IovaRange::page(iova, size), depth)),
        Command::Range { run, granule, depth, .. } => Some((run.range(granule), depth)),
        Command::Context { .. } | Command::Global | Command::Configuration { .. } => None,
    }
}

/// The granule of the tables that a command for a part names.
fn granule(command: Command, granules: Granules) -> Option<PageSize> {
    match command {
        Command::Page { size, .. } => granules.of(size),
        Command::Range { granule, .. } => granules.of(granule),
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
