//! Root, context, PASID and interrupt tables, and the attachments that they hold.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 3.4, 9.1 to
//! 9.6 and 9.10. Legacy mode has a root entry for each bus and a table of 256 contexts; scalable mode
//! two tables of 128 contexts for each bus and a directory of PASID tables for each device. Tables are
//! made on demand, and not freed while the unit may read them.

use super::command::{Drain, Remote, Request};
use super::control::Core;
use super::features::{Features, Mode, VtdFeature};
use crate::chassis::entry::{After, At, Kind, Live, WORDS, Words};
use crate::chassis::{Block, Published, Shut, book};
use crate::handover::AdoptError;
use crate::interrupt::{ApicMode, Remapping, Slots};
use crate::turn::Turn;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::sync::atomic::AtomicU64;
use portolan::addr::{InvalTag, PageSize, PhysAddr};
use portolan::iommu::{Interrupt, InterruptError, InterruptPlace, InterruptTarget, IommuError};
use portolan::platform::{Guarded, OutOfTableMemory, TableClaims, TableMem, UnitPlatform, Word};
use portolan_spec::vtd::ADDRESS;
use portolan_spec::vtd::entry::{self, P};
use portolan_spec::vtd::reg::{irta, root_mode};

const PAGE: PageSize = PageSize::SIZE_4K;

/// Root, context and PASID entries. Hardware may read one between any two writes of 64 bits and
/// keep its copy (6.2), so one that is present is made absent first.
pub(crate) const ENTRY: Kind =
    Kind { deciding: P, closed: 0, reads: |_| [u64::MAX; WORDS], live: Live::Closed };

/// The entry of no words but zeros.
pub(super) const ABSENT: Words = [0; WORDS];

/// Invalidations that hardware needs on the way from one entry to another, in stages.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryRequests<'a> {
    pub(super) old: &'a [&'a [Request]],
    /// Additional wait once the old entry is forgotten.
    pub(super) drain: Drain,
    pub(super) absence: &'a [&'a [Request]],
}

impl EntryRequests<'_> {
    /// Nothing: the caller invalidates itself.
    pub(super) const NOTHING: Self = Self { old: &[], drain: Drain::Nothing, absence: &[] };
}

/// Place of a table below the root table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LowerTable {
    /// Context table, by the word of the root table.
    Contexts(usize),
    /// PASID directory of a device.
    Directory(u16),
    /// PASID table of a device, by its index in the directory.
    Pasids(u16, u32),
}

/// The tables of a unit. All methods are for one caller at a time.
#[derive(Debug)]
pub(super) struct Structures {
    pub(super) root: PhysAddr,
    pub(super) mode: Mode,
    /// All tables but the root.
    lower: BTreeMap<LowerTable, PhysAddr>,
    directory_size: PageSize,
    /// Streams of which the unit may have kept an old scalable context entry after a failure.
    pub(super) stale: BTreeSet<u16>,
    /// Root entries that are closed while the unit is suspended.
    shut: Shut,
}

impl Structures {
    /// An empty root table; PASIDs of up to `pasid_bits`.
    pub(super) fn new(
        mem: &impl TableMem<AtomicU64>,
        mode: Mode,
        pasid_bits: u32,
    ) -> Result<Self, OutOfTableMemory> {
        Ok(Self::at(mem.alloc(PAGE)?, mode, pasid_bits))
    }

    /// The root table at `root`, without others.
    pub(super) fn at(root: PhysAddr, mode: Mode, pasid_bits: u32) -> Self {
        // Eight bytes for each table of 64 entries; a page at least, by which it is aligned.
        let lg2 = pasid_bits.clamp(6, 20) - entry::PASID_TABLE_LG2 + 3;
        let directory_size = PageSize::of_lg2(lg2.max(PAGE.lg2()));
        Self {
            root,
            mode,
            lower: BTreeMap::new(),
            directory_size,
            stale: BTreeSet::new(),
            shut: Shut::default(),
        }
    }

