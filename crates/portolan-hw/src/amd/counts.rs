//! Numbers of submitted commands, by kind.
//!
//! *Context.* Interrupt: everything here is a value.

crate::chassis::counters! {
    /// A kind of command.
    CommandKind,
    /// Commands submitted since the unit was taken over, refused ones included.
    Counts {
        Wait = "COMPLETION_WAIT" => "COMPLETION_WAIT that stores.";
        /// COMPLETION_WAIT that only holds back the commands behind it.
        Fence = "COMPLETION_WAIT (fence)";
        DeviceEntry = "INVALIDATE_DEVTAB_ENTRY" => "INVALIDATE_DEVTAB_ENTRY.";
        Interrupts = "INVALIDATE_INTERRUPT_TABLE" => "INVALIDATE_INTERRUPT_TABLE.";
        Pages = "INVALIDATE_IOMMU_PAGES" => "INVALIDATE_IOMMU_PAGES of some pages.";
        /// INVALIDATE_IOMMU_PAGES of all pages of a domain.
        Domain = "INVALIDATE_IOMMU_PAGES (domain)";
        All = "INVALIDATE_IOMMU_ALL" => "INVALIDATE_IOMMU_ALL.";
        Replaced = "COMPLETION_WAIT (replaced)" => "COMPLETION_WAIT in place of a refused command.";
    }
}
