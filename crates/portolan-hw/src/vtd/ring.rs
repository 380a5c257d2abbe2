//! The invalidation queue: VT-d's interface to the ring ([`crate::chassis::ring`]).
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 6.5.2 and
//! 11.4.9. Descriptors of 128 or 256 bits. The sync is a wait that writes its number as status.
//! Setting the queue going again (6.5.2.10): a refused descriptor is replaced by a wait for which
//! no caller waits; a device's time-out is told to the callers that asked that device, and aborts
//! waits; and only the bits that were dealt with are cleared.

use core::sync::atomic::AtomicU64;

use portolan::addr::{PhysAddr, PhysRange};
use portolan::iommu::IommuError;
use portolan::platform::{Mmio, Nanos, TableMem, UnitPlatform};

use super::core::Core;
use super::counts::CommandKind as Kind;
use super::refusal;
use super::request::{Counted, Ending, fence, wait_words};
use crate::chassis::{Present, Ring, Shape, Stop, Unit};
use portolan_spec::vtd::descriptor::Words;
use portolan_spec::vtd::reg::{self, fsts, iqercd, queue};

/// Width of the descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    Bits128,
    Bits256,
}

/// Exponent of the bytes of a descriptor of 256 bits.
const WIDE: u32 = 5;

/// A ring of `2^lg2_pages` pages (at most 7), not yet handed to the unit.
pub(super) fn ring<P: UnitPlatform>(
    mem: &impl TableMem<AtomicU64>,
    lg2_pages: u32,
    width: Width,
) -> Result<Ring<P>, IommuError> {
    let lg2_bytes = match width {
        Width::Bits128 => WIDE - 1,
        Width::Bits256 => WIDE,
    };
    let lg2_slots = 12 + lg2_pages.min(7) - lg2_bytes;
    let shape = Shape { lg2_slots, lg2_bytes };
    Ring::new(mem, shape, u64::MAX, Some(()))
}

/// Value of the address register.
pub(super) fn address<P: UnitPlatform>(ring: &Ring<P>) -> u64 {
    let block = ring.commands();
    let wide = queue::WIDE.at((ring.shape().lg2_bytes == WIDE).into());
    block.at.get() | queue::SIZE.at((block.size.lg2() - 12).into()) | wide
}

impl<P: UnitPlatform> Unit for Core<P> {
    type Memory = P::Memory;
    type Cpus = P;
    type Command = Counted;

    const TURN_BITS: u32 = 0;
    const INDEX_COMPLETES: bool = false;
    const ABORTS_SYNCS: bool = true;
    const HEAD: usize = reg::IQH;
    const OVERWRITTEN: u32 = refusal::DESCRIPTOR;

    fn machine(&self) -> (&P::Memory, &P, Nanos) {
        (&self.mem, &self.control.clock, self.control.limit)
    }

    fn words((_, words): &Counted) -> Words {
        *words
    }

    fn count(&self, (kind, _): &Counted) {
        self.control.counters.add(*kind);
    }

    fn sync(at: Option<PhysAddr>, number: u32) -> Counted {
        let at = at.map_or(0, PhysAddr::get);
        (Kind::Wait, wait_words(at, number, Ending::Plain))
    }

    fn harmless(spare: Option<PhysAddr>) -> Counted {
        (Kind::Replaced, fence(spare, Ending::Plain))
    }

    fn clean(&self, at: PhysAddr, bytes: u64) {
        if let Some(bytes) = PhysRange::from_len(at, bytes) {
            self.mem.clean(bytes);
        }
    }

    fn barrier(&self) {
        self.mem.clean_barrier();
    }

    fn head(&self) -> Result<u64, IommuError> {
        self.control.regs.present64(reg::IQH)
    }

    fn index(head: u64, shape: Shape) -> u64 {
        queue::OFFSET.of(head) >> shape.lg2_bytes
    }

    fn set_tail(&self, index: u64, shape: Shape) {
        self.control.regs.write64(reg::IQT, index << shape.lg2_bytes);
    }

    fn stopped(&self, _: u64) -> Result<Option<Stop>, IommuError> {
        let regs = &self.control.regs;
        let seen = regs.present32(reg::FSTS)? & (fsts::IQE | fsts::ITE | fsts::ICE);
        if seen == 0 {
            return Ok(None);
        }
        let record = regs.present64(reg::IQERCD)?;
        let code = refusal::DESCRIPTOR | iqercd::IQEI.of(record) as u32;
        let stream = iqercd::ITESID.of(record) as u16;
        Ok(Some(Stop {
            seen,
            refused: (seen & fsts::IQE != 0).then_some(code),
            silent: (seen & fsts::ITE != 0).then_some((stream != 0).then_some(stream)),
        }))
    }

    fn silent(stream: Option<u16>) -> u32 {
        refusal::device_tlb(stream.unwrap_or(0))
    }

    fn resume(&self, stop: Stop, shape: Shape, _: u64, tail: u64) -> Result<(), IommuError> {
        self.control.regs.write32(reg::FSTS, stop.seen);
        self.set_tail(tail, shape);
        Ok(())
    }
}
