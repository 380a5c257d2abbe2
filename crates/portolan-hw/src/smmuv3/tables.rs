//! The stream table, the context descriptors of each stream, and the state of streams.
//!
//! IHI 0070, sections 3.3 (stream table and context descriptors), 3.9 (ATS), 5.1, 5.3, 5.4 and 6.3.24
//! (STRTAB_BASE_CFG). The stream table is linear, or of two levels with second-level tables made on
//! demand. A stream's single descriptor has two places that are used in turn, so that the stream moves
//! from one address space to another by one word of its entry. Tables of descriptors are linear up to
//! 1,024 substreams and of two levels beyond, with second-level tables of 64 KiB made on demand.

mod kept;

use super::command::SmmuTag;
use super::features::Features;
use super::machine::SmmuHardware;
use crate::chassis::entry::{At, Kind, Live};
use crate::chassis::{Block, Present as _, Sorted, book, with_room};
use crate::handover::AdoptError;
use crate::turn::Turn;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound;
use portolan::addr::{PageSize, Pasid, PhysAddr, StreamId};
use portolan::iommu::handover::UnitHandover;
use portolan::iommu::{AttachError, IommuError};
use portolan::platform::{Guarded, Mmio, TableClaims, UnitPlatform};
use portolan_spec::ADDRESS;
use portolan_spec::smmuv3::{Field, cd, reg, ste};

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
        machine: &SmmuHardware<P>,
        lg2: u32,
        two_level: bool,
    ) -> Result<Self, IommuError> {
        let (bytes, form) = if lg2 == 0 {
            (12, Form::Single { current: 0 })
        } else if lg2 > cd::level1::SPLIT && two_level {
            let second = BTreeMap::new();
            (lg2 - cd::level1::SPLIT + 3, Form::TwoLevel { second })
        } else {
            (lg2 + cd::LG2_BYTES, Form::Linear)
        };
        let block = machine.alloc(bytes)?;
        Ok(Self { block, lg2, form })
    }

    /// The two places of a single descriptor that a former kernel left, of which that numbered `current` is in use.
    pub fn single(block: Block, current: usize) -> Option<Self> {
        (current < 2).then_some(Self { block, lg2: 0, form: Form::Single { current } })
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
    pub fn flip<P: UnitPlatform>(&mut self, machine: &SmmuHardware<P>, descriptor: &cd::Cd) {
        if let Form::Single { current } = &mut self.form {
            *current ^= 1;
            let first = *current * cd::WORDS;
            let at = self.block.entry(first, cd::WORDS);
            machine.fill(at, descriptor);
        }
    }

    /// Place of the descriptor of `pasid`; its table is made if it is not there.
    pub fn place<P: UnitPlatform>(
        &mut self,
        machine: &SmmuHardware<P>,
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
    pub fn release<P: UnitPlatform>(self, machine: &SmmuHardware<P>) {
        if let Form::TwoLevel { second } = self.form {
            for (_, block) in second {
                machine.free(block);
            }
        }
        machine.free(self.block);
    }
}

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

/// Shape of a stream table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamTableShape {
    /// Exponent of the number of streams.
    lg2: u32,
    two_level: bool,
}

impl StreamTableShape {
    /// For `2^lg2` streams, or as many as a unit with `features` has.
    ///
    /// *Context.* Interrupt: a value.
    pub fn new(features: &Features, lg2: u32) -> Self {
        let lg2 = lg2.min(features.stream_lg2);
        Self { lg2, two_level: features.two_level_streams && lg2 > SPLIT }
    }

    /// Exponent of the bytes of the table, or of its first level.
    const fn bytes_lg2(self) -> u32 {
        if self.two_level { self.lg2 - SPLIT + 3 } else { self.lg2 + ste::LG2_BYTES }
    }
}

/// The table.
///
/// *Context.* Task: tables are made on demand, and the list of them takes heap memory.
pub(super) struct StreamTable<P: UnitPlatform> {
    lg2: u32,
    /// Exponent of the number of streams of a second-level table.
    split: u32,
    base: Block,
    blocking: Blocking,
    /// `None` for a linear table.
    second: Option<Second<P>>,
}

impl<P: UnitPlatform> StreamTable<P> {
    /// A table in which all streams are blocked.
    pub fn new(
        machine: &SmmuHardware<P>,
        shape: StreamTableShape,
        blocking: Blocking,
    ) -> Result<Self, IommuError> {
        let base = machine.alloc(shape.bytes_lg2())?;
        let StreamTableShape { lg2, two_level } = shape;
        let second = two_level.then(Second::default);
        let table = Self { lg2, split: SPLIT, base, blocking, second };
        if !two_level {
            table.block_all(machine, base);
        }
        Ok(table)
    }

