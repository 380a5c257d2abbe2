//! A log that the unit fills: of events, of page requests, or of interrupts for virtual CPUs that sleep.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.5 to 2.7 and
//! 3.4.14 to 3.4.19. Reading waits for nothing, so that interrupt handlers can do it: a record that the
//! unit has announced and not yet written is left for a later call. Reading acknowledges the interrupt of
//! the records that were read. A full log stops the unit's logging; once it is read empty, logging is turned
//! on again. Not supported: two logs of one kind, early warnings.

use super::command::AmdControl;
use crate::chassis::Present as _;
use core::sync::atomic::AtomicU64;
use portolan::addr::{PageSize, PhysAddr};
use portolan::iommu::IommuError;
use portolan::platform::{Guarded, Mmio, Nanos, OutOfTableMemory, TableMem, UnitPlatform, Word};
use portolan_spec::amd::event::{CODE, LG2_BYTES};
use portolan_spec::amd::guest_log;
use portolan_spec::amd::reg::{self, control, status};

/// Exponents of the bytes of a log, and of the unit in which its register counts them.
const LG2_LEAST: u32 = 12;
const LG2_MOST: u32 = 19;
const LG2_UNIT: u32 = 4;

/// Looks at a record that is not yet written, in one call.
const LOOKS: u32 = 8;

/// The registers of a log, and its bits in others.
#[derive(Debug)]
pub(super) struct LogRegisters {
    base: usize,
    head: usize,
    tail: usize,
    /// Register of the address to which the unit writes the tail, if there is one.
    tail_copy: Option<usize>,
    /// Bytes of a record, as an exponent.
    lg2_bytes: u32,
    /// Bit of the control register that turns it on.
    enable: u64,
    /// Bits of the status.
    interrupt: u64,
    overflow: u64,
}

pub(super) const EVENTS: LogRegisters = LogRegisters {
    base: reg::EVENT_BASE,
    head: reg::EVENT_HEAD,
    tail: reg::EVENT_TAIL,
    tail_copy: None,
    lg2_bytes: LG2_BYTES,
    enable: control::EVENT_LOG,
    interrupt: status::EVENT_INTERRUPT,
    overflow: status::EVENT_OVERFLOW,
};

pub(super) const REQUESTS: LogRegisters = LogRegisters {
    base: reg::REQUEST_BASE,
    head: reg::REQUEST_HEAD,
    tail: reg::REQUEST_TAIL,
    tail_copy: None,
    lg2_bytes: LG2_BYTES,
    enable: control::REQUEST_LOG,
    interrupt: status::REQUEST_INTERRUPT,
    overflow: status::REQUEST_OVERFLOW,
};

pub(super) const SLEEPERS: LogRegisters = LogRegisters {
    base: reg::GUEST_LOG_BASE,
    head: reg::GUEST_LOG_HEAD,
    tail: reg::GUEST_LOG_TAIL,
    tail_copy: Some(reg::GUEST_LOG_TAIL_COPY),
    lg2_bytes: guest_log::LG2_BYTES,
    enable: control::GUEST_LOG,
    interrupt: status::GUEST_LOG_INTERRUPT,
    overflow: status::GUEST_LOG_OVERFLOW,
};

/// State of reading.
#[derive(Debug, Default)]
struct LogReader {
    /// Slot of the next record to read.
    next: u64,
    /// Since when that record is announced and not written.
    unwritten_since: Option<Nanos>,
}

/// A record; one of one word has a second that is zero.
pub(super) type Record = [u64; 2];

/// The oldest record.
pub(super) enum Oldest {
    /// There is none.
    Nothing,
    /// It is announced, and not written yet.
    Unwritten,
    /// It has left the log; it has a code of zero if it was never written.
    Record(Record),
}

/// Logging after a look at an empty log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Logging {
    /// It goes on as it did.
    GoesOn,
    /// It had stopped, and records were lost.
    TurnedOn,
}

/// The log.
pub(super) struct Log<P: UnitPlatform> {
    registers: LogRegisters,
    base: PhysAddr,
    size: PageSize,
    lg2_slots: u32,
    reader: Guarded<P, LogReader>,
}

impl<P: UnitPlatform> Log<P> {
    /// A log of `2^lg2_slots` records (8 to 15 of two words, 9 to 16 of one), not yet handed to the unit.
    pub(super) fn new(
        mem: &impl TableMem<AtomicU64>,
        registers: LogRegisters,
        lg2_slots: u32,
    ) -> Result<Self, OutOfTableMemory> {
        let lg2 = lg2_slots.saturating_add(registers.lg2_bytes).clamp(LG2_LEAST, LG2_MOST);
        let lg2_slots = lg2 - registers.lg2_bytes;
        // The copy of the tail is behind the records.
        let size = PageSize::of_lg2(lg2 + u32::from(registers.tail_copy.is_some()));
        let base = mem.alloc(size)?;
        Ok(Self { registers, base, size, lg2_slots, reader: Guarded::default() })
    }

    /// Reads at the first slot next, of a log without records.
    fn begin_again(&self) {
        *self.reader.lock() = LogReader::default();
    }

    fn lg2(&self) -> u32 {
        self.lg2_slots + self.registers.lg2_bytes
    }

