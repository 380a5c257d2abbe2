//! Bounce slots: memory that devices reach in place of a buffer, whose bytes are copied.
//!
//! A slot has bytes of the buffer that it was last filled for. A device may read all of a slot that
//! is mapped, so that those bytes have to be its own buffer's.
//!
//! Not in this part: runs of slots, which are claimed whole; the order of bits in a word.

use super::{Scope, by_cpu, by_others};
use crate::defects::{Defect, guarded, unchanged, unguarded};
use crate::expr::Sort::{Debt, Device, Frame, Slot};
use crate::fairness::Endless;
use crate::finite::Sizes;
use crate::protocol::{
    Actor, Change, Claim, Definition, Protocol, Relation, Step, claim, relation,
};

const TAKE: &str = "take a slot";
const MAP: &str = "map a filled slot";
const UNMAP: &str = "unmap a slot";
const GIVE: &str = "copy out, and give the slot back";

/// The protocol of bounce slots.
pub fn scope() -> Scope {
    Scope {
        name: "bounce slots",
        protocol: Protocol {
            relations: relations(),
            functions: Vec::new(),
            definitions: vec![Definition {
                name: "reaches",
                variables: "((v Device) (s Slot))",
                is: "(or (mapped s) (cached v s))",
            }],
            full: vec!["free", "owned"],
            steps: [cpus(), hardware()].concat(),
            invariant: invariant(),
            safety: safety(),
        },
        defects: defects(),
        small: Sizes(&[(Slot, 1), (Frame, 2), (Debt, 2), (Device, 1)]),
        searched: vec![Sizes(&[(Slot, 2), (Frame, 2), (Debt, 2), (Device, 1)])],
        endless: vec![comes_back()],
    }
}

fn relations() -> Vec<Relation> {
    vec![
        relation("free", &[Slot], "the slot's bit says that it may be taken"),
        relation("taken", &[Slot, Frame], "the slot stands for the buffer"),
        relation("bytes", &[Slot, Frame], "the slot has bytes of the buffer"),
        relation("mapped", &[Slot], "a device's address leads to the slot"),
        relation("cached", &[Device, Slot], "a device's caches lead to the slot"),
        relation("leaving", &[Slot, Debt], "the slot is unmapped, and not given back"),
        relation("unsettled", &[Debt], "the debt's invalidations are not complete"),
        relation("owned", &[Frame], "the buffer is its owner's"),
    ]
}

fn cpus() -> Vec<Step> {
    vec![
        by_cpu(
            TAKE,
            "crates/portolan/src/bounce/lockfree.rs take",
            "((s Slot) (f Frame))",
            vec![
                claim("the slot is free", "(free s)"),
                claim("the owner gives the buffer", "(owned f)"),
            ],
            vec![
                Change::Remove("free", &["s"]),
                Change::Remove("owned", &["f"]),
                Change::Add("taken", &["s", "f"]),
            ],
        ),
        by_cpu(
            "fill a slot: copy in, and clear the rest",
            "crates/portolan/src/bounce/copy.rs copy_in",
            "((s Slot) (f Frame))",
            vec![claim("the slot stands for the buffer", "(taken s f)")],
            vec![Change::Remove("bytes", &["s", "*"]), Change::Add("bytes", &["s", "f"])],
        ),
        by_cpu(
            MAP,
            "crates/portolan/src/table/slot.rs map_page",
            "((s Slot) (f Frame))",
            vec![
                claim("the slot stands for a buffer", "(taken s f)"),
                claim(
                    "its bytes are the buffer's",
                    "(forall ((g Frame)) (=> (bytes s g) (= f g)))",
                ),
                claim("it is not on its way back", "(forall ((d Debt)) (not (leaving s d)))"),
            ],
            vec![Change::Add("mapped", &["s"])],
        ),
        by_cpu(
            UNMAP,
            "crates/portolan/src/table/unmap.rs clear_at",
            "((s Slot) (d Debt))",
            vec![claim("it is mapped", "(mapped s)")],
            vec![
                Change::Remove("mapped", &["s"]),
                Change::Add("leaving", &["s", "d"]),
                Change::Add("unsettled", &["d"]),
            ],
        ),
        by_cpu(
            GIVE,
            "crates/portolan/src/bounce/copy.rs copy_out",
            "((s Slot) (f Frame) (d Debt))",
            vec![
                claim("the slot stands for the buffer", "(taken s f)"),
                claim("it is unmapped", "(leaving s d)"),
                claim("its debt is settled", "(not (unsettled d))"),
            ],
            vec![
                Change::Remove("leaving", &["s", "*"]),
                Change::Remove("taken", &["s", "f"]),
                Change::Add("free", &["s"]),
                Change::Add("owned", &["f"]),
            ],
        ),
    ]
}

fn hardware() -> Vec<Step> {
    let variables = "((v Device) (s Slot))";
    vec![
        by_others(
            "a slot's invalidations are complete",
            Actor::Unit,
            "((d Debt))",
            vec![],
            vec![
                Change::Remove("unsettled", &["d"]),
                Change::RemoveAll("cached", &["v", "s"], "(leaving s d)"),
            ],
        ),
        by_others(
            "a device's caches take a slot",
            Actor::Device,
            variables,
            vec![claim("a walk finds the slot", "(mapped s)")],
            vec![Change::Add("cached", &["v", "s"])],
        ),
        by_others(
            "a device's caches drop a slot",
            Actor::Device,
            variables,
            vec![],
            vec![Change::Remove("cached", &["v", "s"])],
        ),
    ]
}

