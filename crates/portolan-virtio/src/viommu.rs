//! virtio-iommu's queues over a transport of `virtio-drivers`.
//!
//! Virtual I/O Device (VIRTIO) 1.2, sections 3.1 (initialisation), 5.13.2 (queues) and 5.13.5. Not
//! supported: answers of more than 3 KiB.
//!
//! `unsafe` is allowed here, in `hal`, in `dma_api` and in `lent::promise`.
#![allow(unsafe_code)]

use alloc::boxed::Box;
use alloc::vec::Vec;

use portolan::iommu::{Awaited, IommuError};
use portolan::platform::{Guarded, Nanos, Platform, SpinLock, poll};
use portolan_hw::virtio::Transport as Wanted;
use portolan_spec::virtio::{DRIVER_FEATURES, FAULT_BYTES};
use virtio_drivers::Hal;
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::{DeviceStatus, Transport};

/// Longest time that a request, or a reset, may take.
const LIMIT: Nanos = Nanos::from_millis(1000);
/// Reads of the configuration until two in a row are of one generation.
const READS: u32 = 100;

const REQUESTS: u16 = 0;
const FAULTS: u16 = 1;
/// Entries of each queue.
const ENTRIES: usize = 16;

/// `VIRTIO_F_VERSION_1` and `VIRTIO_F_ACCESS_PLATFORM`.
const GENERAL: u64 = 1 << 32 | 1 << 33;

/// A request and its answer. They lie in one page, and so in one piece of memory.
#[repr(align(4096))]
struct Exchange {
    request: [u8; 1024],
    answer: [u8; 3072],
}

/// A buffer for a record. It lies in one page.
#[repr(align(32))]
struct Record([u8; FAULT_BYTES]);

/// A request that is under way, or was given up.
struct Sent {
    token: u16,
    exchange: Box<Exchange>,
    request: usize,
    answer: usize,
}

struct RequestQueue<H: Hal> {
    queue: VirtQueue<H, ENTRIES>,
    sent: Vec<Sent>,
}

struct FaultQueue<H: Hal> {
    queue: VirtQueue<H, ENTRIES>,
    /// By token.
    records: [Option<Box<Record>>; ENTRIES],
}

/// A virtio-iommu device that runs: the transport for [`Viommu`](portolan_hw::virtio::Viommu). Its
/// own accesses are not translated: `H` is the [`SpaceHal`](crate::SpaceHal) of a memory that it was added to as a
/// [direct](portolan::dma::Device::direct) device.
///
/// Requests go one by one: a caller waits for those of others, each no longer than a second.
pub struct ViommuQueues<P: Platform, H: Hal, T: Transport + Send> {
    platform: P,
    features: u64,
    transport: Guarded<P, T>,
    requests: SpinLock<RequestQueue<H>>,
    faults: Guarded<P, FaultQueue<H>>,
}

/// The transport's errors are the device's nonsense, or its end.
fn gone(_error: virtio_drivers::Error) -> IommuError {
    IommuError::Gone
}

fn timed_out(waited: Nanos) -> IommuError {
    let awaited = Awaited::Completion;
    IommuError::TimedOut { awaited, waited }
}

impl<P: Platform, H: Hal, T: Transport + Send> ViommuQueues<P, H, T> {
    /// Resets the device, and starts it.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`IommuError::TimedOut`], or [`IommuError::Gone`] if it does not do as virtio devices do.
    pub fn start(platform: P, mut transport: T) -> Result<Self, IommuError> {
        transport.set_status(DeviceStatus::empty());
        let reset = || transport.get_status().is_empty().then_some(());
        poll(&platform, LIMIT, reset).map_err(timed_out)?;
        let known = DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER;
        transport.set_status(known);
        let features = transport.read_device_features() & (DRIVER_FEATURES | GENERAL);
        transport.write_driver_features(features);
        transport.set_status(known | DeviceStatus::FEATURES_OK);
        if !transport.get_status().contains(DeviceStatus::FEATURES_OK) {
            return Err(IommuError::Unsupported);
        }
        let queue = VirtQueue::new(&mut transport, REQUESTS, false, false).map_err(gone)?;
        let sent = Vec::new();
        let requests = RequestQueue { queue, sent };
        let queue = VirtQueue::new(&mut transport, FAULTS, false, false).map_err(gone)?;
        let records = [const { None }; ENTRIES];
        let mut faults = FaultQueue { queue, records };
        transport.finish_init();
        for _ in 0..ENTRIES {
            faults.offer(Box::new(Record([0; FAULT_BYTES])))?;
        }
        transport.notify(FAULTS);
        Ok(Self {
            platform,
            features,
            transport: Guarded::new(transport),
            requests: SpinLock::new(requests),
            faults: Guarded::new(faults),
        })
    }
}

