//! Page requests: each group gets one response, of one of its handlers.
//!
//! The number of a group may name another one as soon as its response is sent; so each group that
//! the dispatcher takes has a ticket of its own, and a late handler's response goes nowhere.
//!
//! Not in this part: groups of several requests, floods, responses that the unit does not take.

use super::{Scope, by_cpu, by_others};
use crate::defects::{Defect, guarded, unchanged};
use crate::expr::Sort::{Group, Ticket};
use crate::fairness::{Alike, Endless};
use crate::finite::Sizes;
use crate::protocol::{
    Actor, Change, Claim, Definition, Function, Protocol, Relation, Step, claim, relation,
};

const ACCEPT: &str = "accept a group";
const FINISH: &str = "a handler has decided";
const LEAVE: &str = "unregister: a group's response is owed at once";
const RESPOND: &str = "respond";

/// The protocol of page requests.
pub fn scope() -> Scope {
    Scope {
        name: "page requests",
        protocol: Protocol {
            relations: relations(),
            functions: vec![Function {
                name: "group",
                of: Ticket,
                is: Group,
                meaning: "group for which the ticket was made",
            }],
            definitions: vec![Definition {
                name: "lives",
                variables: "((t Ticket))",
                is: "(or (complete t) (handled t) (owing t))",
            }],
            full: vec!["unused"],
            steps: [taken(), answered()].concat(),
            invariant: [invariant(), safety()].concat(),
            safety: safety(),
        },
        defects: defects(),
        small: Sizes(&[(Group, 1), (Ticket, 3)]),
        searched: vec![Sizes(&[(Group, 2), (Ticket, 4)])],
        endless: vec![answered_once()],
    }
}

fn relations() -> Vec<Relation> {
    vec![
        relation("asks", &[Group], "a device waits for the group's response"),
        relation("in_queue", &[Group], "the unit's queue has the request"),
        relation("unused", &[Ticket], "no group had the ticket yet"),
        relation("complete", &[Ticket], "the ticket's group waits for a handler"),
        relation("handled", &[Ticket], "the dispatcher has it noted that a handler decides"),
        relation("works", &[Ticket], "a handler decides about the group, in time or late"),
        relation("owing", &[Ticket], "code has taken the group out, and owes its response"),
    ]
}

/// Things that a step of one ticket is of.
const ONE: &str = "((t Ticket))";

/// Steps of a group on its way to a handler.
fn taken() -> Vec<Step> {
    vec![
        by_others(
            "a device asks for a page",
            Actor::Device,
            "((g Group))",
            vec![claim("it does not wait for that group", "(not (asks g))")],
            vec![Change::Add("asks", &["g"]), Change::Add("in_queue", &["g"])],
        ),
        by_cpu(
            ACCEPT,
            "crates/portolan/src/iopf/dispatcher.rs accept",
            "((g Group) (t Ticket))",
            vec![
                claim("the queue has it", "(in_queue g)"),
                claim("the ticket is new", "(unused t)"),
            ],
            vec![
                Change::Remove("in_queue", &["g"]),
                Change::Remove("unused", &["t"]),
                Change::Set("group", "t", "g"),
                Change::Add("complete", &["t"]),
            ],
        ),
        by_cpu(
            "serve: a handler gets a group",
            "crates/portolan/src/iopf/dispatcher.rs serve",
            ONE,
            vec![claim("it waits for one", "(complete t)")],
            vec![
                Change::Remove("complete", &["t"]),
                Change::Add("handled", &["t"]),
                Change::Add("works", &["t"]),
            ],
        ),
    ]
}

/// Steps of a group on its way back.
fn answered() -> Vec<Step> {
    vec![
        by_cpu(
            FINISH,
            "crates/portolan/src/iopf/dispatcher.rs finish",
            ONE,
            vec![claim("the dispatcher has it noted", "(handled t)")],
            vec![
                Change::Remove("works", &["t"]),
                Change::Remove("handled", &["t"]),
                Change::Add("owing", &["t"]),
            ],
        ),
        by_cpu(
            "a late handler's response goes nowhere",
            "crates/portolan/src/iopf/dispatcher.rs finish",
            ONE,
            vec![],
            vec![Change::RemoveAll("works", &["u"], "(and (= u t) (not (handled t)))")],
        ),
        by_cpu(
            LEAVE,
            "crates/portolan/src/iopf/dispatcher.rs unregister",
            ONE,
            vec![claim("it is not answered yet", "(or (complete t) (handled t))")],
            vec![
                Change::Remove("complete", &["t"]),
                Change::Remove("handled", &["t"]),
                Change::Add("owing", &["t"]),
            ],
        ),
        by_cpu(
            RESPOND,
            "crates/portolan/src/iopf/dispatcher.rs send",
            ONE,
            vec![claim("its response is owed", "(owing t)")],
            vec![
                Change::Remove("owing", &["t"]),
                Change::RemoveAll("asks", &["g"], "(= g (group t))"),
            ],
        ),
    ]
}

