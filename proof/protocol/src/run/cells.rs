//! Entries of an address space: mapped, about to be, and owed.

use std::collections::BTreeMap;

use portolan::addr::IovaRange;

use super::facts::Thing;
use super::rules::{Things, Unmet};
use super::{Made, Run};
use crate::expr::Sort;

/// State of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Coming,
    Mapped,
    /// Unmapped, with its debt.
    Pending(Thing),
}

/// Entries next to each other, all of the same facts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    /// The last address.
    pub last: u64,
    pub slot: Thing,
    pub table: Thing,
    pub index: Thing,
    pub frame: Thing,
    pub stage: Stage,
}

impl Cell {
    fn things(&self) -> Things {
        Things::NONE
            .with(Sort::Slot, self.slot)
            .with(Sort::Table, self.table)
            .with(Sort::Index, self.index)
            .with(Sort::Frame, self.frame)
    }
}

/// The cells of an address space, by first address.
#[derive(Debug, Default)]
pub(super) struct Cells(pub BTreeMap<u64, Cell>);

impl Cells {
    /// First addresses of the cells that have an address of the range.
    pub fn within(&self, first: u64, last: u64) -> Vec<u64> {
        let before = self.0.range(..first).next_back().filter(|(_, cell)| cell.last >= first);
        let before = before.map(|(first, _)| *first);
        before.into_iter().chain(self.0.range(first..=last).map(|(first, _)| *first)).collect()
    }
}

pub(super) const fn ends(range: IovaRange) -> (u64, u64) {
    (range.start().get(), range.last().get())
}

impl Run {
    /// Makes the cells of the range end with it; their first addresses.
    pub(super) fn cut(&mut self, space: u64, range: IovaRange) -> Vec<u64> {
        let (first, last) = ends(range);
        self.part(space, first);
        if let Some(after) = last.checked_add(1) {
            self.part(space, after);
        }
        self.spaces.entry(space).or_default().within(first, last)
    }

    /// Makes a cell begin at `at`, if one has it inside: both halves have the facts of the whole.
    fn part(&mut self, space: u64, at: u64) {
        let cells = self.spaces.entry(space).or_default();
        let Some((first, old)) =
            cells.0.range(..at).next_back().map(|(first, cell)| (*first, *cell))
        else {
            return;
        };
        if old.last < at {
            return;
        }
        let (index, frame) = (self.new_thing(Sort::Index), self.new_thing(Sort::Frame));
        self.known.rules.copy(&mut self.facts, Sort::Frame, old.frame, frame);
        let stage = match old.stage {
            Stage::Pending(whole) => Stage::Pending(self.halve(whole)),
            stage => stage,
        };
        let new = Cell { index, frame, stage, ..old };
        match stage {
            Stage::Coming => self.facts.add(self.known.coming, &[new.table, index, frame]),
            Stage::Mapped => self.facts.add(self.known.leaf, &[new.table, index, frame]),
            Stage::Pending(debt) => {
                self.facts.add(self.known.pending, &[new.slot, index, frame, debt]);
            }
        }
        let cells = self.spaces.entry(space).or_default();
        cells.0.insert(first, Cell { last: at - 1, ..old });
        cells.0.insert(at, new);
    }

    /// A map has found a table.
    pub(super) fn find(&mut self, space: u64, page: u64, range: IovaRange) -> Made {
        let (table, slot) = self.hanging(space, page, self.known.find)?;
        self.give_back_tables_of(slot)?;
        let cells = self.cut(space, range);
        for first in &cells {
            let Some(cell) = self.spaces.entry(space).or_default().0.get(first).copied() else {
                continue;
            };
            match cell.stage {
                Stage::Pending(debt) if self.is_settled(debt) => {
                    self.give_back_cell(space, *first, cell, debt)?;
                }
                _ => {
                    // A guard is false: entries of one use are not another's.
                    let frame = self.new_thing(Sort::Frame);
                    let things = cell.things().with(Sort::Frame, frame);
                    let things = things.with(Sort::Table, table).with(Sort::Slot, slot);
                    self.make(self.known.find, things)?;
                    let guard = "the address has no entry in another table";
                    return Err(Unmet { step: "find a table that hangs there", guard });
                }
            }
        }
        let (index, frame) = (self.new_thing(Sort::Index), self.new_thing(Sort::Frame));
        let (first, last) = ends(range);
        let cell = Cell { last, slot, table, index, frame, stage: Stage::Coming };
        self.make(self.known.find, cell.things())?;
        self.spaces.entry(space).or_default().0.insert(first, cell);
        Ok(())
    }

