//! A root of four pages: taken, read and given back as one, among tables of a page each.

extern crate std;

use alloc::collections::BTreeMap;

use core::sync::atomic::AtomicU64;
use std::sync::Mutex;

use crate::addr::{InvalTag, Iova, IovaRange, PageSize, PhysAddr};
use crate::inval::{Gather, Quirks};
use crate::platform::{OutOfTableMemory, SlabTables, TableMem};
use crate::table::format::{
    DirtyTracking, Riscv, RiscvContiguity, RiscvLevels, RiscvMemoryTypes, RiscvSecondStage,
};
use crate::table::tests::kept::{CAPS, Willing};
use crate::table::{Access, PageTable};

const ROOT: PageSize = PageSize::of_lg2(14);
const FORMAT: RiscvSecondStage = Riscv {
    levels: RiscvLevels::Three,
    output_lg2: 56,
    memory_types: RiscvMemoryTypes::Absent,
    contiguity: RiscvContiguity::Absent,
    dirty: DirtyTracking::Off,
};

/// Pages that are read and freed with the size that they were taken with.
struct Sized {
    slab: SlabTables<AtomicU64>,
    sizes: Mutex<BTreeMap<PhysAddr, PageSize>>,
}

impl TableMem<AtomicU64> for &Sized {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        let at = self.slab.alloc(size)?;
        self.sizes.lock().unwrap().insert(at, size);
        Ok(at)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        assert_eq!(self.sizes.lock().unwrap().remove(&table), Some(size));
        self.slab.free(table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[AtomicU64] {
        assert_eq!(self.sizes.lock().unwrap().get(&table), Some(&size));
        self.slab.table(table, size)
    }

    fn clean(&self, _: crate::addr::PhysRange) {}

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: crate::addr::PhysRange) {}
}

#[test]
fn the_last_address_of_a_wide_root_is_mapped_and_all_pages_come_back() {
    let memory =
        Sized { slab: SlabTables::new(PhysAddr::new(1 << 31), ROOT, 16), sizes: Mutex::default() };
    let table = PageTable::new(FORMAT, &memory).unwrap();
    assert_eq!(memory.sizes.lock().unwrap().get(&table.root()), Some(&ROOT));
    assert_eq!(table.input_range().last(), Iova::new((1 << 41) - 1));
    let mut owed = Gather::new();
    // Entries 0x001, 0x201, 0x401 and 0x601 of the root are told apart.
    for quarter in 0..4u64 {
        let at = Iova::new(quarter << 39 | 1 << 30 | 0x5000);
        let pa = PhysAddr::new((quarter + 1) << 20);
        let mapped = table.map(at, pa, 0x1000, Access::READ_WRITE, &mut owed);
        mapped.unwrap();
    }
    let last = Iova::new((1 << 41) - (1 << 30));
    let block = table.map(last, PhysAddr::new(7 << 30), 1 << 30, Access::READ, &mut owed);
    block.unwrap();
    for quarter in 0..4u64 {
        let at = Iova::new(quarter << 39 | 1 << 30 | 0x5123);
        let pa = PhysAddr::new(((quarter + 1) << 20) + 0x123);
        assert_eq!(table.translate(at).map(|found| found.pa), Some(pa));
    }
    let end = table.translate(Iova::new((1 << 41) - 1)).unwrap();
    assert_eq!(end.pa, PhysAddr::new((8 << 30) - 1));
    assert_eq!(table.mappings(table.input_range()).count(), 5);
    assert!(table.unmap(IovaRange::page(last, PageSize::SIZE_1G), &mut owed).is_ok());
    let paid = table.sync(&Willing, InvalTag::new(1), &CAPS, &Quirks::default(), &mut owed);
    table.reclaim(paid.unwrap()).unwrap();
    assert!(
        table
            .unmap(IovaRange::page(Iova::new(1 << 30 | 0x5000), PageSize::SIZE_4K), &mut owed)
            .is_ok()
    );
    assert_eq!(table.prune(table.input_range(), &mut owed), Ok(2));
    let paid = table.sync(&Willing, InvalTag::new(1), &CAPS, &Quirks::default(), &mut owed);
    table.reclaim(paid.unwrap()).unwrap();
    assert_eq!(table.pages(), 7);
    drop(table);
    assert!(memory.sizes.lock().unwrap().is_empty());
}
