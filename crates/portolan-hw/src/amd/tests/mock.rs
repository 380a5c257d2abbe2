//! A scripted unit: registers that do as they are told, and a log of the commands that it executed.
//!
//! An interrupt handler can be made to strike at any access to a register and at any look at the
//! clock, on the CPU that makes it, unless that CPU holds a lock. A CPU that holds a lock neither
//! waits nor gets or gives table memory.

extern crate std;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU64, Ordering};

use portolan::addr::{CpuId, PageSize, PhysAddr};
use portolan::iommu::IommuError;
use portolan::platform::{
    Clock, Cpus, Lock, Mmio, Nanos, OutOfTableMemory, SlabTables, TableMem, Word,
};
use spin::Mutex;

use crate::amd::spec::command::{OPCODE, Words, opcode, wait};
use crate::amd::spec::reg::{self, control, status};
use crate::amd::{AmdVi, Capability, Config};

/// Everything that can be offered; 40-bit physical addresses.
pub const HEADER: u32 = 0x1f03_400f;
/// INVALIDATE_IOMMU_ALL, six levels.
pub const FEATURES: u64 = 1 << 6 | 2 << 10;

/// What goes wrong next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wrong {
    #[default]
    Nothing,
    /// Commands with an opcode stop the unit, so many times, with an event of this code.
    Refuse(u64, u32, u64),
    /// Commands are not fetched.
    Stuck,
    /// One command is fetched at every so many looks at the clock.
    Slow(u64),
    /// The ring with this bit in the status goes on running when it is turned off.
    RunsOn(u64),
    /// All reads give ones.
    Gone,
}

#[derive(Debug)]
pub struct State {
    regs: Vec<u64>,
    pub commands: Vec<Words>,
    pub wrong: Wrong,
    /// Allocations until one fails; none do at zero.
    pub fail_in: u64,
    pub live: i64,
    /// Registers that were written while that was forbidden.
    pub violations: u32,
    /// How often a unit that was on was turned off.
    pub turned_off: u32,
    /// Looks at the clock until a record is written, and the record.
    late: Option<(u64, u64, [u64; 2])>,
}

/// What an interrupt does.
type Handler = Box<dyn Fn() + Send>;

std::thread_local! {
    /// Locks that this CPU holds.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// A lock that keeps the handler out, and ends the test if its holder wants it again.
#[derive(Debug)]
pub struct Masking<T>(Mutex<T>);

pub struct Masked<'a, T>(spin::MutexGuard<'a, T>);

impl<T: Send> Lock<T> for Masking<T> {
    type Guard<'a>
        = Masked<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    fn lock(&self) -> Masked<'_, T> {
        let mut looks = 0u32;
        loop {
            if let Some(held) = self.try_lock() {
                return held;
            }
            looks += 1;
            assert!(looks < 100_000_000, "a lock is never free");
        }
    }

    fn try_lock(&self) -> Option<Masked<'_, T>> {
        let held = self.0.try_lock()?;
        HELD.set(HELD.get() + 1);
        Some(Masked(held))
    }

    fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T> Deref for Masked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Masked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Drop for Masked<'_, T> {
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
    }
}

pub struct Machine {
    pub state: Mutex<State>,
    slab: SlabTables<AtomicU64>,
    time: AtomicU64,
    /// Steps until the handler strikes, once.
    strikes: Mutex<Option<(u64, Handler)>>,
}

impl core::fmt::Debug for Machine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Machine")
    }
}

/// A handle to the machine: registers, memory and clock in one.
#[derive(Clone, Debug)]
pub struct Mock(pub Arc<Machine>);

pub type Iommu = AmdVi<Mock, Mock, Mock>;

impl Mock {
    pub fn new(features: u64) -> Self {
        let mut regs = alloc::vec![0; 0x2030 / 8];
        regs[reg::FEATURES / 8] = features;
        let state = State {
            regs,
            commands: Vec::new(),
            wrong: Wrong::Nothing,
            fail_in: 0,
            live: 0,
            violations: 0,
            turned_off: 0,
            late: None,
        };
        Self(Arc::new(Machine {
            state: Mutex::new(state),
            slab: SlabTables::new(PhysAddr::new(0x10_0000), PageSize::SIZE_4K, 64),
            time: AtomicU64::new(0),
            strikes: Mutex::new(None),
        }))
    }

    pub fn enable(&self, header: u32, config: Config) -> Result<Iommu, IommuError> {
        let capability = Capability::parse([header, 1, 0, 0, 0x0018_2800]).unwrap();
        AmdVi::enable(self.clone(), self.clone(), self.clone(), capability, config)
    }

    /// Has `handler` run at the step that is `steps` from now, or the next at which it may.
    pub fn strike_in(&self, steps: u64, handler: Handler) {
        *self.0.strikes.lock() = Some((steps, handler));
    }

