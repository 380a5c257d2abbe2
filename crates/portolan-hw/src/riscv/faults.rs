//! Queues that the unit fills with faults and page requests, and the records of the fault queue.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, sections "Fault/Event-Queue", "Fault queue CSR"
//! and "Page-request-queue CSR". A record is in memory before the index moves past it, so that reading
//! waits for nothing and interrupt handlers can do it; reading acknowledges the interrupt of the
//! records that are read. A full queue, or one that could not be written, stops recording; once it
//! is read empty, recording goes on.

use super::command::{RiscvControl, Turned};
use crate::chassis::{Block, NextRecord};
use core::sync::atomic::AtomicU64;
use portolan::addr::{Iova, Pasid, StreamId};
use portolan::iommu::{
    FaultAccess, FaultEvent, FaultReason, FaultRecord, InterruptRefusal, IommuError,
};
use portolan::platform::{Guarded, Mmio, TableMem, UnitPlatform, Word};
use portolan_spec::riscv::fault::{self, ADDRESS, WORDS, access, cause};
use portolan_spec::riscv::reg::{self, LENGTH, pending, queue};
use portolan_spec::riscv::{page_of, request};

/// Next event of the unit.
pub(super) fn next<P: UnitPlatform>(
    records: &RecordQueue<P>,
    unit: &RiscvControl<P>,
) -> Result<Option<FaultEvent>, IommuError> {
    Ok(match records.next(unit)? {
        NextRecord::Record(words) => Some(FaultEvent::Fault(decode_fault(words))),
        NextRecord::Lost => Some(FaultEvent::Lost),
        NextRecord::Nothing => None,
    })
}

/// Decodes a fault record, of a unit or of a log.
///
/// *Context.* Interrupt: a value.
pub fn decode_fault(record: [u64; WORDS]) -> FaultRecord {
    let [word, ..] = record;
    let (kind, known) = match fault::TTYP.of(word) {
        access::FETCH | access::READ => (Some(FaultAccess::Read), true),
        access::WRITE => (Some(FaultAccess::Write), true),
        kind if access::TRANSLATED[..2].contains(&kind) => (Some(FaultAccess::Read), true),
        kind if kind == access::TRANSLATED[2] => (Some(FaultAccess::Write), true),
        access::REQUEST => (None, true),
        _ => (None, false),
    };
    let pasid = Pasid::new(fault::PID.of(word) as u32);
    FaultRecord {
        stream: StreamId::new(fault::DID.of(word) as u32),
        pasid: (fault::PV.of(word) == 1).then_some(pasid),
        iova: known.then(|| Iova::new(record[ADDRESS])),
        access: kind,
        reason: reason(fault::CAUSE.of(word)),
    }
}

/// Reason of a fault, by its cause. Every page fault is [`FaultReason::NotMapped`], until the
/// tables are read.
fn reason(code: u64) -> FaultReason {
    let refused = |refusal| FaultReason::Interrupt { index: None, refusal };
    let [unreadable, absent, malformed] = cause::MESSAGE;
    match code {
        code if cause::PAGE.contains(&code) => FaultReason::NotMapped,
        code if cause::GUEST_PAGE.contains(&code) => FaultReason::NotMapped,
        code if cause::ACCESS.contains(&code) => FaultReason::External,
        cause::OFF | cause::NO_CONTEXT | cause::DISALLOWED | cause::NO_PROCESS => {
            FaultReason::Blocked
        }
        cause::BAD_CONTEXT | cause::BAD_PROCESS => FaultReason::Configuration,
        cause::DIRECTORY_ACCESS | cause::PROCESS_ACCESS => FaultReason::External,
        cause::CORRUPT_FIRST..=cause::CORRUPT_LAST => FaultReason::External,
        code if code == unreadable => refused(InterruptRefusal::External),
        code if code == absent => refused(InterruptRefusal::Absent),
        code if code == malformed => refused(InterruptRefusal::Malformed),
        cause::MESSAGE_FILE => refused(InterruptRefusal::External),
        other => FaultReason::Other { code: other as u32 },
    }
}

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
pub(super) struct RecordQueue<P: UnitPlatform> {
    registers: Registers,
    block: Block,
    lg2_slots: u32,
    /// Bits of its control register beside that which turns it on.
    more: u32,
    /// Index of the next record to read. Held as well while the control register is written.
    next: Guarded<P, u32>,
}

