//! The front-end's half of a vhost-user device behind a virtual IOMMU: misses are answered, and what is unmapped is
//! invalidated in the back-end before the guest is answered.
//!
//! The vhost-user protocol, sections "IOMMU support", `VHOST_USER_IOTLB_MSG` and `VHOST_USER_BACKEND_IOTLB_MSG`. Not
//! supported: back-ends without `VHOST_USER_PROTOCOL_F_REPLY_ACK`, which do not say when an invalidation is done, and
//! other messages of the back-end's channel, which are refused.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use portolan::addr::{Iova, IovaRange, PhysAddr};
use vm_memory::Permissions;

use crate::backend::{WireError, receive, reply};
use crate::iotlb::EVERYTHING;
use crate::message::{Message, MessageError, Miss};
use crate::regions::{FrontendAddr, MemoryRegion, Regions, RegionsError};
use crate::viommu::{Grant, Listener, Mapping};

/// Number of the message about translations, to a back-end and from one.
const TO_BACKEND: u32 = 22;
const FROM_BACKEND: u32 = 1;
/// Flags of headers: the version, a reply, and one that is asked for.
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
/// All addresses, as no message of one range says them: a length of 2^64 bytes is 0 in 64 bits.
const HALVES: [IovaRange; 2] = {
    let middle = u64::MAX >> 1;
    let low = IovaRange::new(Iova::new(0), Iova::new(middle));
    let high = IovaRange::new(Iova::new(middle + 1), Iova::new(u64::MAX));
    [low.unwrap(), high.unwrap()]
};
/// Values of replies.
const DONE: u64 = 0;
const REFUSED: u64 = 1;

/// Connection to a back-end, for messages about translations.
///
/// A monitor whose other messages take the same socket implements it with the lock that those take.
pub trait BackendChannel: fmt::Debug + Send {
    /// Sends a message with `payload`, and returns once the back-end has acknowledged it.
    ///
    /// # Errors
    /// If it has not: after such an error the back-end may keep translations, and is not to be used any more.
    fn send(&mut self, payload: &[u8; Message::BYTES]) -> io::Result<()>;
}

/// A socket of its own; its read timeout limits the wait. It is shut down after an error, since a late
/// acknowledgement would be taken for that of the next message.
impl BackendChannel for UnixStream {
    fn send(&mut self, payload: &[u8; Message::BYTES]) -> io::Result<()> {
        let sent = exchange(self, payload);
        if sent.is_err() {
            // The back-end may have closed it before.
            let _ = self.shutdown(Shutdown::Both);
        }
        sent
    }
}

fn exchange(stream: &mut UnixStream, payload: &[u8; Message::BYTES]) -> io::Result<()> {
    let header = [TO_BACKEND, VERSION | NEED_REPLY, Message::BYTES as u32].map(u32::to_le_bytes);
    stream.write_all(&[&header.concat()[..], payload].concat())?;
    let mut acknowledged = [0; 20];
    stream.read_exact(&mut acknowledged)?;
    let header = [TO_BACKEND, VERSION | REPLY, 8].map(u32::to_le_bytes).concat();
    match [&header[..], &DONE.to_le_bytes()].concat() == acknowledged {
        true => Ok(()),
        false => Err(io::Error::other("the back-end has not carried out a message")),
    }
}

/// Reason why a miss is refused.
#[derive(Debug, thiserror::Error)]
pub enum MissError {
    /// The message makes no sense.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The guest has not granted it.
    #[error("{at} is not mapped for this access")]
    NotGranted {
        /// The address.
        at: Iova,
    },
    /// It is granted, and leads to no memory that the back-end has.
    #[error("{at} leads to {target}, which is not in the back-end's memory")]
    NotMemory {
        /// The address.
        at: Iova,
        /// Address in the guest that it leads to.
        target: PhysAddr,
    },
    /// The back-end was not reached.
    #[error("the translation was not sent")]
    Channel(#[source] io::Error),
}

/// Counts of messages since the front-end was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FrontendCounts {
    /// Misses that were answered with a translation.
    pub answered: u64,
    /// Misses that were refused.
    pub refused: u64,
    /// Invalidations that the back-end has acknowledged.
    pub invalidated: u64,
}

/// Grants of the guest, and the memory that the back-end has.
#[derive(Debug, Default)]
struct Known {
    regions: Regions,
    pass_through: bool,
    /// Mappings, each behind its first address.
    mappings: BTreeMap<u64, Mapping>,
    counts: FrontendCounts,
}

/// The listener of a vhost-user device's endpoint.
///
/// The monitor gives it to [`VirtioIommu::listen`](crate::viommu::VirtioIommu::listen), and has a thread call
/// [`VhostFrontend::serve`]. A back-end that fails or goes makes the guest's UNMAP fail, until the listener is
/// removed.
#[derive(Debug)]
pub struct VhostFrontend<C> {
    /// Held from a look at the grants until the back-end has what was found there: an invalidation comes after it.
    channel: Mutex<C>,
    known: Mutex<Known>,
}

