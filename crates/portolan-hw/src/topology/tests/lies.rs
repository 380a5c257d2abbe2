//! Tables that lie, and trees that do: the survey ends, and remarks on the entries that it does not
//! believe.

extern crate std;

use std::string::{String, ToString};
use std::vec::Vec;

use fastrand::Rng;
use portolan::addr::PciFunction;

use super::build::{at, bridge, dmar, drhd, endpoint, rmrr, scope, survey};
use crate::table_bytes::{dmar_bytes, iort_bytes, ivrs_bytes, reseal, rimt_bytes, viot_bytes};
use crate::topology::pci::tests::{Fake, Has, Is};
use crate::topology::pci::{PciOverrides, PciTree};
use crate::topology::{EnableError, Place, Remark, Survey, Topology};

fn remarks(found: &Survey) -> Vec<String> {
    found.remarks().iter().map(Remark::to_string).collect()
}

#[test]
fn what_is_not_there_is_named_and_changes_nothing() {
    let path = [2, 10, 0, 0, 0, 0, 3, 0, 4, 0].to_vec();
    let table = dmar(
        38,
        0,
        &[
            drhd(0, 0xfed9_0000, &[endpoint(0, 9, 0), bridge(0, 2, 0), path]),
            drhd(1, 0xfed9_1000, &[]),
        ],
    );
    let fake = Fake::default().with(at(0, 2, 0), Is::Endpoint, None, Has::Nothing).with(
        at(0, 3, 0),
        Is::Endpoint,
        None,
        Has::Nothing,
    );
    let found = survey(&table, &fake);
    let expected = [
        "unit 0 serves 0000:00:09.0, which is not there",
        "unit 0 serves 0000:00:02.0 and what is behind it, which is not there",
        "unit 0 serves a path of 2 steps from bus 0000:00, which is not there",
    ];
    assert_eq!(remarks(&found), expected);
    assert!(found.remarks().iter().all(|remark| !remark.is_wrong()));
    // Without a tree the functions that are there are not known.
    assert_eq!(remarks(&survey(&table, &Fake::default())), Vec::<String>::new());
}

#[test]
fn memory_of_a_device_behind_an_unknown_bridge_is_remarked_on() {
    let path = [1, 10, 0, 0, 0, 0, 3, 0, 4, 0].to_vec();
    let memory = rmrr(0xdf61_e000, 0xdf61_ffff, &[path]);
    let table = dmar(38, 0, &[drhd(1, 0xfed9_0000, &[]), memory]);
    let expected = "memory from 0xdf61e000 on is reserved for a device 2 steps from bus 0000:00, which is not known";
    assert_eq!(remarks(&survey(&table, &Fake::default())), [expected]);
    let bridge = Fake::default().with(at(0, 3, 0), Is::RootPort, Some((1, 1)), Has::Nothing);
    let found = survey(&table, &bridge);
    assert_eq!(remarks(&found), Vec::<String>::new());
    assert_eq!(found.units()[0].reserved.iter().count(), 2);
}

