//! Obligations of the invariant as SMT-LIB, and Z3's answers.
//!
//! The state after a step is defined by that before it, so that a step needs no axioms: `name!` is
//! the relation `name` after the step. Sorts are not interpreted: an answer holds for any number of
//! things of each.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::{Command, Stdio};

use crate::expr::{Formula, FormulaError, Sort, Variable, parse_variables};
use crate::protocol::{Change, Claim, Protocol, Relation, Step};

/// Z3's answer to the question if there is a state in which an obligation does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// There is none.
    Proved,
    /// There is one.
    Refuted,
    /// Z3 found no answer within its time.
    Unknown,
}

/// Milliseconds for one question.
const MILLISECONDS: u32 = 30_000;

/// Error of a run of Z3.
#[derive(Debug)]
pub enum ProveError {
    /// A formula of the protocol cannot be read.
    Formula(FormulaError),
    /// Z3 cannot be started or read.
    Start(io::Error),
    /// Z3 refuses the text.
    Refused {
        /// Its words.
        said: String,
    },
}

impl std::fmt::Display for ProveError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Formula(error) => write!(f, "{error}"),
            Self::Start(error) => write!(f, "z3: {error}"),
            Self::Refused { said } => write!(f, "z3 refuses the text: {said}"),
        }
    }
}

impl std::error::Error for ProveError {}

impl From<FormulaError> for ProveError {
    fn from(error: FormulaError) -> Self {
        Self::Formula(error)
    }
}

impl From<io::Error> for ProveError {
    fn from(error: io::Error) -> Self {
        Self::Start(error)
    }
}

/// Questions about one text of premises.
pub struct Script {
    text: String,
    questions: usize,
}

impl Script {
    /// Sorts, relations and definitions of a protocol.
    pub fn of(protocol: &Protocol) -> Result<Self, ProveError> {
        let mut text = format!("(set-option :timeout {MILLISECONDS})\n");
        for sort in Sort::ALL {
            let _ = writeln!(text, "(declare-sort {} 0)", sort.name());
        }
        for relation in &protocol.relations {
            let _ = writeln!(text, "(declare-fun {} ({}) Bool)", relation.name, sorts(relation));
        }
        for function in &protocol.functions {
            let (of, is) = (function.of.name(), function.is.name());
            let _ = writeln!(text, "(declare-fun {} ({of}) {is})", function.name);
        }
        for definition in &protocol.definitions {
            let formula = Formula::parse(definition.is)?;
            let (name, of) = (definition.name, definition.variables);
            let _ = writeln!(text, "(define-fun {name} {of} Bool {formula})");
        }
        Ok(Self { text, questions: 0 })
    }

    /// Declarations and definitions of another theory.
    pub fn plain(definitions: &str) -> Self {
        let text = format!("(set-option :timeout {MILLISECONDS})\n{definitions}");
        Self { text, questions: 0 }
    }

    /// Asks if the premises can be true together, and if the conclusion follows from them.
    pub fn ask_both(&mut self, premises: &str, conclusion: &str) {
        let Self { text, .. } = self;
        let _ = writeln!(text, "(push)\n(assert {premises})\n(check-sat)");
        let _ = writeln!(text, "(assert (not {conclusion}))\n(check-sat)\n(pop)");
        self.questions += 2;
    }

    /// Supposes a formula.
    pub fn suppose(&mut self, claim: &Claim) -> Result<(), ProveError> {
        let formula = Formula::parse(claim.is)?;
        let _ = writeln!(self.text, "(assert {formula})");
        Ok(())
    }

    /// Supposes the state at the start.
    pub fn suppose_start(&mut self, protocol: &Protocol) {
        for relation in &protocol.relations {
            let of = places(relation);
            let fact = format!("({} {})", relation.name, names(&of));
            let fact = match protocol.full.contains(&relation.name) {
                true => fact,
                false => format!("(not {fact})"),
            };
            let _ = writeln!(self.text, "(assert (forall ({}) {fact}))", bound(&of));
        }
    }

    /// Supposes that a step is made: its guards, and the state after it.
    pub fn suppose_step(&mut self, protocol: &Protocol, step: &Step) -> Result<(), ProveError> {
        for variable in parse_variables(step.variables)? {
            let _ =
                writeln!(self.text, "(declare-const {} {})", variable.name, variable.sort.name());
        }
        for guard in &step.guards {
            self.suppose(guard)?;
        }
        for relation in &protocol.relations {
            let of = places(relation);
            let before = format!("({} {})", relation.name, names(&of));
            let changes = step.changes.iter().filter(|change| change.name() == relation.name);
            let after = changes.fold(before, |before, change| changed(&before, change, &of));
            let _ = writeln!(
                self.text,
                "(define-fun {}! ({}) Bool {after})",
                relation.name,
                bound(&of)
            );
        }
        for function in &protocol.functions {
            let sets = step.changes.iter().filter_map(|change| match change {
                Change::Set(name, of, is) if *name == function.name => Some((of, is)),
                _ => None,
            });
            let before = format!("({} q0)", function.name);
            let after =
                sets.fold(before, |before, (of, is)| format!("(ite (= q0 {of}) {is} {before})"));
            let (of, is) = (function.of.name(), function.is.name());
            let _ = writeln!(self.text, "(define-fun {}! ((q0 {of})) {is} {after})", function.name);
        }
        for definition in &protocol.definitions {
            let formula = after(protocol, &Formula::parse(definition.is)?);
            let (name, of) = (definition.name, definition.variables);
            let _ = writeln!(self.text, "(define-fun {name}! {of} Bool {formula})");
        }
        Ok(())
    }

