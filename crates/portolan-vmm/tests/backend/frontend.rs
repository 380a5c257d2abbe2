//! A front-end, as far as the tests need one.

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use portolan::addr::{Iova, IovaRange};
use portolan_vmm::backend::{Backend, BackendOptions, Device, ServeError, Served};
use portolan_vmm::{FrontendAddr, Message};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vm_memory::Permissions;

use crate::guest::{BYTES, GRANTED, Guest, IOVA, PAGE, RINGS, SIZE};

/// Address of the guest's memory, as the front-end states it.
pub const FRONTEND: u64 = 0x7f12_0000_0000;

/// Accesses that the guest's IOMMU lets through.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    Everything,
    Nothing,
    /// Questions are not answered.
    Silence,
}

pub type Thread = JoinHandle<(Served, Result<(), ServeError>)>;

pub struct Frontend {
    /// Locked from a message to its reply.
    stream: Mutex<UnixStream>,
    kicks: Vec<File>,
    calls: Vec<File>,
    channel: Option<UnixStream>,
    asked: Arc<AtomicU64>,
    grant: Grant,
}

impl Frontend {
    /// A back-end in a thread of its own, and its front-end.
    pub fn start<D: Device>(device: D, _: &Guest, grant: Grant) -> (Self, Thread) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut options = BackendOptions::default();
        options.iotlb.miss_limit = Duration::from_secs(60);
        options.iotlb.invalidation_limit = Duration::from_secs(60);
        let backend = Backend::new(device, options);
        let served = std::thread::spawn(move || backend.serve(&theirs));
        let event = || File::from(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let frontend = Self {
            stream: Mutex::new(ours),
            kicks: (0..RINGS).map(|_| event()).collect(),
            calls: (0..RINGS).map(|_| event()).collect(),
            channel: None,
            asked: Arc::default(),
            grant,
        };
        (frontend, served)
    }

    /// Everything up to rings that are enabled.
    pub fn set_up(&mut self, guest: &Guest) {
        let offered = self.ask(1, &[]);
        assert_eq!(offered, 1 << 5 | 1 << 30 | 1 << 32 | 1 << 33);
        let protocol = self.ask(15, &[]);
        self.tell(16, &protocol.to_le_bytes(), &[]);
        self.tell(3, &[], &[]);
        assert_eq!(self.ask(17, &[]), RINGS as u64);
        let (channel, theirs) = UnixStream::pair().unwrap();
        self.confirm(21, &[], &[theirs.as_fd()]);
        drop(theirs);
        self.channel = Some(channel.try_clone().unwrap());
        self.answer(channel);
        self.tell(2, &offered.to_le_bytes(), &[]);
        self.confirm(5, &table(), &[guest.memory.as_fd()]);
        for ring in 0..RINGS {
            let at = ring as u32;
            let pair = |value: u32| [at.to_le_bytes(), value.to_le_bytes()].concat();
            self.confirm(8, &pair(SIZE.into()), &[]);
            let [descriptors, available, used] = Guest::addresses(ring);
            let words = [u64::from(at), descriptors, used, available, 0];
            self.confirm(9, &words.map(u64::to_le_bytes).concat(), &[]);
            self.confirm(10, &pair(0), &[]);
            let name = u64::from(at).to_le_bytes();
            let (kick, call) = (self.kicks[ring].try_clone(), self.calls[ring].try_clone());
            self.confirm(12, &name, &[kick.unwrap().as_fd()]);
            self.confirm(13, &name, &[call.unwrap().as_fd()]);
            self.confirm(18, &pair(1), &[]);
        }
    }

    /// Answers questions in a thread of its own, as the guest's IOMMU says.
    fn answer(&self, mut channel: UnixStream) {
        // Without its lock: a thread that waits for a ring to stop has it, and the ring may wait for this.
        let stream = self.stream.lock().unwrap().try_clone().unwrap();
        let (asked, grant) = (self.asked.clone(), self.grant);
        std::thread::spawn(move || {
            let mut question = [0; 44];
            while channel.read_exact(&mut question).is_ok() {
                asked.fetch_add(1, SeqCst);
                let at = u64::from_le_bytes(question[12..20].try_into().unwrap());
                let granted = (IOVA..IOVA + GRANTED).contains(&at);
                let good = granted && grant == Grant::Everything;
                if good {
                    let page = at & !(PAGE - 1);
                    let _ = write(&stream, 22, &update(page).payload(), &[], 0);
                }
                if grant != Grant::Silence {
                    let header = [1u32, 1 | 1 << 2, 8].map(u32::to_le_bytes).concat();
                    let reply = [header, u64::from(!good).to_le_bytes().to_vec()].concat();
                    let _ = channel.write_all(&reply);
                }
            }
        });
    }

    /// Sends a message that has no reply.
    pub fn tell(&self, request: u32, payload: &[u8], files: &[BorrowedFd]) {
        let stream = self.stream.lock().unwrap();
        // The back-end may have closed the connection.
        let _ = write(&stream, request, payload, files, 0);
    }

    /// Sends a message whose reply is a number.
    pub fn ask(&self, request: u32, payload: &[u8]) -> u64 {
        let stream = self.stream.lock().unwrap();
        write(&stream, request, payload, &[], 0).unwrap();
        let reply = read(&stream, request).unwrap();
        u64::from_le_bytes(reply.try_into().unwrap())
    }

