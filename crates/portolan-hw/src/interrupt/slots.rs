//! Entries of an interrupt table that are in use, and their sources.

use alloc::vec::Vec;

use portolan::addr::{PageSize, PhysAddr, StreamId};
use portolan::iommu::handover::InterruptHandover;
use portolan::iommu::{
    Interrupt, InterruptPlace, InterruptSource, InterruptTarget, IommuError, Posting,
};
use portolan::platform::OutOfTableMemory;

/// State of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Free,
    /// The number tells this use from earlier ones.
    InUse {
        serial: u64,
        source: InterruptSource,
        arrives: Arrives,
    },
    /// Open since before this kernel, and not given out.
    Held {
        source: InterruptSource,
        target: InterruptTarget,
    },
    /// Closed in memory; the hardware may still use its copy of it.
    Unsettled,
}

/// Destination of an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrives {
    At(InterruptTarget),
    /// In a descriptor or a file.
    Posted,
}

impl From<InterruptTarget> for Arrives {
    fn from(target: InterruptTarget) -> Self {
        Self::At(target)
    }
}

impl From<Posting> for Arrives {
    fn from(_: Posting) -> Self {
        Self::Posted
    }
}

/// The entries of a table.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    last_serial: u64,
}

impl Slots {
    /// `2^lg2` entries, at most 65,536, all free. *Context.* Task.
    pub(crate) fn new(lg2: u32) -> Result<Self, IommuError> {
        let mut slots = Vec::new();
        let count = 1 << lg2.min(16);
        let size = PageSize::of_lg2(lg2.min(16) + 5);
        slots.try_reserve_exact(count).map_err(|_| OutOfTableMemory { size })?;
        slots.resize(count, Slot::Free);
        Ok(Self { slots, last_serial: 0 })
    }

    /// A free entry, now in use: its index, and the number of the use.
    pub(crate) fn take(
        &mut self,
        source: InterruptSource,
        target: InterruptTarget,
    ) -> Option<(u16, u64)> {
        let index = self.slots.iter().position(|slot| *slot == Slot::Free)?;
        self.last_serial += 1;
        let serial = self.last_serial;
        self.slots[index] = Slot::InUse { serial, source, arrives: target.into() };
        Some((index as u16, serial))
    }

    /// Notes the destination of an entry that is in use.
    pub(crate) fn redirect(&mut self, index: u16, to: impl Into<Arrives>) {
        if let Some(Slot::InUse { arrives, .. }) = self.slots.get_mut(usize::from(index)) {
            *arrives = to.into();
        }
    }

    /// Adds the open entries to `all`.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] if one is posted.
    pub(crate) fn record(&self, all: &mut Vec<InterruptHandover>) -> Result<(), IommuError> {
        for (slot, index) in self.slots.iter().zip(0..=u16::MAX) {
            let (source, target) = match *slot {
                Slot::InUse { source, arrives: Arrives::At(target), .. } => (source, target),
                Slot::Held { source, target } => (source, target),
                Slot::InUse { .. } => return Err(IommuError::Unsupported),
                Slot::Free | Slot::Unsettled => continue,
            };
            all.push(InterruptHandover { source, index, target });
        }
        Ok(())
    }

    /// Holds an entry that a former kernel has opened; tells if it was free.
    pub(crate) fn hold(&mut self, former: &InterruptHandover) -> bool {
        let InterruptHandover { source, index, target } = *former;
        let slot = self.slots.get_mut(usize::from(index));
        let slot = slot.filter(|slot| **slot == Slot::Free);
        slot.map(|slot| *slot = Slot::Held { source, target }).is_some()
    }

    /// Gives the entries of `source` out that are held, of the table at `table`.
    pub(crate) fn give_out(&mut self, table: PhysAddr, source: InterruptSource) -> Vec<Interrupt> {
        let last_serial = &mut self.last_serial;
        let slots = self.slots.iter_mut().zip(0..=u16::MAX);
        let given = slots.filter_map(|(slot, index)| match *slot {
            Slot::Held { source: of, target } if of == source => {
                *last_serial += 1;
                let serial = *last_serial;
                *slot = Slot::InUse { serial, source, arrives: target.into() };
                let place = InterruptPlace { table, index, serial };
                Some(Interrupt::given_out(place, source, target))
            }
            _ => None,
        });
        given.collect()
    }

    /// Tells if the entry of `interrupt` is still in use for it.
    pub(crate) fn holds(&self, interrupt: &Interrupt) -> bool {
        let place = interrupt.place();
        let slot = self.slots.get(usize::from(place.index));
        matches!(slot, Some(Slot::InUse { serial, .. }) if *serial == place.serial)
    }

    /// Tells if any entry is in use.
    pub(crate) fn are_used(&self) -> bool {
        let mut slots = self.slots.iter();
        slots.any(|slot| matches!(slot, Slot::InUse { .. } | Slot::Held { .. }))
    }

    /// Ends the use of all entries that are in use for `stream`, or for any source: `close` closes
    /// each in memory. Tells if there was one.
    pub(crate) fn unsettle_all(
        &mut self,
        stream: Option<StreamId>,
        mut close: impl FnMut(u16),
    ) -> bool {
        let mut found = false;
        for (slot, index) in self.slots.iter_mut().zip(0..=u16::MAX) {
            let (Slot::InUse { source, .. } | Slot::Held { source, .. }) = slot else {
                continue;
            };
            if stream.is_none_or(|stream| source.is_of(stream)) {
                *slot = Slot::Unsettled;
                close(index);
                found = true;
            }
        }
        found
    }

    /// The entry is closed, and the hardware has yet to forget it.
    pub(crate) fn unsettle(&mut self, index: u16) {
        if let Some(slot) = self.slots.get_mut(usize::from(index)) {
            *slot = Slot::Unsettled;
        }
    }

    /// The hardware has forgotten the closed entry.
    pub(crate) fn settle(&mut self, index: u16) {
        match self.slots.get_mut(usize::from(index)) {
            Some(slot) if *slot == Slot::Unsettled => *slot = Slot::Free,
            _ => {}
        }
    }

    /// The hardware has forgotten all closed entries.
    pub(crate) fn settle_all(&mut self) {
        let closed = |slot: &&mut Slot| **slot == Slot::Unsettled;
        let all = self.slots.iter_mut().filter(closed);
        all.for_each(|slot| *slot = Slot::Free);
    }

    /// Entries that are out of use until an invalidation completes.
    pub(crate) fn unsettled(&self) -> usize {
        let closed = |slot: &&Slot| **slot == Slot::Unsettled;
        self.slots.iter().filter(closed).count()
    }
}
