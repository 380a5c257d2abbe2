//! The device of these tests. It carries nothing out: tests look at the requests.

extern crate std;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use portolan::addr::{Iova, IovaRange, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{Awaited, Domain, DomainError, DomainUnmapError, IommuError};
use portolan::platform::{Clock, Nanos};
use portolan::table::Access;

use crate::promise::tests::promised;
use crate::virtio::{Config, Exchange, Transport, Viommu, VirtioDomain};
use portolan_spec::virtio::{self as spec, FAULT_BYTES, Request, TAIL_BYTES, config};

pub const FIRST: StreamId = StreamId::new(8);
pub const SECOND: StreamId = StreamId::new(9);
/// The number of the first domain that a test makes.
pub const DOMAIN: u32 = 4;

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A status.
    Status(u8),
    /// Completed, and nothing written.
    Unwritten,
    /// None in time: the request is given up.
    Lost,
}

pub struct State {
    pub features: u64,
    /// The configuration by offsets.
    pub config: Vec<(usize, u64)>,
    /// Answers to the next requests, one each; those behind are carried out.
    pub answers: VecDeque<Answer>,
    pub seen: Vec<Request>,
    /// Number of requests that came together, each time.
    pub batches: Vec<usize>,
    /// Set if all requests that were given up were returned.
    pub returned: bool,
    pub faults: VecDeque<([u8; FAULT_BYTES], usize)>,
    /// Bytes of an endpoint's properties.
    pub properties: Vec<u8>,
    /// Events on another CPU while the next request is under way.
    pub meanwhile: Option<Meanwhile>,
}

pub type Meanwhile = Box<dyn FnOnce() + Send>;

/// A device with domains from [`DOMAIN`] on and addresses of 32 bits behind a transport.
#[derive(Clone)]
pub struct Scripted(Arc<Mutex<State>>);

impl Scripted {
    pub fn new() -> Self {
        let config = [
            (config::PAGE_SIZE_MASK, !0xfff),
            (config::INPUT_RANGE_START, 0),
            (config::INPUT_RANGE_END, 0xffff_ffff),
            (config::DOMAIN_RANGE_START, DOMAIN.into()),
            (config::DOMAIN_RANGE_END, 7),
            (config::PROBE_SIZE, 64),
        ];
        let features = spec::F_INPUT_RANGE | spec::F_DOMAIN_RANGE | spec::F_MAP_UNMAP;
        Self(Arc::new(Mutex::new(State {
            features,
            config: config.to_vec(),
            answers: VecDeque::new(),
            seen: Vec::new(),
            batches: Vec::new(),
            returned: false,
            faults: VecDeque::new(),
            properties: Vec::new(),
            meanwhile: None,
        })))
    }

    pub fn with(feature: u64) -> Self {
        let device = Self::new();
        device.state().features |= feature;
        device
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the next requests come to `answers`.
    pub fn answer(&self, answers: &[Answer]) {
        self.state().answers.extend(answers);
    }

    /// Requests since the last time.
    pub fn take(&self) -> Vec<Request> {
        core::mem::take(&mut self.state().seen)
    }

    /// Sets a field of the configuration.
    pub fn set(&self, offset: usize, value: u64) {
        let mut state = self.state();
        state.config.retain(|(at, _)| *at != offset);
        state.config.push((offset, value));
    }

    pub fn start(&self) -> Result<Unit, IommuError> {
        let limits = Config { turn_timeout: Nanos::from_millis(1) };
        Viommu::start(self.clone(), Ticks::default(), limits)
    }

    /// A unit and a domain that [`FIRST`] is attached to.
    pub fn attached(&self) -> (Unit, Arc<Space>) {
        use portolan::iommu::Attach as _;
        let unit = self.start().unwrap();
        let domain = unit.domain().unwrap();
        unit.attach(FIRST, &domain).unwrap();
        self.take();
        (unit, domain)
    }
}

/// A request by its bytes, as section 5.13.6 has them.
fn decode(bytes: &[u8]) -> Request {
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let domain = u32_at(4);
    match (bytes[0], bytes.len()) {
        (1, 20) => Request::Attach { domain, endpoint: u32_at(8), flags: u32_at(12) },
        (2, 20) => Request::Detach { domain, endpoint: u32_at(8) },
        (3, 36) => Request::Map {
            domain,
            start: u64_at(8),
            last: u64_at(16),
            phys: u64_at(24),
            flags: u32_at(32),
        },
        (4, 28) => Request::Unmap { domain, start: u64_at(8), last: u64_at(16) },
        (5, 72) => Request::Probe { endpoint: domain },
        other => panic!("no request: {other:?}"),
    }
}

impl Transport for Scripted {
    fn features(&self) -> u64 {
        self.state().features
    }

