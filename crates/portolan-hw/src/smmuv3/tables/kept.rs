//! The stream table of a former kernel, which stays in place with entries of streams that go on.
//!
//! IHI 0070, sections 3.3.1, 5.1 and 6.3.24: the base is not writable while the unit translates, so that the table
//! itself, or its first level, stays. Second-level tables are new ones: the first level leads to them by one store
//! each, and to nothing where no stream goes on.

use super::{Second, StreamTable, level1};
use crate::chassis::{Block, Sorted, with_room};
use crate::smmuv3::former::{FormerShape, KeptStream};
use crate::smmuv3::machine::SmmuHardware;
use crate::smmuv3::tables::{Blocking, SPLIT};
use portolan::addr::PageSize;
use portolan::iommu::IommuError;
use portolan::platform::UnitPlatform;
use portolan_spec::smmuv3::ste;

impl<P: UnitPlatform> StreamTable<P> {
    /// The former kernel's table, with second-level tables for `kept`, which [`StreamTable::take`] has the unit see.
    ///
    /// # Errors
    /// [`IommuError::Memory`].
    pub fn keeping(
        machine: &SmmuHardware<P>,
        former: &FormerShape,
        blocking: Blocking,
        kept: &[KeptStream],
    ) -> Result<Self, IommuError> {
        let size = PageSize::of_lg2(former.bytes_lg2().max(12));
        let base = Block { at: former.root, size };
        let (lg2, split) = (former.lg2, former.split.unwrap_or(SPLIT));
        let second = former.split.map(|_| Second::default());
        let table = Self { lg2, split, base, blocking, second };
        let filled = kept.iter().try_for_each(|one| table.fill(machine, one));
        filled.inspect_err(|_| table.release_second(machine))?;
        Ok(table)
    }

    /// Fills the entry of a second-level table in, to which nothing leads yet.
    fn fill(&self, machine: &SmmuHardware<P>, kept: &KeptStream) -> Result<(), IommuError> {
        let Some(second) = &self.second else { return Ok(()) };
        if self.known(kept.stream).is_none() {
            let block = machine.alloc(self.split + ste::LG2_BYTES)?;
            self.block_all(machine, block);
            let upper = kept.stream.get() >> self.split;
            with_room(second, Sorted::list, |second| second.insert(upper, block));
        }
        if let Some(at) = self.known(kept.stream) {
            machine.fill(at, &kept.entry);
        }
        Ok(())
    }

    /// Has the unit see the entries of `kept`, which are in order of streams, and no others, as soon as it forgets what
    /// it has cached.
    pub fn take(&self, machine: &SmmuHardware<P>, kept: &[KeptStream]) {
        machine.barrier();
        if let Some(second) = &self.second {
            for upper in 0..1 << self.lg2.saturating_sub(self.split) {
                let block = second.lock().get(upper).copied();
                let descriptor = block.map_or(0, |block| level1(block, self.split)[0]);
                machine.store(self.base, upper as usize, descriptor);
            }
        } else {
            let closed = self.blocking.entry()[0];
            for index in 0..1usize << self.lg2 {
                let of = kept.binary_search_by_key(&(index as u64), |one| one.stream.get().into());
                let entry = of.ok().and_then(|of| kept.get(of));
                let word = entry.map_or(closed, |one| one.entry[0]);
                machine.store(self.base, index * ste::WORDS, word);
            }
        }
        machine.barrier();
    }
}