impl<C: BackendChannel> VhostFrontend<C> {
    /// A front-end whose back-end has no memory yet.
    pub fn new(channel: C) -> Self {
        Self { channel: Mutex::new(channel), known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn channel(&self) -> MutexGuard<'_, C> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the table of memory that the back-end has: to be called after it has acknowledged that table, which makes
    /// it forget all translations, and before it is started.
    ///
    /// # Errors
    /// If the table makes no sense, after which the old one stays.
    pub fn set_memory(&self, regions: &[MemoryRegion]) -> Result<(), RegionsError> {
        let regions = Regions::new(regions)?;
        let _channel = self.channel();
        self.known().regions = regions;
        Ok(())
    }

    /// Answers a miss, whose payload this is, with a translation.
    ///
    /// # Errors
    /// See [`MissError`]: the back-end has to be told that there is none.
    pub fn miss(&self, payload: &[u8]) -> Result<(), MissError> {
        let answered = self.answer(payload);
        let counts = &mut self.known().counts;
        let count = if answered.is_ok() { &mut counts.answered } else { &mut counts.refused };
        *count += 1;
        answered
    }

    fn answer(&self, payload: &[u8]) -> Result<(), MissError> {
        let miss = Miss::read(payload)?;
        let mut channel = self.channel();
        let update = self.known().find(miss)?;
        channel.send(&update.payload()).map_err(MissError::Channel)
    }

    /// Answers misses on the back-end's channel (`VHOST_USER_SET_BACKEND_REQ_FD`) until the back-end closes it.
    ///
    /// # Errors
    /// See [`WireError`]: the channel is of no more use.
    pub fn serve(&self, stream: &UnixStream) -> Result<(), WireError> {
        while let Some(message) = receive(stream)? {
            let done = message.request == FROM_BACKEND && self.miss(&message.payload).is_ok();
            if message.need_reply {
                let value = if done { DONE } else { REFUSED };
                reply(stream, message.request, &value.to_le_bytes())?;
            }
        }
        Ok(())
    }

    /// Counts of messages so far.
    pub fn counts(&self) -> FrontendCounts {
        self.known().counts
    }

    fn invalidate(&self, ranges: &[IovaRange]) -> io::Result<()> {
        let mut channel = self.channel();
        for &iova in ranges {
            channel.send(&Message::Invalidate { iova }.payload())?;
            self.known().counts.invalidated += 1;
        }
        Ok(())
    }
}

impl Known {
    /// The translation for a miss, as far as it is in one region of memory.
    fn find(&self, miss: Miss) -> Result<Message, MissError> {
        let Miss { at, access } = miss;
        let below = self.mappings.range(..=at.get()).next_back().map(|(_, mapping)| mapping);
        let mapping = below.filter(|of| of.iova.contains(at) && of.access.allow(access));
        let (offset, granted, allowed) = match mapping {
            Some(of) => (of.target.get().wrapping_sub(of.iova.start().get()), of.iova, of.access),
            None if self.pass_through => (0, EVERYTHING, Permissions::ReadWrite),
            None => return Err(MissError::NotGranted { at }),
        };
        let target = PhysAddr::new(at.get().wrapping_add(offset));
        // The part of the grant that is in the same region as the address.
        let part = self.regions.around(target).and_then(|region| {
            let before = target.get() - region.guest.get();
            let first = at.get().saturating_sub(before).max(granted.start().get());
            let last = at.get().saturating_add(region.bytes - 1 - before).min(granted.last().get());
            let start = before - (at.get() - first);
            let iova = IovaRange::new(Iova::new(first), Iova::new(last))?;
            Some((iova, FrontendAddr::new(region.frontend.get() + start)))
        });
        let (iova, target) = part.ok_or(MissError::NotMemory { at, target })?;
        Ok(Message::Update { iova, target, access: allowed })
    }
}

impl<C: BackendChannel> Listener for VhostFrontend<C> {
    /// The back-end asks for a translation when it needs one.
    fn map(&self, grant: &Grant) -> io::Result<()> {
        let mut known = self.known();
        match grant {
            Grant::PassThrough => known.pass_through = true,
            Grant::Mapping(of) => drop(known.mappings.insert(of.iova.start().get(), *of)),
        }
        Ok(())
    }

    fn unmap(&self, grant: &Grant) -> io::Result<()> {
        let mut known = self.known();
        let invalidated = match grant {
            Grant::PassThrough => {
                known.pass_through = false;
                drop(known);
                self.invalidate(&HALVES)
            }
            Grant::Mapping(of) => {
                known.mappings.remove(&of.iova.start().get());
                drop(known);
                self.invalidate(&[of.iova])
            }
        };
        if invalidated.is_err() {
            self.map(grant)?;
        }
        invalidated
    }
}
