//! How many registers were written, by kind.
//!
//! *Context.* Interrupt: everything here is a value.

crate::chassis::counters! {
    /// A kind of register write.
    WriteKind,
    /// Writes since the unit was taken over.
    WriteCounts {
        /// Invalidation by address, all levels.
        TlbiVa = "TLBIVA";
        /// Invalidation by address, the last level only.
        TlbiVal = "TLBIVAL";
        /// Invalidation by ASID.
        TlbiAsid = "TLBIASID";
        /// Invalidation by second-stage address, all levels.
        TlbiIpas2 = "TLBIIPAS2";
        /// Invalidation by second-stage address, the last level only.
        TlbiIpas2l = "TLBIIPAS2L";
        /// Invalidation by VMID.
        TlbiVmid = "TLBIVMID";
        /// Invalidation of everything.
        TlbiAllNsnh = "TLBIALLNSNH";
        /// Invalidation of everything of the hypervisor's.
        TlbiAllH = "TLBIALLH";
        /// Synchronisation of a context bank.
        TlbSync = "TLBSYNC";
        /// Synchronisation of all.
        TlbGlobalSync = "sTLBGSYNC";
        /// Stream match registers.
        StreamMatch = "SMR";
        /// Stream-to-context registers.
        StreamToContext = "S2CR";
        /// Faults cleared, stalls answered.
        Fault = "FSR";
        /// Everything else.
        Configuration = "configuration";
    }
}
