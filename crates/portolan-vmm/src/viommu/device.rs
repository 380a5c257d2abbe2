//! The device: its configuration, its endpoints, and its treatment of requests.
//!
//! Virtual I/O Device (VIRTIO) 1.2, section 5.13. Not supported: mappings of device memory (`VIRTIO_IOMMU_F_MMIO`).

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use portolan::addr::{Iova, IovaRange, PageSize, PageSizes};
use portolan_spec::virtio::{
    self as spec, ATTACH_BYPASS, FAULT_BYTES, MAP_READ, MAP_WRITE, P_RESV_MEM, R_MAPPING,
    RESV_MEM_BYTES, RESV_MSI, Request, TAIL_BYTES, config,
};
use vm_memory::Permissions;

use super::domains::{Domain, DomainKind, Mappings};
use super::requests::{self, status};
use super::state::{ViommuEndpoint, ViommuState};
use crate::endpoint::{Endpoint, EndpointId, Source};
use crate::iotlb::EVERYTHING;

/// Properties of a virtio-iommu.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ViommuOptions {
    /// Sizes of pages; mappings are aligned to the smallest.
    pub pages: PageSizes,
    /// Addresses that can be mapped.
    pub input: IovaRange,
    /// The last number of a domain.
    pub last_domain: u32,
    /// Mappings of all domains at most: without a limit, the guest would decide their number.
    pub mappings: usize,
    /// Translations that an endpoint's IOTLB keeps at most.
    pub capacity: NonZeroUsize,
    /// Longest time that a request waits for guards on the translations that it takes away.
    pub invalidation_limit: Duration,
}

impl Default for ViommuOptions {
    /// Pages of 4 KiB, all of 48 bits, 65,536 domains, a million mappings, 4,096 translations, 5 seconds.
    fn default() -> Self {
        Self {
            pages: PageSizes::from_bits(0).with(PageSize::SIZE_4K),
            input: const { IovaRange::new(Iova::new(0), Iova::new((1 << 48) - 1)).unwrap() },
            last_domain: 0xffff,
            mappings: 1 << 20,
            capacity: const { NonZeroUsize::new(4096).unwrap() },
            invalidation_limit: Duration::from_secs(5),
        }
    }
}

/// Reason why an endpoint was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdded {
    /// There is one of this number.
    #[error("there is an endpoint {} already", .0.get())]
    Taken(EndpointId),
    /// More doorbells than the answer to a probe has room for.
    #[error("{found} doorbells are too many")]
    Doorbells {
        /// Their number.
        found: usize,
    },
}

/// Bytes of the properties in the answer to a probe.
const PROBE_BYTES: usize = 512;
/// Bytes of a property's head.
const HEAD_BYTES: usize = 4;

#[derive(Debug)]
pub(super) struct ViommuInner {
    options: ViommuOptions,
    state: Mutex<ViommuState>,
}

/// A virtio-iommu.
#[derive(Debug)]
pub struct VirtioIommu(Arc<ViommuInner>);

impl VirtioIommu {
    /// A device without endpoints; those without a domain reach nothing until the guest says otherwise.
    pub fn new(options: ViommuOptions) -> Self {
        Self(Arc::new(ViommuInner { options, state: Mutex::default() }))
    }

    /// Adds a device, which must not map `doorbells`, where its messages go.
    ///
    /// # Errors
    /// See [`NotAdded`].
    pub fn add(&self, id: EndpointId, doorbells: &[IovaRange]) -> Result<Endpoint, NotAdded> {
        let found = doorbells.len();
        if found > PROBE_BYTES / (HEAD_BYTES + RESV_MEM_BYTES) {
            return Err(NotAdded::Doorbells { found });
        }
        let mut state = self.0.state();
        if state.endpoints.contains_key(&id.get()) {
            return Err(NotAdded::Taken(id));
        }
        let capacity = self.0.options.capacity;
        let source: Arc<dyn Source> = self.0.clone();
        let endpoint = Endpoint::new(id, Arc::downgrade(&source), capacity);
        let place = ViommuEndpoint {
            endpoint: endpoint.clone(),
            domain: None,
            doorbells: doorbells.to_vec(),
        };
        state.endpoints.insert(id.get(), place);
        Ok(endpoint)
    }

    /// Its feature bits, without those of the transport and of the ring.
    pub fn features(&self) -> u64 {
        spec::F_INPUT_RANGE
            | spec::F_DOMAIN_RANGE
            | spec::F_MAP_UNMAP
            | spec::F_PROBE
            | spec::F_BYPASS_CONFIG
    }

