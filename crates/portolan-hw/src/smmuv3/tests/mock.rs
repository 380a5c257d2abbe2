//! A scripted unit for tests: registers, a command queue that can lag, refuse or stand still, and
//! queues to write events to. It translates nothing.

use crate::smmuv3::spec::{self, cd, command, event, reg, ste};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use portolan::addr::{PageSize, PhysAddr};
use portolan::platform::{Clock, Mmio, Nanos, SlabTables, TableMem};
use spin::Mutex;

pub(in crate::smmuv3) type Memory = Arc<SlabTables<AtomicU64>>;
pub(in crate::smmuv3) type Mock = Arc<Scripted>;

/// Table memory of `pages` blocks of 64 KiB.
pub(in crate::smmuv3) fn memory(pages: u32) -> Memory {
    let base = PhysAddr::new(0x8_0000_0000);
    Arc::new(SlabTables::new(base, PageSize::SIZE_64K, pages))
}

/// A clock that goes on by a microsecond a look.
#[derive(Debug, Default)]
pub(in crate::smmuv3) struct Ticks(AtomicU64);

portolan::one_cpu!(Ticks);

impl Clock for Ticks {
    fn now(&self) -> Nanos {
        Nanos::new(self.0.fetch_add(1_000, Ordering::Relaxed))
    }
}

#[derive(Debug, Default)]
pub(in crate::smmuv3) struct Script {
    pub registers: BTreeMap<usize, u32>,
    /// Commands carried out, in order.
    pub log: Vec<command::Words>,
    /// Commands carried out at each look at the consumer index; all at once if none.
    pub pace: Option<u32>,
    /// Looks at the consumer index until one command is carried out; 0 for none.
    pub looks_per_command: u32,
    looks: u32,
    /// A device was asked to forget since the last sync.
    asked: bool,
    /// Devices leave what they are asked unanswered: a sync behind it is refused once.
    pub silent: bool,
    /// Operation codes refused, with the code and how often.
    pub refuse: Vec<(u64, u32, u32)>,
    /// After so many more commands one is refused as illegal.
    pub refuse_after: Option<u32>,
    /// Writes to registers.
    pub writes: u32,
    /// Writes to addresses of messages while interrupts are enabled.
    pub guarded_writes: u32,
    /// Everything reads as all ones.
    pub gone: bool,
    /// Writes to CR0 are never acknowledged.
    pub deaf: bool,
}

#[derive(Debug)]
pub(in crate::smmuv3) struct Scripted {
    pub mem: Memory,
    pub script: Mutex<Script>,
}

/// Identification of a unit with everything.
pub(in crate::smmuv3) const FULL: [(usize, u32); 4] = [
    (
        reg::IDR0,
        1 << 27 | 2 << 21 | 1 << 19 | 1 << 18 | 1 << 16 | 1 << 12 | 1 << 10 | 1 << 4 | 2 << 2 | 3,
    ),
    (reg::IDR1, 8 << 21 | 4 << 16 | 4 << 11 | 12 << 6 | 16),
    (reg::IDR3, 2 << 11 | 1 << 10),
    (reg::IDR5, 7 << 4 | 5),
];

/// Bit of [`reg::IDR0`]: messages.
pub(in crate::smmuv3) const MSI: u32 = 1 << 13;

pub(in crate::smmuv3) fn mock(mem: &Memory) -> Mock {
    let registers = FULL.into_iter().collect();
    let script = Script {
        registers,
        ..Script::default()
    };
    let mem = mem.clone();
    Arc::new(Scripted {
        mem,
        script: Mutex::new(script),
    })
}

impl Script {
    fn get(&self, offset: usize) -> u32 {
        self.registers.get(&offset).copied().unwrap_or(0)
    }

    fn get64(&self, offset: usize) -> u64 {
        u64::from(self.get(offset + 4)) << 32 | u64::from(self.get(offset))
    }

    fn set(&mut self, offset: usize, value: u32) {
        self.registers.insert(offset, value);
    }

    fn stopped(&self) -> bool {
        (self.get(reg::GERROR) ^ self.get(reg::GERRORN)) & reg::gerror::CMDQ != 0
    }

