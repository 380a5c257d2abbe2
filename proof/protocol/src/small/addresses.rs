//! Free addresses: each is in exactly one place, which a caller takes it from whole.
//!
//! A front's word belongs to the code that exchanges it; magazines and ranges are behind locks, so
//! one operation on them is a step. A hint that says where blocks lie has no part in it: a wrong one
//! finds a word empty, or full.
//!
//! Not in this part: neighbours that become one range, alignment, limits of devices.

use super::{Scope, by_cpu, by_others};
use crate::defects::{Defect, unchanged, unguarded};
use crate::expr::Sort::{Address, Caller, Word};
use crate::finite::Sizes;
use crate::protocol::{
    Actor, Change, Claim, Definition, Protocol, Relation, Step, claim, relation,
};

const PUT: &str = "put a block at the front";
const TAKE: &str = "take a block from the front";
const EMPTY: &str = "empty another CPU's front";

/// The protocol of free addresses.
pub fn scope() -> Scope {
    Scope {
        name: "free addresses",
        protocol: Protocol {
            relations: relations(),
            functions: Vec::new(),
            definitions: vec![Definition {
                name: "somewhere",
                variables: "((a Address))",
                is: "(or (ranges a) (magazine a) (out a) (waits a) \
                     (exists ((w Word)) (front w a)) (exists ((c Caller)) (hand c a)))",
            }],
            full: vec!["ranges"],
            steps: steps(),
            invariant: [apart(), safety()].concat(),
            safety: safety(),
        },
        defects: defects(),
        small: Sizes(&[(Address, 2), (Word, 2), (Caller, 2)]),
        searched: vec![Sizes(&[(Address, 3), (Word, 2), (Caller, 3)])],
        endless: Vec::new(),
    }
}

fn relations() -> Vec<Relation> {
    vec![
        relation("ranges", &[Address], "the tree of free ranges has the address"),
        relation("magazine", &[Address], "a magazine, or a depot, has it"),
        relation("front", &[Word, Address], "a word of a front has it"),
        relation("hand", &[Caller, Address], "code that took it out is about to pass it on"),
        relation("out", &[Address], "it is allocated"),
        relation("waits", &[Address], "it is unmapped, and not quiet yet"),
    ]
}

/// Step that moves an address from one place to another, by its facts there.
fn moved(
    name: &'static str,
    place: &'static str,
    from: (&'static str, &'static [&'static str], &'static str),
    to: (&'static str, &'static [&'static str]),
) -> Step {
    let (relation, things, is) = from;
    by_cpu(
        name,
        place,
        "((c Caller) (w Word) (a Address))",
        vec![claim("it is there", is)],
        vec![Change::Remove(relation, things), Change::Add(to.0, to.1)],
    )
}

fn steps() -> Vec<Step> {
    let space = "crates/portolan/src/iova/space.rs take_behind";
    let hand: (&str, &'static [&'static str], &str) = ("hand", &["c", "a"], "(hand c a)");
    let to_hand: (&str, &'static [&'static str]) = ("hand", &["c", "a"]);
    let mut put = moved(PUT, "crates/portolan/src/iova/front.rs put", hand, ("front", &["w", "a"]));
    put.guards.push(claim("the word is empty", "(forall ((b Address)) (not (front w b)))"));
    let front: (&str, &'static [&'static str], &str) = ("front", &["w", "a"], "(front w a)");
    vec![
        moved("take a block from the ranges", space, ("ranges", &["a"], "(ranges a)"), to_hand),
        moved("take a block from a magazine", space, ("magazine", &["a"], "(magazine a)"), to_hand),
        moved(TAKE, "crates/portolan/src/iova/front.rs take", front, to_hand),
        moved(EMPTY, "crates/portolan/src/iova/front.rs clear", front, ("magazine", &["a"])),
        put,
        moved(
            "put a block into a magazine",
            "crates/portolan/src/iova/returns.rs put_behind",
            hand,
            ("magazine", &["a"]),
        ),
        moved(
            "give a block to the ranges",
            "crates/portolan/src/iova/returns.rs free_behind",
            hand,
            ("ranges", &["a"]),
        ),
        moved(
            "hand an address out",
            "crates/portolan/src/iova/space.rs alloc",
            hand,
            ("out", &["a"]),
        ),
        moved(
            "unmap what an address leads to",
            "crates/portolan/src/dma/space/unmap.rs unmap",
            ("out", &["a"], "(out a)"),
            ("waits", &["a"]),
        ),
        by_others(
            "an address is quiet",
            Actor::Cpu,
            "((c Caller) (a Address))",
            vec![claim("it waits", "(waits a)")],
            vec![Change::Remove("waits", &["a"]), Change::Add("hand", &["c", "a"])],
        ),
    ]
}

/// Places are apart: an address that is in one is in no other.
fn apart() -> Vec<Claim> {
    vec![
        claim(
            "an address in the ranges is in no other place",
            "(forall ((a Address) (w Word) (c Caller)) (=> (ranges a) \
             (not (or (magazine a) (front w a) (hand c a)))))",
        ),
        claim(
            "an address in a magazine is in no other place",
            "(forall ((a Address) (w Word) (c Caller)) (=> (magazine a) \
             (not (or (front w a) (hand c a)))))",
        ),
        claim(
            "an address in a front is in one word, and in no other place",
            "(forall ((a Address) (w Word) (x Word) (c Caller)) (=> (front w a) \
             (and (not (hand c a)) (=> (front x a) (= w x)))))",
        ),
    ]
}

fn safety() -> Vec<Claim> {
    vec![
        claim(
            "two callers never have one address",
            "(forall ((a Address) (c Caller) (d Caller)) (=> (and (hand c a) (hand d a)) (= c d)))",
        ),
        claim(
            "an allocated address is nowhere else",
            "(forall ((a Address) (w Word) (c Caller)) (=> (out a) \
             (not (or (ranges a) (magazine a) (front w a) (hand c a) (waits a)))))",
        ),
        claim(
            "an address that is not quiet is nowhere else",
            "(forall ((a Address) (w Word) (c Caller)) (=> (waits a) \
             (not (or (ranges a) (magazine a) (front w a) (hand c a)))))",
        ),
        claim(
            "a word holds one address",
            "(forall ((w Word) (a Address) (b Address)) (=> (and (front w a) (front w b)) (= a b)))",
        ),
        claim("no address is lost", "(forall ((a Address)) (somewhere a))"),
    ]
}

fn defects() -> Vec<Defect> {
    vec![
        Defect {
            says: "a word is overwritten by a store",
            seen: "a push that does not compare",
            edit: |p| {
                unguarded(p, PUT, "the word is empty");
                if let Some(step) = p.step(PUT) {
                    step.changes.insert(0, Change::Remove("front", &["w", "*"]));
                }
            },
        },
        Defect {
            says: "a block is read from a word, and the word emptied later",
            seen: "two handlers that get one address",
            edit: |p| unchanged(p, TAKE, "front"),
        },
        Defect {
            says: "a front is emptied by a copy",
            seen: "a CPU that empties all fronts while their owners use them",
            edit: |p| unchanged(p, EMPTY, "front"),
        },
        Defect {
            says: "an address is freed while it is unmapped",
            seen: "an IOVA that is given out before the flush",
            edit: |p| {
                if let Some(step) = p.step("unmap what an address leads to") {
                    step.changes.push(Change::Add("hand", &["c", "a"]));
                }
            },
        },
        Defect {
            says: "an address is freed twice",
            seen: "an IOVA that two maps get",
            edit: |p| unguarded(p, "unmap what an address leads to", "it is there"),
        },
    ]
}
