//! The command buffer: AMD-Vi's interface to the ring ([`crate::chassis::ring`]).
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.4 and
//! 2.5.6 to 2.5.7. The sync is a COMPLETION_WAIT that stores its number. A unit that meets a bad
//! command stops fetching, and logs why as an event; fetching is turned on again at the same place,
//! behind a harmless command. The lock of the control register, a leaf, is taken under the ring's.

use core::sync::atomic::AtomicU64;

use portolan::addr::PhysAddr;
use portolan::iommu::IommuError;
use portolan::platform::{Mmio, Nanos, TableMem, UnitPlatform};

use super::command::{self, Counted};
use super::counts::CommandKind as Kind;
use super::refusal;
use super::shared::Shared;
use crate::chassis::{Ring, Shape, Stop, Unit, Words};
use portolan_spec::amd::command::LG2_BYTES;
use portolan_spec::amd::reg::{self, control, status};

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
pub(super) fn address<P: UnitPlatform>(ring: &Ring<P>) -> u64 {
    ring.commands().at.get() | reg::LENGTH.at(ring.shape().lg2_slots.into())
}

impl<P: UnitPlatform> Unit for Shared<P> {
    type Memory = P::Memory;
    type Cpus = P;
    type Command = Counted;

    const TURN_BITS: u32 = 0;
    const INDEX_COMPLETES: bool = false;
    const ABORTS_SYNCS: bool = false;
    const HEAD: usize = reg::COMMAND_HEAD;
    const OVERWRITTEN: u32 = refusal::UNKNOWN;

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
        let words = at.map_or_else(command::nothing, |at| command::store(at.get(), number.into()));
        (Kind::Wait, words)
    }

    fn harmless(_: Option<PhysAddr>) -> Counted {
        (Kind::Replaced, command::nothing())
    }

    fn head(&self) -> Result<u64, IommuError> {
        self.control.read(reg::COMMAND_HEAD)
    }

    fn index(head: u64, shape: Shape) -> u64 {
        match reg::INDEX.of(head) {
            // QEMU shows the head behind the last slot before it shows it at the first.
            end if end == 1 << shape.lg2_slots => 0,
            index => index,
        }
    }

    fn set_tail(&self, index: u64, _: Shape) {
        let regs = &self.control.regs;
        regs.write64(reg::COMMAND_TAIL, reg::INDEX.at(index));
    }

    fn stopped(&self, _: u64) -> Result<Option<Stop>, IommuError> {
        let control = &self.control;
        if control.read(reg::STATUS)? & status::COMMANDS_RUN != 0 {
            return Ok(None);
        }
        if control.read(reg::CONTROL)? & control::ENABLE == 0 {
            return Err(IommuError::Stopped);
        }
        Ok(Some(Stop { seen: 0, refused: Some(refusal::UNKNOWN), silent: None }))
    }

    fn why(&self, _: u32, at: PhysAddr) -> u32 {
        self.events.of_command(&self.control, at.get())
    }

    fn silent(_: Option<u16>) -> u32 {
        refusal::UNKNOWN
    }

    fn resume(&self, _: Stop, shape: Shape, head: u64, tail: u64) -> Result<(), IommuError> {
        let unit = &self.control;
        unit.switch(!control::COMMANDS, 0)?;
        unit.regs.write64(reg::COMMAND_HEAD, reg::INDEX.at(head));
        self.set_tail(tail, shape);
        unit.switch(u64::MAX, control::COMMANDS)
    }
}
