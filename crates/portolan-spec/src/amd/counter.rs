//! Performance counters: the numbers of them ([`super::reg::COUNTERS`]), and the registers of each.

use super::Bits;

crate::bits::constants! {
    NUMBER: Bits = Bits::new(7, 4) => "[`super::reg::COUNTERS`]: counters of each bank.";
    BANKS: Bits = Bits::new(12, 6) => "[`super::reg::COUNTERS`]: banks.";

    FIRST: usize = 0x4_0000 => "Registers of counter 0 of bank 0.";
    BANK_BYTES: usize = 0x1000 => "Distance between banks.";
    BYTES: usize = 0x100 => "Distance between counters of a bank.";

    COUNT: usize = 0 => "The count, of 48 bits.";
    SOURCE: usize = 8 => "The event that is counted; 0 for none.";
    PASID: usize = 0x10 => "PASIDs whose events are counted.";
    DOMAIN: usize = 0x18 => "Domains whose events are counted.";
    DEVICE: usize = 0x20 => "Devices whose events are counted.";

    COUNT_BITS: Bits = Bits::new(0, 48) => "[`COUNT`]: the count.";
    EVENT: Bits = Bits::new(0, 8) => "[`SOURCE`]: the event.";
    VALUE: Bits = Bits::new(0, 20) => "[`PASID`], [`DOMAIN`], [`DEVICE`]: the value.";
    MATCHES: u64 = 1 << 31 => "[`PASID`], [`DOMAIN`], [`DEVICE`]: only events with the value count.";
    MASK: Bits = Bits::new(32, 20) => "[`PASID`], [`DOMAIN`], [`DEVICE`]: bits of the value that are compared.";
}
