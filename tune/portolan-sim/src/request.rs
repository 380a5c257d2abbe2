//! Access that a device wants to make.

use portolan::addr::{Iova, Pasid, StreamId};

use crate::decode::AccessKind;

/// Access that a device wants to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The device.
    pub stream: StreamId,
    /// PASID of its address space, if it names one.
    pub pasid: Option<Pasid>,
    /// Device address.
    pub iova: Iova,
    /// Read or write.
    pub access: AccessKind,
}

impl Request {
    /// An access of `stream`.
    pub const fn new(
        stream: StreamId,
        pasid: Option<Pasid>,
        iova: Iova,
        access: AccessKind,
    ) -> Self {
        Self { stream, pasid, iova, access }
    }
}
