//! Runs of the library, each step of which has to be one of the protocol's.
//!
//! A run is the list of [`ProtocolStep`]s that the library tells its platform. [`Run::step`] makes the protocol's
//! steps that they stand for on the facts of the run, by the formulas of [`protocol`](crate::protocol), and refuses the
//! first one of which a guard is false. Names are found as a proof finds them: an entry's *frame* is what its mapping
//! lent, so each mapping has one of its own; entries and tables that are owed have a *debt* each, which are sent and
//! settled together where the library's debt covers all of them. A debt that two of the library's cover is settled by
//! the first that completes. Addresses for which no step says that they go back do so when they are mapped again, if
//! their debt is settled.
//!
//! Entries of one map that have the same facts are one thing until a step concerns a part of them. A table above others
//! is a table whose entries are no frames. Memory is bounded by what is mapped and owed at a time.
//!
//! Not supported: caches of devices, which no step of the library's tells of; steps whose order two CPUs do not agree
//! on, so the steps of one run come from a scheduler that lets one CPU run at a time, or from one lock.

mod begun;
mod cells;
mod checked;
mod debts;
mod facts;
mod query;
mod rules;
mod tables;
mod told;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use portolan::addr::TableId;
use portolan::platform::{DebtName, ProtocolStep};

use self::begun::{Begun, Way};
use self::cells::Cells;
use self::facts::{KnownFacts, Thing};
use self::rules::{Rules, StepNumber, Things, Unmet};
use self::tables::Pages;
use crate::expr::{FormulaError, Sort};
use crate::protocol::{Protocol, address_space};

pub use checked::{CheckedCpus, CheckedMemory, CheckedRun};
pub use told::say;

/// Step of a run that is none of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Number of the step, from 1.
    pub number: u64,
    /// The library's step.
    pub told: String,
    /// The protocol's step that it stands for.
    pub step: &'static str,
    /// The guard that is false.
    pub guard: &'static str,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, told, step, guard } = self;
        write!(f, "step {number} is none of the protocol: {told}: \"{step}\", and not \"{guard}\"")
    }
}

impl std::error::Error for Refusal {}

/// Numbers of steps that are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The library's.
    pub told: u64,
    /// The protocol's, but for those that another run has made as well.
    pub made: u64,
    /// The library's that were refused.
    pub refused: u64,
}

/// Time at which a run that has ended is noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Noted {
    /// At its end.
    Alone,
    /// With others, by [`say`].
    WithOthers,
}

/// The protocol, ready for runs.
#[derive(Clone)]
pub struct Checker(Arc<Known>);

/// The protocol's rules, and the numbers of its steps.
struct Known {
    rules: Rules,
    find: StepNumber,
    link: StepNumber,
    write: StepNumber,
    clear: StepNumber,
    take: StepNumber,
    take_out: StepNumber,
    send: StepNumber,
    told: StepNumber,
    settle: StepNumber,
    fail: StepNumber,
    give_back: StepNumber,
    coming: usize,
    leaf: usize,
    pending: usize,
    closed: usize,
    open: usize,
    sent: usize,
    begun: Begun,
}

impl Checker {
    /// Of a protocol.
    ///
    /// # Errors
    /// If a formula cannot be read, or a step or a fact of a run is not there.
    pub fn of(protocol: &Protocol) -> Result<Self, FormulaError> {
        let rules = Rules::new(protocol)?;
        let step = |name| rules.step(name);
        let fact = |name| rules.relation(name);
        Ok(Self(Arc::new(Known {
            find: step("find a table that hangs there")?,
            link: step("link a new table")?,
            write: step("write an entry")?,
            clear: step("clear an entry")?,
            take: step("take all addresses of a table")?,
            take_out: step("take the empty table out")?,
            send: step("send a debt's invalidations")?,
            told: step("the unit's caches are told")?,
            settle: step("device TLBs are told, and the debt is settled")?,
            fail: step("the hardware fails")?,
            give_back: step("give back what a settled debt held")?,
            coming: fact("coming")?,
            leaf: fact("leaf")?,
            pending: fact("pending")?,
            closed: fact("closed")?,
            open: fact("open")?,
            sent: fact("sent")?,
            begun: Begun::default(),
            rules,
        })))
    }

    /// A run that begins.
    pub fn run(&self) -> Run {
        let facts = self.0.rules.facts();
        Run {
            known: self.0.clone(),
            facts,
            next: 0,
            tally: Tally::default(),
            spaces: BTreeMap::new(),
            pages: Pages::default(),
            sent: BTreeMap::new(),
            carriers: BTreeMap::new(),
            noted: Noted::Alone,
            way: None,
        }
    }
}

/// The protocol of address spaces.
static PROTOCOL: LazyLock<Checker> =
    LazyLock::new(|| Checker::of(&address_space()).expect("formulas that can be read"));

