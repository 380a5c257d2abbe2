//! The facts that are true, found by any of their things.
//!
//! Not supported: relations of more than four things.

use std::collections::{BTreeMap, BTreeSet};

/// Thing of a run; a number is one thing's for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Thing(pub u64);

/// Most things of a fact.
const MOST: usize = 4;

type Row = [Thing; MOST];

/// KnownFacts of one relation, in as many orders as it has places: each begins with another.
#[derive(Clone, Debug)]
struct Rows {
    places: usize,
    turned: Vec<BTreeSet<Row>>,
}

impl Rows {
    /// The things of `row`, from `place` on and around.
    fn turn(&self, row: &[Thing], place: usize) -> Row {
        std::array::from_fn(|at| match at < self.places {
            true => row[(place + at) % self.places],
            false => Thing(0),
        })
    }
}

/// Values of one function, and the things that have each.
#[derive(Clone, Debug, Default)]
struct Values {
    of: BTreeMap<Thing, Thing>,
    having: BTreeSet<(Thing, Thing)>,
}

/// All facts and values of a run.
#[derive(Clone, Debug)]
pub(super) struct KnownFacts {
    relations: Vec<Rows>,
    functions: Vec<Values>,
}

impl KnownFacts {
    /// No facts, of relations of as many places each, and of functions.
    pub fn new(places: impl Iterator<Item = usize>, functions: usize) -> Self {
        let rows = |places| Rows { places, turned: vec![BTreeSet::new(); places] };
        Self {
            relations: places.map(rows).collect(),
            functions: vec![Values::default(); functions],
        }
    }

    pub fn add(&mut self, relation: usize, things: &[Thing]) {
        let rows = &mut self.relations[relation];
        for place in 0..rows.places {
            let turned = rows.turn(things, place);
            rows.turned[place].insert(turned);
        }
    }

    pub fn remove(&mut self, relation: usize, things: &[Thing]) {
        let rows = &mut self.relations[relation];
        for place in 0..rows.places {
            let turned = rows.turn(things, place);
            rows.turned[place].remove(&turned);
        }
    }

    pub fn is(&self, relation: usize, things: &[Thing]) -> bool {
        let rows = &self.relations[relation];
        rows.turned[0].contains(&rows.turn(things, 0))
    }

    pub fn set(&mut self, function: usize, of: Thing, is: Thing) {
        let values = &mut self.functions[function];
        if let Some(before) = values.of.insert(of, is) {
            values.having.remove(&(before, of));
        }
        values.having.insert((is, of));
    }

    pub fn value(&self, function: usize, of: Thing) -> Option<Thing> {
        self.functions[function].of.get(&of).copied()
    }

    /// The things whose value is `is`.
    pub fn having(&self, function: usize, is: Thing) -> impl Iterator<Item = Thing> + '_ {
        let all = (is, Thing(0))..=(is, Thing(u64::MAX));
        self.functions[function].having.range(all).map(|(_, of)| *of)
    }

    /// The facts that have the things that are known, in their places, until `each` says that it has seen enough.
    pub fn some(
        &self,
        relation: usize,
        known: &[Option<Thing>],
        each: &mut dyn FnMut(&[Thing]) -> bool,
    ) -> bool {
        let rows = &self.relations[relation];
        let places = rows.places;
        let length = |from: usize| {
            (0..places).take_while(|at| known[(from + at) % places].is_some()).count()
        };
        let from = (0..places).max_by_key(|from| length(*from)).unwrap_or(0);
        let prefix = length(from);
        let end = |rest: Thing| -> Row {
            std::array::from_fn(|at| match at < prefix {
                true => known[(from + at) % places].unwrap_or(rest),
                false => rest,
            })
        };
        let found = rows.turned[from].range(end(Thing(0))..=end(Thing(u64::MAX)));
        for turned in found {
            let row: Row = std::array::from_fn(|at| match at < places {
                true => turned[(at + places - from) % places],
                false => Thing(0),
            });
            let fits =
                row.iter().zip(known).all(|(thing, known)| known.is_none_or(|one| one == *thing));
            if fits && each(&row[..places]) {
                return true;
            }
        }
        false
    }

    /// Ends all facts of a relation that have a thing in a place.
    pub fn forget(&mut self, relation: usize, place: usize, thing: Thing) {
        let mut known = vec![None; self.relations[relation].places];
        known[place] = Some(thing);
        let mut gone = Vec::new();
        self.some(relation, &known, &mut |row| {
            gone.push(row.to_vec());
            false
        });
        gone.iter().for_each(|row| self.remove(relation, row));
    }

    /// Ends the value of a thing.
    pub fn unset(&mut self, function: usize, of: Thing) {
        let values = &mut self.functions[function];
        if let Some(is) = values.of.remove(&of) {
            values.having.remove(&(is, of));
        }
    }
}
