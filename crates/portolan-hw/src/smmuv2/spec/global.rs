//! Global register spaces 0 and 1 (IHI 0062, sections 9 and 10 of the programmers' model).
//!
//! Offsets of space 1 count from the start of its page.

use super::fields;

/// Configuration 0.
pub const CR0: usize = 0x000;
/// Auxiliary configuration: the implementation's.
pub const ACR: usize = 0x010;
/// Identification 0: stages, stream matching.
pub const ID0: usize = 0x020;
/// Identification 1: pages, context banks.
pub const ID1: usize = 0x024;
/// Identification 2: address sizes, table formats.
pub const ID2: usize = 0x028;
/// Identification 7: the revision.
pub const ID7: usize = 0x03c;
/// Address of a global fault; 64 bits.
pub const GFAR: usize = 0x040;
/// Global fault status; cleared by writing ones.
pub const GFSR: usize = 0x048;
/// What kind of access a global fault was.
pub const GFSYNR0: usize = 0x050;
/// Whose.
pub const GFSYNR1: usize = 0x054;
/// Invalidate by VMID.
pub const TLBIVMID: usize = 0x064;
/// Invalidate everything that is neither secure nor the hypervisor's.
pub const TLBIALLNSNH: usize = 0x068;
/// Invalidate everything of the hypervisor's.
pub const TLBIALLH: usize = 0x06c;
/// Begin a global synchronisation.
pub const TLBGSYNC: usize = 0x070;
/// Whether one is under way.
pub const TLBGSTATUS: usize = 0x074;
/// Bit of [`TLBGSTATUS`].
pub const GSACTIVE: u32 = 1;

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
    /// Accesses bypass the unit.
    pub const CLIENTPD: u32 = 1 << 0;
    /// Global faults are reported to the device.
    pub const GFRE: u32 = 1 << 1;
    /// Global faults interrupt.
    pub const GFIE: u32 = 1 << 2;
    /// Global configuration faults are reported to the device.
    pub const GCFGFRE: u32 = 1 << 4;
    /// Global configuration faults interrupt.
    pub const GCFGFIE: u32 = 1 << 5;
    /// Streams that match nothing fault.
    pub const USFCFG: u32 = 1 << 10;
    /// VMIDs are the unit's own.
    pub const VMIDPNE: u32 = 1 << 11;
    /// The unit does not listen to processors' invalidations.
    pub const PTM: u32 = 1 << 12;
}

/// Fields of [`ID0`].
pub mod id0 {
    use super::fields;
    fields! {
        /// Stage 1.
        S1TS: 30, 1;
        /// Stage 2.
        S2TS: 29, 1;
        /// Stream matching instead of indexing.
        SMS: 27, 1;
        /// Walks are coherent.
        CTTW: 14, 1;
        /// Bits of a stream index.
        NUMSIDB: 9, 4;
        /// Stream match registers.
        NUMSMRG: 0, 8;
    }
}

/// Fields of [`ID1`].
pub mod id1 {
    use super::fields;
    fields! {
        /// Pages are of 64 KiB instead of 4 KiB.
        PAGESIZE: 31, 1;
        /// One less than the exponent of the pages of each half.
        NUMPAGENDXB: 28, 3;
        /// Context banks that are of stage 2 only.
        NUMS2CB: 16, 8;
        /// Context banks.
        NUMCB: 0, 8;
    }
}

/// Fields of [`ID2`].
pub mod id2 {
    use super::fields;
    fields! {
        /// AArch64 tables with a granule of 64 KiB.
        PTFSV8_64K: 14, 1;
        /// With a granule of 16 KiB.
        PTFSV8_16K: 13, 1;
        /// With a granule of 4 KiB.
        PTFSV8_4K: 12, 1;
        /// Code of the width of addresses that come in.
        UBS: 8, 4;
        /// Code of the width of addresses that go out.
        OAS: 4, 4;
        /// Code of the width of addresses between the stages.
        IAS: 0, 4;
    }
}

/// Fields of [`ID7`].
pub mod id7 {
    use super::fields;
    fields! {
        /// The major revision: the n of rnpm.
        MAJOR: 4, 4;
        /// The minor revision: the m of rnpm.
        MINOR: 0, 4;
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
        /// It matches.
        VALID: 31, 1;
        /// Bits of the stream that do not count.
        MASK: 16, 15;
        /// The stream.
        ID: 0, 15;
    }
}

/// Fields of a stream-to-context register.
pub mod s2cr {
    use super::fields;
    fields! {
        /// Privilege of accesses.
        PRIVCFG: 24, 2;
        /// What becomes of accesses.
        TYPE: 16, 2;
        /// By which context bank they are translated.
        CBNDX: 0, 8;
    }
    /// [`TYPE`]: translated.
    pub const TRANSLATE: u32 = 0;
    /// [`TYPE`]: passed through.
    pub const BYPASS: u32 = 1;
    /// [`TYPE`]: refused.
    pub const FAULT: u32 = 2;
    /// [`PRIVCFG`]: all accesses are unprivileged.
    pub const UNPRIVILEGED: u32 = 2;
}

/// Fields of [`cbar()`].
pub mod cbar {
    use super::fields;
    fields! {
        /// Which stages.
        TYPE: 16, 2;
        /// Memory attributes where stage 2 is bypassed.
        MEMATTR: 12, 4;
        /// Shareability where stage 2 is bypassed.
        BPSHCFG: 8, 2;
        /// VMID.
        VMID: 0, 8;
    }
    /// [`TYPE`]: stage 2.
    pub const STAGE2: u32 = 0;
    /// [`TYPE`]: stage 1 with stage 2 bypassed.
    pub const STAGE1: u32 = 1;
    /// [`MEMATTR`]: write-back.
    pub const WRITE_BACK: u32 = 0xf;
    /// [`BPSHCFG`]: not shareable.
    pub const NOT_SHAREABLE: u32 = 3;
}

/// [`cba2r`]: tables are AArch64's.
pub const VA64: u32 = 1;

/// Bits of [`GFSR`].
pub mod gfsr {
    /// A stream that may not access anything.
    pub const ICF: u32 = 1 << 0;
    /// A stream that matched nothing.
    pub const USF: u32 = 1 << 1;
    /// A stream that matched more than one register.
    pub const SMCF: u32 = 1 << 2;
    /// A context bank that does not exist.
    pub const UCBF: u32 = 1 << 3;
    /// An interrupt of a context that does not exist.
    pub const UCIF: u32 = 1 << 4;
    /// An external abort.
    pub const EF: u32 = 1 << 6;
    /// Privilege.
    pub const PF: u32 = 1 << 7;
    /// More than one.
    pub const MULTI: u32 = 1 << 31;
}

/// Bit of [`GFSYNR0`]: a write.
pub const GFSYNR0_WRITE: u32 = 1 << 1;
/// Bits of [`GFSYNR1`]: the stream.
pub const GFSYNR1_STREAM: u32 = 0xffff;
