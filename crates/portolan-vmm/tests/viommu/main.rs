//! A virtio-iommu as a device: under this project's own driver, and under guests that send nonsense.

mod bad_input;
mod container;
#[path = "../corpus/mod.rs"]
mod corpus;
mod driver;
mod frontend;
mod fuzz;
mod fuzzed;
mod granted;
mod link;
mod listeners;
mod passed;
mod places;
#[path = "../../../portolan/tests/support/promised.rs"]
mod promised;
mod saved;

use std::sync::Arc;
use std::time::Duration;

use portolan::addr::{Iova, IovaRange};
use portolan_vmm::viommu::{ViommuOptions, VirtioIommu};
use portolan_vmm::{Endpoint, EndpointId};
use vm_memory::iommu::Iommu;
use vm_memory::{GuestAddress, Permissions};

/// Two endpoints, and where the messages of both go.
const ENDPOINTS: [EndpointId; 2] = [EndpointId::new(8), EndpointId::new(16)];

fn doorbell() -> IovaRange {
    range(0xfee0_0000, 0xfeef_ffff)
}

fn machine(limit: Duration) -> (Arc<VirtioIommu>, [Endpoint; 2]) {
    let mut options = ViommuOptions::default();
    options.invalidation_limit = limit;
    options.mappings = 1000;
    machine_of(options)
}

fn machine_of(options: ViommuOptions) -> (Arc<VirtioIommu>, [Endpoint; 2]) {
    let device = Arc::new(VirtioIommu::new(options));
    let endpoints = ENDPOINTS.map(|id| device.add(id, &[doorbell()]).unwrap());
    assert!(device.add(ENDPOINTS[0], &[]).is_err());
    (device, endpoints)
}

fn range(start: u64, last: u64) -> IovaRange {
    IovaRange::new(Iova::new(start), Iova::new(last)).unwrap()
}

/// The guest's addresses of `length` bytes from `iova` on.
fn reach(
    endpoint: &Endpoint,
    iova: u64,
    length: usize,
    access: Permissions,
) -> Option<Vec<(u64, usize)>> {
    let found = endpoint.translate(GuestAddress(iova), length, access).ok()?;
    Some(found.map(|piece| (piece.base.0, piece.length)).collect())
}
