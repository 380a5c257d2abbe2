//! A connection: requests of a front-end, answered.
//!
//! The vhost-user protocol, section "Front-end message types", as far as a device behind an IOMMU needs it. Not
//! supported: memory by slots, in-flight descriptors, migration, and devices without an IOMMU.

use std::collections::VecDeque;
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use portolan::addr::PhysAddr;
use rustix::event::{PollFd, PollFlags, poll};
use vm_memory::iommu::IommuMemory;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};

use super::Device;
use super::request::FrontendRequest;
use super::ring::{Ring, Shared};
use super::wire::{self, Incoming, WireError};
use crate::{Counts, FrontendAddr, IotlbOptions, MemoryRegion, VhostIotlb};

/// Bits of the transport: protocol features, virtio 1.0, `VIRTIO_F_ACCESS_PLATFORM`.
const PROTOCOL: u64 = 1 << 30;
const VERSION_1: u64 = 1 << 32;
const ACCESS_PLATFORM: u64 = 1 << 33;
/// Protocol features: several rings, replies, the back-end's channel, configuration space.
const MQ: u64 = 1 << 0;
const REPLY_ACK: u64 = 1 << 3;
const BACKEND_REQ: u64 = 1 << 5;
const CONFIG: u64 = 1 << 9;
/// Bytes of configuration space at most.
const CONFIG_BYTES: usize = 256;
/// Messages that are read while a ring is being stopped, at most.
const MOST_PENDING: usize = 16;
/// In a message about a ring's files: there is none.
const NO_FILE: u64 = 1 << 8;
/// Bytes of a region in a table of memory, and of the header before the regions.
const REGION: usize = 32;
const REGIONS: usize = 8;

/// Treatment of invalidations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidations {
    /// They are carried out, then acknowledged.
    Honoured,
    /// They are acknowledged and nothing else, as a broken device would. A test that this does not fail shows
    /// nothing.
    Ignored,
}

/// Options of a back-end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackendOptions {
    /// Its IOTLB.
    pub iotlb: IotlbOptions,
    /// Treatment of invalidations.
    pub invalidations: Invalidations,
}

impl Default for BackendOptions {
    fn default() -> Self {
        Self { iotlb: IotlbOptions::default(), invalidations: Invalidations::Honoured }
    }
}

impl BackendOptions {
    /// Every translation is kept until it is invalidated, up to a million of them.
    pub fn adversarial() -> Self {
        let mut options = Self::default();
        options.iotlb.capacity = const { NonZeroUsize::new(1 << 20).unwrap() };
        options.iotlb.replacement = crate::Replacement::WhenFull;
        options
    }
}

/// Reason why a connection ended before the front-end closed it.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Its messages cannot be read.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// A message was not carried out, and had no reply that could say so.
    #[error("request {request} was not carried out: {why}")]
    Refused {
        /// The request's number.
        request: u32,
        /// The reason.
        why: String,
    },
}

/// Counts of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Requests that the device answered.
    pub requests: u64,
    /// Counts of its IOTLB.
    pub iotlb: Counts,
}

/// A device and the options by which it is served.
#[derive(Debug)]
pub struct Backend<D> {
    device: Arc<D>,
    options: BackendOptions,
}

impl<D: Device> Backend<D> {
    /// A back-end of `device`.
    pub fn new(device: D, options: BackendOptions) -> Self {
        Self { device: Arc::new(device), options }
    }

    /// Serves one front-end until it closes the connection or sends a message that makes no sense. Returns
    /// the counts of the connection, in either case.
    pub fn serve(&self, stream: &UnixStream) -> (Served, Result<(), ServeError>) {
        let iotlb = VhostIotlb::new(self.options.iotlb);
        let memory = IommuMemory::new(GuestMemoryMmap::default(), iotlb, true, ());
        let shared = Arc::new(Shared {
            device: Arc::clone(&self.device),
            memory: RwLock::new(Arc::new(memory)),
            requests: AtomicU64::new(0),
        });
        let mut session = Session {
            rings: (0..self.device.queues()).map(|_| Ring::new()).collect(),
            invalidations: self.options.invalidations,
            features: 0,
            protocol: 0,
            pending: VecDeque::new(),
            shared,
        };
        let ended = session.run(stream);
        // A thread that waits for an answer gets none; then the rings' threads end.
        session.iotlb().disconnect();
        session.rings.clear();
        let served = Served {
            requests: session.shared.requests.load(Relaxed),
            iotlb: session.iotlb().counts(),
        };
        (served, ended)
    }
}

/// Outcome of a message.
enum Outcome {
    /// It is carried out.
    Done,
    /// It has a reply of its own.
    Reply(Vec<u8>),
}

/// Reason why a message is not carried out.
type Refusal = Box<dyn std::error::Error + Send + Sync>;

struct Session<D> {
    shared: Arc<Shared<D>>,
    rings: Vec<Ring>,
    invalidations: Invalidations,
    /// Features that the front-end has accepted.
    features: u64,
    protocol: u64,
    /// Messages that were read while a ring was being stopped, in their order.
    pending: VecDeque<Result<Option<Incoming>, WireError>>,
}

