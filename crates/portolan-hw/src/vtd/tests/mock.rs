//! A scripted unit: registers that do as they are told, and a log of all that was asked of it.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::iommu::IommuError;
use portolan::platform::{Clock, Mmio, Nanos, OutOfTableMemory, SlabTables, TableMem, Word};
use spin::Mutex;

use crate::vtd::spec::descriptor::{TYPE, Words, kind};
use crate::vtd::spec::reg::{self, ccmd, command, ecap, fsts, iotlb};
use crate::vtd::{Config, Vtd};

pub const CAP: u64 = 0x00d2_008c_222f_0606;
pub const ECAP: u64 = 0x00f0_0f4a;
/// All of scalable mode: both stages, nested, PASIDs of 20 bits, device TLBs, page requests.
pub const SCALABLE: u64 =
    ECAP | 1 << 2 | 1 << 26 | 1 << 29 | 19 << 35 | 1 << 40 | 1 << 43 | 1 << 46 | 1 << 47;

/// Something that was asked of the unit or of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A register was written.
    Register(usize, u64),
    /// A descriptor was executed.
    Descriptor(Words),
    /// Lines were cleaned.
    Clean(PhysRange),
    /// Cleaning was awaited.
    Barrier,
}

/// What goes wrong next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wrong {
    #[default]
    Nothing,
    /// Descriptors of a type are refused, or commands of that type by registers, so many times.
    Refuse(u64, u32),
    /// A device-TLB invalidation times out, and waits behind it are aborted.
    DeviceTimesOut,
    /// One device never completes an invalidation, and the unit says which it is.
    Silent(u16),
    /// One descriptor is executed in so many nanoseconds.
    Slow(u64),
    /// The queue stands still.
    Stuck,
    /// All reads give ones.
    Gone,
}

#[derive(Debug)]
pub struct State {
    pub regs: Vec<u32>,
    pub log: Vec<Event>,
    pub wrong: Wrong,
    /// Where to look, and for how many words, at every event.
    watch: Option<(u64, u64)>,
    /// What was there.
    seen: Vec<(Event, Vec<u64>)>,
    /// Commands that changed more than one bit.
    pub violations: u32,
    aborting: bool,
    /// When a slow unit executes the next descriptor.
    next: u64,
}

#[derive(Debug)]
pub struct Machine {
    pub state: Mutex<State>,
    pub slab: SlabTables<AtomicU64>,
    time: AtomicU64,
    /// Allocations until one fails; none with 0.
    pub fail_in: AtomicU64,
}

/// A handle to the machine: registers, memory and clock in one.
#[derive(Clone, Debug)]
pub struct Mock(pub Arc<Machine>);

pub type Iommu = Vtd<Mock, Mock, Mock>;

impl Mock {
    pub fn new(cap: u64, ecap: u64) -> Self {
        let mut regs = alloc::vec![0; 0x100];
        let mut put = |offset: usize, value: u64| {
            regs[offset / 4] = value as u32;
            regs[offset / 4 + 1] = (value >> 32) as u32;
        };
        put(reg::VER, 0x40);
        put(reg::CAP, cap);
        put(reg::ECAP, ecap);
        let state = State {
            regs,
            log: Vec::new(),
            wrong: Wrong::Nothing,
            watch: None,
            seen: Vec::new(),
            violations: 0,
            aborting: false,
            next: 0,
        };
        Self(Arc::new(Machine {
            state: Mutex::new(state),
            slab: SlabTables::new(PhysAddr::new(0x10_0000_0000), PageSize::SIZE_4K, 64),
            time: AtomicU64::new(0),
            fail_in: AtomicU64::new(0),
        }))
    }

    pub fn enable(&self, config: Config) -> Result<Iommu, IommuError> {
        Vtd::enable(self.clone(), self.clone(), self.clone(), config)
    }

    pub fn wrong(&self, wrong: Wrong) {
        let mut state = self.0.state.lock();
        state.wrong = wrong;
        if state.get(reg::GSTS) as u32 & command::QIE != 0 {
            self.run_queue(&mut state);
        }
    }

    /// From now on looks at `words` words from `at` whenever something happens.
    pub fn watch(&self, at: u64, words: u64) {
        let mut state = self.0.state.lock();
        state.watch = Some((at, words));
        state.seen.clear();
    }

    /// What was seen, and when.
    pub fn seen(&self) -> Vec<(Event, Vec<u64>)> {
        core::mem::take(&mut self.0.state.lock().seen)
    }

    fn note(&self, state: &mut State, event: Event) {
        state.log.push(event);
        if let Some((at, words)) = state.watch {
            let words = (0..words).map(|n| self.word(at + 8 * n)).collect();
            state.seen.push((event, words));
        }
    }

