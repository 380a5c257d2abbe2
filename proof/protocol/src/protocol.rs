//! Unmap, invalidate, free: the protocol of one address space as data.
//!
//! An address space has slots, where leaf tables hang, and debts: what unmaps owe to the caches of
//! devices. A step is atomic and may be any CPU's; the number of CPUs, tables, entries, frames,
//! debts and devices is not bounded. A device fills its caches at any time and forgets at any time.
//! `docs/protocol.md` explains the steps and names the code of each.
//!
//! Not in this part: tables of more than two levels, splits of large pages, words that become
//! visible late.

use crate::expr::Sort;
use Sort::{Debt, Device, Frame, Index, Slot, Table};

/// Fact of the state.
#[derive(Clone, Copy, Debug)]
pub struct Relation {
    /// Name in formulas.
    pub name: &'static str,
    /// Sorts of the things that it is a fact about.
    pub sorts: &'static [Sort],
    /// Its meaning.
    pub meaning: &'static str,
}

/// Value that each thing of a sort has.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Name in formulas.
    pub name: &'static str,
    /// Sort of the thing.
    pub of: Sort,
    /// Sort of the value.
    pub is: Sort,
    /// Its meaning.
    pub meaning: &'static str,
}

/// Name for a formula.
#[derive(Clone, Debug)]
pub struct Definition {
    /// Name in formulas.
    pub name: &'static str,
    /// Variables with their sorts.
    pub variables: &'static str,
    /// The formula.
    pub is: &'static str,
}

/// Formula with a sentence.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The sentence.
    pub says: &'static str,
    /// The formula.
    pub is: &'static str,
}

