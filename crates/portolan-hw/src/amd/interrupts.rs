//! Interrupts of streams: tables of an embedder's own, and interrupts that the driver remaps.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.2.5
//! (interrupt tables, entries of 32 bits and of two words), 2.2.2.1 (IV and IntCtl: interrupts of streams
//! without a table are aborted), 2.4.5 (INVALIDATE_INTERRUPT_TABLE) and 3.4.31 (targets of the unit's own
//! interrupts). An embedder that remaps interrupts itself owns
//! its tables and their entries; the unit's entries name them, and its only command buffer is the
//! driver's. Otherwise each stream that has interrupts gets a table. A stream names entries of its own
//! table, so that its table verifies the source. Entries of two words carry identifiers of 32 bits; with
//! them, registers say where the unit's own interrupts go. Otherwise its PCI function's MSI capability
//! sends those.
//!
//! Not supported: entries of two words for identifiers of 8 bits.

use super::command;
use super::tables::{AmdInterruptTables, InterruptSlots, failed};
use super::unit::AmdVi;
use crate::chassis::entry::{WORDS, Words};
use crate::chassis::handed::without_interrupts;
use crate::handover::AdoptError;
use crate::interrupt::ApicMode;
use crate::interrupt::compose::{amd_message, amd_redirection, checked, delivery_mode};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use portolan::addr::{PhysAddr, StreamId};
use portolan::iommu::handover::{InterruptHandover, UnitHandover};
use portolan::iommu::{
    AttachError, Destination, Interrupt, InterruptError, InterruptPlace, InterruptSource,
    InterruptTarget, IommuError, MsiMessage, Polarity, Posting, RedirectionEntry, RemapInterrupts,
};
use portolan::platform::{Mmio, TableClaims, UnitPlatform};
use portolan_spec::amd::entry::{
    INTERRUPT_CONTROL, INTERRUPT_ENTRIES, INTERRUPT_TABLE, INTERRUPTS_VALID, REMAPPED,
};
use portolan_spec::amd::interrupt::{self as field, own, wide};
use portolan_spec::amd::reg::{EVENT_TARGET, control};
use thiserror::Error;

/// Most entries of an interrupt table, as an exponent.
const MOST_LG2_ENTRIES: u32 = 11;
/// Alignment of a table's address, less one.
const ALIGNED: u64 = 127;

/// Fields of a stream's entry that are about its interrupt table.
const FIELDS: u64 =
    INTERRUPTS_VALID | INTERRUPT_ENTRIES.mask() | INTERRUPT_TABLE | INTERRUPT_CONTROL.mask();

/// An interrupt table of the embedder's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptTable {
    base: PhysAddr,
    lg2_entries: u32,
}

/// No entry can name such an interrupt table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no interrupt table of 2^{lg2_entries} entries can be at {base:?}")]
pub struct NotAnInterruptTable {
    /// Physical address that the caller gave.
    pub base: PhysAddr,
    /// Number of entries that the caller gave, as an exponent.
    pub lg2_entries: u32,
}

impl InterruptTable {
    /// The table of `2^lg2_entries` entries (0 to 11) at `base`, which is aligned to 128 bytes.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// [`NotAnInterruptTable`] otherwise.
    pub fn new(base: PhysAddr, lg2_entries: u32) -> Result<Self, NotAnInterruptTable> {
        let fits = base.get() & !(INTERRUPT_TABLE & !ALIGNED) == 0;
        if !fits || lg2_entries > MOST_LG2_ENTRIES {
            return Err(NotAnInterruptTable { base, lg2_entries });
        }
        Ok(Self { base, lg2_entries })
    }

    fn word(self) -> u64 {
        INTERRUPTS_VALID
            | INTERRUPT_ENTRIES.at(self.lg2_entries.into())
            | self.base.get()
            | INTERRUPT_CONTROL.at(REMAPPED)
    }
}

impl<P: UnitPlatform> AmdVi<P> {
    /// Has fixed and arbitrated interrupts of `stream` remapped by `table`, or not remapped with
    /// `None`; moving the stream does not change that. For an embedder that remaps interrupts itself:
    /// the driver was not asked to. When this returns `Ok`, the unit no longer uses the table that was
    /// there before; on an error it may.
    ///
    /// *Context.* Atomic.
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn set_interrupt_table(
        &self,
        stream: StreamId,
        table: Option<InterruptTable>,
    ) -> Result<(), AttachError> {
        let no_such = AttachError::NoSuchStream { stream };
        let stream = self.table.has(stream).ok_or(no_such)?;
        let word = table.map_or(0, InterruptTable::word);
        let mem = &self.shared.control.mem;
        let set = |_: &mut _| self.table.set_interrupts(mem, stream, !FIELDS, word);
        self.book.with(self.turn(), set)?;
        let entry = command::device_entry(stream);
        let commands = [entry, command::fence(), command::interrupt_table(stream)];
        Ok(self.shared.run(&mut commands.into_iter())?)
    }

