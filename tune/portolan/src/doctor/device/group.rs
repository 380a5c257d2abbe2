//! The group of a device: its members, the reasons by which they share it, and what that means for a guest.

use std::collections::BTreeMap;

use portolan::addr::PciFunction;
use portolan_hw::topology::pci::{Acs, Join, JoinReason, NotIsolated};

use super::DeviceCase;
use crate::doctor::Finding;
use crate::doctor::finding::Verdict;
use crate::doctor::pci::{AcsKnown, KnownFunction, Pci};

/// Members that a sentence names.
const MOST_NAMED: usize = 12;

/// Names of `all`, of which a sentence has no more than twelve.
pub fn listed(all: impl IntoIterator<Item = String>) -> String {
    let all: Vec<String> = all.into_iter().collect();
    let named = all.iter().take(MOST_NAMED).cloned().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(MOST_NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Services of ACS by the names that `lspci` prints, from the lowest bit.
const SERVICES: [&str; 7] =
    ["SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans"];

/// The services `acs` as `lspci` names them.
pub fn services(acs: Acs) -> String {
    let names = SERVICES.iter().enumerate();
    let names = names.filter(|(bit, _)| acs.bits() >> bit & 1 != 0).map(|(_, name)| *name);
    names.collect::<Vec<_>>().join(", ")
}

/// Tells if `other` is a function of the same card, which goes along as a matter of course.
pub(super) fn is_companion(pci: &Pci, device: &KnownFunction, other: &KnownFunction) -> bool {
    let slot = |at: PciFunction| (at.segment, at.requester.get() >> 3);
    let on_card = !pci.way_up(device.at).is_empty();
    on_card && slot(device.at) == slot(other.at) && device.id().vendor == other.id().vendor
}

/// Answers who is in the group, and why.
pub fn finding(case: &DeviceCase<'_>) -> Finding {
    let others: Vec<&KnownFunction> = case.others().collect();
    let alien = others.iter().any(|other| !is_companion(case.pci, case.device, other));
    let verdict = match (alien, case.device.group.is_some() || is_known(case)) {
        (_, false) => Verdict::Unknown,
        (true, true) => Verdict::Problem,
        (false, true) => Verdict::Good,
    };
    let mut why = match (case.device.group, others.as_slice()) {
        (Some(number), []) => format!("It has group {number} to itself."),
        (None, []) => "By configuration space it has a group to itself.".to_owned(),
        (number, others) => {
            let of = number.map_or("By configuration space its group".to_owned(), |number| {
                format!("Its group, {number},")
            });
            let them = listed(others.iter().map(|one| one.title()));
            format!("{of} has besides {them}. All of them go to one guest, or none does.")
        }
    };
    let bridges = case.members.iter().filter(|one| one.at != case.device.at && is_staying(one));
    let bridges = listed(bridges.map(|one| one.at.to_string()));
    if !bridges.is_empty() {
        why += &format!(" Ports and bridges of the group stay with the host: {bridges}.");
    }
    let joins = case.pci.joins(&case.members);
    if case.members.len() > 1 {
        why += &reasons(case, &joins);
    }
    if is_unread(case) {
        why +=
            " The state of ACS is for root to read: as root this names the port and the service.";
    }
    Finding::new("the group", verdict, why)
}

fn is_staying(one: &KnownFunction) -> bool {
    one.is_bridge() || one.is_board()
}

/// Tells if configuration space, which decides without Linux's own group, was readable on the way up.
fn is_known(case: &DeviceCase<'_>) -> bool {
    let way = case.pci.way_up(case.device.at);
    let mut all = way.iter().map(|node| node.at).chain([case.device.at]);
    all.all(|at| case.pci.acs(at) != AcsKnown::Unknown)
}

/// Tells if a port of the way up, or a function of several, has an ACS that was not readable.
fn is_unread(case: &DeviceCase<'_>) -> bool {
    case.members.len() > 1
        && case.members.iter().any(|one| case.pci.acs(one.at) == AcsKnown::Unknown)
}

/// Reasons by which the members share the group, as sentences.
fn reasons(case: &DeviceCase<'_>, joins: &[Join]) -> String {
    let mut folded: BTreeMap<(PciFunction, String), Vec<PciFunction>> = BTreeMap::new();
    for join in joins {
        let why = reason(case.pci, join);
        folded.entry((join.with, why)).or_default().push(join.function);
    }
    let mut out = String::new();
    for ((_, why), functions) in folded.into_iter().take(MOST_NAMED) {
        let them = listed(functions.iter().map(ToString::to_string));
        out += &format!(" {them}: {why}.");
    }
    let unexplained = |one: &&&KnownFunction| {
        let met = |join: &Join| join.function == one.at || join.with == one.at;
        !joins.iter().any(met)
    };
    let unexplained = case.members.iter().filter(unexplained).map(|one| one.at.to_string());
    let unexplained = listed(unexplained);
    if !unexplained.is_empty() {
        out += &format!(" Configuration space gives no reason for {unexplained}.");
    }
    out
}

/// The reason of one join, as what follows the function's name and a colon.
fn reason(pci: &Pci, join: &Join) -> String {
    let with = join.with;
    let lack = |why| match (why, pci.acs(with)) {
        (NotIsolated::Conventional, _) => "functions of conventional PCI have no ACS".to_owned(),
        (NotIsolated::NoAcs, AcsKnown::Unknown) => "its ACS was not readable".to_owned(),
        (NotIsolated::NoAcs, _) => "it has no ACS".to_owned(),
        (NotIsolated::Off(off), _) => format!("its ACS has switched off {}", services(off)),
    };
    match join.why {
        JoinReason::Behind(NotIsolated::Conventional) => {
            format!("behind {with}, a bridge that hides the functions' identifiers from the IOMMU")
        }
        JoinReason::Behind(why) => {
            format!("behind the port {with}, which does not keep them apart: {}", lack(why))
        }
        JoinReason::Beside(why) => {
            format!(
                "of one device with {with}, which does not keep its functions apart: {}",
                lack(why)
            )
        }
        JoinReason::Requester(requester) => {
            let as_ = PciFunction { segment: with.segment, requester };
            format!("its accesses and those of {with} may both carry {as_}")
        }
        JoinReason::Stream(stream) => {
            format!("the IOMMU knows it and {with} by one stream, {}", stream.get())
        }
        _ => format!("on a bus that {with} claims, whose bus numbers make no sense"),
    }
}
