//! The protocol's steps, made on the facts of a run.

use super::facts::{KnownFacts, Thing};
use super::query::{Known, Operand, Query, QueryReader};
use crate::expr::{FormulaError, Sort, parse_variables};
use crate::protocol::{Change, Protocol, Step};

/// Things of a step, one of a sort at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Things([Option<Thing>; Sort::ALL.len()]);

impl Things {
    /// None.
    pub const NONE: Self = Self([None; Sort::ALL.len()]);

    /// The same, with a thing of a sort.
    pub const fn with(mut self, sort: Sort, thing: Thing) -> Self {
        self.0[sort as usize] = Some(thing);
        self
    }

    const fn of(&self, sort: Sort) -> Option<Thing> {
        self.0[sort as usize]
    }
}

/// Step that does not fit, and the guard that is false.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unmet {
    pub step: &'static str,
    pub guard: &'static str,
}

struct Guard {
    says: &'static str,
    query: Query,
}

struct RuleEdit {
    relation: usize,
    adds: bool,
    things: Vec<Operand>,
    query: Query,
}

struct Set {
    function: usize,
    of: usize,
    is: usize,
}

struct StepRule {
    name: &'static str,
    /// Of the first variables; the others are of formulas.
    sorts: Vec<Sort>,
    guards: Vec<Guard>,
    edits: Vec<RuleEdit>,
    sets: Vec<Set>,
    variables: usize,
}

/// All steps, and the facts that are true of each new thing.
pub(super) struct Rules {
    steps: Vec<StepRule>,
    /// Sorts of each relation's places.
    relations: Vec<(&'static str, &'static [Sort])>,
    functions: Vec<Sort>,
    full: Vec<(usize, Sort)>,
}

/// Number of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepNumber(usize);

impl Rules {
    /// Reads the protocol.
    pub fn new(protocol: &Protocol) -> Result<Self, FormulaError> {
        let steps = protocol.steps.iter().map(|step| ready(protocol, step));
        let relations: Vec<_> =
            protocol.relations.iter().map(|one| (one.name, one.sorts)).collect();
        let full = relations.iter().enumerate().filter_map(|(number, (name, sorts))| match sorts {
            [sort] if protocol.full.contains(name) => Some((number, *sort)),
            _ => None,
        });
        Ok(Self {
            steps: steps.collect::<Result<_, _>>()?,
            functions: protocol.functions.iter().map(|one| one.of).collect(),
            full: full.collect(),
            relations,
        })
    }

    /// No facts.
    pub fn facts(&self) -> KnownFacts {
        KnownFacts::new(self.relations.iter().map(|(_, sorts)| sorts.len()), self.functions.len())
    }

    /// The number of the step of that name.
    pub fn step(&self, name: &str) -> Result<StepNumber, FormulaError> {
        let found = self.steps.iter().position(|step| step.name == name).map(StepNumber);
        let reason = "there is no such step".to_owned();
        found.ok_or_else(|| FormulaError { text: name.to_owned(), reason })
    }

    /// The number of a relation.
    pub fn relation(&self, name: &str) -> Result<usize, FormulaError> {
        let found = self.relations.iter().position(|(known, _)| *known == name);
        let reason = "there is no such fact".to_owned();
        found.ok_or_else(|| FormulaError { text: name.to_owned(), reason })
    }

    /// Adds the facts that are true of all things at the start.
    pub fn begin(&self, facts: &mut KnownFacts, sort: Sort, thing: Thing) {
        let own = self.full.iter().filter(|(_, of)| *of == sort);
        own.for_each(|(relation, _)| facts.add(*relation, &[thing]));
    }

    /// Ends all facts of a thing that is none any more.
    pub fn end(&self, facts: &mut KnownFacts, sort: Sort, thing: Thing) {
        for (relation, (_, sorts)) in self.relations.iter().enumerate() {
            for (place, _) in sorts.iter().enumerate().filter(|(_, of)| **of == sort) {
                facts.forget(relation, place, thing);
            }
        }
        for (function, _) in self.functions.iter().enumerate().filter(|(_, of)| **of == sort) {
            facts.unset(function, thing);
        }
    }

