//! Defects of drivers and of this library's past, each put into the protocol.
//!
//! Each stands for reports of one kind. A check that does not refute all of them proves too much.

use crate::protocol::{Change, Protocol, Step};

/// Defect: an edit of the protocol.
pub struct Defect {
    /// Behaviour of the defective code.
    pub says: &'static str,
    /// Reports of such a defect.
    pub seen: &'static str,
    /// The edit.
    pub edit: fn(&mut Protocol),
}

/// Leaves a guard of a step out.
fn unguarded(protocol: &mut Protocol, step: &str, guard: &str) {
    if let Some(step) = protocol.step(step) {
        step.guards.retain(|claim| claim.says != guard);
    }
}

/// Leaves a change of a step out.
fn unchanged(protocol: &mut Protocol, step: &str, name: &str) {
    if let Some(step) = protocol.step(step) {
        step.changes.retain(|change| change.name() != name);
    }
}

/// Puts another formula in place of a guard.
fn guarded(protocol: &mut Protocol, step: &str, guard: &str, is: &'static str) {
    let step = protocol.step(step);
    let found = step.and_then(|step| step.guards.iter_mut().find(|claim| claim.says == guard));
    if let Some(claim) = found {
        claim.is = is;
    }
}

/// Puts another change in place of that of a relation.
fn changed(protocol: &mut Protocol, step: &str, to: Change) {
    unchanged(protocol, step, to.name());
    if let Some(step) = protocol.step(step) {
        step.changes.push(to);
    }
}

/// Has `step` come when `place` does, with the caches of its own.
fn exchange(protocol: &mut Protocol, step: &str, place: &Step, own: &Step, caches: &[&str]) {
    if let Some(step) = protocol.step(step) {
        step.guards.clone_from(&place.guards);
        let of_caches = ["walk_cache", "iotlb", "device_tlb"];
        let order = place.changes.iter().filter(|change| !of_caches.contains(&change.name()));
        let told = own.changes.iter().filter(|change| caches.contains(&change.name()));
        step.changes = order.chain(told).cloned().collect();
    }
}

const GIVE_BACK: &str = "give back what a settled debt held";
const UNIT_TOLD: &str = "the unit's caches are told";
const SETTLED: &str = "device TLBs are told, and the debt is settled";
const CLEAR: &str = "clear an entry";
const UNLINK: &str = "lower the count to nothing, and unlink";
const TAKE_BACK: &str = "take a table back and announce";
const MAPS: [&str; 3] =
    ["announce an entry in a linked table", "link a new table and announce", TAKE_BACK];

/// All of them.
pub fn defects() -> Vec<Defect> {
    [tables(), invalidations(), debts(), maps()].into_iter().flatten().collect()
}

/// Tables that are freed or used too early.
fn tables() -> Vec<Defect> {
    vec![
        Defect {
            says: "a settled debt frees every unlinked table, not only those of its tag",
            seen: "tables freed too early by the proof of another debt",
            edit: |p| {
                let all = "(unlinked t)";
                changed(p, GIVE_BACK, Change::RemoveAll("unlinked", &["t"], all));
                changed(p, GIVE_BACK, Change::AddAll("free", &["t"], all));
            },
        },
        Defect {
            says: "a table that is unlinked again keeps the tag of the debt before",
            seen: "a table freed by the debt of its former unlinking",
            edit: |p| unchanged(p, UNLINK, "tag"),
        },
        Defect {
            says: "a table that is taken back stays on the list of those to free",
            seen: "a table freed while a map uses it",
            edit: |p| unchanged(p, TAKE_BACK, "unlinked"),
        },
        Defect {
            says: "a table goes when the unmap's own entry is clear, whatever else is in it",
            seen: "a range's table removed with its neighbours' entries",
            edit: |p| unguarded(p, UNLINK, "no other is counted"),
        },
        Defect {
            says: "an emptied table is freed at once",
            seen: "Linux's and others' page tables freed before the walk caches are told",
            edit: |p| {
                unchanged(p, UNLINK, "unlinked");
                if let Some(step) = p.step(UNLINK) {
                    step.changes.push(Change::Add("free", &["t"]));
                }
            },
        },
        Defect {
            says: "a new table hangs where one is still remembered",
            seen: "two tables of one slot after a race of two maps",
            edit: |p| unguarded(p, MAPS[1], "the slot remembers no table"),
        },
    ]
}