    /// What was asked since the last time.
    pub fn take(&self) -> Vec<Event> {
        core::mem::take(&mut self.0.state.lock().log)
    }

    /// Descriptors among it, without waits.
    pub fn descriptors(&self) -> Vec<Words> {
        let is = |event: &Event| match *event {
            Event::Descriptor(words) if TYPE.of(words[0]) != kind::WAIT => Some(words),
            _ => None,
        };
        self.take().iter().filter_map(is).collect()
    }

    pub fn reg(&self, offset: usize) -> u64 {
        self.0.state.lock().get(offset)
    }

    pub fn set(&self, offset: usize, value: u64) {
        self.0.state.lock().put(offset, value);
    }

    /// A word of memory.
    pub fn word(&self, at: u64) -> u64 {
        let table = self
            .0
            .slab
            .table(PhysAddr::new(at & !0xfff), PageSize::SIZE_4K);
        table.get((at & 0xfff) as usize / 8).map_or(0, Word::load)
    }

    /// Writes one.
    pub fn store(&self, at: u64, value: u64) {
        let table = self
            .0
            .slab
            .table(PhysAddr::new(at & !0xfff), PageSize::SIZE_4K);
        if let Some(word) = table.get((at & 0xfff) as usize / 8) {
            Word::store(word, value);
        }
    }

    fn run_queue(&self, state: &mut State) {
        let address = state.get(reg::IQA);
        let lg2 = if address >> 11 & 1 == 1 { 5 } else { 4 };
        let slots = 4096 >> lg2;
        let tail = state.get(reg::IQT) >> lg2;
        if state.get(reg::FSTS) as u32 & (fsts::IQE | fsts::ITE) != 0 {
            return;
        }
        while state.may_go_on(&self.0.time) && state.get(reg::IQH) >> lg2 != tail {
            let head = state.get(reg::IQH) >> lg2;
            let at = (address & !0xfff) + (head << lg2);
            let words = [self.word(at), self.word(at + 8)];
            let is = TYPE.of(words[0]);
            let status = state.get(reg::FSTS);
            if state.refuses(is) {
                state.put(reg::FSTS, status | u64::from(fsts::IQE));
                state.put(reg::IQERCD, 3);
                return;
            }
            match state.wrong {
                Wrong::DeviceTimesOut if is == kind::DEVICE_TLB => {
                    state.wrong = Wrong::Nothing;
                    state.aborting = true;
                    state.put(reg::FSTS, status | u64::from(fsts::ITE));
                    state.put(reg::IQERCD, 0);
                    state.put(reg::IQH, ((head + 1) % slots) << lg2);
                    return;
                }
                Wrong::Silent(stream) if asks(words) == Some(stream) => {
                    self.note(state, Event::Descriptor(words));
                    state.aborting = true;
                    state.put(reg::FSTS, status | u64::from(fsts::ITE));
                    state.put(reg::IQERCD, u64::from(stream) << 32);
                    state.put(reg::IQH, ((head + 1) % slots) << lg2);
                    return;
                }
                _ => {}
            }
            self.note(state, Event::Descriptor(words));
            if is == kind::WAIT && !core::mem::take(&mut state.aborting) {
                let old = self.word(words[1]) & !0xffff_ffff;
                self.store(words[1], old | words[0] >> 32);
            }
            state.put(reg::IQH, ((head + 1) % slots) << lg2);
        }
    }

    fn command(state: &mut State, value: u32) {
        let before = state.get(reg::GSTS) as u32;
        let sticky = before & command::STICKY;
        if (value ^ sticky).count_ones() > 1 {
            state.violations += 1;
        }
        let kept = before & (command::SRTP | command::SIRTP);
        let set = value & (command::SRTP | command::SIRTP);
        let next = value & command::STICKY | kept | set;
        state.regs[reg::GSTS / 4] = next;
    }

