//! Interrupt files, one page each, in which messages of devices become interrupts of harts.
//!
//! RISC-V Advanced Interrupt Architecture, version 1.0, chapter "Incoming MSI Controller (IMSIC)", section
//! on the arrangement of interrupt files: harts in groups, and behind the file of each hart those for its
//! guests.
//!
//! *Context.* Interrupt: everything here is a value.

use portolan::addr::PhysAddr;

/// The interrupt files of a machine's harts, of one privilege level: pages in which a write raises the
/// interrupt whose number is written.
///
/// ```
/// use portolan::addr::PhysAddr;
/// use portolan_tables::imsic::InterruptFiles;
/// let mut files = InterruptFiles::new(PhysAddr::new(0x2800_0000), 4);
/// assert_eq!(files.page(3), Some(PhysAddr::new(0x2800_3000)));
/// // Each hart's file is followed by one for a guest.
/// files.guests_lg2 = 1;
/// assert_eq!(files.page(3), Some(PhysAddr::new(0x2800_6000)));
/// assert_eq!(files.page(4), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InterruptFiles {
    /// Physical address of the first hart's file: a page.
    pub base: PhysAddr,
    /// Number of harts, in the order of the interrupt controller: a destination
    /// ([`Destination::Physical`](portolan::iommu::Destination)) is a place in it.
    pub harts: u32,
    /// The highest number of an interrupt that the files have.
    pub identities: u32,
    /// Width in bits of the number of a file among those of one hart: 0 without guests.
    pub guests_lg2: u32,
    /// Width in bits of the number of a hart in its group; as many as there are harts, if there is one
    /// group.
    pub harts_lg2: u32,
    /// Position in addresses of the number of a group.
    pub group_shift: u32,
}

impl InterruptFiles {
    /// Of `harts` harts in one group, one page after another from `base` on, each with 255 interrupts.
    pub const fn new(base: PhysAddr, harts: u32) -> Self {
        Self { base, harts, identities: 255, guests_lg2: 0, harts_lg2: u32::BITS, group_shift: 0 }
    }

    /// The page of the hart at that place; `None` if there is none, or if it has no address.
    pub fn page(&self, hart: u32) -> Option<PhysAddr> {
        let hart = Some(hart).filter(|hart| *hart < self.harts)?;
        let group = hart.checked_shr(self.harts_lg2).unwrap_or(0);
        let in_group = hart.checked_sub(group.checked_shl(self.harts_lg2).unwrap_or(0))?;
        let place = |number: u32, shift: u32| {
            let at = u64::from(number).checked_shl(shift)?;
            (at >> shift == number.into()).then_some(at)
        };
        let inside = place(in_group, self.guests_lg2.checked_add(12)?)?;
        let group = place(group, self.group_shift)?;
        self.base.checked_add(inside)?.checked_add(group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_by_hand() {
        // Two groups of two harts, each with three guests, groups 16 MiB apart.
        let files = InterruptFiles {
            harts_lg2: 1,
            guests_lg2: 2,
            group_shift: 24,
            ..InterruptFiles::new(PhysAddr::new(0x2800_0000), 4)
        };
        let pages = [0, 1, 2, 3, 4].map(|hart| files.page(hart).map(PhysAddr::get));
        let wanted = [0x2800_0000, 0x2800_4000, 0x2900_0000, 0x2900_4000];
        assert_eq!(pages[..4], wanted.map(Some));
        assert_eq!(pages[4], None);
    }

    #[test]
    fn what_has_no_address_has_no_page() {
        let base = PhysAddr::new(0x2800_0000);
        let all = InterruptFiles { harts: u32::MAX, ..InterruptFiles::new(base, 1) };
        let wrong = [
            InterruptFiles { guests_lg2: 60, ..all },
            InterruptFiles { guests_lg2: u32::MAX, ..all },
            InterruptFiles { harts_lg2: 1, group_shift: 63, ..all },
            InterruptFiles { harts_lg2: 0, group_shift: u32::MAX, ..all },
            InterruptFiles::new(PhysAddr::new(u64::MAX - 0xfff), 9),
        ];
        for files in wrong {
            assert_eq!(files.page(7), None, "{files:?}");
        }
    }
}
