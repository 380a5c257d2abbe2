//! Interrupts of devices: an MSI page table for each stream that may have any.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, sections "MSI page table pointer", "MSI
//! address mask and pattern", "Process to translate addresses of MSIs" and "Changing MSI page table
//! entry". A device writes the interrupt's number to a page of the unit's window. Each stream has a
//! part of the window of its own and a table for it, so that the table verifies the sender, and
//! tells apart entries of several streams in one domain, by whose tag units keep them. Each
//! interrupt has an entry of its own, so that it can go to another hart while the device's message
//! stays the same.
//!
//! The number is the device's own word: a unit checks the file into which it writes, and not the
//! value. So a device may raise any interrupt in the files that entries of its own lead to. Not
//! supported: memory-resident interrupt files (for guests whose harts do not run), files of guests.

use super::command::{RiscvTag, translated};
use super::features::Messages as Config;
use crate::chassis::Block;
use crate::chassis::entry::Words;
use crate::interrupt::Slots;
use alloc::collections::BTreeMap;
use core::sync::atomic::AtomicU64;
use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr};
use portolan::inval::Walker;
use portolan::iommu::{
    Delivery, Destination, Interrupt, InterruptError, InterruptTarget, IommuError, MsiMessage,
    ReservedKind, ReservedRegion, Trigger,
};
use portolan::platform::TableMem;
use portolan_spec::riscv::context::{
    MESSAGE_MASK, MESSAGE_MODE, MESSAGE_PATTERN, MESSAGE_TABLE, ROOT,
};
use portolan_spec::riscv::message::{LG2_BYTES, MODE, TRANSLATED, V, WORDS};
use portolan_spec::riscv::page_of;

/// Entries of a page of a table, as an exponent: a stream has no more.
const MOST_LG2: u32 = 12 - LG2_BYTES;
/// Bytes of the root of second-stage tables, as an exponent, and the number of levels of those in
/// which nothing is mapped.
const EMPTY_LG2: u32 = 14;
/// Widest addresses of the window: of the smallest second stage.
const WIDEST_LG2: u32 = 32;

/// The table of a stream.
#[derive(Debug)]
pub(super) struct Table {
    block: Block,
    slots: Slots,
    /// Number of the first page of its part of the window.
    first: u64,
}

/// The tables of all streams that have been given one. They stay until the unit is released, as it
/// may read them.
#[derive(Debug)]
pub(super) struct MessageTables {
    config: Config,
    tables: BTreeMap<u32, Table>,
    /// The root of a second stage in which nothing is mapped, for streams that have interrupts and
    /// no domain; its levels, and its tag.
    empty: Block,
    levels: u32,
    tag: RiscvTag,
}

/// Returns the number of entries of a stream as an exponent, if the window is one.
fn checked(config: &Config) -> Option<u32> {
    let lg2_entries = config.lg2_entries.min(MOST_LG2);
    let (start, lg2) = (config.window.get(), config.window_lg2);
    let bytes = 1u64.checked_shl(lg2)?;
    let last = start.checked_add(bytes - 1)?;
    let fits = start & (bytes - 1) == 0 && last >> WIDEST_LG2 == 0 && start != 0;
    (fits && lg2 >= 12 + lg2_entries).then_some(lg2_entries)
}

/// The window, which no mapping may have.
pub(super) fn window(config: &Config) -> ReservedRegion {
    let first = config.window;
    let last = Iova::new(first.get() | ((1 << config.window_lg2.min(63)) - 1));
    let page = |at| IovaRange::page(at, PageSize::SIZE_4K);
    ReservedRegion { range: page(first).hull(page(last)), kind: ReservedKind::Interrupts }
}

/// An entry that leads to the file of the target's hart.
pub(super) fn entry(
    config: &Config,
    target: &InterruptTarget,
    output_lg2: u32,
) -> Result<u64, InterruptError> {
    let no_such = InterruptError::Destination(target.destination);
    let Destination::Physical(hart) = target.destination else {
        return Err(no_such);
    };
    let known = u32::from(target.vector.get()) <= config.files.identities;
    if target.delivery != Delivery::Fixed || target.trigger != Trigger::Edge || !known {
        return Err(InterruptError::Target);
    }
    let page = config.files.page(hart).ok_or(no_such)?.get();
    if page >> output_lg2 == 0 && page & 0xfff == 0 {
        Ok(V | MODE.at(TRANSLATED) | page_of(page))
    } else {
        Err(no_such)
    }
}

