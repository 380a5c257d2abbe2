//! Faults as they are recorded, and accesses that stall.
//!
//! IHI 0062, fault handling: one global record, and one for each context bank; a record stays until
//! it is cleared, and tells if there were more. A bank may stall the access instead of ending it;
//! it then waits for an answer.
//!
//! *Context.* Interrupt, all functions: one place at a time is looked at under a lock, a few
//! registers each, and nothing is allocated.

use super::config::WriteKind;
use super::machine::Bank;
use super::machine::Held;
use super::unit::SmmuV2;
use portolan::addr::{Iova, StreamId};
use portolan::iommu::{FaultAccess, FaultEvent, FaultReason, FaultRecord, IommuError};
use portolan::platform::{Mmio, UnitPlatform};
use portolan_spec::smmuv2::bank::{self, fsr};
use portolan_spec::smmuv2::global::{self, gfsr};

/// Treatment of accesses of a domain that fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnFault {
    /// They end.
    #[default]
    Terminate,
    /// They wait for an answer: see [`SmmuV2::next_stall`].
    Stall,
}

/// A record, and a flag that is set if there were more.
struct Found {
    record: FaultRecord,
    more: bool,
}

/// A stalled access, which waits for its one answer. Dropped, it is terminated.
///
/// *Context.* Interrupt, all methods, and dropping it: an answer is two writes.
#[must_use]
pub struct Stalled<'u, P: UnitPlatform> {
    unit: &'u SmmuV2<P>,
    bank: Bank,
    serial: u64,
    status: u32,
    answer: u32,
    /// Stream, address and kind of the access.
    pub record: FaultRecord,
}

impl<P: UnitPlatform> core::fmt::Debug for Stalled<'_, P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Stalled").field(&self.record).finish()
    }
}

impl<P: UnitPlatform> Stalled<'_, P> {
    /// The access is tried again.
    pub fn retry(mut self) {
        self.answer = 0;
    }

    /// The access ends.
    pub fn terminate(self) {}
}

impl<P: UnitPlatform> Drop for Stalled<'_, P> {
    fn drop(&mut self) {
        let machine = &self.unit.shared.machine;
        let mut stalling = self.unit.shared.stalling.lock();
        let mut mine = stalling.banks.iter_mut();
        // The domain may have gone, and its bank may belong to another domain by now.
        let mine = mine.find(|(bank, serial, _)| (*bank, *serial) == (self.bank, self.serial));
        if let Some((bank, _, held)) = mine {
            let at = |offset| machine.bank(*bank, offset);
            machine.write(WriteKind::Fault, at(bank::FSR), self.status);
            machine.write(WriteKind::Fault, at(bank::RESUME), self.answer);
            *held = Held::No;
        }
    }
}

/// Decodes the fault status register of a context bank, of a unit or of a log.
///
/// *Context.* Interrupt: a value.
pub fn fault_reason(status: u32) -> FaultReason {
    match status {
        status if status & fsr::TF != 0 => FaultReason::NotMapped,
        status if status & fsr::PF != 0 => FaultReason::Permission,
        status if status & fsr::ASF != 0 => FaultReason::AddressSize,
        status if status & fsr::AFF != 0 => FaultReason::Table,
        status if status & fsr::EF != 0 => FaultReason::External,
        status if status & fsr::UUT != 0 => FaultReason::Configuration,
        code => FaultReason::Other { code },
    }
}

fn global_reason(status: u32) -> FaultReason {
    match status {
        status if status & (gfsr::USF | gfsr::ICF) != 0 => FaultReason::Blocked,
        status if status & (gfsr::SMCF | gfsr::UCBF | gfsr::UCIF) != 0 => {
            FaultReason::Configuration
        }
        status if status & gfsr::PF != 0 => FaultReason::Permission,
        status if status & gfsr::EF != 0 => FaultReason::External,
        code => FaultReason::Other { code },
    }
}

fn access(syndrome: u32, write: u32) -> FaultAccess {
    match syndrome & write {
        0 => FaultAccess::Read,
        _ => FaultAccess::Write,
    }
}

