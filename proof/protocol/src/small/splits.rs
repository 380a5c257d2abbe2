//! Splits of large leaves: a block becomes a table of parts, and only then may a part be unmapped.
//!
//! The IOTLB may hold the whole block until its invalidation is complete, and need not drop it for
//! an invalidation of a part. Two protocols: the block's entry is replaced in one write, or goes
//! through an invalid entry (break-before-make).
//!
//! Not in this part: walk caches, which a block's entry is not in; memory for the table.

use super::{Scope, by_cpu, by_others};
use crate::defects::{Defect, guarded, unchanged, unguarded};
use crate::expr::Sort::{Debt, Device, Index, Slot};
use crate::finite::Sizes;
use crate::protocol::{
    Actor, Change, Claim, Definition, Protocol, Relation, Step, claim, relation,
};

const GATHERS: &str = "the debt still gathers, or is a new one";
const SPLIT: &str = "split a block";
const COMPLETE: &str = "complete a split";
const UNMAP: &str = "unmap a part";
const FORGET: &str = "IOTLBs forget blocks and parts";

/// Way in which an entry is replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    Direct,
    BreakBeforeMake,
}

/// Splits in one write.
pub fn at_once() -> Scope {
    scope("splits in one write", Rule::Direct)
}

/// Splits through an invalid entry.
pub fn through_an_invalid_entry() -> Scope {
    scope("splits through an invalid entry", Rule::BreakBeforeMake)
}

fn scope(name: &'static str, rule: Rule) -> Scope {
    Scope {
        name,
        protocol: Protocol {
            relations: relations(),
            functions: Vec::new(),
            definitions: definitions(),
            full: vec!["block"],
            steps: [cpus(rule), hardware()].concat(),
            invariant: invariant(rule),
            safety: safety(rule),
        },
        defects: defects(rule),
        small: Sizes(&[(Slot, 2), (Index, 1), (Debt, 2), (Device, 1)]),
        searched: vec![
            Sizes(&[(Slot, 1), (Index, 2), (Debt, 3), (Device, 1)]),
            Sizes(&[(Slot, 2), (Index, 2), (Debt, 2), (Device, 1)]),
        ],
        endless: Vec::new(),
    }
}

fn relations() -> Vec<Relation> {
    vec![
        relation("block", &[Slot], "the entry maps all parts at once"),
        relation("broken", &[Slot], "the entry is invalid, and remembers the table of the parts"),
        relation("part", &[Slot, Index], "the entry of a part, in a table that hangs there"),
        relation("owes", &[Slot, Debt], "the invalidation of the whole block is owed"),
        relation("unmapped", &[Slot, Index, Debt], "a part that is not given back yet"),
        relation("back", &[Slot, Index], "the memory of the part is its owner's"),
        relation("unpaid", &[Debt], "the debt gathers, or is not yet settled"),
        relation("under_way", &[Debt], "its invalidations are on the way"),
        relation("carried_out", &[Debt], "the IOTLB has carried them out"),
        relation("holds_block", &[Device, Slot], "the device's IOTLB holds the whole block"),
        relation("holds_part", &[Device, Slot, Index], "the device's IOTLB holds a part"),
    ]
}

fn definitions() -> Vec<Definition> {
    let definition = |name, variables, is| Definition { name, variables, is };
    vec![
        definition("joins", "((d Debt))", "(or (and (unpaid d) (not (under_way d))) (new d))"),
        definition(
            "new",
            "((d Debt))",
            "(and (not (unpaid d)) (forall ((r Slot) (j Index)) (not (unmapped r j d))))",
        ),
    ]
    .into_iter()
    .rev()
    .collect()
}