    /// Whether the handler has not run yet; it does not any more.
    pub fn disarm(&self) -> bool {
        let armed = self.0.strikes.lock().take();
        // Without the lock: the handler may hold the last handle of a domain.
        armed.is_some()
    }

    /// A point at which an interrupt may come.
    fn step(&self) {
        if HELD.get() != 0 {
            return;
        }
        let due = {
            let mut strikes = self.0.strikes.lock();
            match &mut *strikes {
                Some((0, _)) => strikes.take(),
                Some((steps, _)) => {
                    *steps -= 1;
                    None
                }
                None => None,
            }
        };
        if let Some((_, handler)) = due {
            handler();
        }
    }

    pub fn wrong(&self, wrong: Wrong) {
        self.0.state.lock().wrong = wrong;
    }

    /// Commands executed since the last time, without those that only wait.
    pub fn take(&self) -> Vec<Words> {
        let all = core::mem::take(&mut self.0.state.lock().commands);
        let waits = |words: &Words| OPCODE.of(words[0]) == opcode::COMPLETION_WAIT;
        all.into_iter().filter(|words| !waits(words)).collect()
    }

    pub fn reg(&self, offset: usize) -> u64 {
        self.0.state.lock().regs[offset / 8]
    }

    pub fn set(&self, offset: usize, value: u64) {
        self.0.state.lock().regs[offset / 8] = value;
    }

    /// A word of memory.
    pub fn word(&self, at: u64) -> u64 {
        let table = self
            .0
            .slab
            .table(PhysAddr::new(at & !0xfff), PageSize::SIZE_4K);
        table.get((at & 0xfff) as usize / 8).map_or(0, Word::load)
    }

    pub fn store(&self, at: u64, value: u64) {
        let table = self
            .0
            .slab
            .table(PhysAddr::new(at & !0xfff), PageSize::SIZE_4K);
        if let Some(word) = table.get((at & 0xfff) as usize / 8) {
            Word::store(word, value);
        }
    }

    /// The device table entry of `stream`.
    pub fn entry(&self, stream: u64) -> [u64; 4] {
        let base = self.reg(reg::DEVICE_TABLE) & !0xfff;
        [0, 8, 16, 24].map(|at| self.word(base + stream * 32 + at))
    }

    /// Logs an event, as the unit does.
    pub fn event(&self, record: [u64; 2]) {
        let mut state = self.0.state.lock();
        self.log(&mut state, record);
    }

    /// Announces an event, and writes its record `looks` looks at the clock later.
    pub fn late_event(&self, looks: u64, record: [u64; 2]) {
        let mut state = self.0.state.lock();
        let base = state.regs[reg::EVENT_BASE / 8] & 0xf_ffff_f000;
        let tail = reg::INDEX.of(state.regs[reg::EVENT_TAIL / 8]);
        self.log(&mut state, [0, 0]);
        state.late = Some((looks, base + tail * 16, record));
    }

    fn log(&self, state: &mut State, record: [u64; 2]) {
        let running = state.regs[reg::STATUS / 8] & status::EVENT_RUNS != 0;
        if !running {
            return;
        }
        let base = state.regs[reg::EVENT_BASE / 8];
        let slots = 1 << reg::LENGTH.of(base);
        let tail = reg::INDEX.of(state.regs[reg::EVENT_TAIL / 8]);
        let next = (tail + 1) % slots;
        if next == reg::INDEX.of(state.regs[reg::EVENT_HEAD / 8]) {
            state.regs[reg::STATUS / 8] |= status::EVENT_OVERFLOW;
            state.regs[reg::STATUS / 8] &= !status::EVENT_RUNS;
            return;
        }
        let at = (base & 0xf_ffff_f000) + tail * 16;
        self.store(at, record[0]);
        self.store(at + 8, record[1]);
        state.regs[reg::EVENT_TAIL / 8] = reg::INDEX.at(next);
    }

    fn fetch(&self, state: &mut State) {
        let held_up = |state: &State| matches!(state.wrong, Wrong::Stuck | Wrong::Slow(_));
        while !held_up(state) && self.fetch_one(state) {}
    }

