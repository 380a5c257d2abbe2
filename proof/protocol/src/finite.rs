//! All states of a machine of few things, and the shortest way to each.
//!
//! The machine runs the same steps as the proof, from the start. It shows how a defect leads to an
//! access that must not be, and that each step can happen.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::expr::{Formula, FormulaError, Sort, Term, Variable, parse_variables};
use crate::protocol::{Actor, Change, Claim, Protocol, Step};

/// Number of things of each sort; none of those that are not named.
#[derive(Clone, Copy, Debug)]
pub struct Sizes(pub &'static [(Sort, u8)]);

impl Sizes {
    fn of(self, sort: Sort) -> u8 {
        self.0.iter().find(|(known, _)| *known == sort).map_or(0, |(_, size)| *size)
    }
}

impl std::fmt::Display for Sizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let each = self.0.iter().map(|(sort, size)| format!("{} {size}", sort.plural()));
        f.write_str(&each.collect::<Vec<_>>().join(", "))
    }
}

/// State: a bit for each fact, then a number for each value.
pub type State = Box<[u8]>;

/// Step with its things.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Move {
    /// Number of the step.
    pub step: usize,
    /// Numbers of its things.
    pub things: Box<[u8]>,
}

/// Place of a relation in a state.
struct Facts {
    name: &'static str,
    first: usize,
    sizes: Vec<u8>,
}

enum Value {
    Thing(u8),
    Variable(usize),
    Function(usize, Box<Value>),
}

/// Formula with the places of its facts and variables.
enum Test {
    Fact(usize, Vec<Value>),
    Same(Value, Value),
    Not(Box<Test>),
    And(Vec<Test>),
    Or(Vec<Test>),
    /// The variables from this place on, with the numbers of their values.
    ForAll(usize, Vec<u8>, Box<Test>),
    Exists(usize, Vec<u8>, Box<Test>),
}

struct Edit {
    facts: usize,
    adds: bool,
    /// Variables of the facts, after those of the step.
    test: Test,
}

struct Ready {
    name: &'static str,
    actor: Actor,
    sizes: Vec<u8>,
    variables: Vec<Variable>,
    guards: Vec<Test>,
    edits: Vec<Edit>,
    /// Functions that are set: the place of the first value, of what, to what.
    sets: Vec<(usize, Value, Value)>,
}

/// A protocol with a number of things of each sort.
pub struct Machine {
    sizes: Sizes,
    facts: Vec<Facts>,
    functions: Vec<(&'static str, usize)>,
    bytes: usize,
    full: Vec<usize>,
    steps: Vec<Ready>,
}

/// Names and the protocol, while formulas are read.
struct Reading<'p> {
    protocol: &'p Protocol,
    machine: &'p Machine,
}

impl Machine {
    /// Reads a protocol.
    pub fn new(protocol: &Protocol, sizes: Sizes) -> Result<Self, FormulaError> {
        let mut bytes = 0;
        let mut facts = Vec::new();
        for relation in &protocol.relations {
            let of: Vec<u8> = relation.sorts.iter().map(|sort| sizes.of(*sort)).collect();
            let number: usize = of.iter().map(|size| usize::from(*size)).product();
            facts.push(Facts { name: relation.name, first: bytes, sizes: of });
            bytes += number;
        }
        let mut functions = Vec::new();
        for function in &protocol.functions {
            functions.push((function.name, bytes));
            bytes += usize::from(sizes.of(function.of));
        }
        let named = |name: &&'static str| facts.iter().position(|one| one.name == *name);
        let full = protocol.full.iter().filter_map(named).collect();
        let mut machine = Self { sizes, facts, functions, bytes, full, steps: Vec::new() };
        let steps = protocol.steps.iter().map(|step| machine.ready(protocol, step));
        machine.steps = steps.collect::<Result<_, _>>()?;
        Ok(machine)
    }

    fn ready(&self, protocol: &Protocol, step: &Step) -> Result<Ready, FormulaError> {
        let variables = parse_variables(step.variables)?;
        let reading = Reading { protocol, machine: self };
        let names: Vec<String> = variables.iter().map(|one| one.name.clone()).collect();
        let guards = step.guards.iter().map(|guard| reading.text(guard.is, &names));
        let mut sets = Vec::new();
        let mut edits = Vec::new();
        for change in &step.changes {
            match change {
                Change::Set(name, of, is) => {
                    let value =
                        |name: &str| reading.value(&Term::Variable(name.to_owned()), &names);
                    sets.push((self.function(name)?, value(of)?, value(is)?));
                }
                _ => edits.push(reading.edit(change, &names)?),
            }
        }
        Ok(Ready {
            name: step.name,
            actor: step.actor,
            sizes: variables.iter().map(|one| self.sizes.of(one.sort)).collect(),
            guards: guards.collect::<Result<_, _>>()?,
            variables,
            edits,
            sets,
        })
    }

