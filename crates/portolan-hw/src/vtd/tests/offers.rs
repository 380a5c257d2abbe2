//! Features that a unit says that it has, and the driver's use of them.

use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::iommu::IommuError;
use portolan::platform::Mmio as _;
use portolan::table::format::{VtdFirstLevels, VtdLevels};

use super::kit::{CAP, ECAP, Iommu, SCALABLE, new_machine};
use super::{attached, config, legacy};
use crate::chassis::tests::suite::Driven;
use crate::vtd::{Features, Mode, VtdFeature};
use portolan_chips::machine::Event;
use portolan_spec::vtd::reg;

const UNSUPPORTED: Option<IommuError> = Some(IommuError::Unsupported);
/// First-stage pages of 1 GiB, and five levels of them.
const FIRST_1G: u64 = 1 << 56;
const FIRST_FIVE: u64 = 1 << 60;
/// Page requests can be drained.
const DRAIN: u64 = 1 << 42;

fn has(ecap: u64) -> VtdFeature {
    Features::check(CAP | FIRST_1G, ecap).unwrap().has
}

#[test]
fn what_hangs_on_something_that_a_unit_lacks_is_not_there() {
    let all = SCALABLE | DRAIN;
    let of_scalable = VtdFeature::SCALABLE
        | VtdFeature::SCALABLE_SECOND
        | VtdFeature::FIRST
        | VtdFeature::PASID
        | VtdFeature::NESTED;
    let requests = VtdFeature::PAGE_REQUESTS | VtdFeature::PAGE_REQUEST_DRAIN;
    let full = has(all);
    assert!(full.contains(of_scalable | requests | VtdFeature::DEVICE_TLB | VtdFeature::QUEUE));
    let lost = |bit: u64| full - has(all & !bit);
    // The queue, scalable mode, device TLBs, first and second stages.
    assert_eq!(lost(1 << 1), VtdFeature::QUEUE | of_scalable | requests | VtdFeature::DEVICE_TLB);
    assert_eq!(lost(1 << 43), of_scalable | requests);
    assert_eq!(lost(1 << 2), VtdFeature::DEVICE_TLB | requests);
    assert_eq!(lost(1 << 47), VtdFeature::FIRST | VtdFeature::NESTED);
    assert_eq!(lost(1 << 46), VtdFeature::SCALABLE_SECOND | VtdFeature::NESTED);
    assert_eq!(lost(1 << 26), VtdFeature::NESTED);
    assert_eq!(lost(1 << 29), VtdFeature::PAGE_REQUESTS);
}

#[test]
fn levels_of_the_first_stage_are_there_if_the_unit_says_so() {
    let five = |cap, ecap| {
        let features = Features::check(CAP | cap, ecap).unwrap();
        [VtdFirstLevels::Four, VtdFirstLevels::Five].map(|levels| features.has_first(levels))
    };
    assert_eq!(five(0, ECAP), [false, false]);
    assert_eq!(five(FIRST_FIVE, ECAP), [false, false]);
    assert_eq!(five(0, SCALABLE), [true, false]);
    assert_eq!(five(FIRST_FIVE, SCALABLE), [true, true]);
}

#[test]
fn the_smallest_tables_that_cover_all_addresses_are_the_best() {
    let [three, four, five] = [VtdLevels::Three, VtdLevels::Four, VtdLevels::Five];
    let best = |sagaw: u64, width: u64| {
        let cap = CAP & !(0x1f << 8 | 0x3f << 16) | sagaw << 8 | (width - 1) << 16;
        Features::check(cap, ECAP).unwrap().best_second_levels()
    };
    // All three depths, of 39, 48 and 57 bits.
    let of_all = [(30, three), (39, three), (40, four), (48, four), (49, five), (57, five)];
    for (width, levels) in of_all {
        assert_eq!(best(0b1110, width), Some(levels), "{width}");
    }
    // The largest that there is.
    assert_eq!(best(0b0010, 48), Some(three));
    assert_eq!(best(0b1000, 39), Some(five));
}

#[test]
fn registers_of_faults_and_of_invalidation_lie_apart_behind_the_others() {
    let read = |faults: u64, count: u64, iotlb: u64| {
        let cap = CAP & !(0x3ff << 24 | 0xff << 40) | (faults / 16) << 24 | (count - 1) << 40;
        let ecap = ECAP & !(0x3ff << 8) | (iotlb / 16) << 8;
        Features::check(cap, ecap).is_ok()
    };
    // The first offset behind the fixed registers.
    assert!(read(0xf0, 1, 0x100));
    assert!(!read(0xe0, 1, 0x100));
    assert!(read(0x100, 1, 0xf0));
    // Four records of 16 bytes, then at once the others; and the other way round.
    assert!(read(0x220, 4, 0x260));
    assert!(!read(0x220, 4, 0x250));
    assert!(!read(0x220, 5, 0x260));
    assert!(read(0x220, 4, 0x210));
    assert!(!read(0x220, 4, 0x220));
    // PASIDs have 20 bits at most.
    let pasids = |field: u64| {
        let ecap = SCALABLE & !(0x1f << 35) | field << 35;
        Features::check(CAP, ecap).map(|features| features.pasid_bits).ok()
    };
    assert_eq!([0, 19, 20].map(pasids), [Some(1), Some(20), None]);
}

