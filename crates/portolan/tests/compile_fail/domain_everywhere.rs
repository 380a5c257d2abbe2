//! A device is passed through to all of memory, without leave.

use std::sync::Arc;

use portolan::addr::StreamId;
use portolan::dma::{Constraints, Device};
use portolan::iommu::Iommu;
use portolan::platform::{AllMemory, Platform};

fn everywhere(unit: &dyn Iommu, stream: StreamId) {
    let _ = unit.pass_through(stream);
    let _ = unit.pass_through(stream, AllMemory(()));
}

fn identity<P: Platform>(platform: P, unit: Arc<dyn Iommu>, stream: StreamId) {
    let _ = Device::identity(platform, unit, stream, Constraints::trusted());
}

fn main() {}
