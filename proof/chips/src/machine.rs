//! A machine for the tests of a driver: a unit, its memory and its clock in one value.
//!
//! It keeps the driver's steps, in order, and beside the faults of [`crate::inject`] it refuses commands by their
//! words, has registers lie, and lets table memory run out. Each look at the clock and each access to a register is a
//! step of [`crate::interrupts`]; a CPU that holds a lock neither waits nor gets or gives table memory.

use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan::addr::{CpuId, PageSize, PhysAddr, PhysRange};
use portolan::platform::{
    Clock, Cpus, Mmio, Nanos, OutOfTableMemory, StorePairs, TableMem, UnitPlatform, Word,
};

use crate::inject::{Drain, RegisterFaults};
use crate::interrupts::{InterruptedCpu, InterruptedLock, InterruptedWord, Stepping, locks_held};
use crate::memory::ModelMemory;
pub use crate::unit::{Design, Manner};
use crate::unit::{Unit, Words};
use portolan_sim::clock::Tick;

/// Virtual nanoseconds between two looks at the clock.
pub const LOOK_NS: u64 = 10_000;

/// A step of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Write of a register, by its offset.
    Write(usize, u64),
    /// The unit took a command from the queue, and did not refuse it.
    Command(Words),
    /// Cleaning of cache lines.
    Clean(PhysRange),
    /// Wait until cleaned lines were visible.
    Barrier,
}

/// Way in which a register is withheld from the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withheld {
    /// Locked by firmware or a secure processor: writes are ignored.
    Locked,
    /// Reads as ones and ignores writes, like a part without power.
    Ones,
    /// Ignores writes of zero, as if firmware trapped the register and misread them.
    MissesZero,
    /// Aborts, like a part without power behind another bus: the driver may not access it at all.
    Aborts,
}

/// A rule that refuses commands, each with a code of the unit's.
use crate::unit::Oversee as Rule;

#[derive(Default)]
struct Script {
    faults: RegisterFaults,
    rules: Vec<Rule>,
    /// Bits of a register that read as others: its offset, the bits, and the values that they read as.
    lie: Option<(usize, u64, u64)>,
    /// Registers that are kept from the driver, by their offsets.
    withheld: Vec<(usize, Withheld)>,
    /// Number of accesses to registers that abort.
    aborted: u64,
    /// Allocations until one fails; none do at zero.
    fail_in: u64,
    log: Vec<Event>,
    /// Address of words that are looked at after every event, and their number.
    watched: Option<(u64, u64)>,
    seen: Vec<(Event, Vec<u64>)>,
}

/// A look at the machine behind each write of a register.
type Judge = Box<dyn FnMut() + Send>;

struct Board<D: Design> {
    judge: Mutex<Option<Judge>>,
    unit: Arc<Unit<D>>,
    memory: Arc<ModelMemory<D::Word>>,
    script: Arc<Mutex<Script>>,
}

/// A handle to the machine: registers, memory and clock in one.
pub struct Machine<D: Design>(Arc<Board<D>>);

impl<D: Design> Clone for Machine<D> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<D: Design> Debug for Machine<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.unit.fmt(f)
    }
}

fn word<W: Word>(memory: &ModelMemory<W>, at: u64) -> Option<&W> {
    let page = PhysAddr::new(at & !0xfff);
    let table = memory.table(page, PageSize::SIZE_4K);
    table.get((at & 0xfff) as usize >> W::LG2_BYTES)
}

impl Script {
    fn note<W: Word>(&mut self, memory: &ModelMemory<W>, event: Event) {
        self.log.push(event);
        if let Some((at, words)) = self.watched {
            let words =
                (0..words).map(|n| word(memory, at + (n << W::LG2_BYTES)).map_or(0, Word::load));
            self.seen.push((event, words.collect()));
        }
    }
}

