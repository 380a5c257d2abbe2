//! A space whose hardware has failed: what it held comes back by `recover`, and not before.
//!
//! The failure itself is also a step of the protocol of an address space, where it may come at any
//! time. Here the space remembers it, and says that it works again.
//!
//! Not in this part: streams that are blocked, which stay so until they are attached again.

use super::{Scope, by_cpu, by_others};
use crate::defects::{Defect, guarded, unchanged, unguarded};
use crate::expr::Sort::{Debt, Device, Frame, Slot};
use crate::fairness::Endless;
use crate::finite::Sizes;
use crate::protocol::{Actor, Change, Claim, Protocol, Relation, Step, claim, relation};

const UNMAP: &str = "unmap in a space";
const PAY: &str = "pay, for the first time or again";
const COMPLETE: &str = "the unit completes a space's debt";
const FAIL: &str = "the unit fails, and the space breaks";
const RECOVERED: &str = "the space works again";
const RELEASE: &str = "release what was held";

/// The protocol of a space that fails and recovers.
pub fn scope() -> Scope {
    Scope {
        name: "recovery",
        protocol: Protocol {
            relations: relations(),
            functions: Vec::new(),
            definitions: Vec::new(),
            full: vec!["given"],
            steps: [cpus(), hardware()].concat(),
            invariant: invariant(),
            safety: safety(),
        },
        defects: defects(),
        small: Sizes(&[(Slot, 1), (Frame, 2), (Debt, 2), (Device, 1)]),
        searched: vec![Sizes(&[(Slot, 2), (Frame, 2), (Debt, 2), (Device, 1)])],
        endless: vec![ends(), comes_back()],
    }
}

fn relations() -> Vec<Relation> {
    vec![
        relation("given", &[Frame], "the frame is its owner's"),
        relation("leads", &[Slot, Frame], "a space's entry leads to the frame"),
        relation("known", &[Device, Frame], "a device's caches lead to the frame"),
        relation("held", &[Slot, Frame, Debt], "unmapped in the space, and not given back"),
        relation("due", &[Debt], "the debt's invalidations are not complete"),
        relation("asked", &[Debt], "they are on the way"),
        relation("failed", &[Slot, Debt], "the unit did not complete the space's debt"),
        relation("down", &[Slot], "the space has broken"),
    ]
}

fn cpus() -> Vec<Step> {
    vec![
        by_cpu(
            "map in a space",
            "crates/portolan/src/dma/space/map.rs place",
            "((s Slot) (f Frame))",
            vec![claim("the owner gives the frame", "(given f)")],
            vec![Change::Remove("given", &["f"]), Change::Add("leads", &["s", "f"])],
        ),
        by_cpu(
            UNMAP,
            "crates/portolan/src/dma/space/unmap.rs unmap",
            "((s Slot) (f Frame) (d Debt))",
            vec![claim("it is mapped", "(leads s f)")],
            vec![
                Change::Remove("leads", &["s", "f"]),
                Change::Add("held", &["s", "f", "d"]),
                Change::Add("due", &["d"]),
            ],
        ),
        by_cpu(
            PAY,
            "crates/portolan/src/dma/space/unmap.rs recover",
            "((d Debt))",
            vec![claim("the debt is due", "(due d)")],
            vec![Change::Add("asked", &["d"])],
        ),
        by_cpu(
            RELEASE,
            "crates/portolan/src/dma/space/unmap.rs recover",
            "((d Debt))",
            vec![claim("the debt is paid", "(not (due d))")],
            vec![
                Change::AddAll("given", &["f"], "(exists ((s Slot)) (held s f d))"),
                Change::Remove("held", &["*", "*", "d"]),
            ],
        ),
        by_cpu(
            RECOVERED,
            "crates/portolan/src/dma/space/unmap.rs recover",
            "((s Slot))",
            vec![claim("all of its debts are paid", "(forall ((d Debt)) (not (failed s d)))")],
            vec![Change::Remove("down", &["s"])],
        ),
    ]
}

fn hardware() -> Vec<Step> {
    let variables = "((v Device) (s Slot) (f Frame))";
    vec![
        by_others(
            COMPLETE,
            Actor::Unit,
            "((d Debt))",
            vec![],
            vec![
                Change::Remove("due", &["d"]),
                Change::Remove("asked", &["d"]),
                Change::Remove("failed", &["*", "d"]),
                Change::RemoveAll("known", &["v", "f"], "(exists ((s Slot)) (held s f d))"),
            ],
        ),
        by_others(
            FAIL,
            Actor::Unit,
            "((s Slot) (d Debt))",
            vec![claim("it was asked to", "(asked d)")],
            vec![
                Change::Remove("asked", &["d"]),
                Change::Add("failed", &["s", "d"]),
                Change::Add("down", &["s"]),
            ],
        ),
        by_others(
            "a device's caches take a frame",
            Actor::Device,
            variables,
            vec![claim("a walk finds it", "(leads s f)")],
            vec![Change::Add("known", &["v", "f"])],
        ),
        by_others(
            "a device's caches drop a frame",
            Actor::Device,
            "((v Device) (f Frame))",
            vec![],
            vec![Change::Remove("known", &["v", "f"])],
        ),
    ]
}

