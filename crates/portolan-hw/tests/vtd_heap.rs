//! No heap memory is taken or freed while a lock of a VT-d unit is held; nor at all by paying a
//! debt, and by functions that the handlers of interrupts call.
#![allow(missing_docs)]

#[path = "../../portolan/tests/support/promised.rs"]
mod promised;
#[path = "../../portolan/tests/support/watched_heap.rs"]
mod watched_heap;

use promised::{all_memory, promised};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{Attach, Domain, Iommu as _};
use portolan::platform::{Mmio, OutOfTableMemory, SlabTables, TableMem, UnitParts, Word};
use portolan::table::Access;
use portolan_hw::vtd::{Config, DeviceTlb, InterruptEntries, Mode, Vtd};
use portolan_spec::vtd::reg::{self, ccmd, command, fsts, iotlb};
use watched_heap::{Machine, uses};

/// As QEMU's, with device TLBs.
const CAP: u64 = 0x00d2_008c_222f_0616;
const ECAP: u64 = 0x00f0_0f4e;
const BYTES: u64 = 0x1000;
const BASE: u64 = 0x4000_0000;

/// Registers that do as they are told.
#[derive(Clone)]
struct Registers {
    values: Arc<Mutex<[u32; 0x100]>>,
    memory: Memory,
}

#[derive(Clone)]
struct Memory(Arc<SlabTables<AtomicU64>>);

impl TableMem<AtomicU64> for Memory {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        self.0.alloc(size)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        self.0.free(table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[AtomicU64] {
        self.0.table(table, size)
    }

    fn clean(&self, _: portolan::addr::PhysRange) {}

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: portolan::addr::PhysRange) {}
}

impl Memory {
    fn word(&self, at: u64) -> Option<&AtomicU64> {
        let page = PhysAddr::new(at & !0xfff);
        let table = self.0.table(page, PageSize::SIZE_4K);
        table.get((at & 0xfff) as usize / 8)
    }
}

impl Registers {
    fn new(ecap: u64) -> Self {
        let mut values = [0; 0x100];
        for (at, value) in [(reg::VER, 0x40), (reg::CAP, CAP), (reg::ECAP, ecap)] {
            values[at / 4] = value as u32;
            values[at / 4 + 1] = (value >> 32) as u32;
        }
        let base = PhysAddr::new(0x10_0000_0000);
        let slab = SlabTables::new(base, PageSize::SIZE_4K, 1024);
        Self { values: Arc::new(Mutex::new(values)), memory: Memory(Arc::new(slab)) }
    }

    fn set(&self, at: usize, value: u32) {
        self.values.lock().unwrap()[at / 4] = value;
    }

    /// Executes all waits up to `tail`.
    fn run(&self, tail: u32) {
        let queue = u64::from(self.read32(reg::IQA)) & !0xfff | 0x10_0000_0000;
        let mut head = self.read32(reg::IQH);
        while head != tail {
            let words = [0, 8].map(|n| {
                let word = self.memory.word(queue + u64::from(head) + n);
                word.map_or(0, Word::load)
            });
            if words[0] & 0xf == 5 {
                if let Some(status) = self.memory.word(words[1]) {
                    status.store(words[0] >> 32, Ordering::Release);
                }
            }
            head = (head + 16) % 4096;
        }
        self.set(reg::IQH, tail);
    }
}

impl Mmio for Registers {
    fn read32(&self, offset: usize) -> u32 {
        self.values.lock().unwrap()[offset / 4]
    }

    fn write32(&self, offset: usize, value: u32) {
        match offset {
            reg::GCMD => {
                let once = command::SRTP | command::SIRTP;
                let kept = self.read32(reg::GSTS) & once;
                let value = value & command::STICKY | value & once | kept;
                self.set(reg::GSTS, value);
            }
            reg::FSTS => self.set(offset, self.read32(offset) & !value),
            reg::IQT => self.run(value),
            0x22c => {
                self.set(offset, 0);
                self.set(reg::FSTS, self.read32(reg::FSTS) & !fsts::PPF);
            }
            0x2c if value >> 31 == 1 => {
                let done = (ccmd::CAIG.at(1) >> 32) as u32;
                self.set(offset, value & !(1 << 31) | done);
            }
            0xfc if value >> 31 == 1 => {
                let done = (iotlb::IAIG.at(1) >> 32) as u32;
                self.set(offset, value & !(1 << 31) | done);
            }
            _ => self.set(offset, value),
        }
    }
}

fn map(domain: &impl Domain) -> Gather {
    let mut owed = Gather::new();
    let access = Access::READ | Access::WRITE;
    let (at, pa) = (Iova::new(BASE), PhysAddr::new(0x1000));
    domain.map(at, promised(pa, BYTES), access, &mut owed).unwrap();
    owed
}

fn unmap(domain: &impl Domain) -> Gather {
    let mut owed = Gather::new();
    let range = IovaRange::from_len(Iova::new(BASE), BYTES).unwrap();
    domain.unmap(range, &mut owed).unwrap();
    owed
}

#[test]
fn a_unit_uses_no_heap_under_its_locks_nor_to_pay_a_debt() {
    for ecap in [ECAP, ECAP & !2] {
        let regs = Registers::new(ecap);
        let memory = regs.memory.clone();
        let mut config = Config::default();
        config.mode = Mode::Legacy;
        let unit = Vtd::enable(regs.clone(), memory, UnitParts::new(Machine), config).unwrap();
        uses("enabling");
        let queued = ecap & 2 != 0;
        let mut domains = Vec::new();
        for stream in 0..40 {
            let domain = Arc::new(unit.second_stage().unwrap());
            uses("making a domain");
            for function in 0..3 {
                let stream = StreamId::new(stream * 8 + function);
                let (depth, physical) = (1, stream.get() as u16);
                if queued {
                    let device = DeviceTlb { depth, physical, twice: false };
                    unit.use_device_tlb(stream, device, all_memory()).unwrap();
                }
                unit.attach(stream, &domain).unwrap();
            }
            uses("attaching");
            domains.push(domain);
        }
        for (stream, domain) in (0..).zip(&domains) {
            let mut owed = map(&**domain);
            uses("mapping");
            domain.sync(&mut owed).unwrap();
            let mut owed = unmap(&**domain);
            domain.sync(&mut owed).unwrap();
            regs.set(0x228, stream);
            regs.set(0x22c, 1 << 31 | 5);
            regs.set(reg::FSTS, fsts::PPF);
            assert!(unit.next_fault().unwrap().is_some());
            if queued {
                let queue = unit.queue();
                queue.invalidate_interrupt_entries(InterruptEntries::All).unwrap();
            }
            assert_eq!(uses("paying"), 0);
        }
        for stream in (0..40).step_by(2) {
            unit.block(StreamId::new(stream * 8)).unwrap();
            unit.device_gone(StreamId::new(stream * 8 + 1)).unwrap();
            uses("blocking");
        }
        domains.truncate(20);
        uses("dropping domains");
        drop(unit);
        uses("dropping the unit");
    }
}