    fn function(&self, name: &str) -> Result<usize, FormulaError> {
        let found = self.functions.iter().find(|(known, _)| *known == name);
        found.map(|(_, first)| *first).ok_or_else(|| unknown(name))
    }

    /// Reads a formula without free variables.
    pub fn claim(&self, protocol: &Protocol, claim: &Claim) -> Result<Check, FormulaError> {
        let reading = Reading { protocol, machine: self };
        Ok(Check { test: reading.text(claim.is, &[])? })
    }

    /// A fact of the relation, of these things by their numbers.
    pub fn fact(&self, relation: &str, things: &[u8]) -> Check {
        let number = self.facts.iter().position(|facts| facts.name == relation);
        let fits = |number: &usize| {
            let sizes = &self.facts[*number].sizes;
            sizes.len() == things.len()
                && things.iter().zip(sizes).all(|(thing, size)| thing < size)
        };
        let test = match number.filter(fits) {
            Some(number) => {
                Test::Fact(number, things.iter().map(|one| Value::Thing(*one)).collect())
            }
            None => Test::Or(Vec::new()),
        };
        Check { test }
    }

    /// The state at the start.
    pub fn start(&self) -> State {
        let mut state = vec![0; self.bytes].into_boxed_slice();
        for number in &self.full {
            let facts = &self.facts[*number];
            let many: usize = facts.sizes.iter().map(|size| usize::from(*size)).product();
            state[facts.first..facts.first + many].fill(1);
        }
        state
    }

    /// All moves from a state that change it, with the states after them.
    pub fn moves(&self, state: &State, mut each: impl FnMut(Move, State)) {
        for (number, step) in self.steps.iter().enumerate() {
            all(&step.sizes, |things| {
                let mut frame = things.to_vec();
                let may = step.guards.iter().all(|guard| self.holds(guard, state, &mut frame));
                if !may {
                    return;
                }
                let after = self.after(step, state, &mut frame);
                if after != *state {
                    each(Move { step: number, things: things.into() }, after);
                }
            });
        }
    }

    fn after(&self, step: &Ready, state: &State, frame: &mut Vec<u8>) -> State {
        let mut next = state.clone();
        let own = frame.len();
        for edit in &step.edits {
            let facts = &self.facts[edit.facts];
            let mut place = facts.first;
            all(&facts.sizes, |things| {
                frame.extend_from_slice(things);
                if self.holds(&edit.test, state, frame) {
                    next[place] = u8::from(edit.adds);
                }
                frame.truncate(own);
                place += 1;
            });
        }
        for (first, of, is) in &step.sets {
            let (of, is) = (self.value(of, state, frame), self.value(is, state, frame));
            next[first + usize::from(of)] = is;
        }
        next
    }

    fn value(&self, value: &Value, state: &State, frame: &[u8]) -> u8 {
        match value {
            Value::Thing(number) => *number,
            Value::Variable(place) => frame[*place],
            Value::Function(first, of) => state[first + usize::from(self.value(of, state, frame))],
        }
    }

    fn holds(&self, test: &Test, state: &State, frame: &mut Vec<u8>) -> bool {
        match test {
            Test::Fact(number, of) => {
                let facts = &self.facts[*number];
                let place = of.iter().zip(&facts.sizes).fold(0, |place, (value, size)| {
                    place * usize::from(*size) + usize::from(self.value(value, state, frame))
                });
                state[facts.first + place] == 1
            }
            Test::Same(left, right) => {
                self.value(left, state, frame) == self.value(right, state, frame)
            }
            Test::Not(inner) => !self.holds(inner, state, frame),
            Test::And(list) => list.iter().all(|one| self.holds(one, state, frame)),
            Test::Or(list) => list.iter().any(|one| self.holds(one, state, frame)),
            Test::ForAll(place, sizes, inner) => {
                !self.some(*place, sizes, state, frame, &|machine, state, frame| {
                    !machine.holds(inner, state, frame)
                })
            }
            Test::Exists(place, sizes, inner) => {
                self.some(*place, sizes, state, frame, &|machine, state, frame| {
                    machine.holds(inner, state, frame)
                })
            }
        }
    }

