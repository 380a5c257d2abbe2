//! The event log: records of accesses that the unit refused, of commands, and of devices that did not answer.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, section 2.5.
//! Events of commands are kept for the caller that repairs the queue, and invalidations that a device did
//! not answer in time are counted for the callers that wait for it; events that no driver here causes
//! (counters) come as [`FaultReason::Other`].

use super::command::AmdControl;
use super::command::refusal;
use super::config::Config;
use super::log::{EVENTS, Log, Logging, Oldest, REQUESTS, Record};
use super::sleepers::Sleepers;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use portolan::addr::{Iova, Pasid, StreamId};
use portolan::iommu::{
    FaultAccess, FaultEvent, FaultReason, FaultRecord, InterruptRefusal, IommuError,
};
use portolan::platform::{OutOfTableMemory, TableMem, UnitPlatform};
use portolan_spec::amd::event;
use portolan_spec::amd::event::code;

/// The log of events.
pub(super) struct Events<P: UnitPlatform> {
    pub(super) log: Log<P>,
    /// The last event of a command that was read: its code, in bits 63:60, and the address.
    command: AtomicU64,
    /// Events of devices that did not answer, among those that were read.
    silences: AtomicU64,
    /// The log was emptied, and no caller has heard of it.
    emptied: AtomicBool,
}

impl<P: UnitPlatform> Events<P> {
    /// A log of `2^lg2_slots` events (8 to 15), not yet handed to the unit.
    pub(super) fn new(
        mem: &impl TableMem<AtomicU64>,
        lg2_slots: u32,
    ) -> Result<Self, OutOfTableMemory> {
        let log = Log::new(mem, EVENTS, lg2_slots)?;
        let [command, silences] = [0, 0].map(AtomicU64::new);
        Ok(Self { log, command, silences, emptied: AtomicBool::new(false) })
    }

    /// The oldest event of an access, or that some were lost.
    pub(super) fn next(&self, unit: &AmdControl<P>) -> Result<Option<FaultEvent>, IommuError> {
        self.log.acknowledge(unit);
        for _ in 0..self.log.most() {
            let record = match self.log.take(unit, |record| self.note(record))? {
                Oldest::Nothing => {
                    let stopped = self.log.restart(unit)? == Logging::TurnedOn;
                    let lost = self.emptied.swap(false, Ordering::Relaxed) || stopped;
                    return Ok(lost.then_some(FaultEvent::Lost));
                }
                Oldest::Unwritten => return Ok(None),
                Oldest::Record(record) => record,
            };
            match event::CODE.of(record[0]) {
                0 => return Ok(Some(FaultEvent::Lost)),
                code::ILLEGAL_COMMAND | code::COMMAND_HARDWARE | code::DEVICE_TLB_TIMEOUT => {}
                _ => return Ok(Some(FaultEvent::Fault(decode_event(record)))),
            }
        }
        Ok(None)
    }

