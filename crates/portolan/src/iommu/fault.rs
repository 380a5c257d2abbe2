//! Records of the accesses that a unit refused, in no vendor's encoding.
//!
//! Every field came from hardware: none of it is trusted to name something that exists.

use core::fmt;

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
///
/// ```
/// use portolan::addr::{Iova, StreamId};
/// use portolan::iommu::{FaultAccess, FaultEvent, FaultReason, FaultRecord};
///
/// let event = FaultEvent::Fault(FaultRecord {
///     stream: StreamId::new(0x28),
///     pasid: None,
///     iova: Some(Iova::new(0x4001_7e00)),
///     access: Some(FaultAccess::Write),
///     reason: FaultReason::NotMapped,
/// });
/// let said = "stream 0x28: write at 0x40017e00 refused: nothing is mapped there";
/// assert_eq!(event.to_string(), said);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultEvent {
    /// An access was refused.
    Fault(FaultRecord),
    /// Records were lost because there was no room for them.
    Lost,
}

impl fmt::Display for FaultAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

impl fmt::Display for InterruptRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotRemapped => "it names no entry, but a CPU and a vector",
            Self::Absent => "the entry is not in use",
            Self::Source => "the entry is for another source",
            Self::Malformed => "the message or the entry is malformed",
            Self::External => "the unit could not read the entry",
        })
    }
}

impl fmt::Display for FaultReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotMapped => "nothing is mapped there",
            Self::Permission => "the mapping is not for this kind of access",
            Self::Blocked => "the stream is blocked or not set up",
            Self::AddressSize => "the address is wider than the tables translate or point at",
            Self::Configuration => "the stream's configuration is malformed",
            Self::Table => "a page-table entry is malformed",
            Self::External => "the unit could not read its own structures",
            Self::Interrupt { index: Some(index), refusal } => {
                return write!(f, "interrupt message for entry {index}: {refusal}");
            }
            Self::Interrupt { index: None, refusal } => {
                return write!(f, "interrupt message: {refusal}");
            }
            Self::Other { code } => return write!(f, "the unit's code {code:#x}"),
        })
    }
}

impl fmt::Display for FaultRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {:#x}", self.stream.get())?;
        if let Some(pasid) = self.pasid {
            write!(f, ", PASID {}", pasid.get())?;
        }
        match self.access {
            Some(access) => write!(f, ": {access}")?,
            None => f.write_str(": access")?,
        }
        if let Some(iova) = self.iova {
            write!(f, " at {iova}")?;
        }
        write!(f, " refused: {}", self.reason)
    }
}

impl fmt::Display for FaultEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(record) => record.fmt(f),
            Self::Lost => f.write_str("records of refused accesses were lost, for want of room"),
        }
    }
}
