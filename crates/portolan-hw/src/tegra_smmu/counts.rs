//! Numbers of register writes, by their effect.
//!
//! *Context.* Interrupt: everything here is a value.

crate::chassis::counters! {
    /// Effect of an access to a register.
    WriteKind,
    /// Accesses since the unit was taken over.
    Counts {
        Config = "CONFIG" => "SMMU_CONFIG, TLB_CONFIG and PTC_CONFIG.";
        SelectAsid = "PTB_ASID" => "PTB_ASID: which directory is written next.";
        Directory = "PTB_DATA" => "PTB_DATA: a directory.";
        SwgroupAsid = "SWGROUP_ASID" => "The ASID register of a swgroup.";
        Enables = "TRANSLATION_ENABLE" => "Enable bits of clients.";
        TlbAll = "TLB_FLUSH_ALL" => "TLB_FLUSH of everything.";
        TlbAsid = "TLB_FLUSH_ASID" => "TLB_FLUSH of an address space.";
        TlbSection = "TLB_FLUSH_SECTION" => "TLB_FLUSH of 4 MiB of an address space.";
        TlbGroup = "TLB_FLUSH_GROUP" => "TLB_FLUSH of 16 KiB of an address space.";
        PtcAll = "PTC_FLUSH_ALL" => "PTC_FLUSH of everything.";
        PtcHigh = "PTC_FLUSH_HI" => "PTC_FLUSH_HI: the upper address bits of a line.";
        PtcLine = "PTC_FLUSH_LINE" => "PTC_FLUSH of a line.";
        Acknowledge = "INTSTATUS" => "INTSTATUS: a fault is acknowledged.";
        ReadBack = "READ_BACK" => "PTB_ASID read, so that what was written before is complete.";
    }
}

impl Counts {
    /// Writes of all kinds.
    pub fn writes(&self) -> u64 {
        self.total() - self.of(WriteKind::ReadBack)
    }
}