    /// Finds the tables below a root that a former kernel left, and claims each of them.
    ///
    /// # Errors
    /// See [`AdoptError`].
    pub(super) fn adopt(
        &mut self,
        mem: &impl TableMem<AtomicU64>,
        claims: &mut TableClaims<'_>,
    ) -> Result<(), AdoptError> {
        claims.claim(self.root, PAGE)?;
        let contexts = self.hung(mem, self.root, PAGE)?;
        for (word, table) in contexts {
            if self.mode == Mode::Legacy && word % entry::ROOT_WORDS != 0 {
                return Err(AdoptError::Unrecorded { table: self.root });
            }
            claims.claim(table, PAGE)?;
            self.lower.insert(LowerTable::Contexts(word), table);
        }
        if self.mode == Mode::Legacy {
            return Ok(());
        }
        for (stream, at) in self.open_contexts(mem) {
            let directory = PhysAddr::new(at.read(mem)[0] & ADDRESS);
            claims.claim(directory, self.directory_size)?;
            self.lower.insert(LowerTable::Directory(stream), directory);
            for (word, table) in self.hung(mem, directory, self.directory_size)? {
                claims.claim(table, PAGE)?;
                self.lower.insert(LowerTable::Pasids(stream, word as u32), table);
            }
        }
        Ok(())
    }

    /// The words of a table that lead to others, with these.
    fn hung(
        &self,
        mem: &impl TableMem<AtomicU64>,
        table: PhysAddr,
        size: PageSize,
    ) -> Result<Vec<(usize, PhysAddr)>, AdoptError> {
        let words = mem.table(table, size).iter().map(Word::load).enumerate();
        let hung = words.filter(|(_, word)| *word != 0);
        hung.map(|(index, word)| match word & !ADDRESS {
            P => Ok((index, PhysAddr::new(word & ADDRESS))),
            _ => Err(AdoptError::Unrecorded { table }),
        })
        .collect()
    }

    /// Entries of context tables that are present, with their streams.
    fn open_contexts(&self, mem: &impl TableMem<AtomicU64>) -> Vec<(u16, At)> {
        let tables = self.lower.range(LowerTable::Contexts(0)..LowerTable::Directory(0));
        let words = match self.mode {
            Mode::Legacy => entry::CONTEXT_WORDS,
            Mode::Scalable => entry::SCALABLE_WORDS,
        };
        let mut open = Vec::new();
        for (place, &table) in tables {
            let &LowerTable::Contexts(word) = place else { continue };
            // The upper half of a bus has a word of its own in scalable mode alone.
            let first = word << 7;
            let count = PAGE.bytes() as usize / 8 / words;
            let all = (0..count).map(|index| At { table, size: PAGE, first: index * words, words });
            let present = all.enumerate().filter(|(_, at)| at.read(mem)[0] & P != 0);
            open.extend(present.map(|(index, at)| ((first + index) as u16, at)));
        }
        open
    }

    /// Entries that are present and decide about a stream and a PASID, of tables that are there.
    pub(super) fn open_entries(&self, mem: &impl TableMem<AtomicU64>) -> Vec<((u16, u32), At)> {
        if self.mode == Mode::Legacy {
            return self
                .open_contexts(mem)
                .into_iter()
                .map(|(stream, at)| ((stream, 0), at))
                .collect();
        }
        let mut open = Vec::new();
        for (place, &table) in self.lower.range(LowerTable::Pasids(0, 0)..) {
            let &LowerTable::Pasids(stream, upper) = place else { continue };
            for slot in 0..1u32 << entry::PASID_TABLE_LG2 {
                let at = pasid_entry(table, slot);
                if at.read(mem)[0] & P != 0 {
                    open.push(((stream, upper << entry::PASID_TABLE_LG2 | slot), at));
                }
            }
        }
        open
    }

    /// Streams with a PASID directory.
    pub(super) fn devices(&self) -> impl Iterator<Item = u16> {
        self.lower.keys().filter_map(|place| match place {
            LowerTable::Directory(stream) => Some(*stream),
            LowerTable::Contexts(_) | LowerTable::Pasids(..) => None,
        })
    }

