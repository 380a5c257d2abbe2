//! Registers, table memory and time of a unit, and the queues that it writes.
//!
//! IHI 0070, sections 3.5.1, 7.2 and 7.4 (overflow). Where the unit does not snoop, the cache line of
//! a record is dropped before the record is read (`TableMem::invalidate`).

use crate::chassis::NextRecord;
use crate::chassis::arm;
use crate::chassis::arm::WhenDisabled;
use crate::chassis::entry::{At, Words};
use crate::chassis::{Block, Present, wait_for, wait_until};
use portolan::addr::{PhysAddr, PhysRange};
use portolan::inval::Walker;
use portolan::iommu::{Awaited, IommuError};
use portolan::platform::{Guarded, Mmio, Nanos, TableMem, UnitPlatform, Word};
use portolan_spec::smmuv3::reg;

/// Base of the driver: registers, memory, time.
///
/// *Context.* Interrupt, but for [`SmmuHardware::wait`], [`SmmuHardware::control`] and
/// [`SmmuHardware::set_bypass`], which wait for the
/// unit: atomic.
pub(super) struct SmmuHardware<P: UnitPlatform> {
    pub registers: P::Registers,
    pub mem: P::Memory,
    pub clock: P,
    /// Longest wait for anything.
    pub limit: Nanos,
    /// Presence of reads of memory through the processors' caches.
    pub coherent: bool,
    /// Global errors as they were last acknowledged. A leaf: taken under the command queue's lock,
    /// and nothing is taken under it.
    seen: Guarded<P, u32>,
}

impl<P: UnitPlatform> SmmuHardware<P> {
    pub fn new(
        registers: P::Registers,
        mem: P::Memory,
        clock: P,
        limit: Nanos,
        coherent: bool,
    ) -> Self {
        let seen = Guarded::new(registers.read32(reg::GERRORN));
        Self { registers, mem, clock, limit, coherent, seen }
    }

    /// A register that never reads as all ones.
    pub fn read(&self, offset: usize) -> Result<u32, IommuError> {
        self.registers.present32(offset)
    }

    /// Looks until `look` finds something.
    pub fn wait<T>(
        &self,
        awaited: Awaited,
        look: impl FnMut() -> Result<Option<T>, IommuError>,
    ) -> Result<T, IommuError> {
        wait_for(&self.clock, self.limit, awaited, look)
    }

    /// Writes `value` and waits until `ack` says that it has taken effect.
    pub fn control(&self, offset: usize, ack: usize, value: u32) -> Result<(), IommuError> {
        self.registers.write32(offset, value);
        let reached = || Ok(self.read(ack)? == value);
        wait_until(&self.clock, self.limit, Awaited::Control, reached)
    }

    /// Global errors that were not acknowledged yet.
    pub fn errors(&self) -> Result<u32, IommuError> {
        let seen = self.seen.lock();
        let now = self.read(reg::GERROR)?;
        Ok((now ^ *seen) & reg::gerror::ALL)
    }

    /// Acknowledges the errors of `mask`.
    pub fn acknowledge(&self, mask: u32) -> Result<(), IommuError> {
        let mut seen = self.seen.lock();
        // Read under the lock: by an older value an error would be raised that another CPU has
        // acknowledged.
        let now = self.read(reg::GERROR)?;
        *seen = *seen & !mask | now & mask;
        self.registers.write32(reg::GERRORN, *seen);
        Ok(())
    }

    /// Sets the treatment of accesses while the unit is disabled. Units may ignore it.
    pub fn set_bypass(&self, when: WhenDisabled) -> Result<(), IommuError> {
        let settled = || {
            self.wait(Awaited::Control, || {
                let value = self.read(reg::GBPA)?;
                Ok((value & reg::gbpa::UPDATE == 0).then_some(value))
            })
        };
        let rest = settled()? & !reg::gbpa::ABORT;
        let value = match when {
            WhenDisabled::Abort => rest | reg::gbpa::ABORT,
            WhenDisabled::Bypass(_) => rest,
        };
        self.registers.write32(reg::GBPA, value | reg::gbpa::UPDATE);
        settled().map(drop)
    }

    /// Zeroed memory of `2^lg2` bytes, aligned to its size, at least a page of 4 KiB.
    pub fn alloc(&self, lg2: u32) -> Result<Block, IommuError> {
        Block::new(&self.mem, lg2)
    }

    pub fn free(&self, block: Block) {
        block.free(&self.mem);
    }

    /// A word of a block; zero outside it.
    pub fn load(&self, block: Block, word: usize) -> u64 {
        let words = self.mem.table(block.at, block.size);
        words.get(word).map_or(0, Word::load)
    }

    /// The way in which the unit reads tables.
    pub fn walker(&self) -> Walker {
        arm::walker(self.coherent)
    }

    /// Writes an entry that the unit does not look at yet.
    pub fn fill(&self, at: At, new: &Words) {
        at.fill(&self.mem, self.walker(), new);
    }

