//! Empty tables: how many stay, which ones go, and when their addresses are given out again.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use super::buffers::{Pages, unowned};
use super::rig::{Rig, Setup, device_of, range};
use crate::addr::{Iova, IovaRange, PageSize, PhysAddr, PhysRange};
use crate::dma::{Constraints, Device, DmaRange, Policy, Reservation, ToDevice};
use crate::iommu::Domain;
use crate::table::Access;

const SLOT: u64 = 0x20_0000;
/// The root and the two tables that lead to the leaf tables of all slots.
const ABOVE: usize = 3;

fn setup(keep_tables: usize) -> Setup {
    Setup { keep_tables, table_pages: 600, ..Setup::default() }
}

fn pages(rig: &Rig) -> usize {
    rig.domain.upgrade().unwrap().table_pages()
}

fn slot(number: u64) -> IovaRange {
    IovaRange::page(Iova::new(number * SLOT), PageSize::SIZE_2M)
}

/// Maps a page of the slot and unmaps it, which leaves its leaf table empty.
fn come_and_go(rig: &Rig, number: u64) {
    let device = device_of(rig, 1, Constraints::trusted());
    let page = Pages::new(&Arc::default(), &[(0x1000, 0x1000)]);
    let at = Iova::new(number * SLOT + 0x3000);
    device.map_at(page, ToDevice, at).ok().unwrap().unmap().ok().unwrap();
}

#[test]
fn no_table_goes_while_there_are_no_more_than_may_stay() {
    let rig = Rig::new(&setup(40 + ABOVE));
    (1..=40).for_each(|number| come_and_go(&rig, number));
    rig.space.tick().unwrap();
    assert_eq!(pages(&rig), 40 + ABOVE);
}

/// Their addresses are in the caches of CPUs, which are more than may stay.
#[test]
fn a_tick_leaves_no_more_tables_than_may_stay() {
    let rig = Rig::new(&setup(8));
    (1..=40).for_each(|number| come_and_go(&rig, number));
    let before = rig.syncs();
    rig.space.tick().unwrap();
    assert_eq!((pages(&rig), rig.memory.live()), (8, 8));
    assert_eq!(rig.syncs(), before + 1, "tables side by side have one invalidation");
    rig.space.tick().unwrap();
    assert_eq!(rig.syncs(), before + 1);
}

#[test]
fn tables_above_empty_ones_go_as_well() {
    let rig = Rig::new(&setup(0));
    // In the first and the third GiB.
    [1, 1024 + 5].into_iter().for_each(|number| come_and_go(&rig, number));
    assert_eq!(pages(&rig), ABOVE + 1 + 2);
    rig.space.tick().unwrap();
    // The table of the first GiB, and the one above it, span addresses below the window.
    assert_eq!(pages(&rig), ABOVE);
}

#[test]
fn a_map_that_lacks_table_pages_takes_empty_tables() {
    let rig = Rig::new(&Setup { table_pages: ABOVE as u32 + 1, ..Setup::default() });
    (1..5).for_each(|number| come_and_go(&rig, number));
    assert_eq!(pages(&rig), ABOVE + 1);
}

/// Another caller has addresses there, and is about to map.
#[test]
fn a_table_of_which_an_address_is_out_stays() {
    let rig = Rig::new(&setup(0));
    (1..4).for_each(|number| come_and_go(&rig, number));
    let limits = Constraints::trusted();
    let page = range(2 * SLOT + 0x5000, 2 * SLOT + 0x5fff);
    let mut reserved = Reservation::at(rig.space.clone(), page, &limits).unwrap();
    rig.space.tick().unwrap();
    assert_eq!(pages(&rig), ABOVE + 1);
    let domain = rig.domain.upgrade().unwrap();
    assert_eq!(domain.next_empty_table(Iova::new(0)), Some(slot(2)));
    let memory = PhysRange::page(PhysAddr::new(0x5000), PageSize::SIZE_4K);
    reserved.link(unowned(memory), ToDevice).unwrap();
    assert_eq!(pages(&rig), ABOVE + 1);
    reserved.unlink().unwrap();
    rig.space.tick().unwrap();
    assert!(pages(&rig) <= ABOVE);
}

#[test]
fn a_table_with_a_page_that_waits_for_its_invalidation_stays() {
    let rig = Rig::new(&Setup { policy: Policy::Lazy, ..setup(0) });
    come_and_go(&rig, 2);
    rig.space.tick().unwrap();
    assert_eq!(pages(&rig), ABOVE + 1, "a device may reach memory through it");
    rig.space.flush().unwrap();
    rig.space.tick().unwrap();
    assert!(pages(&rig) <= ABOVE);
}