fn cpus(rule: Rule) -> Vec<Step> {
    let split = "crates/portolan/src/table/split.rs split";
    let gathers = || claim(GATHERS, "(joins d)");
    let owed = vec![Change::Add("owes", &["s", "d"]), Change::Add("unpaid", &["d"])];
    let all_parts = Change::AddAll("part", &["r", "j"], "(= r s)");
    let paid = "(forall ((d Debt)) (not (owes s d)))";
    let mut steps = Vec::new();
    let begin = match rule {
        Rule::Direct => vec![Change::Remove("block", &["s"]), all_parts.clone()],
        Rule::BreakBeforeMake => {
            vec![Change::Remove("block", &["s"]), Change::Add("broken", &["s"])]
        }
    };
    let is_block = claim("the entry is a block", "(block s)");
    let variables = "((s Slot) (d Debt))";
    steps.push(by_cpu(SPLIT, split, variables, vec![is_block, gathers()], [begin, owed].concat()));
    if rule == Rule::BreakBeforeMake {
        let guards = vec![
            claim("the entry is broken", "(broken s)"),
            claim("the whole block is forgotten", paid),
        ];
        let place = "crates/portolan/src/table/split.rs complete_split";
        let changes = vec![Change::Remove("broken", &["s"]), all_parts];
        steps.push(by_cpu(COMPLETE, place, "((s Slot))", guards, changes));
    }
    let mut guards = vec![claim("the part is mapped", "(part s i)"), gathers()];
    if rule == Rule::Direct {
        guards.push(claim("the whole block is forgotten", paid));
    }
    steps.push(by_cpu(
        UNMAP,
        "crates/portolan/src/table/unmap.rs clear_at",
        "((s Slot) (i Index) (d Debt))",
        guards,
        vec![
            Change::Remove("part", &["s", "i"]),
            Change::Add("unmapped", &["s", "i", "d"]),
            Change::Add("unpaid", &["d"]),
        ],
    ));
    steps.push(by_cpu(
        "map a part again",
        "crates/portolan/src/table/slot.rs map_page",
        "((s Slot) (i Index))",
        vec![claim("its owner has it", "(back s i)")],
        vec![Change::Remove("back", &["s", "i"]), Change::Add("part", &["s", "i"])],
    ));
    steps.push(by_cpu(
        "send the invalidations of splits and parts",
        "crates/portolan/src/inval/queue.rs settle",
        "((d Debt))",
        vec![claim("the debt gathers", "(and (unpaid d) (not (under_way d)))")],
        vec![Change::Add("under_way", &["d"])],
    ));
    steps.push(by_cpu(
        "give parts back",
        "crates/portolan/src/table/chain.rs free_chain",
        "((d Debt))",
        vec![claim("the debt is settled", "(not (unpaid d))")],
        vec![
            Change::AddAll("back", &["s", "i"], "(unmapped s i d)"),
            Change::Remove("unmapped", &["*", "*", "d"]),
        ],
    ));
    steps
}

fn hardware() -> Vec<Step> {
    let block = "((v Device) (s Slot))";
    let part = "((v Device) (s Slot) (i Index))";
    vec![
        by_others(
            FORGET,
            Actor::Unit,
            "((d Debt))",
            vec![claim("they are sent", "(under_way d)")],
            vec![
                Change::Add("carried_out", &["d"]),
                Change::RemoveAll("holds_block", &["v", "s"], "(owes s d)"),
                Change::RemoveAll("holds_part", &["v", "s", "i"], "(unmapped s i d)"),
            ],
        ),
        by_others(
            "a split's debt is settled",
            Actor::Unit,
            "((d Debt))",
            vec![claim("the IOTLB has forgotten", "(carried_out d)")],
            vec![
                Change::Remove("owes", &["*", "d"]),
                Change::Remove("unpaid", &["d"]),
                Change::Remove("under_way", &["d"]),
                Change::Remove("carried_out", &["d"]),
            ],
        ),
        by_others(
            "the unit fails at a split's debt",
            Actor::Unit,
            "((d Debt))",
            vec![],
            vec![Change::Remove("under_way", &["d"]), Change::Remove("carried_out", &["d"])],
        ),
        by_others(
            "a device's IOTLB takes a block",
            Actor::Device,
            block,
            vec![claim("a walk finds the block", "(block s)")],
            vec![Change::Add("holds_block", &["v", "s"])],
        ),
        by_others(
            "a device's IOTLB takes a part",
            Actor::Device,
            part,
            vec![claim("a walk finds the part", "(part s i)")],
            vec![Change::Add("holds_part", &["v", "s", "i"])],
        ),
        by_others(
            "a device's IOTLB drops a block",
            Actor::Device,
            block,
            vec![],
            vec![Change::Remove("holds_block", &["v", "s"])],
        ),
        by_others(
            "a device's IOTLB drops a part",
            Actor::Device,
            part,
            vec![],
            vec![Change::Remove("holds_part", &["v", "s", "i"])],
        ),
    ]
}