    /// The context entry of `stream`, if there is a table for it.
    pub(super) fn known_context(&self, stream: u16) -> Option<At> {
        let (word, index, words) = context_place(self.mode, stream);
        let table = *self.lower.get(&LowerTable::Contexts(word))?;
        Some(At { table, size: PAGE, first: index * words, words })
    }

    /// The PASID directory of `stream`, if there is one.
    pub(super) fn known_directory(&self, stream: u16) -> Option<PhysAddr> {
        self.lower.get(&LowerTable::Directory(stream)).copied()
    }

    /// The entry that decides about a stream and a PASID, if there is a table for it.
    pub(super) fn known_entry(&self, (stream, pasid): Key) -> Option<At> {
        if self.mode == Mode::Legacy {
            return self.known_context(stream);
        }
        let index = pasid >> entry::PASID_TABLE_LG2;
        let table = *self.lower.get(&LowerTable::Pasids(stream, index))?;
        Some(pasid_entry(table, pasid))
    }

    /// Gives everything back. The unit must have stopped reading it.
    pub(super) fn free(&mut self, mem: &impl TableMem<AtomicU64>) {
        mem.free(self.root, PAGE);
        for (&place, &table) in &self.lower {
            mem.free(table, self.size_of(place));
        }
        self.lower.clear();
    }

    /// Has the root table lead nowhere.
    pub(super) fn shut<P: UnitPlatform>(&mut self, core: &Core<P>) {
        for first in 0..PAGE.bytes() as usize / 8 {
            let at = At { table: self.root, size: PAGE, first, words: 1 };
            self.shut.close(&core.mem, core.walker(), at, ABSENT[0]);
        }
    }

    /// Has the root table lead where it did before [`Structures::shut`].
    pub(super) fn open<P: UnitPlatform>(&mut self, core: &Core<P>) {
        self.shut.open(&core.mem, core.walker());
    }

    fn size_of(&self, place: LowerTable) -> PageSize {
        match place {
            LowerTable::Directory(_) => self.directory_size,
            LowerTable::Contexts(_) | LowerTable::Pasids(..) => PAGE,
        }
    }

    /// The table at a place, which is made if there is none.
    fn table<P: UnitPlatform>(
        &mut self,
        core: &Core<P>,
        place: LowerTable,
    ) -> Result<PhysAddr, IommuError> {
        if let Some(&table) = self.lower.get(&place) {
            return Ok(table);
        }
        let table = core.mem.alloc(self.size_of(place))?;
        self.lower.insert(place, table);
        Ok(table)
    }

    /// The exponent of the directory's entries, less seven, as a context entry has it.
    pub(super) fn directory_code(&self) -> u64 {
        u64::from(self.directory_size.lg2() - 3 - 7)
    }

    /// The context entry of `stream`, with the table that holds it.
    pub(super) fn context<P: UnitPlatform>(
        &mut self,
        core: &Core<P>,
        stream: u16,
    ) -> Result<At, IommuError> {
        let (word, index, words) = context_place(self.mode, stream);
        let table = self.table(core, LowerTable::Contexts(word))?;
        hang(core, self.root, PAGE, word, table)?;
        Ok(At { table, size: PAGE, first: index * words, words })
    }

    /// The PASID directory of `stream`.
    pub(super) fn directory<P: UnitPlatform>(
        &mut self,
        core: &Core<P>,
        stream: u16,
    ) -> Result<PhysAddr, IommuError> {
        self.table(core, LowerTable::Directory(stream))
    }

    /// The entry of `pasid` in the directory of `stream`, with the table that holds it.
    pub(super) fn pasid<P: UnitPlatform>(
        &mut self,
        core: &Core<P>,
        stream: u16,
        pasid: u32,
    ) -> Result<At, IommuError> {
        let directory = self.directory(core, stream)?;
        let index = pasid >> entry::PASID_TABLE_LG2;
        let table = self.table(core, LowerTable::Pasids(stream, index))?;
        hang(core, directory, self.directory_size, index as usize, table)?;
        Ok(pasid_entry(table, pasid))
    }
}