/// A walk cache may lead to the table that has left, where a device would not find what is new.
#[test]
fn addresses_of_a_table_that_leaves_are_given_out_once_walk_caches_have_forgotten_it() {
    let rig = Rig::new(&setup(0));
    (2..4).for_each(|number| come_and_go(&rig, number));
    rig.space.trim_addresses();
    let device: Arc<Device<_>> = Arc::new(device_of(&rig, 1, Constraints::trusted()));
    let (its, given) = (device.clone(), Arc::new(AtomicU64::new(0)));
    let noted = given.clone();
    rig.hardware.during_sync.set(move || {
        for number in 2..4 {
            let page = Pages::new(&Arc::default(), &[(0x1000, 0x1000)]);
            if let Ok(mapping) = its.map_at(page, ToDevice, slot(number).start()) {
                noted.fetch_add(1, Ordering::Relaxed);
                core::mem::forget(mapping);
            }
        }
    });
    rig.space.tick().unwrap();
    assert_eq!(given.load(Ordering::Relaxed), 0, "given out before the invalidation");
    let page = Pages::new(&Arc::default(), &[(0x1000, 0x1000)]);
    let mapping = device.map_at(page, ToDevice, slot(2).start()).ok();
    mapping.expect("they came back").unmap().ok().unwrap();
}

#[test]
fn tables_and_addresses_come_back_when_the_hardware_has_recovered() {
    let rig = Rig::new(&setup(0));
    (2..4).for_each(|number| come_and_go(&rig, number));
    let before = pages(&rig);
    rig.set_broken(1);
    assert!(rig.space.tick().is_err());
    assert_eq!(pages(&rig), before, "freed without an invalidation");
    let limits = Constraints::trusted();
    let page = range(2 * SLOT, 2 * SLOT + 0xfff);
    // The space refuses everything now; its allocator has not got them back either.
    assert!(Reservation::at(rig.space.clone(), page, &limits).is_err());
    assert!(rig.space.iova.take_free(slot(2)).is_err(), "given out although not quiet");
    rig.set_broken(0);
    rig.space.recover().unwrap();
    assert!(pages(&rig) < before);
    let back = Reservation::at(rig.space.clone(), page, &limits);
    back.expect("the addresses came back").unlink().unwrap();
    rig.space.tick().unwrap();
    assert!(pages(&rig) <= ABOVE);
}

/// A second tick looks as well if there are more tables than one looks at.
#[test]
fn ticks_look_at_many_tables_in_turn() {
    let many = 1500;
    let rig = Rig::new(&Setup { keep_tables: 8, table_pages: 2000, ..Setup::default() });
    (1..=many).for_each(|number| come_and_go(&rig, number));
    let before = pages(&rig);
    rig.space.tick().unwrap();
    assert_eq!(pages(&rig), before);
    rig.space.tick().unwrap();
    assert_eq!(pages(&rig), 8);
}

/// Number of table pages that the addresses of `live` need.
fn needed(live: &[DmaRange]) -> usize {
    let at = |live: &DmaRange, lg2: u32| {
        let (first, last) = (live.addresses().start().get(), live.addresses().last().get());
        (first >> lg2)..=(last >> lg2)
    };
    let spanned = |lg2| live.iter().flat_map(|one| at(one, lg2)).collect::<BTreeSet<_>>().len();
    // The root is there in any case.
    1 + [21, 30, 39].map(spanned).iter().sum::<usize>()
}

#[test]
fn after_each_tick_there_are_few_more_tables_than_hold_entries() {
    const KEEP: usize = 12;
    let seed = 0xb0_17d5;
    let mut random = super::sequences::Random::new(seed);
    let rig = Rig::new(&Setup { table_pages: 2000, ..setup(KEEP) });
    let mut live: Vec<DmaRange> = Vec::new();
    let mut most = 0;
    for step in 0..6000 {
        // Seasons: many live, then few.
        let wanted = if step / 1000 % 2 == 0 { 400 } else { 5 };
        if live.len() < wanted {
            let bytes = 0x1000 << random.below(9);
            let memory = PhysRange::from_len(PhysAddr::new(0x4000_1000), bytes).unwrap();
            let limits = Constraints::trusted();
            let mapped = rig.space.map_range(unowned(memory), Access::READ, &limits);
            live.push(mapped.unwrap().0);
        } else {
            let one = live.swap_remove(random.below(live.len()));
            rig.space.unmap_range(one).unwrap();
        }
        if step % 50 == 49 {
            rig.space.tick().unwrap();
            let (there, needed) = (pages(&rig), needed(&live));
            // Those at the ends of the window: a table of each level at either end.
            let bound = needed + KEEP + 2 * 3;
            assert!(there <= bound, "seed {seed:#x}, step {step}: {there}, {needed} needed");
            most = most.max(there);
        }
    }
    assert!(most > 2 * KEEP, "{most} tables: no load for this test");
}