    /// Tells if some values of the variables at `place` make the test true.
    fn some(
        &self,
        place: usize,
        sizes: &[u8],
        state: &State,
        frame: &mut Vec<u8>,
        test: &dyn Fn(&Self, &State, &mut Vec<u8>) -> bool,
    ) -> bool {
        let kept = frame.len();
        frame.resize(place + sizes.len(), 0);
        frame[place..].fill(0);
        let found = loop {
            if test(self, state, frame) {
                break true;
            }
            if !next(&mut frame[place..place + sizes.len()], sizes) {
                break false;
            }
        };
        frame.truncate(kept);
        found
    }

    /// The move in words.
    pub fn show(&self, made: &Move) -> String {
        let mut text = String::from(self.name(made.step));
        for (sort, thing) in self.things(made) {
            let _ = write!(text, ", {} {thing}", sort.name().to_lowercase());
        }
        text
    }

    /// The things of a move, with their sorts.
    pub fn things<'m>(&'m self, made: &'m Move) -> impl Iterator<Item = (Sort, u8)> + 'm {
        let sorts = self.steps[made.step].variables.iter().map(|variable| variable.sort);
        sorts.zip(made.things.iter().copied())
    }

    /// The actor of a step, by its number.
    pub fn actor(&self, step: usize) -> Actor {
        self.steps[step].actor
    }

    /// The name of a step, by its number.
    pub fn name(&self, step: usize) -> &'static str {
        self.steps[step].name
    }

    /// Tells if a check is true in a state.
    pub fn is(&self, check: &Check, state: &State) -> bool {
        self.holds(&check.test, state, &mut Vec::new())
    }
}

/// Formula without free variables, ready for a machine.
pub struct Check {
    test: Test,
}

impl Reading<'_> {
    fn text(&self, text: &str, names: &[String]) -> Result<Test, FormulaError> {
        self.test(&Formula::parse(text)?, names)
    }

    fn test(&self, formula: &Formula, names: &[String]) -> Result<Test, FormulaError> {
        let list = |list: &[Formula]| {
            list.iter().map(|one| self.test(one, names)).collect::<Result<Vec<_>, _>>()
        };
        Ok(match formula {
            Formula::Relation(name, terms) => return self.relation(name, terms, names),
            Formula::Same(left, right) => {
                Test::Same(self.value(left, names)?, self.value(right, names)?)
            }
            Formula::Not(inner) => Test::Not(Box::new(self.test(inner, names)?)),
            Formula::And(of) => Test::And(list(of)?),
            Formula::Or(of) => Test::Or(list(of)?),
            Formula::Implies(left, right) => {
                let left = Test::Not(Box::new(self.test(left, names)?));
                Test::Or(vec![left, self.test(right, names)?])
            }
            Formula::ForAll(variables, inner) => {
                let (sizes, inner) = self.bound(variables, inner, names)?;
                Test::ForAll(names.len(), sizes, Box::new(inner))
            }
            Formula::Exists(variables, inner) => {
                let (sizes, inner) = self.bound(variables, inner, names)?;
                Test::Exists(names.len(), sizes, Box::new(inner))
            }
        })
    }

    fn bound(
        &self,
        variables: &[Variable],
        inner: &Formula,
        names: &[String],
    ) -> Result<(Vec<u8>, Test), FormulaError> {
        let mut names = names.to_vec();
        names.extend(variables.iter().map(|one| one.name.clone()));
        let sizes = variables.iter().map(|one| self.machine.sizes.of(one.sort)).collect();
        Ok((sizes, self.test(inner, &names)?))
    }

    /// A fact, or a definition, whose variables get the values of the terms.
    fn relation(&self, name: &str, terms: &[Term], names: &[String]) -> Result<Test, FormulaError> {
        let facts = self.machine.facts.iter().position(|one| one.name == name);
        let values = terms.iter().map(|term| self.value(term, names));
        if let Some(number) = facts {
            return Ok(Test::Fact(number, values.collect::<Result<_, _>>()?));
        }
        let known = self.protocol.definitions.iter().find(|one| one.name == name);
        let definition = known.ok_or_else(|| unknown(name))?;
        let variables = parse_variables(definition.variables)?;
        let formula = Formula::parse(definition.is)?;
        let pairs = variables.into_iter().map(|one| one.name).zip(terms.iter().cloned());
        self.test(&formula.with(&pairs.collect()), names)
    }

    fn value(&self, term: &Term, names: &[String]) -> Result<Value, FormulaError> {
        match term {
            Term::Variable(name) => {
                // The last of that name is the innermost.
                let place = names.iter().rposition(|known| known == name);
                place.map(Value::Variable).ok_or_else(|| unknown(name))
            }
            Term::Function(name, of) => {
                let first = self.machine.function(name)?;
                Ok(Value::Function(first, Box::new(self.value(of, names)?)))
            }
        }
    }

    fn edit(&self, change: &Change, names: &[String]) -> Result<Edit, FormulaError> {
        let facts = self.machine.facts.iter().position(|one| one.name == change.name());
        let facts = facts.ok_or_else(|| unknown(change.name()))?;
        let adds = matches!(change, Change::Add(..) | Change::AddAll(..));
        let test = match change {
            Change::Add(_, things) | Change::Remove(_, things) => {
                let pairs = things.iter().enumerate().filter(|(_, thing)| **thing != "*");
                let same = pairs.map(|(place, thing)| {
                    let is = self.value(&Term::Variable((*thing).to_owned()), names)?;
                    Ok(Test::Same(Value::Variable(names.len() + place), is))
                });
                Test::And(same.collect::<Result<_, FormulaError>>()?)
            }
            Change::AddAll(_, of, is) | Change::RemoveAll(_, of, is) => {
                let mut names = names.to_vec();
                names.extend(of.iter().map(|name| (*name).to_owned()));
                self.text(is, &names)?
            }
            Change::Set(name, ..) => return Err(unknown(name)),
        };
        Ok(Edit { facts, adds, test })
    }
}

