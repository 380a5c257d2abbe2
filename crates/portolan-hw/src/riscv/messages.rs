//! MSI page tables of streams: messages of a device go to interrupts of its own.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, sections "MSI page table pointer", "MSI address
//! mask and pattern" and "Process to translate addresses of MSIs": a device writes the interrupt's number to
//! a page of the unit's window. Each stream has a part of the window and a table of its own, so that the
//! table verifies the sender, and tells apart entries of several streams in one domain, by whose tag units
//! keep them. Each interrupt has an entry of its own, so that it can go to another hart while the device's
//! message stays the same.
//!
//! Not supported: memory-resident interrupt files.
//!
//! *Context.* Interrupt, but for functions that take or give back memory (task).

use super::command::{RiscvTag, translated};
use super::features::Messages;
use crate::chassis::Block;
use crate::chassis::entry::{At, Words};
use crate::handover::AdoptError;
use crate::interrupt::Slots;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;
use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, StreamId};
use portolan::inval::Walker;
use portolan::iommu::handover::InterruptHandover;
use portolan::iommu::{
    Interrupt, InterruptError, InterruptPlace, InterruptTarget, IommuError, MsiMessage,
    ReservedKind, ReservedRegion,
};
use portolan::platform::{TableClaims, TableMem, Word};
use portolan_spec::riscv::context::{
    MESSAGE_MASK, MESSAGE_MODE, MESSAGE_PATTERN, MESSAGE_TABLE, ROOT, SECOND,
};
use portolan_spec::riscv::message::{LG2_BYTES, WORDS};

/// Entries of a page of an MSI page table, as an exponent: a stream has no more.
const MESSAGES_LG2: u32 = 12 - LG2_BYTES;
/// Bytes of the root of second-stage tables, as an exponent, and the number of levels of those in
/// which nothing is mapped.
const EMPTY_LG2: u32 = 14;
/// Widest addresses of the window: of the smallest second stage.
const WINDOW_LG2: u32 = 32;

/// The MSI page table of a stream.
#[derive(Debug)]
pub(super) struct MessageTable {
    block: Block,
    slots: Slots,
    /// Number of the first page of its part of the window.
    first: u64,
}

/// The MSI page tables of all streams that have been given one. They stay until the unit is released, as it
/// may read them.
#[derive(Debug)]
pub(super) struct MessageTables {
    config: Messages,
    tables: BTreeMap<u32, MessageTable>,
    /// Parts of the window that are the tables'.
    parts: BTreeSet<u64>,
    /// The root of a second stage in which nothing is mapped, for streams that have interrupts and
    /// no domain, once there is one; its levels, and its tag.
    empty: Option<Block>,
    levels: u32,
    tag: RiscvTag,
}

/// Returns the number of entries of a stream as an exponent, if the window is one.
fn checked(config: &Messages) -> Option<u32> {
    let lg2_entries = config.lg2_entries.min(MESSAGES_LG2);
    let (start, lg2) = (config.window.get(), config.window_lg2);
    let bytes = 1u64.checked_shl(lg2)?;
    let last = start.checked_add(bytes - 1)?;
    let fits = start & (bytes - 1) == 0 && last >> WINDOW_LG2 == 0 && start != 0;
    (fits && lg2 >= 12 + lg2_entries).then_some(lg2_entries)
}

/// The window, which no mapping may have.
pub(super) fn message_window(config: &Messages) -> ReservedRegion {
    let first = config.window;
    let last = Iova::new(first.get() | ((1 << config.window_lg2.min(63)) - 1));
    let page = |at| IovaRange::page(at, PageSize::SIZE_4K);
    ReservedRegion { range: page(first).hull(page(last)), kind: ReservedKind::Interrupts }
}

impl MessageTables {
    /// No tables yet. Streams without a domain have `tag`, over tables of `levels` levels.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] for a window that is none.
    pub(super) fn new(config: Messages, levels: u32, tag: RiscvTag) -> Result<Self, IommuError> {
        let lg2_entries = checked(&config).ok_or(IommuError::Unsupported)?;
        Ok(Self {
            config: Messages { lg2_entries, ..config },
            tables: BTreeMap::new(),
            parts: BTreeSet::new(),
            empty: None,
            levels,
            tag,
        })
    }

    /// The tag of streams without a domain.
    pub(super) fn tag(&self) -> RiscvTag {
        self.tag
    }