    /// Makes the unit forget its copy of the interrupt table of `stream`, and waits: changes made
    /// in it before count from now on.
    ///
    /// *Context.* Atomic.
    ///
    /// # Errors
    /// See [`AttachError`]. The unit may then still use old entries.
    pub fn invalidate_interrupts(&self, stream: StreamId) -> Result<(), AttachError> {
        let no_such = AttachError::NoSuchStream { stream };
        let stream = self.table.has(stream).ok_or(no_such)?;
        let command = command::interrupt_table(stream);
        Ok(self.shared.run([command].into_iter())?)
    }

    /// Tells if registers say where the unit's own interrupts go, and not its MSI capability.
    pub(crate) fn sends_messages(&self) -> bool {
        self.remap.as_ref().is_some_and(|remap| remap.apic == ApicMode::X2Apic)
    }

    /// Makes each event raise an interrupt, or none: at `target` if registers say where it goes.
    pub(crate) fn signal_events(&self, target: Option<InterruptTarget>) -> Result<(), IommuError> {
        *self.signals.lock() = target;
        self.signal(control::EVENT_INTERRUPT, EVENT_TARGET, target)
    }

    /// Turns an interrupt of the unit's own on or off by the control bit `on`; the register `at` says where it goes.
    pub(super) fn signal(
        &self,
        on: u64,
        at: usize,
        target: Option<InterruptTarget>,
    ) -> Result<(), IommuError> {
        let unit = &self.shared.control;
        // So that none is sent while its target is changed.
        unit.switch(!on, 0)?;
        let Some(target) = target else { return Ok(()) };
        if self.sends_messages() {
            unit.regs.write64(at, own_interrupt(&target));
        }
        unit.switch(u64::MAX, on)
    }
}

/// Bits 23:0 and 31:24 of a destination.
fn parts(destination: Destination) -> (u64, u64) {
    let to = u64::from(destination.get());
    (to & 0x00ff_ffff, to >> 24)
}

/// Value of a register that says where an interrupt of the unit's own goes.
fn own_interrupt(target: &InterruptTarget) -> u64 {
    let logical = matches!(target.destination, Destination::Logical(_));
    let (low, high) = parts(target.destination);
    own::LOGICAL.at(logical.into())
        | own::DESTINATION.at(low)
        | own::VECTOR.at(target.vector.get().into())
        | own::ARBITRATED.at(delivery_mode(target.delivery))
        | own::DESTINATION_HIGH.at(high)
}

/// An entry that lets the interrupt arrive as `target`: one of 32 bits is the lower half of a word.
fn entry(target: &InterruptTarget, apic: ApicMode) -> Result<Words, InterruptError> {
    checked(target.destination, apic)?;
    let logical = matches!(target.destination, Destination::Logical(_));
    let common = field::REMAPPED
        | field::TYPE.at(delivery_mode(target.delivery))
        | field::LOGICAL.at(logical.into());
    let vector = target.vector.get().into();
    let (low, high) = parts(target.destination);
    let mut words = [0; WORDS];
    [words[0], words[1]] = match apic {
        ApicMode::XApic => [common | field::DESTINATION.at(low) | field::VECTOR.at(vector), 0],
        ApicMode::X2Apic => [
            common | wide::DESTINATION.at(low),
            wide::VECTOR.at(vector) | wide::DESTINATION_HIGH.at(high),
        ],
    };
    Ok(words)
}

impl<P: UnitPlatform> AmdVi<P> {
    fn remap(&self) -> Result<&AmdInterruptTables<P>, IommuError> {
        self.remap.as_ref().ok_or(IommuError::Unsupported)
    }

    /// The stream of a source: the unit tells requesters apart, and nothing else.
    fn sender(&self, source: InterruptSource) -> Result<u16, InterruptError> {
        let stream = match source {
            InterruptSource::Requester(of) => self.table.has(of.stream()),
            InterruptSource::Device(_) | InterruptSource::Buses { .. } => None,
        };
        stream.ok_or(InterruptError::Source(source))
    }

    /// Makes the unit forget its copy of a stream's table.
    pub(super) fn forget_interrupts(&self, stream: u16) -> Result<(), IommuError> {
        failed(self.invalidate_interrupts(StreamId::new(stream.into())))
    }

