//! Suspend: a unit loses its registers, its queue and the order of its caches, and mappings stand.
//!
//! A unit stands for itself and the devices behind it. One whose streams are shut and whose caches have forgotten is
//! off: it reaches no table, and nothing is owed to it, with power or without. Maps and unmaps come at any time.
//!
//! Not in this part: a unit that fails while it resumes; interrupts, and records of faults.

use super::{Scope, by_cpu, by_others};
use crate::defects::{Defect, unchanged, unguarded};
use crate::expr::Sort::{Debt, Device, Frame};
use crate::fairness::Endless;
use crate::finite::Sizes;
use crate::protocol::{
    Actor, Change, Claim, Definition, Protocol, Relation, Step, claim, relation,
};

const UNMAP: &str = "unmap, with units on or off";
const SHUT: &str = "shut a unit's streams";
const FORGET: &str = "all caches of a unit forget";
const OFF: &str = "a unit is off";
const OWE: &str = "nothing is owed to a unit that is off";
const LOSE: &str = "a unit's power is cut";
const POWER: &str = "a unit's power comes back";
const WRITE: &str = "a unit gets its registers and its queue again";
const TRANSLATE: &str = "a unit translates";
const ON: &str = "a unit is on again";
const OPEN: &str = "open a unit's streams";
const RUN: &str = "devices behind a unit run";
const STOP: &str = "devices behind a unit stop";
const PAY: &str = "a unit carries a debt out";

/// The protocol of units that are suspended.
pub fn scope() -> Scope {
    Scope {
        name: "suspend",
        protocol: Protocol {
            relations: relations(),
            functions: Vec::new(),
            definitions: vec![Definition {
                name: "reaches",
                variables: "((v Device) (f Frame))",
                is: "(and (runs v) (or (cached v f) (and (opened v) (reachable f))))",
            }],
            full: vec!["kept"],
            steps: [buffers(), down(), up(), hardware()].concat(),
            invariant: [invariant(), kept()].concat(),
            safety: [reached(), kept()].concat(),
        },
        defects: defects(),
        small: Sizes(&[(Frame, 1), (Debt, 1), (Device, 1)]),
        searched: vec![Sizes(&[(Frame, 2), (Debt, 1), (Device, 1)])],
        endless: vec![comes_back()],
    }
}

fn relations() -> Vec<Relation> {
    let cached = "caches of the unit, or of its devices, lead to the frame";
    vec![
        relation("kept", &[Frame], "the frame is with its owner"),
        relation("lent", &[Frame], "its owner has lent it to devices"),
        relation("reachable", &[Frame], "tables in memory lead to the frame"),
        relation("retired", &[Frame, Debt], "the frame is unmapped, and not back"),
        relation("owed", &[Device, Debt], "the debt's invalidations are owed to the unit's caches"),
        relation("cached", &[Device, Frame], cached),
        relation("runs", &[Device], "a device behind the unit may access memory"),
        relation("opened", &[Device], "entries of the unit's streams lead to tables"),
        relation(
            "empty",
            &[Device],
            "its caches have forgotten everything since its streams are shut",
        ),
        relation("clean", &[Device], "its caches have forgotten what they had at power-on"),
        relation("off", &[Device], "nothing is owed to the unit"),
        relation("dark", &[Device], "the unit has no power"),
        relation("ready", &[Device], "the unit has its registers and its queue"),
        relation("translates", &[Device], "no access passes the unit without translation"),
    ]
}

fn buffers() -> Vec<Step> {
    vec![
        by_cpu(
            "map, with units on or off",
            "crates/portolan/src/dma/space/map.rs place",
            "((f Frame))",
            vec![claim("its owner has the frame", "(kept f)")],
            vec![
                Change::Remove("kept", &["f"]),
                Change::Add("lent", &["f"]),
                Change::Add("reachable", &["f"]),
            ],
        ),
        by_cpu(
            UNMAP,
            "crates/portolan/src/dma/space/unmap.rs unmap",
            "((f Frame) (d Debt))",
            vec![claim("tables lead to it", "(reachable f)")],
            vec![
                Change::Remove("lent", &["f"]),
                Change::Remove("reachable", &["f"]),
                Change::Add("retired", &["f", "d"]),
                Change::AddAll("owed", &["v", "e"], "(= e d)"),
            ],
        ),
        by_cpu(
            "give back what no unit is owed",
            "crates/portolan/src/table/chain.rs free_chain",
            "((d Debt))",
            vec![claim("no unit is owed any more", "(forall ((v Device)) (not (owed v d)))")],
            vec![
                Change::AddAll("kept", &["f"], "(retired f d)"),
                Change::Remove("retired", &["*", "d"]),
            ],
        ),
    ]
}

