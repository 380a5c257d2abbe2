//! A guest's bytes for a virtio-iommu: requests, each behind a byte that says how long it is, and bytes of its
//! configuration.

use std::time::Duration;

use portolan::addr::{Iova, IovaRange};
use portolan_vmm::EndpointId;
use portolan_vmm::viommu::{ViommuOptions, VirtioIommu};
use vm_memory::iommu::Iommu;
use vm_memory::{GuestAddress, Permissions};

/// Handles the guest's requests, one after the other.
pub fn requests(bytes: &[u8]) {
    let mut options = ViommuOptions::default();
    options.invalidation_limit = Duration::ZERO;
    options.mappings = 100;
    let device = VirtioIommu::new(options);
    let doorbell = IovaRange::new(Iova::new(0xfee0_0000), Iova::new(0xfeef_ffff));
    let doorbells = doorbell.as_slice();
    let endpoint = device.add(EndpointId::new(8), doorbells);
    let mut rest = bytes;
    while let [length, behind @ ..] = rest {
        let (request, next) = behind.split_at(usize::from(*length).min(behind.len()));
        rest = next;
        let mut answer = [0xff; 64];
        let room = usize::from(*length % 65);
        let written = device.request(request, &mut answer[..room]);
        assert!(written <= room, "{written} bytes of {room}");
        if let [offset, value, ..] = request {
            device.write_config(usize::from(*offset), *value);
        }
        if let Ok(endpoint) = &endpoint {
            let at = GuestAddress(u64::from(*length) << 12);
            let found = endpoint.translate(at, 0x2000, Permissions::Read);
            let _ = found.map(|found| found.count());
        }
        while device.next_fault().is_some() {}
    }
}
