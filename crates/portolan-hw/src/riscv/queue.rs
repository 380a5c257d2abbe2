//! The command queue: the RISC-V IOMMU's interface to the ring ([`crate::chassis::ring`]).
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, sections "Command-queue CSR" and
//! "Command-Queue". The sync is an IOFENCE.C that stores its number; the head passes it once all in
//! front is complete, so that the index tells as well. A unit that meets a bad command stops at it,
//! and may have dropped commands in front of it that no IOFENCE.C has confirmed: the submitter of
//! the bad one is told, and all producers whose commands were under way submit them again. A device
//! that does not answer stops the unit at the IOFENCE.C that waited for it; with the bit cleared it
//! goes on.

use core::sync::atomic::{AtomicU64, Ordering};

use portolan::addr::PhysAddr;
use portolan::iommu::IommuError;
use portolan::platform::{Mmio, Nanos, TableMem, UnitPlatform};

use super::command::{self, Counted};
use super::counts::CommandKind as Kind;
use super::refusal;
use super::shared::Shared;
use crate::chassis::{Ring, Shape, Stop, Unit, Words};
use portolan_spec::riscv::command::LG2_BYTES;
use portolan_spec::riscv::page_of;
use portolan_spec::riscv::reg::{self, LENGTH, queue};

/// Exponents of the number of commands that a ring can have.
const LG2_SLOTS: core::ops::RangeInclusive<u32> = 8..=15;

/// A ring of `2^lg2_slots` commands (8 to 15), not yet handed to the unit.
pub(super) fn ring<P: UnitPlatform>(
    mem: &impl TableMem<AtomicU64>,
    lg2_slots: u32,
) -> Result<Ring<P>, IommuError> {
    let shape = Shape {
        lg2_slots: lg2_slots.clamp(*LG2_SLOTS.start(), *LG2_SLOTS.end()),
        lg2_bytes: LG2_BYTES,
    };
    Ring::new(mem, shape, u64::MAX, Some(()))
}

/// Value of the base register.
pub(super) fn base<P: UnitPlatform>(ring: &Ring<P>) -> u64 {
    let length = LENGTH.at(u64::from(ring.shape().lg2_slots) - 1);
    page_of(ring.commands().at.get()) | length
}

impl<P: UnitPlatform> Unit for Shared<P> {
    type Memory = P::Memory;
    type Cpus = P;
    type Command = Counted;

    const TURN_BITS: u32 = 0;
    const INDEX_COMPLETES: bool = true;
    const ABORTS_SYNCS: bool = true;
    const HEAD: usize = reg::COMMAND_HEAD;
    const OVERWRITTEN: u32 = refusal::ILLEGAL;

    fn machine(&self) -> (&P::Memory, &P, Nanos) {
        (&self.control.mem, &self.control.clock, self.control.limit)
    }

    fn words((_, words): &Counted) -> Words {
        *words
    }

    fn count(&self, (kind, _): &Counted) {
        self.control.counters.add(*kind);
    }

    fn sync(at: Option<PhysAddr>, number: u32) -> Counted {
        let words = at.map_or_else(command::nothing, |at| command::store(at.get(), number));
        (Kind::Wait, words)
    }

    fn harmless(_: Option<PhysAddr>) -> Counted {
        (Kind::Replaced, command::nothing())
    }

    fn head(&self) -> Result<u64, IommuError> {
        Ok(self.control.read(reg::COMMAND_HEAD)?.into())
    }

    fn index(head: u64, _: Shape) -> u64 {
        head
    }

    fn set_tail(&self, index: u64, _: Shape) {
        let regs = &self.control.regs;
        regs.write32(reg::COMMAND_TAIL, index as u32);
    }

    fn stopped(&self, _: u64) -> Result<Option<Stop>, IommuError> {
        let status = self.control.read(reg::COMMAND_CONTROL)?;
        if status & queue::ON == 0 {
            return Err(IommuError::Stopped);
        }
        let seen = status & (queue::ILLEGAL | queue::MEMORY_FAULT | queue::TIME_OUT);
        let refused = [queue::ILLEGAL, queue::MEMORY_FAULT];
        Ok((seen != 0).then_some(Stop {
            seen,
            refused: refused.into_iter().find(|bit| seen & bit != 0),
            silent: Some(None),
        }))
    }

    fn silent(_: Option<u16>) -> u32 {
        refusal::TIME_OUT
    }

    fn resume(&self, stop: Stop, _: Shape, _: u64, _: u64) -> Result<(), IommuError> {
        // While a change is under way nothing may be written: the next look finds it stopped still.
        if self.control.read(reg::COMMAND_CONTROL)? & queue::BUSY == 0 {
            let regs = &self.control.regs;
            regs.write32(reg::COMMAND_CONTROL, queue::ENABLE | stop.seen);
            if stop.seen & queue::TIME_OUT != 0 {
                self.silences.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}
