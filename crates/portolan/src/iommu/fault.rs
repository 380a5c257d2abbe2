//! Records of the accesses that a unit refused, in no vendor's encoding.
//!
//! Every field came from hardware: none of it is trusted to name something that exists.

use crate::addr::{Iova, Pasid, StreamId};

/// Kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultAccess {
    /// A read.
    Read,
    /// A write.
    Write,
}

/// Reason of a refused access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultReason {
    /// Nothing is mapped there.
    NotMapped,
    /// Something is mapped, but not for this kind of access.
    Permission,
    /// The stream is blocked or not set up.
    Blocked,
    /// The address is wider than the tables translate or point at.
    AddressSize,
    /// The stream's configuration is malformed.
    Configuration,
    /// A page-table entry is malformed.
    Table,
    /// The unit could not read its own structures.
    External,
    /// It was an interrupt message, and is not let through.
    Interrupt {
        /// The index that it named, if it named one.
        index: Option<u16>,
        /// The reason that the unit recorded.
        refusal: InterruptRefusal,
    },
    /// Another, by the unit's own code.
    Other {
        /// The code.
        code: u32,
    },
}

/// Reason of a refused interrupt message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InterruptRefusal {
    /// It chooses CPU and vector itself, instead of naming an entry.
    NotRemapped,
    /// It names no entry in use.
    Absent,
    /// It names an entry that another source may use.
    Source,
    /// The message or the entry is malformed.
    Malformed,
    /// The unit could not read the entry.
    External,
}

/// One refused access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FaultRecord {
    /// The stream of the device that made the access.
    pub stream: StreamId,
    /// The PASID of the access, if the device sent one.
    pub pasid: Option<Pasid>,
    /// The address of the access, if the reason has one; units may round it down to a page.
    pub iova: Option<Iova>,
    /// The kind of access, if the unit recorded it.
    pub access: Option<FaultAccess>,
    /// The reason that the unit recorded.
    pub reason: FaultReason,
}

/// One thing that a unit has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultEvent {
    /// An access was refused.
    Fault(FaultRecord),
    /// Records were lost because there was no room for them.
    Lost,
}
