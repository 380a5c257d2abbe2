//! The checks, each with its verdict.

use std::time::Instant;

use serde::Serialize;

use crate::defects::{Defect, defects, starvations};
use crate::expr::Sort;
use crate::fairness::{Endless, Graph};
use crate::finite::{Check, Found, Machine, Sizes, search};
use crate::formats::code::Code;
use crate::formats::{self, FormatError};
use crate::protocol::{Actor, Claim, Protocol, Step, address_space};
use crate::small::{self, Scope};
use crate::smt::{Answer, ProveError, Script};

/// Part of the checks, by which they are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// The invariant holds at the start, and each step keeps it.
    Induction,
    /// No conjunct and no guard can be left out.
    Needed,
    /// Defects are refuted.
    Defects,
    /// All states of small machines.
    States,
    /// Unmapped frames come back.
    Liveness,
    /// All checks of the protocols beside that of an address space.
    Small,
    /// Entries of tables, for all inputs.
    Formats,
}

/// A check and its outcome.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Its part.
    pub part: Part,
    /// The sentence that is checked.
    pub name: String,
    /// True if the sentence holds.
    pub holds: bool,
    /// Finding, in words.
    pub found: String,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// The way to a state that must not be, if a defect leads there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trace: Vec<String>,
}

/// Machine on which a defect shows.
pub const SMALL: Sizes = Sizes(&[
    (Sort::Slot, 1),
    (Sort::Table, 2),
    (Sort::Index, 2),
    (Sort::Frame, 2),
    (Sort::Debt, 2),
    (Sort::Device, 1),
]);

/// Machine of three CPUs, of two tables, and of a device with two caches: the unit's for it, and its own.
pub const THREE_CPUS: Sizes = Sizes(&[
    (Sort::Slot, 2),
    (Sort::Table, 2),
    (Sort::Index, 1),
    (Sort::Frame, 2),
    (Sort::Debt, 3),
    (Sort::Device, 1),
]);

/// States that a search may have.
const MOST_STATES: usize = 4_000_000;

/// Checks to make.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'w> {
    /// The part; all of them without.
    pub part: Option<Part>,
    /// The compiler's code of `portolan-formats`; no proof of formats without.
    pub code: Option<&'w str>,
}

/// Makes the checks, and gives each verdict to `tell` as it comes.
pub fn all(wanted: Wanted<'_>, tell: &mut dyn FnMut(&Verdict)) -> Result<bool, FormatError> {
    let mut good = true;
    let mut note = |verdict: Verdict| {
        good &= verdict.holds;
        tell(&verdict);
    };
    let is = |part: Part| wanted.part.is_none_or(|only| only == part);
    let whole = whole();
    if is(Part::Induction) {
        induction(&whole, Part::Induction, &mut note)?;
    }
    if is(Part::Needed) {
        needed(&whole, Part::Needed, &mut note)?;
    }
    if is(Part::Defects) {
        refuted(&whole, Part::Defects, &mut note)?;
    }
    if is(Part::States) {
        states(&whole, Part::States, &mut note)?;
    }
    if is(Part::Liveness) {
        liveness(&whole, Part::Liveness, &mut note)?;
        handlers(&whole.protocol, &mut note);
    }
    if is(Part::Small) {
        small::all().iter().try_for_each(|scope| every(scope, &mut note))?;
    }
    if let (true, Some(code)) = (is(Part::Formats), wanted.code) {
        entries(&Code::read(code), &mut note)?;
    }
    Ok(good)
}

/// The protocol of an address space, with what its checks need.
pub fn whole() -> Scope {
    Scope {
        name: "",
        protocol: address_space(),
        defects: defects(),
        small: SMALL,
        searched: vec![SMALL, THREE_CPUS],
        endless: vec![buffers()],
    }
}

