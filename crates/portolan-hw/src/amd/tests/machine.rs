//! A machine around the unit of `portolan-model`: one CPU, whose interrupts may strike at any step
//! ([`portolan_model::interrupts`]), and memory that may run out.
//!
//! Beside what the model can be told to do wrong, registers may lie, and commands of one kind may be
//! refused. The commands that the driver submits are kept. A CPU that holds a lock neither waits nor
//! gets or gives table memory.

extern crate std;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

use portolan::addr::{CpuId, Iova, PageSize, PhysAddr, StreamId};
use portolan::iommu::IommuError;
use portolan::platform::{Clock, Cpus, Mmio, Nanos, OutOfTableMemory, TableMem, Word};
use portolan_model::amd::{AmdIdentification, AmdRegisters, AmdSetup};
use portolan_model::clock::Tick;
use portolan_model::decode::AccessKind;
use portolan_model::inject::{Drain, RegisterFaults};
use portolan_model::interrupts::{
    InterruptedCpu, InterruptedLock, InterruptedWord, Stepping, locks_held,
};
use portolan_model::memory::{ModelMemory, Visibility};
use spin::Mutex;

use crate::amd::spec::command::{OPCODE, Words, opcode};
use crate::amd::spec::reg::{self, control};
use crate::amd::{AmdVi, Capability, Config};

/// Virtual nanoseconds between two looks at the clock.
pub const LOOK_NS: u64 = 10_000;

/// What goes wrong next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    Nothing,
    /// Commands are not fetched.
    Stuck,
    /// One command is fetched at every so many looks at the clock.
    Slow(u64),
    /// All reads give ones.
    Gone,
}

/// Commands that the unit is to refuse.
#[derive(Clone, Copy, Debug)]
struct Refused {
    opcode: u64,
    times: u32,
    code: u64,
    /// The next of them, by its number among all.
    nth: Option<u64>,
}

#[derive(Debug, Default)]
struct Script {
    faults: RegisterFaults,
    /// Bits of a register that read as others: its offset, the bits, and what they read as.
    lie: Option<(usize, u64, u64)>,
    refused: Option<Refused>,
    /// Submitted, and the tail behind the last of them.
    commands: (Vec<Words>, u64),
    /// Allocations until one fails; none do at zero.
    fail_in: u64,
    /// How often a unit that was on was turned off.
    turned_off: u32,
}

#[derive(Debug)]
pub struct Board {
    pub unit: Arc<AmdRegisters>,
    pub memory: Arc<ModelMemory>,
    script: Mutex<Script>,
}

/// A handle to the machine: registers, memory and clock in one.
#[derive(Clone, Debug)]
pub struct Machine(pub Arc<Board>);

pub type Iommu = AmdVi<Machine, Machine, Machine>;

/// The driver's view of the unit's capability block.
pub fn capability(id: &AmdIdentification) -> Capability {
    Capability::parse(id.capability).unwrap()
}

impl Machine {
    /// With a unit that can do everything, and caches absence.
    pub fn new() -> Self {
        Self::with(AmdIdentification::default().caching_absence())
    }

    pub fn with(identification: AmdIdentification) -> Self {
        Self::of(AmdSetup {
            identification,
            ..AmdSetup::default()
        })
    }

    pub fn of(setup: AmdSetup) -> Self {
        let base = PhysAddr::new(0x10_0000);
        let memory = Arc::new(ModelMemory::new(base, 64, Visibility::AtOnce));
        Self(Arc::new(Board {
            unit: Arc::new(AmdRegisters::new(setup, memory.clone())),
            memory,
            script: Mutex::default(),
        }))
    }

    pub fn enable(&self, config: Config) -> Result<Iommu, IommuError> {
        let capability = capability(&self.0.unit.identification());
        AmdVi::enable(self.clone(), self.clone(), self.clone(), capability, config)
    }

    pub fn wrong(&self, wrong: Wrong) {
        let mut faults = RegisterFaults::default();
        match wrong {
            Wrong::Nothing => {}
            Wrong::Stuck => faults.drain = Drain::Never,
            Wrong::Slow(looks) => faults.drain = Drain::OneEach(looks * LOOK_NS),
            Wrong::Gone => faults.gone_from = Some(0),
        }
        let mut script = self.0.script.lock();
        script.faults = faults;
        script.refused = None;
        script.lie = None;
        self.0.unit.inject(faults);
    }

    /// Has the unit refuse commands with an opcode, so many times, with an event of this code.
    pub fn refuse(&self, opcode: u64, times: u32, code: u64) {
        self.wrong(Wrong::Nothing);
        let refused = Refused {
            opcode,
            times,
            code,
            nth: None,
        };
        self.0.script.lock().refused = Some(refused);
    }

    /// Has the `bits` of a register read as `value` until something else goes wrong.
    pub fn lie(&self, offset: usize, bits: u64, value: u64) {
        self.0.script.lock().lie = Some((offset, bits, value));
    }

    /// The `n`-th allocation from now on fails.
    pub fn fail_in(&self, n: u64) {
        self.0.script.lock().fail_in = n;
    }

    /// How often a unit that was on was turned off.
    pub fn turned_off(&self) -> u32 {
        self.0.script.lock().turned_off
    }

    /// Pages handed out.
    pub fn live(&self) -> usize {
        self.0.memory.live()
    }

    /// Commands submitted since the last time, without those that only wait.
    pub fn take(&self) -> Vec<Words> {
        let all = core::mem::take(&mut self.0.script.lock().commands.0);
        let waits = |words: &Words| OPCODE.of(words[0]) == opcode::COMPLETION_WAIT;
        all.into_iter().filter(|words| !waits(words)).collect()
    }

