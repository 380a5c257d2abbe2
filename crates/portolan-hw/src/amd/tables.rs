//! The device table, and the interrupt tables and attachments that its entries name.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, section 2.2.2.
//! Streams that were never named have entries that block. The fields of an entry for interrupts and
//! for system management messages (SysMgt) stay as they are while the stream is moved.
//!
//! Erratum 63 of old units: forwarding a system management interrupt is undefined where SysMgt is 01b
//! and the entry does not permit writes. A blocked stream with SysMgt 01b therefore permits them (IW), to
//! tables in which nothing is mapped. Linux sets IW alone (`amd_iommu_apply_erratum_63`), and lets all
//! writes of such a stream pass. Not covered: the moment of a move between two domains, in which the
//! entry permits nothing if it is closed meanwhile.
//!
//! *Context.* Interrupt, but for functions that take or give back memory (task).

use super::command::{AmdAtc, AmdKept, AtcSpaces, Counted};
use super::config::Config;
use super::features::{AmdFeature, Features};
use super::guest::Guests;
use super::queue::{AmdShared, NOTHING, PASS};
use super::{command, config};
use crate::chassis::entry::{After, At, Kind, Live, Stores, Words};
use crate::chassis::{Block, Shut, book, entry};
use crate::handover::AdoptError;
use crate::interrupt::compose::AMD_MOST_LG2;
use crate::interrupt::{ApicMode, Remapping, Slots};
use crate::turn::Turn;
use alloc::collections::BTreeMap;
use core::sync::atomic::AtomicU64;
use portolan::addr::{InvalTag, PageSize, PhysAddr, StreamId};
use portolan::inval::Walker;
use portolan::iommu::handover::UnitHandover;
use portolan::iommu::{AttachError, Interrupt, InterruptError, InterruptPlace, IommuError};
use portolan::platform::{OutOfTableMemory, TableClaims, TableMem, UnitPlatform, Word};
use portolan::table::TableView;
use portolan::table::format::{AmdLevels, AmdV1, AmdV2Levels, DirtyTracking};
use portolan_spec::amd::entry::{
    DEVICE_TLB, DOMAIN, GUEST_PAGING, INTERRUPTS_VALID, IR, IW, LG2_BYTES, MODE, SYSTEM_MANAGEMENT,
    TV, V, WORDS,
};
use portolan_spec::amd::interrupt::{REMAPPED, wide};
use portolan_spec::amd::{ADDRESS, reg};
use portolan_tables::ivrs::{Devices, HostTranslation, SystemManagement};

/// Word 0 of an entry that blocks: translation counts, and neither reads nor writes are let through.
pub(super) const BLOCKED: u64 = V | TV;

/// An entry without V lets everything through (2.2.2.1). Hardware reads an entry whole, between any
/// two writes of 64 bits, and keeps its copy (2.2.2.2): so one that lets anything through is made
/// to block first.
pub(crate) const ENTRY: Kind = Kind {
    deciding: V | TV | IR | IW,
    closed: BLOCKED,
    reads: |_| [u64::MAX; entry::WORDS],
    live: Live::Closed,
};

/// The entry of a stream whose device keeps no translations, which moves by one store of the words about memory (Linux
/// does so, too: `update_dte256`). Of one that keeps some the device forgets them while the entry is closed.
pub(crate) const MOVING_ENTRY: Kind = Kind { live: Live::OnePair, ..ENTRY };

/// The words of an entry that are about memory.
pub(super) type Memory = [u64; 2];
/// The word of an entry that is about interrupts.
pub(super) const INTERRUPTS: usize = 2;

/// Exponents of the number of streams that a table can have.
const LG2_STREAMS: core::ops::RangeInclusive<u32> = 7..=16;

/// The table.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceTable {
    pub(super) base: PhysAddr,
    size: PageSize,
    /// Root of tables in which nothing is mapped, if a stream needs it while it is blocked.
    nothing: Option<PhysAddr>,
}

/// Levels of the tables in which nothing is mapped: as few as the smallest domain's.
const NOTHING_LEVELS: AmdLevels = AmdLevels::Three;