/// The promise that every buffer comes back.
fn buffers() -> Endless {
    Endless {
        says: "every buffer comes back",
        fact: "pending",
        of: &[0, 0, 0, 0],
        supposed: |_| {},
        free: &[
            "find a table that hangs there",
            "link a new table",
            "clear an entry",
            "take all addresses of a table",
        ],
        failure: Some("the hardware fails"),
        alike: None,
        machines: vec![
            Sizes(&[
                (Sort::Slot, 2),
                (Sort::Table, 2),
                (Sort::Index, 1),
                (Sort::Frame, 2),
                (Sort::Debt, 3),
            ]),
            Sizes(&[
                (Sort::Slot, 1),
                (Sort::Table, 2),
                (Sort::Index, 2),
                (Sort::Frame, 3),
                (Sort::Debt, 3),
            ]),
        ],
        starvations: starvations(),
    }
}

/// All checks of a protocol.
fn every(scope: &Scope, note: Note) -> Result<(), ProveError> {
    induction(scope, Part::Small, note)?;
    needed(scope, Part::Small, note)?;
    refuted(scope, Part::Small, note)?;
    states(scope, Part::Small, note)?;
    liveness(scope, Part::Small, note)
}

type Note<'n> = &'n mut dyn FnMut(Verdict);

/// Starts a clock; ends it with the verdict.
struct Clock {
    part: Part,
    /// Name of the protocol, if it is not that of an address space.
    scope: &'static str,
    start: Instant,
}

impl Clock {
    fn of(part: Part) -> Self {
        Self::in_scope(part, "")
    }

    fn in_scope(part: Part, scope: &'static str) -> Self {
        Self { part, scope, start: Instant::now() }
    }

    fn verdict(self, name: &str, holds: bool, found: String) -> Verdict {
        let seconds = self.start.elapsed().as_secs_f64();
        let name = match self.scope {
            "" => name.to_owned(),
            scope => format!("{scope}: {name}"),
        };
        Verdict { part: self.part, name, holds, found, seconds, trace: Vec::new() }
    }
}

fn many(answers: &[Answer], wanted: Answer) -> usize {
    answers.iter().filter(|answer| **answer == wanted).count()
}

fn induction(scope: &Scope, part: Part, note: Note) -> Result<(), ProveError> {
    let protocol = &scope.protocol;
    let clock = Clock::in_scope(part, scope.name);
    let mut script = Script::of(protocol)?;
    script.suppose_start(protocol);
    script.ask();
    protocol.invariant.iter().try_for_each(|claim| script.ask_if(claim))?;
    note(clock.verdict("the invariant holds at the start", follows(&script)?, conjuncts(protocol)));
    let clock = Clock::in_scope(part, scope.name);
    let mut script = Script::of(protocol)?;
    protocol.invariant.iter().try_for_each(|claim| script.suppose(claim))?;
    script.ask();
    protocol.safety.iter().try_for_each(|claim| script.ask_if(claim))?;
    let found = format!("{} promises", protocol.safety.len());
    note(clock.verdict("the promises follow from the invariant", follows(&script)?, found));
    for step in &protocol.steps {
        let clock = Clock::in_scope(part, scope.name);
        let answers = kept(protocol, step, None)?;
        let holds = many(&answers[1..], Answer::Proved) == protocol.invariant.len()
            && answers[0] == Answer::Refuted;
        note(clock.verdict(
            &format!("{} keeps it, and can happen", step.name),
            holds,
            conjuncts(protocol),
        ));
    }
    Ok(())
}

fn conjuncts(protocol: &Protocol) -> String {
    format!("{} conjuncts", protocol.invariant.len())
}

/// The first question has an answer in some state; all others in none.
fn follows(script: &Script) -> Result<bool, ProveError> {
    let answers = script.answers()?;
    Ok(answers[0] == Answer::Refuted && many(&answers[1..], Answer::Proved) == answers.len() - 1)
}

/// Answers of a step: if it can happen, and if each conjunct is true after it. One conjunct may be left out.
fn kept(
    protocol: &Protocol,
    step: &Step,
    without: Option<&str>,
) -> Result<Vec<Answer>, ProveError> {
    let mut script = Script::of(protocol)?;
    let rest = || protocol.invariant.iter().filter(|claim| Some(claim.says) != without);
    rest().try_for_each(|claim| script.suppose(claim))?;
    script.suppose_step(protocol, step)?;
    script.ask();
    rest().try_for_each(|claim| script.ask_after(protocol, claim))?;
    script.answers()
}

