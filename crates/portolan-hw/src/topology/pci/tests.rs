//! Trees of functions that are made up, and fakes for other tests.

extern crate std;

use std::string::{String, ToString};
use std::vec;
use std::vec::Vec;

use super::*;

/// Configuration spaces, word by word.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fake(Vec<(PciFunction, Vec<(u16, u32)>)>);

/// Kind of a function by the Express capability (bits 7:4), or none.
#[derive(Clone, Copy)]
pub(crate) enum Is {
    Conventional,
    Endpoint,
    RootPort,
    Upstream,
    Downstream,
    ToPci,
}

/// The ACS of a function.
#[derive(Clone, Copy)]
pub(crate) enum Has {
    Nothing,
    /// Everything that can be switched is on.
    On,
    /// Everything can be switched, and only this is on.
    Just(u16),
}

impl Fake {
    /// A function; `buses` are those behind it, if it is a bridge.
    #[must_use]
    pub(crate) fn with(
        mut self,
        at: PciFunction,
        is: Is,
        buses: Option<(u8, u8)>,
        has: Has,
    ) -> Self {
        let express = match is {
            Is::Conventional => None,
            Is::Endpoint => Some(0),
            Is::RootPort => Some(4),
            Is::Upstream => Some(5),
            Is::Downstream => Some(6),
            Is::ToPci => Some(7),
        };
        let own = u32::from(at.requester.bus());
        let header = u32::from(buses.is_some()) << 16;
        let mut words = vec![(0, 0x1234_8086), (4, 0), (8, 0), (0xc, header)];
        if let Some((first, last)) = buses {
            words.push((0x18, own | u32::from(first) << 8 | u32::from(last) << 16));
        }
        if let Some(kind) = express {
            words[1].1 = 1 << 20;
            words.extend([(0x34, 0x40), (0x40, 0x5001), (0x50, 0x10 | kind << 20)]);
            let on = match has {
                Has::Nothing => None,
                Has::On => Some(0x1f),
                Has::Just(on) => Some(u32::from(on)),
            };
            words.push((0x100, 0x1481_0001));
            let control = on.map(|on| [(0x148, 0x1_000d), (0x14c, on << 16 | 0x5f)]);
            words.extend(control.into_iter().flatten());
        }
        self.0.push((at, words));
        self
    }

    /// Sets a word of the function that was added last.
    #[must_use]
    pub(crate) fn word(mut self, offset: u16, value: u32) -> Self {
        let (_, words) = self.0.last_mut().unwrap();
        words.retain(|(at, _)| *at != offset);
        words.push((offset, value));
        self
    }

    /// The function that was added last is one of several.
    #[must_use]
    pub(crate) fn several(self) -> Self {
        let (_, words) = self.0.last().unwrap();
        let header = words.iter().find(|(at, _)| *at == 0xc).unwrap().1;
        self.word(0xc, header | 0x80 << 16)
    }

    pub(crate) fn read(&self, of: PciFunction, offset: u16) -> Option<u32> {
        let (_, words) = self.0.iter().find(|(at, _)| *at == of)?;
        let word = words.iter().find(|(at, _)| *at == offset);
        Some(word.map_or(0, |(_, word)| *word))
    }

    pub(crate) fn tree(&self, overrides: PciOverrides) -> PciTree {
        let read = |of, offset| self.read(of, offset);
        PciTree::scan([PciSegment::new(0)], overrides, read)
    }

    fn groups(&self) -> Vec<Vec<String>> {
        groups(&self.tree(PciOverrides::KNOWN))
    }
}

fn short(at: PciFunction) -> String {
    at.to_string()[5..].to_string()
}

/// The groups, each as the names of its functions.
fn groups(tree: &PciTree) -> Vec<Vec<String>> {
    let groups = Groups::of(tree);
    let firsts = tree.nodes().iter().map(|node| node.at);
    let firsts = firsts.filter(|at| groups.first(tree, *at) == *at);
    let members = |at| groups.members(tree, at).map(|node| short(node.at)).collect();
    firsts.map(members).collect()
}

const fn at(bus: u8, device: u8, function: u8) -> PciFunction {
    PciFunction::of(bus, device, function)
}

/// A root port with ACS and one without, each with a card of two functions that have none.
fn two_ports() -> Fake {
    Fake::default()
        .with(at(0, 1, 0), Is::RootPort, Some((1, 1)), Has::On)
        .with(at(0, 2, 0), Is::RootPort, Some((2, 2)), Has::Nothing)
        .with(at(1, 0, 0), Is::Endpoint, None, Has::Nothing)
        .several()
        .with(at(1, 0, 1), Is::Endpoint, None, Has::Nothing)
        .with(at(2, 0, 0), Is::Endpoint, None, Has::On)
        .several()
        .with(at(2, 0, 1), Is::Endpoint, None, Has::On)
}

