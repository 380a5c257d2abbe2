//! A virtio-iommu as a device: under this project's own driver, and under guests that send nonsense.

mod bad_input;
#[path = "../corpus/mod.rs"]
mod corpus;
mod driver;
mod fuzz;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use portolan::addr::{Iova, IovaRange};
use portolan::iommu::IommuError;
use portolan::platform::{Clock, Nanos};
use portolan_hw::virtio::Transport;
use portolan_hw::virtio::spec::FAULT_BYTES;
use portolan_vmm::viommu::{ViommuOptions, VirtioIommu};
use portolan_vmm::{Endpoint, EndpointId};
use vm_memory::iommu::Iommu;
use vm_memory::{GuestAddress, Permissions};

/// A clock that is read as often as it goes on.
#[derive(Debug, Default)]
struct Ticks(AtomicU64);

portolan::one_cpu!(Ticks);

impl Clock for Ticks {
    fn now(&self) -> Nanos {
        Nanos::new(self.0.fetch_add(1000, Relaxed))
    }
}

/// Queues without memory: a request is carried out where it is sent.
#[derive(Debug)]
struct Queues(Arc<VirtioIommu>);

impl Transport for Queues {
    fn features(&self) -> u64 {
        self.0.features()
    }

    fn config32(&self, offset: usize) -> Result<u32, IommuError> {
        let config = self.0.config();
        let bytes = config[offset..offset + 4].try_into().unwrap();
        Ok(u32::from_le_bytes(bytes))
    }

    fn config64(&self, offset: usize) -> Result<u64, IommuError> {
        let config = self.0.config();
        let bytes = config[offset..offset + 8].try_into().unwrap();
        Ok(u64::from_le_bytes(bytes))
    }

    fn set_config8(&self, offset: usize, value: u8) -> Result<u8, IommuError> {
        self.0.write_config(offset, value);
        Ok(self.0.config()[offset])
    }

    fn request(&self, request: &[u8], answer: &mut [u8]) -> Result<(), IommuError> {
        assert_eq!(self.0.request(request, answer), answer.len());
        Ok(())
    }

    fn all_returned(&self) -> bool {
        true
    }

    fn next_fault(&self) -> Result<Option<([u8; FAULT_BYTES], usize)>, IommuError> {
        Ok(self.0.next_fault().map(|record| (record, FAULT_BYTES)))
    }
}

/// Two endpoints, and where the messages of both go.
const ENDPOINTS: [EndpointId; 2] = [EndpointId::new(8), EndpointId::new(16)];

fn doorbell() -> IovaRange {
    range(0xfee0_0000, 0xfeef_ffff)
}

fn machine(limit: Duration) -> (Arc<VirtioIommu>, [Endpoint; 2]) {
    let mut options = ViommuOptions::default();
    options.invalidation_limit = limit;
    options.mappings = 1000;
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
    let found = endpoint
        .translate(GuestAddress(iova), length, access)
        .ok()?;
    Some(found.map(|piece| (piece.base.0, piece.length)).collect())
}

fn seed() -> u64 {
    let seed = std::env::var("PORTOLAN_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("PORTOLAN_SEED={seed}");
    seed
}
