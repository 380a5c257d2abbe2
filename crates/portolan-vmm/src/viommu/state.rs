//! State of a virtio-iommu: endpoints, their domains, and faults that the guest has not read.
//!
//! Virtual I/O Device (VIRTIO) 1.2, sections 5.13.6.3, 5.13.6.4 and 5.13.6.8.

use std::collections::BTreeMap;

use portolan::addr::{Iova, IovaRange};
use portolan_spec::virtio::{
    FAULT_ADDRESS, FAULT_BYTES, FAULT_READ, FAULT_WRITE, R_DOMAIN, R_MAPPING,
};
use vm_memory::Permissions;

use super::domains::{Domain, DomainKind};
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
}

/// Endpoints, domains and faults of the device.
#[derive(Debug, Default)]
pub(super) struct ViommuState {
    /// Set if endpoints without a domain pass through, as the guest reads and writes it.
    pub(super) bypass: u8,
    pub(super) endpoints: BTreeMap<u32, ViommuEndpoint>,
    pub(super) domains: BTreeMap<u32, Domain>,
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

    /// The translation of `at`, or the reason of the fault.
    pub(super) fn find(&self, endpoint: u32, at: Iova) -> Result<Translation, u8> {
        let same = Translation::SAME;
        let place = self.endpoints.get(&endpoint).ok_or(R_DOMAIN)?;
        match place.domain.and_then(|domain| self.domains.get(&domain)) {
            None if self.bypass != 0 => Ok(same),
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
