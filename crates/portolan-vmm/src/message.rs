//! Messages about translations: the payload `struct vhost_iotlb_msg`, and the header of every message.
//!
//! The vhost-user protocol, sections "Message specification", "An IOTLB message" and `VHOST_USER_IOTLB_MSG`. All
//! numbers are little-endian here, as the hosts are for which this crate is built. Not supported: batches
//! (`VHOST_IOTLB_BATCH_BEGIN`), which only the kernel's vhost-vdpa knows.

use portolan::addr::{Iova, IovaRange};
use vm_memory::Permissions;

use crate::regions::FrontendAddr;

/// A front-end's message about translations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// `iova` is the front-end's memory from `target` on, and may be reached as `access` says.
    Update {
        /// The device's addresses.
        iova: IovaRange,
        /// First address of the memory.
        target: FrontendAddr,
        /// Access that the device has there.
        access: Permissions,
    },
    /// Translations of `iova` are not valid any more.
    Invalidate {
        /// The device's addresses.
        iova: IovaRange,
    },
}

/// A back-end's message that a translation is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// Address that was accessed.
    pub at: Iova,
    /// Access that it is for.
    pub access: Permissions,
}

impl Miss {
    /// Reads the payload of a back-end's message.
    ///
    /// # Errors
    /// See [`MessageError`].
    pub fn read(payload: &[u8]) -> Result<Self, MessageError> {
        let found = payload.len();
        let size = MessageError::Size { found };
        let payload: &[u8; Message::BYTES] = payload.try_into().map_err(|_| size)?;
        let at = payload.first_chunk().ok_or(size)?;
        match payload[25] {
            MISS => Ok(Self {
                at: Iova::new(u64::from_le_bytes(*at)),
                access: permissions(payload[24])?,
            }),
            found => Err(MessageError::Type { found }),
        }
    }
}

/// A message that says nothing sensible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// It is shorter or longer than an IOTLB message.
    #[error("an IOTLB message has {} bytes, and this one {found}", Message::BYTES)]
    Size {
        /// Its length, in bytes.
        found: usize,
    },
    /// Front-ends send updates and invalidations only, and back-ends misses.
    #[error("an IOTLB message of type {found} is not sent in this direction")]
    Type {
        /// The message's type.
        found: u8,
    },
    /// The permissions are none, or more than there are.
    #[error("an IOTLB message cannot grant access {found}")]
    Access {
        /// The message's permissions.
        found: u8,
    },
    /// The addresses are none, or go past the top of the address space.
    #[error("an IOTLB message has {bytes:#x} bytes from {start} on")]
    Range {
        /// First address.
        start: Iova,
        /// Their number.
        bytes: u64,
    },
}

/// Types of IOTLB messages.
const MISS: u8 = 1;
const UPDATE: u8 = 2;
const INVALIDATE: u8 = 3;

/// The bits of a permission.
const READ: u8 = 1;
const WRITE: u8 = 2;

impl Message {
    /// Length of the payload, in bytes.
    pub const BYTES: usize = 32;

    /// Reads the payload of a front-end's message. An invalidation that goes past the top of the address
    /// space, or is of 0 bytes, as 2^64 become in 64 bits, is one of everything from its start on.
    ///
    /// # Errors
    /// See [`MessageError`].
    pub fn read(payload: &[u8]) -> Result<Self, MessageError> {
        let found = payload.len();
        let size = MessageError::Size { found };
        let payload: &[u8; Self::BYTES] = payload.try_into().map_err(|_| size)?;
        let word = |at: usize| {
            let bytes = payload.get(at..at + 8).and_then(|b| b.try_into().ok());
            u64::from_le_bytes(bytes.unwrap_or_default())
        };
        let (start, bytes, target) = (Iova::new(word(0)), word(8), word(16));
        match payload[25] {
            UPDATE => Ok(Self::Update {
                iova: IovaRange::from_len(start, bytes)
                    .ok_or(MessageError::Range { start, bytes })?,
                target: FrontendAddr::new(target),
                access: permissions(payload[24])?,
            }),
            INVALIDATE => {
                let all = IovaRange::new(start, Iova::new(u64::MAX));
                let iova = IovaRange::from_len(start, bytes).or(all);
                let iova = iova.ok_or(MessageError::Range { start, bytes })?;
                Ok(Self::Invalidate { iova })
            }
            found => Err(MessageError::Type { found }),
        }
    }

