//! The device as the unit and its domains share it: its features, requests, identifiers, counts.
//!
//! *Context.* Interrupt for the public items, which are values.

use core::sync::atomic::{AtomicU64, Ordering};

use alloc::vec;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use portolan::addr::{Iova, IovaRange, PageSizes};
use portolan::iommu::IommuError;
use portolan::platform::{Cpus, Nanos};

use super::transport::{self, UNWRITTEN};
use super::transport::{Exchange, Transport};
use crate::ids::Ids;
use portolan_spec::virtio::{self as spec, Encoded, Request, config};

/// Most bytes of properties that the driver asks for; a device that has more is refused.
const MOST_PROPERTY_BYTES: usize = 1 << 16;

/// Most requests that are sent together.
pub(super) const BATCH: usize = 16;

/// Outcomes of requests that were sent together, in their order.
pub(super) type Outcomes = ArrayVec<Result<(), IommuError>, BATCH>;

/// Settings that the embedder chooses.
///
/// ```no_run
/// # use portolan::iommu::IommuError;
/// # use portolan::platform::{Cpus, Nanos};
/// # use portolan_hw::virtio::{Config, Transport, Viommu};
/// /// A device behind a transport that the embedder has.
/// fn open<T: Transport + Send + Sync, C: Cpus>(
///     transport: T, cpus: C,
/// ) -> Result<Viommu<T, C>, IommuError> {
///     let mut config = Config::default();
///     config.turn_timeout = Nanos::from_millis(100);
///     Viommu::start(transport, cpus, config)
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Longest time that an operation waits for another CPU's on the same addresses.
    pub turn_timeout: Nanos,
}

impl Default for Config {
    fn default() -> Self {
        Self { turn_timeout: Nanos::from_millis(1000) }
    }
}

/// Numbers of requests sent so far, successful or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// ATTACH.
    pub attach: u64,
    /// DETACH.
    pub detach: u64,
    /// MAP.
    pub map: u64,
    /// UNMAP.
    pub unmap: u64,
    /// PROBE.
    pub probe: u64,
}

#[derive(Debug)]
pub(super) struct Device<T, C: Cpus> {
    pub(super) transport: T,
    pub(super) clock: C,
    pub(super) limits: Config,
    pub(super) features: u64,
    pub(super) page_sizes: PageSizes,
    pub(super) input: IovaRange,
    pub(super) domains: Ids<C>,
    probe_bytes: usize,
    /// By type of request, from 1.
    counts: [AtomicU64; 5],
}

fn nonsense(offset: usize, value: u64) -> IommuError {
    IommuError::Nonsense { offset, value }
}

impl<T: Transport + Send + Sync, C: Cpus> Device<T, C> {
    /// Reads the configuration and turns pass-through of endpoints without a domain off.
    pub(super) fn start(transport: T, clock: C, limits: Config) -> Result<Self, IommuError> {
        let features = transport.features();
        if features & spec::F_MAP_UNMAP == 0 {
            return Err(IommuError::Unsupported);
        }
        let mask = transport.config64(config::PAGE_SIZE_MASK)?;
        let page_sizes = PageSizes::from_bits(mask);
        match mask {
            u64::MAX if features == u64::MAX => return Err(IommuError::Gone),
            0 => return Err(nonsense(config::PAGE_SIZE_MASK, 0)),
            _ => {}
        }
        let has = |feature| features & feature != 0;
        let input = if has(spec::F_INPUT_RANGE) {
            let start = transport.config64(config::INPUT_RANGE_START)?;
            let last = transport.config64(config::INPUT_RANGE_END)?;
            IovaRange::new(Iova::new(start), Iova::new(last))
                .ok_or(nonsense(config::INPUT_RANGE_END, last))?
        } else {
            IovaRange::new(Iova::new(0), Iova::new(u64::MAX)).ok_or(IommuError::Unsupported)?
        };
        let (first, last) = if has(spec::F_DOMAIN_RANGE) {
            let first = transport.config32(config::DOMAIN_RANGE_START)?;
            let last = transport.config32(config::DOMAIN_RANGE_END)?;
            if last < first {
                return Err(nonsense(config::DOMAIN_RANGE_END, last.into()));
            }
            (first, last)
        } else {
            (0, u32::MAX)
        };
        let probe_bytes = if has(spec::F_PROBE) {
            let said = transport.config32(config::PROBE_SIZE)?;
            let bytes = usize::try_from(said).ok();
            bytes
                .filter(|&bytes| bytes <= MOST_PROPERTY_BYTES)
                .ok_or(nonsense(config::PROBE_SIZE, said.into()))?
        } else {
            0
        };
        let device = Self {
            transport,
            clock,
            limits,
            features,
            page_sizes,
            input,
            domains: Ids::new(first, last),
            probe_bytes,
            counts: Default::default(),
        };
        device.block_others()?;
        Ok(device)
    }

