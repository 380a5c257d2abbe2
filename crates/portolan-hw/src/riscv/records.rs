//! Queues that the unit fills: faults and page requests.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, sections "Fault queue CSR" and
//! "Page-request-queue CSR". A record is in memory before the index moves past it, so that reading
//! waits for nothing and interrupt handlers can do it; reading acknowledges the interrupt of the
//! records that are read. A full queue, or one that could not be written, stops recording; once it
//! is read empty, recording goes on.

use core::sync::atomic::AtomicU64;

use portolan::iommu::IommuError;
use portolan::platform::{Guarded, Mmio, TableMem, UnitPlatform, Word};

use super::control::{Control, Turned};
use crate::chassis::Block;
use portolan_spec::riscv::fault::WORDS;
use portolan_spec::riscv::reg::{self, LENGTH, pending, queue};
use portolan_spec::riscv::{fault, page_of, request};

/// The registers of a queue, and the greatest lengths of it and its records.
#[derive(Debug)]
pub(super) struct Registers {
    base: usize,
    head: usize,
    tail: usize,
    control: usize,
    /// Its bit of the register of pending interrupts; with that of the faults, that of counters, so
    /// that none of those goes on interrupting a handler that does not serve it.
    pending: u32,
    /// Bytes of a record, as an exponent.
    lg2_bytes: u32,
    /// Exponents of the number of records that it can have: a page at least.
    lg2_slots: core::ops::RangeInclusive<u32>,
}

pub(super) const FAULTS: Registers = Registers {
    base: reg::FAULT_BASE,
    head: reg::FAULT_HEAD,
    tail: reg::FAULT_TAIL,
    control: reg::FAULT_CONTROL,
    pending: pending::FAULTS | pending::COUNTERS,
    lg2_bytes: fault::LG2_BYTES,
    lg2_slots: 7..=15,
};

pub(super) const REQUESTS: Registers = Registers {
    base: reg::REQUEST_BASE,
    head: reg::REQUEST_HEAD,
    tail: reg::REQUEST_TAIL,
    control: reg::REQUEST_CONTROL,
    pending: pending::REQUESTS,
    lg2_bytes: request::LG2_BYTES,
    lg2_slots: 8..=15,
};

/// A queue.
pub(super) struct Records<P: UnitPlatform> {
    registers: Registers,
    block: Block,
    lg2_slots: u32,
    /// Bits of its control register beside that which turns it on.
    more: u32,
    /// Index of the next record to read. Held as well while the control register is written.
    next: Guarded<P, u32>,
}

/// Next record of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A record; zeros behind its words.
    Record([u64; WORDS]),
    /// Some were lost.
    Lost,
    Nothing,
}

impl<P: UnitPlatform> Records<P> {
    /// A queue of `2^lg2_slots` records, as far as it can have so many, not yet handed to the unit, that has
    /// `more` bits in its control register.
    pub(super) fn new(
        mem: &impl TableMem<AtomicU64>,
        registers: Registers,
        lg2_slots: u32,
        more: u32,
    ) -> Result<Self, IommuError> {
        let most = &registers.lg2_slots;
        let lg2_slots = lg2_slots.clamp(*most.start(), *most.end());
        let block = Block::new(mem, lg2_slots + registers.lg2_bytes)?;
        Ok(Self { registers, block, lg2_slots, more, next: Guarded::new(0) })
    }

    /// Tells the unit of it; the queue has to be off.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] if the unit has none so long.
    pub(super) fn install(&self, unit: &Control<P>) -> Result<(), IommuError> {
        let length = LENGTH.at(u64::from(self.lg2_slots) - 1);
        unit.install(self.registers.base, page_of(self.block.at.get()) | length)?;
        unit.regs.write32(self.registers.head, 0);
        Ok(())
    }

    /// Has the unit fill it.
    pub(super) fn turn_on(&self, unit: &Control<P>) -> Result<(), IommuError> {
        let more = self.more;
        unit.turn_queue(self.registers.control, Turned::On { more })
    }

    /// Has the unit leave it alone.
    pub(super) fn turn_off(&self, unit: &Control<P>) -> Result<(), IommuError> {
        unit.turn_queue(self.registers.control, Turned::Off)
    }

    /// Gives the memory back. The unit must have stopped using it.
    pub(super) fn free(&self, mem: &impl TableMem<AtomicU64>) {
        self.block.free(mem);
    }

    /// Returns the next record of the unit.
    pub(super) fn next(&self, unit: &Control<P>) -> Result<Next, IommuError> {
        let mut next = self.next.lock();
        if self.more & queue::INTERRUPT != 0 {
            // Before the queue is looked at: what comes from now on interrupts again.
            unit.regs.write32(reg::PENDING, self.registers.pending);
        }
        let offset = self.registers.tail;
        let tail = unit.read(offset)?;
        if tail >> self.lg2_slots != 0 {
            let value = tail.into();
            return Err(IommuError::Nonsense { offset, value });
        }
        if *next == tail {
            return self.go_on(unit);
        }
        let record = self.read(&unit.mem, *next);
        *next = (*next + 1) & ((1 << self.lg2_slots) - 1);
        unit.regs.write32(self.registers.head, *next);
        Ok(Next::Record(record))
    }

    fn read(&self, mem: &impl TableMem<AtomicU64>, slot: u32) -> [u64; WORDS] {
        let words = 1 << (self.registers.lg2_bytes - 3);
        let first = slot as usize * words;
        let words = self.block.words(mem).get(first..first + words);
        let mut record = [0; WORDS];
        for (value, word) in record.iter_mut().zip(words.unwrap_or(&[])) {
            *value = Word::load(word);
        }
        record
    }

    /// The queue is empty: has the unit record again if it has stopped.
    fn go_on(&self, unit: &Control<P>) -> Result<Next, IommuError> {
        let offset = self.registers.control;
        let status = unit.read(offset)?;
        if status & queue::ON == 0 {
            return Err(IommuError::Stopped);
        }
        let errors = status & (queue::MEMORY_FAULT | queue::OVERFLOW);
        if errors == 0 || status & queue::BUSY != 0 {
            return Ok(Next::Nothing);
        }
        let value = queue::ENABLE | self.more | errors;
        unit.regs.write32(offset, value);
        let after = unit.read(offset)?;
        // An empty queue does not overflow, and one that cannot be written is beyond repair: a
        // caller that reads until there is nothing left has to come to an end.
        match after & queue::BUSY == 0 && after & errors != 0 {
            true => Err(IommuError::Nonsense { offset, value: after.into() }),
            false => Ok(Next::Lost),
        }
    }
}
