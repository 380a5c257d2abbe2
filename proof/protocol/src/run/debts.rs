//! Debts of the library, each of which covers the debts of entries and tables.

use portolan::addr::IovaRange;
use portolan::platform::{DebtName, WalkCaches};

use super::cells::{Stage, ends};
use super::facts::Thing;
use super::rules::Things;
use super::{Made, Run};
use crate::expr::Sort;

const fn of(debt: Thing) -> Things {
    Things::NONE.with(Sort::Debt, debt)
}

impl Run {
    /// A part of a debt goes to the unit: all that it covers goes with it.
    pub(super) fn send(
        &mut self,
        space: u64,
        name: DebtName,
        range: IovaRange,
        walk_caches: WalkCaches,
    ) -> Made {
        let mut covered = Vec::new();
        for first in self.cut(space, range) {
            let cell = self.spaces.get(&space).and_then(|cells| cells.0.get(&first));
            if let Some(Stage::Pending(debt)) = cell.map(|cell| cell.stage) {
                covered.push(debt);
            }
        }
        if walk_caches == WalkCaches::Forget {
            let (first, last) = ends(range);
            let left = self.pages.left_in(space, first, last);
            covered.extend(left.into_iter().map(|(_, debt)| debt));
        }
        let known = self.sent.get(&name).map_or(&[] as &[Thing], Vec::as_slice);
        covered.retain(|debt| !self.is_settled(*debt) && !known.contains(debt));
        for &debt in &covered {
            if !self.facts.is(self.known.sent, &[debt]) {
                self.make(self.known.send, of(debt))?;
            }
            *self.carriers.entry(debt).or_default() += 1;
        }
        self.sent.entry(name).or_default().append(&mut covered);
        Ok(())
    }

    /// A debt is no more on its way; those that it covered, and that are owed still.
    fn arrived(&mut self, name: DebtName) -> Vec<Thing> {
        let covered = self.sent.remove(&name).unwrap_or_default();
        for debt in &covered {
            if let Some(count) = self.carriers.get_mut(debt) {
                *count = count.saturating_sub(1);
            }
        }
        covered.into_iter().filter(|debt| !self.is_settled(*debt)).collect()
    }

    /// The unit has carried a debt out.
    pub(super) fn settle(&mut self, name: DebtName) -> Made {
        for debt in self.arrived(name) {
            self.make(self.known.told, of(debt))?;
            self.make(self.known.settle, of(debt))?;
        }
        Ok(())
    }

    /// The unit has failed: what no other debt on its way covers has to be sent again.
    pub(super) fn fail(&mut self, name: DebtName) -> Made {
        for debt in self.arrived(name) {
            if self.carriers.get(&debt).is_none_or(|count| *count == 0) {
                self.make(self.known.fail, of(debt))?;
            }
        }
        Ok(())
    }

    /// A debt of a part of what `whole` is a debt of.
    pub(super) fn halve(&mut self, whole: Thing) -> Thing {
        let debt = self.new_thing(Sort::Debt);
        self.known.rules.copy(&mut self.facts, Sort::Debt, whole, debt);
        if let Some(count) = self.carriers.get(&whole).copied() {
            self.carriers.insert(debt, count);
        }
        let lists = self.sent.values_mut().filter(|list| list.contains(&whole));
        lists.for_each(|list| list.push(debt));
        debt
    }
}
