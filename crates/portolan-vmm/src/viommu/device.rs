//! The device as a monitor has it: its configuration, its endpoints and their listeners, and its queues.
//!
//! Virtual I/O Device (VIRTIO) 1.2, section 5.13. Not supported: the field `bypass` for drivers that do not accept
//! `VIRTIO_IOMMU_F_BYPASS_CONFIG`, to which it applies all the same.

use std::sync::Arc;

use portolan::addr::{Iova, IovaRange, PhysRange};
use portolan_spec::virtio::{self as spec, FAULT_BYTES, RESV_MEM_BYTES, TAIL_BYTES, config};
use vm_memory::Permissions;

use super::inner::{PROBE_BYTES, ViommuInner};
use super::listener::{Change, Grant, Listener, ListenerCounts, make_all, make_each};
use super::options::{NotAdded, NotListening, NotTakenAway, Reset, ViommuOptions};
use super::requests::{self, status};
use super::state::{ViommuEndpoint, without_domain};
use crate::endpoint::{Endpoint, EndpointId, Source};
use crate::iotlb::EVERYTHING;

/// Bytes of a property's head.
const HEAD_BYTES: usize = 4;

/// A virtio-iommu.
#[derive(Debug)]
pub struct VirtioIommu(Arc<ViommuInner>);

impl VirtioIommu {
    /// A device without endpoints.
    pub fn new(options: ViommuOptions) -> Self {
        Self(Arc::new(ViommuInner::new(options)))
    }