    /// The table of `stream`, which is made if there is none, and the unit told of it.
    fn table_of<'t>(
        &self,
        remap: &AmdInterruptTables<P>,
        tables: &'t mut BTreeMap<u16, InterruptSlots>,
        stream: u16,
    ) -> Result<&'t mut InterruptSlots, IommuError> {
        use alloc::collections::btree_map::Entry;
        match tables.entry(stream) {
            Entry::Occupied(table) => Ok(table.into_mut()),
            Entry::Vacant(vacant) => {
                let (lg2_entries, mem) = (remap.lg2_entries, &self.shared.control.mem);
                let table = InterruptSlots::new(mem, lg2_entries, remap.apic)?;
                let named = InterruptTable::new(table.block.at, lg2_entries);
                let named = named.map_err(|_| IommuError::Unsupported)?;
                // Success or not, the unit may have been told: the memory is not given back.
                let set = self.set_interrupt_table(StreamId::new(stream.into()), Some(named));
                failed(set)?;
                Ok(vacant.insert(table))
            }
        }
    }

    /// Works on the entry of an interrupt that is in use.
    pub(super) fn with_used<T>(
        &self,
        interrupt: &Interrupt,
        work: impl FnOnce(&mut InterruptSlots, u16, u16) -> Result<T, InterruptError>,
    ) -> Result<T, InterruptError> {
        let remap = self.remap()?;
        let stream = self.sender(interrupt.source())?;
        remap.tables.with(self.turn(), |tables| {
            let table = tables.get_mut(&stream).ok_or(InterruptError::NotInUse)?;
            let index = table.used(interrupt)?;
            work(table, stream, index)
        })?
    }

    /// Makes the unit forget its copies of all tables.
    pub(super) fn forget_all_interrupts(&self) -> Result<(), IommuError> {
        let Some(remap) = &self.remap else { return Ok(()) };
        remap.tables.with(self.turn(), |tables| {
            tables.keys().try_for_each(|stream| self.forget_interrupts(*stream))
        })?
    }

    /// The tables to which a former kernel's entries lead.
    fn adopt_tables(
        &self,
        remap: &AmdInterruptTables<P>,
        claims: &mut TableClaims<'_>,
    ) -> Result<BTreeMap<u16, InterruptSlots>, AdoptError> {
        let mut tables = BTreeMap::new();
        for stream in (0..=u16::MAX).take(self.table.streams() as usize) {
            let word = self.table.interrupts(&self.shared.control.mem, stream) & FIELDS;
            if word == INTERRUPTS_VALID {
                // They are aborted.
                continue;
            }
            let base = PhysAddr::new(word & INTERRUPT_TABLE);
            let named = InterruptTable::new(base, remap.lg2_entries).ok();
            named
                .filter(|table| table.word() == word)
                .ok_or(AdoptError::Entry { stream: StreamId::new(stream.into()) })?;
            tables.insert(stream, InterruptSlots::adopt(base, remap, claims)?);
        }
        Ok(tables)
    }

    /// Holds the interrupts of `former`, each of which is checked with the entry that lets it through.
    pub(super) fn hold_interrupts(
        &self,
        former: &UnitHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<(), AdoptError> {
        let Some(remap) = &self.remap else { return without_interrupts(former) };
        let (mem, mut adopted) = (&self.shared.control.mem, self.adopt_tables(remap, claims)?);
        let mut open = BTreeSet::new();
        for interrupt in &former.interrupts {
            let InterruptHandover { source, index, target } = *interrupt;
            let wrong = AdoptError::InterruptEntry { from: source, index };
            let stream = self.sender(source).map_err(|_| wrong)?;
            let words = entry(&target, remap.apic).map_err(|_| wrong)?;
            let table = adopted.get_mut(&stream).ok_or(wrong)?;
            if !table.slots.hold(interrupt) || table.read(mem, index) != words {
                return Err(wrong);
            }
            open.insert((stream, index));
        }
        for (stream, table) in &adopted {
            let indices = (0..=u16::MAX).take(1 << remap.lg2_entries);
            let mut others = indices.filter(|index| !open.contains(&(*stream, *index)));
            if others.any(|index| table.read(mem, index)[0] & field::REMAPPED != 0) {
                return Err(AdoptError::Unrecorded { table: table.block.at });
            }
        }
        Ok(remap.tables.with(self.turn().always(), |tables| *tables = adopted)?)
    }

    /// Takes back all interrupts of a stream, or all.
    pub(super) fn revoke_interrupts(&self, stream: Option<StreamId>) -> Result<(), IommuError> {
        let Some(remap) = &self.remap else {
            return Ok(());
        };
        let mem = &self.shared.control.mem;
        remap.tables.with(self.turn(), |tables| {
            let mut result = Ok(());
            for (of, table) in tables {
                if table.unsettle_all(mem, stream) {
                    let forgotten = self.forget_interrupts(*of);
                    if forgotten.is_ok() {
                        table.slots.settle_all();
                    }
                    result = result.and(forgotten);
                }
            }
            result
        })?
    }

    /// Gives the tables back. The unit must have stopped reading them. *Context.* Task.
    pub(super) fn free_interrupts(&self) -> Result<(), IommuError> {
        let Some(remap) = &self.remap else {
            return Ok(());
        };
        let tables = remap.tables.with(self.turn(), core::mem::take)?;
        let mem = &self.shared.control.mem;
        tables.values().for_each(|table| table.block.free(mem));
        Ok(())
    }
}