    /// Its configuration space.
    pub fn config(&self) -> [u8; 40] {
        let ViommuOptions { pages, input, .. } = self.0.options;
        let mut bytes = [0; 40];
        let mut put = |at: usize, field: &[u8]| {
            if let Some(place) = bytes.get_mut(at..at + field.len()) {
                place.copy_from_slice(field);
            }
        };
        put(config::PAGE_SIZE_MASK, &pages.bits().to_le_bytes());
        put(config::INPUT_RANGE_START, &input.start().get().to_le_bytes());
        put(config::INPUT_RANGE_END, &input.last().get().to_le_bytes());
        let last = self.0.options.last_domain;
        put(config::DOMAIN_RANGE_END, &last.to_le_bytes());
        put(config::PROBE_SIZE, &(PROBE_BYTES as u32).to_le_bytes());
        put(config::BYPASS, &[self.0.state().bypass]);
        bytes
    }

    /// The guest writes one byte of the configuration. All are read-only but the one for endpoints without a
    /// domain, which takes 0 and 1: with 1 they pass through.
    pub fn write_config(&self, offset: usize, value: u8) {
        if offset != config::BYPASS || value > 1 {
            return;
        }
        let mut state = self.0.state();
        state.bypass = value;
        let places = state.endpoints.values().filter(|place| place.domain.is_none());
        let endpoints: Vec<_> = places.map(|place| place.endpoint.clone()).collect();
        drop(state);
        // There is no answer that could say that a guard is still held.
        let _ = self.0.forget(&endpoints, EVERYTHING);
    }

    /// Carries out `request`, the part of a chain that the device reads, and fills `answer`, the part that it
    /// writes; returns the number of bytes that were written. Mappings that a request takes away are not reached
    /// any more when it is answered.
    pub fn request(&self, request: &[u8], answer: &mut [u8]) -> usize {
        let written = answer.len();
        let Some(tail) = written.checked_sub(TAIL_BYTES) else {
            return 0;
        };
        let (properties, tail) = answer.split_at_mut(tail);
        let done =
            requests::read(request).and_then(|request| self.0.carry_out(request, properties));
        tail.copy_from_slice(&[done.err().unwrap_or(status::OK), 0, 0, 0]);
        written
    }

    /// The oldest record of an access that was refused, for the event queue.
    pub fn next_fault(&self) -> Option<[u8; FAULT_BYTES]> {
        self.0.state().faults.next()
    }

    /// Records for which there was no room.
    pub fn faults_lost(&self) -> u64 {
        self.0.state().faults.lost()
    }
}