fn invariant() -> Vec<Claim> {
    vec![
        claim(
            "a ticket that was not used is nowhere",
            "(forall ((t Ticket)) (=> (unused t) (not (or (lives t) (works t)))))",
        ),
        claim(
            "a group in the queue has no ticket that lives",
            "(forall ((t Ticket)) (=> (lives t) (not (in_queue (group t)))))",
        ),
        claim(
            "a device waits for what is in the queue",
            "(forall ((g Group)) (=> (in_queue g) (asks g)))",
        ),
        claim(
            "a ticket is in one state",
            "(forall ((t Ticket)) (not (or (and (complete t) (handled t)) \
             (and (owing t) (or (complete t) (handled t))))))",
        ),
    ]
}

fn safety() -> Vec<Claim> {
    vec![
        claim(
            "a response goes to a group that waits for it",
            "(forall ((t Ticket)) (=> (lives t) (asks (group t))))",
        ),
        claim(
            "a group has one response to come",
            "(forall ((t Ticket) (u Ticket)) \
             (=> (and (lives t) (lives u) (= (group t) (group u))) (= t u)))",
        ),
        claim(
            "no group is forgotten",
            "(forall ((g Group)) (=> (asks g) (or (in_queue g) \
             (exists ((t Ticket)) (and (lives t) (= (group t) g))))))",
        ),
    ]
}

/// Tickets are new again as soon as nothing has them, so that no run ends for want of one.
fn answered_once() -> Endless {
    Endless {
        says: "every group gets its response",
        fact: "asks",
        of: &[0],
        supposed: |p| {
            if let Some(step) = p.step(RESPOND) {
                step.changes.push(Change::Add("unused", &["t"]));
            }
            if let Some(step) = p.step(LEAVE) {
                step.changes.push(Change::Remove("works", &["t"]));
            }
        },
        free: &[LEAVE],
        failure: None,
        alike: Some(Alike { step: ACCEPT, sort: Ticket }),
        machines: vec![Sizes(&[(Group, 2), (Ticket, 3)])],
        starvations: vec![
            Defect {
                says: "a response is sent only while no handler is at work",
                seen: "a lock that the queue's owner shares with the handlers",
                edit: |p| {
                    let alone = "(and (owing t) (forall ((u Ticket)) (not (handled u))))";
                    guarded(p, RESPOND, "its response is owed", alone);
                },
            },
            Defect {
                says: "a decision is taken only while no group waits for a handler",
                seen: "a thread that hands out groups before it answers any",
                edit: |p| {
                    let idle = "(and (handled t) (forall ((u Ticket)) (not (complete u))))";
                    guarded(p, FINISH, "the dispatcher has it noted", idle);
                },
            },
        ],
    }
}

fn defects() -> Vec<Defect> {
    vec![
        Defect {
            says: "a late handler's response is sent",
            seen: "a response after a reset, to the next group of that number",
            edit: |p| guarded(p, FINISH, "the dispatcher has it noted", "(works t)"),
        },
        Defect {
            says: "a handler's response leaves the group noted",
            seen: "a device that gets a second response when its address space leaves",
            edit: |p| unchanged(p, FINISH, "handled"),
        },
        Defect {
            says: "groups that a handler has get no response when the address space leaves",
            seen: "a device that waits for ever after its process ended",
            edit: |p| unchanged(p, LEAVE, "owing"),
        },
        Defect {
            says: "a request is dropped by a full dispatcher",
            seen: "page requests lost on overflow",
            edit: |p| unchanged(p, ACCEPT, "complete"),
        },
        Defect {
            says: "a response is sent twice",
            seen: "a response repeated after a time-out of the queue",
            edit: |p| unchanged(p, RESPOND, "owing"),
        },
    ]
}
