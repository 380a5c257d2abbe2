//! Page sizes as powers of two, and sets of them.
//!
//! *Context.* Interrupt: everything here is a value.

/// A power of two number of bytes, from 1 to 2^63.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageSize(u8);

impl PageSize {
    /// 4 KiB.
    pub const SIZE_4K: Self = Self(12);
    /// 16 KiB.
    pub const SIZE_16K: Self = Self(14);
    /// 64 KiB.
    pub const SIZE_64K: Self = Self(16);
    /// 2 MiB.
    pub const SIZE_2M: Self = Self(21);
    /// 1 GiB.
    pub const SIZE_1G: Self = Self(30);

    /// The size of `2^lg2` bytes; `None` above 2^63.
    #[inline]
    pub const fn from_lg2(lg2: u32) -> Option<Self> {
        if lg2 < 64 { Some(Self(lg2 as u8)) } else { None }
    }

    /// The size of `2^lg2` bytes; counts modulo 64, for constants known to be in range.
    #[inline]
    pub const fn of_lg2(lg2: u32) -> Self {
        Self((lg2 & 63) as u8)
    }

    /// The exponent.
    #[inline]
    pub const fn lg2(self) -> u32 {
        self.0 as u32
    }

    /// Number of bytes.
    #[inline]
    pub const fn bytes(self) -> u64 {
        1 << (self.0 & 63)
    }
}

/// A set of page sizes; bit `n` stands for 2^n bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct PageSizes(u64);

impl PageSizes {
    /// The set of the sizes in `bits` (bit `n` stands for 2^n bytes).
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The set with `size` in it.
    #[inline]
    pub const fn with(self, size: PageSize) -> Self {
        Self(self.0 | size.bytes())
    }

    /// The sizes that are in both sets.
    #[inline]
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Tells if `size` is in the set.
    #[inline]
    pub const fn contains(self, size: PageSize) -> bool {
        self.0 & size.bytes() != 0
    }

    /// The smallest size: the granule.
    #[inline]
    pub const fn smallest(self) -> Option<PageSize> {
        PageSize::from_lg2(self.0.trailing_zeros())
    }

    /// The sizes, smallest first.
    pub fn iter(self) -> impl Iterator<Item = PageSize> {
        (0..64).map(PageSize::of_lg2).filter(move |&s| self.contains(s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_is_added_twice_is_in_the_set() {
        let set = PageSizes::from_bits(1 << 12 | 1 << 21);
        assert_eq!(set.bits(), 0x20_1000);
        assert_eq!(set.with(PageSize::SIZE_2M), set);
        assert!(set.contains(PageSize::SIZE_4K) && !set.contains(PageSize::SIZE_1G));
        assert_eq!(set.smallest(), Some(PageSize::SIZE_4K));
        assert_eq!(PageSizes::default().smallest(), None);
    }
}
