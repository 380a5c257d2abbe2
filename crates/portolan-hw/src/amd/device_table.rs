//! The device table: one entry for each stream.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, section 2.2.2.
//! Streams that were never named have entries that block.

use core::sync::atomic::AtomicU64;

use portolan::addr::{PageSize, PhysAddr};
use portolan::platform::{Cpus, Mmio, OutOfTableMemory, TableMem, Word};
use portolan::unit::UnitError;

use super::command::Counted;
use super::shared::Shared;
use super::spec::entry::{LG2_BYTES, WORDS};
use super::spec::reg;
use super::update::{BLOCKED, Update, plan};

/// Exponents of the number of streams that a table can have.
const LG2_STREAMS: core::ops::RangeInclusive<u32> = 7..=16;

/// The table.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceTable {
    base: PhysAddr,
    size: PageSize,
}

/// What hardware has to forget, before and after.
pub(super) struct Forget<'a> {
    pub(super) old: &'a [Counted],
    pub(super) blocked: &'a [Counted],
}

impl DeviceTable {
    /// A table of `2^lg2_streams` entries (7 to 16) that all block.
    pub(super) fn new<M: TableMem<AtomicU64>>(
        mem: &M,
        lg2_streams: u32,
    ) -> Result<Self, OutOfTableMemory> {
        let lg2_streams = lg2_streams.clamp(*LG2_STREAMS.start(), *LG2_STREAMS.end());
        let size = PageSize::of_lg2(lg2_streams + LG2_BYTES);
        let base = mem.alloc(size)?;
        for word in mem.table(base, size).iter().step_by(WORDS) {
            Word::store(word, BLOCKED);
        }
        Ok(Self { base, size })
    }

    /// Streams that have an entry.
    pub(super) fn streams(&self) -> u32 {
        1 << (self.size.lg2() - LG2_BYTES)
    }

    /// What the base register has to hold.
    pub(super) fn address(&self) -> u64 {
        self.base.get() | reg::TABLE_SIZE.at((self.size.bytes() >> 12) - 1)
    }

    /// Gives the memory back. The unit must have stopped using it.
    pub(super) fn free<M: TableMem<AtomicU64>>(&self, mem: &M) {
        mem.free(self.base, self.size);
    }

    fn entry<'m, M: TableMem<AtomicU64>>(&self, mem: &'m M, stream: u16) -> &'m [AtomicU64] {
        let first = usize::from(stream) * WORDS;
        let table = mem.table(self.base, self.size);
        table.get(first..first + WORDS).unwrap_or(&[])
    }

    /// Changes the entry of `stream`, which has one, to `new`, step by step.
    ///
    /// On an error the entry blocks, and hardware may still use what it kept of it.
    pub(super) fn change<R: Mmio, M: TableMem<AtomicU64>, C: Cpus>(
        &self,
        shared: &Shared<R, M, C>,
        stream: u16,
        new: [u64; WORDS],
        forget: &Forget<'_>,
    ) -> Result<(), UnitError> {
        let entry = self.entry(&shared.control.mem, stream);
        let mut old = [0; WORDS];
        for (value, word) in old.iter_mut().zip(entry) {
            *value = Word::load(word);
        }
        for step in plan(&old, &new) {
            let done = match step {
                Update::Write { word, value } => {
                    if let Some(word) = entry.get(word) {
                        Word::store(word, value);
                    }
                    Ok(())
                }
                // Stores are in order, and the unit snoops.
                Update::Publish => Ok(()),
                Update::ForgetOld => shared.run(&mut forget.old.iter().copied()),
                Update::ForgetBlocked => shared.run(&mut forget.blocked.iter().copied()),
            };
            if let Err(error) = done {
                if let Some(word) = entry.first() {
                    Word::store(word, BLOCKED);
                }
                return Err(error);
            }
        }
        Ok(())
    }
}