    /// Asks if the premises can be true together.
    pub fn ask(&mut self) {
        self.text.push_str("(check-sat)\n");
        self.questions += 1;
    }

    /// Asks if a formula follows.
    pub fn ask_if(&mut self, claim: &Claim) -> Result<(), ProveError> {
        self.ask_of(&Formula::parse(claim.is)?);
        Ok(())
    }

    /// Asks if a formula is true after the step.
    pub fn ask_after(&mut self, protocol: &Protocol, claim: &Claim) -> Result<(), ProveError> {
        self.ask_of(&after(protocol, &Formula::parse(claim.is)?));
        Ok(())
    }

    fn ask_of(&mut self, formula: &Formula) {
        let _ = writeln!(self.text, "(push)\n(assert (not {formula}))\n(check-sat)\n(pop)");
        self.questions += 1;
    }

    /// The text, as Z3 reads it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Has Z3 answer the questions.
    pub fn answers(&self) -> Result<Vec<Answer>, ProveError> {
        let mut z3 = Command::new("z3");
        z3.arg("-in").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = z3.spawn()?;
        if let Some(mut input) = running.stdin.take() {
            input.write_all(self.text.as_bytes())?;
        }
        let ended = running.wait_with_output()?;
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        let refused = || ProveError::Refused { said: said.clone() };
        let answers: Option<Vec<Answer>> = said.lines().map(answer).collect();
        let answers = answers.ok_or_else(refused)?;
        if answers.len() == self.questions { Ok(answers) } else { Err(refused()) }
    }
}

fn answer(line: &str) -> Option<Answer> {
    match line {
        "unsat" => Some(Answer::Proved),
        "sat" => Some(Answer::Refuted),
        "unknown" | "timeout" => Some(Answer::Unknown),
        _ => None,
    }
}

/// The formula, of the state after the step.
fn after(protocol: &Protocol, formula: &Formula) -> Formula {
    let relations = protocol.relations.iter().map(|one| one.name);
    let functions = protocol.functions.iter().map(|one| one.name);
    let definitions = protocol.definitions.iter().map(|one| one.name);
    let known: Vec<&str> = relations.chain(functions).chain(definitions).collect();
    formula.renamed(&|name| match known.contains(&name) {
        true => format!("{name}!"),
        false => name.to_owned(),
    })
}

fn changed(before: &str, change: &Change, of: &[Variable]) -> String {
    match change {
        Change::Add(_, things) => format!("(or {before} {})", these(of, things)),
        Change::Remove(_, things) => format!("(and {before} (not {}))", these(of, things)),
        Change::AddAll(_, names, is) => format!("(or {before} {})", all(of, names, is)),
        Change::RemoveAll(_, names, is) => format!("(and {before} (not {}))", all(of, names, is)),
        Change::Set(..) => before.to_owned(),
    }
}

/// Tells if the variables are these things.
fn these(of: &[Variable], things: &[&str]) -> String {
    let pairs = of.iter().zip(things).filter(|(_, thing)| **thing != "*");
    let same = pairs.map(|(variable, thing)| format!(" (= {} {thing})", variable.name));
    format!("(and true{})", same.collect::<String>())
}

/// The formula of the variables, under the names that it uses.
fn all(of: &[Variable], names: &[&str], is: &str) -> String {
    let lets = of.iter().zip(names).map(|(variable, name)| format!("({name} {})", variable.name));
    format!("(let ({}) {is})", lets.collect::<String>())
}

fn places(relation: &Relation) -> Vec<Variable> {
    let numbered = relation.sorts.iter().enumerate();
    numbered.map(|(number, sort)| Variable { name: format!("q{number}"), sort: *sort }).collect()
}

fn sorts(relation: &Relation) -> String {
    relation.sorts.iter().map(|sort| sort.name()).collect::<Vec<_>>().join(" ")
}

fn names(of: &[Variable]) -> String {
    of.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(" ")
}

fn bound(of: &[Variable]) -> String {
    of.iter().map(|one| format!("({} {})", one.name, one.sort.name())).collect()
}