    /// The context of streams without a domain, but for the table.
    ///
    /// # Errors
    /// [`IommuError::Memory`].
    pub(super) fn without_domain(
        &mut self,
        mem: &impl TableMem<AtomicU64>,
    ) -> Result<Words, IommuError> {
        let empty = match self.empty {
            Some(empty) => empty,
            None => *self.empty.insert(Block::new(mem, EMPTY_LG2)?),
        };
        Ok(translated(self.tag, empty.at, self.levels))
    }

    /// The tables.
    pub(super) fn tables(&self) -> impl Iterator<Item = &MessageTable> {
        self.tables.values()
    }

    /// The table of `stream`, which is made if there is none and room in the window; `None` without.
    ///
    /// # Errors
    /// [`IommuError::Memory`].
    pub(super) fn table(
        &mut self,
        mem: &impl TableMem<AtomicU64>,
        stream: u32,
    ) -> Result<Option<&mut MessageTable>, IommuError> {
        use alloc::collections::btree_map::Entry;
        let Messages { lg2_entries, window, .. } = self.config;
        let room = 0..1 << self.room_lg2();
        match self.tables.entry(stream) {
            Entry::Occupied(table) => Ok(Some(table.into_mut())),
            Entry::Vacant(vacant) => {
                // Tables of a former kernel may be in any parts.
                let mut parts =
                    room.zip(self.parts.iter().map(Some).chain(core::iter::repeat(None)));
                let free = parts.find(|(part, used)| *used != Some(part));
                let Some((part, _)) = free else { return Ok(None) };
                let slots = Slots::new(lg2_entries)?;
                let block = Block::new(mem, 12)?;
                self.parts.insert(part);
                let first = (window.get() >> 12) + (part << lg2_entries);
                Ok(Some(vacant.insert(MessageTable { block, slots, first })))
            }
        }
    }

    /// Number of parts of the window, as an exponent.
    fn room_lg2(&self) -> u32 {
        self.config.window_lg2 - 12 - self.config.lg2_entries
    }

    /// The table of `stream`, if it has one.
    pub(super) fn known(&mut self, stream: u32) -> Option<&mut MessageTable> {
        self.tables.get_mut(&stream)
    }

    /// Gives the memory back. The unit must have stopped using it.
    pub(super) fn free(&mut self, mem: &impl TableMem<AtomicU64>) {
        for (_, table) in core::mem::take(&mut self.tables) {
            table.block.free(mem);
        }
        if let Some(empty) = self.empty.take() {
            empty.free(mem);
        }
    }

    /// `words`, which are a second stage's, with the table of `stream`, if there is room for one.
    pub(super) fn with_table(
        &mut self,
        mem: &impl TableMem<AtomicU64>,
        stream: u32,
        words: &Words,
    ) -> Result<Words, IommuError> {
        let mask = self.mask();
        let table = self.table(mem, stream)?;
        Ok(table.map_or(*words, |table| table.named(words, mask)))
    }

    /// Bits of a page's number that choose an entry.
    fn mask(&self) -> u64 {
        (1 << self.config.lg2_entries) - 1
    }

    /// The context of streams without a domain, but for the table, where a former kernel has left one with the words
    /// `found`.
    ///
    /// # Errors
    /// See [`AdoptError`].
    pub(super) fn adopt_empty(
        &mut self,
        mem: &impl TableMem<AtomicU64>,
        found: &Words,
        claims: &mut TableClaims<'_>,
    ) -> Result<Words, AdoptError> {
        if self.empty.is_none() {
            let at = PhysAddr::new(ROOT.of(found[SECOND]) << 12);
            let empty = Block { at, size: PageSize::of_lg2(EMPTY_LG2) };
            claims.claim(at, empty.size)?;
            if empty.words(mem).iter().any(|word| Word::load(word) != 0) {
                return Err(AdoptError::Unrecorded { table: at });
            }
            self.empty = Some(empty);
        }
        Ok(self.without_domain(mem)?)
    }

    /// As [`MessageTables::with_table`], with the table to which a former kernel's context leads, if to any.
    ///
    /// # Errors
    /// See [`AdoptError`].
    pub(super) fn adopt_table(
        &mut self,
        stream: u32,
        former: FormerContext<'_>,
        claims: &mut TableClaims<'_>,
    ) -> Result<Words, AdoptError> {
        let FormerContext { words, found } = former;
        if found[MESSAGE_TABLE] == 0 {
            return Ok(*words);
        }
        let wrong = AdoptError::Entry { stream: StreamId::new(stream) };
        let Messages { lg2_entries, window, .. } = self.config;
        let first = found[MESSAGE_PATTERN];
        let page = first.checked_sub(window.get() >> 12).filter(|page| page & self.mask() == 0);
        let part = page.ok_or(wrong)? >> lg2_entries;
        let at = PhysAddr::new(ROOT.of(found[MESSAGE_TABLE]) << 12);
        let block = Block { at, size: PageSize::SIZE_4K };
        let table = MessageTable { block, slots: Slots::new(lg2_entries)?, first };
        let named = table.named(words, self.mask());
        if named != *found || part >> self.room_lg2() != 0 || !self.parts.insert(part) {
            return Err(wrong);
        }
        claims.claim(at, block.size)?;
        self.tables.insert(stream, table);
        Ok(named)
    }

