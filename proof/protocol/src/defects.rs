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
pub(crate) fn unguarded(protocol: &mut Protocol, step: &str, guard: &str) {
    if let Some(step) = protocol.step(step) {
        step.guards.retain(|claim| claim.says != guard);
    }
}

/// Leaves a change of a step out.
pub(crate) fn unchanged(protocol: &mut Protocol, step: &str, name: &str) {
    if let Some(step) = protocol.step(step) {
        step.changes.retain(|change| change.name() != name);
    }
}

/// Puts another formula in place of a guard.
pub(crate) fn guarded(protocol: &mut Protocol, step: &str, guard: &str, is: &'static str) {
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
const TAKE_ADDRESSES: &str = "take all addresses of a table";
const TAKE_OUT: &str = "take the empty table out";
const GATHERS: &str = "the debt still gathers, or is a new one";
const MAPS: [&str; 2] = ["find a table that hangs there", "link a new table"];

/// All of them.
pub fn defects() -> Vec<Defect> {
    [tables(), invalidations(), debts(), maps()].into_iter().flatten().collect()
}

/// Tables that are freed or used too early.
fn tables() -> Vec<Defect> {
    vec![
        Defect {
            says: "a settled debt frees every table that has left, not only those of its tag",
            seen: "tables freed too early by the proof of another debt",
            edit: |p| {
                let all = "(left t)";
                changed(p, GIVE_BACK, Change::RemoveAll("left", &["t"], all));
                changed(p, GIVE_BACK, Change::AddAll("free", &["t"], all));
            },
        },
        Defect {
            says: "a table that leaves again keeps the tag of the debt before",
            seen: "a table freed by the debt with which it left before",
            edit: |p| unchanged(p, TAKE_OUT, "tag"),
        },
        Defect {
            says: "a table is taken out, whatever is in it",
            seen: "a range's table removed with its neighbours' entries",
            edit: |p| unguarded(p, TAKE_ADDRESSES, "no address is in use"),
        },
        Defect {
            says: "a look for entries forgets one",
            seen: "a loop that ends before the last entry",
            edit: |p| {
                let all_but_one = "(exists ((j Index)) (forall ((i Index) (f Frame)) \
                                   (=> (used t i f) (= i j))))";
                guarded(p, TAKE_ADDRESSES, "no address is in use", all_but_one);
            },
        },
        Defect {
            says: "a table without entries is taken out while a map is on its way into it",
            seen: "a map that stores into a table which another CPU has taken out",
            edit: |p| {
                let none_yet = "(forall ((i Index) (f Frame)) (not (leaf t i f)))";
                guarded(p, TAKE_ADDRESSES, "no address is in use", none_yet);
            },
        },
        Defect {
            says: "an emptied table is freed at once",
            seen: "Linux's and others' page tables freed before the walk caches are told",
            edit: |p| {
                unchanged(p, TAKE_OUT, "left");
                if let Some(step) = p.step(TAKE_OUT) {
                    step.changes.push(Change::Add("free", &["t"]));
                }
            },
        },
        Defect {
            says: "addresses of a table that leaves are given out before the debt is settled",
            seen: "a new table that walk caches hide behind the old one",
            edit: |p| {
                MAPS.iter().for_each(|step| {
                    unguarded(p, step, "the address is not taken with its table");
                });
            },
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
            edit: |p| guarded(p, CLEAR, GATHERS, "(or (open d) (fresh d))"),
        },
        Defect {
            says: "a table is taken out on behalf of a debt that is on the way",
            seen: "tables left to a generation that was already flushed",
            edit: |p| guarded(p, TAKE_OUT, GATHERS, "(open d)"),
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
            says: "an entry is written by a map that does not have the address",
            seen: "an address that two drivers use",
            edit: |p| {
                guarded(p, "write an entry", "the map has the address and the table", "(owner f)")
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
            says: "a debt that has taken a table out waits for a worker, and none is there",
            seen: "tables left to a thread that an early kernel does not have",
            edit: |p| {
                if let Some(step) = p.step("send a debt's invalidations") {
                    step.guards.push(crate::protocol::Claim {
                        says: "no table of it was taken out",
                        is: "(forall ((u Table)) (=> (left u) (not (= (tag u) d))))",
                    });
                }
            },
        },
    ]
}
