//! A translation context bank (IHI 0062, section 16 of the programmers' model), with AArch64
//! tables. Offsets count from the start of the bank's page.

use super::fields;

/// System control.
pub const SCTLR: usize = 0x000;
/// Auxiliary control: the implementation's.
pub const ACTLR: usize = 0x004;
/// Answers a stalled access: [`TERMINATE`] or 0, which tries it again.
pub const RESUME: usize = 0x008;
/// Translation control, second register; stage 1 only.
pub const TCR2: usize = 0x010;
/// Translation table base 0; 64 bits.
pub const TTBR0: usize = 0x020;
/// Translation table base 1; 64 bits.
pub const TTBR1: usize = 0x028;
/// Translation control.
pub const TCR: usize = 0x030;
/// An identifier for debuggers.
pub const CONTEXTIDR: usize = 0x034;
/// Memory attributes 0 to 3.
pub const MAIR0: usize = 0x038;
/// Memory attributes 4 to 7.
pub const MAIR1: usize = 0x03c;
/// Fault status; cleared by writing ones.
pub const FSR: usize = 0x058;
/// Address of the fault; 64 bits.
pub const FAR: usize = 0x060;
/// What kind of access it was.
pub const FSYNR0: usize = 0x068;
/// Invalidate by address, all levels; 64 bits.
pub const TLBIVA: usize = 0x600;
/// Invalidate by ASID.
pub const TLBIASID: usize = 0x610;
/// Invalidate by address, the last level only; 64 bits.
pub const TLBIVAL: usize = 0x620;
/// Invalidate by second-stage address, all levels; 64 bits.
pub const TLBIIPAS2: usize = 0x630;
/// Invalidate by second-stage address, the last level only; 64 bits.
pub const TLBIIPAS2L: usize = 0x638;
/// Begin a synchronisation.
pub const TLBSYNC: usize = 0x7f0;
/// Whether one is under way.
pub const TLBSTATUS: usize = 0x7f4;
/// Bit of [`TLBSTATUS`].
pub const SACTIVE: u32 = 1;

/// Value of [`RESUME`]: the access ends.
pub const TERMINATE: u32 = 1;

/// Place of the ASID in [`TTBR0`], [`TLBIVA`] and [`TLBIVAL`].
pub const ASID_LSB: u32 = 48;
/// Addresses of invalidations count in units of this exponent.
pub const UNIT_LG2: u32 = 12;
/// Bits of an address in [`TLBIVA`] and [`TLBIVAL`].
pub const VA_BITS: u32 = 44;
/// Bits of an address in [`TLBIIPAS2`] and [`TLBIIPAS2L`].
pub const IPA_BITS: u32 = 36;

/// Bits of [`SCTLR`].
pub mod sctlr {
    /// Translation is on.
    pub const M: u32 = 1 << 0;
    /// Attributes come from MAIR.
    pub const TRE: u32 = 1 << 1;
    /// The access flag is used.
    pub const AFE: u32 = 1 << 2;
    /// Faults are reported to the device.
    pub const CFRE: u32 = 1 << 5;
    /// Faults interrupt.
    pub const CFIE: u32 = 1 << 6;
    /// Faulting accesses stall.
    pub const CFCFG: u32 = 1 << 7;
    /// Other accesses go on while a fault is recorded.
    pub const HUPCF: u32 = 1 << 8;
    /// ASIDs are the unit's own.
    pub const ASIDPNE: u32 = 1 << 12;
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
        /// Reads as one for stage 2.
        RES1: 31, 1;
        /// No walks through [`super::TTBR1`]; stage 1.
        EPD1: 23, 1;
        /// Code of the output width; stage 2.
        PS: 16, 3;
        /// Granule.
        TG0: 14, 2;
        /// Shareability of walks.
        SH0: 12, 2;
        /// Outer cacheability of walks.
        ORGN0: 10, 2;
        /// Inner cacheability of walks.
        IRGN0: 8, 2;
        /// First level; stage 2.
        SL0: 6, 2;
        /// 64 less the width of input addresses.
        T0SZ: 0, 6;
    }
    /// Walks through write-back caches.
    pub const WRITE_BACK: u32 = 1;
    /// Outer shareable.
    pub const OUTER: u32 = 2;
    /// Inner shareable.
    pub const INNER: u32 = 3;
}

/// Fields of [`TCR2`].
pub mod tcr2 {
    use super::fields;
    fields! {
        /// Where addresses are extended from.
        SEP: 15, 3;
        /// ASIDs of 16 bits.
        AS: 4, 1;
        /// Code of the output width.
        PASIZE: 0, 3;
    }
    /// [`SEP`]: from the width of addresses that come in.
    pub const UPSTREAM: u32 = 7;
}

/// Bits of [`FSR`].
pub mod fsr {
    /// Nothing is there.
    pub const TF: u32 = 1 << 1;
    /// The access flag is clear.
    pub const AFF: u32 = 1 << 2;
    /// Not allowed.
    pub const PF: u32 = 1 << 3;
    /// An external abort.
    pub const EF: u32 = 1 << 4;
    /// Two entries for one address.
    pub const TLBMCF: u32 = 1 << 5;
    /// No room for an entry.
    pub const TLBLKF: u32 = 1 << 6;
    /// Address size.
    pub const ASF: u32 = 1 << 7;
    /// A format that is not supported.
    pub const UUT: u32 = 1 << 8;
    /// An access is stalled.
    pub const SS: u32 = 1 << 30;
    /// More than one.
    pub const MULTI: u32 = 1 << 31;
    /// All that tell a fault.
    pub const FAULT: u32 = TF | AFF | PF | EF | TLBMCF | TLBLKF | ASF | UUT;
}

/// Bit of [`FSYNR0`]: a write.
pub const FSYNR0_WRITE: u32 = 1 << 4;