/// Highest physical address of the table: chips make two writes of 32 bits of one to the register
/// of its base, and a unit that is on reads entries between the two. With nothing in the upper half
/// there is no such moment (AMD in the review of Linux's takeover of a former kernel's table, LKML,
/// November 2016).
const LAST: PhysAddr = PhysAddr::new(u32::MAX as u64);

/// Commands that make hardware forget an entry, before and after a change.
pub(super) struct EntryCommands<'a> {
    pub(super) old: &'a [Counted],
    pub(super) blocked: &'a [Counted],
    /// The translations that the device keeps by the old entry, and those that it may keep by the new.
    pub(super) leaves: Option<AmdKept>,
    pub(super) enters: Option<AmdKept>,
}

impl EntryCommands<'_> {
    /// None: everything is forgotten afterwards.
    pub(super) const NONE: Self = Self { old: &[], blocked: &[], leaves: None, enters: None };
}

impl DeviceTable {
    /// A table of `2^lg2_streams` entries (7 to 16) that all block, with interrupts and messages
    /// let through by `settings`.
    pub(super) fn new(
        mem: &impl TableMem<AtomicU64>,
        config: &Config,
    ) -> Result<Self, OutOfTableMemory> {
        let lg2_streams = config.streams_lg2.clamp(*LG2_STREAMS.start(), *LG2_STREAMS.end());
        let size = PageSize::of_lg2(lg2_streams + LG2_BYTES);
        let base = mem.alloc_below(size, LAST)?;
        for word in mem.table(base, size).iter().step_by(WORDS) {
            Word::store(word, BLOCKED);
        }
        let nothing = needs_nothing(config).then(|| mem.alloc(PageSize::SIZE_4K)).transpose();
        let nothing = nothing.inspect_err(|_| mem.free(base, size))?;
        let table = Self { base, size, nothing };
        for of in &config.streams {
            let [management, passes] = config::words(of.settings);
            let [word, domain] = table.blocking(management);
            for stream in table.within(of.streams) {
                for (index, value) in [word, domain | management, passes].into_iter().enumerate() {
                    table.at(stream).write(mem, index, value);
                }
            }
        }
        Ok(table)
    }

    /// The words about memory of an entry that blocks. `word1` is the entry's word 1, of which SysMgt counts.
    fn blocking(&self, word1: u64) -> Memory {
        let posted = SYSTEM_MANAGEMENT.of(word1) == config::management(SystemManagement::Posted);
        match self.nothing.filter(|_| posted) {
            Some(root) => {
                let levels = MODE.at(NOTHING_LEVELS.count().into());
                [BLOCKED | IW | levels | root.get(), DOMAIN.at(NOTHING.into())]
            }
            None => [BLOCKED, 0],
        }
    }

    /// Those of `streams` that have an entry.
    pub(super) fn within(&self, streams: Devices) -> impl Iterator<Item = u16> {
        let last = u32::from(streams.last().get()).min(self.streams() - 1);
        streams.first().get()..=last as u16
    }

    /// `stream`, if it has an entry.
    pub(super) fn has(&self, stream: StreamId) -> Option<u16> {
        let has = |stream: &u16| u32::from(*stream) < self.streams();
        u16::try_from(stream.get()).ok().filter(has)
    }

    /// Sets the fields for memory in the entry of `stream`, before the unit is told of the table.
    pub(super) fn prepare(&self, mem: &impl TableMem<AtomicU64>, stream: u16, memory: Memory) {
        let at = self.at(stream);
        at.fill(mem, Walker::Coherent, &merged(at.read(mem), memory));
    }

    /// Tells if the entry of `stream` lets nothing through.
    pub(super) fn blocks(&self, mem: &impl TableMem<AtomicU64>, stream: u16) -> bool {
        if u32::from(stream) >= self.streams() {
            return true;
        }
        let entry = self.at(stream).read(mem);
        ENTRY.is_closed(entry[0]) || entry[0] == self.blocking(entry[1])[0]
    }

