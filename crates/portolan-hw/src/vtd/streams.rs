//! Attachments of streams and their PASIDs.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, section 9.6.

use portolan::addr::InvalTag;

use super::core::Remote;
use super::structures::Structures;
use crate::chassis::book;

/// Data of an attachment's entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct To {
    /// Domain identifier.
    pub(super) id: u16,
    /// Tag of its translations; nothing when it passes through.
    pub(super) context: Option<InvalTag>,
    pub(super) remote: Option<Remote>,
}

/// A stream and a PASID.
pub(super) type Key = (u16, u32);

pub(super) type Attachment = book::Attachment<To>;

/// Attachments of all streams; a caller that has them moves streams.
pub(super) type Streams = book::Streams<Key, To, Structures>;