/// The word of the root for the context entry of `stream`, its number in the table, and its words.
pub(super) fn context_place(mode: Mode, stream: u16) -> (usize, usize, usize) {
    let (bus, function) = (usize::from(stream >> 8), usize::from(stream & 0xff));
    let (half, index, words) = match mode {
        Mode::Legacy => (0, function, entry::CONTEXT_WORDS),
        Mode::Scalable => (function >> 7, function & 0x7f, entry::SCALABLE_WORDS),
    };
    (bus * entry::ROOT_WORDS + half, index, words)
}

/// The entry of `pasid` in the table that has it.
fn pasid_entry(table: PhysAddr, pasid: u32) -> At {
    let slot = pasid as usize & ((1 << entry::PASID_TABLE_LG2) - 1);
    At { table, size: PAGE, first: slot * entry::PASID_WORDS, words: entry::PASID_WORDS }
}

/// Hangs a table on one word of an upper one, unless it hangs there. That it was not there before
/// is forgotten with the entry that is about to be written in it.
fn hang<P: UnitPlatform>(
    core: &Core<P>,
    upper: PhysAddr,
    size: PageSize,
    word: usize,
    table: PhysAddr,
) -> Result<(), IommuError> {
    let at = At { table: upper, size, first: word, words: 1 };
    let mut new = ABSENT;
    new[0] = table.get() & ADDRESS | P;
    change(core, at, &new, EntryRequests::NOTHING)
}

/// Changes an entry to `new`, step by step.
///
/// On an error hardware may still use its copy of the old entry.
pub(super) fn change<P: UnitPlatform>(
    core: &Core<P>,
    at: At,
    new: &Words,
    forget: EntryRequests<'_>,
) -> Result<(), IommuError> {
    let has = core.control.features.has;
    at.change(&core.mem, core.walker(), &ENTRY, new, |after| {
        core.control.flush_write_buffer()?;
        match after {
            After::Closed => core.run_to(forget.old, forget.drain),
            After::Changed if has.contains(VtdFeature::CACHING_MODE) => core.run(forget.absence),
            After::Changed | After::Unread => Ok(()),
        }
    })
}

/// Data of an attachment's entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttachedContext {
    /// Domain identifier.
    pub(super) id: u16,
    /// Tag of its translations; nothing when it passes through.
    pub(super) context: Option<InvalTag>,
    pub(super) remote: Option<Remote>,
}

/// A stream and a PASID.
pub(super) type Key = (u16, u32);

pub(super) type Attachment = book::Attachment<AttachedContext>;

/// Attachments of all streams; a caller that has them moves streams.
pub(super) type Streams = book::Streams<Key, AttachedContext, Structures>;

/// State in which a unit was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InheritedTranslation {
    Nothing,
    /// It translates, in the mode that it is to be used in.
    Translation,
}

/// The root that the unit has, or is to have.
#[derive(Debug)]
pub(super) struct Root {
    address: u64,
    inherited: InheritedTranslation,
    /// 1 once the unit has it.
    set: Published,
}

impl Root {
    pub(super) fn new(table: PhysAddr, mode: Mode, inherited: InheritedTranslation) -> Self {
        Self { address: table.get() | mode_bits(mode), inherited, set: Published::default() }
    }

    /// Value of the address register.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn inherited(&self) -> InheritedTranslation {
        self.inherited
    }

    /// Tells if the unit still has another.
    pub(super) fn is_due(&self) -> bool {
        self.set.get() == 0
    }

    pub(super) fn is_set(&self) {
        self.set.publish(1);
    }
}

/// Bits of the address register that name a mode.
pub(super) fn mode_bits(mode: Mode) -> u64 {
    match mode {
        Mode::Legacy => root_mode::LEGACY,
        Mode::Scalable => root_mode::SCALABLE,
    }
}