fn invariant(rule: Rule) -> Vec<Claim> {
    let mut all = vec![
        claim(
            "a block has no parts, and none that wait or came back",
            "(forall ((s Slot) (i Index) (d Debt)) (=> (block s) \
             (not (or (part s i) (unmapped s i d) (back s i)))))",
        ),
        claim(
            "a part that came back is in no use",
            "(forall ((s Slot) (i Index) (d Debt)) (=> (back s i) \
             (not (or (part s i) (unmapped s i d)))))",
        ),
        claim(
            "a part that waits is not mapped",
            "(forall ((s Slot) (i Index) (d Debt)) (not (and (unmapped s i d) (part s i))))",
        ),
        claim(
            "a part waits for one debt",
            "(forall ((s Slot) (i Index) (d Debt) (e Debt)) \
             (=> (and (unmapped s i d) (unmapped s i e)) (= d e)))",
        ),
        claim(
            "a debt that is carried out is under way, and one under way is not settled",
            "(forall ((d Debt)) (and (=> (carried_out d) (under_way d)) \
             (=> (under_way d) (unpaid d))))",
        ),
        claim(
            "an IOTLB holds a block that is there, or owed",
            "(forall ((v Device) (s Slot)) (=> (holds_block v s) \
             (or (block s) (exists ((d Debt)) (and (owes s d) (not (carried_out d)))))))",
        ),
        claim(
            "an IOTLB holds a part that is mapped, or owed",
            "(forall ((v Device) (s Slot) (i Index)) (=> (holds_part v s i) \
             (or (part s i) (exists ((d Debt)) (and (unmapped s i d) (unpaid d) (not (carried_out d)))))))",
        ),
    ];
    all.push(match rule {
        Rule::Direct => claim(
            "all parts of a block that is owed are mapped",
            "(forall ((s Slot) (i Index) (d Debt)) (=> (owes s d) (part s i)))",
        ),
        Rule::BreakBeforeMake => claim(
            "a block that is owed is broken",
            "(forall ((s Slot) (d Debt)) (=> (owes s d) (broken s)))",
        ),
    });
    if rule == Rule::BreakBeforeMake {
        all.push(claim(
            "a broken block is no block, and has no parts in any state",
            "(forall ((s Slot) (i Index) (d Debt)) (=> (broken s) (not (or (block s) \
             (part s i) (unmapped s i d) (back s i)))))",
        ));
    }
    all
}

fn safety(rule: Rule) -> Vec<Claim> {
    let mut all = vec![claim(
        "no device reaches a part that its owner has back",
        "(forall ((v Device) (s Slot) (i Index)) (=> (back s i) \
         (not (or (block s) (part s i) (holds_block v s) (holds_part v s i)))))",
    )];
    all.push(match rule {
        Rule::Direct => claim(
            "an IOTLB's block and the table translate alike",
            "(forall ((v Device) (s Slot) (i Index)) (=> (holds_block v s) \
             (or (block s) (part s i))))",
        ),
        Rule::BreakBeforeMake => claim(
            "no IOTLB holds a block and a part of it",
            "(forall ((v Device) (s Slot) (i Index)) \
             (not (and (holds_block v s) (holds_part v s i))))",
        ),
    });
    all
}

fn defects(rule: Rule) -> Vec<Defect> {
    let forgotten = match rule {
        Rule::Direct => Defect {
            says: "a part is unmapped before the block is forgotten",
            seen: "a large page split and a part unmapped under one invalidation of the part",
            edit: |p| unguarded(p, UNMAP, "the whole block is forgotten"),
        },
        Rule::BreakBeforeMake => Defect {
            says: "a broken block is completed before it is forgotten",
            seen: "TLB conflicts after a block was replaced by a table",
            edit: |p| unguarded(p, COMPLETE, "the whole block is forgotten"),
        },
    };
    vec![
        forgotten,
        Defect {
            says: "a split's invalidation names a part alone",
            seen: "an invalidation of one granule where a block was",
            edit: |p| unchanged(p, FORGET, "holds_block"),
        },
        Defect {
            says: "a split joins a debt whose invalidations are on the way",
            seen: "a block that an old command was to forget",
            edit: |p| guarded(p, SPLIT, GATHERS, "(or (unpaid d) (new d))"),
        },
        Defect {
            says: "a part goes back before its debt is settled",
            seen: "memory of a part freed at unmap",
            edit: |p| unguarded(p, "give parts back", "the debt is settled"),
        },
    ]
}
