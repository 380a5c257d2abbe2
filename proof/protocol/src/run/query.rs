//! Formulas as searches through the facts of a run, whose number nothing bounds.
//!
//! Where a formula speaks of all things, the search goes through those alone of which a fact, or a value, makes the
//! rest of it true or false. Not supported: formulas in which no fact leads to a thing.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::{KnownFacts, Thing};
use crate::expr::{Formula, FormulaError, Term, parse_variables};
use crate::protocol::Protocol;

/// Thing of a search: a variable's, or a function's of a variable.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operand {
    Variable(usize),
    Function { function: usize, of: usize },
}

/// Search for values of variables.
#[derive(Clone, Debug)]
pub(super) enum Query {
    Fact {
        relation: usize,
        of: Vec<Operand>,
    },
    Same(Operand, Operand),
    Not(Box<Query>),
    /// One after the other.
    All(Vec<Query>),
    Any(Vec<Query>),
    /// Some values of these variables.
    Some(Vec<usize>, Box<Query>),
}

/// Values of variables, as far as they are known.
pub(super) type Known = Vec<Option<Thing>>;

impl Operand {
    const fn variable(self) -> usize {
        match self {
            Self::Variable(of) | Self::Function { of, .. } => of,
        }
    }

    fn find(self, facts: &KnownFacts, known: &Known) -> Option<Thing> {
        match self {
            Self::Variable(variable) => known[variable],
            Self::Function { function, of } => facts.value(function, known[of]?),
        }
    }
}

impl Query {
    /// Tells if there are values, with those that are known, for which it is true and `then` is.
    pub fn solve(
        &self,
        facts: &KnownFacts,
        known: &mut Known,
        then: &mut dyn FnMut(&mut Known) -> bool,
    ) -> bool {
        match self {
            Self::Fact { relation, of } => {
                let wanted: Vec<_> = of.iter().map(|value| value.find(facts, known)).collect();
                let found: Vec<usize> = of
                    .iter()
                    .map(|value| value.variable())
                    .filter(|variable| known[*variable].is_none())
                    .collect();
                facts.some(*relation, &wanted, &mut |row| {
                    for (value, thing) in of.iter().zip(row) {
                        known[value.variable()].get_or_insert(*thing);
                    }
                    let fits = of
                        .iter()
                        .zip(row)
                        .all(|(value, thing)| value.find(facts, known) == Some(*thing));
                    let enough = fits && then(known);
                    found.iter().for_each(|variable| known[*variable] = None);
                    enough
                })
            }
            Self::Same(left, right) => same(facts, known, [*left, *right], then),
            Self::Not(inner) => !inner.solve(facts, known, &mut |_| true) && then(known),
            Self::All(list) => all(list, facts, known, then),
            Self::Any(list) => list.iter().any(|one| one.solve(facts, known, then)),
            Self::Some(variables, inner) => {
                variables.iter().for_each(|variable| known[*variable] = None);
                inner.solve(facts, known, then)
            }
        }
    }

    /// Variables that it does not bind itself.
    fn free(&self) -> BTreeSet<usize> {
        match self {
            Self::Fact { of, .. } => of.iter().map(|value| value.variable()).collect(),
            Self::Same(left, right) => BTreeSet::from([left.variable(), right.variable()]),
            Self::Not(inner) => inner.free(),
            Self::All(list) | Self::Any(list) => list.iter().flat_map(Self::free).collect(),
            Self::Some(variables, inner) => {
                let mut free = inner.free();
                variables.iter().for_each(|variable| {
                    free.remove(variable);
                });
                free
            }
        }
    }