/// Change of one relation or function by a step. All formulas speak of the state before.
#[derive(Clone, Debug)]
pub enum Change {
    /// These things join the relation.
    Add(&'static str, &'static [&'static str]),
    /// These things leave the relation; `*` stands for any.
    Remove(&'static str, &'static [&'static str]),
    /// All things of which the formula is true join the relation.
    AddAll(&'static str, &'static [&'static str], &'static str),
    /// All things of which the formula is true leave the relation.
    RemoveAll(&'static str, &'static [&'static str], &'static str),
    /// The function's value of the first is the second from now on.
    Set(&'static str, &'static str, &'static str),
}

impl Change {
    /// The relation or function that changes.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Add(name, _)
            | Self::Remove(name, _)
            | Self::AddAll(name, ..)
            | Self::RemoveAll(name, ..)
            | Self::Set(name, ..) => name,
        }
    }
}

/// Maker of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// A CPU.
    Cpu,
    /// The unit, which carries out commands; it may fail, but must not fail for ever.
    Unit,
    /// A device with its caches, which need not do anything.
    Device,
}

/// Atomic step.
#[derive(Clone, Debug)]
pub struct Step {
    /// Name.
    pub name: &'static str,
    /// Its maker.
    pub actor: Actor,
    /// File and function of the step; none for devices and for the unit.
    pub place: &'static str,
    /// Things that it is a step of, with their sorts.
    pub variables: &'static str,
    /// Conditions, each of which the code ensures.
    pub guards: Vec<Claim>,
    /// Changes.
    pub changes: Vec<Change>,
}

/// Protocol.
#[derive(Clone, Debug)]
pub struct Protocol {
    /// Facts.
    pub relations: Vec<Relation>,
    /// Values.
    pub functions: Vec<Function>,
    /// Names for formulas.
    pub definitions: Vec<Definition>,
    /// Facts that are true of everything at the start; all others are false.
    pub full: Vec<&'static str>,
    /// Steps.
    pub steps: Vec<Step>,
    /// Conjuncts of the invariant.
    pub invariant: Vec<Claim>,
    /// Promises.
    pub safety: Vec<Claim>,
}

impl Protocol {
    /// A step by its name.
    pub fn step(&mut self, name: &str) -> Option<&mut Step> {
        self.steps.iter_mut().find(|step| step.name == name)
    }
}

pub(crate) const fn claim(says: &'static str, is: &'static str) -> Claim {
    Claim { says, is }
}

pub(crate) const fn relation(
    name: &'static str,
    sorts: &'static [Sort],
    meaning: &'static str,
) -> Relation {
    Relation { name, sorts, meaning }
}

/// The protocol of an address space.
pub fn address_space() -> Protocol {
    Protocol {
        relations: relations(),
        functions: vec![
            Function {
                name: "slot",
                of: Table,
                is: Slot,
                meaning: "slot where the table hangs, or hung last",
            },
            Function {
                name: "tag",
                of: Table,
                is: Debt,
                meaning: "debt with which the table was taken out",
            },
        ],
        definitions: definitions(),
        full: vec!["free", "owner"],
        steps: [maps(), unmaps(), invalidations(), devices()].concat(),
        invariant: invariant(),
        safety: safety(),
    }
}

fn relations() -> Vec<Relation> {
    vec![
        relation("linked", &[Table], "the slot's entry points at the table"),
        relation("left", &[Table], "the slot's entry is empty; walk caches may lead to the table"),
        relation("free", &[Table], "the page may be used for anything"),
        relation("closed", &[Table], "who takes the table out has all addresses that it spans"),
        relation(
            "coming",
            &[Table, Index, Frame],
            "a map that has the address has found the table, and has not yet written the entry",
        ),
        relation("leaf", &[Table, Index, Frame], "the entry as hardware reads it"),
        relation(
            "pending",
            &[Slot, Index, Frame, Debt],
            "unmapped; neither address nor frame is given back",
        ),
        relation("open", &[Debt], "the debt gathers unmaps, or is not yet settled"),
        relation("sent", &[Debt], "its invalidations are on the way"),
        relation("told", &[Debt], "the unit's caches have carried them out, device TLBs have not"),
        relation("owner", &[Frame], "the frame's owner has it; no device may reach it"),
        relation(
            "walk_cache",
            &[Device, Slot, Table],
            "a walk of the device skips the upper table",
        ),
        relation(
            "iotlb",
            &[Device, Slot, Index, Frame],
            "the unit remembers a translation for the device",
        ),
        relation(
            "device_tlb",
            &[Device, Slot, Index, Frame],
            "the device remembers a translation (ATS)",
        ),
    ]
}

fn definitions() -> Vec<Definition> {
    let definition = |name, variables, is| Definition { name, variables, is };
    vec![
        definition("kept", "((t Table))", "(or (linked t) (left t))"),
        definition(
            "taken",
            "((s Slot))",
            "(exists ((u Table)) (and (= (slot u) s) (or (closed u) (left u))))",
        ),
        definition("here", "((s Slot) (t Table))", "(and (linked t) (= (slot t) s))"),
        definition("used", "((t Table) (i Index) (f Frame))", "(or (coming t i f) (leaf t i f))"),
        definition(
            "mapped",
            "((s Slot) (i Index) (f Frame))",
            "(exists ((u Table)) (and (here s u) (leaf u i f)))",
        ),
        definition(
            "walked",
            "((v Device) (s Slot) (i Index) (f Frame))",
            "(exists ((u Table)) (and (leaf u i f) (or (here s u) (walk_cache v s u))))",
        ),
        definition(
            "reached",
            "((v Device) (s Slot) (i Index) (f Frame))",
            "(or (iotlb v s i f) (device_tlb v s i f) (walked v s i f))",
        ),
        definition("gathers", "((d Debt))", "(and (open d) (not (sent d)))"),
        definition(
            "fresh",
            "((d Debt))",
            "(and (not (open d)) \
             (forall ((s Slot) (i Index) (g Frame)) (not (pending s i g d))) \
             (forall ((u Table)) (=> (left u) (not (= (tag u) d)))))",
        ),
    ]
}

/// Guards of every map.
fn map_guards() -> Vec<Claim> {
    vec![
        claim("the owner gives the frame", "(owner f)"),
        claim("the address is quiet", "(forall ((g Frame) (d Debt)) (not (pending s i g d)))"),
        claim("the address is not taken with its table", "(not (taken s))"),
    ]
}

fn maps() -> Vec<Step> {
    let coming = [Change::Add("coming", &["t", "i", "f"]), Change::Remove("owner", &["f"])];
    let map = |name, place, guards: &[Claim], changes: &[Change]| Step {
        name,
        actor: Actor::Cpu,
        place,
        variables: "((s Slot) (t Table) (i Index) (f Frame))",
        guards: [&map_guards(), guards].concat(),
        changes: [&coming, changes].concat(),
    };
    vec![
        map(
            "find a table that hangs there",
            "crates/portolan/src/table/slot.rs leaf_table_at",
            &[
                claim("the table hangs there", "(here s t)"),
                claim("the entry is in no use", "(forall ((g Frame)) (not (used t i g)))"),
            ],
            &[],
        ),
        map(
            "link a new table",
            "crates/portolan/src/table/map.rs leaf_table",
            &[
                claim("the page is free", "(free t)"),
                claim("no table hangs there", "(forall ((u Table)) (not (here s u)))"),
            ],
            &[
                Change::Remove("free", &["t"]),
                Change::Add("linked", &["t"]),
                Change::Set("slot", "t", "s"),
            ],
        ),
        Step {
            name: "write an entry",
            actor: Actor::Cpu,
            place: "crates/portolan/src/table/slot.rs map_page",
            variables: "((t Table) (i Index) (f Frame))",
            guards: vec![claim("the map has the address and the table", "(coming t i f)")],
            changes: vec![
                Change::Remove("coming", &["t", "i", "f"]),
                Change::Add("leaf", &["t", "i", "f"]),
            ],
        },
    ]
}

fn unmaps() -> Vec<Step> {
    let step = |name, place, variables, guards, changes| Step {
        name,
        actor: Actor::Cpu,
        place,
        variables,
        guards,
        changes,
    };
    vec![
        step(
            "clear an entry",
            "crates/portolan/src/table/unmap.rs clear_at",
            "((s Slot) (t Table) (i Index) (f Frame) (d Debt))",
            vec![
                claim("the table hangs there", "(here s t)"),
                claim("the entry is written", "(leaf t i f)"),
                claim("the debt still gathers, or is a new one", "(or (gathers d) (fresh d))"),
            ],
            vec![
                Change::Remove("leaf", &["t", "i", "f"]),
                Change::Add("pending", &["s", "i", "f", "d"]),
                Change::Add("open", &["d"]),
            ],
        ),
        step(
            "take all addresses of a table",
            "crates/portolan/src/dma/space/tables.rs give_back_once",
            "((t Table))",
            vec![
                claim("the table hangs there", "(linked t)"),
                claim("no address is in use", "(forall ((i Index) (f Frame)) (not (used t i f)))"),
            ],
            vec![Change::Add("closed", &["t"])],
        ),
        step(
            "take the empty table out",
            "crates/portolan/src/table/unmap.rs detach_if_empty",
            "((t Table) (d Debt))",
            vec![
                claim("its addresses are taken", "(closed t)"),
                claim("the debt still gathers, or is a new one", "(or (gathers d) (fresh d))"),
            ],
            vec![
                Change::Remove("closed", &["t"]),
                Change::Remove("linked", &["t"]),
                Change::Add("left", &["t"]),
                Change::Set("tag", "t", "d"),
                Change::Add("open", &["d"]),
            ],
        ),
    ]
}

fn invalidations() -> Vec<Step> {
    let step = |name, actor, place, guards, changes| Step {
        name,
        actor,
        place,
        variables: "((d Debt))",
        guards,
        changes,
    };
    vec![
        step(
            "send a debt's invalidations",
            Actor::Cpu,
            "crates/portolan/src/inval/queue.rs settle",
            vec![claim("the debt gathers", "(gathers d)")],
            vec![Change::Add("sent", &["d"])],
        ),
        step(
            "the unit's caches are told",
            Actor::Unit,
            "",
            vec![claim("they are sent", "(sent d)")],
            vec![
                Change::Add("told", &["d"]),
                Change::RemoveAll("walk_cache", &["v", "s", "t"], "(and (left t) (= (tag t) d))"),
                Change::RemoveAll("iotlb", &["v", "s", "i", "f"], "(pending s i f d)"),
            ],
        ),
        step(
            "device TLBs are told, and the debt is settled",
            Actor::Unit,
            "crates/portolan-hw/src/chassis/ring/waits.rs complete",
            vec![claim("the unit's caches were told before", "(told d)")],
            vec![
                Change::Remove("open", &["d"]),
                Change::Remove("sent", &["d"]),
                Change::Remove("told", &["d"]),
                Change::RemoveAll("device_tlb", &["v", "s", "i", "f"], "(pending s i f d)"),
            ],
        ),
        step(
            "the hardware fails",
            Actor::Unit,
            "crates/portolan-hw/src/chassis/ring/waits.rs wait_until",
            vec![],
            vec![Change::Remove("sent", &["d"]), Change::Remove("told", &["d"])],
        ),
        step(
            "give back what a settled debt held",
            Actor::Cpu,
            "crates/portolan/src/table/chain.rs free_chain",
            vec![claim("the debt is settled", "(not (open d))")],
            vec![
                Change::RemoveAll("left", &["t"], "(= (tag t) d)"),
                Change::AddAll("free", &["t"], "(and (left t) (= (tag t) d))"),
                Change::AddAll("owner", &["f"], "(exists ((s Slot) (i Index)) (pending s i f d))"),
                Change::Remove("pending", &["*", "*", "*", "d"]),
            ],
        ),
    ]
}

fn devices() -> Vec<Step> {
    let step = |name, variables, guards, changes| Step {
        name,
        actor: Actor::Device,
        place: "",
        variables,
        guards,
        changes,
    };
    let translation = "((v Device) (s Slot) (i Index) (f Frame))";
    vec![
        step(
            "a device fills its walk cache",
            "((v Device) (s Slot) (t Table))",
            vec![claim("the table hangs there", "(here s t)")],
            vec![Change::Add("walk_cache", &["v", "s", "t"])],
        ),
        step(
            "a device fills its IOTLB",
            translation,
            vec![claim("a walk finds it", "(walked v s i f)")],
            vec![Change::Add("iotlb", &["v", "s", "i", "f"])],
        ),
        step(
            "a device fills its own TLB",
            translation,
            vec![claim("the unit answers so", "(or (iotlb v s i f) (walked v s i f))")],
            vec![Change::Add("device_tlb", &["v", "s", "i", "f"])],
        ),
        step(
            "a device forgets a walk",
            "((v Device) (s Slot) (t Table))",
            vec![],
            vec![Change::Remove("walk_cache", &["v", "s", "t"])],
        ),
        step(
            "a device forgets a translation",
            translation,
            vec![],
            vec![Change::Remove("iotlb", &["v", "s", "i", "f"])],
        ),
        step(
            "a device forgets one of its own",
            translation,
            vec![],
            vec![Change::Remove("device_tlb", &["v", "s", "i", "f"])],
        ),
    ]
}

fn invariant() -> Vec<Claim> {
    [invariant_of_memory(), invariant_of_caches()].concat()
}

fn invariant_of_memory() -> Vec<Claim> {
    vec![
        claim(
            "a page is linked, has left or is free",
            "(forall ((t Table)) (and (not (and (linked t) (left t))) (not (and (free t) (kept t)))))",
        ),
        claim(
            "a slot has one table",
            "(forall ((t Table) (u Table)) (=> (and (kept t) (kept u) (= (slot t) (slot u))) (= t u)))",
        ),
        claim(
            "only linked tables have entries",
            "(forall ((t Table) (i Index) (f Frame)) (=> (used t i f) (linked t)))",
        ),
        claim(
            "a table whose addresses are taken is linked, and has no entry in use",
            "(forall ((t Table)) (=> (closed t) (and (linked t) \
             (forall ((i Index) (f Frame)) (not (used t i f))))))",
        ),
        claim(
            "an entry has one use",
            "(forall ((t Table) (i Index) (f Frame) (g Frame)) \
             (and (=> (and (used t i f) (used t i g)) (= f g)) (not (and (coming t i f) (leaf t i g)))))",
        ),
        claim(
            "a frame in use is not its owner's",
            "(forall ((t Table) (i Index) (f Frame)) (=> (used t i f) (not (owner f))))",
        ),
        claim(
            "a pending frame is not its owner's",
            "(forall ((s Slot) (i Index) (f Frame) (d Debt)) (=> (pending s i f d) (not (owner f))))",
        ),
        claim(
            "a frame is in use once",
            "(forall ((t Table) (u Table) (i Index) (j Index) (f Frame)) \
             (=> (and (used t i f) (used u j f)) (and (= t u) (= i j))))",
        ),
        claim(
            "a frame is pending once",
            "(forall ((s Slot) (r Slot) (i Index) (j Index) (f Frame) (d Debt) (e Debt)) \
             (=> (and (pending s i f d) (pending r j f e)) (and (= s r) (= i j) (= d e))))",
        ),
        claim(
            "a pending frame is not in use",
            "(forall ((t Table) (i Index) (j Index) (s Slot) (f Frame) (d Debt)) \
             (not (and (used t i f) (pending s j f d))))",
        ),
        claim(
            "an address is not used again before it is quiet",
            "(forall ((t Table) (i Index) (f Frame) (g Frame) (d Debt)) \
             (not (and (used t i f) (pending (slot t) i g d))))",
        ),
    ]
}

fn invariant_of_caches() -> Vec<Claim> {
    vec![
        claim(
            "a debt that is told is sent, and one that is sent is open",
            "(forall ((d Debt)) (and (=> (told d) (sent d)) (=> (sent d) (open d))))",
        ),
        claim(
            "a walk cache leads to a linked table, or to one that is owed",
            "(forall ((v Device) (s Slot) (t Table)) (=> (walk_cache v s t) (and (= (slot t) s) \
             (or (linked t) (and (left t) (open (tag t)) (not (told (tag t))))))))",
        ),
        claim(
            "an IOTLB has mapped translations, or owed ones",
            "(forall ((v Device) (s Slot) (i Index) (f Frame)) (=> (iotlb v s i f) (or (mapped s i f) \
             (exists ((d Debt)) (and (pending s i f d) (open d) (not (told d)))))))",
        ),
        claim(
            "a device TLB has mapped translations, or owed ones",
            "(forall ((v Device) (s Slot) (i Index) (f Frame)) (=> (device_tlb v s i f) (or (mapped s i f) \
             (exists ((d Debt)) (and (pending s i f d) (open d))))))",
        ),
    ]
}

fn safety() -> Vec<Claim> {
    vec![
        claim(
            "no device reaches a frame that its owner has back",
            "(forall ((v Device) (s Slot) (i Index) (f Frame)) (=> (owner f) (not (reached v s i f))))",
        ),
        claim(
            "no walk cache leads to a page that is free",
            "(forall ((v Device) (s Slot) (t Table)) (=> (free t) (not (walk_cache v s t))))",
        ),
        claim(
            "no map writes into a page that has left",
            "(forall ((t Table) (i Index) (f Frame)) (=> (used t i f) (linked t)))",
        ),
        claim(
            "no table hides behind one that has left",
            "(forall ((v Device) (s Slot) (t Table) (u Table)) \
             (=> (and (here s t) (walk_cache v s u)) (= t u)))",
        ),
        claim(
            "a mapped address leads to its frame alone",
            "(forall ((v Device) (t Table) (i Index) (f Frame) (g Frame)) \
             (=> (and (leaf t i f) (reached v (slot t) i g)) (= f g)))",
        ),
    ]
}
