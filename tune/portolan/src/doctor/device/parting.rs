//! Ways to part a group: another slot, firmware's setting, Linux's options, and the price of each.
//!
//! `pci=config_acs=` and `pci=disable_acs_redir=`: Documentation/admin-guide/kernel-parameters.txt of Linux 6.11 and
//! later. `pcie_acs_override=` is of a patch that Linux does not have.

use portolan::addr::PciFunction;
use portolan_hw::topology::pci::{Acs, JoinReason, NotIsolated, PciKind};

use super::DeviceCase;
use super::group::{is_companion, listed};
use crate::doctor::Finding;
use crate::doctor::pci::AcsKnown;

/// Ports that one option names.
const MOST_OPTIONS: usize = 16;
/// Ports that an answer names.
const MOST_PORTS: usize = 4;

/// The reasons of a group, sorted by what helps.
#[derive(Default)]
struct PartingCauses {
    /// Ports without ACS.
    bare_ports: bool,
    /// Functions of one device without ACS, the asked one among them.
    bare_function: bool,
    /// Functions of another device without ACS.
    bare_functions: bool,
    /// Bridges to conventional PCI.
    conventional: bool,
    /// Services that are switched off, each with its function.
    off: Vec<String>,
}

/// Answers what would part the group; nothing if the device is alone.
pub fn finding(case: &DeviceCase<'_>) -> Option<Finding> {
    case.others().next()?;
    let causes = causes(case);
    let (mut ways, mut prices) = (Vec::new(), Vec::new());
    if causes.bare_ports || causes.conventional || !causes.off.is_empty() {
        ways.extend(slots(case));
    }
    if !causes.off.is_empty() {
        let all = causes.off.join(";");
        ways.push(format!(
            "ACS in the firmware's setup, or on Linux 6.11 and later pci=config_acs={all}"
        ));
        prices.push(
            "with ACS on, devices below reach each other by the way up, through the IOMMU"
                .to_owned(),
        );
    }
    let mut kinds = Vec::new();
    if causes.bare_ports {
        kinds.push("downstream".to_owned());
    }
    if causes.bare_functions {
        kinds.push("multifunction".to_owned());
    }
    if causes.bare_function {
        kinds.push(format!("id:{}", case.device.id_text()));
    }
    if !kinds.is_empty() {
        let kinds = kinds.join(",");
        ways.push(format!(
            "a kernel with the override patch, which Linux does not have: pcie_acs_override={kinds}"
        ));
        prices.push(
            "the override keeps nothing apart, Linux only believes it: the guest's device still reaches the others \
             past the IOMMU"
                .to_owned(),
        );
    }
    let unread = case.members.iter().any(|one| case.pci.acs(one.at) == AcsKnown::Unknown);
    if ways.is_empty() && unread {
        ways.push("read this as root: ACS of the ports above decides".to_owned());
    }
    if ways.is_empty() {
        return None;
    }
    let why = "Ways to part the group, the safest first.";
    let mut found = Finding::good("parting the group", why).act(ways.join("; or "));
    if !prices.is_empty() {
        found = found.gives_up(prices.join("; "));
    }
    Some(found)
}

fn causes(case: &DeviceCase<'_>) -> PartingCauses {
    let mut causes = PartingCauses::default();
    for join in case.pci.joins(&case.members) {
        let unread = case.pci.acs(join.with) == AcsKnown::Unknown;
        let (JoinReason::Behind(why) | JoinReason::Beside(why)) = join.why else { continue };
        let [one, with] = [join.function, join.with].map(|at| case.pci.function(at));
        let beside = matches!(join.why, JoinReason::Beside(_));
        if beside && one.zip(with).is_some_and(|(one, with)| is_companion(case.pci, with, one)) {
            // Functions of one card stay together wherever it is.
            continue;
        }
        let behind = matches!(join.why, JoinReason::Behind(_));
        match why {
            NotIsolated::Off(off) => {
                let option = format!("{}@{}", flags(off), join.with);
                if causes.off.len() < MOST_OPTIONS && !causes.off.contains(&option) {
                    causes.off.push(option);
                }
            }
            NotIsolated::NoAcs if unread => {}
            NotIsolated::NoAcs if behind => causes.bare_ports = true,
            // Several ports on one device part where each has another device below.
            NotIsolated::NoAcs
                if case.pci.node(join.function).is_some_and(|one| one.is_bridge()) =>
            {
                causes.bare_ports = true;
            }
            NotIsolated::Conventional if behind => causes.conventional = true,
            NotIsolated::NoAcs | NotIsolated::Conventional => {
                let device = |at: PciFunction| (at.segment, at.requester.get() >> 3);
                let own = device(join.with) == device(case.device.at);
                match own {
                    true => causes.bare_function = true,
                    false => causes.bare_functions = true,
                }
            }
        }
    }
    causes
}

/// Flags of `pci=config_acs=` that switch `on` on, from the highest bit.
fn flags(on: Acs) -> String {
    let bits = (0..7).rev().map(|bit| 1 << bit);
    bits.map(|bit| if on.bits() & bit != 0 { '1' } else { 'x' }).collect()
}

/// Another slot, if the device is behind a port.
fn slots(case: &DeviceCase<'_>) -> Option<String> {
    if case.pci.way_up(case.device.at).is_empty() {
        return None;
    }
    let in_group = |at| case.members.iter().any(|one| one.at == at);
    let port = |kind| matches!(kind, PciKind::RootPort | PciKind::DownstreamPort);
    let nodes = case.pci.tree().nodes().iter();
    let good =
        nodes.filter(|node| port(node.kind) && node.isolates().is_ok() && !in_group(node.at));
    let named: Vec<String> = good.take(MOST_PORTS).map(|node| node.at.to_string()).collect();
    Some(match named.is_empty() {
        true => "another slot, below a port with ACS".to_owned(),
        false => format!("another slot: {} keep apart the devices below", listed(named)),
    })
}