fn needed(scope: &Scope, part: Part, note: Note) -> Result<(), ProveError> {
    let protocol = &scope.protocol;
    for claim in &protocol.invariant {
        let clock = Clock::in_scope(part, scope.name);
        let mut broken = Vec::new();
        let mut script = Script::of(protocol)?;
        let rest = protocol.invariant.iter().filter(|other| other.says != claim.says);
        rest.clone().try_for_each(|other| script.suppose(other))?;
        protocol.safety.iter().try_for_each(|promise| script.ask_if(promise))?;
        broken.extend(refuting(&script.answers()?, &protocol.safety, "the promises"));
        for step in &protocol.steps {
            if !broken.is_empty() {
                break;
            }
            let answers = kept(protocol, step, Some(claim.says))?;
            broken.extend(refuting(&answers[1..], rest.clone(), step.name));
        }
        note(clock.verdict(
            &format!("conjunct: {}", claim.says),
            !broken.is_empty(),
            list(&broken),
        ));
    }
    for (number, step) in protocol.steps.iter().enumerate() {
        for (place, guard) in step.guards.iter().enumerate() {
            let clock = Clock::in_scope(part, scope.name);
            let mut open = protocol.clone();
            open.steps[number].guards.remove(place);
            let answers = kept(&open, &open.steps[number], None)?;
            let broken = refuting(&answers[1..], &protocol.invariant, step.name);
            let name = format!("guard of \"{}\": {}", step.name, guard.says);
            note(clock.verdict(&name, !broken.is_empty(), list(&broken)));
        }
    }
    Ok(())
}

/// The claims that are refuted.
fn refuting<'c>(
    answers: &[Answer],
    claims: impl IntoIterator<Item = &'c Claim>,
    by: &str,
) -> Vec<String> {
    let pairs = answers.iter().zip(claims).filter(|(answer, _)| **answer == Answer::Refuted);
    pairs.map(|(_, claim)| format!("{by}: {}", claim.says)).collect()
}

fn list(broken: &[String]) -> String {
    match broken {
        [] => "nothing refutes its absence".to_owned(),
        [only] => only.clone(),
        [first, rest @ ..] => format!("{first} (and {} more)", rest.len()),
    }
}

fn edited(protocol: &Protocol, defect: &Defect) -> Protocol {
    let mut protocol = protocol.clone();
    (defect.edit)(&mut protocol);
    protocol
}

fn refuted(scope: &Scope, part: Part, note: Note) -> Result<(), ProveError> {
    for defect in &scope.defects {
        let clock = Clock::in_scope(part, scope.name);
        let protocol = edited(&scope.protocol, defect);
        let mut broken = Vec::new();
        for step in &protocol.steps {
            if !broken.is_empty() {
                break;
            }
            let answers = kept(&protocol, step, None)?;
            broken.extend(refuting(&answers[1..], &protocol.invariant, step.name));
        }
        let machine = Machine::new(&protocol, scope.small)?;
        let (promise, trace) = match search(&machine, &promises(&machine, &protocol)?, MOST_STATES)
        {
            Found::Failure { check, moves } => (protocol.safety[check].says, moves),
            Found::Nothing { .. } | Found::Limit { .. } => ("no run", Vec::new()),
        };
        let holds = !broken.is_empty() && !trace.is_empty();
        let found =
            format!("refuted by {}; after {} steps: not {promise}", list(&broken), trace.len());
        note(Verdict { trace, ..clock.verdict(defect.says, holds, found) });
    }
    Ok(())
}

fn promises(machine: &Machine, protocol: &Protocol) -> Result<Vec<Check>, ProveError> {
    let checks = protocol.safety.iter().map(|claim| machine.claim(protocol, claim));
    Ok(checks.collect::<Result<_, _>>()?)
}

fn states(scope: &Scope, part: Part, note: Note) -> Result<(), ProveError> {
    let protocol = &scope.protocol;
    for of in scope.searched.iter().copied() {
        let clock = Clock::in_scope(part, scope.name);
        let machine = Machine::new(protocol, of)?;
        let mut checks = promises(&machine, protocol)?;
        for claim in &protocol.invariant {
            checks.push(machine.claim(protocol, claim)?);
        }
        let (holds, found) = match search(&machine, &checks, MOST_STATES) {
            Found::Nothing { states } => (true, format!("{states} states")),
            Found::Limit { states } => (false, format!("more than {states} states")),
            Found::Failure { moves, .. } => (false, moves.join("; ")),
        };
        note(clock.verdict(&format!("promises and invariant in all states: {of}"), holds, found));
    }
    Ok(())
}

