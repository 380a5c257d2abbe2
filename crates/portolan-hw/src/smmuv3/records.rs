//! A queue that the unit writes: events or page requests.
//!
//! IHI 0070, sections 3.5.1, 7.2 and 7.4 (overflow). Where the unit does not snoop, the cache line of
//! a record is dropped before the record is read (`TableMem::invalidate`).

use super::machine::Machine;
use crate::chassis::Block;
use portolan::iommu::IommuError;
use portolan::platform::{Mmio, UnitPlatform};
use portolan_spec::smmuv3::reg;

/// Next record of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing.
    Nothing,
    /// A record; words beyond its size are zero.
    Record([u64; 4]),
    /// Records were lost after those before.
    Lost,
}

/// The queue.
///
/// *Context.* Interrupt: it waits for nothing and takes no heap memory.
#[derive(Debug)]
pub(super) struct Records {
    block: Block,
    lg2: u32,
    record_lg2: u32,
    produced: usize,
    consumed: usize,
    /// The consumer index as it was last written, with the overflow bit.
    at: u32,
}

impl Records {
    /// Room for `2^lg2` records of `2^record_lg2` bytes; `produced` and `consumed` are registers.
    pub fn new<P: UnitPlatform>(
        machine: &Machine<P>,
        lg2: u32,
        record_lg2: u32,
        produced: usize,
        consumed: usize,
    ) -> Result<Self, IommuError> {
        let block = machine.alloc(lg2 + record_lg2)?;
        Ok(Self { block, lg2, record_lg2, produced, consumed, at: 0 })
    }

    /// Gives the unit the queue by register `base`; the queue must be disabled.
    pub fn install<P: UnitPlatform>(&mut self, machine: &Machine<P>, base: usize) {
        self.at = 0;
        let value = reg::BASE_ALLOCATE.at(1) | self.block.at.get() | u64::from(self.lg2);
        machine.registers.write64(base, value);
        machine.registers.write32(self.produced, 0);
        machine.registers.write32(self.consumed, 0);
    }

    /// Takes the oldest record out, if `accept` can do its work for it at once. It runs under the
    /// queue's lock and may take the command queue's, never the other way round.
    pub fn next<P: UnitPlatform>(
        &mut self,
        machine: &Machine<P>,
        accept: impl FnOnce(&[u64; 4]) -> Result<(), IommuError>,
    ) -> Result<Next, IommuError> {
        let produced = machine.read(self.produced)?;
        let mask = (2u32 << self.lg2) - 1;
        let there = produced.wrapping_sub(self.at) & mask;
        if there > 1 << self.lg2 {
            let (offset, value) = (self.produced, produced.into());
            return Err(IommuError::Nonsense { offset, value });
        }
        if there == 0 {
            if (produced ^ self.at) & reg::OVERFLOW == 0 {
                return Ok(Next::Nothing);
            }
            self.at ^= reg::OVERFLOW;
            machine.registers.write32(self.consumed, self.at);
            return Ok(Next::Lost);
        }
        let words = 1usize << (self.record_lg2 - 3);
        let slot = (self.at & (mask >> 1)) as usize * words;
        machine.will_read(self.block, slot, words);
        let record = core::array::from_fn(|word| match word < words {
            true => machine.load(self.block, slot + word),
            false => 0,
        });
        accept(&record)?;
        self.at = (self.at.wrapping_add(1) & mask) | self.at & reg::OVERFLOW;
        machine.registers.write32(self.consumed, self.at);
        Ok(Next::Record(record))
    }

    /// The memory of the queue, to be given back when the unit is disabled.
    pub fn block(&self) -> Block {
        self.block
    }
}