    fn consume(&mut self, mem: &Memory, most: u32) {
        let base = self.get64(reg::CMDQ_BASE);
        let lg2 = base & 0x1f;
        let at = PhysAddr::new(base & 0x000f_ffff_ffff_ffe0);
        for _ in 0..most {
            let cons = self.get(reg::CMDQ_CONS) & 0xf_ffff;
            let enabled = self.get(reg::CR0ACK) & reg::cr0::CMDQEN != 0;
            if !enabled || self.stopped() || cons == self.get(reg::CMDQ_PROD) {
                return;
            }
            let slot = (cons & ((1 << lg2) - 1)) as usize;
            let words = mem.table(at, PageSize::SIZE_64K);
            let read = |i: usize| words[slot * 2 + i].load(Ordering::Acquire);
            let words = [read(0), read(1)];
            let code = command::OP.get(&words);
            // Only a sync that waits for devices can find one silent.
            let silent = command::error::ATC_INV_SYNC;
            let asked = self.asked;
            let matches =
                |r: &&mut (u64, u32, u32)| r.0 == code && r.2 != 0 && (r.1 != silent || asked);
            let refused = self.refuse.iter_mut().find(matches);
            let by_kind = refused.map(|refused| {
                refused.2 -= 1;
                refused.1
            });
            let by_number = match self.refuse_after.take() {
                Some(0) => Some(command::error::ILL),
                left => {
                    self.refuse_after = left.map(|left| left - 1);
                    None
                }
            };
            let unanswered = code == command::op::SYNC && self.silent && self.asked;
            let by_device = unanswered.then_some(silent);
            self.asked &= !unanswered;
            if let Some(error) = by_kind.or(by_number).or(by_device) {
                self.set(reg::CMDQ_CONS, cons | error << 24);
                let errors = self.get(reg::GERROR);
                self.set(reg::GERROR, errors ^ reg::gerror::CMDQ);
                return;
            }
            self.log.push(words);
            self.asked = code == command::op::ATC_INV || self.asked && code != command::op::SYNC;
            if code == command::op::SYNC && command::SYNC_CS.get(&words) == command::sync::IRQ {
                let address = command::SYNC_ADDRESS.get(&words) << 2;
                let data = command::SYNC_DATA.get(&words);
                let page = PhysAddr::new(address & !0xfff);
                let target = &mem.table(page, PageSize::SIZE_4K)[(address & 0xfff) as usize / 8];
                target.store(data, Ordering::Release);
            }
            let next = (cons + 1) & ((2 << lg2) - 1);
            let kept = self.get(reg::CMDQ_CONS) & 0x7f00_0000;
            self.set(reg::CMDQ_CONS, next | kept);
        }
    }
}

impl Mmio for Scripted {
    fn read32(&self, offset: usize) -> u32 {
        let mut script = self.script.lock();
        if script.gone {
            return u32::MAX;
        }
        if offset == reg::CMDQ_CONS && script.looks_per_command != 0 {
            script.looks += 1;
            if script.looks % script.looks_per_command == 0 {
                script.consume(&self.mem, 1);
            }
        }
        if let (reg::CMDQ_CONS, Some(pace)) = (offset, script.pace) {
            script.consume(&self.mem, pace);
        }
        script.get(offset)
    }

    fn write32(&self, offset: usize, value: u32) {
        let mut script = self.script.lock();
        script.set(offset, value);
        script.writes += 1;
        let enabled = script.get(reg::IRQ_CTRL) | script.get(reg::IRQ_CTRLACK);
        let messages = matches!(offset, 0x68..=0x74 | 0xb0..=0xbc | 0xd0..=0xdc);
        script.guarded_writes += u32::from(messages && enabled != 0);
        match offset {
            reg::CR0 if !script.deaf => script.set(reg::CR0ACK, value),
            reg::IRQ_CTRL => script.set(reg::IRQ_CTRLACK, value),
            reg::GBPA => script.set(reg::GBPA, value & !reg::gbpa::UPDATE),
            reg::CMDQ_PROD | reg::GERRORN | reg::CR0 if script.pace.is_none() => {
                script.consume(&self.mem, u32::MAX);
            }
            _ => {}
        }
        if offset == reg::CR0 && script.pace.is_none() {
            script.consume(&self.mem, u32::MAX);
        }
    }
}