    /// Checks that the entries of all tables are closed, but for those of `open`, by stream and index.
    ///
    /// # Errors
    /// [`AdoptError::Unrecorded`].
    pub(super) fn check_closed(
        &self,
        mem: &impl TableMem<AtomicU64>,
        open: &BTreeSet<(u32, u16)>,
    ) -> Result<(), AdoptError> {
        for (stream, table) in &self.tables {
            let entries = table.block.words(mem).chunks(WORDS).zip(0..=u16::MAX);
            for (words, index) in entries {
                // The other word stays as it was for a file in memory.
                let is_open = words.first().is_some_and(|word| Word::load(word) != 0);
                if is_open && !open.contains(&(*stream, index)) {
                    return Err(AdoptError::Unrecorded { table: table.block.at });
                }
            }
        }
        Ok(())
    }
}

/// Context of a former kernel: words that it has but for the table of messages, and those that are found.
#[derive(Clone, Copy)]
pub(super) struct FormerContext<'w> {
    pub(super) words: &'w Words,
    pub(super) found: &'w Words,
}

impl MessageTable {
    fn named(&self, words: &Words, mask: u64) -> Words {
        let mut words = *words;
        words[MESSAGE_TABLE] = MESSAGE_MODE | ROOT.at(self.block.at.get() >> 12);
        words[MESSAGE_MASK] = mask;
        words[MESSAGE_PATTERN] = self.first;
        words
    }

    pub(super) fn slots(&mut self) -> &mut Slots {
        &mut self.slots
    }

    /// Adds the interrupts to `all`.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] if one does not arrive at a file of the machine's.
    pub(super) fn record(&self, all: &mut Vec<InterruptHandover>) -> Result<(), IommuError> {
        self.slots.record(all)
    }

    /// Holds an interrupt of a former kernel if `entry` is what is there for it; tells if so.
    pub(super) fn hold(
        &mut self,
        mem: &impl TableMem<AtomicU64>,
        former: &InterruptHandover,
        entry: u64,
    ) -> bool {
        let at = self.entry(former.index);
        self.slots.hold(former) && at.read(mem)[0] == entry
    }

    /// Its address, which tells it from others.
    pub(super) fn at(&self) -> PhysAddr {
        self.block.at
    }

    /// The address of entry `index` for the device.
    pub(super) fn address(&self, index: u16) -> u64 {
        (self.first + u64::from(index)) << 12
    }

    /// The place of an entry.
    pub(super) fn entry(&self, index: u16) -> At {
        self.block.entry(usize::from(index) * WORDS, WORDS)
    }

    /// Writes an entry, by one store: the other word is ignored.
    pub(super) fn set(&self, mem: &impl TableMem<AtomicU64>, index: u16, entry: u64) {
        let at = self.entry(index);
        at.write(mem, 0, entry);
        at.publish(mem, Walker::Coherent);
    }

    /// The index of `interrupt`, if it is in use.
    pub(super) fn used(&self, interrupt: &Interrupt) -> Result<u16, InterruptError> {
        let InterruptPlace { table, index, .. } = interrupt.place();
        if table == self.block.at && self.slots.holds(interrupt) {
            Ok(index)
        } else {
            Err(InterruptError::NotInUse)
        }
    }

    /// Closes all entries that are in use; tells if there was one.
    pub(super) fn close(&mut self, mem: &impl TableMem<AtomicU64>) -> bool {
        let block = self.block;
        let close = |index: u16| {
            let at = block.entry(usize::from(index) * WORDS, WORDS);
            at.write(mem, 0, 0);
            at.publish(mem, Walker::Coherent);
        };
        self.slots.unsettle_all(None, close)
    }

    /// Message that the device writes.
    pub(super) fn message(&self, index: u16, target: &InterruptTarget) -> MsiMessage {
        MsiMessage { address: self.address(index), data: target.vector.get().into() }
    }
}
