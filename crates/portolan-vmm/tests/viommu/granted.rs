//! Naive list of what a guest's requests were granted.

use std::collections::BTreeMap;

use portolan_vmm::Endpoint;
use vm_memory::Permissions;

use crate::{doorbell, reach};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mapping {
    pub start: u64,
    pub last: u64,
    pub phys: u64,
    pub flags: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domain {
    pub bypass: bool,
    pub mappings: Vec<Mapping>,
}

/// Mappings and attachments that the device has confirmed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    pub domains: BTreeMap<u32, Domain>,
    /// Endpoints and their domains.
    pub at: BTreeMap<u32, u32>,
    /// Set if endpoints without a domain pass through.
    pub bypass: bool,
}

impl Granted {
    pub fn leave(&mut self, endpoint: u32) {
        if let Some(domain) = self.at.remove(&endpoint)
            && !self.at.values().any(|other| *other == domain)
        {
            self.domains.remove(&domain);
        }
    }

    /// A request was answered well.
    pub fn carry_out(&mut self, request: &[u8]) {
        let word = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_le_bytes(request[at..at + 8].try_into().unwrap());
        let domain = word(4);
        match request[0] {
            1 => {
                let (endpoint, bypass) = (word(8), word(12) == 1);
                self.leave(endpoint);
                self.at.insert(endpoint, domain);
                self.domains.entry(domain).or_default().bypass = bypass;
            }
            2 => {
                assert_eq!(self.at.get(&word(8)), Some(&domain));
                self.leave(word(8));
            }
            3 => {
                let (start, last, phys) = (long(8), long(16), long(24));
                let mappings = &mut self.domains.get_mut(&domain).unwrap().mappings;
                assert!(mappings.iter().all(|of| of.last < start || last < of.start));
                assert!(last < doorbell().start().get() || doorbell().last().get() < start);
                mappings.push(Mapping { start, last, phys, flags: word(32) });
            }
            4 => {
                let (start, last) = (long(8), long(16));
                let mappings = &mut self.domains.get_mut(&domain).unwrap().mappings;
                mappings.retain(|of| {
                    let (inside, outside) =
                        (start <= of.start && of.last <= last, last < of.start || of.last < start);
                    assert!(inside || outside, "an UNMAP has split a mapping");
                    outside
                });
            }
            5 => {}
            other => panic!("request {other} was carried out"),
        }
    }

    /// Address that `at` leads to for an endpoint.
    pub fn find(&self, endpoint: u32, at: u64, flag: u32) -> Option<u64> {
        let Some(domain) = self.at.get(&endpoint) else {
            return self.bypass.then_some(at);
        };
        let domain = &self.domains[domain];
        if domain.bypass {
            return Some(at);
        }
        let mut mappings = domain.mappings.iter();
        let found = mappings.find(|of| (of.start..=of.last).contains(&at))?;
        (found.flags & flag != 0).then(|| found.phys + (at - found.start))
    }

    pub fn compare(&self, endpoint: &Endpoint, at: u64) {
        if at == u64::MAX {
            // `vm_memory` cannot name it, so no access reaches it.
            return;
        }
        for (access, flag) in [(Permissions::Read, 1), (Permissions::Write, 2)] {
            let wanted = self.find(endpoint.id().get(), at, flag);
            let wanted = wanted.map(|at| vec![(at, 1)]);
            assert_eq!(reach(endpoint, at, 1, access), wanted, "{at:#x}");
        }
    }

    /// Edges of some mappings.
    pub fn edges(&self) -> Vec<u64> {
        let all = self.domains.values().flat_map(|domain| &domain.mappings);
        let edges = all
            .take(4)
            .flat_map(|of| [of.start.wrapping_sub(1), of.start, of.last, of.last.wrapping_add(1)]);
        edges.collect()
    }

    /// Memory that an endpoint may access: all, or mappings in the order of their addresses.
    pub fn grants(&self, endpoint: u32) -> (bool, Vec<Mapping>) {
        let Some(domain) = self.at.get(&endpoint).map(|domain| &self.domains[domain]) else {
            return (self.bypass, Vec::new());
        };
        let useful = domain.mappings.iter().filter(|of| of.flags & 3 != 0);
        let mut mappings: Vec<_> = useful.copied().collect();
        mappings.sort();
        (domain.bypass, mappings)
    }

    /// No endpoint has a domain any more.
    pub fn reset(&mut self) {
        self.at.clear();
        self.domains.clear();
    }
}
