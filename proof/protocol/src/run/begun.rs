//! Beginnings of accepted runs: one that begins as another did is checked from where they part.
//!
//! Address spaces and debts are numbered in the order in which a run names them, so that runs which differ in names
//! alone are one. Memory grows with the steps of all runs after they part: for interleavings of a short run.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use portolan::addr::{IovaRange, TableId};
use portolan::platform::{DebtName, ProtocolStep, WalkCaches};

use super::cells::ends;

/// A step with numbers in place of names: its kind, its address space, and what it is of.
type Numbered = [u64; 5];

/// Steps of accepted runs, each by the one before it; 0 is before the first.
#[derive(Default)]
pub(super) struct Begun(Mutex<HashMap<(usize, Numbered), usize>>);

impl Begun {
    fn steps(&self) -> MutexGuard<'_, HashMap<(usize, Numbered), usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The step that an accepted run made after another.
    pub fn after(&self, before: usize, step: Numbered) -> Option<usize> {
        self.steps().get(&(before, step)).copied()
    }

    /// Adds an accepted step.
    pub fn accept(&self, before: usize, step: Numbered) -> usize {
        let mut steps = self.steps();
        let next = steps.len() + 1;
        *steps.entry((before, step)).or_insert(next)
    }
}

/// Way of a run along others.
#[derive(Debug, Default)]
pub(super) struct Way {
    /// The last step.
    pub at: usize,
    /// Steps that others made as well, and that this run has not made.
    pub skipped: Vec<(TableId, ProtocolStep)>,
    spaces: Vec<TableId>,
    debts: Vec<Option<DebtName>>,
}

impl Way {
    /// The step with numbers; none of one that is not known here.
    pub fn numbered(&mut self, of: TableId, step: ProtocolStep) -> Option<Numbered> {
        let space = self.space(of);
        let in_table = |table: portolan::addr::PhysAddr, range| {
            let [first, last] = both(range);
            [table.get(), first, last]
        };
        let in_range = |range| {
            let [first, last] = both(range);
            [first, last, 0]
        };
        let (kind, [a, b, c]) = match step {
            ProtocolStep::Find { table, range } => (0, in_table(table, range)),
            ProtocolStep::Link { table, spans } => (1, in_table(table, spans)),
            ProtocolStep::Write { table, range } => (2, in_table(table, range)),
            ProtocolStep::Split { table, spans } => (3, in_table(table, spans)),
            ProtocolStep::Clear { range } => (4, in_range(range)),
            ProtocolStep::Take { range } => (5, in_range(range)),
            ProtocolStep::TakeOut { table } => (6, [table.get(), 0, 0]),
            ProtocolStep::Send { debt, range, walk_caches } => {
                let [first, last] = both(range);
                let kind = 7 + u64::from(walk_caches == WalkCaches::Forget);
                (kind, [self.debt(debt) as u64, first, last])
            }
            ProtocolStep::Settle { debt } => (9, [self.ended(debt), 0, 0]),
            ProtocolStep::Fail { debt } => (10, [self.ended(debt), 0, 0]),
            ProtocolStep::Free { table } => (11, [table.get(), 0, 0]),
            ProtocolStep::GiveBack { range } => (12, in_range(range)),
            ProtocolStep::End => (13, [0; 3]),
            _ => return None,
        };
        Some([kind, space, a, b, c])
    }

    fn space(&mut self, of: TableId) -> u64 {
        let known = self.spaces.iter().position(|space| *space == of);
        let number = known.unwrap_or(self.spaces.len());
        if known.is_none() {
            self.spaces.push(of);
        }
        number as u64
    }

    fn debt(&mut self, name: DebtName) -> usize {
        let place = |debts: &[Option<DebtName>], of| debts.iter().position(|debt| *debt == of);
        let known = place(&self.debts, Some(name)).or_else(|| place(&self.debts, None));
        let number = known.unwrap_or(self.debts.len());
        match self.debts.get_mut(number) {
            Some(debt) => *debt = Some(name),
            None => self.debts.push(Some(name)),
        }
        number
    }

    /// The number of a debt that is no more on its way; its name may be another's next.
    fn ended(&mut self, name: DebtName) -> u64 {
        let number = self.debt(name);
        self.debts[number] = None;
        number as u64
    }
}

fn both(range: IovaRange) -> [u64; 2] {
    let (first, last) = ends(range);
    [first, last]
}