    pub(super) fn inner(&self) -> &ViommuInner {
        &self.0
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
            listener: None,
        };
        state.endpoints.insert(id.get(), place);
        Ok(endpoint)
    }

    /// Takes a device away (hot-unplug): its accesses are refused, its listener loses all grants, and its number
    /// may be given to another one. Other endpoints of its domain keep theirs.
    ///
    /// # Errors
    /// See [`NotTakenAway`]. The device is taken away all the same.
    pub fn remove(&self, id: EndpointId) -> Result<(), NotTakenAway> {
        let order = self.0.order();
        let failed = self.stop_listening(id)?;
        let mut state = self.0.state();
        let left = state.leave(id.get()).map_err(|_| NotTakenAway::NoEndpoint(id))?;
        state.endpoints.remove(&id.get());
        drop((state, order));
        self.forgotten(&[left], failed)
    }

    /// Tells `listener` of the endpoint's grants: those that it has, before this returns, and all changes until
    /// [`VirtioIommu::remove_listener`] or [`VirtioIommu::remove`].
    ///
    /// # Errors
    /// See [`NotListening`].
    pub fn listen(&self, id: EndpointId, listener: Arc<dyn Listener>) -> Result<(), NotListening> {
        let _order = self.0.order();
        let state = self.0.state();
        let place = state.endpoints.get(&id.get()).ok_or(NotListening::NoEndpoint(id))?;
        if place.listener.is_some() {
            return Err(NotListening::Taken(id));
        }
        let to = state.grants(place.domain).into();
        let change = Change { listener: Arc::clone(&listener), from: [].into(), to };
        drop(state);
        make_all(&[change], &self.0.counters).map_err(NotListening::Refused)?;
        if let Some(place) = self.0.state().endpoints.get_mut(&id.get()) {
            place.listener = Some(listener);
        }
        Ok(())
    }

    /// Takes all grants from the endpoint's listener, if it has one, and tells it of no more.
    ///
    /// # Errors
    /// See [`NotTakenAway`]. It is told of no more all the same.
    pub fn remove_listener(&self, id: EndpointId) -> Result<(), NotTakenAway> {
        let _order = self.0.order();
        match self.stop_listening(id)? {
            0 => Ok(()),
            failed => Err(NotTakenAway::Listeners { failed }),
        }
    }

    /// The same, in the order of changes; returns the number of calls that failed.
    fn stop_listening(&self, id: EndpointId) -> Result<usize, NotTakenAway> {
        let mut state = self.0.state();
        let place = state.endpoints.get(&id.get()).ok_or(NotTakenAway::NoEndpoint(id))?;
        let change = state.change(place, Vec::new);
        if let Some(place) = state.endpoints.get_mut(&id.get()) {
            place.listener = None;
        }
        drop(state);
        Ok(make_each(change.as_slice(), &self.0.counters))
    }

    /// Has `endpoints` forget everything, after `failed` calls to listeners that failed.
    fn forgotten(&self, endpoints: &[Endpoint], failed: usize) -> Result<(), NotTakenAway> {
        let limit = self.0.options.invalidation_limit;
        let forgotten = endpoints.iter().map(|endpoint| endpoint.forget(EVERYTHING, limit));
        let held = forgotten.fold(Ok(()), Result::and);
        if failed != 0 {
            return Err(NotTakenAway::Listeners { failed });
        }
        Ok(held?)
    }

    /// Resets the device: no endpoint has a domain, and faults that the guest has not read are gone. Endpoints and
    /// listeners stay.
    ///
    /// # Errors
    /// See [`NotTakenAway`]. The device is reset all the same.
    pub fn reset(&self, kind: Reset) -> Result<(), NotTakenAway> {
        let order = self.0.order();
        let state = self.0.state();
        let bypass = match kind {
            Reset::Device => state.bypass,
            Reset::System => self.0.options.bypass,
        };
        let places = state.endpoints.values();
        let changes = places.filter_map(|place| state.change(place, || without_domain(bypass)));
        let changes: Vec<_> = changes.collect();
        drop(state);
        let failed = make_each(&changes, &self.0.counters);
        let mut state = self.0.state();
        state.bypass = bypass;
        state.domains.clear();
        state.faults.clear();
        state.endpoints.values_mut().for_each(|place| place.domain = None);
        let endpoints = state.all();
        drop((state, order));
        self.forgotten(&endpoints, failed)
    }

    /// The lowest address of an endpoint that leads to all of `target` in one mapping for `access`: for rings that are
    /// known by their place in the guest (vDPA). Looks at each mapping of the endpoint's domain.
    pub fn iova_of(&self, id: EndpointId, target: PhysRange, access: Permissions) -> Option<Iova> {
        let state = self.0.state();
        let place = state.endpoints.get(&id.get())?;
        let leads = |grant: Grant| match grant {
            Grant::PassThrough => Some(Iova::new(target.start().get())),
            Grant::Mapping(mapping) => {
                let at = target.start().get().checked_sub(mapping.target.get())?;
                let last = at.checked_add(target.len_minus_one())?;
                let fits = last <= mapping.iova.len_minus_one() && mapping.access.allow(access);
                fits.then(|| Iova::new(mapping.iova.start().get() + at))
            }
        };
        state.grants(place.domain).into_iter().find_map(leads)
    }

    /// Names the ranges of the guest's addresses that are device memory, in place of those before. A mapping lies
    /// in one of them, if [`ViommuOptions::device_memory`] is set, or has no address of any. Mappings that there are
    /// stay as they are.
    pub fn set_device_memory(&self, ranges: &[PhysRange]) {
        let _order = self.0.order();
        self.0.state().device_memory = ranges.to_vec();
    }

    /// Its feature bits, without those of the transport and of the ring.
    pub fn features(&self) -> u64 {
        let always = spec::F_INPUT_RANGE
            | spec::F_DOMAIN_RANGE
            | spec::F_MAP_UNMAP
            | spec::F_PROBE
            | spec::F_BYPASS_CONFIG;
        if self.0.options.device_memory { always | spec::F_MMIO } else { always }
    }

    /// Its configuration space.
    pub fn config(&self) -> [u8; 40] {
        let ViommuOptions { pages, input, last_domain, .. } = self.0.options;
        let mut bytes = [0; 40];
        let mut put = |at: usize, field: &[u8]| {
            if let Some(place) = bytes.get_mut(at..at + field.len()) {
                place.copy_from_slice(field);
            }
        };
        put(config::PAGE_SIZE_MASK, &pages.bits().to_le_bytes());
        put(config::INPUT_RANGE_START, &input.start().get().to_le_bytes());
        put(config::INPUT_RANGE_END, &input.last().get().to_le_bytes());
        put(config::DOMAIN_RANGE_END, &last_domain.to_le_bytes());
        put(config::PROBE_SIZE, &(PROBE_BYTES as u32).to_le_bytes());
        put(config::BYPASS, &[u8::from(self.0.state().bypass)]);
        bytes
    }

    /// Writes one byte of the configuration for the guest. All are read-only but the one for endpoints without a
    /// domain, which takes 0 and 1: with 1 they pass through. It stays as it was if a listener refuses the change.
    pub fn write_config(&self, offset: usize, value: u8) {
        if offset != config::BYPASS || value > 1 {
            return;
        }
        let order = self.0.order();
        let state = self.0.state();
        let bypass = value == 1;
        let places = || state.endpoints.values().filter(|place| place.domain.is_none());
        let changes = places().filter_map(|place| state.change(place, || without_domain(bypass)));
        let changes: Vec<_> = changes.collect();
        let endpoints: Vec<_> = places().map(|place| place.endpoint.clone()).collect();
        drop(state);
        if make_all(&changes, &self.0.counters).is_err() {
            return;
        }
        self.0.state().bypass = bypass;
        drop(order);
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

    /// Counts of calls to listeners so far.
    pub fn listener_counts(&self) -> ListenerCounts {
        self.0.counters.read()
    }
}
