//! Inclusive, never empty ranges of addresses.
//!
//! *Context.* Interrupt: everything here is a value.

use super::{Iova, PageSize, PhysAddr};

macro_rules! range {
    ($(#[$doc:meta])* $name:ident of $addr:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name {
            start: $addr,
            last: $addr,
        }

        /// Both ends.
        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{}..={}", self.start, self.last)
            }
        }

        impl $name {
            /// The range from `start` to `last`, both included; `None` if `last` is below `start`.
            #[inline]
            pub const fn new(start: $addr, last: $addr) -> Option<Self> {
                if last.get() < start.get() { None } else { Some(Self { start, last }) }
            }

            /// The range of `bytes` bytes from `start`; `None` if empty or past the top.
            #[inline]
            pub const fn from_len(start: $addr, bytes: u64) -> Option<Self> {
                if bytes == 0 {
                    return None;
                }
                match start.checked_add(bytes - 1) {
                    Some(last) => Some(Self { start, last }),
                    None => None,
                }
            }

            /// The page of `size` that holds `addr`.
            #[inline]
            pub const fn page(addr: $addr, size: PageSize) -> Self {
                let start = addr.align_down(size);
                Self { start, last: $addr::new(start.get() | (size.bytes() - 1)) }
            }

            /// First address.
            #[inline]
            pub const fn start(self) -> $addr {
                self.start
            }

            /// Last address.
            #[inline]
            pub const fn last(self) -> $addr {
                self.last
            }

            /// Number of bytes less one: it fits for every range, as the number of bytes may not.
            #[inline]
            pub const fn len_minus_one(self) -> u64 {
                self.last.get() - self.start.get()
            }

            /// Number of pages of `size` that the range touches; one less where 64 bits do not hold it,
            /// which are all of them in bytes.
            #[inline]
            pub const fn pages(self, size: PageSize) -> u64 {
                self.pages_minus_one(size).saturating_add(1)
            }

            /// Number of those pages less one, which fits for every range.
            #[inline]
            pub const fn pages_minus_one(self, size: PageSize) -> u64 {
                (self.last.get() >> size.lg2()) - (self.start.get() >> size.lg2())
            }

            /// Tells if `addr` lies in the range.
            #[inline]
            pub const fn contains(self, addr: $addr) -> bool {
                self.start.get() <= addr.get() && addr.get() <= self.last.get()
            }

            /// Tells if all of `other` lies in the range.
            #[inline]
            pub const fn covers(self, other: Self) -> bool {
                self.start.get() <= other.start.get() && other.last.get() <= self.last.get()
            }

            /// Tells if the two ranges share an address.
            #[inline]
            pub const fn overlaps(self, other: Self) -> bool {
                self.start.get() <= other.last.get() && other.start.get() <= self.last.get()
            }

            /// Addresses that the two ranges share.
            #[inline]
            pub fn intersection(self, other: Self) -> Option<Self> {
                Self::new(self.start.max(other.start), self.last.min(other.last))
            }

            /// The smallest range that covers both, gap included.
            #[inline]
            pub fn hull(self, other: Self) -> Self {
                Self { start: self.start.min(other.start), last: self.last.max(other.last) }
            }
        }
    };
}

range! {
    /// A range of device addresses.
    IovaRange of Iova
}
range! {
    /// A range of memory behind the IOMMU.
    PhysRange of PhysAddr
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reaches_the_top_of_the_space() {
        let top = IovaRange::from_len(Iova::new(u64::MAX - 0xfff), 0x1000).unwrap();
        assert_eq!(top.last(), Iova::new(u64::MAX));
        assert_eq!(top.pages(PageSize::SIZE_4K), 1);
        assert!(IovaRange::from_len(Iova::new(u64::MAX), 2).is_none());
        assert!(IovaRange::from_len(Iova::new(0), 0).is_none());
        assert!(IovaRange::new(Iova::new(1), Iova::new(0)).is_none());
    }

    #[test]
    fn shows_both_ends() {
        let range = PhysRange::from_len(PhysAddr::new(0x1000), 0x2000).unwrap();
        assert_eq!(alloc::format!("{range}"), "0x1000..=0x2fff");
    }

    #[test]
    fn pages_counts_touched_pages() {
        let odd = IovaRange::from_len(Iova::new(0xff0), 0x20).unwrap();
        assert_eq!(odd.pages(PageSize::SIZE_4K), 2);
        let all = IovaRange::new(Iova::new(0), Iova::new(u64::MAX)).unwrap();
        assert_eq!(all.pages(PageSize::SIZE_4K), 1 << 52);
        assert_eq!(all.len_minus_one(), u64::MAX);
        assert_eq!(all.pages(PageSize::of_lg2(0)), u64::MAX);
    }

    #[test]
    fn set_operations() {
        let r = |a, b| IovaRange::new(Iova::new(a), Iova::new(b)).unwrap();
        assert!(r(0, 9).overlaps(r(9, 12)) && !r(0, 9).overlaps(r(10, 12)));
        assert_eq!(r(0, 9).intersection(r(5, 12)), Some(r(5, 9)));
        assert_eq!(r(0, 1).intersection(r(2, 3)), None);
        assert_eq!(r(0, 1).hull(r(8, 9)), r(0, 9));
        assert!(r(0, 9).covers(r(0, 9)) && !r(1, 9).covers(r(0, 9)));
    }
}
