//! Records of the guest virtual APIC log (2.7), one word each.

use super::Bits;

crate::bits::constants! {
    LG2_BYTES: u32 = 3 => "Bytes of a record, as an exponent.";

    TAG: Bits = Bits::new(0, 32) => "GATag, number of the virtual CPU.";
    DEVICE: Bits = Bits::new(32, 16) => "The sender.";
    CODE: Bits = Bits::new(60, 4) => "Kind of record; zero until it is complete.";
    INTERRUPT: u64 = 1 => "Value of [`CODE`]: an interrupt for a virtual CPU that does not run.";
}
