//! Pages of tables: in the tree, owed, and given back.

use std::collections::{BTreeMap, BTreeSet};

use portolan::addr::IovaRange;

use super::cells::ends;
use super::facts::Thing;
use super::rules::{StepNumber, Things, Unmet};
use super::{Made, Run};
use crate::expr::Sort;

/// State of a page that is or was a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Hangs,
    /// Taken out, with its debt.
    Left(Thing),
    /// Given back, as the protocol has it; walks of the library's own may still read it.
    GivenBack,
    /// Made for the tree, and owed without having been in it.
    NeverHung,
}

/// Page of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    pub thing: Thing,
    pub slot: Thing,
    pub place: Place,
    space: u64,
    spans: (u64, u64),
}

/// All of them, by address.
#[derive(Debug, Default)]
pub(super) struct Pages {
    known: BTreeMap<u64, Page>,
    slots: BTreeMap<(u64, (u64, u64)), Thing>,
    /// Those that have left, by slot.
    left: BTreeMap<Thing, BTreeSet<u64>>,
    /// Address spaces whose root is known.
    rooted: BTreeSet<u64>,
}

impl Pages {
    pub fn get(&self, page: u64) -> Option<&Page> {
        self.known.get(&page)
    }

    /// Those of an address space that have left and span an address of the range.
    pub fn left_in(&self, space: u64, first: u64, last: u64) -> Vec<(u64, Thing)> {
        let pages = self.left.values().flatten().filter_map(|page| Some((page, self.get(*page)?)));
        let here = pages.filter(|(_, page)| {
            page.space == space && page.spans.0 <= last && page.spans.1 >= first
        });
        here.filter_map(|(at, page)| match page.place {
            Place::Left(debt) => Some((*at, debt)),
            _ => None,
        })
        .collect()
    }
}

const fn unmet<T>(step: &'static str, guard: &'static str) -> Made<T> {
    Err(Unmet { step, guard })
}

impl Run {
    fn slot(&mut self, space: u64, spans: (u64, u64)) -> Thing {
        match self.pages.slots.get(&(space, spans)) {
            Some(slot) => *slot,
            None => {
                let slot = self.new_thing(Sort::Slot);
                self.pages.slots.insert((space, spans), slot);
                slot
            }
        }
    }

    /// The table in a page, and its slot. The first that is not known is the root, which hangs from the start.
    pub(super) fn hanging(
        &mut self,
        space: u64,
        page: u64,
        step: StepNumber,
    ) -> Made<(Thing, Thing)> {
        if let Some(page) = self.pages.get(page) {
            return Ok((page.thing, page.slot));
        }
        if !self.pages.rooted.insert(space) {
            let table = self.new_thing(Sort::Table);
            let slot = self.slot(space, (0, u64::MAX));
            let (index, frame) = (self.new_thing(Sort::Index), self.new_thing(Sort::Frame));
            let things = Things::NONE.with(Sort::Table, table).with(Sort::Slot, slot);
            // A page of no table hangs nowhere.
            self.make(step, things.with(Sort::Index, index).with(Sort::Frame, frame))?;
            return unmet("find a table that hangs there", "the page is a table's");
        }
        self.hang(space, page, (0, u64::MAX))
    }

    /// A table comes to hang in its slot. The map that made it has not found it yet.
    fn hang(&mut self, space: u64, page: u64, spans: (u64, u64)) -> Made<(Thing, Thing)> {
        let slot = self.slot(space, spans);
        self.give_back_tables_of(slot)?;
        let thing = match self.pages.get(page) {
            None => self.new_thing(Sort::Table),
            Some(Page { place: Place::Hangs | Place::Left(_), thing, .. }) => *thing,
            Some(_) => return unmet("link a new table", "no walk may read the page"),
        };
        let (index, frame) = (self.new_thing(Sort::Index), self.new_thing(Sort::Frame));
        let things = Things::NONE.with(Sort::Table, thing).with(Sort::Slot, slot);
        self.make(self.known.link, things.with(Sort::Index, index).with(Sort::Frame, frame))?;
        self.forget(Sort::Index, index);
        self.forget(Sort::Frame, frame);
        let place = Place::Hangs;
        self.pages.known.insert(page, Page { thing, slot, place, space, spans });
        Ok((thing, slot))
    }

    pub(super) fn link(&mut self, space: u64, page: u64, spans: IovaRange) -> Made {
        self.hang(space, page, ends(spans)).map(drop)
    }