fn locked(script: &Mutex<Script>) -> MutexGuard<'_, Script> {
    script.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<D: Design> Machine<D> {
    /// A machine with the unit after reset.
    pub fn new(setup: D::Setup, memory: ModelMemory<D::Word>) -> Self {
        Self::over(setup, Arc::new(memory))
    }

    fn over(setup: D::Setup, memory: Arc<ModelMemory<D::Word>>) -> Self {
        let unit = Arc::new(Unit::new(setup, memory.clone()));
        let script = Arc::new(Mutex::new(Script::default()));
        let (told, seen_by) = (script.clone(), memory.clone());
        unit.oversee(Box::new(move |words| {
            let script = &mut *locked(&told);
            // Each rule is shown each command.
            let refused = script.rules.iter_mut().map(|rule| rule(words)).fold(None, Option::or);
            if refused.is_none() {
                script.note(&seen_by, Event::Command(*words));
            }
            refused
        }));
        Self(Arc::new(Board { judge: Mutex::default(), unit, memory, script }))
    }

    /// A machine with the same memory and another unit like this one, after reset.
    pub fn beside(&self) -> Self {
        let Board { unit, memory, .. } = &*self.0;
        Self::over(unit.setup.clone(), memory.clone())
    }

    /// Calls `judge` behind each write of a register from now on; nothing with `None`.
    pub fn judge(&self, judge: Option<Box<dyn FnMut() + Send>>) {
        *self.0.judge.lock().unwrap_or_else(PoisonError::into_inner) = judge;
    }

    /// A register was written.
    fn written(&self) {
        let judge = self.0.judge.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut judge) = judge {
            judge();
            self.judge(Some(judge));
        }
    }

    /// The unit.
    pub fn unit(&self) -> &Arc<Unit<D>> {
        &self.0.unit
    }

    /// The memory.
    pub fn memory(&self) -> &ModelMemory<D::Word> {
        &self.0.memory
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        locked(&self.0.script)
    }

    fn note(&self, event: Event) {
        self.script().note(&self.0.memory, event);
    }

    /// Injects these faults from now on, and cancels refusals and false values.
    pub fn wrong(&self, faults: RegisterFaults) {
        let script = &mut *self.script();
        script.faults = faults;
        script.rules.clear();
        script.lie = None;
        self.0.unit.inject(faults);
    }

    /// Sets the progress of queues from now on.
    pub fn drain(&self, drain: Drain) {
        let script = &mut *self.script();
        script.faults.drain = drain;
        self.0.unit.inject(script.faults);
    }

    /// Refuses commands for which `rule` returns a code. `rule` sees each command.
    pub fn refuse(&self, rule: impl FnMut(&Words) -> Option<u32> + Send + 'static) {
        self.script().rules.push(Box::new(rule));
    }

    /// Makes `bits` of a register read as `value`, until another fault is injected.
    pub fn lie(&self, offset: usize, bits: u64, value: u64) {
        self.script().lie = Some((offset, bits, value));
    }

    /// Keeps the eight bytes at `offset` from the driver from now on.
    pub fn withhold(&self, offset: usize, how: Withheld) {
        self.script().withheld.push((offset & !7, how));
    }

    /// Accesses so far to registers that abort.
    pub fn aborted(&self) -> u64 {
        self.script().aborted
    }

    /// Returns the way in which a register is withheld from the driver.
    fn withheld(&self, offset: usize) -> Option<Withheld> {
        let script = &mut *self.script();
        let kept = script.withheld.iter().find(|(at, _)| *at == offset & !7);
        let how = kept.map(|(_, how)| *how);
        script.aborted += u64::from(how == Some(Withheld::Aborts));
        how
    }

    /// Tells if a register takes `value`.
    fn takes(&self, offset: usize, value: u64) -> bool {
        match self.withheld(offset) {
            Some(Withheld::MissesZero) => value != 0,
            Some(Withheld::Locked | Withheld::Ones | Withheld::Aborts) => false,
            None => true,
        }
    }

    /// The `n`-th allocation of table memory from now on fails; none does at 0.
    pub fn fail_in(&self, n: u64) {
        self.script().fail_in = n;
    }

    /// Table pages of 4 KiB handed out.
    pub fn live(&self) -> usize {
        self.0.memory.live()
    }

    /// Takes the driver's steps since the last time.
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.script().log)
    }

    /// Returns the events and keeps them.
    pub fn done(&self) -> Vec<Event> {
        self.script().log.clone()
    }

    /// Takes the commands among its steps since the last time.
    pub fn take_commands(&self) -> impl Iterator<Item = Words> + use<D> {
        self.take().into_iter().filter_map(|event| match event {
            Event::Command(words) => Some(words),
            _ => None,
        })
    }

    /// Watches `words` words from `at` after each event from now on.
    pub fn watch(&self, at: u64, words: u64) {
        let script = &mut *self.script();
        script.watched = Some((at, words));
        script.seen.clear();
    }

    /// Takes the words that were there after each event since.
    pub fn seen(&self) -> Vec<(Event, Vec<u64>)> {
        std::mem::take(&mut self.script().seen)
    }

    /// Fails if the driver did something that it must not do.
    ///
    /// # Panics
    /// If it did.
    pub fn expect_obedience(&self) {
        assert_eq!(self.0.unit.violations(), []);
        assert_eq!(self.0.memory.reads_of_freed_pages(), 0);
    }

    /// A word of memory; 0 if the address is not in memory.
    pub fn word(&self, at: u64) -> u64 {
        word(&self.0.memory, at).map_or(0, Word::load)
    }

    /// Writes a word if the address is in memory.
    pub fn store(&self, at: u64, value: u64) {
        if let Some(word) = word(&self.0.memory, at) {
            Word::store(word, value);
        }
    }

    fn told(&self, offset: usize, value: u64) -> u64 {
        match self.script().lie {
            Some((of, bits, lie)) if of == offset => value & !bits | lie,
            _ => value,
        }
    }
}