    /// The payload of a device's message that says that a translation is missing.
    pub fn miss(at: Iova, access: Permissions) -> [u8; Self::BYTES] {
        let mut payload = [0; Self::BYTES];
        payload[..8].copy_from_slice(&at.get().to_le_bytes());
        payload[24] = bits(access);
        payload[25] = MISS;
        payload
    }

    /// The payload of a front-end's message, as [`Message::read`] takes it: for front-ends and their tests.
    pub fn payload(&self) -> [u8; Self::BYTES] {
        let (iova, target, access, kind) = match *self {
            Self::Update { iova, target, access } => (iova, target.get(), bits(access), UPDATE),
            Self::Invalidate { iova } => (iova, 0, 0, INVALIDATE),
        };
        let mut payload = [0; Self::BYTES];
        payload[..8].copy_from_slice(&iova.start().get().to_le_bytes());
        let bytes = iova.len_minus_one().wrapping_add(1);
        payload[8..16].copy_from_slice(&bytes.to_le_bytes());
        payload[16..24].copy_from_slice(&target.to_le_bytes());
        payload[24] = access;
        payload[25] = kind;
        payload
    }
}

fn permissions(found: u8) -> Result<Permissions, MessageError> {
    match found {
        READ => Ok(Permissions::Read),
        WRITE => Ok(Permissions::Write),
        3 => Ok(Permissions::ReadWrite),
        _ => Err(MessageError::Access { found }),
    }
}

/// An access of no kind is asked for as a read: there is no other question.
fn bits(access: Permissions) -> u8 {
    match access {
        Permissions::No | Permissions::Read => READ,
        Permissions::Write => WRITE,
        Permissions::ReadWrite => READ | WRITE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, last: u64) -> IovaRange {
        IovaRange::new(Iova::new(start), Iova::new(last)).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let update = Message::Update {
            iova: range(0x1000, 0x2fff),
            target: FrontendAddr::new(0x7f00_0000_1000),
            access: Permissions::Write,
        };
        let all = Message::Invalidate { iova: range(0, u64::MAX) };
        let top = Message::Invalidate { iova: range(u64::MAX - 0xfff, u64::MAX) };
        for message in [update, all, top] {
            assert_eq!(Message::read(&message.payload()), Ok(message));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let good = Message::Update {
            iova: range(0x1000, 0x1fff),
            target: FrontendAddr::new(0),
            access: Permissions::Read,
        };
        let with = |at: usize, bytes: &[u8]| {
            let mut payload = good.payload();
            payload[at..at + bytes.len()].copy_from_slice(bytes);
            Message::read(&payload)
        };
        for found in [0, 1, 4, 5, 6, 255] {
            assert_eq!(with(25, &[found]), Err(MessageError::Type { found }));
        }
        for found in [0, 4, 255] {
            assert_eq!(with(24, &[found]), Err(MessageError::Access { found }));
        }
        for bytes in [0, u64::MAX, u64::MAX - 0xfff + 1] {
            let start = Iova::new(0x1000);
            let found = with(8, &bytes.to_le_bytes());
            assert_eq!(found, Err(MessageError::Range { start, bytes }));
        }
        for found in [0, 31, 33, 4096] {
            let payload = vec![2; found];
            assert_eq!(Message::read(&payload), Err(MessageError::Size { found }));
        }
    }

    #[test]
    fn an_invalidation_past_the_top_is_of_all_that_is_left() {
        let mut payload = Message::Invalidate { iova: range(0x1000, 0x1fff) }.payload();
        for bytes in [0, u64::MAX] {
            payload[8..16].copy_from_slice(&bytes.to_le_bytes());
            let iova = range(0x1000, u64::MAX);
            assert_eq!(Message::read(&payload), Ok(Message::Invalidate { iova }));
        }
    }
}
