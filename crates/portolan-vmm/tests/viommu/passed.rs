//! A device with two endpoints that are passed through, and a naive list of what their guest was granted.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use portolan_spec::virtio::{Request, config};
use portolan_vmm::viommu::{ViommuOptions, VirtioIommu};
use portolan_vmm::{Endpoint, EndpointId};

use crate::container::Container;
use crate::granted::Granted;
use crate::{ENDPOINTS, machine_of};

pub const PAGE: u64 = 4096;
pub const OK: u8 = 0;
pub const DEVERR: u8 = 3;
pub const FIRST: EndpointId = ENDPOINTS[0];
pub const SECOND: EndpointId = ENDPOINTS[1];

/// A device, two endpoints that are passed through, and what their guest was granted.
pub struct Machine {
    pub device: Arc<VirtioIommu>,
    pub endpoints: [Endpoint; 2],
    pub containers: [Arc<Container>; 2],
    pub granted: Granted,
}

impl Machine {
    pub fn new() -> Self {
        let mut options = ViommuOptions::default();
        options.invalidation_limit = Duration::from_secs(60);
        options.mappings = 1000;
        Self::of(options)
    }

    pub fn of(options: ViommuOptions) -> Self {
        let (device, endpoints) = machine_of(options);
        let containers = [(); 2].map(|()| Arc::<Container>::default());
        for (id, container) in ENDPOINTS.into_iter().zip(&containers) {
            device.listen(id, container.clone()).unwrap();
        }
        Self {
            device,
            endpoints,
            containers,
            granted: Granted { bypass: options.bypass, ..Granted::default() },
        }
    }

    /// Two mappings in domain 1 with the first endpoint, three in domain 2 with the second.
    pub fn with_domains() -> Self {
        let mut machine = Self::new();
        machine.granted(attach(1, FIRST));
        machine.granted(map(1, 0, 3));
        machine.granted(map(1, 4, 1));
        machine.granted(attach(2, SECOND));
        for page in [0, 7, 9] {
            machine.granted(map(2, page, 3));
        }
        machine
    }

    pub fn send(&mut self, request: Request) -> u8 {
        let bytes = request.encode();
        let mut answer = [0xff; 516];
        self.device.request(bytes.as_slice(), &mut answer);
        if answer[512] == OK {
            self.granted.carry_out(bytes.as_slice());
        }
        answer[512]
    }

    pub fn granted(&mut self, request: Request) {
        assert_eq!(self.send(request), OK, "{request:?}");
        self.check();
    }

    pub fn set_bypass(&mut self, bypass: bool) -> bool {
        self.device.write_config(config::BYPASS, u8::from(bypass));
        let done = self.device.config()[config::BYPASS] == u8::from(bypass);
        if done {
            self.granted.bypass = bypass;
        }
        done
    }

    /// Devices reach what the guest was granted, by their containers and by look-ups.
    pub fn check(&self) {
        for (endpoint, container) in self.endpoints.iter().zip(&self.containers) {
            let granted = self.granted.grants(endpoint.id().get());
            assert_eq!(container.grants(), granted, "endpoint {}", endpoint.id().get());
            for at in self.granted.edges() {
                self.granted.compare(endpoint, at);
            }
        }
        // Those of the look-ups above.
        while self.device.next_fault().is_some() {}
    }

    /// Has calls of both containers fail.
    pub fn fail_at(&self, calls: [&[usize]; 2]) {
        for (container, calls) in self.containers.iter().zip(calls) {
            container.fail_at(calls);
        }
    }

    pub fn calls(&self) -> [usize; 2] {
        [0, 1].map(|at: usize| self.containers[at].calls())
    }
}

pub fn attach(domain: u32, endpoint: EndpointId) -> Request {
    Request::Attach { domain, endpoint: endpoint.get(), flags: 0 }
}

/// One page of a domain.
pub fn map(domain: u32, page: u64, flags: u32) -> Request {
    let start = page * PAGE;
    let phys = (page + 100 * u64::from(domain)) * PAGE;
    Request::Map { domain, start, last: start + PAGE - 1, phys, flags }
}

pub fn unmap(domain: u32, pages: std::ops::RangeInclusive<u64>) -> Request {
    let (start, last) = (pages.start() * PAGE, pages.end() * PAGE + PAGE - 1);
    Request::Unmap { domain, start, last }
}

/// A request of a few domains and pages.
pub fn random(rng: &mut Rng) -> Request {
    let domain = rng.u32(1..4);
    let endpoint = ENDPOINTS[rng.usize(..2)].get();
    let page = rng.u64(..24);
    match rng.u32(..16) {
        0 | 1 => Request::Attach { domain, endpoint, flags: u32::from(rng.u32(..4) == 0) },
        2 => Request::Detach { domain, endpoint },
        3..11 => {
            let (start, phys) = (page * PAGE, rng.u64(..64) * PAGE);
            let last = start + rng.u64(1..4) * PAGE - 1;
            Request::Map { domain, start, last, phys, flags: rng.u32(..4) }
        }
        _ => unmap(domain, page..=page + rng.u64(..16)),
    }
}
