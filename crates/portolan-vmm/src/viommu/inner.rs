//! The device's shared part: its state, the order of changes, and the guest's requests, carried out.
//!
//! Virtual I/O Device (VIRTIO) 1.2, sections 5.13.6.3 to 5.13.6.7.
//!
//! Listeners hear of a change before it is in the state, without the state's lock; so a look-up in the meantime
//! finds the translations from before. [`ViommuInner::order`] keeps changes apart.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan::addr::{Iova, IovaRange, PhysAddr, PhysRange};
use portolan_spec::virtio::{
    ATTACH_BYPASS, MAP_MMIO, MAP_READ, MAP_WRITE, P_RESV_MEM, R_MAPPING, RESV_MEM_BYTES, RESV_MSI,
    Request,
};
use vm_memory::Permissions;

use super::domains::{Domain, DomainKind, grants};
use super::listener::{Change, Grant, ListenerCounters, Mapping, MemoryKind, make_all};
use super::options::ViommuOptions;
use super::requests::status;
use super::state::{ViommuEndpoint, ViommuState};
use crate::endpoint::{Endpoint, Source};
use crate::iotlb::EVERYTHING;

/// Bytes of the properties in the answer to a probe.
pub(super) const PROBE_BYTES: usize = 512;

/// State of the device, shared with its endpoints.
#[derive(Debug)]
pub(super) struct ViommuInner {
    pub(super) options: ViommuOptions,
    pub(super) counters: ListenerCounters,
    /// Held from a change's first look at the state until the change is in it.
    order: Mutex<()>,
    state: Mutex<ViommuState>,
}

/// A request for a mapping.
#[derive(Clone, Copy)]
pub(super) struct MapRequest {
    pub(super) range: IovaRange,
    pub(super) phys: u64,
    pub(super) flags: u32,
}

