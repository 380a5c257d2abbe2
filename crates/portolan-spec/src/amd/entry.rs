//! Device table entries (2.2.2.1): four words each. Words 0 and 1 are about memory, word 2 is about
//! interrupts, but for GuestPagingMode; word 3 is reserved.

use super::Bits;

crate::bits::constants! {
    WORDS: usize = 4 => "Words of an entry.";
    LG2_BYTES: u32 = 5 => "Bytes of an entry, as an exponent.";

    V: u64 = 1 => "Word 0: the entry counts. Without it, all accesses pass.";
    TV: u64 = 1 << 1 => "Word 0: the fields about translation count.";
    /// Word 0: HAD, marks that the unit sets in leaves of host tables: none, 1 for accessed, 3 for accessed and dirty.
    MARKS: Bits = Bits::new(7, 2);
    /// Word 0: levels of the tables; none: addresses are not translated.
    MODE: Bits = Bits::new(9, 3);
    /// Word 0: PPR, the device may send page requests, where the unit decides that for each stream (EPHSup).
    REQUESTS: u64 = 1 << 52;
    GUEST_DEFAULT: u64 = 1 << 54 => "Word 0: GIoV, accesses without a PASID are those of PASID 0.";
    GUEST: u64 = 1 << 55 => "Word 0: GV, guest tables are used.";
    /// Word 0: GLX, levels of the GCR3 table, less one.
    GUEST_LEVELS: Bits = Bits::new(56, 2);
    /// Word 0: bits 14:12 of the GCR3 table's address.
    GUEST_ROOT_LOW: Bits = Bits::new(58, 3);
    IR: u64 = 1 << 61 => "Word 0: reads are let through.";
    IW: u64 = 1 << 62 => "Word 0: writes are let through.";
    DOMAIN: Bits = Bits::new(0, 16) => "Word 1: domain.";
    /// Word 1: bits 30:15 of the GCR3 table's address.
    GUEST_ROOT_MIDDLE: Bits = Bits::new(16, 16);
    DEVICE_TLB: u64 = 1 << 32 => "Word 1: I, the device may keep translations.";
    /// Word 1: SysMgt, treatment of messages in the system management address range.
    SYSTEM_MANAGEMENT: Bits = Bits::new(40, 2);
    /// Word 1: bits 51:31 of the GCR3 table's address.
    GUEST_ROOT_HIGH: Bits = Bits::new(43, 21);

    /// Word 2: IV, the interrupt table counts. Without it, interrupts pass unmapped.
    INTERRUPTS_VALID: u64 = 1;
    /// Word 2: IntTabLen, the number of entries of the interrupt table as an exponent, up to 11.
    INTERRUPT_ENTRIES: Bits = Bits::new(1, 4);
    /// Word 2: bits 51:6 of the interrupt table's address.
    INTERRUPT_TABLE: u64 = 0x000f_ffff_ffff_ffc0;
    /// Word 2: GuestPagingMode, levels of guest tables, less four.
    GUEST_PAGING: Bits = Bits::new(54, 2);
    INIT_PASS: u64 = 1 << 56 => "Word 2: InitPass, INIT interrupts pass.";
    EXTERNAL_PASS: u64 = 1 << 57 => "Word 2: EIntPass, external interrupts pass.";
    NMI_PASS: u64 = 1 << 58 => "Word 2: NMIPass, non-maskable interrupts pass.";
    /// Word 2: IntCtl, treatment of fixed and arbitrated interrupts.
    INTERRUPT_CONTROL: Bits = Bits::new(60, 2);
    /// Value of [`INTERRUPT_CONTROL`]: they are remapped by the interrupt table.
    REMAPPED: u64 = 2;
    LINT0_PASS: u64 = 1 << 62 => "Word 2: Lint0Pass, legacy interrupts of LINT0 pass.";
    LINT1_PASS: u64 = 1 << 63 => "Word 2: Lint1Pass, legacy interrupts of LINT1 pass.";
}
