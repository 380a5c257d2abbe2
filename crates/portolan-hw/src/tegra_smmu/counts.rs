//! How many registers were written, by what the write does.
//!
//! *Context.* Interrupt: everything here is a value.

crate::chassis::counters! {
    /// What an access to a register does.
    WriteKind,
    /// Accesses since the unit was taken over.
    Counts {
        /// SMMU_CONFIG, TLB_CONFIG and PTC_CONFIG.
        Config = "CONFIG";
        /// PTB_ASID: which directory is written next.
        SelectAsid = "PTB_ASID";
        /// PTB_DATA: a directory.
        Directory = "PTB_DATA";
        /// The ASID register of a swgroup.
        SwgroupAsid = "SWGROUP_ASID";
        /// Enable bits of clients.
        Enables = "TRANSLATION_ENABLE";
        /// TLB_FLUSH of everything.
        TlbAll = "TLB_FLUSH_ALL";
        /// TLB_FLUSH of an address space.
        TlbAsid = "TLB_FLUSH_ASID";
        /// TLB_FLUSH of 4 MiB of an address space.
        TlbSection = "TLB_FLUSH_SECTION";
        /// TLB_FLUSH of 16 KiB of an address space.
        TlbGroup = "TLB_FLUSH_GROUP";
        /// PTC_FLUSH of everything.
        PtcAll = "PTC_FLUSH_ALL";
        /// PTC_FLUSH_HI: the upper address bits of a line.
        PtcHigh = "PTC_FLUSH_HI";
        /// PTC_FLUSH of a line.
        PtcLine = "PTC_FLUSH_LINE";
        /// INTSTATUS: a fault is acknowledged.
        Acknowledge = "INTSTATUS";
        /// PTB_ASID read, so that what was written before is complete.
        ReadBack = "READ_BACK";
    }
}

impl Counts {
    /// Writes of all kinds.
    pub fn writes(&self) -> u64 {
        self.total() - self.of(WriteKind::ReadBack)
    }
}
