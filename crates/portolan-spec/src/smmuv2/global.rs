//! Global register spaces 0 and 1 (IHI 0062, sections 9 and 10 of the programmers' model).
//!
//! Offsets of space 1 count from the start of its page.

use super::fields;

crate::bits::constants! {
    CR0: usize = 0x000 => "Configuration 0.";
    ACR: usize = 0x010 => "Auxiliary configuration: the implementation's.";
    ID0: usize = 0x020 => "Identification 0: stages, stream matching.";
    ID1: usize = 0x024 => "Identification 1: pages, context banks.";
    ID2: usize = 0x028 => "Identification 2: address sizes, table formats.";
    ID7: usize = 0x03c => "Identification 7: the revision.";
    GFAR: usize = 0x040 => "Address of a global fault; 64 bits.";
    GFSR: usize = 0x048 => "Global fault status; cleared by writing ones.";
    GFSYNR0: usize = 0x050 => "What kind of access a global fault was.";
    GFSYNR1: usize = 0x054 => "Whose.";
    TLBIVMID: usize = 0x064 => "Invalidate by VMID.";
    /// Invalidate everything that is neither secure nor the hypervisor's.
    TLBIALLNSNH: usize = 0x068;
    TLBIALLH: usize = 0x06c => "Invalidate everything of the hypervisor's.";
    TLBGSYNC: usize = 0x070 => "Begin a global synchronisation.";
    TLBGSTATUS: usize = 0x074 => "Whether one is under way.";
    GSACTIVE: u32 = 1 => "Bit of [`TLBGSTATUS`].";
}

/// Stream match register `n`.
pub const fn smr(n: usize) -> usize {
    0x800 + 4 * n
}

/// Stream-to-context register `n`.
pub const fn s2cr(n: usize) -> usize {
    0xc00 + 4 * n
}

/// Most stream-to-context registers that there is room for.
pub const MOST_STREAMS: u32 = 128;

/// Space 1: attributes of context bank `n`.
pub const fn cbar(n: usize) -> usize {
    4 * n
}

/// Space 1: whose fault context bank `n` recorded.
pub const fn cbfrsynra(n: usize) -> usize {
    0x400 + 4 * n
}

/// Space 1: more attributes of context bank `n`.
pub const fn cba2r(n: usize) -> usize {
    0x800 + 4 * n
}

/// Fields of [`CR0`].
pub mod cr0 {
    crate::bits::constants! {
        CLIENTPD: u32 = 1 << 0 => "Accesses bypass the unit.";
        GFRE: u32 = 1 << 1 => "Global faults are reported to the device.";
        GFIE: u32 = 1 << 2 => "Global faults interrupt.";
        GCFGFRE: u32 = 1 << 4 => "Global configuration faults are reported to the device.";
        GCFGFIE: u32 = 1 << 5 => "Global configuration faults interrupt.";
        USFCFG: u32 = 1 << 10 => "Streams that match nothing fault.";
        VMIDPNE: u32 = 1 << 11 => "VMIDs are the unit's own.";
        PTM: u32 = 1 << 12 => "The unit does not listen to processors' invalidations.";
    }
}

/// Fields of [`ID0`].
pub mod id0 {
    use super::fields;
    fields! {
        S1TS: 30, 1 => "Stage 1.";
        S2TS: 29, 1 => "Stage 2.";
        SMS: 27, 1 => "Stream matching instead of indexing.";
        CTTW: 14, 1 => "Walks are coherent.";
        NUMSIDB: 9, 4 => "Bits of a stream index.";
        NUMSMRG: 0, 8 => "Stream match registers.";
    }
}

/// Fields of [`ID1`].
pub mod id1 {
    use super::fields;
    fields! {
        PAGESIZE: 31, 1 => "Pages are of 64 KiB instead of 4 KiB.";
        NUMPAGENDXB: 28, 3 => "One less than the exponent of the pages of each half.";
        NUMS2CB: 16, 8 => "Context banks that are of stage 2 only.";
        NUMCB: 0, 8 => "Context banks.";
    }
}

