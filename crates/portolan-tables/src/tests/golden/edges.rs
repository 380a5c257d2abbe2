//! Tables at their edges: the last value that is right and the first that is not, rare kinds and
//! revisions, and structures that are passed over.

extern crate std;

use std::vec;
use std::vec::Vec;

use portolan::addr::{PciSegment, PhysAddr, RequesterId, StreamId};

use super::bytes::{ITS, SMMU, node, reseal, table, viot_bytes, words};
use super::iort::{root_with, stream_of};
use crate::TableError;
use crate::dmar::{self, Dmar, Ports, Scope, ScopeKind, Structure};
use crate::iort::{self, Iort, IortBody, SmmuV3};
use crate::ivrs::{self, Ivrs};
use crate::sdt::{Sdt, Tables};
use crate::tests::lookup;
use crate::viot::{self, Viot};

fn dmar(flags: u8, structures: &[u8]) -> Vec<u8> {
    let mut body = vec![38, flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    body.extend(structures);
    table(dmar::SIGNATURE, &body)
}

#[test]
fn flags_of_dmar_are_its_second_byte() {
    for flags in [0, 0b100, 0xff] {
        assert_eq!(Dmar::parse(&dmar(flags, &[])).unwrap().flags(), flags);
    }
}

#[test]
fn only_what_is_of_unknown_type_is_counted_as_unknown() {
    // Two structures or nodes each, of types that there are not; then none.
    let twice = dmar(0, &[0x99, 0, 4, 0, 0x98, 0, 4, 0]);
    let mut walk = Dmar::parse(&twice).unwrap().structures();
    assert_eq!((walk.by_ref().count(), walk.unknown()), (0, 2));
    let none = dmar(0, &[2, 0, 8, 0, 1, 0, 0, 0]);
    let mut walk = Dmar::parse(&none).unwrap().structures();
    assert_eq!((walk.by_ref().count(), walk.unknown()), (1, 0));

    let of = |nodes: &[Vec<u8>]| {
        let mut body = words(&[nodes.len() as u32, 48, 0]);
        body.extend(nodes.iter().flatten());
        let bytes = table(iort::SIGNATURE, &body);
        let mut walk = Iort::parse(&bytes).unwrap().nodes();
        (walk.by_ref().count(), walk.unknown())
    };
    let unknown = node(200, 0, &[], &[]);
    let its = node(0, 1, &[0], &[]);
    assert_eq!(of(&[unknown.clone(), unknown]), (0, 2));
    assert_eq!(of(&[its]), (1, 0));

    let of = |blocks: &[u8]| {
        let bytes = table(ivrs::SIGNATURE, &[&[0; 12], blocks].concat());
        let mut walk = Ivrs::parse(&bytes).unwrap().blocks();
        (walk.by_ref().count(), walk.unknown())
    };
    assert_eq!(of(&[0x99, 0, 4, 0, 0x98, 0, 4, 0]), (0, 2));
    assert_eq!(of(&[]), (0, 0));

    let of = |count, nodes: &[u8]| {
        let bytes =
            table(viot::SIGNATURE, &[&[count, 0, 48, 0, 0, 0, 0, 0, 0, 0, 0, 0], nodes].concat());
        let mut walk = Viot::parse(&bytes).unwrap().nodes();
        (walk.by_ref().count(), walk.unknown())
    };
    assert_eq!(of(2, &[9, 0, 4, 0, 8, 0, 4, 0]), (0, 2));
    assert_eq!(of(0, &[]), (0, 0));
}

#[test]
fn tables_whose_bytes_do_not_add_up_are_counted_one_by_one() {
    let mut bad = table(*b"FACS", &[]);
    bad[9] ^= 1;
    let damaged = |all: &[u8]| {
        let mut tables = Tables::new(all);
        (tables.by_ref().count(), tables.damaged())
    };
    assert_eq!(damaged(&viot_bytes()), (1, 0));
    assert_eq!(damaged(&[bad.clone(), viot_bytes(), bad].concat()), (1, 2));
}

#[test]
fn numbers_begin_with_their_lowest_byte() {
    let xsdt = table(*b"XSDT", &[8, 7, 6, 5, 4, 3, 2, 1]);
    let rsdt = table(*b"RSDT", &[4, 3, 2, 1]);
    let first = |bytes: &[u8]| Sdt::parse(bytes).unwrap().entries().unwrap().next();
    assert_eq!(first(&xsdt), Some(PhysAddr::new(0x0102_0304_0506_0708)));
    assert_eq!(first(&rsdt), Some(PhysAddr::new(0x0102_0304)));
    let mut body = words(&[1, 48, 0]);
    body.extend(node(0, 1, &[2, 0x0102_0304, 9], &[]));
    let bytes = table(iort::SIGNATURE, &body);
    let group = Iort::parse(&bytes).unwrap().nodes().next().unwrap();
    assert!(
        matches!(group.unwrap().body, IortBody::ItsGroup(its) if its.ids().eq([0x0102_0304, 9]))
    );
}

#[test]
fn root_ports_are_those_of_the_scopes_if_not_all() {
    for (flags, ports) in [(0, Ports::Named), (1, Ports::All), (0xfe, Ports::Named)] {
        let bytes = dmar(0, &[2, 0, 16, 0, flags, 0, 3, 0, 1, 8, 0, 0, 0, 0, 2, 0]);
        let found = Dmar::parse(&bytes).unwrap().structures().next().unwrap();
        let Ok(Structure::RootPorts(found)) = found else {
            panic!("{found:?}");
        };
        assert_eq!((found.ports, found.segment), (ports, PciSegment::new(3)));
        assert_eq!(found.scopes.count(), 1);
    }
}

/// The scopes of a unit.
fn with_scopes(scopes: &[u8], check: impl FnOnce(&[Scope<'_>], u32)) {
    let mut unit = vec![0, 0, 16 + scopes.len() as u8, 0, 0, 0, 0, 0];
    unit.extend(0xfed9_0000_u64.to_le_bytes());
    unit.extend(scopes);
    let bytes = dmar(0, &unit);
    let found = Dmar::parse(&bytes).unwrap().structures().next().unwrap();
    let Ok(Structure::Drhd(unit)) = found else {
        panic!("{found:?}");
    };
    let mut walk = unit.scopes;
    let scopes: Vec<_> = walk.by_ref().map(Result::unwrap).collect();
    check(&scopes, walk.unknown());
}

#[test]
fn a_scope_has_its_kind_and_number() {
    let scopes = [1, 2, 3, 4, 5].map(|kind| [kind, 6, 0, 0, 0x10 + kind, 0]);
    with_scopes(&scopes.concat(), |scopes, unknown| {
        let found: Vec<_> = scopes.iter().map(|one| (one.kind, one.enumeration)).collect();
        let expected = [
            (ScopeKind::Endpoint, 0x11),
            (ScopeKind::Bridge, 0x12),
            (ScopeKind::IoApic, 0x13),
            (ScopeKind::Timer, 0x14),
            (ScopeKind::Named, 0x15),
        ];
        assert_eq!((&found[..], unknown), (&expected[..], 0));
    });
    let scopes = [0, 6, 0xff].map(|kind| [kind, 6, 0, 0, 0, 0]);
    with_scopes(&scopes.concat(), |scopes, unknown| {
        assert_eq!((scopes.len(), unknown), (0, 3));
    });
}

#[test]
fn a_path_has_devices_up_to_31_and_functions_up_to_7() {
    let at = |device, function| {
        let mut found = None;
        with_scopes(&[1, 8, 0, 0, 0, 5, device, function], |scopes, _| {
            found = scopes[0].requester(|_| None);
        });
        found
    };
    for (device, function) in [(0, 0), (31, 0), (0, 7), (31, 7)] {
        let requester = RequesterId::of(5, device, function);
        assert_eq!(at(device, function), Some(requester));
    }
    for (device, function) in [(32, 0), (0, 8), (32, 8), (0xff, 0), (0, 0xff)] {
        assert_eq!(at(device, function), None, "{device}.{function}");
    }
}

#[test]
fn no_node_is_before_the_first() {
    // What would be an SMMU at 48; the first node, the root complex, is behind it.
    let smmu = node(4, 0, &[0x905_0000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]);
    let first = 48 + smmu.len() as u32;
    let root = node(2, 3, &[3, 0, 0, 2, 48, 0], &[[0, 0xffff, 0, 48, 0]]);
    let table_at = |first| {
        let mut body = words(&[1, first, 0]);
        body.extend(&smmu);
        body.extend(&root);
        table(iort::SIGNATURE, &body)
    };
    let bytes = table_at(first);
    let iort = Iort::parse(&bytes).unwrap();
    let found = lookup::iort_stream(&iort, PciSegment::new(2), RequesterId::new(1));
    let (offset, target) = (first as usize, 48);
    assert_eq!(found, Err(TableError::Reference { offset, target }));
    assert!(iort.node_at(0, first).is_ok());
    let (offset, value) = (40, 47);
    let header = Iort::parse(&table_at(47)).map(|_| ());
    assert_eq!(header, Err(TableError::Nonsense { offset, value }));
    // As VIOT has it.
    let viot = |first| {
        let mut bytes = viot_bytes();
        bytes[38] = first;
        reseal(&mut bytes);
        Viot::parse(&bytes).map(|viot| viot.nodes().count())
    };
    let (offset, value) = (38, 47);
    assert_eq!(viot(47), Err(TableError::Nonsense { offset, value }));
    assert!(viot(64).is_ok());
}

#[test]
fn an_endpoint_that_is_no_pci_function_is_found_by_its_registers() {
    let bytes = viot_bytes();
    let nodes = Viot::parse(&bytes).unwrap().nodes().map(Result::unwrap);
    let found: Vec<_> = nodes
        .filter_map(|(_, node)| match node {
            viot::ViotNode::MmioEndpoint(endpoint) => Some(endpoint),
            _ => None,
        })
        .collect();
    let expected = viot::MmioEndpoint {
        endpoint: StreamId::new(9),
        base: PhysAddr::new(0x0b00_0000),
        unit: 64,
    };
    assert_eq!(found, [expected]);
}

#[test]
fn nodes_of_the_first_revision_are_shorter() {
    let one = |bytes: Vec<u8>| {
        let mut body = words(&[1, 48, 0]);
        body.extend(bytes);
        table(iort::SIGNATURE, &body)
    };
    // The last field of the shortest node, and the part of later ones that it has.
    let root = one(node(2, 0, &[0, 0, 0, 9], &[]));
    let found = Iort::parse(&root).unwrap().nodes().next().unwrap();
    assert!(matches!(found.unwrap().body, IortBody::RootComplex(root)
        if root.segment == PciSegment::new(9) && root.address_lg2.is_none()));
    let counters = one(node(5, 0, &[0x907_0000, 0, 33, SMMU], &[]));
    let found = Iort::parse(&counters).unwrap().nodes().next().unwrap();
    assert!(matches!(found.unwrap().body, IortBody::CounterGroup(group)
        if group.page1 == PhysAddr::new(0x907_0000)));
    let counters = one(node(5, 1, &[0x907_0000, 0, 33, SMMU, 0x908_0000, 1], &[]));
    let found = Iort::parse(&counters).unwrap().nodes().next().unwrap();
    assert!(matches!(found.unwrap().body, IortBody::CounterGroup(group)
        if group.page1 == PhysAddr::new(0x1_0908_0000)));
    // A word less than later revisions have.
    for (kind, words) in [(2, 4), (4, 11), (5, 4)] {
        let bytes = one(node(kind, 1, &vec![0; words], &[]));
        let found = Iort::parse(&bytes).unwrap().nodes().next().unwrap();
        assert!(matches!(found, Err(TableError::Length { .. })), "{kind}");
    }
}

/// An SMMU of version 3: flags, its four interrupts; proximity 2, device mapping 3.
fn smmu_v3(revision: u8, flags: u32, [event, pri, gerror, sync]: [u32; 4]) -> SmmuV3 {
    let mut fields = vec![0x905_0000, 0, flags, 0, 0, 0, 0, event, pri, gerror, sync];
    if revision > 0 {
        fields.extend([2, 3]);
    }
    let mut body = words(&[1, 48, 0]);
    body.extend(node(4, revision, &fields, &[]));
    let bytes = table(iort::SIGNATURE, &body);
    let found = Iort::parse(&bytes).unwrap().nodes().next().unwrap();
    match found.unwrap().body {
        IortBody::SmmuV3(unit) => unit,
        other => panic!("{other:?}"),
    }
}

const WIRED: [u32; 4] = [106, 107, 109, 108];

#[test]
fn an_smmu_says_where_it_is_near_if_a_flag_says_that_it_says_so() {
    let proximity = |revision, flags| smmu_v3(revision, flags, WIRED).proximity;
    assert_eq!([1 << 3, !0].map(|flags| proximity(1, flags)), [Some(2); 2]);
    assert_eq!([0, !(1 << 3)].map(|flags| proximity(1, flags)), [None; 2]);
    assert_eq!(proximity(0, !0), None);
}

#[test]
fn an_smmu_sends_messages_where_an_interrupt_is_not_wired_or_a_later_table_says_so() {
    let mapping = |revision, flags, wired| smmu_v3(revision, flags, wired).device_mapping;
    let missing: Vec<[u32; 4]> = (0..4)
        .map(|at| {
            let mut wired = WIRED;
            wired[at] = 0;
            wired
        })
        .collect();
    for revision in 1..5 {
        // The flag means nothing yet.
        assert_eq!(mapping(revision, 1 << 4, WIRED), None);
        for wired in &missing {
            assert_eq!(mapping(revision, 0, *wired), Some(3), "{wired:?}");
        }
    }
    for revision in [5, 6] {
        assert_eq!(mapping(revision, 1 << 4, WIRED), Some(3));
        assert_eq!(mapping(revision, !(1 << 4), missing[0]), None);
    }
    assert_eq!(mapping(0, 1 << 4, missing[0]), None);
}

#[test]
fn ranges_that_overlap_by_more_than_an_end_are_taken_in_their_order() {
    let low = [0, 0xff, 0x1000, SMMU, 0];
    // One that begins inside the other, and one that reaches over its end.
    let (inside, over) = ([0x80, 0xf, 0x5000, SMMU, 0], [0xf0, 0xff, 0x7000, SMMU, 0]);
    assert_eq!(stream_of(&root_with(&[low, inside]), 0x80), Some(0x1080));
    assert_eq!(stream_of(&root_with(&[inside, low]), 0x80), Some(0x5000));
    assert_eq!(stream_of(&root_with(&[low, over]), 0xff), Some(0x10ff));
    // Of one identifier each: neither reaches too far.
    let (one, other) = ([7, 0, 0x21, SMMU, 0], [7, 0, 0x22, SMMU, 0]);
    assert_eq!(stream_of(&root_with(&[one, other]), 7), Some(0x21));
}

#[test]
fn what_leads_to_interrupts_goes_no_further() {
    // A group with a mapping, which it cannot have, back to the SMMU.
    let smmu_at = 48 + 24 + 20;
    let mut body = words(&[3, 48, 0]);
    body.extend(node(0, 1, &[1, 4], &[[0, 0xffff, 0, smmu_at, 0]]));
    body.extend(node(4, 0, &[0x905_0000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]));
    body.extend(node(2, 3, &[3, 0, 0, 2, 48, 0], &[[0, 0xffff, 0, ITS, 0]]));
    assert_eq!(stream_of(&table(iort::SIGNATURE, &body), 1), None);
}

#[test]
fn a_single_mapping_of_counters_is_for_their_own_messages() {
    let of = |mapping| {
        let mut body = words(&[2, 48, 0]);
        let smmu = node(4, 0, &[0x905_0000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]);
        body.extend(smmu);
        body.extend(node(5, 0, &[0x907_0000, 0, 33, 48], &[mapping]));
        let bytes = table(iort::SIGNATURE, &body);
        let iort = Iort::parse(&bytes).unwrap();
        let counters = iort.nodes().nth(1).unwrap().unwrap();
        let found = lookup::iort_end(&iort, &counters, 3).unwrap();
        found.map(|found| found.stream.get())
    };
    assert_eq!(of([0, 0xf, 0x30, 48, 0]), Some(0x33));
    assert_eq!(of([0, 0xf, 0x30, 48, 1]), None);
}

#[test]
fn registers_of_no_bytes_are_named_by_the_place_of_their_length() {
    let mut body = words(&[1, 48, 0]);
    body.extend(node(3, 0, &[0x906_0000, 0, 0, 0, 3, 2, 60, 0, 0, 0, 0], &[]));
    let bytes = table(iort::SIGNATURE, &body);
    let found = Iort::parse(&bytes).unwrap().nodes().next().unwrap();
    let (offset, value) = (48 + 24, 0);
    assert_eq!(found, Err(TableError::Nonsense { offset, value }));
    // And those of reserved memory, in the second of two descriptors.
    let pieces = [0x8000_0000, 0, 0x1000, 0, 0, 0x9000_0000, 0, 0, 0, 0];
    let mut body = words(&[1, 48, 0]);
    body.extend(node(6, 3, &[&[0, 2, 28][..], &pieces].concat(), &[]));
    let bytes = table(iort::SIGNATURE, &body);
    let found = Iort::parse(&bytes).unwrap().nodes().next().unwrap();
    let IortBody::ReservedMemory(memory) = found.unwrap().body else {
        panic!("no reserved memory");
    };
    let errors: Vec<_> = memory.ranges().filter_map(Result::err).collect();
    let (offset, value) = (48 + 28 + 20 + 8, 0);
    assert_eq!(errors, [TableError::Nonsense { offset, value }]);
}

#[test]
fn of_two_blocks_that_say_as_much_of_a_unit_the_first_counts() {
    let unit = |base: u32, entry: [u8; 4]| {
        let mut block = vec![0x10, 0, 28, 0, 2, 0, 0x40, 0];
        block.extend(u64::from(base).to_le_bytes());
        block.extend([0; 8]);
        block.extend(entry);
        block
    };
    let blocks = [unit(0xfeb8_0000, [2, 8, 0, 0]), unit(0xfec0_0000, [2, 9, 0, 0])];
    let bytes = table(ivrs::SIGNATURE, &[vec![0; 12], blocks.concat()].concat());
    let ivrs = Ivrs::parse(&bytes).unwrap();
    let units: Vec<_> = ivrs.units().map(|unit| unit.unwrap().base.get()).collect();
    assert_eq!(units, [0xfeb8_0000]);
}
