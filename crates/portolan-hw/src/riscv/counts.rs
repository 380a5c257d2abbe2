//! How many commands were submitted, by kind.
//!
//! *Context.* Interrupt: everything here is a value.

crate::chassis::counters! {
    /// A kind of command.
    CommandKind,
    /// Commands submitted since the unit was taken over, refused ones included.
    Counts {
        /// IOFENCE.C that stores.
        Wait = "IOFENCE.C";
        /// IOFENCE.C that only keeps what is behind it back.
        Fence = "IOFENCE.C (fence)";
        /// IODIR.INVAL_DDT of one device.
        Device = "IODIR.INVAL_DDT";
        /// IODIR.INVAL_DDT of all devices.
        Devices = "IODIR.INVAL_DDT (all)";
        /// IODIR.INVAL_PDT.
        Process = "IODIR.INVAL_PDT";
        /// IOTINVAL.VMA of addresses.
        Pages = "IOTINVAL.VMA";
        /// IOTINVAL.VMA of a tag.
        Context = "IOTINVAL.VMA (context)";
        /// IOTINVAL.VMA of all tags without a second stage.
        All = "IOTINVAL.VMA (all)";
        /// IOTINVAL.GVMA of addresses.
        GuestPages = "IOTINVAL.GVMA";
        /// IOTINVAL.GVMA of a tag.
        Guest = "IOTINVAL.GVMA (context)";
        /// IOTINVAL.GVMA of all tags.
        Guests = "IOTINVAL.GVMA (all)";
        /// ATS.INVAL.
        DeviceTlb = "ATS.INVAL";
        /// ATS.PRGR.
        Response = "ATS.PRGR";
        /// IOFENCE.C in place of a refused command.
        Replaced = "IOFENCE.C (replaced)";
    }
}
