//! Interrupt remapping: a table for each stream that has interrupts, and its entries.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.2.5
//! (entries of 32 bits, remapped), 2.2.2.1 (IV and IntCtl: interrupts of streams without a table are
//! aborted) and 2.4.5 (INVALIDATE_INTERRUPT_TABLE). A stream names entries of its own table, so that
//! its table verifies the source. Not supported: entries of 128 bits, and with them identifiers of 32
//! bits; guest virtual APIC; the unit's own interrupts, which its PCI function's MSI capability sends.

use alloc::collections::BTreeMap;
use core::sync::atomic::AtomicU64;

use portolan::addr::StreamId;
use portolan::inval::Walker;
use portolan::iommu::{
    AttachError, Destination, Interrupt, InterruptError, InterruptSource, InterruptTarget,
    IommuError, MsiMessage, Polarity, RedirectionEntry, RemapInterrupts,
};
use portolan::platform::{TableMem, UnitPlatform};

use super::device_table::{INTERRUPT_LG2_ALIGNED, INTERRUPT_LG2_BYTES, InterruptSlots, Remap};
use super::interrupts::InterruptTable;
use super::unit::AmdVi;
use crate::chassis::Block;
use crate::interrupt::compose::{amd_message, amd_redirection, checked, delivery_mode};
use crate::interrupt::{ApicMode, Slots};
use portolan_spec::amd::interrupt as field;

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
    fn remap(&self) -> Result<&Remap<P>, IommuError> {
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
                if table.slots.unsettle_all(stream, close).is_some() {
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
            let place = (table.block.at, index, serial);
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
