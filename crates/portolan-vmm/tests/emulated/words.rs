//! Tables in memory of a monitor's own type, which is read by the word.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use portolan::addr::{InvalTag, Iova, PhysAddr};
use portolan_vmm::emulated::{Context, EmulatedUnit, FaultKind, Page, UnitOptions, walk};
use vm_memory::Permissions;

use crate::{ENDPOINT, VTD, range, reach};

/// Words that there are, and the number of those that were read.
#[derive(Default)]
struct Words {
    words: BTreeMap<u64, u64>,
    read: usize,
}

/// Page 5 leads to 0x8000, for reads.
fn words() -> Arc<Mutex<Words>> {
    let words = [(0x1000, 0x2003), (0x2000, 0x3003), (0x3000 + 5 * 8, 0x8001)];
    Arc::new(Mutex::new(Words { words: words.into(), read: 0 }))
}

fn read(words: &Mutex<Words>, at: PhysAddr) -> Option<u64> {
    let mut words = words.lock().unwrap();
    words.read += 1;
    words.words.get(&at.get()).copied()
}

#[test]
fn a_walk_reads_a_word_for_each_level() {
    let words = words();
    let root = PhysAddr::new(0x1000);
    let walk = |at: u64, access| walk(&VTD, root, Iova::new(at), access, &|at| read(&words, at));
    let page = Page {
        iova: range(0x5000, 0x5fff),
        target: PhysAddr::new(0x8000),
        access: Permissions::Read,
    };
    assert_eq!(walk(0x5010, Permissions::Read), Ok(page));
    assert_eq!(words.lock().unwrap().read, 3);
    let entry = PhysAddr::new(0x3028);
    let refused = walk(0x5010, Permissions::Write);
    assert_eq!(refused, Err(FaultKind::Permission { level: 0, entry }));
    let entry = PhysAddr::new(0x3030);
    assert_eq!(walk(0x6000, Permissions::Read), Err(FaultKind::Unreadable { level: 0, entry }));
}

#[test]
fn a_unit_reads_memory_of_any_type() {
    let words = words();
    let memory = Arc::clone(&words);
    let unit = EmulatedUnit::reading(move |at| read(&memory, at), UnitOptions::default());
    let endpoint = unit.add(ENDPOINT).unwrap();
    let tables = Context::tables(VTD, PhysAddr::new(0x1000), InvalTag::new(1)).unwrap();
    unit.attach(ENDPOINT, tables).unwrap();
    for _ in 0..2 {
        assert_eq!(reach(&endpoint, 0x5010, 8, Permissions::Read), Some(vec![(0x8010, 8)]));
        assert_eq!(words.lock().unwrap().read, 3, "the second time from the IOTLB");
    }
    assert_eq!(reach(&endpoint, 0x5010, 8, Permissions::Write), None);
    assert!(unit.next_fault().is_some());
}
