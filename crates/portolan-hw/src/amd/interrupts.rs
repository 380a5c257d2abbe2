//! Interrupts of streams: tables of an embedder's own, and interrupts that the driver remaps.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.2.5
//! (interrupt tables, entries of 32 bits), 2.2.2.1 (IV and IntCtl: interrupts of streams without a table
//! are aborted) and 2.4.5 (INVALIDATE_INTERRUPT_TABLE). An embedder that remaps interrupts itself owns
//! its tables and their entries; the unit's entries name them, and its only command buffer is the
//! driver's. Otherwise each stream that has interrupts gets a table. A stream names entries of its own
//! table, so that its table verifies the source.
//!
//! Not supported: entries of 128 bits, and with them identifiers of 32 bits; guest virtual APIC; the
//! unit's own interrupts, which its PCI function's MSI capability sends.

use super::command;
use super::tables::{
    AmdInterruptTables, INTERRUPT_LG2_ALIGNED, INTERRUPT_LG2_BYTES, InterruptSlots,
};
use super::unit::AmdVi;
use crate::chassis::Block;
use crate::interrupt::compose::{amd_message, amd_redirection, checked, delivery_mode};
use crate::interrupt::{ApicMode, Slots};
use alloc::collections::BTreeMap;
use core::sync::atomic::AtomicU64;
use portolan::addr::{PhysAddr, StreamId};
use portolan::inval::Walker;
use portolan::iommu::{
    AttachError, Destination, Interrupt, InterruptError, InterruptPlace, InterruptSource,
    InterruptTarget, IommuError, MsiMessage, Polarity, RedirectionEntry, RemapInterrupts,
};
use portolan::platform::{TableMem, UnitPlatform};
use portolan_spec::amd::entry::{
    INTERRUPT_CONTROL, INTERRUPT_ENTRIES, INTERRUPT_TABLE, INTERRUPTS_VALID, REMAPPED,
};
use portolan_spec::amd::interrupt as field;
use portolan_spec::amd::reg::control;
use thiserror::Error;

/// Most entries of an interrupt table, as an exponent.
const MOST_LG2_ENTRIES: u32 = 11;
/// Alignment of a table's address, less one.
const ALIGNED: u64 = 127;

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
        let fields = INTERRUPTS_VALID
            | INTERRUPT_ENTRIES.mask()
            | INTERRUPT_TABLE
            | INTERRUPT_CONTROL.mask();
        let word = table.map_or(0, InterruptTable::word);
        let mem = &self.shared.control.mem;
        let set = |_: &mut _| self.table.set_interrupts(mem, stream, !fields, word);
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

    /// Makes each event raise the interrupt of the unit's PCI function, or none.
    pub(crate) fn signal_events(&self, raises: bool) -> Result<(), IommuError> {
        let unit = &self.shared.control;
        if raises {
            unit.switch(u64::MAX, control::EVENT_INTERRUPT)
        } else {
            unit.switch(!control::EVENT_INTERRUPT, 0)
        }
    }
}

/// Writes an entry, by one store of the word that it shares with another.
fn set(block: Block, mem: &impl TableMem<AtomicU64>, index: u16, entry: u32) {
    let shift = u32::from(index & 1) * 32;
    let at = block.entry(usize::from(index / 2), 1);
    let other = at.read(mem)[0] & !(0xffff_ffff << shift);
    at.write(mem, 0, other | u64::from(entry) << shift);
    at.publish(mem, Walker::Coherent);
}

/// An entry that lets the interrupt arrive as `target`.
fn entry(target: &InterruptTarget) -> Result<u32, InterruptError> {
    checked(target.destination, ApicMode::XApic)?;
    let logical = matches!(target.destination, Destination::Logical(_));
    let word = field::REMAPPED
        | field::TYPE.at(delivery_mode(target.delivery))
        | field::LOGICAL.at(logical.into())
        | field::DESTINATION.at(target.destination.get().into())
        | field::VECTOR.at(target.vector.get().into());
    Ok(word as u32)
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
    fn forget_interrupts(&self, stream: u16) -> Result<(), IommuError> {
        failed(self.invalidate_interrupts(StreamId::new(stream.into())))
    }

    /// The table of `stream`, which is made if there is none, and the unit told of it.
    fn table_of<'t>(
        &self,
        lg2_entries: u32,
        tables: &'t mut BTreeMap<u16, InterruptSlots>,
        stream: u16,
    ) -> Result<&'t mut InterruptSlots, IommuError> {
        use alloc::collections::btree_map::Entry;
        match tables.entry(stream) {
            Entry::Occupied(table) => Ok(table.into_mut()),
            Entry::Vacant(vacant) => {
                let slots = Slots::new(lg2_entries)?;
                let block = Block::new(
                    &self.shared.control.mem,
                    (lg2_entries + INTERRUPT_LG2_BYTES).max(INTERRUPT_LG2_ALIGNED),
                )?;
                let named = InterruptTable::new(block.at, lg2_entries);
                let named = named.map_err(|_| IommuError::Unsupported)?;
                // Success or not, the unit may have been told: the memory is not given back.
                let set = self.set_interrupt_table(StreamId::new(stream.into()), Some(named));
                failed(set)?;
                Ok(vacant.insert(InterruptSlots { block, slots }))
            }
        }
    }

    /// Works on the entry of an interrupt that is in use.
    fn with_used<T>(
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

    /// Takes back all interrupts of a stream, or all.
    pub(super) fn revoke_interrupts(&self, stream: Option<StreamId>) -> Result<(), IommuError> {
        let Some(remap) = &self.remap else {
            return Ok(());
        };
        let mem = &self.shared.control.mem;
        remap.tables.with(self.turn(), |tables| {
            let mut result = Ok(());
            for (of, table) in tables {
                let block = table.block;
                let close = |index| set(block, mem, index, 0);
                if table.slots.unsettle_all(stream, close) {
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

/// Converts the error of a change to a stream that the unit has: only the hardware can fail.
fn failed(result: Result<(), AttachError>) -> Result<(), IommuError> {
    result.map_err(|error| match error {
        AttachError::Iommu(error) => error,
        _ => IommuError::Unsupported,
    })
}

impl<P: UnitPlatform> RemapInterrupts for AmdVi<P> {
    fn allocate(
        &self,
        source: InterruptSource,
        target: InterruptTarget,
    ) -> Result<Interrupt, InterruptError> {
        let remap = self.remap()?;
        let stream = self.sender(source)?;
        let entry = entry(&target)?;
        let mem = &self.shared.control.mem;
        remap.tables.with(self.turn(), |tables| {
            let table = self.table_of(remap.lg2_entries, tables, stream)?;
            let (index, serial) = match table.slots.take(source) {
                Some(taken) => taken,
                None => {
                    self.forget_interrupts(stream)?;
                    table.slots.settle_all();
                    table.slots.take(source).ok_or(InterruptError::Full)?
                }
            };
            set(table.block, mem, index, entry);
            if let Err(error) = self.forget_interrupts(stream) {
                table.slots.unsettle(index);
                set(table.block, mem, index, 0);
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
        let entry = entry(&target)?;
        self.with_used(interrupt, |table, stream, index| {
            set(table.block, &self.shared.control.mem, index, entry);
            Ok(self.forget_interrupts(stream)?)
        })?;
        interrupt.retargeted(target);
        Ok(())
    }

    fn free(&self, interrupt: Interrupt) -> Result<(), InterruptError> {
        self.with_used(&interrupt, |table, stream, index| {
            table.slots.unsettle(index);
            set(table.block, &self.shared.control.mem, index, 0);
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