    fn written(&self, state: &mut State, offset: usize, value: u64) {
        if state.wrong == Wrong::Gone {
            return;
        }
        self.note(state, Event::Register(offset, value));
        let low = value as u32;
        let iotlb_at = ecap::IRO.of(state.get(reg::ECAP)) as usize * 16;
        match offset {
            reg::GCMD => Self::command(state, low),
            reg::FSTS => {
                let clear = low & (fsts::PFO | fsts::IQE | fsts::ICE | fsts::ITE);
                state.regs[reg::FSTS / 4] &= !clear;
            }
            reg::PMEN => state.regs[reg::PMEN / 4] = low & !1 | low >> 31,
            reg::PRS => state.regs[reg::PRS / 4] &= !low,
            reg::IQT => {
                state.put(offset, value);
                if state.get(reg::GSTS) as u32 & command::QIE != 0 {
                    self.run_queue(state);
                }
            }
            _ if offset == reg::CCMD || offset == iotlb_at + 8 => {
                let on = state.get(reg::GSTS) as u32 & command::QIE != 0;
                let value = match (offset, on) {
                    (_, true) => value,
                    (reg::CCMD, _) if state.refuses(kind::CONTEXT) => value & !ccmd::ICC.mask(),
                    (at, _) if at != reg::CCMD && state.refuses(kind::IOTLB) => {
                        value & !iotlb::IVT.mask()
                    }
                    (reg::CCMD, _) => value & !ccmd::ICC.mask() | ccmd::CAIG.at(1),
                    _ => value & !iotlb::IVT.mask() | iotlb::IAIG.at(1),
                };
                state.put(offset, value);
            }
            0x220..0x2a0 if offset % 16 == 12 => {
                state.regs[offset / 4] &= !(low & 1 << 31);
                let count = (state.get(reg::CAP) >> 40 & 0xff) as usize + 1;
                let pending = (0..count).any(|n| state.regs[(0x22c + 16 * n) / 4] >> 31 == 1);
                if !pending {
                    state.regs[reg::FSTS / 4] &= !fsts::PPF;
                }
            }
            _ => state.put(offset, value),
        }
    }
}

/// The device whose TLB a descriptor invalidates.
fn asks(words: Words) -> Option<u16> {
    match TYPE.of(words[0]) {
        kind::DEVICE_TLB => Some((words[0] >> 32) as u16),
        kind::PASID_DEVICE_TLB => Some((words[0] >> 16) as u16),
        _ => None,
    }
}

impl State {
    /// Whether a descriptor or command of this type is refused; one less is from now on.
    fn refuses(&mut self, kind: u64) -> bool {
        match &mut self.wrong {
            Wrong::Refuse(of, times) if *of == kind && *times > 0 => {
                *times -= 1;
                true
            }
            _ => false,
        }
    }

    /// Whether the next descriptor may be executed now.
    fn may_go_on(&mut self, time: &AtomicU64) -> bool {
        match self.wrong {
            Wrong::Stuck => false,
            Wrong::Slow(nanos) => {
                let now = time.load(Ordering::Relaxed);
                let may = now >= self.next;
                if may {
                    self.next = now + nanos;
                }
                may
            }
            _ => true,
        }
    }

    pub fn get(&self, offset: usize) -> u64 {
        if offset % 8 != 0 {
            return self.regs[offset / 4].into();
        }
        u64::from(self.regs[offset / 4 + 1]) << 32 | u64::from(self.regs[offset / 4])
    }

    fn put(&mut self, offset: usize, value: u64) {
        self.regs[offset / 4] = value as u32;
        if offset % 8 == 0 && !matches!(offset, reg::GCMD) {
            self.regs[offset / 4 + 1] = (value >> 32) as u32;
        }
    }
}

impl Mmio for Mock {
    fn read32(&self, offset: usize) -> u32 {
        let mut state = self.0.state.lock();
        if matches!(state.wrong, Wrong::Slow(_)) {
            self.run_queue(&mut state);
        }
        match state.wrong {
            Wrong::Gone => u32::MAX,
            _ => state.regs[offset / 4],
        }
    }

    fn write32(&self, offset: usize, value: u32) {
        let mut state = self.0.state.lock();
        self.written(&mut state, offset, value.into());
    }

    fn write64(&self, offset: usize, value: u64) {
        let mut state = self.0.state.lock();
        self.written(&mut state, offset, value);
    }
}

impl TableMem<AtomicU64> for Mock {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        match self.0.fail_in.load(Ordering::Relaxed) {
            0 => {}
            1 => return Err(OutOfTableMemory { size }),
            more => self.0.fail_in.store(more - 1, Ordering::Relaxed),
        }
        self.0.slab.alloc(size)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        self.0.slab.free(table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[AtomicU64] {
        self.0.slab.table(table, size)
    }

    fn clean(&self, bytes: PhysRange) {
        self.note(&mut self.0.state.lock(), Event::Clean(bytes));
    }

    fn clean_barrier(&self) {
        self.note(&mut self.0.state.lock(), Event::Barrier);
    }
}

portolan::one_cpu!(Mock);

impl Clock for Mock {
    fn now(&self) -> Nanos {
        Nanos::new(self.0.time.fetch_add(10_000, Ordering::Relaxed))
    }
}