    /// Says in the entry of `stream`, which is closed, that its device may be asked.
    pub(super) fn let_translate(&self, mem: &impl TableMem<AtomicU64>, stream: u16) {
        let at = self.at(stream);
        at.write(mem, 1, at.read(mem)[1] | DEVICE_TLB);
        at.publish(mem, Walker::Coherent);
    }

    /// Changes bits for interrupts in the entry of `stream`: keeps `keep` and sets `set`, by one
    /// write.
    pub(super) fn set_interrupts(
        &self,
        mem: &impl TableMem<AtomicU64>,
        stream: u16,
        keep: u64,
        set: u64,
    ) {
        self.update_interrupts(mem, stream, |word| word & keep | set);
    }

    /// Says in the entry of `stream`, which does not lead to a GCR3 table, of how many levels guest tables are. The
    /// field is in the word for interrupts, which may change meanwhile.
    pub(super) fn set_guest_paging(
        &self,
        mem: &impl TableMem<AtomicU64>,
        stream: u16,
        levels: AmdV2Levels,
    ) {
        let mode = match levels {
            AmdV2Levels::Four => 0,
            AmdV2Levels::Five => 1,
        };
        let bits = GUEST_PAGING.at(mode);
        self.update_interrupts(mem, stream, |word| word & !GUEST_PAGING.mask() | bits);
    }

    /// Changes the word for interrupts by one step.
    fn update_interrupts(
        &self,
        mem: &impl TableMem<AtomicU64>,
        stream: u16,
        new: impl Fn(u64) -> u64,
    ) {
        let at = self.at(stream);
        let word = At { first: at.first + INTERRUPTS, words: 1, ..at };
        word.update(mem, |words| Some(new(words[0])));
    }

    /// Has fixed and arbitrated interrupts of all streams aborted, before the unit is told of the table.
    pub(super) fn abort_interrupts(&self, mem: &impl TableMem<AtomicU64>) {
        for stream in (0..=u16::MAX).take(self.streams() as usize) {
            self.set_interrupts(mem, stream, u64::MAX, INTERRUPTS_VALID);
        }
    }