fn liveness(scope: &Scope, part: Part, note: Note) -> Result<(), ProveError> {
    for endless in &scope.endless {
        for of in &endless.machines {
            let clock = Clock::in_scope(part, scope.name);
            let (states, starved) = starved(&scope.protocol, endless, *of)?;
            let holds = states > 0 && starved.is_none();
            let found =
                starved.map_or_else(|| format!("{states} states"), |moves| moves.join("; "));
            note(clock.verdict(&format!("{}: {of}", endless.says), holds, found));
        }
        for defect in &endless.starvations {
            let clock = Clock::in_scope(part, scope.name);
            let protocol = edited(&scope.protocol, defect);
            let (states, starved) = starved(&protocol, endless, endless.machines[0])?;
            let (holds, found) = match starved {
                Some(moves) if moves.is_empty() => (true, "nothing can happen any more".to_owned()),
                Some(moves) => (true, format!("for ever: {}", moves.join("; "))),
                None => (false, format!("not found in {states} states")),
            };
            note(clock.verdict(&format!("starves: {}", defect.says), holds, found));
        }
    }
    Ok(())
}

fn handlers(protocol: &Protocol, note: Note) {
    let clock = Clock::of(Part::Liveness);
    let waits = protocol.steps.iter().filter(|step| waits(step)).map(|step| step.name);
    let waits: Vec<&str> = waits.collect();
    let found = format!("steps that wait for the unit: {}", waits.join("; "));
    let holds = waits == ["give back what a settled debt held"];
    note(clock.verdict("a handler waits for no unit: map, unmap and send do not", holds, found));
}

/// Tells if a CPU's step is possible only after the unit's: if its guards need a debt that is settled.
fn waits(step: &Step) -> bool {
    let settled = |guard: &Claim| guard.is == "(not (open d))" || guard.is.contains("(told ");
    step.actor == Actor::Cpu && step.guards.iter().any(settled)
}

/// Number of states, and the moves of a run without end in which the fact stays true.
fn starved(
    protocol: &Protocol,
    endless: &Endless,
    of: Sizes,
) -> Result<(usize, Option<Vec<String>>), ProveError> {
    let mut protocol = protocol.clone();
    (endless.supposed)(&mut protocol);
    let machine = Machine::new(&protocol, of)?;
    let Some(graph) = Graph::of(&machine, endless, MOST_STATES) else {
        return Ok((0, None));
    };
    let waits = machine.fact(endless.fact, endless.of);
    Ok((graph.states(), graph.starvation(&machine, &waits).map(|found| found.moves)))
}

fn entries(code: &Code<'_>, note: Note) -> Result<(), FormatError> {
    for subject in portolan_formats::all() {
        let clock = Clock::of(Part::Formats);
        let outcome = formats::prove(code, &subject)?;
        let bad = [outcome.refuted, outcome.open].concat();
        let found = match bad.is_empty() {
            true => format!("{} claims", outcome.proved),
            false => format!("not proved: {}", bad.join("; ")),
        };
        note(clock.verdict(&format!("entries: {}", subject.name), bad.is_empty(), found));
        let clock = Clock::of(Part::Formats);
        let (holds, found) = match formats::compare(code, &subject)? {
            Ok(many) => (true, format!("{many} values")),
            Err(function) => (false, format!("{function} differs")),
        };
        note(clock.verdict(&format!("formulas are the code: {}", subject.name), holds, found));
    }
    for mistake in portolan_formats::mistakes() {
        let clock = Clock::of(Part::Formats);
        let refuted = formats::prove(code, &mistake.subject)?.refuted;
        let by_claim = |one: &String| {
            one.rsplit_once(", level").is_some_and(|(claim, _)| claim == mistake.claim)
        };
        let refuted: Vec<String> = refuted.into_iter().filter(by_claim).collect();
        note(clock.verdict(mistake.says, !refuted.is_empty(), list(&refuted)));
    }
    Ok(())
}
