//! No heap memory is taken or freed under a lock of the AMD-Vi driver, and none at all by what pays
//! debts and reads the log.
#![allow(missing_docs)]

#[path = "../../portolan/tests/support/watched_heap.rs"]
mod watched_heap;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{Attach, Domain, Iommu};
use portolan::platform::{Mmio, OutOfTableMemory, SlabTables, TableMem};
use portolan::table::Access;
use portolan_hw::amd::spec::command::{OPCODE, opcode, wait};
use portolan_hw::amd::spec::reg::{self, control, status};
use portolan_hw::amd::{AmdVi, Capability, Config};
use watched_heap::{Machine, held, uses};

const PAGE: u64 = 4096;

/// A unit that carries commands out as they come.
#[derive(Clone)]
struct Hardware {
    memory: Arc<SlabTables<AtomicU64>>,
    regs: Arc<Mutex<Vec<u64>>>,
}

impl TableMem<AtomicU64> for Hardware {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        assert_eq!(held(), 0, "table memory under a lock");
        self.memory.alloc(size)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        assert_eq!(held(), 0, "table memory under a lock");
        self.memory.free(table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[AtomicU64] {
        self.memory.table(table, size)
    }
}

impl Hardware {
    fn word(&self, at: u64) -> &AtomicU64 {
        let page = PhysAddr::new(at & !(PAGE - 1));
        &self.memory.table(page, PageSize::SIZE_4K)[(at % PAGE) as usize / 8]
    }
}

impl Mmio for Hardware {
    fn read32(&self, _: usize) -> u32 {
        0
    }

    fn write32(&self, _: usize, _: u32) {}

    fn read64(&self, offset: usize) -> u64 {
        self.regs.lock().unwrap()[offset / 8]
    }

    fn write64(&self, offset: usize, value: u64) {
        let mut regs = self.regs.lock().unwrap();
        regs[offset / 8] = value;
        let runs = status::COMMANDS_RUN | status::EVENT_RUNS;
        regs[reg::STATUS / 8] = match regs[reg::CONTROL / 8] & control::COMMANDS {
            0 => 0,
            _ => runs,
        };
        while regs[reg::STATUS / 8] != 0
            && regs[reg::COMMAND_HEAD / 8] != regs[reg::COMMAND_TAIL / 8]
        {
            let head = regs[reg::COMMAND_HEAD / 8];
            let at = (regs[reg::COMMAND_BASE / 8] & 0xf_ffff_f000) + head;
            let words = [self.word(at), self.word(at + 8)].map(|word| word.load(Ordering::Acquire));
            let waits = OPCODE.of(words[0]) == opcode::COMPLETION_WAIT;
            if waits && wait::STORE.of(words[0]) == 1 {
                self.word(words[0] & wait::ADDRESS)
                    .store(words[1], Ordering::Release);
            }
            regs[reg::COMMAND_HEAD / 8] = (head + 16) % (256 * 16);
        }
    }
}

#[test]
fn streams_move_and_debts_are_paid_with_no_heap_under_locks() {
    let memory = SlabTables::new(PhysAddr::new(0x10_0000), PageSize::SIZE_4K, 64);
    let regs = vec![0; 0x2030 / 8];
    let hardware = Hardware {
        memory: Arc::new(memory),
        regs: Arc::new(Mutex::new(regs)),
    };
    hardware.regs.lock().unwrap()[reg::FEATURES / 8] = 1 << 6;
    let capability = Capability::parse([0x1f03_400f, 1, 0, 0, 0x0018_2800]).unwrap();
    let config = Config {
        streams_lg2: 7,
        ..Config::default()
    };
    let (regs, mem) = (hardware.clone(), hardware);
    let unit = AmdVi::enable(regs, mem, Machine, capability, config).unwrap();
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
        domain
            .map(range.start(), pa, bytes, Access::READ, &mut owed)
            .unwrap();
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
    unit.release().unwrap();
    uses("releasing");
}