#[test]
fn a_function_that_an_undamaged_unit_names_is_served() {
    let short = std::vec![0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let named = drhd(0, 0xfed9_0000, &[endpoint(0, 3, 0)]);
    let table = dmar(38, 0, &[short, named, drhd(1, 0xfed9_1000, &[])]);
    let topology = Topology::from_acpi([&table[..]]).unwrap();
    let survey = survey(&table, &Fake::default());
    let found = |function| topology.find(&survey, &|_, _| None, function);
    assert_eq!(found(at(0, 3, 0)).unwrap().map(|(unit, _)| unit), Some(1));
    // The damaged one may have named it.
    assert!(found(at(0, 4, 0)).is_err());
    assert_eq!(survey.units().len(), 3);
    assert_eq!(survey.units()[0].place, Place::Damaged);
}

#[test]
fn absurd_places_and_places_that_units_share_are_wrong() {
    let table = dmar(
        38,
        0,
        &[
            drhd(0, 0, &[]),
            drhd(0, 0xfed9_0008, &[]),
            drhd(0, 0xfed9_1000, &[]),
            drhd(1, 0xfed9_1000, &[]),
            rmrr(0x7000_0000, 0x77ff_ffff_ffff, &[endpoint(0, 3, 0)]),
            rmrr(0xfee0_0000, 0xfee0_0fff, &[endpoint(0, 3, 0)]),
        ],
    );
    let found = survey(&table, &Fake::default());
    let said = remarks(&found);
    assert_eq!(said.len(), 5, "{said:?}");
    assert!(found.remarks().iter().all(Remark::is_wrong));
    assert_eq!(said[0], "unit 0 is said to be at 0x0, where no registers can be");
    assert_eq!(said[2], "unit 1 is said to be at 0xfed90008, where no registers can be");
    assert!(said.contains(&"units 2 and 3 are said to have the same registers".to_string()));
    let ignored = said.iter().filter(|text| text.contains("1 reserved ranges are ignored"));
    assert_eq!(ignored.count(), 2, "{said:?}");
}

#[test]
fn no_unit_is_enabled_over_another_one_in_the_same_place() {
    let at = |places: [u64; 3]| {
        let units = places.map(|base| drhd(0, base, &[]));
        let table = dmar(38, 0, &units);
        let topology = Topology::from_acpi([&table[..]]).unwrap();
        let survey = topology.survey(PciOverrides::KNOWN, |_, _| None);
        [0, 1, 2].map(|unit| survey.in_place_of(unit))
    };
    assert_eq!(at([0xfed9_0000, 0xfed9_1000, 0xfed9_2000]), [None; 3]);
    let shared = Some(EnableError::SameRegisters { one: 0, other: 2 });
    let found = at([0xfed9_1000, 0xfed9_0000, 0xfed9_1000]);
    assert_eq!(found, [shared, None, shared]);
    // Where no registers can be, none is enabled over another: who enables it hears of that.
    assert_eq!(at([0, 0, 0xfed9_1000]), [None; 3]);
}

#[test]
fn a_card_whose_bridge_another_unit_serves_is_remarked_on() {
    // The unit names the card behind a bridge, and not what the bridge makes of its accesses.
    let behind = [1, 10, 0, 0, 0, 0, 3, 0, 4, 0].to_vec();
    let table = dmar(
        38,
        0,
        &[drhd(0, 0xfed9_0000, &[behind]), drhd(1, 0xfed9_1000, &[scope(3, 1, 0, 0, 0)])],
    );
    let fake = Fake::default().with(at(0, 3, 0), Is::ToPci, Some((1, 1)), Has::Nothing).with(
        at(1, 4, 0),
        Is::Conventional,
        None,
        Has::Nothing,
    );
    let found = survey(&table, &fake);
    let expected = "accesses of 0000:01:04.0 may carry 0000:01:00.0, which its unit does not serve";
    assert_eq!(remarks(&found), [expected]);
    assert_eq!(found.served()[1].streams.len(), 1);
}

#[test]
fn bridges_in_circles_are_remarked_on() {
    let table = dmar(38, 0, &[drhd(1, 0xfed9_0000, &[])]);
    let fake = Fake::default().with(at(0, 1, 0), Is::RootPort, Some((1, 3)), Has::On).with(
        at(1, 0, 0),
        Is::ToPci,
        Some((1, 3)),
        Has::Nothing,
    );
    let found = survey(&table, &fake);
    let expected = "bridge 0000:01:00.0 claims buses 0x01 to 0x03, which makes no sense";
    assert_eq!(remarks(&found), [expected]);
    assert!(found.remarks()[0].is_wrong());
}

#[test]
fn surveys_of_mutated_tables_end() {
    let mut rng = Rng::with_seed(portolan_chips::fixture::seed());
    let tables = [dmar_bytes(), iort_bytes(), ivrs_bytes(), rimt_bytes(), viot_bytes()];
    // One bus of bridges and functions; the tree is read for each table.
    let read = |of: PciFunction, offset: u16| {
        let there = of.requester.bus() < 3 && of.requester.device() < 4 && of.segment.get() < 2;
        there.then_some(match offset {
            0 => 0x1234_8086,
            0xc => 1 << 16,
            0x18 => u32::from(of.requester.device()) << 8 | 3 << 16,
            _ => 0,
        })
    };
    for _ in 0..150 {
        let mut bytes = tables[rng.usize(..tables.len())].clone();
        for _ in 0..rng.usize(1..5) {
            let place = rng.usize(10..bytes.len());
            bytes[place] = rng.u8(..);
        }
        reseal(&mut bytes);
        let Ok(topology) = Topology::from_acpi([&bytes[..]]) else {
            continue;
        };
        let found = topology.survey(PciOverrides::KNOWN, read);
        assert_eq!(found.served().len(), found.tree().nodes().len());
        for served in found.served() {
            assert!(served.unit.is_none_or(|unit| unit < found.units().len()));
            assert_eq!(served.unit.is_none(), served.streams.is_empty());
        }
    }
    assert!(PciTree::default().nodes().is_empty());
}

/// Firmware of some boards has Sandy Bridge's DMA engine under another unit than its own.
#[test]
fn a_dma_engine_of_sandy_bridge_is_behind_its_own_unit_whatever_the_table_says() {
    let engine = at(0, 4, 0);
    let fake = |identity: u32| {
        Fake::default()
            .with(at(0, 0, 0), Is::Endpoint, None, Has::Nothing)
            .word(0xb0, 0xfbff_0001)
            .with(engine, Is::Endpoint, None, Has::Nothing)
            .word(0, identity)
    };
    let unit_of = |identity: u32, own: u64| {
        let units = [drhd(0, own, &[]), drhd(1, 0xfed9_0000, &[])];
        let survey = survey(&dmar(38, 0, &units), &fake(identity));
        let served = survey.served().iter().find(|served| served.function == engine);
        served.unwrap().unit
    };
    assert_eq!(unit_of(0x402f_8086, 0xfbff_a000), Some(0));
    assert_eq!(unit_of(0x402e_8086, 0xfbff_a000), Some(1));
    // Its own is not in the table.
    assert_eq!(unit_of(0x402f_8086, 0xfbff_b000), None);
}