    /// The table that a former kernel left, which claims its memory. That its entries are recorded is for the
    /// caller to check.
    ///
    /// # Errors
    /// See [`AdoptError`].
    pub(super) fn adopt(
        mem: &impl TableMem<AtomicU64>,
        config: &Config,
        former: &UnitHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<Self, AdoptError> {
        let base = PhysAddr::new(former.root & ADDRESS);
        let lg2_streams = config.streams_lg2.clamp(*LG2_STREAMS.start(), *LG2_STREAMS.end());
        let size = PageSize::of_lg2(lg2_streams + LG2_BYTES);
        let nothing = (former.shape != 0).then_some(PhysAddr::new(former.shape));
        let table = Self { base, size, nothing };
        if table.address() != former.root || nothing.is_some() != needs_nothing(config) {
            return Err(AdoptError::Shape { root: base });
        }
        claims.claim(base, size)?;
        if let Some(root) = nothing {
            let page = PageSize::SIZE_4K;
            claims.claim(root, page)?;
            if mem.table(root, page).iter().any(|word| Word::load(word) != 0) {
                return Err(AdoptError::Unrecorded { table: root });
            }
        }
        Ok(table)
    }

    /// Address of the tables in which nothing is mapped; 0 without such.
    pub(super) fn nothing_at(&self) -> u64 {
        self.nothing.map_or(0, PhysAddr::get)
    }

    /// Tells if the entry of `stream` has the words `memory` about memory.
    pub(super) fn holds(
        &self,
        mem: &impl TableMem<AtomicU64>,
        stream: u16,
        memory: Memory,
    ) -> bool {
        let entry = self.at(stream).read(mem);
        entry == merged(entry, memory)
    }

    /// The word for interrupts in the entry of `stream`.
    pub(super) fn interrupts(&self, mem: &impl TableMem<AtomicU64>, stream: u16) -> u64 {
        self.at(stream).read(mem)[INTERRUPTS]
    }

    /// Streams that have an entry.
    pub(super) fn streams(&self) -> u32 {
        1 << (self.size.lg2() - LG2_BYTES)
    }

    /// Value of the base register.
    pub(super) fn address(&self) -> u64 {
        self.base.get() | reg::TABLE_SIZE.at((self.size.bytes() >> 12) - 1)
    }

    /// Gives the memory back. The unit must have stopped using it.
    pub(super) fn free(&self, mem: &impl TableMem<AtomicU64>) {
        mem.free(self.base, self.size);
        if let Some(root) = self.nothing {
            mem.free(root, PageSize::SIZE_4K);
        }
    }

    /// The entry of `stream`, which has one.
    pub(super) fn at(&self, stream: u16) -> At {
        At { table: self.base, size: self.size, first: usize::from(stream) * WORDS, words: WORDS }
    }

    /// Changes the fields for memory in the entry of `stream`, which has one, to `new`, step by
    /// step; makes the entry block if that is `None`.
    ///
    /// On an error the entry blocks, and hardware may still use its copy of it.
    pub(super) fn change<P: UnitPlatform>(
        &self,
        shared: &AmdShared<P>,
        stream: u16,
        new: Option<Memory>,
        forget: &EntryCommands<'_>,
    ) -> Result<(), IommuError> {
        let (at, mem) = (self.at(stream), &shared.control.mem);
        let old = at.read(mem);
        let new = merged(old, new.unwrap_or_else(|| self.blocking(old[1])));
        let keeps = forget.leaves.is_some() || forget.enters.is_some();
        let moves = !keeps && [&old, &new].iter().all(|entry| !ENTRY.is_closed(entry[0]));
        let kind = if moves { &MOVING_ENTRY } else { &ENTRY };
        let in_place = moves && kind.changes_in_place(&old, &new, Stores::of(mem));
        // Stores are in order, and the unit snoops.
        let changed = at.change(mem, Walker::Coherent, kind, &new, |after| match after {
            After::Closed => {
                shared.run(&mut forget.old.iter().copied())?;
                // The closed entry still says that the device may be asked, and gives it nothing new.
                forget.leaves.map_or(Ok(()), |kept| shared.ask_one(kept))
            }
            After::Unread if !ENTRY.is_closed(new[0]) => {
                let Some(kept) = forget.enters.filter(|_| forget.leaves.is_none()) else {
                    return Ok(());
                };
                shared.run([command::device_entry(stream), command::fence()].into_iter())?;
                shared.ask_one(kept)
            }
            After::Changed if in_place => {
                shared.run(&mut forget.old.iter().chain(forget.blocked).copied())
            }
            // Of an entry that blocks its other words are kept too.
            After::Unread | After::Changed => shared.run(&mut forget.blocked.iter().copied()),
        });
        changed.inspect_err(|_| at.write(mem, 0, BLOCKED))
    }
}

/// Tells if system management messages of some stream are posted, so that erratum 63 is one of it. Units without host
/// tables are younger than the erratum.
fn needs_nothing(config: &Config) -> bool {
    let posted = SystemManagement::Posted;
    let tables = config.host_translation == HostTranslation::Present;
    tables && config.streams.iter().any(|of| of.settings.system_management == posted)
}

/// Converts the error of a change to a stream that the unit has: only the hardware can fail.
pub(super) fn failed(result: Result<(), AttachError>) -> Result<(), IommuError> {
    result.map_err(|error| match error {
        AttachError::Iommu(error) => error,
        _ => IommuError::Unsupported,
    })
}

/// The entry `old` with other words about memory.
fn merged(old: Words, memory: Memory) -> Words {
    let mut new = old;
    new[0] = memory[0];
    new[1] = memory[1] | old[1] & SYSTEM_MANAGEMENT.mask();
    new
}

/// Exponent of the bytes of an entry of an interrupt table, with room for destinations of `apic`.
fn interrupt_lg2_bytes(apic: ApicMode) -> u32 {
    match apic {
        ApicMode::XApic => 2,
        ApicMode::X2Apic => wide::LG2_BYTES,
    }
}

/// Exponent of its alignment.
const INTERRUPT_LG2_ALIGNED: u32 = 7;

/// An interrupt entry of two words, which the unit reads by one access (Linux relies on it, too: `cmpxchg16b`). An open
/// entry changes by one store or not at all.
pub(crate) const WIDE_ENTRY: Kind = Kind {
    deciding: REMAPPED,
    closed: 0,
    reads: |_| [u64::MAX; entry::WORDS],
    live: Live::OnePair,
};

/// A stream's interrupt table, of the driver's own.
#[derive(Debug)]
pub(super) struct InterruptSlots {
    pub(super) block: Block,
    pub(super) slots: Slots,
    apic: ApicMode,
}

impl InterruptSlots {
    /// A table of `2^lg2_entries` entries for destinations of `apic`. *Context.* Task.
    pub(super) fn new(
        mem: &impl TableMem<AtomicU64>,
        lg2_entries: u32,
        apic: ApicMode,
    ) -> Result<Self, IommuError> {
        let slots = Slots::new(lg2_entries)?;
        let lg2 = lg2_entries + interrupt_lg2_bytes(apic);
        let block = Block::new(mem, lg2.max(INTERRUPT_LG2_ALIGNED))?;
        Ok(Self { block, slots, apic })
    }