    /// Sends a message, and wants to be told that it was carried out.
    fn confirm(&self, request: u32, payload: &[u8], files: &[BorrowedFd]) {
        assert_eq!(self.outcome(request, payload, files), Some(0), "{request}");
    }

    /// Sends a message; returns its outcome: 0 is good; `None` if the connection has ended.
    pub fn outcome(&self, request: u32, payload: &[u8], files: &[BorrowedFd]) -> Option<u64> {
        let stream = self.stream.lock().unwrap();
        write(&stream, request, payload, files, 1 << 3).ok()?;
        let reply = read(&stream, request)?;
        Some(u64::from_le_bytes(reply.get(..8)?.try_into().ok()?))
    }

    pub fn config(&self, offset: u32, size: u32) -> Vec<u8> {
        let head = [offset, size, 0].map(u32::to_le_bytes).concat();
        let payload = [head, vec![0; size as usize]].concat();
        let stream = self.stream.lock().unwrap();
        write(&stream, 24, &payload, &[], 0).unwrap();
        read(&stream, 24).unwrap().split_off(12)
    }

    /// Stops a ring: the index of its next request.
    pub fn stop(&self, ring: usize) -> u32 {
        let payload = [ring as u32, 0].map(u32::to_le_bytes).concat();
        (self.ask(11, &payload) >> 32) as u32
    }

    /// As [`Frontend::stop`]; a question that is under way is answered only afterwards, by granting everything.
    pub fn stop_then_grant(&self, ring: usize) -> u32 {
        let payload = [ring as u32, 0].map(u32::to_le_bytes).concat();
        let iova = IovaRange::from_len(Iova::new(IOVA), GRANTED).unwrap();
        let grant = Message::Update {
            iova,
            target: FrontendAddr::new(FRONTEND),
            access: Permissions::ReadWrite,
        };
        let stream = self.stream.lock().unwrap();
        write(&stream, 11, &payload, &[], 0).unwrap();
        write(&stream, 22, &grant.payload(), &[], 0).unwrap();
        let good = [1u32, 1 | 1 << 2, 8, 0, 0].map(u32::to_le_bytes).concat();
        self.channel.as_ref().unwrap().write_all(&good).unwrap();
        let reply = read(&stream, 11).unwrap();
        u32::from_le_bytes(reply[4..].try_into().unwrap())
    }

    pub fn invalidate_all(&self) -> u64 {
        let iova = IovaRange::new(Iova::new(0), Iova::new(u64::MAX)).unwrap();
        let payload = Message::Invalidate { iova }.payload();
        self.outcome(22, &payload, &[]).unwrap()
    }

    pub fn kick(&self, ring: usize) {
        (&self.kicks[ring]).write_all(&1u64.to_ne_bytes()).unwrap();
    }

    pub fn wait_for_call(&self, ring: usize) {
        let mut poll =
            [rustix::event::PollFd::new(&self.calls[ring], rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut poll, None).unwrap();
        (&self.calls[ring]).read_exact(&mut [0; 8]).unwrap();
    }

    pub fn questions(&self) -> u64 {
        self.asked.load(SeqCst)
    }

    pub fn wait_for_questions(&self, count: u64) {
        // CLOCK: ends a test that would otherwise wait for good; nothing is judged by it.
        let end = Instant::now() + Duration::from_secs(60);
        while self.questions() < count {
            assert!(Instant::now() < end, "fewer than {count} questions");
            std::thread::yield_now();
        }
    }
}

impl Drop for Frontend {
    fn drop(&mut self) {
        // Clones of it are in other threads.
        let _ = self.stream.lock().unwrap().shutdown(std::net::Shutdown::Both);
        if let Some(channel) = &self.channel {
            let _ = channel.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// The guest's memory as one region.
pub fn table() -> Vec<u8> {
    let head = [1u32, 0].map(u32::to_le_bytes).concat();
    [head, [0, BYTES, FRONTEND, 0].map(u64::to_le_bytes).concat()].concat()
}

pub fn update(page: u64) -> Message {
    Message::Update {
        iova: IovaRange::from_len(Iova::new(page), PAGE).unwrap(),
        target: FrontendAddr::new(FRONTEND + (page - IOVA)),
        access: Permissions::ReadWrite,
    }
}

/// Writes a message with `files`.
fn write(
    stream: &UnixStream,
    request: u32,
    payload: &[u8],
    files: &[BorrowedFd],
    flags: u32,
) -> rustix::io::Result<()> {
    let header = [request, 1 | flags, payload.len() as u32].map(u32::to_le_bytes);
    raw(stream, &[&header.concat(), payload].concat(), files)
}

/// Writes bytes with `files`.
pub fn raw(stream: &UnixStream, bytes: &[u8], files: &[BorrowedFd]) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(files)));
    }
    let sent = sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    assert_eq!(sent, bytes.len());
    Ok(())
}

/// The payload of the reply to `request`; `None` if the connection has ended.
fn read(mut stream: &UnixStream, request: u32) -> Option<Vec<u8>> {
    let mut header = [0; 12];
    stream.read_exact(&mut header).ok()?;
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(4)), (request, 1 | 1 << 2));
    let mut payload = vec![0; word(8) as usize];
    stream.read_exact(&mut payload).ok()?;
    Some(payload)
}