#[test]
fn a_port_without_acs_and_functions_without_it_are_not_kept_apart() {
    let expected =
        [vec!["00:01.0"], vec!["00:02.0", "02:00.0", "02:00.1"], vec!["01:00.0", "01:00.1"]];
    assert_eq!(two_ports().groups(), expected);
    // A function that the scan has not found is with the port as well, or alone behind the other.
    let tree = two_ports().tree(PciOverrides::KNOWN);
    let groups = Groups::of(&tree);
    assert_eq!(groups.first(&tree, at(2, 5, 0)), at(0, 2, 0));
    assert_eq!(groups.first(&tree, at(1, 5, 0)), at(1, 5, 0));
    let said: Vec<_> = groups.joins().iter().map(ToString::to_string).collect();
    assert_eq!(said[0], "0000:02:00.0 is behind 0000:00:02.0: it has no ACS");
    assert!(said[2].starts_with("0000:01:00.1 is a function beside 0000:01:00.0"));
}

#[test]
fn each_service_of_acs_is_needed_and_what_cannot_be_switched_is_not() {
    let with = |on: u16, can: u16| {
        let fake = Fake::default()
            .with(at(0, 1, 0), Is::RootPort, Some((1, 1)), Has::Just(on))
            .word(0x14c, u32::from(on) << 16 | u32::from(can))
            .with(at(1, 0, 0), Is::Endpoint, None, Has::Nothing);
        fake.groups().len()
    };
    assert_eq!(with(0x1d, 0x5f), 2);
    for bit in [0x1, 0x4, 0x8, 0x10] {
        assert_eq!(with(0x1d & !bit, 0x5f), 1, "{bit:#x}");
        assert_eq!(with(0x1d & !bit, 0x5f & !bit), 2, "{bit:#x}");
    }
}

#[test]
fn an_open_port_of_a_switch_takes_what_is_behind_it_and_no_more() {
    let switch = |inner: Has| {
        Fake::default()
            .with(at(0, 1, 0), Is::RootPort, Some((1, 4)), Has::On)
            .with(at(1, 0, 0), Is::Upstream, Some((2, 4)), Has::Nothing)
            .with(at(2, 0, 0), Is::Downstream, Some((3, 3)), inner)
            .with(at(2, 1, 0), Is::Downstream, Some((4, 4)), Has::On)
            .with(at(3, 0, 0), Is::Endpoint, None, Has::Nothing)
            .with(at(4, 0, 0), Is::Endpoint, None, Has::Nothing)
    };
    assert_eq!(switch(Has::On).groups().len(), 6);
    let open = switch(Has::Nothing).groups();
    assert_eq!(open.len(), 5);
    assert!(open.contains(&vec!["02:00.0".into(), "03:00.0".into()]));
    // With an open root port all of it is one group.
    let all = switch(Has::On).with(at(0, 2, 0), Is::Conventional, None, Has::Nothing);
    let mut all = all;
    all.0[0] =
        Fake::default().with(at(0, 1, 0), Is::RootPort, Some((1, 4)), Has::Just(0)).0[0].clone();
    assert_eq!(all.groups().len(), 2);
}

#[test]
fn what_is_behind_a_bridge_to_pci_has_the_bridge_s_identifiers() {
    let fake = Fake::default()
        .with(at(0, 0x1c, 0), Is::RootPort, Some((1, 3)), Has::On)
        .with(at(1, 0, 0), Is::ToPci, Some((2, 3)), Has::Nothing)
        .with(at(2, 4, 0), Is::Conventional, None, Has::Nothing)
        .with(at(2, 5, 0), Is::Conventional, Some((3, 3)), Has::Nothing)
        .with(at(3, 1, 0), Is::Conventional, None, Has::Nothing);
    let tree = fake.tree(PciOverrides::KNOWN);
    let of = |bus, device| tree.requesters(at(bus, device, 0));
    let id = RequesterId::of;
    assert_eq!(of(2, 4), [id(2, 4, 0), id(2, 0, 0)]);
    assert_eq!(of(3, 1), [id(3, 1, 0), id(2, 5, 0), id(2, 0, 0)]);
    assert_eq!(of(1, 0), [id(1, 0, 0)]);
    // Also of one that is not found, and not of one elsewhere.
    assert_eq!(of(3, 9), [id(3, 9, 0), id(2, 5, 0), id(2, 0, 0)]);
    assert_eq!(of(4, 9), [id(4, 9, 0)]);
    let behind = vec!["01:00.0", "02:04.0", "02:05.0", "03:01.0"];
    assert_eq!(groups(&tree), [vec!["00:1c.0"], behind]);
}

