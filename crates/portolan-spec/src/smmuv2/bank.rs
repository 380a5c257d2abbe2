//! A translation context bank (IHI 0062, section 16 of the programmers' model), with AArch64
//! tables. Offsets count from the start of the bank's page.

use super::fields;

crate::bits::constants! {
    SCTLR: usize = 0x000 => "System control.";
    ACTLR: usize = 0x004 => "Auxiliary control: the implementation's.";
    RESUME: usize = 0x008 => "Answers a stalled access: [`TERMINATE`] or 0, which tries it again.";
    TCR2: usize = 0x010 => "Translation control, second register; stage 1 only.";
    TTBR0: usize = 0x020 => "Translation table base 0; 64 bits.";
    TTBR1: usize = 0x028 => "Translation table base 1; 64 bits.";
    TCR: usize = 0x030 => "Translation control.";
    CONTEXTIDR: usize = 0x034 => "An identifier for debuggers.";
    MAIR0: usize = 0x038 => "Memory attributes 0 to 3.";
    MAIR1: usize = 0x03c => "Memory attributes 4 to 7.";
    FSR: usize = 0x058 => "Fault status; cleared by writing ones.";
    FAR: usize = 0x060 => "Address of the fault; 64 bits.";
    FSYNR0: usize = 0x068 => "What kind of access it was.";
    TLBIVA: usize = 0x600 => "Invalidate by address, all levels; 64 bits.";
    TLBIASID: usize = 0x610 => "Invalidate by ASID.";
    TLBIVAL: usize = 0x620 => "Invalidate by address, the last level only; 64 bits.";
    TLBIIPAS2: usize = 0x630 => "Invalidate by second-stage address, all levels; 64 bits.";
    /// Invalidate by second-stage address, the last level only; 64 bits.
    TLBIIPAS2L: usize = 0x638;
    TLBSYNC: usize = 0x7f0 => "Begin a synchronisation.";
    TLBSTATUS: usize = 0x7f4 => "Whether one is under way.";
    SACTIVE: u32 = 1 => "Bit of [`TLBSTATUS`].";

    TERMINATE: u32 = 1 => "Value of [`RESUME`]: the access ends.";

    ASID_LSB: u32 = 48 => "Place of the ASID in [`TTBR0`], [`TLBIVA`] and [`TLBIVAL`].";
    UNIT_LG2: u32 = 12 => "Addresses of invalidations count in units of this exponent.";
    VA_BITS: u32 = 44 => "Bits of an address in [`TLBIVA`] and [`TLBIVAL`].";
    IPA_BITS: u32 = 36 => "Bits of an address in [`TLBIIPAS2`] and [`TLBIIPAS2L`].";
}

/// Bits of [`SCTLR`].
pub mod sctlr {
    crate::bits::constants! {
        M: u32 = 1 << 0 => "Translation is on.";
        TRE: u32 = 1 << 1 => "Attributes come from MAIR.";
        AFE: u32 = 1 << 2 => "The access flag is used.";
        CFRE: u32 = 1 << 5 => "Faults are reported to the device.";
        CFIE: u32 = 1 << 6 => "Faults interrupt.";
        CFCFG: u32 = 1 << 7 => "Faulting accesses stall.";
        HUPCF: u32 = 1 << 8 => "Other accesses go on while a fault is recorded.";
        ASIDPNE: u32 = 1 << 12 => "ASIDs are the unit's own.";
    }
}

/// Bits of [`ACTLR`] in an MMU-500 (DDI 0517, SMMU_CBn_ACTLR).
pub mod actlr {
    /// The page behind a page that is walked to is walked to as well.
    pub const CPRE: u32 = 1 << 1;
}

/// Fields of [`TCR`].
pub mod tcr {
    use super::fields;
    fields! {
        RES1: 31, 1 => "Reads as one for stage 2.";
        EPD1: 23, 1 => "No walks through [`super::TTBR1`]; stage 1.";
        PS: 16, 3 => "Code of the output width; stage 2.";
        TG0: 14, 2 => "Granule.";
        SH0: 12, 2 => "Shareability of walks.";
        ORGN0: 10, 2 => "Outer cacheability of walks.";
        IRGN0: 8, 2 => "Inner cacheability of walks.";
        SL0: 6, 2 => "First level; stage 2.";
        T0SZ: 0, 6 => "64 less the width of input addresses.";
    }
    crate::bits::constants! {
        WRITE_BACK: u32 = 1 => "Walks through write-back caches.";
        OUTER: u32 = 2 => "Outer shareable.";
        INNER: u32 = 3 => "Inner shareable.";
    }
}

/// Fields of [`TCR2`].
pub mod tcr2 {
    use super::fields;
    fields! {
        SEP: 15, 3 => "Where addresses are extended from.";
        AS: 4, 1 => "ASIDs of 16 bits.";
        PASIZE: 0, 3 => "Code of the output width.";
    }
    /// [`SEP`]: from the width of addresses that come in.
    pub const UPSTREAM: u32 = 7;
}

/// Bits of [`FSR`].
pub mod fsr {
    crate::bits::constants! {
        TF: u32 = 1 << 1 => "Nothing is there.";
        AFF: u32 = 1 << 2 => "The access flag is clear.";
        PF: u32 = 1 << 3 => "Not allowed.";
        EF: u32 = 1 << 4 => "An external abort.";
        TLBMCF: u32 = 1 << 5 => "Two entries for one address.";
        TLBLKF: u32 = 1 << 6 => "No room for an entry.";
        ASF: u32 = 1 << 7 => "Address size.";
        UUT: u32 = 1 << 8 => "A format that is not supported.";
        SS: u32 = 1 << 30 => "An access is stalled.";
        MULTI: u32 = 1 << 31 => "More than one.";
        FAULT: u32 = TF | AFF | PF | EF | TLBMCF | TLBLKF | ASF | UUT => "All that tell a fault.";
    }
}

/// Bit of [`FSYNR0`]: a write.
pub const FSYNR0_WRITE: u32 = 1 << 4;
