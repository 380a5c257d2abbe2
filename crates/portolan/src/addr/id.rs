//! Identifiers that hardware and drivers pass around, each a type of its own.
//!
//! Widths are those of the widest architecture; a driver checks against the values that it
//! discovered.
//!
//! *Context.* Interrupt: everything here is a value.

use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU64, Ordering};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident: $raw:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name($raw);

        impl $name {
            /// An identifier from its number.
            #[inline]
            pub const fn new(raw: $raw) -> Self {
                Self(raw)
            }

            /// The number.
            #[inline]
            pub const fn get(self) -> $raw {
                self.0
            }
        }
    };
}

id! {
    /// Tags the translations of one first-stage table.
    Asid: u16
}
id! {
    /// Tags the translations of one second-stage table.
    Vmid: u16
}
id! {
    /// Tags the translations of one table where a single number does so for both stages.
    DomainId: u16
}
id! {
    /// Tells apart the address spaces that one device uses (20 bits).
    Pasid: u32
}
id! {
    /// Names a device to an IOMMU: a stream, or a requester.
    StreamId: u32
}
id! {
    /// Tag by which an invalidation selects translations, of any kind that the hardware has.
    InvalTag: u32
}

id! {
    /// A CPU, counted from 0.
    CpuId: u32
}

/// Names one page table, or one domain without page tables, among all that this program ever makes:
/// a debt of one is worth nothing for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableId(NonZeroU64);

impl TableId {
    /// A name that was never given out before.
    pub fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // 2^64 tables are never made.
        Self(NonZeroU64::new(NEXT.fetch_add(1, Ordering::Relaxed)).unwrap_or(NonZeroU64::MAX))
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl From<Asid> for InvalTag {
    fn from(id: Asid) -> Self {
        Self(id.0.into())
    }
}

impl From<Vmid> for InvalTag {
    fn from(id: Vmid) -> Self {
        Self(id.0.into())
    }
}

impl From<DomainId> for InvalTag {
    fn from(id: DomainId) -> Self {
        Self(id.0.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_table_has_a_number_of_its_own() {
        let numbers = [TableId::fresh(), TableId::fresh()].map(TableId::get);
        assert!(numbers[0] != 0 && numbers[0] < numbers[1], "{numbers:?}");
    }

    #[test]
    fn a_tag_is_the_number_of_what_it_is_made_of() {
        assert_eq!(InvalTag::from(Asid::new(3)), InvalTag::new(3));
        assert_eq!(InvalTag::from(Vmid::new(0xfffe)), InvalTag::new(0xfffe));
        assert_eq!(InvalTag::from(DomainId::new(5)), InvalTag::new(5));
    }
}