/// A run under way.
pub struct Run {
    known: Arc<Known>,
    facts: KnownFacts,
    next: u64,
    tally: Tally,
    spaces: BTreeMap<u64, Cells>,
    pages: Pages,
    /// Debts that each debt of the library's covers, while that is on its way.
    sent: BTreeMap<DebtName, Vec<Thing>>,
    /// Number of the library's debts on their way that cover each.
    carriers: BTreeMap<Thing, usize>,
    noted: Noted,
    /// The way along runs that were accepted, if this is one of many.
    way: Option<Way>,
}

impl Default for Run {
    /// One of the protocol of address spaces.
    fn default() -> Self {
        PROTOCOL.run()
    }
}

/// A step that does not fit, before it has its number.
type Made<T = ()> = Result<T, Unmet>;

impl Run {
    /// Makes a step of the address space `of`.
    ///
    /// # Errors
    /// If it is none of the protocol.
    pub fn step(&mut self, of: TableId, step: ProtocolStep) -> Result<(), Refusal> {
        self.tally.told += 1;
        let Some(mut way) = self.way.take() else {
            return self.check(of, step);
        };
        let numbered = way.numbered(of, step);
        let known = numbered.and_then(|step| self.known.begun.after(way.at, step));
        match (known, numbered) {
            (Some(next), _) => {
                way.at = next;
                way.skipped.push((of, step));
            }
            (None, numbered) => {
                for (of, step) in way.skipped.drain(..) {
                    self.check(of, step)?;
                }
                self.check(of, step)?;
                let Some(numbered) = numbered else {
                    return Ok(());
                };
                way.at = self.known.begun.accept(way.at, numbered);
            }
        }
        self.way = Some(way);
        Ok(())
    }

    fn check(&mut self, of: TableId, step: ProtocolStep) -> Result<(), Refusal> {
        let space = of.get();
        let made = match step {
            ProtocolStep::Find { table, range } => self.find(space, table.get(), range),
            ProtocolStep::Link { table, spans } => self.link(space, table.get(), spans),
            ProtocolStep::Write { table, range } => self.write(space, table.get(), range),
            ProtocolStep::Split { table, spans } => self.split(space, table.get(), spans),
            ProtocolStep::Clear { range } => self.clear(space, range),
            ProtocolStep::Take { range } => self.take(space, range),
            ProtocolStep::TakeOut { table } => self.take_out(space, table.get()),
            ProtocolStep::Send { debt, range, walk_caches } => {
                self.send(space, debt, range, walk_caches)
            }
            ProtocolStep::Settle { debt } => self.settle(debt),
            ProtocolStep::Fail { debt } => self.fail(debt),
            ProtocolStep::Free { table } => self.free(table.get()),
            ProtocolStep::GiveBack { range } => self.give_back(space, range),
            ProtocolStep::End => {
                self.end(space);
                Ok(())
            }
            // A step that is told and not known here must not pass.
            _ => Err(Unmet { step: "none", guard: "the step is known" }),
        };
        made.map_err(|Unmet { step: name, guard }| {
            self.tally.refused += 1;
            let told = format!("{step:x?} of {space}");
            Refusal { number: self.tally.told, told, step: name, guard }
        })
    }

    /// The same run before its first step, one of so many that [`say`] notes them together, and that many begin alike:
    /// it makes steps from where it parts with those that were accepted.
    #[must_use]
    pub fn of_many(mut self) -> Self {
        self.noted = Noted::WithOthers;
        self.way = Some(Way::default());
        self
    }

    /// Numbers of steps so far.
    pub const fn tally(&self) -> Tally {
        self.tally
    }

    /// A thing that is new.
    fn new_thing(&mut self, sort: Sort) -> Thing {
        self.next += 1;
        let thing = Thing(self.next);
        self.known.rules.begin(&mut self.facts, sort, thing);
        thing
    }

    /// Makes a step of the protocol.
    fn make(&mut self, step: StepNumber, things: Things) -> Made {
        self.tally.made += 1;
        self.known.rules.make(&mut self.facts, step, things)
    }

    fn forget(&mut self, sort: Sort, thing: Thing) {
        self.known.rules.end(&mut self.facts, sort, thing);
    }

    /// Tells if a debt is settled.
    fn is_settled(&self, debt: Thing) -> bool {
        !self.facts.is(self.known.open, &[debt])
    }

    /// Gives back what a debt held, which has to be settled.
    fn give_back_debt(&mut self, debt: Thing) -> Made {
        self.make(self.known.give_back, Things::NONE.with(Sort::Debt, debt))?;
        self.forget(Sort::Debt, debt);
        self.carriers.remove(&debt);
        Ok(())
    }
}