    /// Returns the words of an entry.
    pub fn read_entry(&self, at: At) -> Words {
        at.read(&self.mem)
    }

    /// Writes word 0 of an entry, visible to the unit before later writes.
    pub fn decide(&self, at: At, value: u64) {
        let (mem, walker) = (&self.mem, self.walker());
        at.write(mem, 0, value);
        at.publish(mem, walker);
    }

    /// Writes a word of a block, and its cache line back if the unit does not snoop.
    pub fn store(&self, block: Block, word: usize, value: u64) {
        let words = self.mem.table(block.at, block.size);
        if let Some(at) = words.get(word) {
            Word::store(at, value);
            if let Some(address) = block.at.checked_add(word as u64 * 8) {
                self.clean(address, 8);
            }
        }
    }

    /// Writes cache lines back if the unit does not snoop.
    pub fn clean(&self, at: PhysAddr, bytes: u64) {
        if !self.coherent {
            if let Some(bytes) = PhysRange::from_len(at, bytes) {
                self.mem.clean(bytes);
            }
        }
    }

    /// Makes sure that `words` words of a block are read as the unit wrote them.
    pub fn will_read(&self, block: Block, word: usize, words: usize) {
        let address = block.at.checked_add(word as u64 * 8);
        let bytes = address.and_then(|at| PhysRange::from_len(at, words as u64 * 8));
        if let (false, Some(bytes)) = (self.coherent, bytes) {
            self.mem.invalidate(bytes);
        }
    }

    /// Makes earlier stores visible to the unit before all later stores and writes.
    pub fn barrier(&self) {
        core::sync::atomic::fence(core::sync::atomic::Ordering::Release);
        if !self.coherent {
            self.mem.clean_barrier();
        }
    }
}

/// The queue.
///
/// *Context.* Interrupt: it waits for nothing and takes no heap memory.
#[derive(Debug)]
pub(super) struct SmmuRecordQueue {
    block: Block,
    lg2: u32,
    record_lg2: u32,
    produced: usize,
    consumed: usize,
    /// The consumer index as it was last written, with the overflow bit.
    at: u32,
}

impl SmmuRecordQueue {
    /// Room for `2^lg2` records of `2^record_lg2` bytes; `produced` and `consumed` are registers.
    pub fn new<P: UnitPlatform>(
        machine: &SmmuHardware<P>,
        lg2: u32,
        record_lg2: u32,
        produced: usize,
        consumed: usize,
    ) -> Result<Self, IommuError> {
        let block = machine.alloc(lg2 + record_lg2)?;
        Ok(Self { block, lg2, record_lg2, produced, consumed, at: 0 })
    }

    /// Gives the unit the queue by register `base`; the queue must be disabled.
    ///
    /// # Errors
    /// [`IommuError::Nonsense`] if the unit does not hold it.
    pub fn install<P: UnitPlatform>(
        &mut self,
        machine: &SmmuHardware<P>,
        base: usize,
    ) -> Result<(), IommuError> {
        self.at = 0;
        let value = reg::BASE_ALLOCATE.at(1) | self.block.at.get() | u64::from(self.lg2);
        machine.registers.write64(base, value);
        machine.registers.write32(self.produced, 0);
        machine.registers.write32(self.consumed, 0);
        machine.registers.holds(base, value)
    }

    /// Takes the oldest record out, if `accept` can do its work for it at once. It runs under the
    /// queue's lock and may take the command queue's, never the other way round.
    pub fn next<P: UnitPlatform>(
        &mut self,
        machine: &SmmuHardware<P>,
        accept: impl FnOnce(&[u64; 4]) -> Result<(), IommuError>,
    ) -> Result<NextRecord<4>, IommuError> {
        let produced = machine.read(self.produced)?;
        let mask = (2u32 << self.lg2) - 1;
        let there = produced.wrapping_sub(self.at) & mask;
        if there > 1 << self.lg2 {
            let (offset, value) = (self.produced, produced.into());
            return Err(IommuError::Nonsense { offset, value });
        }
        if there == 0 {
            if (produced ^ self.at) & reg::OVERFLOW == 0 {
                return Ok(NextRecord::Nothing);
            }
            self.at ^= reg::OVERFLOW;
            machine.registers.write32(self.consumed, self.at);
            return Ok(NextRecord::Lost);
        }
        let words = 1usize << (self.record_lg2 - 3);
        let slot = (self.at & (mask >> 1)) as usize * words;
        machine.will_read(self.block, slot, words);
        let record = core::array::from_fn(|word| {
            if word < words { machine.load(self.block, slot + word) } else { 0 }
        });
        accept(&record)?;
        self.at = (self.at.wrapping_add(1) & mask) | self.at & reg::OVERFLOW;
        machine.registers.write32(self.consumed, self.at);
        Ok(NextRecord::Record(record))
    }

    /// The memory of the queue, to be given back when the unit is disabled.
    pub fn block(&self) -> Block {
        self.block
    }
}