fn invariant() -> Vec<Claim> {
    vec![
        claim("a debt that was asked for is due", "(forall ((d Debt)) (=> (asked d) (due d)))"),
        claim(
            "a mapped frame is not its owner's",
            "(forall ((s Slot) (f Frame)) (=> (leads s f) (not (given f))))",
        ),
        claim(
            "a held frame is not its owner's",
            "(forall ((s Slot) (f Frame) (d Debt)) (=> (held s f d) (not (given f))))",
        ),
        claim(
            "a held frame is not mapped",
            "(forall ((s Slot) (r Slot) (f Frame) (d Debt)) (not (and (held s f d) (leads r f))))",
        ),
        claim(
            "a frame is mapped once",
            "(forall ((s Slot) (r Slot) (f Frame)) (=> (and (leads s f) (leads r f)) (= s r)))",
        ),
        claim(
            "a frame is held for one debt",
            "(forall ((s Slot) (r Slot) (f Frame) (d Debt) (e Debt)) \
             (=> (and (held s f d) (held r f e)) (= d e)))",
        ),
        claim(
            "caches lead to frames that are mapped, or held for a debt that is due",
            "(forall ((v Device) (f Frame)) (=> (known v f) (exists ((s Slot)) (or (leads s f) \
             (exists ((d Debt)) (and (held s f d) (due d)))))))",
        ),
        claim(
            "a space with a failed debt has broken, and the debt is due",
            "(forall ((s Slot) (d Debt)) (=> (failed s d) (and (down s) (due d))))",
        ),
    ]
}

fn safety() -> Vec<Claim> {
    vec![
        claim(
            "no device reaches a frame that was given back after a failure",
            "(forall ((v Device) (s Slot) (f Frame)) (=> (given f) \
             (not (or (leads s f) (known v f)))))",
        ),
        claim(
            "a space that works has no failed debt",
            "(forall ((s Slot) (d Debt)) (=> (failed s d) (down s)))",
        ),
        claim(
            "a failed debt is still due",
            "(forall ((s Slot) (d Debt)) (=> (failed s d) (due d)))",
        ),
    ]
}

const MACHINES: [Sizes; 2] =
    [Sizes(&[(Slot, 1), (Frame, 2), (Debt, 2)]), Sizes(&[(Slot, 2), (Frame, 2), (Debt, 2)])];

/// An unmap's debt is a new one, and the unit completes what it was asked to.
fn asked_for(protocol: &mut Protocol) {
    if let Some(step) = protocol.step(UNMAP) {
        let new = "(and (not (due d)) (forall ((r Slot) (g Frame)) (not (held r g d))))";
        step.guards.push(claim("the debt is new", new));
    }
    if let Some(step) = protocol.step(COMPLETE) {
        step.guards.push(claim("it was asked to", "(asked d)"));
    }
}

fn ends() -> Endless {
    Endless {
        says: "a space that has broken works again",
        fact: "down",
        of: &[0],
        supposed: asked_for,
        free: &["map in a space", UNMAP],
        failure: Some(FAIL),
        alike: None,
        machines: MACHINES.to_vec(),
        starvations: vec![Defect {
            says: "a space works again only once it holds nothing",
            seen: "a recovery that a busy space never reaches",
            edit: |p| {
                let empty =
                    "(forall ((f Frame) (d Debt)) (and (not (failed s d)) (not (held s f d))))";
                guarded(p, RECOVERED, "all of its debts are paid", empty);
            },
        }],
    }
}

fn comes_back() -> Endless {
    Endless {
        says: "what a failure held comes back",
        fact: "held",
        of: &[0, 0, 0],
        starvations: vec![Defect {
            says: "a debt that has failed is not sent again",
            seen: "a time-out after which no CPU owes the commands",
            edit: |p| {
                let first = "(and (due d) (forall ((r Slot)) (not (failed r d))))";
                guarded(p, PAY, "the debt is due", first);
            },
        }],
        ..ends()
    }
}

fn defects() -> Vec<Defect> {
    vec![
        Defect {
            says: "a space works again before its debts are paid",
            seen: "a reset of the queue that forgets the commands in it",
            edit: |p| unguarded(p, RECOVERED, "all of its debts are paid"),
        },
        Defect {
            says: "recovery releases all that was held",
            seen: "buffers freed when a driver gives up",
            edit: |p| unguarded(p, RELEASE, "the debt is paid"),
        },
        Defect {
            says: "a failure of the unit settles the debt of a space",
            seen: "a time-out that is taken for completion",
            edit: |p| {
                if let Some(step) = p.step(FAIL) {
                    step.changes.push(Change::Remove("due", &["d"]));
                }
            },
        },
        Defect {
            says: "a failure is not remembered",
            seen: "a space that maps on with a dead unit",
            edit: |p| unchanged(p, FAIL, "down"),
        },
    ]
}
