//! State of a virtio-iommu that is saved, restored and migrated.
//!
//! Plain numbers, for any serialisation; the feature `serde` derives its traits. [`VirtioIommu::restore`] trusts
//! nothing: a state is taken only if a guest could have made it by requests to this device. Not supported: states of
//! other versions, and translations in IOTLBs, which come again when they are used.

use std::collections::BTreeMap;
use std::io;

use portolan::addr::{Iova, IovaRange};
use portolan_spec::virtio::{FAULT_BYTES, MAP_MMIO, MAP_READ, MAP_WRITE};
use vm_memory::Permissions;

use super::device::VirtioIommu;
use super::domains::{Domain, DomainKind, Mappings};
use super::inner::{MapRequest, ViommuInner};
use super::listener::{Change, Mapping, MemoryKind, make_all};
use super::state::{ViommuState, without_domain};
use crate::StillHeld;
use crate::faults::MOST_FAULTS;
use crate::iotlb::EVERYTHING;

/// State of a virtio-iommu.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct SavedViommu {
    /// [`SavedViommu::VERSION`].
    pub version: u32,
    /// The field `bypass` of the configuration.
    pub bypass: bool,
    /// Domains with an endpoint.
    pub domains: Vec<SavedDomain>,
    /// Records of faults that the guest has not read, the oldest first.
    pub faults: Vec<[u8; FAULT_BYTES]>,
    /// Records for which there was no room.
    pub faults_lost: u64,
}

/// A domain of a saved state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct SavedDomain {
    /// Number of the domain.
    pub domain: u32,
    /// Numbers of its endpoints.
    pub endpoints: Vec<u32>,
    /// Its mappings; none if it passes through.
    pub mappings: Option<Vec<SavedMapping>>,
}

/// A mapping of a saved state, as a MAP request has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct SavedMapping {
    /// First address of the device.
    pub start: u64,
    /// Last address of the device.
    pub last: u64,
    /// First address in the guest.
    pub phys: u64,
    /// Flags of the request.
    pub flags: u32,
}

impl SavedViommu {
    /// The version of states that this crate writes and reads.
    pub const VERSION: u32 = 1;
}