    /// Makes the facts that are of one thing alone the same for `new` as for `old`.
    pub fn copy(&self, facts: &mut KnownFacts, sort: Sort, old: Thing, new: Thing) {
        for (relation, (_, sorts)) in self.relations.iter().enumerate() {
            if **sorts == [sort] {
                match facts.is(relation, &[old]) {
                    true => facts.add(relation, &[new]),
                    false => facts.remove(relation, &[new]),
                }
            }
        }
    }

    /// Makes a step.
    pub fn make(
        &self,
        facts: &mut KnownFacts,
        step: StepNumber,
        things: Things,
    ) -> Result<(), Unmet> {
        let step = &self.steps[step.0];
        let mut known: Known = step.sorts.iter().map(|sort| things.of(*sort)).collect();
        known.resize(step.variables, None);
        for guard in &step.guards {
            if !guard.query.solve(facts, &mut known, &mut |_| true) {
                return Err(Unmet { step: step.name, guard: guard.says });
            }
            known.truncate(step.sorts.len());
            known.resize(step.variables, None);
        }
        let mut changes = Vec::new();
        for edit in &step.edits {
            edit.query.solve(facts, &mut known, &mut |known| {
                let things = edit.things.iter().map(|value| match value {
                    Operand::Variable(variable) | Operand::Function { of: variable, .. } => {
                        known[*variable]
                    }
                });
                changes.extend(things.collect::<Option<Vec<_>>>().map(|row| (edit, row)));
                false
            });
        }
        for (edit, row) in changes {
            match edit.adds {
                true => facts.add(edit.relation, &row),
                false => facts.remove(edit.relation, &row),
            }
        }
        for set in &step.sets {
            if let (Some(of), Some(is)) = (known[set.of], known[set.is]) {
                facts.set(set.function, of, is);
            }
        }
        Ok(())
    }
}

fn ready(protocol: &Protocol, step: &Step) -> Result<StepRule, FormulaError> {
    let variables = parse_variables(step.variables)?;
    let names: Vec<String> = variables.iter().map(|one| one.name.clone()).collect();
    let mut most = names.len();
    let reading =
        || QueryReader { protocol, names: names.clone(), known: (0..names.len()).collect() };
    let mut guards = Vec::new();
    for guard in &step.guards {
        let mut reading = reading();
        guards.push(Guard { says: guard.says, query: reading.query(guard.is)? });
        most = most.max(reading.names.len());
    }
    let (mut edits, mut sets) = (Vec::new(), Vec::new());
    for change in &step.changes {
        let mut reading = reading();
        match change {
            Change::Set(name, of, is) => sets.push(Set {
                function: reading.function(name)?,
                of: reading.variable(of)?,
                is: reading.variable(is)?,
            }),
            _ => edits.push(edit(&mut reading, change)?),
        }
        most = most.max(reading.names.len());
    }
    let sorts = variables.iter().map(|one| one.sort).collect();
    Ok(StepRule { name: step.name, sorts, guards, edits, sets, variables: most })
}

fn edit(reading: &mut QueryReader<'_>, change: &Change) -> Result<RuleEdit, FormulaError> {
    let reason = "the fact is not known".to_owned();
    let name = change.name();
    let relation = reading.relation(name);
    let relation = relation.ok_or_else(|| FormulaError { text: name.to_owned(), reason })?;
    let adds = matches!(change, Change::Add(..) | Change::AddAll(..));
    let (places, is) = match change {
        Change::AddAll(_, places, is) | Change::RemoveAll(_, places, is) => (*places, *is),
        Change::Add(_, places) | Change::Remove(_, places) => (*places, "true"),
        Change::Set(..) => (&[] as &[&str], "true"),
    };
    let all = matches!(change, Change::AddAll(..) | Change::RemoveAll(..));
    let mut things = Vec::new();
    for place in places {
        // A name of a formula over all things is new, whatever the step's variables are called.
        if all || *place == "*" {
            things.push(Operand::Variable(reading.names.len()));
            reading.names.push((*place).to_owned());
        } else {
            things.push(Operand::Variable(reading.variable(place)?));
        }
    }
    let mut list = Vec::new();
    if !adds {
        list.push(Query::Fact { relation, of: things.clone() });
    }
    list.push(reading.unordered(is)?);
    let query = reading.in_order(Query::All(list), is)?;
    Ok(RuleEdit { relation, adds, things, query })
}