    /// The same in an order in which facts lead to each thing, and the number of things that it leads to; none if
    /// there is no such order.
    fn ordered(&self, known: &BTreeSet<usize>) -> Option<(Self, usize)> {
        let unknown = self.free().difference(known).count();
        let is_known = |value: &Operand| known.contains(&value.variable());
        match self {
            Self::Fact { of, .. } => {
                let led = of.iter().all(|v| is_known(v) || matches!(v, Operand::Variable(_)));
                let far = if of.iter().any(is_known) { 0 } else { 10 };
                led.then(|| (self.clone(), if unknown == 0 { 0 } else { unknown + far }))
            }
            Self::Same(left, right) => {
                (is_known(left) || is_known(right)).then(|| (self.clone(), unknown))
            }
            Self::Not(inner) => {
                let (inner, _) = inner.ordered(known)?;
                (unknown == 0).then(|| (Self::Not(Box::new(inner)), 0))
            }
            Self::Any(list) => {
                let all = self.free();
                let whole = |one: &Self| one.free().union(known).copied().collect::<BTreeSet<_>>();
                let list: Option<Vec<_>> = list
                    .iter()
                    .map(|one| whole(one).is_superset(&all).then(|| one.ordered(known)).flatten())
                    .collect();
                let list = list?;
                let most = list.iter().map(|(_, cost)| *cost).max().unwrap_or(0);
                Some((Self::Any(list.into_iter().map(|(one, _)| one).collect()), most))
            }
            Self::Some(variables, inner) => {
                let (inner, cost) = inner.ordered(known)?;
                Some((Self::Some(variables.clone(), Box::new(inner)), cost))
            }
            Self::All(list) => {
                let (mut left, mut known) = (list.clone(), known.clone());
                let (mut done, mut most) = (Vec::new(), 0);
                while !left.is_empty() {
                    let ready = left.iter().enumerate();
                    let ready = ready.filter_map(|(at, one)| Some((at, one.ordered(&known)?)));
                    let (at, (next, cost)) = ready.min_by_key(|(_, (_, cost))| *cost)?;
                    known.extend(left.remove(at).free());
                    most = most.max(cost);
                    done.push(next);
                }
                Some((Self::All(done), most))
            }
        }
    }
}

fn all(
    list: &[Query],
    facts: &KnownFacts,
    known: &mut Known,
    then: &mut dyn FnMut(&mut Known) -> bool,
) -> bool {
    match list {
        [] => then(known),
        [first, rest @ ..] => {
            first.solve(facts, known, &mut |known| all(rest, facts, known, &mut *then))
        }
    }
}

fn same(
    facts: &KnownFacts,
    known: &mut Known,
    [left, right]: [Operand; 2],
    then: &mut dyn FnMut(&mut Known) -> bool,
) -> bool {
    let (value, other) = match (left.find(facts, known), right.find(facts, known)) {
        (Some(one), Some(two)) => return one == two && then(known),
        (Some(one), None) => (one, right),
        (None, Some(two)) => (two, left),
        (None, None) => return false,
    };
    // A function of a thing that has no value is no thing's.
    if known[other.variable()].is_some() {
        return false;
    }
    let candidates: Vec<Thing> = match other {
        Operand::Variable(_) => vec![value],
        Operand::Function { function, .. } => facts.having(function, value).collect(),
    };
    let found = candidates.into_iter().any(|thing| {
        known[other.variable()] = Some(thing);
        then(known)
    });
    known[other.variable()] = None;
    found
}

/// Reader of formulas.
pub(super) struct QueryReader<'p> {
    pub protocol: &'p Protocol,
    /// Names of the variables, by number; the last of a name is the innermost.
    pub names: Vec<String>,
    /// Variables that are bound before.
    pub known: BTreeSet<usize>,
}