    /// Executes a command; whether there may be more.
    fn fetch_one(&self, state: &mut State) -> bool {
        let base = state.regs[reg::COMMAND_BASE / 8];
        let slots = 1 << reg::LENGTH.of(base);
        let head = reg::INDEX.of(state.regs[reg::COMMAND_HEAD / 8]);
        let runs = state.regs[reg::STATUS / 8] & status::COMMANDS_RUN != 0;
        if !runs || head == reg::INDEX.of(state.regs[reg::COMMAND_TAIL / 8]) {
            return false;
        }
        let at = (base & 0xf_ffff_f000) + head * 16;
        let words = [self.word(at), self.word(at + 8)];
        match state.wrong {
            Wrong::Refuse(of, times, code) if OPCODE.of(words[0]) == of && times > 0 => {
                state.wrong = Wrong::Refuse(of, times - 1, code);
                state.regs[reg::STATUS / 8] &= !status::COMMANDS_RUN;
                self.log(state, [code << 60, at]);
                return false;
            }
            _ => {}
        }
        state.commands.push(words);
        if OPCODE.of(words[0]) == opcode::COMPLETION_WAIT && wait::STORE.of(words[0]) == 1 {
            self.store(words[0] & wait::ADDRESS, words[1]);
        }
        state.regs[reg::COMMAND_HEAD / 8] = reg::INDEX.at((head + 1) % slots);
        true
    }

    fn written(&self, state: &mut State, offset: usize, value: u64) {
        let runs = state.regs[reg::STATUS / 8];
        match offset {
            reg::CONTROL => {
                let before = core::mem::replace(&mut state.regs[reg::CONTROL / 8], value);
                let off = before & !value & control::ENABLE != 0;
                state.turned_off += u32::from(off);
                let on = |bit: u64| value & bit != 0 && value & control::ENABLE != 0;
                for (bit, run) in [
                    (control::COMMANDS, status::COMMANDS_RUN),
                    (control::EVENT_LOG, status::EVENT_RUNS),
                ] {
                    // An error stops the one or the other until it is turned off and on.
                    let turned = (before ^ value) & (bit | control::ENABLE) != 0;
                    match (on(bit), turned) {
                        (false, _) if state.wrong == Wrong::RunsOn(run) => {}
                        (false, _) => state.regs[reg::STATUS / 8] &= !run,
                        (true, true) => state.regs[reg::STATUS / 8] |= run,
                        (true, false) => {}
                    }
                }
            }
            reg::STATUS => state.regs[reg::STATUS / 8] &= !(value & 7),
            reg::COMMAND_BASE | reg::COMMAND_HEAD if runs & status::COMMANDS_RUN != 0 => {
                state.violations += 1;
            }
            reg::EVENT_BASE | reg::EVENT_TAIL if runs & status::EVENT_RUNS != 0 => {
                state.violations += 1;
            }
            _ => state.regs[offset / 8] = value,
        }
        self.fetch(state);
    }
}

impl Mmio for Mock {
    fn read32(&self, offset: usize) -> u32 {
        (self.read64(offset & !7) >> (offset % 8 * 8)) as u32
    }

    fn write32(&self, _: usize, _: u32) {
        self.0.state.lock().violations += 1;
    }

    fn read64(&self, offset: usize) -> u64 {
        self.step();
        let state = self.0.state.lock();
        match state.wrong {
            Wrong::Gone => u64::MAX,
            _ => state.regs[offset / 8],
        }
    }

    fn write64(&self, offset: usize, value: u64) {
        self.step();
        let mut state = self.0.state.lock();
        self.written(&mut state, offset, value);
    }
}

impl TableMem<AtomicU64> for Mock {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        assert_eq!(HELD.get(), 0, "table memory under a lock");
        let mut state = self.0.state.lock();
        let failing = state.fail_in == 1;
        state.fail_in = state.fail_in.saturating_sub(1);
        if failing {
            return Err(OutOfTableMemory { size });
        }
        let table = self.0.slab.alloc(size)?;
        state.live += 1;
        Ok(table)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        assert_eq!(HELD.get(), 0, "table memory under a lock");
        self.0.state.lock().live -= 1;
        self.0.slab.free(table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[AtomicU64] {
        self.0.slab.table(table, size)
    }
}

impl Cpus for Mock {
    type Word = AtomicU64;
    type Lock<T: Send> = Masking<T>;

    fn count(&self) -> usize {
        1
    }

    fn current(&self) -> CpuId {
        CpuId::new(0)
    }
}

impl Clock for Mock {
    fn now(&self) -> Nanos {
        self.step();
        let now = self.0.time.fetch_add(10_000, Ordering::Relaxed);
        let mut state = self.0.state.lock();
        if let Wrong::Slow(every) = state.wrong {
            if now / 10_000 % every == 0 {
                self.fetch_one(&mut state);
            }
        }
        match state.late {
            Some((0, at, record)) => {
                self.store(at + 8, record[1]);
                self.store(at, record[0]);
                state.late = None;
            }
            Some((looks, ..)) => {
                state.late = state.late.map(|(_, at, record)| (looks - 1, at, record))
            }
            None => {}
        }
        Nanos::new(now)
    }

    fn relax(&self) {
        assert_eq!(HELD.get(), 0, "a wait under a lock");
    }
}
