//! The event log: records of accesses that the unit refused, and of commands.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, section 2.5.
//! Events of commands are kept for the caller that repairs the queue; events that no driver here
//! causes (page requests, counters, guest tables) come as [`FaultReason::Other`]. Reading
//! acknowledges the interrupt of the records that were read. Reading the log waits for nothing, so
//! that interrupt handlers can do it: a record that the unit has announced and not yet written is
//! left for a later call. A full log stops the unit's logging; once it is read empty, logging is
//! turned on again.

use super::command::AmdControl;
use super::command::refusal;
use core::sync::atomic::{AtomicU64, Ordering};
use portolan::addr::{Iova, PageSize, PhysAddr, StreamId};
use portolan::iommu::{
    FaultAccess, FaultEvent, FaultReason, FaultRecord, InterruptRefusal, IommuError,
};
use portolan::platform::{Guarded, Mmio, Nanos, OutOfTableMemory, TableMem, UnitPlatform, Word};
use portolan_spec::amd::event::{LG2_BYTES, code};
use portolan_spec::amd::reg::{control, status};
use portolan_spec::amd::{event, reg};

/// Exponents of the number of events that a log can have.
const LG2_SLOTS: core::ops::RangeInclusive<u32> = 8..=15;

/// Looks at a record that is not yet written, in one call.
const LOOKS: u32 = 8;

/// State of reading.
#[derive(Debug, Default)]
struct EventReader {
    /// Slot of the next event to read.
    next: u64,
    /// Since when its record is announced and not written.
    unwritten_since: Option<Nanos>,
}

/// The log.
pub(super) struct Events<P: UnitPlatform> {
    base: PhysAddr,
    size: PageSize,
    lg2_slots: u32,
    reader: Guarded<P, EventReader>,
    /// The last event of a command that was read: its code, in bits 63:60, and the address.
    command: AtomicU64,
}

type Record = [u64; 2];

/// The oldest event.
enum Oldest {
    /// There is none.
    Nothing,
    /// It is announced, and its record is not written yet.
    Unwritten,
    /// Its record, which has left the log; with a code of zero if it was never written.
    Record(Record),
}

impl<P: UnitPlatform> Events<P> {
    /// A log of `2^lg2_slots` events (8 to 15), not yet handed to the unit.
    pub(super) fn new(
        mem: &impl TableMem<AtomicU64>,
        lg2_slots: u32,
    ) -> Result<Self, OutOfTableMemory> {
        let lg2_slots = lg2_slots.clamp(*LG2_SLOTS.start(), *LG2_SLOTS.end());
        let size = PageSize::of_lg2(lg2_slots + LG2_BYTES);
        Ok(Self {
            base: mem.alloc(size)?,
            size,
            lg2_slots,
            reader: Guarded::default(),
            command: AtomicU64::new(0),
        })
    }

    /// Reads at the first slot next, of a log without events.
    pub(super) fn begin_again(&self) {
        *self.reader.lock() = EventReader::default();
    }

    /// Value of the base register.
    pub(super) fn address(&self) -> u64 {
        self.base.get() | reg::LENGTH.at(self.lg2_slots.into())
    }

    /// Gives the memory back. The unit must have stopped using it.
    pub(super) fn free(&self, mem: &impl TableMem<AtomicU64>) {
        mem.free(self.base, self.size);
    }

    fn slot(&self, index: u64) -> u64 {
        index & ((1 << self.lg2_slots) - 1)
    }