fn unknown(name: &str) -> FormulaError {
    FormulaError { text: name.to_owned(), reason: "the name is not known".to_owned() }
}

/// Calls `each` for all combinations of numbers below `sizes`, the last running fastest.
fn all(sizes: &[u8], mut each: impl FnMut(&[u8])) {
    if sizes.contains(&0) {
        return;
    }
    let mut things = vec![0; sizes.len()];
    loop {
        each(&things);
        if !next(&mut things, sizes) {
            return;
        }
    }
}

fn next(things: &mut [u8], sizes: &[u8]) -> bool {
    for (thing, size) in things.iter_mut().zip(sizes).rev() {
        *thing += 1;
        if *thing < *size {
            return true;
        }
        *thing = 0;
    }
    false
}

/// End of a search.
pub enum Found {
    /// All states were seen, and no check fails in any.
    Nothing {
        /// Number of states.
        states: usize,
    },
    /// A check fails after these moves.
    Failure {
        /// Number of the check.
        check: usize,
        /// The moves, in words.
        moves: Vec<String>,
    },
    /// There are more states than were asked for; no check fails in those that were seen.
    Limit {
        /// Number of states.
        states: usize,
    },
}

/// Visits states in the order of their distance from the start, until a check fails.
pub fn search(machine: &Machine, checks: &[Check], most: usize) -> Found {
    let start = machine.start();
    let mut seen: HashMap<State, usize> = HashMap::from([(start.clone(), 0)]);
    let mut list: Vec<(State, Option<(usize, Move)>)> = vec![(start, None)];
    let mut at = 0;
    while at < list.len() {
        let state = list[at].0.clone();
        if let Some(check) = checks.iter().position(|check| !machine.is(check, &state)) {
            return Found::Failure { check, moves: way(machine, &list, at) };
        }
        machine.moves(&state, |made, after| {
            if !seen.contains_key(&after) {
                seen.insert(after.clone(), list.len());
                list.push((after, Some((at, made))));
            }
        });
        if list.len() > most {
            return Found::Limit { states: list.len() };
        }
        at += 1;
    }
    Found::Nothing { states: list.len() }
}

fn way(machine: &Machine, list: &[(State, Option<(usize, Move)>)], end: usize) -> Vec<String> {
    let mut moves = Vec::new();
    let mut at = end;
    while let Some((before, made)) = &list[at].1 {
        moves.push(machine.show(made));
        at = *before;
    }
    moves.reverse();
    moves
}