#[test]
fn functions_that_do_dma_as_another_are_in_its_group() {
    let sata = |id: u32| {
        let fake = Fake::default()
            .with(at(0, 1, 0), Is::RootPort, Some((1, 1)), Has::On)
            .with(at(1, 0, 0), Is::Endpoint, None, Has::On)
            .word(0, id)
            .several()
            .with(at(1, 0, 1), Is::Endpoint, None, Has::On);
        fake.tree(PciOverrides::KNOWN)
    };
    let marvell = sata(0x9230_1b4b);
    let both = [RequesterId::of(1, 0, 0), RequesterId::of(1, 0, 1)];
    assert_eq!(marvell.requesters(at(1, 0, 0)), both);
    assert_eq!(groups(&marvell)[1], ["01:00.0", "01:00.1"]);
    let other = sata(0x9231_1b4b);
    assert_eq!(other.requesters(at(1, 0, 0)), both[..1]);
    assert_eq!(groups(&other).len(), 3);
}

#[test]
fn what_its_maker_says_of_a_port_counts_for_more_than_its_acs() {
    const SAID: &[IsolationOverride] = &[
        IsolationOverride { of: at(0, 1, 0), isolation: Isolation::Not },
        IsolationOverride { of: at(0, 2, 0), isolation: Isolation::Isolated },
    ];
    let overrides = PciOverrides { isolation: SAID, ..PciOverrides::KNOWN };
    let expected =
        [vec!["00:01.0", "01:00.0", "01:00.1"], vec!["00:02.0"], vec!["02:00.0"], vec!["02:00.1"]];
    assert_eq!(groups(&two_ports().tree(overrides)), expected);
}

#[test]
fn bridges_that_lead_up_round_or_where_others_lead_are_not_believed_and_in_one_group_with_what_they_claim()
 {
    let leads = |buses: [(u8, u8); 3]| {
        let [one, two, three] = buses;
        Fake::default()
            .with(at(0, 1, 0), Is::RootPort, Some(one), Has::On)
            .with(at(1, 0, 0), Is::Downstream, Some(two), Has::On)
            .with(at(2, 0, 0), Is::Downstream, Some(three), Has::On)
            .with(at(3, 0, 0), Is::Endpoint, None, Has::On)
    };
    let odd = |fake: &Fake| -> Vec<String> {
        let tree = fake.tree(PciOverrides::KNOWN);
        tree.odd().iter().map(|odd| short(odd.bridge)).collect()
    };
    let good = leads([(1, 3), (2, 3), (3, 3)]);
    assert_eq!((odd(&good).len(), good.groups().len()), (0, 4));
    // Round in a circle.
    let circle = leads([(1, 3), (2, 3), (1, 3)]);
    assert_eq!(odd(&circle), ["02:00.0"]);
    assert_eq!(circle.groups(), [vec!["00:01.0"], vec!["01:00.0", "02:00.0", "03:00.0"]]);
    // To itself, backwards, and to where another leads.
    assert_eq!(odd(&leads([(1, 3), (2, 3), (2, 3)])), ["02:00.0"]);
    assert_eq!(odd(&leads([(1, 3), (2, 3), (3, 1)])), ["02:00.0"]);
    assert_eq!(odd(&leads([(1, 3), (3, 3), (3, 3)])), ["02:00.0"]);
    // Two of the root's bus that cross.
    let crossing =
        leads([(1, 3), (2, 3), (3, 3)]).with(at(0, 2, 0), Is::RootPort, Some((2, 5)), Has::On);
    assert_eq!(odd(&crossing), ["01:00.0", "00:01.0"]);
    let together = vec!["00:01.0", "01:00.0", "02:00.0", "03:00.0"];
    assert_eq!(crossing.groups(), [together, vec!["00:02.0"]]);
}

