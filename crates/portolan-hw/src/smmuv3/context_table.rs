//! Context descriptors of one stream: a single one, or a table by substream.
//!
//! IHI 0070, sections 3.3.2, 5.3 and 5.4. A single descriptor has two places that are used in
//! turn, so that a stream moves from one address space to another by one word of its entry. Tables
//! are linear up to 1,024 substreams and of two levels beyond, with second-level tables of 64 KiB
//! made on demand.

use super::machine::Machine;
use crate::chassis::Block;
use crate::chassis::arm::Has;
use crate::chassis::entry::{At, Kind, Live};
use alloc::collections::BTreeMap;
use portolan::iommu::IommuError;
use portolan::platform::UnitPlatform;
use portolan_spec::smmuv3::{cd, ste};

/// Read as a stream table entry is.
pub(crate) const CONTEXT: Kind = Kind {
    deciding: cd::V.mask(),
    closed: 0,
    reads: |descriptor| {
        // The second table counts unless its walks are disabled; the last words are not read.
        let high = match cd::EPD1.get(descriptor) {
            0 => u64::MAX,
            _ => 0,
        };
        [u64::MAX, u64::MAX, high, u64::MAX, u64::MAX, 0, 0, 0]
    },
    live: Live::OneWord,
};

#[derive(Debug)]
enum Form {
    /// Two places in turn; which one is in use.
    Single {
        current: usize,
    },
    Linear,
    TwoLevel {
        second: BTreeMap<u32, Block>,
    },
}

/// The descriptors of one stream.
///
/// *Context.* Task: tables are made on demand, and the list of them takes heap memory.
#[derive(Debug)]
pub(super) struct ContextTable {
    block: Block,
    /// Exponent of the number of substreams.
    lg2: u32,
    form: Form,
}

impl ContextTable {
    /// Room for `2^lg2` substreams.
    pub fn new<P: UnitPlatform>(
        machine: &Machine<P>,
        lg2: u32,
        two_level: Has,
    ) -> Result<Self, IommuError> {
        let (bytes, form) = if lg2 == 0 {
            (12, Form::Single { current: 0 })
        } else if lg2 > cd::level1::SPLIT && two_level == Has::Yes {
            let second = BTreeMap::new();
            (lg2 - cd::level1::SPLIT + 3, Form::TwoLevel { second })
        } else {
            (lg2 + cd::LG2_BYTES, Form::Linear)
        };
        let block = machine.alloc(bytes)?;
        Ok(Self { block, lg2, form })
    }

    /// Exponent of the number of substreams; 0 for a single descriptor.
    pub fn lg2(&self) -> u32 {
        self.lg2
    }

    /// Points `entry` at the descriptors.
    pub fn describe(&self, entry: &mut ste::Ste) {
        let offset = match self.form {
            Form::Single { current } => (current as u64) << cd::LG2_BYTES,
            _ => 0,
        };
        let format = match self.form {
            Form::TwoLevel { .. } => ste::s1fmt::TWO_LEVEL_64K,
            _ => ste::s1fmt::LINEAR,
        };
        ste::S1CONTEXTPTR.set(entry, (self.block.at.get() + offset) >> 6);
        ste::S1FMT.set(entry, format);
        ste::S1CDMAX.set(entry, self.lg2.into());
    }

    /// Writes `descriptor` where the unit does not look, and makes that the place that
    /// [`ContextTable::describe`] points at. For a single descriptor only.
    pub fn flip<P: UnitPlatform>(&mut self, machine: &Machine<P>, descriptor: &cd::Cd) {
        if let Form::Single { current } = &mut self.form {
            *current ^= 1;
            let first = *current * cd::WORDS;
            let at = self.block.entry(first, cd::WORDS);
            at.fill(machine.tables(), descriptor);
        }
    }

    /// Place of the descriptor of `pasid`; its table is made if it is not there.
    pub fn place<P: UnitPlatform>(
        &mut self,
        machine: &Machine<P>,
        pasid: u32,
    ) -> Result<At, IommuError> {
        if u64::from(pasid) >> self.lg2 != 0 {
            return Err(IommuError::Unsupported);
        }
        let place = |block: Block, index: u32| block.entry(index as usize * cd::WORDS, cd::WORDS);
        match &mut self.form {
            Form::Single { current } => Ok(place(self.block, *current as u32)),
            Form::Linear => Ok(place(self.block, pasid)),
            Form::TwoLevel { second } => {
                let upper = pasid >> cd::level1::SPLIT;
                let index = pasid & ((1 << cd::level1::SPLIT) - 1);
                if let Some(&block) = second.get(&upper) {
                    return Ok(place(block, index));
                }
                let block = machine.alloc(cd::level1::SPLIT + cd::LG2_BYTES)?;
                machine.barrier();
                let descriptor = block.at.get() | cd::level1::V.at(1);
                machine.store(self.block, upper as usize, descriptor);
                second.insert(upper, block);
                Ok(place(block, index))
            }
        }
    }

    /// Gives the memory back. The unit must not look at it any more.
    pub fn release<P: UnitPlatform>(self, machine: &Machine<P>) {
        if let Form::TwoLevel { second } = self.form {
            for (_, block) in second {
                machine.free(block);
            }
        }
        machine.free(self.block);
    }
}