fn invariant() -> Vec<Claim> {
    vec![
        claim(
            "a free slot stands for nothing",
            "(forall ((s Slot) (f Frame)) (=> (free s) (not (taken s f))))",
        ),
        claim(
            "a slot that is mapped or leaving stands for a buffer",
            "(forall ((s Slot) (d Debt)) (=> (or (mapped s) (leaving s d)) \
             (exists ((f Frame)) (taken s f))))",
        ),
        claim(
            "a slot that is leaving is not mapped",
            "(forall ((s Slot) (d Debt)) (not (and (mapped s) (leaving s d))))",
        ),
        claim(
            "a slot leaves with one debt",
            "(forall ((s Slot) (d Debt) (e Debt)) (=> (and (leaving s d) (leaving s e)) (= d e)))",
        ),
        claim(
            "caches lead to slots that are mapped, or owed",
            "(forall ((v Device) (s Slot)) (=> (cached v s) (or (mapped s) \
             (exists ((d Debt)) (and (leaving s d) (unsettled d))))))",
        ),
        claim(
            "a slot that is mapped or leaving has its buffer's bytes",
            "(forall ((s Slot) (f Frame) (g Frame) (d Debt)) \
             (=> (and (or (mapped s) (leaving s d)) (taken s f) (bytes s g)) (= f g)))",
        ),
        claim(
            "a slot stands for one buffer",
            "(forall ((s Slot) (f Frame) (g Frame)) (=> (and (taken s f) (taken s g)) (= f g)))",
        ),
        claim(
            "a buffer has one slot",
            "(forall ((s Slot) (r Slot) (f Frame)) (=> (and (taken s f) (taken r f)) (= s r)))",
        ),
        claim(
            "a buffer with a slot is not its owner's",
            "(forall ((s Slot) (f Frame)) (=> (taken s f) (not (owned f))))",
        ),
    ]
}

fn safety() -> Vec<Claim> {
    vec![
        claim(
            "no device reaches a free slot",
            "(forall ((v Device) (s Slot)) (=> (free s) (not (reaches v s))))",
        ),
        claim(
            "no device reads bytes of a buffer that it was not given",
            "(forall ((v Device) (s Slot) (f Frame)) (=> (and (reaches v s) (bytes s f)) (taken s f)))",
        ),
        claim(
            "no two buffers share a slot, and no owner has a buffer that a slot stands for",
            "(forall ((s Slot) (f Frame) (g Frame)) (=> (taken s f) \
             (and (not (owned f)) (=> (taken s g) (= f g)))))",
        ),
        claim(
            "a buffer's bytes come back from one slot",
            "(forall ((s Slot) (r Slot) (f Frame)) (=> (and (taken s f) (taken r f)) (= s r)))",
        ),
    ]
}

fn comes_back() -> Endless {
    Endless {
        says: "every slot comes back",
        fact: "leaving",
        of: &[0, 0],
        supposed: |p| {
            if let Some(step) = p.step(UNMAP) {
                let new = "(and (not (unsettled d)) (forall ((r Slot)) (not (leaving r d))))";
                step.guards.push(claim("the debt is new", new));
            }
        },
        free: &[TAKE, "fill a slot: copy in, and clear the rest", MAP, UNMAP],
        failure: None,
        alike: None,
        machines: vec![Sizes(&[(Slot, 2), (Frame, 2), (Debt, 2)])],
        starvations: vec![Defect {
            says: "slots are given back only while none is mapped",
            seen: "a pool that is swept when it is idle, and never is",
            edit: |p| {
                let idle = "(and (not (unsettled d)) (forall ((r Slot)) (not (mapped r))))";
                guarded(p, GIVE, "its debt is settled", idle);
            },
        }],
    }
}

fn defects() -> Vec<Defect> {
    vec![
        Defect {
            says: "a slot is given back before the device has forgotten it",
            seen: "a slot that the next buffer gets while a device still writes there",
            edit: |p| unguarded(p, GIVE, "its debt is settled"),
        },
        Defect {
            says: "a slot for reading from a device is not filled",
            seen: "bytes of another buffer that a device, and then a user, can read",
            edit: |p| unguarded(p, MAP, "its bytes are the buffer's"),
        },
        Defect {
            says: "a slot is taken by a load and a store",
            seen: "two CPUs that claim one slot",
            edit: |p| unguarded(p, TAKE, "the slot is free"),
        },
        Defect {
            says: "devices' caches are not told of a slot",
            seen: "unmap of a bounced buffer without invalidation",
            edit: |p| unchanged(p, "a slot's invalidations are complete", "cached"),
        },
        Defect {
            says: "a slot that leaves is mapped again",
            seen: "a slot used twice before it came back",
            edit: |p| unguarded(p, MAP, "it is not on its way back"),
        },
    ]
}
