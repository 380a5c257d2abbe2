//! A vhost-user device's IOTLB: beside an oracle, held by look-ups, asking a front-end, and told nonsense.

mod bad_input;
mod frontend;
mod held;
mod misses;
mod oracle;

use std::num::NonZeroUsize;
use std::time::Duration;

use portolan::addr::{Iova, IovaRange, PhysAddr};
use portolan_vmm::{FrontendAddr, IotlbOptions, MemoryRegion, Replacement, VhostIotlb};
use vm_memory::iommu::Iommu;
use vm_memory::{GuestAddress, Permissions};

/// The front-end's address of the guest's first byte.
const FRONTEND: u64 = 0x7f00_0000_0000;
/// The guest's memory.
const MEMORY: u64 = 1 << 40;
const PAGE: u64 = 4096;

/// Long enough for a machine that does much else; a test that needs it fails.
const LONG: Duration = Duration::from_secs(60);

fn options(capacity: usize, replacement: Replacement) -> IotlbOptions {
    let mut options = IotlbOptions::default();
    options.capacity = NonZeroUsize::new(capacity).unwrap();
    options.replacement = replacement;
    options.miss_limit = LONG;
    options.invalidation_limit = LONG;
    options
}

fn iotlb(options: IotlbOptions) -> VhostIotlb {
    let iotlb = VhostIotlb::new(options);
    let region = MemoryRegion {
        guest: PhysAddr::new(0),
        frontend: FrontendAddr::new(FRONTEND),
        bytes: MEMORY,
    };
    iotlb.set_memory(&[region]).unwrap();
    iotlb
}

fn range(start: u64, last: u64) -> IovaRange {
    IovaRange::new(Iova::new(start), Iova::new(last)).unwrap()
}

fn page(number: u64) -> IovaRange {
    range(number * PAGE, number * PAGE + PAGE - 1)
}

/// Lets the page of that number lead to the guest's page `to`.
fn map(iotlb: &VhostIotlb, number: u64, to: u64, access: Permissions) {
    let target = FrontendAddr::new(FRONTEND + to * PAGE);
    iotlb.update(page(number), target, access).unwrap();
}

/// The guest's addresses of `length` bytes from `iova` on.
fn pieces(
    iotlb: &VhostIotlb,
    iova: u64,
    length: usize,
    access: Permissions,
) -> Option<Vec<(u64, usize)>> {
    let found = iotlb.translate(GuestAddress(iova), length, access).ok()?;
    Some(found.map(|piece| (piece.base.0, piece.length)).collect())
}