    /// Keeps what a record says of a command, before the log forgets it.
    fn note(&self, record: &Record) {
        match event::CODE.of(record[0]) {
            kind @ (code::ILLEGAL_COMMAND | code::COMMAND_HARDWARE) => {
                let note = event::CODE.at(kind) | record[1] & !event::CODE.mask();
                self.command.store(note, Ordering::Relaxed);
            }
            code::DEVICE_TLB_TIMEOUT => {
                self.silences.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// Empties the log if it is full, so that events of devices that do not answer find room: no caller may be
    /// reading it. Its records count as lost.
    pub(super) fn make_room(&self, unit: &AmdControl<P>) -> Result<(), IommuError> {
        if !self.log.has_overflown(unit)? {
            return Ok(());
        }
        self.emptied.store(true, Ordering::Relaxed);
        for _ in 0..self.log.most() {
            match self.log.take(unit, |record| self.note(record))? {
                Oldest::Record(_) => {}
                Oldest::Nothing | Oldest::Unwritten => break,
            }
        }
        self.log.restart(unit).map(drop)
    }

    /// Number of invalidations that devices did not answer in time, so far; not fewer than there were
    /// before the call. As records may be read meanwhile, those of one of them count twice then.
    pub(super) fn silences_at_most(&self, unit: &AmdControl<P>) -> u64 {
        let unread = self.unread_silences(unit);
        unread + self.silences.load(Ordering::Relaxed)
    }

    /// The same number; not more than there were by the end of the call.
    pub(super) fn silences_at_least(&self, unit: &AmdControl<P>) -> u64 {
        let read = self.silences.load(Ordering::Relaxed);
        read + self.unread_silences(unit)
    }

    fn unread_silences(&self, unit: &AmdControl<P>) -> u64 {
        let all = self.log.unread(unit);
        let silent = |record: &Record| event::CODE.of(record[0]) == code::DEVICE_TLB_TIMEOUT;
        all.filter(silent).count() as u64
    }

    /// Reason of the unit's refusal of the command at `address`, from a record that was read or one
    /// that is still in the log.
    pub(super) fn of_command(&self, unit: &AmdControl<P>, address: u64) -> u32 {
        let kind = |record: Record| match event::CODE.of(record[0]) {
            code::ILLEGAL_COMMAND => Some(refusal::ILLEGAL),
            code::COMMAND_HARDWARE => Some(refusal::HARDWARE),
            _ => None,
        };
        let is_it = |record: &Record| record[1] & !event::CODE.mask() == address;
        let newest = self.log.unread(unit).filter(is_it).find_map(kind);
        let read = self.command.swap(0, Ordering::Relaxed);
        let read = Some([read, read]).filter(is_it).and_then(kind);
        newest.or(read).unwrap_or(refusal::UNKNOWN)
    }
}

/// The logs of a unit.
pub(super) struct Logs<P: UnitPlatform> {
    pub(super) events: Events<P>,
    pub(super) requests: Option<Log<P>>,
    pub(super) sleepers: Option<Sleepers<P>>,
}

impl<P: UnitPlatform> Logs<P> {
    /// Those of a unit with `config`, not yet handed to it.
    pub(super) fn new(
        mem: &impl TableMem<AtomicU64>,
        config: &Config,
    ) -> Result<Self, OutOfTableMemory> {
        let events = Events::new(mem, config.events_lg2)?;
        let mut logs = Self { events, requests: None, sleepers: None };
        logs.fill(mem, config).inspect_err(|_| logs.free(mem))?;
        Ok(logs)
    }

    fn fill(
        &mut self,
        mem: &impl TableMem<AtomicU64>,
        config: &Config,
    ) -> Result<(), OutOfTableMemory> {
        self.requests = config.requests_lg2.map(|lg2| Log::new(mem, REQUESTS, lg2)).transpose()?;
        self.sleepers = config.sleepers_lg2.map(|lg2| Sleepers::new(mem, lg2)).transpose()?;
        Ok(())
    }

    /// All that there are.
    pub(super) fn all(&self) -> impl Iterator<Item = &Log<P>> {
        let sleepers = self.sleepers.iter().map(|of| &of.log);
        [&self.events.log].into_iter().chain(&self.requests).chain(sleepers)
    }

    /// Gives their memory back. The unit must have stopped using it.
    pub(super) fn free(&self, mem: &impl TableMem<AtomicU64>) {
        self.all().for_each(|log| log.free(mem));
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
    // That of accesses without a PASID is 0.
    let pasid = event::PASID_HIGH.of(low) << 16 | event::PASID_LOW.of(low);
    let pasid = Some(pasid as u32).filter(|pasid| is_fault && flag(event::GUEST) && *pasid != 0);
    FaultRecord {
        stream: StreamId::new(event::DEVICE.of(low) as u32),
        pasid: pasid.map(Pasid::new),
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
        // Guest tables of PASID 0xabcde; without the flag the field is a domain.
        let guest = fault(2 << 60 | 1 << 48 | 0xbcde << 32 | 0xa << 16 | 0x0108);
        assert_eq!((guest.pasid, guest.stream), (Some(Pasid::new(0xa_bcde)), write.stream));
        assert_eq!(fault(2 << 60 | 0xbcde << 32).pasid, None);
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
