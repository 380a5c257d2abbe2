//! The guest's memory as a front-end describes it, and the guest's addresses for those of the front-end.
//!
//! The vhost-user protocol, section "Memory region description".

use portolan::addr::PhysAddr;

/// An address in the front-end's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FrontendAddr(u64);

impl FrontendAddr {
    /// Wraps a raw address.
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// The raw address.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl core::fmt::Display for FrontendAddr {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Memory that is contiguous in the guest and in the front-end's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRegion {
    /// Its first address in the guest.
    pub guest: PhysAddr,
    /// Its first address in the front-end's process.
    pub frontend: FrontendAddr,
    /// Its length in bytes.
    pub bytes: u64,
}

/// Reason why a table of memory is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionsError {
    /// More regions than there are slots.
    #[error("{found} regions of memory are too many")]
    TooMany {
        /// Their number.
        found: usize,
    },
    /// A region is empty, or goes past the top of an address space.
    #[error("a region at {guest} of {bytes:#x} bytes makes no sense")]
    Range {
        /// Its first address in the guest.
        guest: PhysAddr,
        /// Its length in bytes.
        bytes: u64,
    },
    /// Two regions have an address in common, in the guest or in the front-end's process.
    #[error("two regions overlap, one of them at {guest}")]
    Overlap {
        /// First address of that one in the guest.
        guest: PhysAddr,
    },
}

/// As many as vhost-user's memory tables have slots at most, in QEMU and in `vhost-user-backend`.
const MOST: usize = 512;

/// The regions, none of which overlap.
#[derive(Debug, Default)]
pub(crate) struct Regions(Vec<MemoryRegion>);

impl Regions {
    pub(crate) fn new(regions: &[MemoryRegion]) -> Result<Self, RegionsError> {
        if regions.len() > MOST {
            let found = regions.len();
            return Err(RegionsError::TooMany { found });
        }
        for (number, region) in regions.iter().enumerate() {
            let MemoryRegion { guest, bytes, .. } = *region;
            let last = |start: u64| start.checked_add(bytes.checked_sub(1)?);
            let frontend = region.frontend.get();
            let (Some(last), Some(frontend_last)) = (last(guest.get()), last(frontend)) else {
                return Err(RegionsError::Range { guest, bytes });
            };
            let overlaps = |other: &MemoryRegion| {
                let apart = |start: u64, last: u64, others: u64| {
                    last < others || start > others + (other.bytes - 1)
                };
                !apart(guest.get(), last, other.guest.get())
                    || !apart(frontend, frontend_last, other.frontend.get())
            };
            if regions.iter().take(number).any(overlaps) {
                return Err(RegionsError::Overlap { guest });
            }
        }
        Ok(Self(regions.to_vec()))
    }

    /// The region with an address of the guest.
    pub(crate) fn around(&self, at: PhysAddr) -> Option<&MemoryRegion> {
        let offset = |region: &MemoryRegion| at.get().checked_sub(region.guest.get());
        self.0.iter().find(|region| offset(region).is_some_and(|offset| offset < region.bytes))
    }

    /// Address in the guest of `bytes` bytes from `start` on: inside of one region.
    pub(crate) fn guest(&self, start: FrontendAddr, bytes: u64) -> Option<PhysAddr> {
        let inside = |region: &&MemoryRegion| {
            let offset = start.get().checked_sub(region.frontend.get());
            offset.is_some_and(|at| at < region.bytes && bytes <= region.bytes - at)
        };
        let region = self.0.iter().find(inside)?;
        let offset = start.get() - region.frontend.get();
        Some(PhysAddr::new(region.guest.get() + offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(guest: u64, frontend: u64, bytes: u64) -> MemoryRegion {
        MemoryRegion { guest: PhysAddr::new(guest), frontend: FrontendAddr::new(frontend), bytes }
    }

    #[test]
    fn only_what_is_inside_of_one_region_has_a_place() {
        let regions = [region(0, 0x10_0000, 0x2000), region(0x2000, 0x10_2000, 0x1000)];
        let regions = Regions::new(&regions).unwrap();
        let place = |at, bytes| regions.guest(FrontendAddr::new(at), bytes).map(PhysAddr::get);
        assert_eq!(place(0x10_1000, 0x1000), Some(0x1000));
        assert_eq!(place(0x10_2000, 0x1000), Some(0x2000));
        assert_eq!(place(0x10_1000, 0x1001), None, "of two regions");
        assert_eq!(place(0x10_2fff, 2), None);
        assert_eq!(place(0x10_3000, 1), None);
        assert_eq!(place(0xf_ffff, 1), None);
        assert_eq!(place(0x10_0000, u64::MAX), None);
    }

    #[test]
    fn tables_that_make_no_sense_are_refused() {
        let refused = |regions: &[MemoryRegion]| Regions::new(regions).unwrap_err();
        let guest = PhysAddr::new(0x1000);
        for bytes in [0, u64::MAX] {
            let found = refused(&[region(0x1000, 0x1000, bytes)]);
            assert_eq!(found, RegionsError::Range { guest, bytes });
        }
        let pairs = [
            [region(0, 0, 0x1001), region(0x1000, 0x8000, 1)],
            [region(0, 0x8000, 0x1000), region(0x1000, 0x8fff, 1)],
        ];
        for pair in pairs {
            assert_eq!(refused(&pair), RegionsError::Overlap { guest });
        }
        let many: Vec<_> = (0..513).map(|at| region(at, at, 1)).collect();
        assert_eq!(refused(&many), RegionsError::TooMany { found: 513 });
    }
}