impl ViommuInner {
    fn state(&self) -> MutexGuard<'_, ViommuState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, endpoints: &[Endpoint], range: IovaRange) -> Result<(), u8> {
        let limit = self.options.invalidation_limit;
        // Each of them, also after one that failed.
        let all = endpoints.iter().map(|endpoint| endpoint.forget(range, limit));
        let failed = all.filter(Result::is_err).count();
        if failed == 0 { Ok(()) } else { Err(status::DEVERR) }
    }

    fn carry_out(&self, request: Request, properties: &mut [u8]) -> Result<(), u8> {
        match request {
            Request::Attach { domain, endpoint, flags } => self.attach(domain, endpoint, flags),
            Request::Detach { domain, endpoint } => self.detach(domain, endpoint),
            Request::Map { domain, start, last, phys, flags } => {
                self.map(domain, range_of(start, last)?, phys, flags)
            }
            Request::Unmap { domain, start, last } => self.unmap(domain, range_of(start, last)?),
            Request::Probe { endpoint } => self.probe(endpoint, properties),
        }
    }

    fn attach(&self, domain: u32, endpoint: u32, flags: u32) -> Result<(), u8> {
        if flags & !ATTACH_BYPASS != 0 {
            return Err(status::INVAL);
        }
        if domain > self.options.last_domain {
            return Err(status::RANGE);
        }
        let mut state = self.state();
        let bypass = flags & ATTACH_BYPASS != 0;
        let other = state.domains.get(&domain);
        if other.is_some_and(|other| matches!(other.kind, DomainKind::Bypass) != bypass) {
            return Err(status::INVAL);
        }
        let moved = state.leave(endpoint)?;
        let kind = match bypass {
            true => DomainKind::Bypass,
            false => DomainKind::Mapped(Mappings::default()),
        };
        let joined = state
            .domains
            .entry(domain)
            .or_insert_with(|| Domain { kind, endpoints: BTreeSet::new() });
        joined.endpoints.insert(endpoint);
        if let Some(place) = state.endpoints.get_mut(&endpoint) {
            place.domain = Some(domain);
        }
        drop(state);
        self.forget(&[moved], EVERYTHING)
    }

    fn detach(&self, domain: u32, endpoint: u32) -> Result<(), u8> {
        let mut state = self.state();
        let place = state.endpoints.get(&endpoint).ok_or(status::NOENT)?;
        if place.domain != Some(domain) {
            return Err(status::INVAL);
        }
        let moved = state.leave(endpoint)?;
        drop(state);
        self.forget(&[moved], EVERYTHING)
    }

    fn map(&self, domain: u32, range: IovaRange, phys: u64, flags: u32) -> Result<(), u8> {
        let mask = self.options.pages.smallest().map_or(0, |page| page.bytes() - 1);
        let (start, last) = (range.start().get(), range.last().get());
        let aligned = (start | phys | last.wrapping_add(1)) & mask == 0;
        let fits = phys.checked_add(range.len_minus_one()).is_some();
        if flags & !(MAP_READ | MAP_WRITE) != 0 || !aligned || !fits {
            return Err(status::INVAL);
        }
        if !self.options.input.covers(range) {
            return Err(status::RANGE);
        }
        let mut state = self.state();
        let full = state.mappings() >= self.options.mappings;
        let ViommuState { domains, endpoints, .. } = &mut *state;
        let domain = domains.get_mut(&domain).ok_or(status::NOENT)?;
        let mut places = domain.endpoints.iter().filter_map(|at| endpoints.get(at));
        let on_doorbell =
            |place: &ViommuEndpoint| place.doorbells.iter().any(|of| of.overlaps(range));
        match &mut domain.kind {
            _ if places.any(on_doorbell) => Err(status::INVAL),
            DomainKind::Bypass => Err(status::INVAL),
            DomainKind::Mapped(_) if full => Err(status::NOMEM),
            DomainKind::Mapped(mappings) => mappings.map(range, phys, flags),
        }
    }

    fn unmap(&self, domain: u32, range: IovaRange) -> Result<(), u8> {
        let mut state = self.state();
        let ViommuState { domains, endpoints, .. } = &mut *state;
        let domain = domains.get_mut(&domain).ok_or(status::NOENT)?;
        match &mut domain.kind {
            DomainKind::Bypass => return Err(status::INVAL),
            DomainKind::Mapped(mappings) => mappings.unmap(range)?,
        }
        let places = domain.endpoints.iter().filter_map(|at| endpoints.get(at));
        let told: Vec<_> = places.map(|place| place.endpoint.clone()).collect();
        drop(state);
        self.forget(&told, range)
    }

    fn probe(&self, endpoint: u32, properties: &mut [u8]) -> Result<(), u8> {
        if properties.len() < PROBE_BYTES {
            return Err(status::INVAL);
        }
        let state = self.state();
        let place = state.endpoints.get(&endpoint).ok_or(status::NOENT)?;
        let property = |doorbell: &IovaRange| {
            let head = [P_RESV_MEM, RESV_MEM_BYTES as u16].map(u16::to_le_bytes);
            let (start, last) = (doorbell.start().get(), doorbell.last().get());
            let ends = [start, last].map(u64::to_le_bytes);
            [&head.concat()[..], &[RESV_MSI, 0, 0, 0], &ends.concat()].concat()
        };
        let all: Vec<u8> = place.doorbells.iter().flat_map(property).collect();
        properties.fill(0);
        for (to, from) in properties.iter_mut().zip(all) {
            *to = from;
        }
        Ok(())
    }
}

/// The addresses of a request.
fn range_of(start: u64, last: u64) -> Result<IovaRange, u8> {
    IovaRange::new(Iova::new(start), Iova::new(last)).ok_or(status::INVAL)
}

impl Source for ViommuInner {
    fn fill(&self, endpoint: &Endpoint, at: Iova, range: IovaRange, access: Permissions) -> bool {
        // Under the lock: a mapping that is unmapped afterwards is taken out again.
        let mut state = self.state();
        let filled = endpoint.fill(at, range, |from| match state.find(endpoint.id().get(), from) {
            Ok(found) if !found.access.allow(access) => Err(R_MAPPING),
            found => found,
        });
        if let Err(reason) = filled {
            state.record(reason, endpoint.id(), at, access);
        }
        filled.is_ok()
    }
}
