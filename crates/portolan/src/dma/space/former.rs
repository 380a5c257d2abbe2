//! Addresses that a former kernel has mapped in the tables of a space.

use alloc::vec::Vec;

use thiserror::Error;

use super::DmaSpace;
use super::reserved::{Regions, missing};
use crate::addr::{Iova, IovaRange, PhysRange};
use crate::iova::FreeError;
use crate::platform::Cpus;

/// Error of taking a former kernel's mapping over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FormerError {
    /// The device is in no address space.
    #[error("the device is in no address space")]
    Untranslated,
    /// A part of it is no mapping of a former kernel, or was taken over before.
    #[error("not all of {range} is left by a former kernel")]
    NotLeft {
        /// The addresses.
        range: IovaRange,
    },
    /// Firmware's devices use a part of it.
    #[error("{range} has memory that is reserved for a device")]
    Reserved {
        /// The addresses.
        range: IovaRange,
    },
    /// Nothing is mapped there.
    #[error("nothing is mapped at {iova}")]
    NotMapped {
        /// The address.
        iova: Iova,
    },
    /// No memory for the list of its pieces.
    #[error("no memory for the list of pieces")]
    Memory,
}

/// Takes `range` out of a list, which has room for one more.
fn subtract(list: &mut Vec<IovaRange>, range: IovaRange) {
    let mut rest = None;
    list.retain_mut(|one| {
        if !one.overlaps(range) {
            return true;
        }
        let below = range.start().get().checked_sub(1).map(Iova::new);
        let below = below.and_then(|last| IovaRange::new(one.start(), last));
        let above = range.last().checked_add(1);
        let above = above.and_then(|start| IovaRange::new(start, one.last()));
        match (below, above) {
            (Some(below), above) => {
                *one = below;
                rest = rest.or(above);
                true
            }
            (None, Some(above)) => {
                *one = above;
                true
            }
            (None, None) => false,
        }
    });
    list.extend(rest);
}

impl<P: Cpus + Clone> DmaSpace<P> {
    /// Sets `range` aside, which a former kernel has mapped in the tables of the domain, until the driver of the device
    /// that uses it takes it over ([`Device::former_mapping`](crate::dma::Device::former_mapping)).
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// As [`DmaSpace::reserve`].
    pub fn keep_former(&self, range: IovaRange) -> Result<(), FreeError> {
        self.reserve(range)?;
        self.note(self.granules(range), |known| &mut known.former).map_err(|()| FreeError::Memory)
    }

    /// Takes over the former kernel's mapping at `range`, whole granules; returns the memory to which it leads.
    pub(in crate::dma) fn take_former(
        &self,
        range: IovaRange,
    ) -> Result<Vec<PhysRange>, FormerError> {
        let taken = self.with_room(
            |known| &mut known.former,
            |known| {
                if missing(range, known.former.iter().copied()).is_some() {
                    return Err(FormerError::NotLeft { range });
                }
                if known.direct.iter().any(|(direct, _)| direct.overlaps(range)) {
                    return Err(FormerError::Reserved { range });
                }
                subtract(&mut known.former, range);
                Ok(())
            },
        );
        taken.map_err(|()| FormerError::Memory)??;
        let memory = self.memory_at(range);
        if memory.is_err() {
            // No driver has it, and it stays mapped.
            let _ = self.note(range, |known| &mut known.former);
        }
        memory
    }

    /// The memory to which `range` leads.
    fn memory_at(&self, range: IovaRange) -> Result<Vec<PhysRange>, FormerError> {
        let granule = self.granule();
        let mut all: Vec<PhysRange> = Vec::new();
        let mut at = Some(range.start());
        while let Some(iova) = at {
            let found = self.domain.translate(iova).ok_or(FormerError::NotMapped { iova })?;
            let page = PhysRange::page(found.pa.align_down(granule), granule);
            match all.last_mut() {
                Some(last) if last.last().checked_add(1) == Some(page.start()) => {
                    *last = last.hull(page);
                }
                _ => {
                    all.try_reserve(1).map_err(|_| FormerError::Memory)?;
                    all.push(page);
                }
            }
            at = iova.checked_add(granule.bytes()).filter(|next| *next <= range.last());
        }
        Ok(all)
    }

    /// Ends the reservation of `range`, of which nothing is mapped any more.
    pub(in crate::dma) fn forget_former(&self, range: IovaRange) {
        let forget = |known: &mut Regions| subtract(&mut known.aside, range);
        if self.with_room(|known| &mut known.aside, forget).is_err() {
            self.lost.count_addresses(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, last: u64) -> IovaRange {
        IovaRange::new(Iova::new(start), Iova::new(last)).unwrap()
    }

    #[test]
    fn parts_are_taken_out_of_ranges() {
        let mut list = alloc::vec![range(0x10, 0x1f), range(0x20, 0x2f), range(0x40, 0x4f)];
        subtract(&mut list, range(0x18, 0x27));
        assert_eq!(list, [range(0x10, 0x17), range(0x28, 0x2f), range(0x40, 0x4f)]);
        subtract(&mut list, range(0x44, 0x45));
        assert_eq!(list[2..], [range(0x40, 0x43), range(0x46, 0x4f)]);
        subtract(&mut list, range(0, u64::MAX));
        assert_eq!(list, []);
    }
}