    /// Hands the log to a unit that does not use it, as an empty one whose overflow and interrupt are past.
    ///
    /// # Errors
    /// [`IommuError::Nonsense`] if the unit does not take its address.
    pub(super) fn hand_over(&self, unit: &AmdControl<P>) -> Result<(), IommuError> {
        let LogRegisters { base, head, tail, interrupt, overflow, .. } = self.registers;
        let regs = &unit.regs;
        self.begin_again();
        let address = self.base.get() | reg::LENGTH.at((self.lg2() - LG2_UNIT).into());
        regs.write64(base, address);
        // While SNP is on it keeps the address of the kernel that turned it on (2.12.2.1).
        regs.holds(base, address)?;
        if let Some(copy) = self.registers.tail_copy {
            regs.write64(copy, self.base.get() + (1 << self.lg2()));
        }
        regs.write64(head, 0);
        regs.write64(tail, 0);
        regs.write64(reg::STATUS, overflow | interrupt);
        Ok(())
    }

    /// Gives the memory back. The unit must have stopped using it.
    pub(super) fn free(&self, mem: &impl TableMem<AtomicU64>) {
        mem.free(self.base, self.size);
    }

    fn slot(&self, index: u64) -> u64 {
        index & ((1 << self.lg2_slots) - 1)
    }

    fn words<'m>(&self, mem: &'m impl TableMem<AtomicU64>, slot: u64) -> &'m [AtomicU64] {
        let words = (1 << self.registers.lg2_bytes) / size_of::<u64>();
        let first = slot as usize * words;
        let log = mem.table(self.base, self.size);
        log.get(first..first + words).unwrap_or(&[])
    }

    fn read(&self, mem: &impl TableMem<AtomicU64>, slot: u64) -> Record {
        match self.words(mem, slot) {
            [low, high] => [Word::load(low), Word::load(high)],
            [word] => [Word::load(word), 0],
            _ => [0, 0],
        }
    }

    /// Slot behind the last record.
    fn tail(&self, unit: &AmdControl<P>) -> Result<u64, IommuError> {
        let offset = self.registers.tail;
        let value = unit.read(offset)?;
        let index = reg::POINTER.of(value) >> self.registers.lg2_bytes;
        if index > 1 << self.lg2_slots {
            Err(IommuError::Nonsense { offset, value })
        } else {
            Ok(self.slot(index))
        }
    }

    /// Takes one turn of the log at most: a unit that logs faster than we read must not keep us.
    pub(super) fn most(&self) -> u64 {
        1 << self.lg2_slots
    }

    /// Acknowledges the interrupt, before the log is looked at: what comes from now on interrupts again.
    pub(super) fn acknowledge(&self, unit: &AmdControl<P>) {
        unit.regs.write64(reg::STATUS, self.registers.interrupt);
    }

    /// Takes the oldest record, which `note` sees before the log forgets it. The tail may move before the
    /// record is there; a few looks bridge that, and a record that does not come within the limit counts as
    /// lost.
    pub(super) fn take(
        &self,
        unit: &AmdControl<P>,
        note: impl Fn(&Record),
    ) -> Result<Oldest, IommuError> {
        for _ in 0..LOOKS {
            match self.look(unit, &note)? {
                Oldest::Unwritten => unit.clock.relax(),
                other => return Ok(other),
            }
        }
        Ok(Oldest::Unwritten)
    }

    fn look(&self, unit: &AmdControl<P>, note: &impl Fn(&Record)) -> Result<Oldest, IommuError> {
        let mut reader = self.reader.lock();
        if reader.next == self.tail(unit)? {
            return Ok(Oldest::Nothing);
        }
        let record = self.read(&unit.mem, reader.next);
        if CODE.of(record[0]) == 0 {
            let now = unit.clock.now();
            let since = *reader.unwritten_since.get_or_insert(now);
            if now.since(since) < unit.limit {
                return Ok(Oldest::Unwritten);
            }
        }
        note(&record);
        for word in self.words(&unit.mem, reader.next) {
            Word::store(word, 0);
        }
        reader.unwritten_since = None;
        reader.next = self.slot(reader.next + 1);
        let head = reg::POINTER.at(reader.next << self.registers.lg2_bytes);
        unit.regs.write64(self.registers.head, head);
        Ok(Oldest::Record(record))
    }

    /// Turns logging on again if it stopped because the log was full (2.5.1, 2.6).
    pub(super) fn restart(&self, unit: &AmdControl<P>) -> Result<Logging, IommuError> {
        // Held so that no other caller turns logging off between the two.
        let _held = self.reader.lock();
        if !self.has_overflown(unit)? {
            return Ok(Logging::GoesOn);
        }
        unit.switch(!self.registers.enable, 0)?;
        unit.regs.write64(reg::STATUS, self.registers.overflow);
        unit.switch(u64::MAX, self.registers.enable)?;
        Ok(Logging::TurnedOn)
    }

    /// Tells if records were lost since logging was last turned on.
    pub(super) fn has_overflown(&self, unit: &AmdControl<P>) -> Result<bool, IommuError> {
        Ok(unit.read(reg::STATUS)? & self.registers.overflow != 0)
    }

    /// Records that are still in the log, the newest first. Looks without a lock, as the log may be long:
    /// records that are read meanwhile may be among them or not.
    pub(super) fn unread(&self, unit: &AmdControl<P>) -> impl Iterator<Item = Record> {
        let next = self.reader.lock().next;
        let tail = self.tail(unit).unwrap_or(next);
        let count = self.slot(tail.wrapping_sub(next));
        (0..count).rev().map(move |ahead| self.read(&unit.mem, self.slot(next + ahead)))
    }
}