impl<H: Hal> RequestQueue<H> {
    /// Hands a request to the device, and returns its token.
    fn send(&mut self, bytes: &[u8], answer: &[u8]) -> Result<u16, IommuError> {
        let unsupported = IommuError::Unsupported;
        let mut exchange = Box::new(Exchange { request: [0; 1024], answer: [0; 3072] });
        let request = exchange.request.get_mut(..bytes.len()).ok_or(unsupported)?;
        request.copy_from_slice(bytes);
        let part = exchange.answer.get_mut(..answer.len()).ok_or(unsupported)?;
        part.copy_from_slice(answer);
        // SAFETY: the exchange stays where it is, and no other code reaches it, until the device
        // has returned it: it is kept in `sent`.
        let token = unsafe { self.queue.add(&[request], &mut [part]) }.map_err(gone)?;
        self.sent.push(Sent { token, exchange, request: bytes.len(), answer: answer.len() });
        Ok(token)
    }

    /// Takes in requests that the device has returned, until that is the request of `token`.
    fn returned(&mut self, token: Option<u16>) -> Option<Result<Sent, IommuError>> {
        loop {
            let used = self.queue.peek_used()?;
            let Some(at) = self.sent.iter().position(|sent| sent.token == used) else {
                return Some(Err(IommuError::Gone));
            };
            let mut sent = self.sent.swap_remove(at);
            let exchange = &mut *sent.exchange;
            let request = exchange.request.get(..sent.request).unwrap_or_default();
            let answer = exchange.answer.get_mut(..sent.answer).unwrap_or_default();
            // SAFETY: they are the buffers that were added under this token.
            let popped = unsafe { self.queue.pop_used(used, &[request], &mut [answer]) };
            match popped {
                Ok(_) if token == Some(used) => return Some(Ok(sent)),
                Ok(_) => {}
                Err(error) => return Some(Err(gone(error))),
            }
        }
    }
}

impl<H: Hal> FaultQueue<H> {
    /// Gives the device a buffer for a record.
    fn offer(&mut self, mut record: Box<Record>) -> Result<(), IommuError> {
        // SAFETY: the record stays where it is, and no other code reaches it, until the device has
        // returned it: it is kept in `records`.
        let token = unsafe { self.queue.add(&[], &mut [&mut record.0]) }.map_err(gone)?;
        let place = self.records.get_mut(usize::from(token));
        *place.ok_or(IommuError::Gone)? = Some(record);
        Ok(())
    }

    /// The oldest record, and the number of its bytes that were written.
    fn take(&mut self) -> Result<Option<([u8; FAULT_BYTES], usize)>, IommuError> {
        let Some(token) = self.queue.peek_used() else {
            return Ok(None);
        };
        let place = self.records.get_mut(usize::from(token));
        let record = place.and_then(Option::take);
        let mut record = record.ok_or(IommuError::Gone)?;
        // SAFETY: it is the buffer that was added under this token.
        let written = unsafe { self.queue.pop_used(token, &[], &mut [&mut record.0]) };
        let (written, bytes) = (written.map_err(gone)? as usize, record.0);
        self.offer(record)?;
        Ok(Some((bytes, written)))
    }
}

/// *Context.* Atomic; [`next_fault`](Wanted::next_fault), [`features`](Wanted::features) and
/// [`all_returned`](Wanted::all_returned): interrupt, where the `Hal` can be called there.
impl<P: Platform, H: Hal, T: Transport + Send> Wanted for ViommuQueues<P, H, T> {
    fn features(&self) -> u64 {
        self.features
    }

    fn config32(&self, offset: usize) -> Result<u32, IommuError> {
        let transport = self.transport.lock();
        transport.read_config_space(offset).map_err(gone)
    }

    fn config64(&self, offset: usize) -> Result<u64, IommuError> {
        let transport = self.transport.lock();
        for _ in 0..READS {
            let before = transport.read_config_generation();
            let low: u32 = transport.read_config_space(offset).map_err(gone)?;
            let high: u32 = transport.read_config_space(offset + 4).map_err(gone)?;
            if transport.read_config_generation() == before {
                return Ok(u64::from(high) << 32 | u64::from(low));
            }
        }
        Err(IommuError::Gone)
    }

    fn set_config8(&self, offset: usize, value: u8) -> Result<u8, IommuError> {
        let mut transport = self.transport.lock();
        transport.write_config_space(offset, value).map_err(gone)?;
        transport.read_config_space(offset).map_err(gone)
    }

    fn request(&self, request: &[u8], answer: &mut [u8]) -> Result<(), IommuError> {
        let mut requests = self.requests.lock();
        if let Some(Err(error)) = requests.returned(None) {
            return Err(error);
        }
        let token = requests.send(request, answer)?;
        if requests.queue.should_notify() {
            self.transport.lock().notify(REQUESTS);
        }
        let back = poll(&self.platform, LIMIT, || requests.returned(Some(token)));
        let sent = back.map_err(timed_out)??;
        let found = sent.exchange.answer.get(..answer.len());
        answer.copy_from_slice(found.ok_or(IommuError::Gone)?);
        Ok(())
    }

    fn all_returned(&self) -> bool {
        let requests = self.requests.try_lock();
        requests.is_some_and(|mut requests| {
            let _ = requests.returned(None);
            requests.sent.is_empty()
        })
    }

    fn next_fault(&self) -> Result<Option<([u8; FAULT_BYTES], usize)>, IommuError> {
        let found = self.faults.with(FaultQueue::take)?;
        if found.is_some() {
            self.transport.lock().notify(FAULTS);
        }
        Ok(found)
    }
}
