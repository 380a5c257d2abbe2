//! Interrupt tables of streams, as the unit is told of them: by the driver, or by an embedder that
//! remaps interrupts itself.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.2.5
//! (interrupt tables), 2.2.2.1 (fields of an entry) and 2.4.5 (INVALIDATE_INTERRUPT_TABLE). The
//! tables and their entries are the caller's; the unit's entries name them, and its only command
//! buffer is the driver's.

use portolan::addr::{PhysAddr, StreamId};
use portolan::iommu::{AttachError, IommuError};
use portolan::platform::UnitPlatform;
use thiserror::Error;

use super::command;
use super::unit::AmdVi;
use portolan_spec::amd::entry::{
    INTERRUPT_CONTROL, INTERRUPT_ENTRIES, INTERRUPT_TABLE, INTERRUPTS_VALID, REMAPPED,
};
use portolan_spec::amd::reg::control;

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

    /// Has each event raise the interrupt of the unit's PCI function, or none.
    pub(crate) fn signal(&self, wanted: Signal) -> Result<(), IommuError> {
        let unit = &self.shared.control;
        match wanted {
            Signal::Sent => unit.switch(u64::MAX, control::EVENT_INTERRUPT),
            Signal::NotSent => unit.switch(!control::EVENT_INTERRUPT, 0),
        }
    }
}

/// Choice of interrupts for events.
pub(crate) enum Signal {
    Sent,
    NotSent,
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
