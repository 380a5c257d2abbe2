//! Streams that move from one domain to another while their devices access memory.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use std::sync::Mutex;

use portolan::addr::PhysAddr;
use portolan::inval::Gather;
use portolan::iommu::{Attach as _, Domain as _};
use portolan::table::Access;
use portolan_chips::amd::AmdMachine;
use portolan_chips::memory::PairStores;

use super::machine::{Iommu, real};
use super::{STREAM, config};
use crate::amd::AmdDomain;
use crate::chassis::tests::suite::{BASE, Driven as _, PAGE, machine_with_pairs};
use crate::promise::tests::promised;

const FIRST: u64 = 0x1_0000;
const SECOND: u64 = 0x2_0000;
const THIRD: u64 = 0x3_0000;

/// A domain in which the page at [`BASE`] leads to `pa`.
fn leading_to(unit: &Iommu, pa: u64) -> Arc<AmdDomain<AmdMachine>> {
    let (domain, mut owed) = (Arc::new(unit.domain().unwrap()), Gather::new());
    let page = promised(PhysAddr::new(pa), PAGE);
    domain.map(BASE, page, Access::READ_WRITE, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    domain
}

/// Addresses that a device reaches behind each write of a register while its stream moves; none where it is refused.
fn reached_meanwhile(pairs: PairStores) -> Vec<Option<u64>> {
    let machine: AmdMachine = machine_with_pairs(0x10_0000, real(), pairs);
    let unit = machine.enable(config()).unwrap();
    let [first, second] = [FIRST, SECOND].map(|pa| leading_to(&unit, pa));
    unit.attach(STREAM, &first).unwrap();
    assert_eq!(machine.read(STREAM, BASE.get()), Some(FIRST));
    let (device, all) = (machine.clone(), Arc::new(Mutex::new(Vec::new())));
    let noted = all.clone();
    machine.judge(Some(Box::new(move || {
        noted.lock().unwrap().push(device.read(STREAM, BASE.get()));
    })));
    unit.attach(STREAM, &second).unwrap();
    machine.judge(None);
    assert_eq!(machine.read(STREAM, BASE.get()), Some(SECOND));
    // The next domain gets the identifier of the first one, of which nothing is cached.
    drop(first);
    unit.attach(STREAM, &leading_to(&unit, THIRD)).unwrap();
    assert_eq!(machine.read(STREAM, BASE.get()), Some(THIRD));
    machine.expect_obedience();
    all.lock().unwrap().clone()
}

#[test]
fn a_stream_that_moves_is_refused_nothing_where_memory_has_stores_of_pairs() {
    let reached = reached_meanwhile(PairStores::AtOnce);
    assert!(!reached.is_empty());
    assert!(reached.iter().all(|at| [Some(FIRST), Some(SECOND)].contains(at)), "{reached:x?}");
    // Through a closed entry otherwise.
    assert!(reached_meanwhile(PairStores::Absent).contains(&None));
}