    /// The table at `at`, of a former kernel, like those of `remap`: nothing is held in it yet. *Context.* Task.
    pub(super) fn adopt<P: UnitPlatform>(
        at: PhysAddr,
        remap: &AmdInterruptTables<P>,
        claims: &mut TableClaims<'_>,
    ) -> Result<Self, AdoptError> {
        let (lg2_entries, apic) = (remap.lg2_entries, remap.apic);
        let lg2 = lg2_entries + interrupt_lg2_bytes(apic);
        let size = PageSize::from_lg2(lg2.max(12)).ok_or(IommuError::Unsupported)?;
        claims.claim(at, size)?;
        Ok(Self { block: Block { at, size }, slots: Slots::new(lg2_entries)?, apic })
    }

    /// The words of an entry: one of 32 bits is the lower half of a word.
    pub(super) fn read(&self, mem: &impl TableMem<AtomicU64>, index: u16) -> Words {
        if self.apic == ApicMode::X2Apic {
            return self.wide(index).read(mem);
        }
        let mut words = self.block.entry(usize::from(index / 2), 1).read(mem);
        words[0] = words[0] >> (u32::from(index & 1) * 32) & 0xffff_ffff;
        words
    }

    /// Changes an entry to `new` step by step. `forget` waits until the unit has forgotten its copy.
    ///
    /// # Errors
    /// That of `forget`. The unit may then still use the old entry, and the caller closes it.
    pub(super) fn set(
        &self,
        mem: &impl TableMem<AtomicU64>,
        index: u16,
        new: &Words,
        mut forget: impl FnMut() -> Result<(), IommuError>,
    ) -> Result<(), IommuError> {
        if self.apic == ApicMode::XApic {
            self.store_half(mem, index, new[0] as u32);
            return forget();
        }
        self.wide(index).change(mem, Walker::Coherent, &WIDE_ENTRY, new, |after| match after {
            After::Closed | After::Changed => forget(),
            After::Unread => Ok(()),
        })
    }

    /// Closes an entry in memory.
    pub(super) fn close(&self, mem: &impl TableMem<AtomicU64>, index: u16) {
        if self.apic == ApicMode::XApic {
            return self.store_half(mem, index, 0);
        }
        let at = self.wide(index);
        at.write(mem, 0, 0);
        at.publish(mem, Walker::Coherent);
    }

    /// Ends the use of all entries that are in use for `stream`, or for any source, and closes each. Tells if
    /// there was one.
    pub(super) fn unsettle_all(
        &mut self,
        mem: &impl TableMem<AtomicU64>,
        stream: Option<StreamId>,
    ) -> bool {
        let mut slots = core::mem::take(&mut self.slots);
        let found = slots.unsettle_all(stream, |index| self.close(mem, index));
        self.slots = slots;
        found
    }

    /// Writes an entry of 32 bits, by one store of the word that it shares with another.
    fn store_half(&self, mem: &impl TableMem<AtomicU64>, index: u16, entry: u32) {
        let shift = u32::from(index & 1) * 32;
        let at = self.block.entry(usize::from(index / 2), 1);
        let other = at.read(mem)[0] & !(0xffff_ffff << shift);
        at.write(mem, 0, other | u64::from(entry) << shift);
        at.publish(mem, Walker::Coherent);
    }