impl<P: UnitPlatform> SmmuV2<P> {
    /// The next record, of whichever bank's turn it is.
    pub(super) fn next_record(&self) -> Result<Option<FaultEvent>, IommuError> {
        // The global record is one place among those of the banks: no storm keeps others back.
        let places = self.features().banks as usize + 1;
        for _ in 0..places {
            let mut search = self.search.lock();
            if search.lost > 0 {
                search.lost -= 1;
                return Ok(Some(FaultEvent::Lost));
            }
            let place = search.next % places;
            search.next = (place + 1) % places;
            let bank = place.checked_sub(1).and_then(|n| u8::try_from(n).ok());
            let found = match bank.map(Bank) {
                None => self.global_record()?,
                Some(bank) if self.shared.in_use.lock().has(bank) => self.bank_record(bank)?,
                Some(_) => None,
            };
            if let Some(found) = found {
                search.lost += u32::from(found.more);
                return Ok(Some(FaultEvent::Fault(found.record)));
            }
        }
        Ok(None)
    }

    fn global_record(&self) -> Result<Option<Found>, IommuError> {
        let machine = &self.shared.machine;
        let status = machine.read(global::GFSR)?;
        if status == 0 {
            return Ok(None);
        }
        let syndrome = machine.read(global::GFSYNR0)?;
        let stream = machine.read(global::GFSYNR1)? & global::GFSYNR1_STREAM;
        let at = machine.registers.read64(global::GFAR);
        machine.write(WriteKind::Fault, global::GFSR, status);
        let record = FaultRecord {
            stream: StreamId::new(stream),
            pasid: None,
            iova: Some(Iova::new(at)),
            access: Some(access(syndrome, global::GFSYNR0_WRITE)),
            reason: global_reason(status),
        };
        let more = status & gfsr::MULTI != 0;
        Ok(Some(Found { record, more }))
    }

    /// Status and fault of a bank, which are not cleared.
    fn look(&self, bank: Bank) -> Result<Option<(u32, FaultRecord)>, IommuError> {
        let machine = &self.shared.machine;
        let status = machine.read(machine.bank(bank, bank::FSR))?;
        if status & fsr::FAULT == 0 {
            return Ok(None);
        }
        let syndrome = machine.read(machine.bank(bank, bank::FSYNR0))?;
        let who = machine.space1(global::cbfrsynra(bank.0.into()));
        let stream = machine.read(who)? & global::GFSYNR1_STREAM;
        let at = machine.registers.read64(machine.bank(bank, bank::FAR));
        let record = FaultRecord {
            stream: StreamId::new(stream),
            pasid: None,
            iova: Some(Iova::new(at)),
            access: Some(access(syndrome, bank::FSYNR0_WRITE)),
            reason: fault_reason(status),
        };
        Ok(Some((status, record)))
    }

    fn bank_record(&self, bank: Bank) -> Result<Option<Found>, IommuError> {
        let Some((status, record)) = self.look(bank)? else {
            return Ok(None);
        };
        let machine = &self.shared.machine;
        if status & fsr::SS != 0 && self.shared.stalling.lock().has(bank) {
            // It waits for an answer of its own.
            return Ok(None);
        }
        machine.write(WriteKind::Fault, machine.bank(bank, bank::FSR), status);
        if status & fsr::SS != 0 {
            let resume = machine.bank(bank, bank::RESUME);
            machine.write(WriteKind::Fault, resume, bank::TERMINATE);
        }
        let more = status & fsr::MULTI != 0;
        Ok(Some(Found { record, more }))
    }

    /// A stalled access of a domain with [`OnFault::Stall`], if there is one that no caller holds.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// [`IommuError::Gone`].
    pub fn next_stall(&self) -> Result<Option<Stalled<'_, P>>, IommuError> {
        for n in 0.. {
            let mut stalling = self.shared.stalling.lock();
            let Some((bank, serial, held)) = stalling.banks.get_mut(n) else {
                break;
            };
            if *held == Held::Yes {
                continue;
            }
            let found = self.look(*bank)?;
            if let Some((status, record)) = found.filter(|(status, _)| status & fsr::SS != 0) {
                *held = Held::Yes;
                return Ok(Some(Stalled {
                    unit: self,
                    bank: *bank,
                    serial: *serial,
                    status,
                    answer: bank::TERMINATE,
                    record,
                }));
            }
        }
        Ok(None)
    }
}