impl ViommuInner {
    pub(super) fn new(options: ViommuOptions) -> Self {
        let state = ViommuState { bypass: options.bypass, ..ViommuState::default() };
        Self {
            options,
            counters: ListenerCounters::default(),
            order: Mutex::default(),
            state: Mutex::new(state),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, ViommuState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn order(&self) -> MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn forget(&self, endpoints: &[Endpoint], range: IovaRange) -> Result<(), u8> {
        let limit = self.options.invalidation_limit;
        // Each of them, also after one that failed.
        let all = endpoints.iter().map(|endpoint| endpoint.forget(range, limit));
        let failed = all.filter(Result::is_err).count();
        if failed == 0 { Ok(()) } else { Err(status::DEVERR) }
    }

    fn tell(&self, changes: &[Change]) -> Result<(), u8> {
        make_all(changes, &self.counters).map_err(|_| status::DEVERR)
    }

    pub(super) fn carry_out(&self, request: Request, properties: &mut [u8]) -> Result<(), u8> {
        match request {
            Request::Attach { domain, endpoint, flags } => self.attach(domain, endpoint, flags),
            Request::Detach { domain, endpoint } => self.detach(domain, endpoint),
            Request::Map { domain, start, last, phys, flags } => {
                let range = range_of(start, last)?;
                self.map(domain, MapRequest { range, phys, flags })
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
        let order = self.order();
        let state = self.state();
        let bypass = flags & ATTACH_BYPASS != 0;
        let other = state.domains.get(&domain);
        if other.is_some_and(|other| other.is_bypass() != bypass) {
            return Err(status::INVAL);
        }
        let place = state.endpoints.get(&endpoint).ok_or(status::NOENT)?;
        // A domain of which it is the last endpoint ends, and begins anew.
        let stays = other.filter(|other| other.endpoints.iter().any(|of| *of != endpoint));
        let to = || stays.map_or_else(|| Domain::new(bypass).grants(), Domain::grants);
        // Others of the domain may have mapped what is a doorbell of this one.
        if let Some(Domain { kind: DomainKind::Mapped(mappings), .. }) = stays
            && place.doorbells.iter().any(|doorbell| mappings.overlaps(*doorbell))
        {
            return Err(status::UNSUPP);
        }
        let change = state.change(place, to);
        drop(state);
        self.tell(change.as_slice())?;
        let mut state = self.state();
        let moved = state.leave(endpoint)?;
        let joined = state.domains.entry(domain).or_insert_with(|| Domain::new(bypass));
        joined.endpoints.insert(endpoint);
        if let Some(place) = state.endpoints.get_mut(&endpoint) {
            place.domain = Some(domain);
        }
        drop((state, order));
        self.forget(&[moved], EVERYTHING)
    }

    fn detach(&self, domain: u32, endpoint: u32) -> Result<(), u8> {
        let order = self.order();
        let state = self.state();
        let place = state.endpoints.get(&endpoint).ok_or(status::NOENT)?;
        if place.domain != Some(domain) {
            return Err(status::INVAL);
        }
        let change = state.change(place, || state.grants(None));
        drop(state);
        self.tell(change.as_slice())?;
        let moved = self.state().leave(endpoint)?;
        drop(order);
        self.forget(&[moved], EVERYTHING)
    }

    /// The mapping of a request, if a guest may have it in a domain without doorbells.
    pub(super) fn mapping(
        &self,
        request: MapRequest,
        device_memory: &[PhysRange],
    ) -> Result<Mapping, u8> {
        let MapRequest { range, phys, flags } = request;
        let mask = self.options.pages.smallest().map_or(0, |page| page.bytes() - 1);
        let (start, last) = (range.start().get(), range.last().get());
        let aligned = (start | phys | last.wrapping_add(1)) & mask == 0;
        let known = match self.options.device_memory {
            true => MAP_READ | MAP_WRITE | MAP_MMIO,
            false => MAP_READ | MAP_WRITE,
        };
        let end = phys.checked_add(range.len_minus_one()).map(PhysAddr::new);
        let target = end.and_then(|end| PhysRange::new(PhysAddr::new(phys), end));
        let (true, Some(target)) = (flags & !known == 0 && aligned, target) else {
            return Err(status::INVAL);
        };
        if !self.options.input.covers(range) {
            return Err(status::RANGE);
        }
        // Device memory is where the monitor says that it is, marked by the guest or not.
        let kind = match device_memory.iter().find(|of| of.overlaps(target)) {
            Some(of) if self.options.device_memory && of.covers(target) => MemoryKind::Device,
            None if flags & MAP_MMIO == 0 => MemoryKind::Ram,
            Some(_) | None => return Err(status::INVAL),
        };
        let access = match (flags & MAP_READ != 0, flags & MAP_WRITE != 0) {
            (false, false) => Permissions::No,
            (true, false) => Permissions::Read,
            (false, true) => Permissions::Write,
            (true, true) => Permissions::ReadWrite,
        };
        Ok(Mapping { iova: range, target: target.start(), access, kind })
    }

    fn map(&self, domain: u32, request: MapRequest) -> Result<(), u8> {
        let _order = self.order();
        let state = self.state();
        let mapping = self.mapping(request, &state.device_memory)?;
        let full = state.mappings() >= self.options.mappings;
        let found = state.domains.get(&domain).ok_or(status::NOENT)?;
        let places = || found.endpoints.iter().filter_map(|at| state.endpoints.get(at));
        match &found.kind {
            _ if places().any(|place| place.rings_in(mapping.iova)) => return Err(status::INVAL),
            DomainKind::Bypass => return Err(status::INVAL),
            DomainKind::Mapped(_) if full => return Err(status::NOMEM),
            DomainKind::Mapped(mappings) if mappings.overlaps(mapping.iova) => {
                return Err(status::INVAL);
            }
            DomainKind::Mapped(_) => {}
        }
        let changes = changes(places(), &[], &grants([&mapping].into_iter()));
        drop(state);
        self.tell(&changes)?;
        if let Some(mappings) = self.state().mappings_of(domain) {
            mappings.insert(mapping);
        }
        Ok(())
    }

    fn unmap(&self, domain: u32, range: IovaRange) -> Result<(), u8> {
        let order = self.order();
        let state = self.state();
        let found = state.domains.get(&domain).ok_or(status::NOENT)?;
        let DomainKind::Mapped(mappings) = &found.kind else {
            return Err(status::INVAL);
        };
        let places = || found.endpoints.iter().filter_map(|at| state.endpoints.get(at));
        let changes = changes(places(), &grants(mappings.whole_in(range)?), &[]);
        let told: Vec<_> = places().map(|place| place.endpoint.clone()).collect();
        drop(state);
        self.tell(&changes)?;
        if let Some(mappings) = self.state().mappings_of(domain) {
            mappings.remove(range);
        }
        drop(order);
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

/// The change of `from` to `to` for each of `places` that has a listener.
fn changes<'p>(
    places: impl Iterator<Item = &'p ViommuEndpoint>,
    from: &[Grant],
    to: &[Grant],
) -> Vec<Change> {
    let listeners: Vec<_> = places.filter_map(|place| place.listener.clone()).collect();
    if listeners.is_empty() {
        return Vec::new();
    }
    let (from, to) = (from.into(), to.into());
    let change = |listener| Change { listener, from: Arc::clone(&from), to: Arc::clone(&to) };
    listeners.into_iter().map(change).collect()
}

/// The addresses of a request.
fn range_of(start: u64, last: u64) -> Result<IovaRange, u8> {
    IovaRange::new(Iova::new(start), Iova::new(last)).ok_or(status::INVAL)
}

impl Source for ViommuInner {
    fn fill(&self, endpoint: &Endpoint, at: Iova, range: IovaRange, access: Permissions) -> bool {
        // Under the lock: a mapping that is unmapped afterwards is taken out again.
        let mut state = self.state();
        let Some(place) = state.place_of(endpoint) else {
            // It was removed; to the guest it is not there.
            return false;
        };
        let filled = endpoint.fill(at, range, |from| match state.find(place, from) {
            Ok(found) if !found.access.allow(access) => Err(R_MAPPING),
            found => found,
        });
        if let Err(reason) = filled {
            state.record(reason, endpoint.id(), at, access);
        }
        filled.is_ok()
    }
}