impl<P: UnitPlatform> RecordQueue<P> {
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
    pub(super) fn install(&self, unit: &RiscvControl<P>) -> Result<(), IommuError> {
        let length = LENGTH.at(u64::from(self.lg2_slots) - 1);
        unit.install(self.registers.base, page_of(self.block.at.get()) | length)?;
        let mut next = self.next.lock();
        *next = 0;
        unit.regs.write32(self.registers.head, *next);
        Ok(())
    }

    /// Has the unit fill it.
    pub(super) fn turn_on(&self, unit: &RiscvControl<P>) -> Result<(), IommuError> {
        let more = self.more;
        unit.turn_queue(self.registers.control, Turned::On { more })
    }

    /// Has the unit leave it alone.
    pub(super) fn turn_off(&self, unit: &RiscvControl<P>) -> Result<(), IommuError> {
        unit.turn_queue(self.registers.control, Turned::Off)
    }

    /// Gives the memory back. The unit must have stopped using it.
    pub(super) fn free(&self, mem: &impl TableMem<AtomicU64>) {
        self.block.free(mem);
    }

    /// Returns the next record of the unit.
    pub(super) fn next(&self, unit: &RiscvControl<P>) -> Result<NextRecord<WORDS>, IommuError> {
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
        Ok(NextRecord::Record(record))
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
    fn go_on(&self, unit: &RiscvControl<P>) -> Result<NextRecord<WORDS>, IommuError> {
        let offset = self.registers.control;
        let status = unit.read(offset)?;
        if status & queue::ON == 0 {
            return Err(IommuError::Stopped);
        }
        let errors = status & (queue::MEMORY_FAULT | queue::OVERFLOW);
        if errors == 0 || status & queue::BUSY != 0 {
            return Ok(NextRecord::Nothing);
        }
        let value = queue::ENABLE | self.more | errors;
        unit.regs.write32(offset, value);
        let after = unit.read(offset)?;
        // An empty queue does not overflow, and one that cannot be written is beyond repair: a
        // caller that reads until there is nothing left has to come to an end.
        if after & queue::BUSY == 0 && after & errors != 0 {
            Err(IommuError::Nonsense { offset, value: after.into() })
        } else {
            Ok(NextRecord::Lost)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_by_hand() {
        // A write page fault of device 0x1234 in address space 0xabcde.
        let word = 0x1234 << 40 | 3 << 34 | 1 << 32 | 0xa_bcde << 12 | 15;
        let wanted = FaultRecord {
            stream: StreamId::new(0x1234),
            pasid: Some(Pasid::new(0xa_bcde)),
            iova: Some(Iova::new(0x4000_0123)),
            access: Some(FaultAccess::Write),
            reason: FaultReason::NotMapped,
        };
        assert_eq!(decode_fault([word, 0, 0x4000_0123, 0]), wanted);
        // Without an access: the unit's own message could not be sent.
        let own = decode_fault([273, 0, 0x2800_0000, 0]);
        assert_eq!((own.iova, own.access, own.pasid), (None, None, None));
        assert_eq!(own.reason, FaultReason::External);
        let kind = |ttyp: u64| decode_fault([ttyp << 34 | 13, 0, 0, 0]).access;
        for reads in [1, 2, 5, 6] {
            assert_eq!(kind(reads), Some(FaultAccess::Read));
        }
        assert_eq!((kind(7), kind(8)), (Some(FaultAccess::Write), None));
    }

    #[test]
    fn causes_by_hand() {
        let of = |code| decode_fault([code, 0, 0, 0]).reason;
        for page in [12, 13, 15, 20, 21, 23] {
            assert_eq!(of(page), FaultReason::NotMapped, "{page}");
        }
        for external in [1, 5, 7, 257, 265, 268, 269, 272, 274] {
            assert_eq!(of(external), FaultReason::External, "{external}");
        }
        for blocked in [256, 258, 260, 266] {
            assert_eq!(of(blocked), FaultReason::Blocked, "{blocked}");
        }
        assert_eq!(of(259), FaultReason::Configuration);
        assert_eq!(of(267), FaultReason::Configuration);
        let refusal = InterruptRefusal::Absent;
        let message = FaultReason::Interrupt { index: None, refusal };
        assert_eq!(of(262), message);
        for other in [0, 4, 6, 275, 2048] {
            let code = other as u32;
            assert_eq!(of(other), FaultReason::Other { code });
        }
    }
}