impl<P: UnitPlatform> RemapInterrupts for AmdVi<P> {
    fn adopted_interrupts(
        &self,
        source: InterruptSource,
    ) -> Result<Vec<Interrupt>, InterruptError> {
        let (remap, stream) = (self.remap()?, self.sender(source)?);
        Ok(remap.tables.with(self.turn(), |tables| {
            let table = tables.get_mut(&stream);
            table.map(|table| table.slots.give_out(table.block.at, source)).unwrap_or_default()
        })?)
    }

    fn allocate(
        &self,
        source: InterruptSource,
        target: InterruptTarget,
    ) -> Result<Interrupt, InterruptError> {
        let remap = self.remap()?;
        let stream = self.sender(source)?;
        let entry = entry(&target, remap.apic)?;
        let mem = &self.shared.control.mem;
        remap.tables.with(self.turn(), |tables| {
            let table = self.table_of(remap, tables, stream)?;
            let (index, serial) = match table.slots.take(source, target) {
                Some(taken) => taken,
                None => {
                    self.forget_interrupts(stream)?;
                    table.slots.settle_all();
                    table.slots.take(source, target).ok_or(InterruptError::Full)?
                }
            };
            let forget = || self.forget_interrupts(stream);
            if let Err(error) = table.set(mem, index, &entry, forget) {
                table.slots.unsettle(index);
                table.close(mem, index);
                return Err(error.into());
            }
            let place = InterruptPlace { table: table.block.at, index, serial };
            Ok(Interrupt::given_out(place, source, target))
        })?
    }

    fn retarget(
        &self,
        interrupt: &mut Interrupt,
        target: InterruptTarget,
    ) -> Result<(), InterruptError> {
        let entry = entry(&target, self.remap()?.apic)?;
        self.with_used(interrupt, |table, stream, index| {
            let forget = || self.forget_interrupts(stream);
            table.set(&self.shared.control.mem, index, &entry, forget)?;
            table.slots.redirect(index, target);
            Ok(())
        })?;
        interrupt.retargeted(target);
        Ok(())
    }

    fn post(&self, interrupt: &mut Interrupt, to: Posting) -> Result<(), InterruptError> {
        self.post_to_page(interrupt, to)
    }

    fn free(&self, interrupt: Interrupt) -> Result<(), InterruptError> {
        self.with_used(&interrupt, |table, stream, index| {
            table.slots.unsettle(index);
            table.close(&self.shared.control.mem, index);
            self.forget_interrupts(stream)?;
            table.slots.settle_all();
            Ok(())
        })
    }

    fn revoke(&self, stream: StreamId) -> Result<(), IommuError> {
        self.revoke_interrupts(Some(stream))
    }

    fn message(&self, interrupt: &Interrupt) -> Result<MsiMessage, InterruptError> {
        let named =
            |_: &mut InterruptSlots, _, index| amd_message(index).ok_or(InterruptError::Target);
        self.with_used(interrupt, named)
    }

    fn redirection(
        &self,
        interrupt: &Interrupt,
        polarity: Polarity,
    ) -> Result<RedirectionEntry, InterruptError> {
        let target = interrupt.target();
        self.with_used(interrupt, |_, _, index| {
            amd_redirection(index, &target, polarity).ok_or(InterruptError::Target)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_by_hand_and_those_that_cannot_be() {
        let table = InterruptTable::new(PhysAddr::new(0x12_3480), 9).unwrap();
        assert_eq!(table.word(), 0x2000_0000_0012_3493);
        for (base, lg2_entries) in [(0x12_3440, 9), (0x12_3480, 12), (1 << 52, 0)] {
            let base = PhysAddr::new(base);
            let refused = NotAnInterruptTable { base, lg2_entries };
            assert_eq!(InterruptTable::new(base, lg2_entries), Err(refused));
        }
    }
}