    /// All addresses of the tables in the range are taken.
    pub(super) fn take(&mut self, space: u64, range: IovaRange) -> Made {
        let (first, last) = ends(range);
        let inside = self.pages.known.values().filter(|page| {
            let Page { space: of, place, spans, .. } = **page;
            of == space && place == Place::Hangs && spans.0 >= first && spans.1 <= last
        });
        let tables: Vec<Thing> = inside.map(|page| page.thing).collect();
        tables
            .into_iter()
            .try_for_each(|table| self.make(self.known.take, Things::NONE.with(Sort::Table, table)))
    }

    /// A table leaves; where no step has taken its addresses, the caller owns them, and this is both steps.
    pub(super) fn take_out(&mut self, space: u64, page: u64) -> Made {
        let debt = self.new_thing(Sort::Debt);
        let Some(Page { thing, slot, .. }) = self.pages.get(page).copied() else {
            let (thing, slot) = (self.new_thing(Sort::Table), self.slot(space, (0, u64::MAX)));
            let (place, spans) = (Place::NeverHung, (0, 0));
            self.pages.known.insert(page, Page { thing, slot, place, space, spans });
            return Ok(());
        };
        let things = Things::NONE.with(Sort::Table, thing);
        if !self.facts.is(self.known.closed, &[thing]) {
            self.make(self.known.take, things)?;
        }
        self.make(self.known.take_out, things.with(Sort::Debt, debt))?;
        if let Some(page) = self.pages.known.get_mut(&page) {
            page.place = Place::Left(debt);
        }
        self.pages.left.entry(slot).or_default().insert(page);
        Ok(())
    }

    /// Gives back a page that has left.
    fn give_back_table(&mut self, page: u64, debt: Thing) -> Made {
        self.give_back_debt(debt)?;
        if let Some(known) = self.pages.known.get_mut(&page) {
            known.place = Place::GivenBack;
            if let Some(left) = self.pages.left.get_mut(&known.slot) {
                left.remove(&page);
                if left.is_empty() {
                    self.pages.left.remove(&known.slot);
                }
            }
        }
        Ok(())
    }

    /// Gives back the tables of a slot whose debt is settled.
    pub(super) fn give_back_tables_of(&mut self, slot: Thing) -> Made {
        let left = self.pages.left.get(&slot).into_iter().flatten();
        let left = left.filter_map(|page| match self.pages.get(*page)?.place {
            Place::Left(debt) if self.is_settled(debt) => Some((*page, debt)),
            _ => None,
        });
        let left: Vec<_> = left.collect();
        left.into_iter().try_for_each(|(page, debt)| self.give_back_table(page, debt))
    }

    /// Gives back the tables that addresses of the range lead to. Those whose addresses were taken in vain stay.
    pub(super) fn give_back_tables_in(&mut self, space: u64, range: IovaRange) -> Made {
        let (first, last) = ends(range);
        for (page, debt) in self.pages.left_in(space, first, last) {
            self.give_back_table(page, debt)?;
        }
        let mut closed = Vec::new();
        self.facts.some(self.known.closed, &[None], &mut |row| {
            closed.extend_from_slice(row);
            false
        });
        for table in closed {
            let page = self.pages.known.values().find(|page| page.thing == table);
            let inside = page.is_some_and(|page| {
                page.space == space && page.spans.0 >= first && page.spans.1 <= last
            });
            if inside {
                self.facts.remove(self.known.closed, &[table]);
            }
        }
        Ok(())
    }

    /// A page goes back to its memory.
    pub(super) fn free(&mut self, page: u64) -> Made {
        let Some(known) = self.pages.get(page).copied() else {
            return unmet("give back what a settled debt held", "the page has left, once");
        };
        match known.place {
            Place::Left(debt) => self.give_back_table(page, debt)?,
            Place::GivenBack | Place::NeverHung => {}
            Place::Hangs => {
                return unmet("give back what a settled debt held", "the page has left, once");
            }
        }
        self.pages.known.remove(&page);
        self.forget(Sort::Table, known.thing);
        Ok(())
    }

    /// Ends all pages of an address space.
    pub(super) fn end_pages(&mut self, space: u64) {
        let of = |(at, page): (&u64, &Page)| (page.space == space).then_some((*at, *page));
        let pages: Vec<_> = self.pages.known.iter().filter_map(of).collect();
        for (at, page) in pages {
            self.pages.known.remove(&at);
            self.pages.left.remove(&page.slot);
            self.forget(Sort::Table, page.thing);
            if let Place::Left(debt) = page.place {
                self.forget(Sort::Debt, debt);
                self.carriers.remove(&debt);
            }
        }
        let slots = self.pages.slots.iter().filter(|((of, _), _)| *of == space);
        let slots: Vec<_> = slots.map(|(key, slot)| (*key, *slot)).collect();
        for (key, slot) in slots {
            self.pages.slots.remove(&key);
            self.forget(Sort::Slot, slot);
        }
        self.pages.rooted.remove(&space);
    }
}