#[test]
fn the_way_up_ends_whatever_bridges_say() {
    let mut rng = fastrand::Rng::with_seed(portolan_chips::fixture::seed());
    for _ in 0..300 {
        let mut nodes = Vec::new();
        for bus in 0..12 {
            for device in 0..3 {
                let noise: Vec<u32> = (0..8).map(|_| rng.u32(..)).collect();
                let kind = [0, 4, 5, 6, 7, 8][rng.usize(..6)];
                let buses = rng.u32(..) & 0x0f0f_0f0f;
                let acs = rng.u32(..);
                let read = |offset: u16| {
                    Some(match offset {
                        0 => 0x1234_8086,
                        4 => 1 << 20,
                        0xc => 1 << 16,
                        0x18 => buses,
                        0x34 => 0x40,
                        0x40 => 0x10 | kind << 20,
                        0x100 => 0xd,
                        0x104 => acs,
                        _ => noise[usize::from(offset) % 8],
                    })
                };
                nodes.extend(PciNode::read(at(bus, device, 0), read));
            }
        }
        let tree = PciTree::of(nodes, PciOverrides::KNOWN);
        let groups = Groups::of(&tree);
        for node in tree.nodes() {
            // All functions above one that does not isolate are in its group.
            let first = groups.first(&tree, node.at);
            assert_eq!(groups.first(&tree, first), first);
            assert!(groups.members(&tree, node.at).any(|member| member.at == node.at));
            let above: Vec<_> = tree.above(node.at.segment, node.at.requester.bus()).collect();
            assert!(above.len() <= 16);
            for bridge in above.iter().filter(|bridge| bridge.isolates().is_err()) {
                assert_eq!(groups.first(&tree, bridge.at), first);
            }
            for requester in tree.requesters(node.at) {
                let other = PciFunction { requester, ..node.at };
                assert!(tree.node(other).is_none() || groups.first(&tree, other) == first);
            }
        }
        for odd in tree.odd() {
            let first = groups.first(&tree, odd.bridge);
            let inside = |node: &&PciNode| {
                let bus = node.at.requester.bus();
                (odd.buses.first..=odd.buses.last).contains(&bus)
            };
            for node in tree.nodes().iter().filter(inside) {
                assert_eq!(groups.first(&tree, node.at), first);
            }
        }
    }
}

#[test]
fn capabilities_that_go_round_and_absent_functions_end() {
    let read = |offset: u16| {
        Some(match offset {
            0 => 0x1234_8086,
            4 => 1 << 20,
            0x34 => 0x40,
            0x40 => 0x4005,
            0x100 => 0x1000_0001,
            _ => 0,
        })
    };
    let node = PciNode::read(at(0, 0, 0), read).unwrap();
    assert_eq!((node.kind, node.acs), (PciKind::Conventional, None));
    let round = |offset: u16| match offset {
        0x40 => Some(0x10),
        other => read(other),
    };
    let node = PciNode::read(at(0, 0, 0), round).unwrap();
    assert_eq!((node.kind, node.acs), (PciKind::Endpoint, None));
    assert_eq!(PciNode::read(at(0, 0, 0), |_| Some(u32::MAX)), None);
    assert_eq!(PciNode::read(at(0, 0, 0), |_| None), None);
}

#[test]
fn devices_that_are_known_by_others_have_their_identifiers() {
    let requesters = |id: u32, device: u8, function: u8| {
        let (first, own) = (at(2, device, 0), at(2, device, function));
        let mut fake = Fake::default().with(at(0, 1, 0), Is::RootPort, Some((2, 2)), Has::On);
        if own != first {
            let there = fake.with(first, Is::Endpoint, None, Has::Nothing);
            fake = there.several();
        }
        let fake = fake.with(own, Is::Endpoint, None, Has::Nothing).word(0, id);
        fake.tree(PciOverrides::KNOWN).requesters(own)
    };
    let of = |device, function| RequesterId::of(2, device, function);
    // Glenfly's audio; an Adaptec 3405; Xeon Phi.
    assert_eq!(requesters(0x3d40_6766, 0, 1), [of(0, 1), of(0, 0)]);
    assert_eq!(requesters(0x0285_9005, 14, 0), [of(14, 0), of(1, 0)]);
    let phi = [of(0, 0), of(0x10, 0), of(0x11, 0), of(0x12, 3)];
    assert_eq!(requesters(0x2260_8086, 0, 0), phi);
    // Five functions in each slot, its own among them.
    let all = requesters(0x295a_8086, 0, 0);
    assert_eq!(all.len(), 5 * 32);
    assert!(all.contains(&of(31, 4)) && !all.contains(&of(31, 5)));
}

