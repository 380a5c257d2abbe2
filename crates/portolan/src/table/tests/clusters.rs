//! Debts of clusters, pages of 64 KiB in leaf tables.

use alloc::sync::Arc;
use core::sync::atomic::AtomicU64;

use crate::addr::{Iova, IovaRange, PageSize, PhysAddr};
use crate::inval::Gather;
use crate::platform::SlabTables;
use crate::table::format::{
    DirtyTracking, Riscv, RiscvContiguity, RiscvFirstStage, RiscvLevels, RiscvMemoryTypes,
};
use crate::table::{Access, PageTable};

#[test]
fn a_leaf_table_full_of_clusters_owes_their_size() {
    let format: RiscvFirstStage = Riscv {
        levels: RiscvLevels::Three,
        output_lg2: 56,
        memory_types: RiscvMemoryTypes::Absent,
        contiguity: RiscvContiguity::Svnapot,
        dirty: DirtyTracking::Off,
    };
    let base = PhysAddr::new(1 << 31);
    let memory = Arc::new(SlabTables::<AtomicU64>::new(base, PageSize::SIZE_4K, 64));
    let table = PageTable::new(format, memory).unwrap();
    let (at, bytes) = (Iova::new(1 << 21), 1 << 21);
    let mut owed = Gather::new();
    // Not aligned to 2 MiB: 64 KiB is the largest page.
    let pa = PhysAddr::new(0x1_0001_0000);
    table.map(at, pa, bytes, Access::READ, &mut owed).unwrap();
    table.unmap(IovaRange::from_len(at, bytes).unwrap(), &mut owed).unwrap();
    assert_eq!(owed.unmapped()[0].largest, PageSize::SIZE_64K);
}
