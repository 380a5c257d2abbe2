//! A device translates its own addresses, which no unit checks, without leave.

use core::sync::atomic::AtomicU64;

use portolan::addr::StreamId;
use portolan::iommu::{DeviceTlb, IommuDomains};
use portolan::platform::{Cpus, Mmio, TableMem};
use portolan_hw::smmuv3::Smmu;

fn any(unit: &dyn IommuDomains, stream: StreamId, tlb: DeviceTlb) {
    let _ = unit.use_device_tlb(stream, tlb);
}

fn smmu<R: Mmio, M: TableMem<AtomicU64>, C: Cpus>(unit: &Smmu<R, M, C>, stream: StreamId) {
    let _ = unit.enable_ats(stream);
}

fn main() {}