/// Reason why a saved state was not restored. But for [`RestoreError::StillHeld`], nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The state is of another version.
    #[error("the state is of version {found}, not {}", SavedViommu::VERSION)]
    Version {
        /// Its version.
        found: u32,
    },
    /// A domain is there twice, has no endpoint, or has a number that this device does not offer.
    #[error("domain {domain} cannot be")]
    Domain {
        /// Its number.
        domain: u32,
    },
    /// An endpoint of a domain is not behind this device, or is in two domains.
    #[error("endpoint {endpoint} cannot be in domain {domain}")]
    Endpoint {
        /// Number of the domain.
        domain: u32,
        /// Number of the endpoint.
        endpoint: u32,
    },
    /// The guest could not have made a mapping by a request to this device.
    #[error("a mapping at {start:#x} cannot be in domain {domain}")]
    Mapping {
        /// Number of the domain.
        domain: u32,
        /// Its first address.
        start: u64,
    },
    /// More mappings than this device keeps.
    #[error("{found} mappings are too many")]
    TooMany {
        /// Their number.
        found: usize,
    },
    /// More faults than this device keeps.
    #[error("{found} faults are too many")]
    Faults {
        /// Their number.
        found: usize,
    },
    /// A listener failed; those before it were undone.
    #[error("a listener refused the state")]
    Listener(#[source] io::Error),
    /// The state is restored, but a guard on a translation from before was still held when the time was over.
    #[error(transparent)]
    StillHeld(#[from] StillHeld),
}

/// Domains of a saved state, checked, and the domain of each endpoint that has one.
struct Restored {
    domains: BTreeMap<u32, Domain>,
    at: BTreeMap<u32, u32>,
}

impl VirtioIommu {
    /// The state of the device between two requests. Its endpoints, listeners and options are the monitor's to
    /// make again.
    pub fn save(&self) -> SavedViommu {
        let inner = self.inner();
        let _order = inner.order();
        let state = inner.state();
        let domain = |(number, domain): (&u32, &Domain)| SavedDomain {
            domain: *number,
            endpoints: domain.endpoints.iter().copied().collect(),
            mappings: match &domain.kind {
                DomainKind::Bypass => None,
                DomainKind::Mapped(mappings) => Some(mappings.iter().map(saved).collect()),
            },
        };
        SavedViommu {
            version: SavedViommu::VERSION,
            bypass: state.bypass,
            domains: state.domains.iter().map(domain).collect(),
            faults: state.faults.iter().copied().collect(),
            faults_lost: state.faults.lost(),
        }
    }

    /// Takes a saved state, in place of the one that the device has: listeners hear of it before this returns.
    /// Endpoints, and ranges of device memory, have to be there before.
    ///
    /// # Errors
    /// See [`RestoreError`].
    pub fn restore(&self, saved: &SavedViommu) -> Result<(), RestoreError> {
        let inner = self.inner();
        let order = inner.order();
        let state = inner.state();
        let Restored { domains, at } = inner.check(&state, saved)?;
        let to = |endpoint: &u32| {
            let domain = at.get(endpoint).and_then(|domain| domains.get(domain));
            domain.map_or_else(|| without_domain(saved.bypass), Domain::grants)
        };
        let places = state.endpoints.iter();
        let changes = places.filter_map(|(number, place)| state.change(place, || to(number)));
        let changes: Vec<Change> = changes.collect();
        drop(state);
        make_all(&changes, &inner.counters).map_err(RestoreError::Listener)?;
        let mut state = inner.state();
        state.bypass = saved.bypass;
        state.domains = domains;
        state.faults.restore(&saved.faults, saved.faults_lost);
        for (number, place) in &mut state.endpoints {
            place.domain = at.get(number).copied();
        }
        let endpoints = state.all();
        drop((state, order));
        let limit = inner.options.invalidation_limit;
        let forgotten = endpoints.iter().map(|endpoint| endpoint.forget(EVERYTHING, limit));
        Ok(forgotten.fold(Ok(()), Result::and)?)
    }
}

impl ViommuInner {
    fn check(&self, state: &ViommuState, saved: &SavedViommu) -> Result<Restored, RestoreError> {
        if saved.version != SavedViommu::VERSION {
            return Err(RestoreError::Version { found: saved.version });
        }
        let mappings = saved.domains.iter().filter_map(|domain| domain.mappings.as_ref());
        let found = mappings.map(Vec::len).fold(0, usize::saturating_add);
        if found > self.options.mappings {
            return Err(RestoreError::TooMany { found });
        }
        if saved.faults.len() > MOST_FAULTS {
            return Err(RestoreError::Faults { found: saved.faults.len() });
        }
        let mut restored = Restored { domains: BTreeMap::new(), at: BTreeMap::new() };
        for of in &saved.domains {
            let domain = of.domain;
            let known = domain <= self.options.last_domain;
            if !known || of.endpoints.is_empty() || restored.domains.contains_key(&domain) {
                return Err(RestoreError::Domain { domain });
            }
            for &endpoint in &of.endpoints {
                let there = state.endpoints.contains_key(&endpoint);
                if !there || restored.at.insert(endpoint, domain).is_some() {
                    return Err(RestoreError::Endpoint { domain, endpoint });
                }
            }
            let kind = match &of.mappings {
                None => DomainKind::Bypass,
                Some(_) => DomainKind::Mapped(self.check_mappings(state, of)?),
            };
            let endpoints = of.endpoints.iter().copied().collect();
            restored.domains.insert(domain, Domain { kind, endpoints });
        }
        Ok(restored)
    }

    fn check_mappings(
        &self,
        state: &ViommuState,
        of: &SavedDomain,
    ) -> Result<Mappings, RestoreError> {
        let mut mappings = Mappings::default();
        for &SavedMapping { start, last, phys, flags } in of.mappings.iter().flatten() {
            let wrong = RestoreError::Mapping { domain: of.domain, start };
            let range = IovaRange::new(Iova::new(start), Iova::new(last));
            let Some(range) = range.filter(|range| !mappings.overlaps(*range)) else {
                return Err(wrong);
            };
            let mut places = of.endpoints.iter().filter_map(|at| state.endpoints.get(at));
            if places.any(|place| place.rings_in(range)) {
                return Err(wrong);
            }
            let request = MapRequest { range, phys, flags };
            let mapping = self.mapping(request, &state.device_memory).map_err(|_| wrong)?;
            mappings.insert(mapping);
        }
        Ok(mappings)
    }
}

fn saved(mapping: &Mapping) -> SavedMapping {
    let access = match mapping.access {
        Permissions::No => 0,
        Permissions::Read => MAP_READ,
        Permissions::Write => MAP_WRITE,
        Permissions::ReadWrite => MAP_READ | MAP_WRITE,
    };
    let kind = match mapping.kind {
        MemoryKind::Ram => 0,
        MemoryKind::Device => MAP_MMIO,
    };
    let (start, last) = (mapping.iova.start().get(), mapping.iova.last().get());
    SavedMapping { start, last, phys: mapping.target.get(), flags: access | kind }
}