impl QueryReader<'_> {
    /// Reads a text.
    pub fn query(&mut self, text: &str) -> Result<Query, FormulaError> {
        let query = self.unordered(text)?;
        self.in_order(query, text)
    }

    /// Reads a text that is to be put in order with others.
    pub fn unordered(&mut self, text: &str) -> Result<Query, FormulaError> {
        self.formula(&Formula::parse(text)?, &self.scope(), Sense::AsItIs)
    }

    /// The number of a function.
    pub fn function(&self, name: &str) -> Result<usize, FormulaError> {
        let found = self.protocol.functions.iter().position(|one| one.name == name);
        found.ok_or_else(|| unknown(name))
    }

    /// Numbers of the names by now.
    fn scope(&self) -> BTreeMap<String, usize> {
        self.names.iter().cloned().zip(0..).collect()
    }

    /// Puts a query in order.
    pub fn in_order(&self, query: Query, text: &str) -> Result<Query, FormulaError> {
        let ordered = query.ordered(&self.known).map(|(query, _)| query);
        let reason = "no fact leads to each of its things".to_owned();
        ordered.ok_or_else(|| FormulaError { text: text.to_owned(), reason })
    }

    fn formula(
        &mut self,
        formula: &Formula,
        scope: &BTreeMap<String, usize>,
        sense: Sense,
    ) -> Result<Query, FormulaError> {
        let is = sense == Sense::AsItIs;
        let plain = |query| if is { query } else { Query::Not(Box::new(query)) };
        Ok(match formula {
            Formula::Relation(name, of) => {
                let Some(relation) = self.relation(name) else {
                    return self.defined(name, of, scope, sense);
                };
                let of = of.iter().map(|term| self.value(term, scope)).collect::<Result<_, _>>()?;
                plain(Query::Fact { relation, of })
            }
            Formula::Same(left, right) => {
                plain(Query::Same(self.value(left, scope)?, self.value(right, scope)?))
            }
            Formula::Not(inner) => self.formula(inner, scope, sense.other())?,
            Formula::And(list) | Formula::Or(list) => {
                let list = list.iter().map(|one| self.formula(one, scope, sense));
                let list = list.collect::<Result<_, _>>()?;
                match matches!(formula, Formula::And(_)) == is {
                    true => Query::All(list),
                    false => Query::Any(list),
                }
            }
            Formula::Implies(left, right) => {
                let list = vec![
                    self.formula(left, scope, sense.other())?,
                    self.formula(right, scope, sense)?,
                ];
                if is { Query::Any(list) } else { Query::All(list) }
            }
            // For all: there are none for which it is not so.
            Formula::ForAll(variables, inner) | Formula::Exists(variables, inner) => {
                let every = matches!(formula, Formula::ForAll(..));
                let mut scope = scope.clone();
                let mut numbers = Vec::new();
                for variable in variables {
                    numbers.push(self.names.len());
                    scope.insert(variable.name.clone(), self.names.len());
                    self.names.push(variable.name.clone());
                }
                let inner_sense = if every { Sense::Opposite } else { Sense::AsItIs };
                let inner = Box::new(self.formula(inner, &scope, inner_sense)?);
                let some = Query::Some(numbers, inner);
                if every == is { Query::Not(Box::new(some)) } else { some }
            }
        })
    }

    pub fn relation(&self, name: &str) -> Option<usize> {
        self.protocol.relations.iter().position(|one| one.name == name)
    }

    fn defined(
        &mut self,
        name: &str,
        of: &[Term],
        scope: &BTreeMap<String, usize>,
        sense: Sense,
    ) -> Result<Query, FormulaError> {
        let known = self.protocol.definitions.iter().find(|one| one.name == name);
        let definition = known.ok_or_else(|| unknown(name))?;
        let names = parse_variables(definition.variables)?.into_iter().map(|one| one.name);
        let formula = Formula::parse(definition.is)?.with(&names.zip(of.iter().cloned()).collect());
        self.formula(&formula, scope, sense)
    }

    pub fn value(
        &self,
        term: &Term,
        scope: &BTreeMap<String, usize>,
    ) -> Result<Operand, FormulaError> {
        match term {
            Term::Variable(name) => {
                scope.get(name).copied().map(Operand::Variable).ok_or_else(|| unknown(name))
            }
            Term::Function(name, of) => {
                let function = self.function(name)?;
                match self.value(of, scope)? {
                    Operand::Variable(of) => Ok(Operand::Function { function, of }),
                    Operand::Function { .. } => Err(unknown(name)),
                }
            }
        }
    }

    /// The number of a variable.
    pub fn variable(&self, name: &str) -> Result<usize, FormulaError> {
        self.names.iter().rposition(|known| known == name).ok_or_else(|| unknown(name))
    }
}

/// Sense in which a formula is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sense {
    AsItIs,
    Opposite,
}

impl Sense {
    const fn other(self) -> Self {
        match self {
            Self::AsItIs => Self::Opposite,
            Self::Opposite => Self::AsItIs,
        }
    }
}

fn unknown(name: &str) -> FormulaError {
    FormulaError { text: name.to_owned(), reason: "the name is not known".to_owned() }
}