impl<D: Design> Machine<D>
where
    Unit<D>: Mmio,
{
    /// True value of a register of 64 bits.
    pub fn reg(&self, offset: usize) -> u64 {
        self.0.unit.read64(offset)
    }

    /// True value of a register of 32 bits.
    pub fn reg32(&self, offset: usize) -> u32 {
        self.0.unit.read32(offset)
    }
}

impl<D: Design> Mmio for Machine<D>
where
    Unit<D>: Mmio,
{
    fn read32(&self, offset: usize) -> u32 {
        if matches!(self.withheld(offset), Some(Withheld::Ones | Withheld::Aborts)) {
            return u32::MAX;
        }
        let value = Stepping(&*self.0.unit).read32(offset);
        self.told(offset, value.into()) as u32
    }

    fn write32(&self, offset: usize, value: u32) {
        self.note(Event::Write(offset, value.into()));
        if self.takes(offset, value.into()) {
            Stepping(&*self.0.unit).write32(offset, value);
        }
        self.written();
    }

    fn read64(&self, offset: usize) -> u64 {
        if matches!(self.withheld(offset), Some(Withheld::Ones | Withheld::Aborts)) {
            return u64::MAX;
        }
        let value = Stepping(&*self.0.unit).read64(offset);
        self.told(offset, value)
    }

    fn write64(&self, offset: usize, value: u64) {
        self.note(Event::Write(offset, value));
        if self.takes(offset, value) {
            Stepping(&*self.0.unit).write64(offset, value);
        }
        self.written();
    }
}

impl<D: Design> TableMem<D::Word> for Machine<D> {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        assert_eq!(locks_held(), 0, "table memory under a lock");
        let left = &mut self.script().fail_in;
        let failing = *left == 1;
        *left = left.saturating_sub(1);
        if failing {
            return Err(OutOfTableMemory { size });
        }
        TableMem::alloc(&*self.0.memory, size)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        assert_eq!(locks_held(), 0, "table memory under a lock");
        TableMem::free(&*self.0.memory, table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[D::Word] {
        TableMem::table(&*self.0.memory, table, size)
    }

    fn clean(&self, bytes: PhysRange) {
        TableMem::clean(&*self.0.memory, bytes);
        self.note(Event::Clean(bytes));
    }

    fn clean_barrier(&self) {
        self.note(Event::Barrier);
    }

    fn invalidate(&self, bytes: PhysRange) {
        TableMem::invalidate(&*self.0.memory, bytes);
    }

    fn pairs(&self) -> Option<&dyn StorePairs<D::Word>> {
        self.0.memory.pairs()
    }
}

impl<D: Design + 'static> Cpus for Machine<D> {
    type Word = InterruptedWord;
    type Lock<T: Send> = InterruptedLock<T>;

    fn count(&self) -> usize {
        1
    }

    fn current(&self) -> CpuId {
        CpuId::new(0)
    }

    fn flush_wanted(&self) {}

    fn drop_later(&self, left: portolan::platform::LeftBehind) {
        drop(left);
    }
}

impl<D: Design + 'static> UnitPlatform<D::Word> for Machine<D>
where
    Unit<D>: Mmio,
{
    type Registers = Self;
    type Memory = Self;
}

impl<D: Design> Clock for Machine<D> {
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