    /// A map has written what it was about to.
    pub(super) fn write(&mut self, space: u64, page: u64, range: IovaRange) -> Made {
        let table = self.pages.get(page).map(|page| page.thing);
        let cells = self.cut(space, range);
        if cells.is_empty() {
            let guard = "a map has found the entry";
            return Err(Unmet { step: "write an entry", guard });
        }
        for first in cells {
            let cells = self.spaces.entry(space).or_default();
            let Some(cell) = cells.0.get_mut(&first) else {
                continue;
            };
            cell.stage = Stage::Mapped;
            let things = cell.things();
            let things = table.map_or(things, |table| things.with(Sort::Table, table));
            self.make(self.known.write, things)?;
        }
        Ok(())
    }

    /// Entries are cleared.
    pub(super) fn clear(&mut self, space: u64, range: IovaRange) -> Made {
        let cells = self.cut(space, range);
        if cells.is_empty() {
            return Err(Unmet { step: "clear an entry", guard: "some entry is written" });
        }
        for first in cells {
            let debt = self.new_thing(Sort::Debt);
            let cells = self.spaces.entry(space).or_default();
            let Some(cell) = cells.0.get_mut(&first) else {
                continue;
            };
            cell.stage = Stage::Pending(debt);
            let things = cell.things().with(Sort::Debt, debt);
            self.make(self.known.clear, things)?;
        }
        Ok(())
    }

    fn give_back_cell(&mut self, space: u64, first: u64, cell: Cell, debt: Thing) -> Made {
        self.give_back_debt(debt)?;
        self.spaces.entry(space).or_default().0.remove(&first);
        self.forget(Sort::Index, cell.index);
        self.forget(Sort::Frame, cell.frame);
        Ok(())
    }

    /// Addresses go back to their allocator.
    pub(super) fn give_back(&mut self, space: u64, range: IovaRange) -> Made {
        for first in self.cut(space, range) {
            let Some(cell) = self.spaces.entry(space).or_default().0.get(&first).copied() else {
                continue;
            };
            match cell.stage {
                Stage::Pending(debt) => self.give_back_cell(space, first, cell, debt)?,
                Stage::Coming | Stage::Mapped => {
                    let guard = "addresses that go back are in no use";
                    return Err(Unmet { step: "give back what a settled debt held", guard });
                }
            }
        }
        self.give_back_tables_in(space, range)
    }

    /// Moves the translations of a leaf to a table in its place.
    pub(super) fn split(&mut self, space: u64, page: u64, spans: IovaRange) -> Made {
        self.link(space, page, spans)?;
        let (table, slot) = self.hanging(space, page, self.known.link)?;
        for first in self.cut(space, spans) {
            let index = self.new_thing(Sort::Index);
            let leaf = self.known.leaf;
            let cells = self.spaces.entry(space).or_default();
            let Some(cell) = cells.0.get_mut(&first).filter(|cell| cell.stage == Stage::Mapped)
            else {
                continue;
            };
            let old = *cell;
            *cell = Cell { table, slot, index, ..old };
            self.facts.remove(leaf, &[old.table, old.index, old.frame]);
            self.facts.add(leaf, &[table, index, old.frame]);
        }
        Ok(())
    }

    /// Ends an address space: no unit has it.
    pub(super) fn end(&mut self, space: u64) {
        for cell in self.spaces.remove(&space).unwrap_or_default().0.into_values() {
            self.forget(Sort::Index, cell.index);
            self.forget(Sort::Frame, cell.frame);
            if let Stage::Pending(debt) = cell.stage {
                self.forget(Sort::Debt, debt);
                self.carriers.remove(&debt);
            }
        }
        self.end_pages(space);
    }
}