impl<D: Device> Session<D> {
    fn run(&mut self, stream: &UnixStream) -> Result<(), ServeError> {
        loop {
            let next = self.pending.pop_front();
            match next.unwrap_or_else(|| wire::receive(stream))? {
                Some(message) => self.answer(message, stream)?,
                None => return Ok(()),
            }
        }
    }

    fn answer(&mut self, message: Incoming, stream: &UnixStream) -> Result<(), ServeError> {
        let (request, asked) = (message.request, message.need_reply);
        let told = asked && self.protocol & REPLY_ACK != 0;
        match self.handle(message, stream) {
            Ok(Outcome::Reply(payload)) => wire::reply(stream, request, &payload)?,
            Ok(Outcome::Done) if told => wire::reply(stream, request, &[0; 8])?,
            Ok(Outcome::Done) => {}
            Err(_) if told => wire::reply(stream, request, &1u64.to_le_bytes())?,
            Err(why) => {
                let why = why.to_string();
                return Err(ServeError::Refused { request, why });
            }
        }
        Ok(())
    }

    /// Stops a ring; returns the index of its next request. Messages of the front-end about translations
    /// are carried out meanwhile, since the ring may wait for them; all else waits.
    fn stop(&mut self, at: u32, stream: &UnixStream) -> Result<u16, Refusal> {
        if let Some(ended) = self.ring(at)?.ask_to_stop() {
            while self.pending.len() < MOST_PENDING {
                let mut events =
                    [PollFd::new(&ended, PollFlags::IN), PollFd::new(stream, PollFlags::IN)];
                match poll(&mut events, None) {
                    Err(rustix::io::Errno::INTR) => continue,
                    Ok(_) if events[0].revents().is_empty() => {}
                    _ => break,
                }
                match wire::receive(stream) {
                    Ok(Some(message)) if message.request == FrontendRequest::IotlbMsg as u32 => {
                        self.answer(message, stream)?;
                    }
                    Ok(Some(message)) => self.pending.push_back(Ok(Some(message))),
                    gone => {
                        // Nothing comes any more for which the ring could wait.
                        self.iotlb().disconnect();
                        self.pending.push_back(gone);
                        break;
                    }
                }
            }
        }
        Ok(self.ring(at)?.stop())
    }

    fn iotlb(&self) -> Arc<VhostIotlb> {
        Arc::clone(self.shared.memory().iommu())
    }

    fn handle(&mut self, message: Incoming, stream: &UnixStream) -> Result<Outcome, Refusal> {
        use FrontendRequest as R;
        let Incoming { request, payload, mut files, .. } = message;
        let word = |at| word(&payload, at);
        let word32 = |at| word32(&payload, at);
        let number = |value: u64| Ok(Outcome::Reply(value.to_le_bytes().to_vec()));
        match FrontendRequest::from_number(request).ok_or("it is not supported")? {
            R::GetFeatures => return number(self.offered()),
            R::SetFeatures => self.features = self.accepted(word(0)?)?,
            R::SetOwner | R::SetVringErr => {}
            R::SetMemTable => self.set_memory(&payload, files)?,
            R::SetVringNum => self.ring(word32(0)?)?.set_size(word32(4)?)?,
            R::SetVringAddr => {
                let addresses = [word(8)?, word(24)?, word(16)?];
                self.ring(word32(0)?)?.set_addresses(addresses)?;
            }
            R::SetVringBase => {
                let base = u16::try_from(word32(4)?)?;
                self.ring(word32(0)?)?.set_base(base)?;
            }
            R::GetVringBase => {
                let at = word32(0)?;
                let base = u32::from(self.stop(at, stream)?);
                let reply = [at.to_le_bytes(), base.to_le_bytes()].concat();
                return Ok(Outcome::Reply(reply));
            }
            R::SetVringKick => {
                let (at, kick) = file(word(0)?, &mut files)?;
                self.ring(at)?.set_kick(kick)?;
                self.start(at)?;
            }
            R::SetVringCall => {
                let (at, call) = file(word(0)?, &mut files)?;
                self.ring(at)?.set_call(call);
            }
            R::GetProtocolFeatures => return number(MQ | REPLY_ACK | BACKEND_REQ | CONFIG),
            R::SetProtocolFeatures => self.protocol = word(0)?,
            R::GetQueueNum => return number(self.rings.len() as u64),
            R::SetVringEnable => {
                let at = word32(0)?;
                self.ring(at)?.set_enabled(word32(4)? == 1);
                self.start(at)?;
            }
            R::SetBackendReqFd => {
                let channel = files.pop().ok_or("there is no channel")?;
                let channel = UnixStream::from(OwnedFd::from(channel));
                match self.protocol & REPLY_ACK {
                    0 => self.iotlb().connect_without_replies(channel)?,
                    _ => self.iotlb().connect(channel)?,
                }
            }
            R::IotlbMsg => self.translations(&payload)?,
            R::GetConfig => return Ok(Outcome::Reply(self.config(&payload)?)),
        }
        Ok(Outcome::Done)
    }

