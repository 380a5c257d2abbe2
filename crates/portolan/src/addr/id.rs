//! Identifiers that hardware and drivers pass around, each a type of its own.
//!
//! Widths are those of the widest architecture; a driver checks against what it discovered.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident: $raw:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name($raw);

        impl $name {
            /// An identifier from its number.
            #[inline]
            pub const fn new(raw: $raw) -> Self {
                Self(raw)
            }

            /// The number.
            #[inline]
            pub const fn get(self) -> $raw {
                self.0
            }
        }
    };
}

id! {
    /// Tags the translations of one first-stage table.
    Asid: u16
}
id! {
    /// Tags the translations of one second-stage table.
    Vmid: u16
}
id! {
    /// Tags the translations of one table where a single number does so for both stages.
    DomainId: u16
}
id! {
    /// Tells apart the address spaces that one device uses (20 bits).
    Pasid: u32
}
id! {
    /// Names a device to an IOMMU: a stream, or a requester.
    StreamId: u32
}
id! {
    /// What an invalidation selects by: an address space tag of whichever kind the hardware has.
    ContextId: u32
}

id! {
    /// A CPU, counted from 0.
    CpuId: u32
}

impl From<Asid> for ContextId {
    fn from(id: Asid) -> Self {
        Self(id.0.into())
    }
}

impl From<Vmid> for ContextId {
    fn from(id: Vmid) -> Self {
        Self(id.0.into())
    }
}

impl From<DomainId> for ContextId {
    fn from(id: DomainId) -> Self {
        Self(id.0.into())
    }
}