    /// Blocks endpoints without a domain, as far as the device can.
    pub(super) fn block_others(&self) -> Result<(), IommuError> {
        if self.features & spec::F_BYPASS_CONFIG == 0 {
            return Ok(());
        }
        match self.transport.set_config8(config::BYPASS, 0)? {
            0 => Ok(()),
            now => Err(nonsense(config::BYPASS, now.into())),
        }
    }

    fn count(&self, request: Request) {
        let kind = request.encode().as_slice().first().map(|kind| kind - 1);
        let counter = kind.and_then(|kind| self.counts.get(usize::from(kind)));
        if let Some(counter) = counter {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let [attach, detach, map, unmap, probe] =
            [0, 1, 2, 3, 4].map(|at| self.counts.get(at).map_or(0, |c| c.load(Ordering::Relaxed)));
        Counts { attach, detach, map, unmap, probe }
    }

    /// Sends a request without properties and waits for it.
    pub(super) fn send(&self, request: Request) -> Result<(), IommuError> {
        let mut answer = [UNWRITTEN; spec::TAIL_BYTES];
        self.count(request);
        let encoded = request.encode();
        self.transport.request(encoded.as_slice(), &mut answer)?;
        transport::status(&answer)
    }

    /// Sends requests without properties together, and waits for all.
    pub(super) fn send_all(&self, requests: &[Request]) -> Outcomes {
        let encoded: ArrayVec<Encoded, BATCH> =
            requests.iter().take(BATCH).map(|one| one.encode()).collect();
        let mut answers = [[UNWRITTEN; spec::TAIL_BYTES]; BATCH];
        let mut batch: ArrayVec<Exchange<'_>, BATCH> = ArrayVec::new();
        for (request, answer) in encoded.iter().zip(&mut answers) {
            batch.push(Exchange { request: request.as_slice(), answer, outcome: Ok(()) });
        }
        requests.iter().for_each(|one| self.count(*one));
        self.transport.request_all(&mut batch);
        let ends = |one: &Exchange<'_>| one.outcome.and_then(|()| transport::status(one.answer));
        batch.iter().map(ends).collect()
    }

    /// Asks for the properties of an endpoint.
    pub(super) fn probe(&self, endpoint: u32) -> Result<Vec<u8>, IommuError> {
        if self.features & spec::F_PROBE == 0 {
            return Err(IommuError::Unsupported);
        }
        let request = Request::Probe { endpoint };
        let bytes = self.probe_bytes.saturating_add(spec::TAIL_BYTES);
        let mut answer = vec![0; bytes];
        if let Some(status) = answer.get_mut(self.probe_bytes) {
            *status = UNWRITTEN;
        }
        self.count(request);
        let encoded = request.encode();
        self.transport.request(encoded.as_slice(), &mut answer)?;
        transport::status(&answer)?;
        answer.truncate(self.probe_bytes);
        Ok(answer)
    }
}