/// Fields of [`ID2`].
pub mod id2 {
    use super::fields;
    fields! {
        PTFSV8_64K: 14, 1 => "AArch64 tables with a granule of 64 KiB.";
        PTFSV8_16K: 13, 1 => "With a granule of 16 KiB.";
        PTFSV8_4K: 12, 1 => "With a granule of 4 KiB.";
        UBS: 8, 4 => "Code of the width of addresses that come in.";
        OAS: 4, 4 => "Code of the width of addresses that go out.";
        IAS: 0, 4 => "Code of the width of addresses between the stages.";
    }
}

/// Fields of [`ID7`].
pub mod id7 {
    use super::fields;
    fields! {
        MAJOR: 4, 4 => "The major revision: the n of rnpm.";
        MINOR: 0, 4 => "The minor revision: the m of rnpm.";
    }
}

/// Bits of [`ACR`] in an MMU-500 (DDI 0517, SMMU_sACR).
pub mod acr {
    /// The auxiliary registers of context banks ignore writes; from r2p0 on.
    pub const CACHE_LOCK: u32 = 1 << 26;
    /// Streams whose register passes them through get entries of the TLB.
    pub const S2CRB_TLBEN: u32 = 1 << 10;
    /// Streams that match no register get entries of the TLB.
    pub const SMTNMB_TLBEN: u32 = 1 << 8;
}

/// Fields of a stream match register.
pub mod smr {
    use super::fields;
    fields! {
        VALID: 31, 1 => "It matches.";
        MASK: 16, 15 => "Bits of the stream that do not count.";
        ID: 0, 15 => "The stream.";
    }
}

/// Fields of a stream-to-context register.
pub mod s2cr {
    use super::fields;
    fields! {
        PRIVCFG: 24, 2 => "Privilege of accesses.";
        TYPE: 16, 2 => "What becomes of accesses.";
        CBNDX: 0, 8 => "By which context bank they are translated.";
    }
    crate::bits::constants! {
        TRANSLATE: u32 = 0 => "[`TYPE`]: translated.";
        BYPASS: u32 = 1 => "[`TYPE`]: passed through.";
        FAULT: u32 = 2 => "[`TYPE`]: refused.";
        UNPRIVILEGED: u32 = 2 => "[`PRIVCFG`]: all accesses are unprivileged.";
    }
}

/// Fields of [`cbar()`].
pub mod cbar {
    use super::fields;
    fields! {
        TYPE: 16, 2 => "Which stages.";
        MEMATTR: 12, 4 => "Memory attributes where stage 2 is bypassed.";
        BPSHCFG: 8, 2 => "Shareability where stage 2 is bypassed.";
        VMID: 0, 8 => "VMID.";
    }
    crate::bits::constants! {
        STAGE2: u32 = 0 => "[`TYPE`]: stage 2.";
        STAGE1: u32 = 1 => "[`TYPE`]: stage 1 with stage 2 bypassed.";
        WRITE_BACK: u32 = 0xf => "[`MEMATTR`]: write-back.";
        NOT_SHAREABLE: u32 = 3 => "[`BPSHCFG`]: not shareable.";
    }
}

/// [`cba2r`]: tables are AArch64's.
pub const VA64: u32 = 1;

/// Bits of [`GFSR`].
pub mod gfsr {
    crate::bits::constants! {
        ICF: u32 = 1 << 0 => "A stream that may not access anything.";
        USF: u32 = 1 << 1 => "A stream that matched nothing.";
        SMCF: u32 = 1 << 2 => "A stream that matched more than one register.";
        UCBF: u32 = 1 << 3 => "A context bank that does not exist.";
        UCIF: u32 = 1 << 4 => "An interrupt of a context that does not exist.";
        EF: u32 = 1 << 6 => "An external abort.";
        PF: u32 = 1 << 7 => "Privilege.";
        MULTI: u32 = 1 << 31 => "More than one.";
    }
}

/// Bit of [`GFSYNR0`]: a write.
pub const GFSYNR0_WRITE: u32 = 1 << 1;
/// Bits of [`GFSYNR1`]: the stream.
pub const GFSYNR1_STREAM: u32 = 0xffff;
