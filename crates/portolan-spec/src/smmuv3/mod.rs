//! Layouts of the Arm SMMU architecture v3 (IHI 0070, issue E.a), and nothing else.
//!
//! Registers in [`reg`] (section 6), stream table entries in [`ste`] (5.2), context descriptors in
//! [`cd`] (5.4), commands in [`command`] (4), event and page-request records in [`event`] (7 and 8).
//! [`cmdqv`]: queues that NVIDIA puts beside a unit. Not here: secure and realm state, MPAM, VMS, ATOS.
//!
//! *Context.* Interrupt: everything here is a value.

pub mod cd;
pub mod cmdqv;
pub mod command;
pub mod event;
pub mod reg;
pub mod ste;

use crate::Bits;

/// A field of a structure of 64-bit little-endian words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Number of the word.
    pub word: usize,
    bits: Bits,
}

impl Field {
    /// A field of `width` bits from `lsb` of word `word`.
    pub const fn new(word: usize, lsb: u32, width: u32) -> Self {
        let bits = Bits::new(lsb, width);
        Self { word, bits }
    }

    /// The bits of the field in its word.
    pub const fn mask(self) -> u64 {
        self.bits.mask()
    }

    /// The field's value; zero if the words end before it.
    pub const fn get(self, words: &[u64]) -> u64 {
        if self.word < words.len() { self.bits.of(words[self.word]) } else { 0 }
    }

    /// Sets the field to the low bits of `value`.
    pub const fn set(self, words: &mut [u64], value: u64) {
        if self.word < words.len() {
            words[self.word] = words[self.word] & !self.mask() | self.bits.at(value);
        }
    }

    /// The value of a field of a register.
    pub const fn of(self, register: u64) -> u64 {
        self.bits.of(register)
    }

    /// `value` at the field's place in a register.
    pub const fn at(self, value: u64) -> u64 {
        self.bits.at(value)
    }
}

/// Declares fields: `NAME: word, lsb, width`.
macro_rules! fields {
    ($($fields:tt)*) => { crate::bits::fields! { crate::smmuv3::Field; $($fields)* } };
}
pub(crate) use fields;

/// The bits of an address field that holds the address in place, from bit `lsb` to 51.
pub const fn address(raw: u64, lsb: u32) -> u64 {
    raw & ((1 << 52) - 1) & !((1 << lsb) - 1)
}

#[cfg(test)]
mod tests {
    use super::Field;

    #[test]
    fn fields_stay_in_their_place() {
        let field = Field::new(1, 60, 4);
        let mut words = [0, u64::MAX];
        field.set(&mut words, 0x15);
        assert_eq!(words, [0, 0x5fff_ffff_ffff_ffff]);
        assert_eq!(field.get(&words), 5);
        assert_eq!(field.get(&words[..1]), 0);
        assert_eq!(Field::new(0, 0, 64).mask(), u64::MAX);
        assert_eq!(Field::new(0, 4, 8).of(Field::new(0, 4, 8).at(0x1ff)), 0xff);
    }
}