    fn offered(&self) -> u64 {
        self.shared.device.features() | PROTOCOL | VERSION_1 | ACCESS_PLATFORM
    }

    fn accepted(&self, features: u64) -> Result<u64, Refusal> {
        match features & !self.offered() {
            0 => Ok(features),
            more => Err(format!("features {more:#x} were not offered").into()),
        }
    }

    fn ring(&mut self, at: u32) -> Result<&mut Ring, Refusal> {
        let ring = self.rings.get_mut(at as usize);
        ring.ok_or_else(|| format!("there is no ring {at}").into())
    }

    fn start(&mut self, at: u32) -> Result<(), Refusal> {
        let (shared, features) = (Arc::clone(&self.shared), self.features);
        let ring = self.ring(at)?;
        if !ring.is_ready() {
            return Ok(());
        }
        if features & ACCESS_PLATFORM == 0 {
            // Its rings' addresses would be the front-end's.
            return Err("the device is served behind an IOMMU only".into());
        }
        Ok(ring.start(&shared)?)
    }

    /// Carries out a front-end's message about translations.
    fn translations(&self, payload: &[u8]) -> Result<(), Refusal> {
        let message = crate::Message::read(payload)?;
        let ignored = self.invalidations == Invalidations::Ignored;
        if ignored && matches!(message, crate::Message::Invalidate { .. }) {
            return Ok(());
        }
        Ok(self.iotlb().handle(payload)?)
    }

    /// Maps the regions of a table of memory, then has all threads use that memory.
    fn set_memory(&self, payload: &[u8], files: Vec<File>) -> Result<(), Refusal> {
        let count = word32(payload, 0)? as usize;
        if count != files.len() || payload.len() < REGIONS + count * REGION {
            return Err("a table of memory without a file for each region".into());
        }
        let (mut regions, mut mapped) = (Vec::new(), Vec::new());
        for (number, file) in files.into_iter().enumerate() {
            let word = |at| word(payload, REGIONS + number * REGION + at);
            let [guest, bytes, frontend, offset] = [word(0)?, word(8)?, word(16)?, word(24)?];
            regions.push(MemoryRegion {
                guest: PhysAddr::new(guest),
                frontend: FrontendAddr::new(frontend),
                bytes,
            });
            // An access past its end kills the process.
            let end = offset.checked_add(bytes);
            if end.is_none_or(|end| end > file.metadata().map_or(0, |data| data.len())) {
                return Err("a region past the end of its file".into());
            }
            let length = usize::try_from(bytes)?;
            mapped.push((GuestAddress(guest), length, Some(FileOffset::new(file, offset))));
        }
        mapped.sort_by_key(|(guest, ..)| *guest);
        // Before anything is mapped: a table that makes no sense.
        crate::regions::Regions::new(&regions)?;
        let backend = GuestMemoryMmap::from_ranges_with_files(&mapped)?;
        let memory = Arc::new(self.shared.memory().with_replaced_backend(backend));
        let current = self.shared.memory.write();
        *current.unwrap_or_else(PoisonError::into_inner) = memory;
        Ok(self.iotlb().set_memory(&regions)?)
    }

    /// A part of configuration space, behind the message's own header of 12 bytes.
    fn config(&self, payload: &[u8]) -> Result<Vec<u8>, Refusal> {
        let (offset, size) = (word32(payload, 0)? as usize, word32(payload, 4)? as usize);
        let mut config = [0; CONFIG_BYTES];
        let device = self.shared.device.config();
        for (byte, its) in config.iter_mut().zip(device) {
            *byte = *its;
        }
        let end = offset.checked_add(size);
        let part = end.and_then(|end| config.get(offset..end));
        let head = payload.get(..12).filter(|_| payload.len() == 12 + size);
        let reply = head.zip(part).map(|(head, part)| [head, part].concat());
        reply.ok_or_else(|| "a part of configuration space that is not there".into())
    }
}

fn word(payload: &[u8], at: usize) -> Result<u64, Refusal> {
    let bytes = payload.get(at..).and_then(|rest| rest.first_chunk());
    Ok(u64::from_le_bytes(*bytes.ok_or("it is too short")?))
}

fn word32(payload: &[u8], at: usize) -> Result<u32, Refusal> {
    let bytes = payload.get(at..).and_then(|rest| rest.first_chunk());
    Ok(u32::from_le_bytes(*bytes.ok_or("it is too short")?))
}

/// The ring that a message about a file names, and the file.
fn file(value: u64, files: &mut Vec<File>) -> Result<(u32, Option<File>), Refusal> {
    let at = u32::try_from(value & 0xff)?;
    match (value & NO_FILE, files.pop()) {
        (0, None) => Err("there is no file".into()),
        (0, file) => Ok((at, file)),
        _ => Ok((at, None)),
    }
}
