//! Page requests in their log (2.6): two words each, of which word 1 has the page in its bits 63:12.

use super::Bits;

crate::bits::constants! {
    DEVICE: Bits = Bits::new(0, 16) => "Word 0: who.";
    PASID_LOW: Bits = Bits::new(16, 16) => "Word 0: bits 15:0 of the address space.";
    GROUP: Bits = Bits::new(32, 9) => "Word 0: the group.";
    LAST: Bits = Bits::new(41, 1) => "Word 0: the last request of its group.";
    PASID_HIGH: Bits = Bits::new(42, 4) => "Word 0: bits 19:16 of the address space.";
    EXECUTE: Bits = Bits::new(49, 1) => "Word 0: to execute.";
    READ: Bits = Bits::new(50, 1) => "Word 0: to read.";
    WRITE: Bits = Bits::new(53, 1) => "Word 0: to write.";
    USER: Bits = Bits::new(54, 1) => "Word 0: without privilege.";
    PASID_VALID: Bits = Bits::new(56, 1) => "Word 0: GN, the address space counts.";
}