    fn words<'m>(&self, mem: &'m impl TableMem<AtomicU64>, slot: u64) -> &'m [AtomicU64] {
        let first = slot as usize * 2;
        let log = mem.table(self.base, self.size);
        log.get(first..first + 2).unwrap_or(&[])
    }

    fn read(&self, mem: &impl TableMem<AtomicU64>, slot: u64) -> Record {
        match self.words(mem, slot) {
            [low, high] => [Word::load(low), Word::load(high)],
            _ => [0, 0],
        }
    }

    /// Slot behind the last event.
    fn tail(&self, unit: &AmdControl<P>) -> Result<u64, IommuError> {
        let offset = reg::EVENT_TAIL;
        let value = unit.read(offset)?;
        let index = reg::INDEX.of(value);
        if index > 1 << self.lg2_slots {
            Err(IommuError::Nonsense { offset, value })
        } else {
            Ok(self.slot(index))
        }
    }

    /// The oldest event of an access, or that some were lost.
    pub(super) fn next(&self, unit: &AmdControl<P>) -> Result<Option<FaultEvent>, IommuError> {
        // Before the log is looked at: what comes from now on interrupts again.
        unit.regs.write64(reg::STATUS, status::EVENT_INTERRUPT);
        // One turn of the log at most: a unit that logs faster than we read must not keep us.
        for _ in 0..1u64 << self.lg2_slots {
            let record = match self.take(unit)? {
                Oldest::Nothing => return self.restart(unit),
                Oldest::Unwritten => return Ok(None),
                Oldest::Record(record) => record,
            };
            match event::CODE.of(record[0]) {
                0 => return Ok(Some(FaultEvent::Lost)),
                code::ILLEGAL_COMMAND | code::COMMAND_HARDWARE => {}
                _ => return Ok(Some(FaultEvent::Fault(decode_event(record)))),
            }
        }
        Ok(None)
    }

    /// The oldest event. The tail may move before the record is there; a few looks bridge that, and a
    /// record that does not come within the limit counts as lost.
    fn take(&self, unit: &AmdControl<P>) -> Result<Oldest, IommuError> {
        for _ in 0..LOOKS {
            match self.look(unit)? {
                Oldest::Unwritten => unit.clock.relax(),
                other => return Ok(other),
            }
        }
        Ok(Oldest::Unwritten)
    }

    fn look(&self, unit: &AmdControl<P>) -> Result<Oldest, IommuError> {
        let mut reader = self.reader.lock();
        if reader.next == self.tail(unit)? {
            return Ok(Oldest::Nothing);
        }
        let record = self.read(&unit.mem, reader.next);
        let kind = event::CODE.of(record[0]);
        if kind == 0 {
            let now = unit.clock.now();
            let since = *reader.unwritten_since.get_or_insert(now);
            if now.since(since) < unit.limit {
                return Ok(Oldest::Unwritten);
            }
        }
        if matches!(kind, code::ILLEGAL_COMMAND | code::COMMAND_HARDWARE) {
            // Kept for the caller that repairs the queue, before the log forgets it.
            let note = event::CODE.at(kind) | record[1] & !event::CODE.mask();
            self.command.store(note, Ordering::Relaxed);
        }
        for word in self.words(&unit.mem, reader.next) {
            Word::store(word, 0);
        }
        reader.unwritten_since = None;
        reader.next = self.slot(reader.next + 1);
        let head = reg::INDEX.at(reader.next);
        unit.regs.write64(reg::EVENT_HEAD, head);
        Ok(Oldest::Record(record))
    }

    /// Turns logging on again if it stopped because the log was full (2.5.1).
    fn restart(&self, unit: &AmdControl<P>) -> Result<Option<FaultEvent>, IommuError> {
        // Held so that no other caller turns logging off between the two.
        let _held = self.reader.lock();
        if unit.read(reg::STATUS)? & status::EVENT_OVERFLOW == 0 {
            return Ok(None);
        }
        unit.switch(!control::EVENT_LOG, 0)?;
        unit.regs.write64(reg::STATUS, status::EVENT_OVERFLOW);
        unit.switch(u64::MAX, control::EVENT_LOG)?;
        Ok(Some(FaultEvent::Lost))
    }

    /// Reason of the unit's refusal of the command at `address`, from a record that was read or one
    /// that is still in the log. Looks without a lock: the log may be long, and the answer only
    /// explains.
    pub(super) fn of_command(&self, unit: &AmdControl<P>, address: u64) -> u32 {
        let kind = |record: Record| match event::CODE.of(record[0]) {
            code::ILLEGAL_COMMAND => Some(refusal::ILLEGAL),
            code::COMMAND_HARDWARE => Some(refusal::HARDWARE),
            _ => None,
        };
        let is_it = |record: &Record| record[1] & !event::CODE.mask() == address;
        let next = self.reader.lock().next;
        let tail = self.tail(unit).unwrap_or(next);
        let count = self.slot(tail.wrapping_sub(next));
        let newest = (0..count).rev().find_map(|ahead| {
            let record = self.read(&unit.mem, self.slot(next + ahead));
            Some(record).filter(is_it).and_then(kind)
        });
        let read = self.command.swap(0, Ordering::Relaxed);
        let read = Some([read, read]).filter(is_it).and_then(kind);
        newest.or(read).unwrap_or(refusal::UNKNOWN)
    }
}

