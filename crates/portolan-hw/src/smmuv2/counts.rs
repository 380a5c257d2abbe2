//! Numbers of register writes, by kind.
//!
//! *Context.* Interrupt: everything here is a value.

crate::chassis::counters! {
    /// A kind of register write.
    WriteKind,
    /// Writes since the unit was taken over.
    WriteCounts {
        TlbiVa = "TLBIVA" => "Invalidation by address, all levels.";
        TlbiVal = "TLBIVAL" => "Invalidation by address, the last level only.";
        TlbiAsid = "TLBIASID" => "Invalidation by ASID.";
        TlbiIpas2 = "TLBIIPAS2" => "Invalidation by second-stage address, all levels.";
        TlbiIpas2l = "TLBIIPAS2L" => "Invalidation by second-stage address, the last level only.";
        TlbiVmid = "TLBIVMID" => "Invalidation by VMID.";
        TlbiAllNsnh = "TLBIALLNSNH" => "Invalidation of everything.";
        TlbiAllH = "TLBIALLH" => "Invalidation of everything of the hypervisor's.";
        TlbSync = "TLBSYNC" => "Synchronisation of a context bank.";
        TlbGlobalSync = "sTLBGSYNC" => "Synchronisation of all.";
        StreamMatch = "SMR" => "Stream match registers.";
        StreamToContext = "S2CR" => "Stream-to-context registers.";
        Fault = "FSR" => "Faults cleared, stalls answered.";
        Configuration = "configuration" => "Everything else.";
    }
}