fn step(name: &'static str, guards: Vec<Claim>, changes: Vec<Change>) -> Step {
    by_others(name, Actor::Cpu, "((v Device))", guards, changes)
}

/// Steps of a driver that suspends its unit, and of the embedder after it.
fn down() -> Vec<Step> {
    vec![
        step(SHUT, vec![], vec![Change::Remove("opened", &["v"])]),
        step(
            FORGET,
            vec![claim("the queue takes commands", "(ready v)")],
            vec![
                Change::RemoveAll("cached", &["w", "f"], "(= w v)"),
                Change::RemoveAll("owed", &["w", "d"], "(= w v)"),
                Change::AddAll("empty", &["w"], "(and (= w v) (not (opened w)))"),
                Change::Add("clean", &["v"]),
            ],
        ),
        step(
            OFF,
            vec![claim("its caches are empty", "(empty v)")],
            vec![Change::Add("off", &["v"])],
        ),
        by_others(
            OWE,
            Actor::Cpu,
            "((v Device) (d Debt))",
            vec![claim("it is off", "(off v)")],
            vec![Change::Remove("owed", &["v", "d"])],
        ),
        step(STOP, vec![], vec![Change::Remove("runs", &["v"])]),
        step(
            LOSE,
            vec![
                claim("it is off", "(off v)"),
                claim("no device behind it runs", "(not (runs v))"),
            ],
            vec![
                Change::Add("dark", &["v"]),
                Change::Remove("ready", &["v"]),
                Change::Remove("clean", &["v"]),
                Change::Remove("empty", &["v"]),
                Change::Remove("translates", &["v"]),
            ],
        ),
        step(
            POWER,
            vec![claim("it has none", "(dark v)")],
            vec![
                Change::Remove("dark", &["v"]),
                // The contents of caches are not known then.
                Change::AddAll("cached", &["w", "f"], "(= w v)"),
            ],
        ),
    ]
}

/// Steps of a driver that resumes its unit, or starts it.
fn up() -> Vec<Step> {
    vec![
        step(
            WRITE,
            vec![claim("the unit has power", "(not (dark v))")],
            vec![Change::Add("ready", &["v"])],
        ),
        step(
            TRANSLATE,
            vec![claim("its caches have forgotten", "(clean v)")],
            vec![Change::Add("translates", &["v"])],
        ),
        step(
            ON,
            vec![claim("it translates", "(translates v)")],
            vec![Change::Remove("off", &["v"])],
        ),
        step(
            OPEN,
            vec![claim("it is not off", "(not (off v))")],
            vec![Change::Add("opened", &["v"]), Change::Remove("empty", &["v"])],
        ),
        step(
            RUN,
            vec![claim("the unit translates", "(translates v)")],
            vec![Change::Add("runs", &["v"])],
        ),
    ]
}

fn hardware() -> Vec<Step> {
    let variables = "((v Device) (f Frame))";
    vec![
        by_others(
            PAY,
            Actor::Unit,
            "((v Device) (d Debt))",
            vec![],
            vec![
                Change::Remove("owed", &["v", "d"]),
                Change::RemoveAll("cached", &["w", "f"], "(and (= w v) (retired f d))"),
            ],
        ),
        by_others(
            "a unit's caches take a frame",
            Actor::Device,
            variables,
            vec![
                claim("a walk finds it", "(reachable f)"),
                claim("streams lead there", "(opened v)"),
            ],
            vec![Change::Add("cached", &["v", "f"])],
        ),
        by_others(
            "a unit's caches drop a frame",
            Actor::Device,
            variables,
            vec![],
            vec![Change::Remove("cached", &["v", "f"])],
        ),
    ]
}