/// Requests that come through Switchtec's and PLX's bridges between hosts carry identifiers of the bus that no
/// function has. Switchtec's memory controllers have the same number.
#[test]
fn what_comes_through_a_bridge_between_hosts_is_known_by_any_identifier_of_its_bus() {
    let requesters = |id: u32, class: u32| {
        let fake = Fake::default()
            .with(at(0, 1, 0), Is::RootPort, Some((2, 2)), Has::On)
            .with(at(2, 0, 1), Is::Endpoint, None, Has::Nothing)
            .word(0, id)
            .word(8, class << 16)
            .with(at(2, 0, 0), Is::Endpoint, None, Has::Nothing)
            .several();
        fake.tree(PciOverrides::KNOWN).requesters(at(2, 0, 1)).len()
    };
    for id in [0x87b0_10b5, 0x87b1_10b5, 0x8531_11f8, 0x5528_11f8, 0x1006_1055] {
        assert_eq!(requesters(id, 0x0680), 256, "{id:x}");
    }
    assert_eq!(requesters(0x8531_11f8, 0x0580), 1);
    assert_eq!(requesters(0x87b2_10b5, 0x0680), 1);
}

/// The TLB of a function of that identity, revision and board, with an ATS capability.
fn tlb(id: u32, revision: u32, board: u32) -> Option<portolan::iommu::DeviceTlb> {
    let fake = Fake::default()
        .with(at(0, 2, 0), Is::Endpoint, None, Has::Nothing)
        .word(0, id)
        .word(8, revision)
        .word(0x2c, board)
        .word(0x100, 0x1401_0001)
        .word(0x140, 0x1_000f)
        .word(0x144, 0x20);
    let tree = fake.tree(PciOverrides::KNOWN);
    tree.device_tlb(at(0, 2, 0), &|of, offset| fake.read(of, offset))
}

/// Graphics hung and packets were lost where these used ATS.
#[test]
fn a_tlb_that_is_known_to_be_broken_is_not_used() {
    let good = tlb(0x1234_8086, 0, 0).unwrap();
    assert_eq!((good.depth, good.physical, good.twice), (32, 0x10, false));
    for broken in [0x98e4_1002, 0x6900_1002, 0x731f_1002, 0x7340_1002] {
        assert_eq!(tlb(broken, 0xc5, 0), None, "{broken:x}");
    }
    assert_eq!(tlb(0x145c_8086, 0x1f, 0), None);
    assert!(tlb(0x145c_8086, 0x20, 0).is_some());
    // Raven's graphics on Emerson's boards alone.
    assert_eq!(tlb(0x15d8_1002, 0xcf, 0xcc10_ea50), None);
    assert!(tlb(0x15d8_1002, 0xcf, 0xcc11_ea50).is_some());
    assert!(tlb(0x15d8_1002, 0xce, 0xcc10_ea50).is_some());
    for id in 0x4940..=0x4943 {
        assert!(tlb(id << 16 | 0x8086, 0x30, 0).unwrap().twice, "{id:x}");
    }
}

#[test]
fn identifiers_do_not_change_above_the_bridge_at_which_vulcan_translates() {
    let requesters = |id: u32| {
        let fake = Fake::default()
            .with(at(0, 1, 0), Is::ToPci, Some((1, 2)), Has::Nothing)
            .word(0, id)
            .with(at(1, 0, 0), Is::Endpoint, None, Has::Nothing);
        fake.tree(PciOverrides::KNOWN).requesters(at(1, 0, 0)).len()
    };
    assert_eq!([0x9000_14e4, 0x9084_14e4, 0x9085_14e4].map(requesters), [1, 1, 1]);
}

/// ASMedia's 1080 and others bridge from Express to PCI without saying so.
#[test]
fn a_bridge_that_hides_that_it_comes_from_express_is_known_by_the_bus_behind_it() {
    let requesters = |above: Is, id: u32| {
        let fake = Fake::default()
            .with(at(0, 0x1c, 0), above, Some((2, 3)), Has::On)
            .with(at(2, 0, 0), Is::Conventional, Some((3, 3)), Has::Nothing)
            .word(0, id)
            .with(at(3, 1, 0), Is::Conventional, None, Has::Nothing);
        fake.tree(PciOverrides::KNOWN).requesters(at(3, 1, 0))
    };
    let [own, bus, bridge] =
        [(3, 1), (3, 0), (2, 0)].map(|(bus, device)| RequesterId::of(bus, device, 0));
    for id in [0x1080_1b21, 0x8113_10e3, 0x8892_1283, 0x8893_1283, 0x244e_8086] {
        assert_eq!(requesters(Is::RootPort, id), [own, bus], "{id:#x}");
    }
    assert_eq!(requesters(Is::RootPort, 0x1081_1b21), [own, bridge]);
    // Behind a conventional bridge it is one itself.
    let above = RequesterId::of(0, 0x1c, 0);
    assert_eq!(requesters(Is::Conventional, 0x1080_1b21), [own, bridge, above]);
}