/// Invalidations that are left out or come in the wrong order.
fn invalidations() -> Vec<Defect> {
    vec![
        Defect {
            says: "walk caches are not told of a table that has left",
            seen: "a leaf-only invalidation after a table was removed (IH, LEAF, SMMU's TLBI VAL)",
            edit: |p| unchanged(p, UNIT_TOLD, "walk_cache"),
        },
        Defect {
            says: "IOTLBs are not told of an unmapped page",
            seen: "unmap without invalidation",
            edit: |p| unchanged(p, UNIT_TOLD, "iotlb"),
        },
        Defect {
            says: "device TLBs are not told",
            seen: "ATS left on for a domain whose unmaps tell the unit alone",
            edit: |p| unchanged(p, SETTLED, "device_tlb"),
        },
        Defect {
            says: "device TLBs are told before the unit's caches",
            seen: "order of ATS: a device asks again and the unit answers from its IOTLB",
            edit: |p| {
                let (unit, devices) = (p.step(UNIT_TOLD).cloned(), p.step(SETTLED).cloned());
                if let (Some(unit), Some(devices)) = (unit, devices) {
                    exchange(p, UNIT_TOLD, &devices, &unit, &["walk_cache", "iotlb"]);
                    exchange(p, SETTLED, &unit, &devices, &["device_tlb"]);
                }
            },
        },
        Defect {
            says: "a queue that failed counts as one that has completed",
            seen: "a time-out of the invalidation queue that is logged and forgotten",
            edit: |p| {
                if let Some(step) = p.step("the hardware fails") {
                    step.changes.push(Change::Remove("open", &["d"]));
                }
            },
        },
        Defect {
            says: "commands of the unit's caches alone settle a debt",
            seen: "a wait descriptor before the device's invalidation",
            edit: |p| guarded(p, SETTLED, "the unit's caches were told before", "(sent d)"),
        },
    ]
}

/// Debts that are settled, joined or given back wrongly.
fn debts() -> Vec<Defect> {
    vec![
        Defect {
            says: "what a debt holds is given back before it is settled",
            seen: "buffers freed at unmap under a lazy policy",
            edit: |p| unguarded(p, GIVE_BACK, "the debt is settled"),
        },
        Defect {
            says: "what a debt holds is given back once its invalidations are sent",
            seen: "a queue's tail written, and its completion not awaited",
            edit: |p| guarded(p, GIVE_BACK, "the debt is settled", "(or (sent d) (not (open d)))"),
        },
        Defect {
            says: "a proof of one debt gives back the frames of another",
            seen: "proofs of another table",
            edit: |p| {
                let any = "(exists ((s Slot) (i Index) (e Debt)) (pending s i f e))";
                changed(p, GIVE_BACK, Change::AddAll("owner", &["f"], any));
            },
        },
        Defect {
            says: "an unmap joins a debt whose invalidations are on the way",
            seen: "a flush queue's take-over while another CPU pays",
            edit: |p| {
                guarded(
                    p,
                    CLEAR,
                    "the debt still gathers, or is a new one",
                    "(or (open d) (fresh d))",
                )
            },
        },
        Defect {
            says: "a table is unlinked on behalf of a debt that is on the way",
            seen: "tables left to a generation that was already flushed",
            edit: |p| guarded(p, UNLINK, "the debt still gathers", "(open d)"),
        },
    ]
}

/// Maps that come too early.
fn maps() -> Vec<Defect> {
    vec![
        Defect {
            says: "an address is used again before it is quiet",
            seen: "an IOVA freed at unmap, not at the flush",
            edit: |p| MAPS.iter().for_each(|step| unguarded(p, step, "the address is quiet")),
        },
        Defect {
            says: "an entry is written into a table that was looked up before, without being counted",
            seen: "a map that stores into a table which another CPU has unlinked",
            edit: |p| guarded(p, "write an entry", "the entry is announced", "(owner f)"),
        },
        Defect {
            says: "the count is lowered before the entry is cleared",
            seen: "a table that leaves with an entry that is still readable",
            edit: |p| {
                guarded(p, UNLINK, "the entry is cleared", "(exists ((g Frame)) (leaf t i g))");
                guarded(
                    p,
                    UNLINK,
                    "no other is counted",
                    "(forall ((j Index) (g Frame)) (=> (or (used t j g) (cleared t j)) (= j i)))",
                );
            },
        },
        Defect {
            says: "a frame that a device holds is mapped once more as another's",
            seen: "a buffer given to two drivers",
            edit: |p| MAPS.iter().for_each(|step| unguarded(p, step, "the owner gives the frame")),
        },
    ]
}

/// Changes that keep every promise, and starve a buffer.
pub fn starvations() -> Vec<Defect> {
    vec![
        Defect {
            says: "nothing is given back until no debt is open",
            seen: "a quiescent state that a busy machine never has",
            edit: |p| {
                guarded(p, GIVE_BACK, "the debt is settled", "(forall ((e Debt)) (not (open e)))")
            },
        },
        Defect {
            says: "a debt is sent only while no other is on the way",
            seen: "a lock of the queue that the same CPU takes again and again",
            edit: |p| {
                let alone = "(and (gathers d) (forall ((e Debt)) (not (sent e))))";
                guarded(p, "send a debt's invalidations", "the debt gathers", alone);
            },
        },
        Defect {
            says: "a debt is sent only once two unmaps owe it",
            seen: "a flush queue without a timer",
            edit: |p| {
                let two = "(and (gathers d) (exists ((r Slot) (i Index) (f Frame) (q Slot) (j Index) (g Frame)) \
                           (and (pending r i f d) (pending q j g d) (not (= f g)))))";
                guarded(p, "send a debt's invalidations", "the debt gathers", two);
            },
        },
        Defect {
            says: "a debt that has unlinked a table waits for a worker, and none is there",
            seen: "tables left to a thread that an early kernel does not have",
            edit: |p| {
                if let Some(step) = p.step("send a debt's invalidations") {
                    step.guards.push(crate::protocol::Claim {
                        says: "no table of it was unlinked",
                        is: "(forall ((u Table)) (=> (unlinked u) (not (= (tag u) d))))",
                    });
                }
            },
        },
    ]
}