impl Scripted {
    /// What was carried out, and forgets it.
    pub fn take_log(&self) -> Vec<command::Words> {
        core::mem::take(&mut self.script.lock().log)
    }

    /// Operation codes of what was carried out, and forgets it.
    pub fn take_codes(&self) -> Vec<u64> {
        let log = self.take_log();
        log.iter().map(|words| command::OP.get(words)).collect()
    }

    /// Appends a record to the event queue or, with two words, to the page-request queue.
    pub fn record<const N: usize>(&self, record: [u64; N]) {
        let mut script = self.script.lock();
        let (base, prod, cons) = match N {
            event::WORDS => (reg::EVENTQ_BASE, reg::EVENTQ_PROD, reg::EVENTQ_CONS),
            _ => (reg::PRIQ_BASE, reg::PRIQ_PROD, reg::PRIQ_CONS),
        };
        let base = script.get64(base);
        let entries = 1u32 << (base & 0x1f);
        let at = PhysAddr::new(base & 0x000f_ffff_ffff_ffe0);
        let (write, read) = (script.get(prod), script.get(cons));
        let index = |value: u32| value & (2 * entries - 1);
        if index(write) ^ index(read) == entries {
            // Full: an overflow, unless one is already on record.
            if (write ^ read) & reg::OVERFLOW == 0 {
                script.set(prod, write ^ reg::OVERFLOW);
            }
            return;
        }
        let words = self.mem.table(at, PageSize::SIZE_64K);
        for (word, value) in record.into_iter().enumerate() {
            let slot = (write & (entries - 1)) as usize;
            words[slot * N + word].store(value, Ordering::Release);
        }
        let next = index(index(write) + 1) | write & reg::OVERFLOW;
        script.set(prod, next);
    }

    /// Raises global errors.
    pub fn raise(&self, errors: u32) {
        let mut script = self.script.lock();
        let now = script.get(reg::GERROR);
        script.set(reg::GERROR, now ^ errors);
    }

    /// The stream table entry as the unit finds it; `None` if out of range.
    pub fn entry(&self, stream: u32) -> Option<ste::Ste> {
        let (base, config) = {
            let script = self.script.lock();
            (
                script.get64(reg::STRTAB_BASE),
                script.get(reg::STRTAB_BASE_CFG),
            )
        };
        let config = u64::from(config);
        if u64::from(stream) >> reg::STRTAB_LOG2SIZE.of(config) != 0 {
            return None;
        }
        let mut at = spec::address(base, 6);
        let mut index = stream as usize;
        if reg::STRTAB_FMT.of(config) == 1 {
            let split = reg::STRTAB_SPLIT.of(config);
            let upper = self.word(at, (stream >> split) as usize);
            let span = ste::level1::SPAN.get(&[upper]);
            index = (stream & ((1 << split) - 1)) as usize;
            if span == 0 || index >> (span - 1) != 0 {
                return None;
            }
            at = spec::address(upper, 6);
        }
        Some(core::array::from_fn(|word| self.word(at, index * 8 + word)))
    }

    /// The context descriptor of a substream as the unit finds it.
    pub fn descriptor(&self, entry: &ste::Ste, pasid: u32) -> Option<cd::Cd> {
        if u64::from(pasid) >> ste::S1CDMAX.get(entry) != 0 {
            return None;
        }
        let mut at = ste::S1CONTEXTPTR.get(entry) << 6;
        let mut index = pasid as usize;
        if ste::S1FMT.get(entry) == ste::s1fmt::TWO_LEVEL_64K {
            let upper = self.word(at, index >> 10);
            at = (upper & 1 != 0).then_some(spec::address(upper, 12))?;
            index &= 0x3ff;
        }
        Some(core::array::from_fn(|word| self.word(at, index * 8 + word)))
    }

    fn word(&self, at: u64, index: usize) -> u64 {
        let words = self
            .mem
            .table(PhysAddr::new(at & !0xffff), PageSize::SIZE_64K);
        let first = (at & 0xffff) as usize / 8;
        words[first + index].load(Ordering::Acquire)
    }
}
