//! State of a virtio-iommu: endpoints, their domains, and faults that the guest has not read.
//!
//! Virtual I/O Device (VIRTIO) 1.2, sections 5.13.6.3, 5.13.6.4 and 5.13.6.8.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan::addr::{Iova, IovaRange, PhysRange};
use portolan_spec::virtio::{
    FAULT_ADDRESS, FAULT_BYTES, FAULT_READ, FAULT_WRITE, R_DOMAIN, R_MAPPING,
};
use vm_memory::Permissions;

use super::domains::{Domain, DomainKind, Mappings};
use super::listener::{Change, Grant, Listener};
use super::requests::status;
use crate::endpoint::{Endpoint, EndpointId};
use crate::faults::Faults;
use crate::iotlb::Translation;

/// An endpoint behind the device, and its domain.
#[derive(Debug)]
pub(super) struct ViommuEndpoint {
    pub(super) endpoint: Endpoint,
    pub(super) domain: Option<u32>,
    /// Doorbells of messages: never mapped, and not translated.
    pub(super) doorbells: Vec<IovaRange>,
    pub(super) listener: Option<Arc<dyn Listener>>,
}

impl ViommuEndpoint {
    /// Tells if a doorbell is in `range`.
    pub(super) fn rings_in(&self, range: IovaRange) -> bool {
        self.doorbells.iter().any(|doorbell| doorbell.overlaps(range))
    }
}

/// Endpoints, domains and faults of the device.
#[derive(Debug, Default)]
pub(super) struct ViommuState {
    /// Set if endpoints without a domain pass through, as the guest reads and writes it.
    pub(super) bypass: bool,
    pub(super) endpoints: BTreeMap<u32, ViommuEndpoint>,
    pub(super) domains: BTreeMap<u32, Domain>,
    /// Ranges of the guest's addresses that are device memory.
    pub(super) device_memory: Vec<PhysRange>,
    pub(super) faults: Faults<[u8; FAULT_BYTES]>,
}

impl ViommuState {
    /// Takes an endpoint out of its domain, if it has one; an empty domain goes, with its mappings.
    pub(super) fn leave(&mut self, endpoint: u32) -> Result<Endpoint, u8> {
        let place = self.endpoints.get_mut(&endpoint).ok_or(status::NOENT)?;
        let left = place.domain.take();
        if let Some(left) = left
            && let Some(domain) = self.domains.get_mut(&left)
        {
            domain.endpoints.remove(&endpoint);
            if domain.endpoints.is_empty() {
                self.domains.remove(&left);
            }
        }
        Ok(place.endpoint.clone())
    }

    pub(super) fn mappings(&self) -> usize {
        let of = |domain: &Domain| match &domain.kind {
            DomainKind::Bypass => 0,
            DomainKind::Mapped(mappings) => mappings.count(),
        };
        self.domains.values().map(of).sum()
    }

    /// The mappings of a domain, unless it passes through.
    pub(super) fn mappings_of(&mut self, domain: u32) -> Option<&mut Mappings> {
        match &mut self.domains.get_mut(&domain)?.kind {
            DomainKind::Bypass => None,
            DomainKind::Mapped(mappings) => Some(mappings),
        }
    }

    /// Memory that an endpoint in `domain`, or in none, may access.
    pub(super) fn grants(&self, domain: Option<u32>) -> Vec<Grant> {
        match domain.and_then(|domain| self.domains.get(&domain)) {
            Some(domain) => domain.grants(),
            None => without_domain(self.bypass),
        }
    }

    /// The change for an endpoint's listener, if it has one, when the endpoint may access what `to` returns.
    pub(super) fn change(
        &self,
        place: &ViommuEndpoint,
        to: impl FnOnce() -> Vec<Grant>,
    ) -> Option<Change> {
        let listener = Arc::clone(place.listener.as_ref()?);
        let from = self.grants(place.domain).into();
        Some(Change { listener, from, to: to().into() })
    }

    /// All endpoints.
    pub(super) fn all(&self) -> Vec<Endpoint> {
        self.endpoints.values().map(|place| place.endpoint.clone()).collect()
    }

    /// The endpoint's own place: another endpoint may have its number after it was removed.
    pub(super) fn place_of(&self, endpoint: &Endpoint) -> Option<&ViommuEndpoint> {
        let place = self.endpoints.get(&endpoint.id().get())?;
        place.endpoint.is(endpoint).then_some(place)
    }

    /// The translation of `at` for an endpoint, or the reason of the fault.
    pub(super) fn find(&self, place: &ViommuEndpoint, at: Iova) -> Result<Translation, u8> {
        let same = Translation::SAME;
        match place.domain.and_then(|domain| self.domains.get(&domain)) {
            None if self.bypass => Ok(same),
            None => Err(R_DOMAIN),
            Some(domain) => match &domain.kind {
                DomainKind::Bypass => Ok(same),
                DomainKind::Mapped(mappings) => mappings.find(at).ok_or(R_MAPPING),
            },
        }
    }

    pub(super) fn record(
        &mut self,
        reason: u8,
        endpoint: EndpointId,
        at: Iova,
        access: Permissions,
    ) {
        let kind = match access {
            Permissions::No | Permissions::Read => FAULT_READ,
            Permissions::Write => FAULT_WRITE,
            Permissions::ReadWrite => FAULT_READ | FAULT_WRITE,
        };
        let words = [u32::from(reason), FAULT_ADDRESS | kind, endpoint.get(), 0];
        let mut record = [0; FAULT_BYTES];
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        let bytes = bytes.chain(at.get().to_le_bytes());
        record.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        self.faults.record(record);
    }
}

/// Memory that an endpoint without a domain may access.
pub(super) fn without_domain(bypass: bool) -> Vec<Grant> {
    if bypass { vec![Grant::PassThrough] } else { Vec::new() }
}
