//! The fault queue: what the unit says of accesses that it refused.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, sections "Fault/Event-Queue" and "Fault queue
//! CSR". A record is in memory before the index moves past it, so that reading waits for nothing and
//! interrupt handlers can do it; reading acknowledges the interrupt of what is read. A full queue, or
//! one that could not be written, stops recording; once it is read empty, recording goes on.

use core::sync::atomic::AtomicU64;

use portolan::addr::{Iova, Pasid, StreamId};
use portolan::iommu::{
    FaultAccess, FaultEvent, FaultReason, FaultRecord, InterruptRefusal, IommuError,
};
use portolan::platform::{Cpus, Guarded, Mmio, TableMem, Word};

use super::control::Control;
use super::spec::fault::{self, ADDRESS, LG2_BYTES, WORDS, access, cause};
use super::spec::page_of;
use super::spec::reg::{self, LENGTH, pending, queue};
use crate::chassis::Block;

/// Exponents of the number of records that a queue can have.
const LG2_SLOTS: core::ops::RangeInclusive<u32> = 7..=15;

/// The queue.
#[derive(Debug)]
pub(super) struct Faults<C: Cpus> {
    block: Block,
    lg2_slots: u32,
    /// Bits of its control register beside that which turns it on.
    more: u32,
    /// Index of the next record to read. Held as well while the control register is written.
    next: Guarded<C, u32>,
}

type Record = [u64; WORDS];

impl<C: Cpus> Faults<C> {
    /// A queue of `2^lg2_slots` records (7 to 15), not yet handed to the unit, that has `more` bits in
    /// its control register.
    pub(super) fn new<M: TableMem<AtomicU64>>(
        mem: &M,
        lg2_slots: u32,
        more: u32,
    ) -> Result<Self, IommuError> {
        let lg2_slots = lg2_slots.clamp(*LG2_SLOTS.start(), *LG2_SLOTS.end());
        Ok(Self {
            block: Block::new(mem, lg2_slots + LG2_BYTES)?,
            lg2_slots,
            more,
            next: Guarded::new(0),
        })
    }

    /// What the base register has to hold.
    pub(super) fn base(&self) -> u64 {
        page_of(self.block.at.get()) | LENGTH.at(u64::from(self.lg2_slots) - 1)
    }

    /// Bits of its control register beside that which turns it on.
    pub(super) fn more(&self) -> u32 {
        self.more
    }

    /// Gives the memory back. The unit must have stopped using it.
    pub(super) fn free<M: TableMem<AtomicU64>>(&self, mem: &M) {
        self.block.free(mem);
    }

    /// What the unit has to say next.
    pub(super) fn next<R: Mmio, M: TableMem<AtomicU64>>(
        &self,
        unit: &Control<R, M, C>,
    ) -> Result<Option<FaultEvent>, IommuError> {
        let mut next = self.next.lock();
        if self.more & queue::INTERRUPT != 0 {
            // Before the queue is looked at: what comes from now on interrupts again.
            unit.regs.write32(reg::PENDING, pending::FAULTS);
        }
        let offset = reg::FAULT_TAIL;
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
        unit.regs.write32(reg::FAULT_HEAD, *next);
        Ok(Some(FaultEvent::Fault(decode(record))))
    }

    fn read<M: TableMem<AtomicU64>>(&self, mem: &M, slot: u32) -> Record {
        let first = slot as usize * WORDS;
        let words = self.block.words(mem).get(first..first + WORDS);
        let mut record = [0; WORDS];
        for (value, word) in record.iter_mut().zip(words.unwrap_or(&[])) {
            *value = Word::load(word);
        }
        record
    }

    /// The queue is empty: has the unit record again if it has stopped.
    fn go_on<R: Mmio, M>(&self, unit: &Control<R, M, C>) -> Result<Option<FaultEvent>, IommuError> {
        let offset = reg::FAULT_CONTROL;
        let status = unit.read(offset)?;
        if status & queue::ON == 0 {
            return Err(IommuError::Stopped);
        }
        let errors = status & (queue::MEMORY_FAULT | queue::OVERFLOW);
        if errors == 0 || status & queue::BUSY != 0 {
            return Ok(None);
        }
        let value = queue::ENABLE | self.more | errors;
        unit.regs.write32(offset, value);
        let after = unit.read(offset)?;
        // An empty queue does not overflow, and one that cannot be written is beyond repair: whoever
        // reads until there is nothing left has to come to an end.
        match after & queue::BUSY == 0 && after & errors != 0 {
            true => Err(IommuError::Nonsense {
                offset,
                value: after.into(),
            }),
            false => Ok(Some(FaultEvent::Lost)),
        }
    }
}

/// What a record says.
fn decode(record: Record) -> FaultRecord {
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

/// Why, by the cause. A page fault is told no further: [`FaultReason::NotMapped`], until somebody looks.
fn reason(code: u64) -> FaultReason {
    let refused = |refusal| FaultReason::Interrupt {
        index: None,
        refusal,
    };
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
        assert_eq!(decode([word, 0, 0x4000_0123, 0]), wanted);
        // Without an access: the unit's own message could not be sent.
        let own = decode([273, 0, 0x2800_0000, 0]);
        assert_eq!((own.iova, own.access, own.pasid), (None, None, None));
        assert_eq!(own.reason, FaultReason::External);
        let kind = |ttyp: u64| decode([ttyp << 34 | 13, 0, 0, 0]).access;
        for reads in [1, 2, 5, 6] {
            assert_eq!(kind(reads), Some(FaultAccess::Read));
        }
        assert_eq!((kind(7), kind(8)), (Some(FaultAccess::Write), None));
    }

    #[test]
    fn causes_by_hand() {
        let of = |code| decode([code, 0, 0, 0]).reason;
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
        let message = FaultReason::Interrupt {
            index: None,
            refusal,
        };
        assert_eq!(of(262), message);
        for other in [0, 4, 6, 275, 2048] {
            let code = other as u32;
            assert_eq!(of(other), FaultReason::Other { code });
        }
    }
}
