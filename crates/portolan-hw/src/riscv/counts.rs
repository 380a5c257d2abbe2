//! Numbers of submitted commands, by kind.
//!
//! *Context.* Interrupt: everything here is a value.

crate::chassis::counters! {
    /// A kind of command.
    CommandKind,
    /// Commands submitted since the unit was taken over, refused ones included.
    Counts {
        Wait = "IOFENCE.C" => "IOFENCE.C that stores.";
        Fence = "IOFENCE.C (fence)" => "IOFENCE.C that only keeps what is behind it back.";
        Device = "IODIR.INVAL_DDT" => "IODIR.INVAL_DDT of one device.";
        Devices = "IODIR.INVAL_DDT (all)" => "IODIR.INVAL_DDT of all devices.";
        Process = "IODIR.INVAL_PDT" => "IODIR.INVAL_PDT.";
        Pages = "IOTINVAL.VMA" => "IOTINVAL.VMA of addresses.";
        Context = "IOTINVAL.VMA (context)" => "IOTINVAL.VMA of a tag.";
        Both = "IOTINVAL.VMA (guest)" => "IOTINVAL.VMA of all tags whose second stage has a tag.";
        All = "IOTINVAL.VMA (all)" => "IOTINVAL.VMA of all tags without a second stage.";
        GuestPages = "IOTINVAL.GVMA" => "IOTINVAL.GVMA of addresses.";
        Guest = "IOTINVAL.GVMA (context)" => "IOTINVAL.GVMA of a tag.";
        Guests = "IOTINVAL.GVMA (all)" => "IOTINVAL.GVMA of all tags.";
        DeviceTlb = "ATS.INVAL" => "ATS.INVAL.";
        Response = "ATS.PRGR" => "ATS.PRGR.";
        Replaced = "IOFENCE.C (replaced)" => "IOFENCE.C in place of a refused command.";
    }
}
