//! How many commands were submitted, by kind.
//!
//! *Context.* Interrupt: everything here is a value.

crate::chassis::counters! {
    /// A kind of command.
    CommandKind,
    /// Commands submitted since the unit was taken over, refused ones included.
    Counts {
        /// Context cache, global.
        ContextGlobal = "cc_inv_dsc (global)";
        /// Context cache, of a device.
        ContextDevice = "cc_inv_dsc (device)";
        /// IOTLB, global.
        IotlbGlobal = "iotlb_inv_dsc (global)";
        /// IOTLB, of a domain.
        IotlbDomain = "iotlb_inv_dsc (domain)";
        /// IOTLB, of pages.
        IotlbPages = "iotlb_inv_dsc (pages)";
        /// IOTLB of a PASID, all or pages.
        PasidIotlb = "p_iotlb_inv_dsc";
        /// PASID cache.
        PasidCache = "pc_inv_dsc";
        /// Device TLB, with or without PASID.
        DeviceTlb = "dev_tlb_inv_dsc";
        /// Wait.
        Wait = "inv_wait_dsc";
        /// Page-group response.
        Response = "page_grp_resp_dsc";
        /// Interrupt entry cache.
        InterruptEntries = "iec_inv_dsc";
        /// Write-buffer flush.
        WriteBuffer = "GCMD.WBF";
        /// Descriptors put in place of refused ones.
        Replaced = "inv_wait_dsc (replaced)";
    }
}
