//! A ring, and the thread that serves it.
//!
//! Virtio 1.2, section 2.7 (split virtqueues), by `virtio-queue`; the vhost-user protocol, section "Ring states".

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use virtio_queue::desc::split::Descriptor;
use virtio_queue::{Queue, QueueT};
use vm_memory::GuestMemoryMmap;
use vm_memory::iommu::IommuMemory;

use super::Device;
use crate::VhostIotlb;

/// The guest's memory as the device reaches it.
pub type DeviceMemory = IommuMemory<GuestMemoryMmap<()>, VhostIotlb>;

/// Descriptors of a ring at most.
const MOST: u16 = 1024;

/// A request: the descriptors of its chain, each read once.
#[derive(Debug)]
pub struct Request(Vec<Descriptor>);

impl Request {
    /// The descriptors, in order. Their addresses are the device's; nothing of them is checked.
    pub fn descriptors(&self) -> &[Descriptor] {
        &self.0
    }
}

/// State that a session's threads share.
#[derive(Debug)]
pub(super) struct Shared<D> {
    pub(super) device: Arc<D>,
    /// Replaced when the table of memory is.
    pub(super) memory: RwLock<Arc<DeviceMemory>>,
    pub(super) requests: AtomicU64,
}

impl<D> Shared<D> {
    pub(super) fn memory(&self) -> Arc<DeviceMemory> {
        let memory = self.memory.read();
        memory.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Reason why a ring cannot be as the front-end asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RingError {
    #[error("a ring of {0} descriptors")]
    Size(u32),
    #[error("addresses of a ring that are not aligned")]
    Addresses,
    #[error("a ring that is running")]
    Running,
    #[error("there is no thread for a ring")]
    Thread,
}

/// A thread and the means to end it.
#[derive(Debug)]
struct Worker {
    stop: File,
    /// The thread has the other end.
    ended: UnixStream,
    thread: JoinHandle<Queue>,
}

/// One ring.
#[derive(Debug)]
pub(super) struct Ring {
    /// `None` while the thread has it.
    queue: Option<Queue>,
    kick: Option<File>,
    call: Arc<Mutex<Option<File>>>,
    enabled: bool,
    worker: Option<Worker>,
}

impl Ring {
    pub(super) fn new() -> Self {
        Self {
            queue: Queue::new(MOST).ok(),
            kick: None,
            call: Arc::default(),
            enabled: false,
            worker: None,
        }
    }

    fn stopped(&mut self) -> Result<&mut Queue, RingError> {
        self.queue.as_mut().ok_or(RingError::Running)
    }

    pub(super) fn set_size(&mut self, size: u32) -> Result<(), RingError> {
        let narrow = u16::try_from(size).map_err(|_| RingError::Size(size))?;
        let set = self.stopped()?.try_set_size(narrow);
        set.map_err(|_| RingError::Size(size))
    }

    /// The device's addresses of the descriptors, the available and the used ring.
    pub(super) fn set_addresses(
        &mut self,
        [descriptors, available, used]: [u64; 3],
    ) -> Result<(), RingError> {
        use vm_memory::GuestAddress as At;
        let queue = self.stopped()?;
        queue
            .try_set_desc_table_address(At(descriptors))
            .and_then(|()| queue.try_set_avail_ring_address(At(available)))
            .and_then(|()| queue.try_set_used_ring_address(At(used)))
            .map_err(|_| RingError::Addresses)
    }

    pub(super) fn set_base(&mut self, base: u16) -> Result<(), RingError> {
        let queue = self.stopped()?;
        queue.set_next_avail(base);
        queue.set_next_used(base);
        Ok(())
    }

    pub(super) fn set_kick(&mut self, kick: Option<File>) -> Result<(), RingError> {
        self.stopped()?;
        self.kick = kick.inspect(never_wait);
        Ok(())
    }

    pub(super) fn set_call(&mut self, call: Option<File>) {
        let mut current = self.call.lock().unwrap_or_else(PoisonError::into_inner);
        *current = call.inspect(never_wait);
    }

    pub(super) fn set_enabled(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    /// Tells if a thread can start and does not run yet.
    pub(super) fn is_ready(&self) -> bool {
        self.enabled && self.kick.is_some() && self.worker.is_none()
    }

    /// Starts the thread.
    pub(super) fn start<D: Device>(&mut self, shared: &Arc<Shared<D>>) -> Result<(), RingError> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = File::from(stop.map_err(|_| RingError::Thread)?);
        let stopped = stop.try_clone().map_err(|_| RingError::Thread)?;
        let (ended, running) = UnixStream::pair().map_err(|_| RingError::Thread)?;
        let (Some(mut queue), Some(kick)) = (self.queue.take(), self.kick.take()) else {
            return Err(RingError::Running);
        };
        queue.set_ready(true);
        let (shared, call) = (Arc::clone(shared), Arc::clone(&self.call));
        let serve = move || {
            let _running = running;
            serve(&shared, &mut queue, &kick, &stopped, &call);
            queue
        };
        let thread = std::thread::Builder::new().name("ring".to_owned());
        let thread = thread.spawn(serve).map_err(|_| RingError::Thread)?;
        self.worker = Some(Worker { stop, ended, thread });
        Ok(())
    }

    /// Has the thread stop after the request that it is at. The returned stream ends when it has.
    pub(super) fn ask_to_stop(&mut self) -> Option<UnixStream> {
        let worker = self.worker.as_mut()?;
        // An event counter that is full says the same.
        let _ = worker.stop.write_all(&1u64.to_ne_bytes());
        worker.ended.try_clone().ok()
    }

    /// Stops the thread after the request that it is at: the index of the next one.
    pub(super) fn stop(&mut self) -> u16 {
        self.ask_to_stop();
        if let Some(Worker { thread, .. }) = self.worker.take() {
            // A thread that panicked takes its ring along.
            self.queue = thread.join().ok().or_else(|| Queue::new(MOST).ok());
        }
        let queue = self.queue.as_mut();
        queue.map_or(0, |queue| {
            queue.set_ready(false);
            queue.next_avail()
        })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A front-end may send any file; one that is slow must not hold up the thread that stops the ring.
fn never_wait(file: &File) {
    if let Ok(flags) = fcntl_getfl(file) {
        let _ = fcntl_setfl(file, flags | OFlags::NONBLOCK);
    }
}

/// Serves the ring until `stop` says so, or the file that kicks it has ended.
fn serve<D: Device>(
    shared: &Shared<D>,
    queue: &mut Queue,
    mut kick: &File,
    stop: &File,
    call: &Mutex<Option<File>>,
) {
    loop {
        let mut events = [stop, kick].map(|of| PollFd::new(of, PollFlags::IN));
        let polled = poll(&mut events, None);
        let [stopped, kicked] = events.map(|event| event.revents());
        match polled {
            Err(rustix::io::Errno::INTR) => continue,
            Ok(_) if stopped.is_empty() => {}
            _ => return,
        }
        if kicked.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            return;
        }
        // Another thread may have read it.
        let _ = kick.read(&mut [0; 8]);
        // A guest may always have more.
        while one_request(shared, queue, call) {
            if is_ready(stop) {
                return;
            }
        }
    }
}

fn is_ready(file: &File) -> bool {
    let mut event = [PollFd::new(file, PollFlags::IN)];
    // No time at all.
    let polled = poll(&mut event, Some(&rustix::event::Timespec::default()));
    polled.is_ok_and(|ready| ready != 0)
}

/// Carries out the next request; returns if there was one.
fn one_request<D: Device>(
    shared: &Shared<D>,
    queue: &mut Queue,
    call: &Mutex<Option<File>>,
) -> bool {
    let memory = shared.memory();
    let Some(chain) = queue.pop_descriptor_chain(Arc::clone(&memory)) else {
        return false;
    };
    let head = chain.head_index();
    // No longer than the ring, or than an indirect table.
    let request = Request(chain.take(MOST.into()).collect());
    let written = shared.device.request(&memory, &request);
    // A ring that the guest has taken away gets no answer.
    if queue.add_used(&*memory, head, written).is_err() {
        return false;
    }
    shared.requests.fetch_add(1, Relaxed);
    let call = call.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(mut call) = call.as_ref() {
        // A counter that is full says the same.
        let _ = call.write(&1u64.to_ne_bytes());
    }
    true
}