fn invariant() -> Vec<Claim> {
    vec![
        claim(
            "what tables lead to is not with its owner",
            "(forall ((f Frame)) (=> (reachable f) (not (kept f))))",
        ),
        claim(
            "what is retired is not with its owner",
            "(forall ((f Frame) (d Debt)) (=> (retired f d) (not (kept f))))",
        ),
        claim(
            "what is retired is retired once, and not reachable",
            "(forall ((f Frame) (d Debt) (e Debt)) (=> (retired f d) \
             (and (not (reachable f)) (=> (retired f e) (= d e)))))",
        ),
        claim(
            "clean caches lead to what is reachable, or owed to them",
            "(forall ((v Device) (f Frame)) (=> (and (clean v) (cached v f)) (or (reachable f) \
             (exists ((d Debt)) (and (retired f d) (owed v d))))))",
        ),
        claim(
            "empty caches are clean, and lead nowhere, nor do streams",
            "(forall ((v Device) (f Frame)) (=> (empty v) \
             (and (clean v) (not (cached v f)) (not (opened v)))))",
        ),
        claim(
            "a unit that is off is shut, and its caches are empty once they are clean",
            "(forall ((v Device)) (=> (off v) (and (not (opened v)) (=> (clean v) (empty v)))))",
        ),
        claim(
            "a unit that translates has clean caches",
            "(forall ((v Device)) (=> (translates v) (clean v)))",
        ),
        claim(
            "a unit without power is off, and has neither queue nor clean caches",
            "(forall ((v Device)) (=> (dark v) (and (off v) (not (ready v)) (not (clean v)))))",
        ),
    ]
}

fn reached() -> Vec<Claim> {
    vec![claim(
        "no device reaches a frame that is with its owner",
        "(forall ((v Device) (f Frame)) (=> (kept f) (not (reaches v f))))",
    )]
}

/// Promises that each step keeps.
fn kept() -> Vec<Claim> {
    vec![
        claim("nothing passes untranslated", "(forall ((v Device)) (=> (runs v) (translates v)))"),
        claim("mappings stand", "(forall ((f Frame)) (=> (lent f) (reachable f)))"),
    ]
}

fn defects() -> Vec<Defect> {
    vec![
        Defect {
            says: "a unit translates before its caches have forgotten",
            seen: "a resume without invalidation, after which translations of before are used",
            edit: |p| unguarded(p, TRANSLATE, "its caches have forgotten"),
        },
        Defect {
            says: "devices run before their unit translates",
            seen: "a resume in which a driver comes before the IOMMU's",
            edit: |p| unguarded(p, RUN, "the unit translates"),
        },
        Defect {
            says: "power is cut while a device runs",
            seen: "a unit that is turned off before the drivers of its devices have stopped them",
            edit: |p| unguarded(p, LOSE, "no device behind it runs"),
        },
        Defect {
            says: "a unit counts as off before its caches have forgotten",
            seen: "an unmap that a suspended unit need not hear of, and whose translation it keeps",
            edit: |p| unguarded(p, OFF, "its caches are empty"),
        },
        Defect {
            says: "caches forget before the streams are shut",
            seen: "a walk between the invalidation and the entry that blocks",
            edit: |p| {
                unchanged(p, FORGET, "empty");
                if let Some(step) = p.step(FORGET) {
                    step.changes.push(Change::Add("empty", &["v"]));
                }
            },
        },
        Defect {
            says: "streams are opened while the unit counts as off",
            seen: "a resume that lets devices through before it hears of unmaps again",
            edit: |p| unguarded(p, OPEN, "it is not off"),
        },
        Defect {
            says: "caches of a unit without power are told to forget",
            seen: "commands to a unit that sleeps, counted as carried out",
            edit: |p| unguarded(p, WRITE, "the unit has power"),
        },
        Defect {
            says: "mappings are lost with the power",
            seen: "tables of a device that are made anew at resume",
            edit: |p| {
                if let Some(step) = p.step(LOSE) {
                    step.changes.push(Change::RemoveAll("reachable", &["f"], "true"));
                }
            },
        },
    ]
}

fn comes_back() -> Endless {
    Endless {
        says: "what is unmapped comes back, with units on or off",
        fact: "retired",
        of: &[0, 0],
        supposed: |p| {
            if let Some(step) = p.step(PAY) {
                step.guards.push(claim("the unit has its queue", "(ready v)"));
            }
            if let Some(step) = p.step(UNMAP) {
                let new = "(forall ((g Frame)) (not (retired g d)))";
                step.guards.push(claim("the debt is new", new));
            }
        },
        free: &["map, with units on or off", UNMAP, SHUT, OFF, STOP, LOSE, POWER, RUN],
        failure: None,
        alike: None,
        machines: vec![Sizes(&[(Frame, 2), (Debt, 2), (Device, 1)])],
        starvations: vec![Defect {
            says: "what is unmapped while a unit is off waits for its resume",
            seen: "a unit that is powered down for good, and buffers that never return",
            edit: |p| unchanged(p, OWE, "owed"),
        }],
    }
}