    /// Fails if the driver did what it must not do.
    pub fn expect_obedience(&self) {
        assert_eq!(self.0.unit.violations(), []);
        assert_eq!(self.0.memory.reads_of_freed_pages(), 0);
    }

    pub fn reg(&self, offset: usize) -> u64 {
        self.0.unit.read64(offset)
    }

    fn at(&self, at: u64) -> Option<&AtomicU64> {
        let page = PhysAddr::new(at & !0xfff);
        let table = self.0.memory.table(page, PageSize::SIZE_4K);
        table.get((at & 0xfff) as usize / 8)
    }

    /// A word of memory.
    pub fn word(&self, at: u64) -> u64 {
        self.at(at).map_or(0, Word::load)
    }

    pub fn store(&self, at: u64, value: u64) {
        if let Some(word) = self.at(at) {
            Word::store(word, value);
        }
    }

    /// The device table entry of `stream`.
    pub fn entry(&self, stream: u64) -> [u64; 4] {
        let base = self.reg(reg::DEVICE_TABLE) & !0xfff;
        [0, 8, 16, 24].map(|at| self.word(base + stream * 32 + at))
    }

    /// Has `stream` read four bytes at `iova`: where they are, if anywhere.
    pub fn read(&self, stream: StreamId, iova: u64) -> Option<u64> {
        self.access(stream, iova, AccessKind::Read)
    }

    /// The same with a write.
    pub fn write(&self, stream: StreamId, iova: u64) -> Option<u64> {
        self.access(stream, iova, AccessKind::Write)
    }

    fn access(&self, stream: StreamId, iova: u64, kind: AccessKind) -> Option<u64> {
        let pieces = self.0.unit.dma(stream, Iova::new(iova), kind, 4).ok()?;
        pieces.first().map(|piece| piece.pa.get())
    }

    /// The driver puts the tail of the command buffer to `tail`.
    fn submit(&self, script: &mut Script, tail: u64) {
        let base = self.reg(reg::COMMAND_BASE);
        let bytes = 16 << reg::LENGTH.of(base);
        let command = |offset: u64| {
            let at = (base & 0xf_ffff_f000) + offset;
            [self.word(at), self.word(at + 8)]
        };
        let between = |from: u64| {
            let count = tail.wrapping_sub(from) % bytes / 16;
            (0..count).map(move |n| (from + 16 * n) % bytes)
        };
        let (commands, last) = &mut script.commands;
        commands.extend(between(*last).map(command));
        *last = tail;
        let Some(refused) = &mut script.refused else {
            return;
        };
        let taken = self.0.unit.consumed();
        if refused.nth.take_if(|nth| *nth <= taken).is_some() {
            refused.times -= 1;
        }
        let is_it = |at| OPCODE.of(command(at)[0]) == refused.opcode;
        let mut ahead = between(self.reg(reg::COMMAND_HEAD));
        let found = ahead.position(is_it).filter(|_| refused.times > 0);
        refused.nth = found.map(|ahead| taken + 1 + ahead as u64);
        script.faults.refuse = refused.nth.map(|nth| (nth, refused.code as u32));
        self.0.unit.inject(script.faults);
    }
}

impl Mmio for Machine {
    fn read32(&self, offset: usize) -> u32 {
        Stepping(&*self.0.unit).read32(offset)
    }

    fn write32(&self, offset: usize, value: u32) {
        Stepping(&*self.0.unit).write32(offset, value);
    }

    fn read64(&self, offset: usize) -> u64 {
        let value = Stepping(&*self.0.unit).read64(offset);
        match self.0.script.lock().lie {
            Some((of, bits, lie)) if of == offset => value & !bits | lie,
            _ => value,
        }
    }

    fn write64(&self, offset: usize, value: u64) {
        {
            let script = &mut *self.0.script.lock();
            match offset {
                reg::CONTROL => {
                    let off = self.reg(reg::CONTROL) & !value & control::ENABLE;
                    script.turned_off += u32::from(off != 0);
                }
                reg::COMMAND_BASE => script.commands.1 = 0,
                reg::COMMAND_TAIL => self.submit(script, value),
                _ => {}
            }
        }
        Stepping(&*self.0.unit).write64(offset, value);
    }
}

impl TableMem<AtomicU64> for Machine {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        assert_eq!(locks_held(), 0, "table memory under a lock");
        let mut script = self.0.script.lock();
        let failing = script.fail_in == 1;
        script.fail_in = script.fail_in.saturating_sub(1);
        if failing {
            return Err(OutOfTableMemory { size });
        }
        TableMem::alloc(&*self.0.memory, size)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        assert_eq!(locks_held(), 0, "table memory under a lock");
        TableMem::free(&*self.0.memory, table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[AtomicU64] {
        TableMem::table(&*self.0.memory, table, size)
    }
}

impl Cpus for Machine {
    type Word = InterruptedWord;
    type Lock<T: Send> = InterruptedLock<T>;

    fn count(&self) -> usize {
        1
    }

    fn current(&self) -> CpuId {
        CpuId::new(0)
    }
}

impl Clock for Machine {
    fn now(&self) -> Nanos {
        InterruptedCpu.now();
        let clock = self.0.unit.clock();
        clock.advance_ns(LOOK_NS);
        self.0.unit.tick();
        Nanos::new(clock.now_ns())
    }

    fn relax(&self) {
        assert_eq!(locks_held(), 0, "a wait under a lock");
    }
}
