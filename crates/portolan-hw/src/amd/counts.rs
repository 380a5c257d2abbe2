//! How many commands were submitted, by kind.
//!
//! *Context.* Interrupt: everything here is a value.

crate::chassis::counters! {
    /// A kind of command.
    CommandKind,
    /// Commands submitted since the unit was taken over, refused ones included.
    Counts {
        /// COMPLETION_WAIT that stores.
        Wait = "COMPLETION_WAIT";
        /// COMPLETION_WAIT that only keeps what is behind it back.
        Fence = "COMPLETION_WAIT (fence)";
        /// INVALIDATE_DEVTAB_ENTRY.
        DeviceEntry = "INVALIDATE_DEVTAB_ENTRY";
        /// INVALIDATE_INTERRUPT_TABLE.
        Interrupts = "INVALIDATE_INTERRUPT_TABLE";
        /// INVALIDATE_IOMMU_PAGES of some pages.
        Pages = "INVALIDATE_IOMMU_PAGES";
        /// INVALIDATE_IOMMU_PAGES of all pages of a domain.
        Domain = "INVALIDATE_IOMMU_PAGES (domain)";
        /// INVALIDATE_IOMMU_ALL.
        All = "INVALIDATE_IOMMU_ALL";
        /// COMPLETION_WAIT in place of a refused command.
        Replaced = "COMPLETION_WAIT (replaced)";
    }
}
