//! Fields of words and registers.

macro_rules! bits {
    ($(#[$doc:meta])* $name:ident, $word:ident) => {
        $(#[$doc])*
        ///
        /// *Context.* Interrupt: a value.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            lsb: u32,
            width: u32,
        }

        impl $name {
            /// `width` bits from `lsb`; the two are constants known to fit a word.
            pub const fn new(lsb: u32, width: u32) -> Self {
                assert!(width >= 1 && width <= $word::BITS && lsb + width <= $word::BITS);
                Self { lsb, width }
            }

            /// The bits in their place.
            pub const fn mask(self) -> $word {
                ($word::MAX >> ($word::BITS - self.width)) << self.lsb
            }

            /// Their value in `word`.
            pub const fn of(self, word: $word) -> $word {
                (word & self.mask()) >> self.lsb
            }

            /// `value` in their place; bits that do not fit are cut off.
            pub const fn at(self, value: $word) -> $word {
                (value << self.lsb) & self.mask()
            }
        }
    };
}

bits! {
    /// Bits `lsb` to `lsb + width - 1` of a word of 64 bits.
    Bits, u64
}

bits! {
    /// Bits `lsb` to `lsb + width - 1` of a register of 32 bits.
    Bits32, u32
}

/// Bits 51:12 of a word: an address in place.
pub const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Declares constants, a line each: `NAME: type = value => "description";`. Descriptions that do not fit
/// stand above, as comments.
macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident: $of:ty = $value:expr $(=> $text:literal)?;)*) => {$(
        $(#[$doc])* $(#[doc = $text])?
        pub const $name: $of = $value;
    )*};
}
pub(crate) use constants;

/// Declares constant fields likewise: `NAME: arguments of the type's new => "description";`.
macro_rules! fields {
    ($of:ty; $($(#[$doc:meta])* $name:ident: $($value:literal),+ $(=> $text:literal)?;)*) => {$(
        $(#[$doc])* $(#[doc = $text])?
        pub const $name: $of = <$of>::new($($value),+);
    )*};
}
pub(crate) use fields;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_stay_in_their_place() {
        let bits = Bits::new(60, 4);
        assert_eq!(bits.at(0x15), 5 << 60);
        assert_eq!(bits.of(u64::MAX), 15);
        assert_eq!(Bits::new(0, 64).mask(), u64::MAX);
        assert_eq!(Bits32::new(28, 4).at(0x15), 5 << 28);
        assert_eq!(Bits32::new(0, 32).mask(), u32::MAX);
    }
}