/// Decodes an event of an access, of a unit or of a log.
///
/// *Context.* Interrupt: a value.
pub fn decode_event([low, high]: [u64; 2]) -> FaultRecord {
    let flag = |bits: portolan_spec::amd::Bits| bits.of(low) == 1;
    let reason = match event::CODE.of(low) {
        code::ILLEGAL_ENTRY => FaultReason::Configuration,
        code::PAGE_FAULT if flag(event::INTERRUPT) => FaultReason::Interrupt {
            index: None,
            refusal: if flag(event::RESERVED) {
                InterruptRefusal::Malformed
            } else {
                InterruptRefusal::Absent
            },
        },
        code::PAGE_FAULT if flag(event::RESERVED) => FaultReason::Table,
        code::PAGE_FAULT if flag(event::PRESENT) => FaultReason::Permission,
        code::PAGE_FAULT => FaultReason::NotMapped,
        code::DEVICE_TABLE | code::PAGE_TABLE => FaultReason::External,
        other => FaultReason::Other { code: other as u32 },
    };
    // Of the others the address is that of a table, or nothing.
    let is_fault = event::CODE.of(low) == code::PAGE_FAULT && !flag(event::INTERRUPT);
    let access = if flag(event::WRITE) { FaultAccess::Write } else { FaultAccess::Read };
    FaultRecord {
        stream: StreamId::new(event::DEVICE.of(low) as u32),
        pasid: None,
        iova: is_fault.then(|| Iova::new(high)),
        access: Some(access).filter(|_| is_fault && !flag(event::TRANSLATION)),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(low: u64) -> FaultRecord {
        decode_event([low, 0x4000_0123])
    }

    #[test]
    fn records_by_hand() {
        let write = fault(2 << 60 | 1 << 53 | 0x0108);
        let wanted = FaultRecord {
            stream: StreamId::new(0x0108),
            pasid: None,
            iova: Some(Iova::new(0x4000_0123)),
            access: Some(FaultAccess::Write),
            reason: FaultReason::NotMapped,
        };
        assert_eq!(write, wanted);
        let read = fault(2 << 60 | 1 << 52 | 0x0108);
        assert_eq!(read.reason, FaultReason::Permission);
        assert_eq!(read.access, Some(FaultAccess::Read));
        assert_eq!(fault(2 << 60 | 1 << 55).reason, FaultReason::Table);
        assert_eq!(fault(2 << 60 | 1 << 56).access, None);
        let illegal = fault(1 << 60);
        assert_eq!(illegal.reason, FaultReason::Configuration);
        assert_eq!((illegal.iova, illegal.access), (None, None));
        assert_eq!(fault(3 << 60).reason, FaultReason::External);
        assert_eq!(fault(4 << 60).reason, FaultReason::External);
        let device = fault(8 << 60);
        assert_eq!(device.reason, FaultReason::Other { code: 8 });
    }
}
