//! A device translates its own addresses, which no unit checks, without leave.
//!
//! Neither the trait nor a driver has a way round it.

use portolan::addr::StreamId;
use portolan::iommu::{DeviceTlb, IommuDomains};
use portolan::platform::UnitPlatform;
use portolan_hw::smmuv3::Smmu;

fn any(unit: &dyn IommuDomains, stream: StreamId, tlb: DeviceTlb) {
    let _ = unit.use_device_tlb(stream, tlb);
}

fn smmu<P: UnitPlatform>(unit: &Smmu<P>, stream: StreamId) {
    let _ = unit.enable_ats(stream);
}

fn main() {}