    pub(super) fn wide(&self, index: u16) -> At {
        self.block.entry(usize::from(index) * wide::WORDS, wide::WORDS)
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
}

/// The interrupt tables, by stream. They stay until the unit is released, as it may read them.
pub(super) struct AmdInterruptTables<P: UnitPlatform> {
    pub(super) lg2_entries: u32,
    pub(super) apic: ApicMode,
    pub(super) tables: Turn<P, BTreeMap<u16, InterruptSlots>>,
}

impl<P: UnitPlatform> AmdInterruptTables<P> {
    /// No tables yet. *Context.* Interrupt.
    pub(super) fn new(features: &Features, wanted: Remapping) -> Result<Self, IommuError> {
        if wanted.apic == ApicMode::X2Apic && !features.has.contains(AmdFeature::X2APIC) {
            return Err(IommuError::Unsupported);
        }
        Ok(Self {
            lg2_entries: wanted.lg2_entries.min(AMD_MOST_LG2),
            apic: wanted.apic,
            tables: Turn::new(BTreeMap::new()),
        })
    }
}

/// Devices that are to keep translations once they are attached, by stream.
pub(super) type Remotes = BTreeMap<u16, AmdAtc>;

/// Destination of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AmdPlace {
    /// The domain identifier in its entry.
    pub(super) domain: u16,
    /// The device, if its entry lets it keep translations.
    pub(super) told: Option<AmdAtc>,
    /// The host tables below a guest's, if there are such.
    pub(super) below: Option<BelowGuest>,
}

/// Host tables below a guest's GCR3 table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BelowGuest {
    /// Context of the domain that has them.
    pub(super) context: InvalTag,
    /// Levels of the guest's GCR3 table.
    pub(super) levels: u32,
}

impl AmdPlace {
    pub(super) const fn of(domain: u16) -> Self {
        Self { domain, told: None, below: None }
    }

    /// The translations that the device keeps, but for those of its PASIDs that are the driver's own, and the context
    /// that they are of.
    pub(super) fn kept(&self) -> Option<(InvalTag, AmdKept)> {
        let (context, spaces) = match self.below {
            None => (InvalTag::new(self.domain.into()), AtcSpaces::Untagged),
            Some(below) => (below.context, AtcSpaces::Guest),
        };
        self.told.map(|atc| (context, AmdKept { atc, spaces }))
    }

    /// Tells if a device may keep translations. One that passes through gets none. Nor does a guest's with a GCR3
    /// table of several levels: it may name more PASIDs than can be told each time that the host takes memory away.
    pub(super) fn lets_keep(&self) -> bool {
        self.domain != PASS && self.below.is_none_or(|below| below.levels == 1)
    }
}

/// An attachment of a stream.
pub(super) type Attachment = book::Attachment<AmdPlace>;

/// State of the caller that moves streams.
#[derive(Debug, Default)]
pub(super) struct MoverState {
    /// Entries that are closed while the unit is suspended.
    pub(super) shut: Shut,
    pub(super) remotes: Remotes,
    pub(super) guests: Guests,
    /// Domain identifiers of streams whose guests have had tables of their own, by stream. They stay, as the unit may
    /// have tagged translations by them.
    pub(super) nested: BTreeMap<u16, u16>,
}

/// Streams with their attachments.
pub(super) type Streams = book::Streams<u16, AmdPlace, MoverState>;

/// The entry of a stream that `table` translates, tagged by `context`.
pub(super) fn entry_of(
    table: &TableView<'_, AmdV1, impl portolan::platform::TableMem<core::sync::atomic::AtomicU64>>,
    context: InvalTag,
    marks: DirtyTracking,
) -> Memory {
    let root = table.root().get() & ADDRESS;
    let levels = table.format().levels.count();
    let word = BLOCKED | IR | IW | MODE.at(levels.into()) | root | command::marks(marks);
    [word, DOMAIN.at(command::domain_of(context).into())]
}