#[test]
fn protected_memory_that_firmware_left_on_is_turned_off_where_there_is_such_a_thing() {
    let pmen = |cap: u64, found: u64| {
        let machine = new_machine(CAP & !(3 << 5) | cap, ECAP);
        machine.write32(reg::PMEN, found as u32);
        // A bit that is on its way in is not yet there.
        if found & 1 == 0 {
            machine.lie(reg::PMEN, 1, 0);
        }
        machine.take();
        let _unit = machine.enable(legacy()).unwrap();
        let log = machine.take();
        let writes: Vec<u64> = log
            .into_iter()
            .filter_map(|event| match event {
                Event::Write(reg::PMEN, value) => Some(value),
                _ => None,
            })
            .collect();
        writes
    };
    let on = 1 << 31 | 1;
    // The low region, the high region, or neither.
    assert_eq!(pmen(1 << 5, on), [1]);
    assert_eq!(pmen(1 << 6, on), [1]);
    assert_eq!(pmen(0, on), [0_u64; 0]);
    assert_eq!(pmen(1 << 5, 0), [0_u64; 0]);
    // On its way in.
    assert_eq!(pmen(1 << 5, 1 << 31), [0]);
}

#[test]
fn domains_that_a_unit_has_no_tables_for_are_refused() {
    let legacy_unit = |cap: u64| -> Iommu { new_machine(cap, ECAP).enable(legacy()).unwrap() };
    let unit = legacy_unit(CAP & !(0x1f << 8) | 0b0100 << 8);
    let with = |levels| {
        let (caps, quirks) = (unit.second_capabilities(), Default::default());
        unit.second_stage_as(levels, caps, quirks).err()
    };
    assert_eq!(with(VtdLevels::Four), None);
    assert_eq!([VtdLevels::Three, VtdLevels::Five].map(with), [UNSUPPORTED; 2]);
    // In scalable mode.
    let scalable = |cap: u64, ecap: u64| -> Iommu {
        new_machine(cap, ecap).enable(config(Mode::Scalable)).unwrap()
    };
    let four = VtdFirstLevels::Four;
    let unit = scalable(CAP | FIRST_1G, SCALABLE);
    assert!(unit.first_stage(four).is_ok());
    assert_eq!(unit.first_stage(VtdFirstLevels::Five).err(), UNSUPPORTED);
    assert!(scalable(CAP, SCALABLE).first_stage(four).is_ok());
    let without_first = scalable(CAP | FIRST_1G, SCALABLE & !(1 << 47));
    assert_eq!(without_first.first_stage(four).err(), UNSUPPORTED);
    let without_second = scalable(CAP | FIRST_1G, SCALABLE & !(1 << 46));
    assert_eq!(without_second.second_stage().err(), UNSUPPORTED);
    // One over the other, of one unit, where it can.
    let parent = Arc::new(unit.second_stage().unwrap());
    assert!(unit.nested(four, &parent).is_ok());
    let other = scalable(CAP | FIRST_1G, SCALABLE);
    assert_eq!(other.nested(four, &parent).err(), UNSUPPORTED);
    let flat = scalable(CAP | FIRST_1G, SCALABLE & !(1 << 26));
    let parent = Arc::new(flat.second_stage().unwrap());
    assert_eq!(flat.nested(four, &parent).err(), UNSUPPORTED);
}

#[test]
fn a_queue_of_page_requests_has_128_pages_at_most_and_is_set_up_once() {
    let machine = new_machine(CAP, SCALABLE);
    let (unit, _domain) = attached(&machine, config(Mode::Scalable));
    assert_eq!(unit.read_page_requests(8).err(), UNSUPPORTED);
    // As many pages in a row as this memory does not have.
    assert!(matches!(unit.read_page_requests(7), Err(IommuError::Memory(_))));
    let live = machine.live();
    unit.read_page_requests(0).unwrap();
    assert_eq!(machine.live(), live + 1);
    assert_eq!(machine.reg(reg::PQA) & 0xfff, 0);
    // Bits that are pending from before are cleared: a request, and an overflow.
    assert!(machine.take().contains(&Event::Write(reg::PRS, 3)));
    assert_eq!(unit.read_page_requests(0).err(), UNSUPPORTED);
    assert_eq!(machine.live(), live + 1);
    let without = new_machine(CAP, SCALABLE & !(1 << 29));
    let unit = without.enable(config(Mode::Scalable)).unwrap();
    assert_eq!(unit.read_page_requests(0).err(), UNSUPPORTED);
}