impl MessageTables {
    /// No tables yet. Streams without a domain have `tag`, over tables of `levels` levels.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] for a window that is none; [`IommuError::Memory`].
    pub(super) fn new(
        mem: &impl TableMem<AtomicU64>,
        config: Config,
        levels: u32,
        tag: RiscvTag,
    ) -> Result<Self, IommuError> {
        let lg2_entries = checked(&config).ok_or(IommuError::Unsupported)?;
        Ok(Self {
            config: Config { lg2_entries, ..config },
            tables: BTreeMap::new(),
            empty: Block::new(mem, EMPTY_LG2)?,
            levels,
            tag,
        })
    }

    /// The tag of streams without a domain, and their context, but for the table.
    pub(super) fn without_domain(&self) -> (RiscvTag, Words) {
        (self.tag, translated(self.tag, self.empty.at, self.levels))
    }

    /// The table of `stream`, which is made if there is none and room in the window; `None` without.
    ///
    /// # Errors
    /// [`IommuError::Memory`].
    pub(super) fn table(
        &mut self,
        mem: &impl TableMem<AtomicU64>,
        stream: u32,
    ) -> Result<Option<&mut Table>, IommuError> {
        use alloc::collections::btree_map::Entry;
        let lg2_entries = self.config.lg2_entries;
        let number = self.tables.len() as u64;
        match self.tables.entry(stream) {
            Entry::Occupied(table) => Ok(Some(table.into_mut())),
            Entry::Vacant(_) if number >> (self.config.window_lg2 - 12 - lg2_entries) != 0 => {
                Ok(None)
            }
            Entry::Vacant(vacant) => {
                let slots = Slots::new(lg2_entries)?;
                Ok(Some(vacant.insert(Table {
                    block: Block::new(mem, 12)?,
                    slots,
                    first: (self.config.window.get() >> 12) + (number << lg2_entries),
                })))
            }
        }
    }

    /// The table of `stream`, if it has one.
    pub(super) fn known(&mut self, stream: u32) -> Option<&mut Table> {
        self.tables.get_mut(&stream)
    }

    /// Gives the memory back. The unit must have stopped using it.
    pub(super) fn free(&mut self, mem: &impl TableMem<AtomicU64>) {
        for (_, table) in core::mem::take(&mut self.tables) {
            table.block.free(mem);
        }
        self.empty.free(mem);
    }

    /// `words`, which are a second stage's, with the table of `stream`, if there is room for one.
    pub(super) fn with_table(
        &mut self,
        mem: &impl TableMem<AtomicU64>,
        stream: u32,
        words: &Words,
    ) -> Result<Words, IommuError> {
        let mask = (1 << self.config.lg2_entries) - 1;
        let table = self.table(mem, stream)?;
        Ok(table.map_or(*words, |table| table.named(words, mask)))
    }
}

impl Table {
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

    /// Its address, which tells it from others.
    pub(super) fn at(&self) -> PhysAddr {
        self.block.at
    }

    /// The address of entry `index` for the device.
    pub(super) fn address(&self, index: u16) -> u64 {
        (self.first + u64::from(index)) << 12
    }

    /// Writes an entry, by one store: the other word is always zero.
    pub(super) fn set(&self, mem: &impl TableMem<AtomicU64>, index: u16, entry: u64) {
        let at = self.block.entry(usize::from(index) * WORDS, WORDS);
        at.write(mem, 0, entry);
        at.publish(mem, Walker::Coherent);
    }

    /// The index of `interrupt`, if it is in use.
    pub(super) fn used(&self, interrupt: &Interrupt) -> Result<u16, InterruptError> {
        let (table, index, _) = interrupt.place();
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