    fn config32(&self, offset: usize) -> Result<u32, IommuError> {
        self.config64(offset).map(|value| value as u32)
    }

    fn config64(&self, offset: usize) -> Result<u64, IommuError> {
        let state = self.state();
        let found = state.config.iter().find(|(at, _)| *at == offset);
        Ok(found.map_or(0, |(_, value)| *value))
    }

    /// A field that the test has set stays as it is.
    fn set_config8(&self, offset: usize, value: u8) -> Result<u8, IommuError> {
        let state = self.state();
        let found = state.config.iter().find(|(at, _)| *at == offset);
        Ok(found.map_or(value, |(_, stays)| *stays as u8))
    }

    fn request(&self, request: &[u8], answer: &mut [u8]) -> Result<(), IommuError> {
        let meanwhile = self.state().meanwhile.take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        let mut state = self.state();
        state.seen.push(decode(request));
        let tail = answer.len() - TAIL_BYTES;
        match state.answers.pop_front().unwrap_or(Answer::Status(0)) {
            Answer::Status(status) => answer[tail..].copy_from_slice(&[status, 0, 0, 0]),
            Answer::Unwritten => {}
            Answer::Lost => {
                return Err(IommuError::TimedOut {
                    awaited: Awaited::Completion,
                    waited: Nanos::new(1),
                });
            }
        }
        for (to, from) in answer[..tail].iter_mut().zip(&state.properties) {
            *to = *from;
        }
        Ok(())
    }

    fn request_all(&self, batch: &mut [Exchange<'_>]) {
        self.state().batches.push(batch.len());
        for one in batch {
            one.outcome = self.request(one.request, one.answer);
        }
    }

    fn all_returned(&self) -> bool {
        self.state().returned
    }

    fn next_fault(&self) -> Result<Option<([u8; FAULT_BYTES], usize)>, IommuError> {
        Ok(self.state().faults.pop_front())
    }
}

/// Time that goes on by a microsecond a look.
#[derive(Debug, Default)]
pub struct Ticks(AtomicU64);

portolan::one_cpu!(Ticks);

impl Clock for Ticks {
    fn now(&self) -> Nanos {
        Nanos::new(self.0.fetch_add(1000, Ordering::Relaxed))
    }
}

pub type Unit = Viommu<Scripted, Ticks>;
pub type Space = VirtioDomain<Scripted, Ticks>;

pub fn range(start: u64, bytes: u64) -> IovaRange {
    IovaRange::from_len(Iova::new(start), bytes).unwrap()
}

/// Maps `bytes` at `iova` to memory 16 MiB above it; returns the debt.
pub fn map(domain: &Space, iova: u64, bytes: u64) -> Gather {
    let mut owed = Gather::new();
    try_map(domain, iova, iova + MEMORY, bytes, &mut owed).unwrap();
    owed
}

/// Distance of the memory of [`map`] above its addresses, in bytes.
pub const MEMORY: u64 = 0x100_0000;

pub fn try_map(
    domain: &Space,
    iova: u64,
    pa: u64,
    bytes: u64,
    owed: &mut Gather,
) -> Result<IovaRange, DomainError> {
    let memory = promised(PhysAddr::new(pa), bytes);
    domain.map(Iova::new(iova), memory, Access::READ_WRITE, owed)
}

pub fn unmap(domain: &Space, iova: u64, bytes: u64) -> Gather {
    let mut owed = Gather::new();
    try_unmap(domain, range(iova, bytes), &mut owed).unwrap();
    owed
}

pub fn try_unmap(
    domain: &Space,
    range: IovaRange,
    owed: &mut Gather,
) -> Result<(), DomainUnmapError> {
    domain.unmap(range, owed)
}

pub fn sync(domain: &Space, owed: &mut Gather) -> Result<(), IommuError> {
    domain.sync(owed).map(drop).map_err(IommuError::from)
}

/// Maps and tells the device, which does it; nothing is remembered of that.
pub fn mapped(device: &Scripted, domain: &Space, iova: u64, bytes: u64) {
    sync(domain, &mut map(domain, iova, bytes)).unwrap();
    device.take();
}

/// The request for the mapping of [`map`].
pub fn told(iova: u64, bytes: u64) -> Request {
    Request::Map {
        domain: DOMAIN,
        start: iova,
        last: iova + bytes - 1,
        phys: iova + MEMORY,
        flags: 3,
    }
}

/// The request for the unmap of [`unmap`].
pub fn untold(iova: u64, bytes: u64) -> Request {
    Request::Unmap { domain: DOMAIN, start: iova, last: iova + bytes - 1 }
}

/// The physical address that the driver says is at `iova`.
pub fn found(domain: &Space, iova: u64) -> Option<u64> {
    let found = domain.translate(Iova::new(iova))?;
    Some(found.pa.get())
}
