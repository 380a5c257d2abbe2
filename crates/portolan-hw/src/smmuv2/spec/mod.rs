//! Layouts of the Arm SMMU architecture v2 (IHI 0062, issue D.c), and nothing else.
//!
//! [`global`]: the global register spaces 0 and 1; [`bank`]: a translation context bank. The window
//! is two halves of equal size: global pages, then one page for each context bank.
//! *Context.* Interrupt: everything here is a value.
//!
//! Not here: security state determination, performance monitors, hypervisor banks.

pub mod bank;
pub mod global;

/// A field of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    lsb: u32,
    width: u32,
}

impl Field {
    /// A field of `width` bits from `lsb`.
    pub const fn new(lsb: u32, width: u32) -> Self {
        assert!(width >= 1 && lsb + width <= 32);
        Self { lsb, width }
    }

    /// The bits of the field.
    pub const fn mask(self) -> u32 {
        (u32::MAX >> (32 - self.width)) << self.lsb
    }

    /// The field's value in a register.
    pub const fn of(self, register: u32) -> u32 {
        (register & self.mask()) >> self.lsb
    }

    /// `value` at the field's place.
    pub const fn at(self, value: u32) -> u32 {
        (value << self.lsb) & self.mask()
    }
}

/// Declares fields: `NAME: lsb, width`.
macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident: $lsb:literal, $width:literal;)*) => {$(
        $(#[$doc])*
        pub const $name: $crate::smmuv2::spec::Field = $crate::smmuv2::spec::Field::new($lsb, $width);
    )*};
}
pub(crate) use fields;
