//! Numbers of submitted commands, by kind.
//!
//! *Context.* Interrupt: everything here is a value.

crate::chassis::counters! {
    /// A kind of command.
    CommandKind,
    /// Commands submitted since the unit was taken over, refused ones included.
    Counts {
        ContextGlobal = "cc_inv_dsc (global)" => "Context cache, global.";
        ContextDevice = "cc_inv_dsc (device)" => "Context cache, of a device.";
        IotlbGlobal = "iotlb_inv_dsc (global)" => "IOTLB, global.";
        IotlbDomain = "iotlb_inv_dsc (domain)" => "IOTLB, of a domain.";
        IotlbPages = "iotlb_inv_dsc (pages)" => "IOTLB, of pages.";
        PasidIotlb = "p_iotlb_inv_dsc" => "IOTLB of a PASID, all or pages.";
        PasidCache = "pc_inv_dsc" => "PASID cache.";
        DeviceTlb = "dev_tlb_inv_dsc" => "Device TLB, with or without PASID.";
        Wait = "inv_wait_dsc" => "Wait.";
        Response = "page_grp_resp_dsc" => "Page-group response.";
        InterruptEntries = "iec_inv_dsc" => "Interrupt entry cache.";
        WriteBuffer = "GCMD.WBF" => "Write-buffer flush.";
        Replaced = "inv_wait_dsc (replaced)" => "Descriptors put in place of refused ones.";
    }
}
