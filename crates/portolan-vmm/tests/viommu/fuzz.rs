//! Requests of `tests/corpus/viommu`, a record each, and changed ones, beside a naive list of the mappings that
//! were granted.

use std::collections::BTreeMap;
use std::time::Duration;

use portolan_vmm::Endpoint;
use portolan_vmm::viommu::VirtioIommu;
use vm_memory::Permissions;

use crate::{ENDPOINTS, corpus, doorbell, machine, reach};

#[derive(Clone, Copy)]
struct Mapping {
    start: u64,
    last: u64,
    phys: u64,
    flags: u32,
}

#[derive(Default)]
struct Domain {
    bypass: bool,
    mappings: Vec<Mapping>,
}

/// Mappings and attachments that the device has confirmed.
#[derive(Default)]
struct Granted {
    domains: BTreeMap<u32, Domain>,
    /// Endpoints and their domains.
    at: BTreeMap<u32, u32>,
}

impl Granted {
    fn leave(&mut self, endpoint: u32) {
        if let Some(domain) = self.at.remove(&endpoint)
            && !self.at.values().any(|other| *other == domain)
        {
            self.domains.remove(&domain);
        }
    }

    /// A request was answered well.
    fn carry_out(&mut self, request: &[u8]) {
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
    fn find(&self, endpoint: u32, at: u64, flag: u32) -> Option<u64> {
        let domain = &self.domains[self.at.get(&endpoint)?];
        if domain.bypass {
            return Some(at);
        }
        let mut mappings = domain.mappings.iter();
        let found = mappings.find(|of| (of.start..=of.last).contains(&at))?;
        (found.flags & flag != 0).then(|| found.phys + (at - found.start))
    }

    fn compare(&self, endpoint: &Endpoint, at: u64) {
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
    fn edges(&self) -> Vec<u64> {
        let all = self.domains.values().flat_map(|domain| &domain.mappings);
        let edges = all
            .take(4)
            .flat_map(|of| [of.start.wrapping_sub(1), of.start, of.last, of.last.wrapping_add(1)]);
        edges.collect()
    }
}

/// Sends a request; tells if the device has carried it out.
fn send(device: &VirtioIommu, request: &[u8], room: usize) -> bool {
    let mut answer = vec![0xff; room];
    let written = device.request(request, &mut answer);
    assert!(written == room || written == 0 && room < 4, "{written} of {room}");
    // The status; one that there is not would be news.
    room >= 4 && {
        assert!(answer[room - 4] <= 8 && answer[room - 3..] == [0; 3]);
        answer[room - 4] == 0
    }
}

#[test]
fn a_guest_gets_what_its_requests_were_granted_and_no_more() {
    let [kept, changed] = corpus::each("viommu", 2_000, |input, rng| {
        let (device, endpoints) = machine(Duration::from_secs(60));
        let (mut granted, mut good) = (Granted::default(), 0);
        for request in input {
            let room = match rng.u32(..32) {
                0 => rng.usize(..600),
                _ => 516,
            };
            if send(&device, request, room) {
                granted.carry_out(request);
                good += 1;
            }
            let mut places = granted.edges();
            places.extend([rng.u64(..0x4000), rng.u64(..)]);
            for at in places {
                granted.compare(&endpoints[rng.usize(..2)], at);
            }
        }
        assert_eq!(endpoints.map(|of| of.id()), ENDPOINTS);
        while device.next_fault().is_some() {}
        good * 2 > input.len()
    });
    assert!(kept > 1 && changed > 200, "too little of it is carried out");
}