    /// The table of that shape that a former kernel left, which claims its memory.
    ///
    /// # Errors
    /// See [`AdoptError`].
    pub fn adopt(
        machine: &SmmuHardware<P>,
        shape: StreamTableShape,
        blocking: Blocking,
        former: &UnitHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<Self, AdoptError> {
        let size = PageSize::of_lg2(shape.bytes_lg2().max(12));
        let base = Block { at: PhysAddr::new(former.root & ADDRESS), size };
        let second = shape.two_level.then(Second::default);
        let StreamTableShape { lg2, .. } = shape;
        let table = Self { lg2, split: SPLIT, base, blocking, second };
        if table.shape() != former.shape || !base.at.is_aligned(size) {
            return Err(AdoptError::Shape { root: base.at });
        }
        claims.claim(base.at, size)?;
        let Some(second) = &table.second else { return Ok(table) };
        for upper in 0..1 << (lg2 - SPLIT) {
            let descriptor = [machine.load(base, upper as usize)];
            if descriptor[0] == 0 {
                continue;
            }
            let size = PageSize::of_lg2(SPLIT + ste::LG2_BYTES);
            let block = Block { at: PhysAddr::new(descriptor[0] & ADDRESS & !0x1f), size };
            if descriptor != level1(block, SPLIT) {
                return Err(AdoptError::Unrecorded { table: base.at });
            }
            claims.claim(block.at, size)?;
            with_room(second, Sorted::list, |second| second.insert(upper, block));
        }
        Ok(table)
    }

    /// Value of the register that says the table's shape.
    fn shape(&self) -> u64 {
        let mut config = reg::STRTAB_LOG2SIZE.at(self.lg2.into());
        if self.second.is_some() {
            config |= reg::STRTAB_FMT.at(1) | reg::STRTAB_SPLIT.at(self.split.into());
        }
        config
    }

    /// Entries that are open, of tables that are there.
    pub fn open_entries(&self, machine: &SmmuHardware<P>) -> Vec<(StreamId, At)> {
        let tables: Vec<(u32, u32, Block)> = match &self.second {
            Some(second) => {
                let mut second = second.lock();
                let all = second.list().iter();
                let lg2 = self.split;
                all.map(|(upper, block)| (*upper << lg2, 1 << lg2, *block)).collect()
            }
            None => Vec::from([(0, 1 << self.lg2, self.base)]),
        };
        let mut open = Vec::new();
        for (first, count, block) in tables {
            for index in 0..count {
                let at = block.entry(index as usize * ste::WORDS, ste::WORDS);
                let entry = machine.read_entry(at);
                if ste::V.get(&entry) != 0 && ste::CONFIG.get(&entry) != ste::config::ABORT {
                    open.push((StreamId::new(first + index), at));
                }
            }
        }
        open
    }

    /// Place of the entry of `stream`, if there is a table for it.
    pub fn known(&self, stream: StreamId) -> Option<At> {
        let index = stream.get();
        if u64::from(index) >> self.lg2 != 0 {
            return None;
        }
        let (block, index) = match &self.second {
            Some(second) => {
                let block = *second.lock().get(index >> self.split)?;
                (block, index & ((1 << self.split) - 1))
            }
            None => (self.base, index),
        };
        Some(block.entry(index as usize * ste::WORDS, ste::WORDS))
    }

    fn block_all(&self, machine: &SmmuHardware<P>, block: Block) {
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
    pub fn install(&self, machine: &SmmuHardware<P>) -> Result<(), IommuError> {
        let config = self.shape();
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
    pub fn place(&self, machine: &SmmuHardware<P>, stream: StreamId) -> Result<At, AttachError> {
        let index = stream.get();
        if u64::from(index) >> self.lg2 != 0 {
            return Err(AttachError::NoSuchStream { stream });
        }
        let Some(second) = &self.second else {
            let word = index as usize * ste::WORDS;
            return Ok(self.base.entry(word, ste::WORDS));
        };
        let upper = index >> self.split;
        let known = second.lock().get(upper).copied();
        let block = match known {
            Some(block) => block,
            None => self.add_second(machine, second, upper)?,
        };
        let word = (index & ((1 << self.split) - 1)) as usize * ste::WORDS;
        Ok(block.entry(word, ste::WORDS))
    }

    /// Makes the second-level table of `upper`, unless another CPU is faster.
    fn add_second(
        &self,
        machine: &SmmuHardware<P>,
        second: &Second<P>,
        upper: u32,
    ) -> Result<Block, IommuError> {
        let block = machine.alloc(self.split + ste::LG2_BYTES)?;
        self.block_all(machine, block);
        let descriptor = level1(block, self.split);
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
    pub fn release(&self, machine: &SmmuHardware<P>) {
        self.release_second(machine);
        machine.free(self.base);
    }

    /// Gives the second-level tables back.
    fn release_second(&self, machine: &SmmuHardware<P>) {
        if let Some(second) = &self.second {
            let blocks = core::mem::take(second.lock().list());
            for (_, block) in blocks {
                machine.free(block);
            }
        }
    }
}

/// The descriptor of a second-level table of `2^lg2` streams.
fn level1(block: Block, lg2: u32) -> [u64; 1] {
    let mut descriptor = [block.at.get()];
    ste::level1::SPAN.set(&mut descriptor, u64::from(lg2) + 1);
    descriptor
}

/// Attachment of a stream, or of one of its substreams.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttachedStage {
    pub tag: SmmuTag,
    /// Set if a guest's first stage lies on top.
    pub nested: bool,
}

pub(super) type Attachment = book::Attachment<AttachedStage>;

/// One stream.
///
/// *Context.* Interrupt, its own methods: they look at it.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pub contexts: Option<ContextTable>,
    /// Exponent of the number of substreams.
    pub pasid_lg2: u32,
    /// Of its substreams, and of accesses without one. The unsettled attachment of any has entries
    /// and descriptors that are no longer in memory.
    pub attachments: book::Streams<Option<Pasid>, AttachedStage, ()>,
    /// Permission for the device to get translations.
    pub ats: bool,
    /// Set if it may have some that it was not asked to forget since.
    pub filled: bool,
    /// Set if faulting accesses wait.
    pub stalls: bool,
    /// Descriptors that the unit may still look at.
    pub(super) stale_contexts: Vec<ContextTable>,
}

impl Stream {
    /// Tells if nothing reaches memory through it.
    pub fn is_free(&self) -> bool {
        self.attachments.attached(..).next().is_none()
    }

    /// Attachment of accesses without a substream.
    pub fn main(&self) -> Option<AttachedStage> {
        self.attachments.attachment(None).map(|main| main.to)
    }

    pub(super) fn has_substreams(&self) -> bool {
        let all = (Bound::Excluded(None), Bound::Unbounded);
        self.attachments.attached(all).next().is_some()
    }

    /// Gives back its descriptors.
    pub fn release<P: UnitPlatform>(self, machine: &SmmuHardware<P>) {
        for contexts in self.contexts.into_iter().chain(self.stale_contexts) {
            contexts.release(machine);
        }
    }

    /// A descriptor as this stream uses it: an invalid one stays as it is.
    pub(super) fn stalling(&self, descriptor: &cd::Cd) -> cd::Cd {
        let mut descriptor = *descriptor;
        if self.stalls && cd::V.get(&descriptor) != 0 {
            cd::S.set(&mut descriptor, 1);
        }
        descriptor
    }
}

/// All streams that were ever named.
///
/// *Context.* Task: the list takes and frees heap memory.
pub(super) struct NamedStreams<P: UnitPlatform>(Guarded<P, Sorted<StreamId, Arc<Turn<P, Stream>>>>);

impl<P: UnitPlatform> Default for NamedStreams<P> {
    fn default() -> Self {
        Self(Guarded::default())
    }
}

impl<P: UnitPlatform> NamedStreams<P> {
    /// The stream `id`. Memory is needed only for one that was never named.
    pub(super) fn of(&self, id: StreamId) -> Arc<Turn<P, Stream>> {
        let named = self.0.lock().get(id).cloned();
        named.unwrap_or_else(|| {
            let new = Arc::new(Turn::new(Stream::default()));
            let named = with_room(&self.0, Sorted::list, |all| {
                let named = all.get(id).cloned();
                if named.is_none() {
                    all.insert(id, new.clone());
                }
                named
            });
            named.unwrap_or(new)
        })
    }

    /// Gives back the memory of the streams. The unit must be disabled.
    pub fn release(&self, machine: &SmmuHardware<P>) {
        let all = core::mem::take(self.0.lock().list());
        for (_, stream) in all {
            if let Some(mut stream) = stream.try_with(core::mem::take) {
                stream.attachments.settled(..);
                stream.release(machine);
            }
        }
    }
}
