//! The commands of several callers, to be carried out with one sync.

use arrayvec::ArrayVec;

use super::{Command, Step};
use crate::addr::ContextId;

/// Commands of one batch.
pub(super) const BATCH: usize = 64;
/// Commands of one caller that can be handed over; a plan with more has its own sync to itself.
pub(super) const OWN: usize = 4;

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
    /// Adds `own`, or nothing if there is no room. Where one context has more than `context_above`
    /// commands, one that names the context takes their place.
    pub(super) fn add(&mut self, own: &Own, context_above: usize) -> Added {
        if self.0.remaining_capacity() < own.len() {
            return Added::NoRoom;
        }
        for &command in own {
            if self.covers(command) {
                continue;
            }
            match target(command) {
                Some(context) if self.count(context) >= context_above => {
                    self.replace(Command::Context { context });
                }
                _ if matches!(command, Command::Context { .. } | Command::Global) => {
                    self.replace(command);
                }
                _ => self.0.push(command),
            }
        }
        Added::All
    }

    fn covers(&self, command: Command) -> bool {
        let context = target(command);
        self.0.iter().any(|&there| match there {
            Command::Global => !matches!(command, Command::Configuration { .. }),
            Command::Context { context: all } => context == Some(all) || there == command,
            _ => there == command,
        })
    }

    /// Commands that name a part of `context`.
    fn count(&self, context: ContextId) -> usize {
        let same = |there: &&Command| target(**there) == Some(context);
        self.0.iter().filter(same).count()
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

/// The context of which a command names a part.
fn target(command: Command) -> Option<ContextId> {
    match command {
        Command::Page { context, .. } | Command::Range { context, .. } => Some(context),
        Command::Context { .. } | Command::Global | Command::Configuration { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Iova, PageSize};
    use crate::inval::Depth;
    use alloc::vec::Vec;

    fn page(context: u32, number: u64) -> Command {
        Command::Page {
            context: ContextId::new(context),
            iova: Iova::new(number << 12),
            size: PageSize::SIZE_4K,
            depth: Depth::LeafOnly,
        }
    }

    fn add(batch: &mut Batch, commands: &[Command], above: usize) -> Added {
        batch.add(&commands.iter().copied().collect(), above)
    }

    #[test]
    fn one_sync_for_all() {
        let mut batch = Batch::default();
        add(&mut batch, &[page(1, 1), page(1, 2)], 8);
        add(&mut batch, &[page(2, 1), page(1, 1)], 8);
        let commands = [page(1, 1), page(1, 2), page(2, 1)];
        assert_eq!(
            batch.steps().collect::<Vec<_>>(),
            sealed(&commands).collect::<Vec<_>>()
        );
    }

    #[test]
    fn many_of_one_context_become_the_context() {
        let context = ContextId::new(1);
        let mut batch = Batch::default();
        for number in 0..3 {
            add(&mut batch, &[page(1, number), page(2, number)], 3);
        }
        assert_eq!(batch.0.len(), 6);
        add(&mut batch, &[page(1, 9), page(1, 10)], 3);
        assert_eq!(batch.0.len(), 4);
        assert_eq!(batch.0.last(), Some(&Command::Context { context }));
        let setup = Command::Configuration { context };
        add(&mut batch, &[setup, page(1, 11), Command::Global], 3);
        assert_eq!(&batch.0[..], [setup, Command::Global]);
        add(&mut batch, &[page(3, 1), setup], 3);
        assert_eq!(batch.0.len(), 2);
    }

    #[test]
    fn a_full_batch_takes_nothing() {
        let mut batch = Batch::default();
        for number in 0..BATCH as u64 - 1 {
            assert_eq!(add(&mut batch, &[page(1, number)], BATCH), Added::All);
        }
        let two = [page(1, 100), page(1, 101)];
        assert_eq!(add(&mut batch, &two, BATCH), Added::NoRoom);
        assert_eq!(batch.0.len(), BATCH - 1);
    }

    #[test]
    fn only_commands_with_one_sync_are_taken() {
        let whole = [Step::Invalidate(page(1, 1)), Step::Sync];
        let mut steps = whole.into_iter();
        let first = steps.next();
        assert!(matches!(parse(first, &mut steps), Parsed::Whole(own) if own.len() == 1));
        let twice = whole.into_iter().chain(whole);
        let open = core::iter::once(whole[0]);
        let many = (0..9).map(|n| Step::Invalidate(page(1, n)));
        let sorts: [Vec<Step>; 3] = [twice.collect(), open.collect(), many.collect()];
        for sort in sorts {
            let mut steps = sort.iter().copied();
            let first = steps.next();
            let Parsed::Other(own, rest) = parse(first, &mut steps) else {
                panic!("taken whole");
            };
            let again: Vec<Step> = own
                .into_iter()
                .map(Step::Invalidate)
                .chain(rest)
                .chain(steps)
                .collect();
            assert_eq!(again, sort);
        }
    }
}
