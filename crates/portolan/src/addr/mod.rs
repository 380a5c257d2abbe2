//! Addresses, inclusive ranges, page sizes and identifiers, each a type of its own.
//!
//! Ranges are inclusive (`start`..=`last`) so that one may reach the top of an address space.
//! Nothing here reads memory; all arithmetic is checked.
//!
//! *Context.* Interrupt: everything here is a value.

mod id;
mod pci;
mod range;
mod size;

pub use id::{Asid, CpuId, DomainId, InvalTag, Pasid, StreamId, TableId, Vmid};
pub use pci::{NotAFunction, PciFunction, PciSegment, RequesterId};
pub use range::{IovaRange, PhysRange};
pub use size::{PageSize, PageSizes};

use core::fmt;

macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// An address from its number.
            #[inline]
            pub const fn new(raw: u64) -> Self {
                Self(raw)
            }

            /// The number.
            #[inline]
            pub const fn get(self) -> u64 {
                self.0
            }

            /// The address `bytes` further on, or `None` past the top of the space.
            #[inline]
            pub const fn checked_add(self, bytes: u64) -> Option<Self> {
                match self.0.checked_add(bytes) {
                    Some(raw) => Some(Self(raw)),
                    None => None,
                }
            }

            /// Tells if the address is a multiple of `size`.
            #[inline]
            pub const fn is_aligned(self, size: PageSize) -> bool {
                self.0 & (size.bytes() - 1) == 0
            }

            /// The nearest multiple of `size` at or below the address.
            #[inline]
            pub const fn align_down(self, size: PageSize) -> Self {
                Self(self.0 & !(size.bytes() - 1))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

address! {
    /// An address as a device puts it on the bus.
    Iova
}
address! {
    /// An address of memory behind the IOMMU.
    PhysAddr
}
