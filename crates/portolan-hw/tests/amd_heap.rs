//! No heap memory is taken or freed under a lock of the AMD-Vi driver, and none at all by functions
//! that pay debts and read the log.
#![allow(missing_docs)]

#[path = "../../portolan/tests/support/promised.rs"]
mod promised;
#[path = "../../portolan/tests/support/watched_heap.rs"]
mod watched_heap;

use promised::{all_memory, promised};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{Attach, Domain, Iommu};
use portolan::platform::{Mmio, OutOfTableMemory, TableMem, UnitParts};
use portolan::table::Access;
use portolan_chips::amd::{AmdRegisters, AmdSetup};
use portolan_chips::chips::RAVEN_RIDGE;
use portolan_chips::memory::{ModelMemory, Visibility};
use portolan_hw::amd::{AmdVi, Capability, Config};
use watched_heap::{Machine, aside, held, uses};

const PAGE: u64 = 4096;

/// The model's unit and its memory, whose own heap does not count.
#[derive(Clone)]
struct Hardware(Arc<AmdRegisters>);

impl TableMem<AtomicU64> for Hardware {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        assert_eq!(held(), 0, "table memory under a lock");
        TableMem::alloc(&**self.0.memory(), size)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        assert_eq!(held(), 0, "table memory under a lock");
        TableMem::free(&**self.0.memory(), table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[AtomicU64] {
        TableMem::table(&**self.0.memory(), table, size)
    }

    fn clean(&self, _: portolan::addr::PhysRange) {}

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: portolan::addr::PhysRange) {}
}

impl Mmio for Hardware {
    fn read32(&self, offset: usize) -> u32 {
        aside(|| self.0.read32(offset))
    }

    fn write32(&self, offset: usize, value: u32) {
        aside(|| self.0.write32(offset, value));
    }

    fn read64(&self, offset: usize) -> u64 {
        aside(|| self.0.read64(offset))
    }

    fn write64(&self, offset: usize, value: u64) {
        aside(|| self.0.write64(offset, value));
    }
}

#[test]
fn streams_move_and_debts_are_paid_with_no_heap_under_locks() {
    let memory = ModelMemory::new(PhysAddr::new(0x10_0000), 64, Visibility::AtOnce);
    let identification = RAVEN_RIDGE.identification.caching_absence();
    let setup = AmdSetup { identification, ..AmdSetup::default() };
    let hardware = Hardware(Arc::new(AmdRegisters::new(setup, Arc::new(memory))));
    let capability = Capability::parse(identification.capability).unwrap();
    let mut config = Config::default();
    config.streams_lg2 = 7;
    let (regs, mem) = (hardware.clone(), hardware.clone());
    let unit = AmdVi::enable(regs, mem, UnitParts::new(Machine), capability, config).unwrap();
    let domain = Arc::new(unit.domain().unwrap());
    uses("making it");
    for stream in 0..40 {
        unit.attach(StreamId::new(stream), &domain).unwrap();
    }
    uses("attaching");
    let range = IovaRange::from_len(Iova::new(0x4000_0000), 40 * PAGE).unwrap();
    for _ in 0..3 {
        let (mut owed, pa) = (Gather::new(), PhysAddr::new(0x1000));
        let bytes = 40 * PAGE;
        domain.map(range.start(), promised(pa, bytes), Access::READ, &mut owed).unwrap();
        domain.sync(&mut owed).unwrap();
        domain.unmap(range, &mut owed).unwrap();
        domain.sync(&mut owed).unwrap();
        assert_eq!(unit.next_fault(), Ok(None));
        assert_eq!(uses("mapping, unmapping, paying"), 0);
    }
    for stream in 0..40 {
        unit.block(StreamId::new(stream)).unwrap();
    }
    uses("blocking");
    drop(domain);
    unit.release(all_memory()).unwrap();
    uses("releasing");
    assert_eq!(hardware.0.violations(), []);
}