/// Words of an entry of an interrupt table.
const INTERRUPT_WORDS: usize = 2;
/// Exponents of the numbers of entries that an interrupt table may have: from a page to the reach
/// of indices.
const LEAST_LG2: u32 = 8;
const MOST_LG2: u32 = 16;

/// A unit's interrupt table.
pub(super) struct VtdInterruptTable<P: UnitPlatform> {
    pub(super) table: Block,
    pub(super) wanted: Remapping,
    pub(super) slots: Turn<P, Slots>,
}

impl<P: UnitPlatform> VtdInterruptTable<P> {
    /// An empty table, of which the unit does not know. *Context.* Task.
    pub(super) fn new(
        mem: &impl TableMem<AtomicU64>,
        features: &Features,
        wanted: Remapping,
    ) -> Result<Self, IommuError> {
        let slots = Self::free_slots(features, wanted)?;
        Ok(Self { table: Block::new(mem, wanted.lg2_entries + 4)?, wanted, slots })
    }

    /// The table that a unit uses of which the address register has the value `root`: nothing is held in it yet.
    /// *Context.* Task.
    pub(super) fn of_former(
        root: u64,
        features: &Features,
        wanted: Remapping,
    ) -> Result<Self, IommuError> {
        let slots = Self::free_slots(features, wanted)?;
        let size = PageSize::of_lg2(wanted.lg2_entries + 4);
        let table = Block { at: PhysAddr::new(root).align_down(PageSize::SIZE_4K), size };
        Ok(Self { table, wanted, slots })
    }

    /// The table, of which no other has a page.
    pub(super) fn claimed(self, claims: &mut TableClaims<'_>) -> Result<Self, AdoptError> {
        claims.claim(self.table.at, self.table.size)?;
        Ok(self)
    }

    /// Entries of a table as `wanted`, if there can be one.
    fn free_slots(features: &Features, wanted: Remapping) -> Result<Turn<P, Slots>, IommuError> {
        let wide = wanted.apic == ApicMode::XApic || features.has.contains(VtdFeature::X2APIC);
        let fits = (LEAST_LG2..=MOST_LG2).contains(&wanted.lg2_entries);
        if !features.has.contains(VtdFeature::INTERRUPT_REMAPPING) || !wide || !fits {
            return Err(IommuError::Unsupported);
        }
        Ok(Turn::new(Slots::new(wanted.lg2_entries)?))
    }

    /// Gives the memory back. The unit must have stopped using it. *Context.* Task.
    pub(super) fn free(&self, mem: &impl TableMem<AtomicU64>) {
        self.table.free(mem);
    }

    /// Value of the address register.
    pub(super) fn address(&self) -> u64 {
        let wide = u64::from(self.wanted.apic == ApicMode::X2Apic);
        let size = u64::from(self.wanted.lg2_entries - 1);
        self.table.at.get() | irta::EIME.at(wide) | irta::SIZE.at(size)
    }

    pub(super) fn at(&self, index: u16) -> At {
        self.table.entry(usize::from(index) * INTERRUPT_WORDS, INTERRUPT_WORDS)
    }

    /// Indices of its entries.
    pub(super) fn indices(&self) -> impl Iterator<Item = u16> {
        (0..=u16::MAX).take(1 << self.wanted.lg2_entries)
    }

    /// The index of `interrupt`, if it is in use.
    pub(super) fn used(&self, slots: &Slots, interrupt: &Interrupt) -> Result<u16, InterruptError> {
        let InterruptPlace { table, index, .. } = interrupt.place();
        if table == self.table.at && slots.holds(interrupt) {
            Ok(index)
        } else {
            Err(InterruptError::NotInUse)
        }
    }
}

/// The messages that a unit has: one for faults and one for page requests.
const MESSAGES: usize = 2;

/// Targets of the unit's own messages, by their control registers.
pub(super) struct OwnMessages<P: UnitPlatform>(
    pub(super) Guarded<P, ArrayVec<(usize, InterruptTarget), MESSAGES>>,
);

impl<P: UnitPlatform> Default for OwnMessages<P> {
    fn default() -> Self {
        Self(Guarded::default())
    }
}
