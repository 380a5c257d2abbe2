//! The stream table: linear, or of two levels with second-level tables made on demand.
//!
//! IHI 0070, sections 3.3.1, 5.1 and 6.3.24 (STRTAB_BASE_CFG).

use super::features::Features;
use super::machine::Machine;
use crate::chassis::arm::Has;
use crate::chassis::entry::{At, Kind, Live};
use crate::chassis::{Block, Present as _, Sorted, with_room};
use portolan::addr::StreamId;
use portolan::iommu::{AttachError, IommuError};
use portolan::platform::{Guarded, Mmio, UnitPlatform};
use portolan_spec::smmuv3::{Field, reg, ste};

/// Exponent of the number of streams of a second-level table: 16 KiB.
const SPLIT: u32 = 8;

/// Treatment of accesses of a stream that was never named, and of one that is blocked.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    /// Its accesses are aborted and recorded (an invalid entry).
    Recorded,
    /// Its accesses are aborted without a record.
    Silent,
}

impl Blocking {
    /// The entry.
    pub(super) fn entry(self) -> ste::Ste {
        let mut entry = [0; ste::WORDS];
        if self == Self::Silent {
            ste::V.set(&mut entry, 1);
            ste::CONFIG.set(&mut entry, ste::config::ABORT);
        }
        entry
    }
}

/// The unit reads an entry of 64 bytes word by word, whenever it likes, and keeps it until told to
/// forget it (3.21.3 and 4.3).
pub(crate) const STREAM: Kind =
    Kind { deciding: ste::V.mask(), closed: 0, reads: read_of_stream, live: Live::OneWord };

fn read_of_stream(entry: &ste::Ste) -> ste::Ste {
    let mut bits = [0; ste::WORDS];
    let config = ste::CONFIG.get(entry);
    let mut read = |fields: &[Field]| {
        for field in fields {
            bits[field.word] |= field.mask();
        }
    };
    read(&[ste::CONFIG]);
    if config & ste::config::BYPASS == 0 {
        return bits;
    }
    read(&[ste::ATTRIBUTES_LOW, ste::ATTRIBUTES_HIGH]);
    if config & 1 != 0 {
        read(&[ste::S1FMT, ste::S1CONTEXTPTR, ste::S1CDMAX, ste::S1DSS]);
        read(&[ste::S1CIR, ste::S1COR, ste::S1CSH, ste::S1STALLD, ste::STRW]);
    }
    if config & 0b10 != 0 {
        read(&[ste::S2CONTROL, ste::S2TTB]);
    }
    if config & 0b11 != 0 {
        read(&[ste::S2VMID, ste::EATS]);
    }
    bits
}

/// Second-level tables by the upper bits.
type Second<P> = Guarded<P, Sorted<u32, Block>>;

/// The table.
///
/// *Context.* Task: tables are made on demand, and the list of them takes heap memory.
pub(super) struct StreamTable<P: UnitPlatform> {
    lg2: u32,
    base: Block,
    blocking: Blocking,
    /// `None` for a linear table.
    second: Option<Second<P>>,
}

impl<P: UnitPlatform> StreamTable<P> {
    /// A table of `2^lg2` streams, all blocked.
    pub fn new(
        machine: &Machine<P>,
        features: &Features,
        lg2: u32,
        blocking: Blocking,
    ) -> Result<Self, IommuError> {
        let two_level = features.two_level_streams == Has::Yes && lg2 > SPLIT;
        let base = if two_level {
            machine.alloc(lg2 - SPLIT + 3)?
        } else {
            machine.alloc(lg2 + ste::LG2_BYTES)?
        };
        let table = Self { lg2, base, blocking, second: two_level.then(Second::default) };
        if !two_level {
            table.block_all(machine, base);
        }
        Ok(table)
    }

    fn block_all(&self, machine: &Machine<P>, block: Block) {
        let entry = self.blocking.entry();
        if entry[0] == 0 {
            return;
        }
        let words = 1usize << (block.size.lg2() - 3);
        for word in (0..words).step_by(ste::WORDS) {
            machine.store(block, word, entry[0]);
        }
    }

    /// Gives the unit the table; it must be disabled.
    ///
    /// # Errors
    /// [`IommuError::Nonsense`] if the unit does not hold it.
    pub fn install(&self, machine: &Machine<P>) -> Result<(), IommuError> {
        let mut config = reg::STRTAB_LOG2SIZE.at(self.lg2.into());
        if self.second.is_some() {
            config |= reg::STRTAB_FMT.at(1) | reg::STRTAB_SPLIT.at(SPLIT.into());
        }
        let base = reg::BASE_ALLOCATE.at(1) | self.base.at.get();
        machine.barrier();
        let registers = &machine.registers;
        registers.write64(reg::STRTAB_BASE, base);
        registers.write32(reg::STRTAB_BASE_CFG, config as u32);
        registers.holds(reg::STRTAB_BASE, base)?;
        let offset = reg::STRTAB_BASE_CFG;
        match u64::from(registers.present32(offset)?) {
            held if held == config => Ok(()),
            value => Err(IommuError::Nonsense { offset, value }),
        }
    }

    /// Place of the entry of `stream`. Its table is made if it is not there; until the stream's
    /// cached configuration is invalidated the unit need not see it.
    pub fn place(&self, machine: &Machine<P>, stream: StreamId) -> Result<At, AttachError> {
        let index = stream.get();
        if u64::from(index) >> self.lg2 != 0 {
            return Err(AttachError::NoSuchStream { stream });
        }
        let Some(second) = &self.second else {
            let word = index as usize * ste::WORDS;
            return Ok(self.base.entry(word, ste::WORDS));
        };
        let upper = index >> SPLIT;
        let known = second.lock().get(upper).copied();
        let block = match known {
            Some(block) => block,
            None => self.add_second(machine, second, upper)?,
        };
        let word = (index & ((1 << SPLIT) - 1)) as usize * ste::WORDS;
        Ok(block.entry(word, ste::WORDS))
    }

    /// Makes the second-level table of `upper`, unless another CPU is faster.
    fn add_second(
        &self,
        machine: &Machine<P>,
        second: &Second<P>,
        upper: u32,
    ) -> Result<Block, IommuError> {
        let block = machine.alloc(SPLIT + ste::LG2_BYTES)?;
        self.block_all(machine, block);
        let mut descriptor = [block.at.get()];
        ste::level1::SPAN.set(&mut descriptor, u64::from(SPLIT) + 1);
        machine.barrier();
        let known = with_room(second, Sorted::list, |second| {
            let known = second.get(upper).copied();
            if known.is_none() {
                machine.store(self.base, upper as usize, descriptor[0]);
                second.insert(upper, block);
            }
            known
        });
        Ok(known.inspect(|_| machine.free(block)).unwrap_or(block))
    }

    /// Gives the memory back. The unit must be disabled.
    pub fn release(&self, machine: &Machine<P>) {
        if let Some(second) = &self.second {
            let blocks = core::mem::take(second.lock().list());
            for (_, block) in blocks {
                machine.free(block);
            }
        }
        machine.free(self.base);
    }
}
