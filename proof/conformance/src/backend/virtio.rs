//! The virtio-iommu driver on QEMU's device.

use std::collections::BTreeMap;

use portolan_hw::virtio::{Config, Viommu, VirtioDomain};
use portolan_qemu::config::{Architecture, Iommu};
use portolan_qemu::machine::Builder;
use portolan_qemu::mmio::HostClock;
use portolan_qemu::trace::{Counts, VirtioRequest};
use portolan_qemu::viommu::PciTransport;

use super::qemu::QemuHost;
use crate::conformance::{Abilities, Has, Outcome, Rig};

type Opened = Viommu<PciTransport, HostClock>;
type Domain = VirtioDomain<PciTransport, HostClock>;
/// The driver on QEMU.
pub type OnQemu = Rig<Opened, Domain, QemuHost>;

const NO_CACHE: Has = Has::No("the device has no cache: an unmap takes effect at once");

/// A new QEMU with a device.
///
/// # Errors
/// [`Outcome::Skip`] without QEMU; [`Outcome::Fail`] if the driver does not take the device over.
pub fn on_qemu() -> Result<OnQemu, Outcome> {
    let builder = Builder::new(Architecture::X86).iommu(Iommu::Virtio).trace("virtio_iommu_*");
    let host = QemuHost::start(builder, Some(seen))?;
    let fail = |what: &str| Outcome::Fail(format!("starting the device: {what}"));
    let transport = PciTransport::start(host.machine(), host.pci())
        .map_err(|error| fail(&error.to_string()))?;
    let unit = Viommu::start(transport, HostClock::new(), Config::default());
    Ok(Rig {
        abilities: Abilities {
            caches: NO_CACHE,
            page_exact: NO_CACHE,
            domain_exact: NO_CACHE,
            blocks: Has::No("there are no tables, so no blocks"),
            reads: Has::No("edu writes only"),
            ..Abilities::ALL
        },
        ..Rig::new(unit.map_err(|error| fail(&error.to_string()))?, host, Opened::domain, |unit| {
            let counts = unit.counts();
            named([counts.attach, counts.detach, counts.map, counts.unmap])
        })
    })
}

fn named(counts: [u64; 4]) -> BTreeMap<String, u64> {
    let names = ["attach", "detach", "map", "unmap"];
    let names = names.into_iter().map(str::to_owned);
    names.zip(counts).collect()
}

fn seen(counts: &Counts) -> BTreeMap<String, u64> {
    named([
        counts.virtio(VirtioRequest::Attach),
        counts.virtio(VirtioRequest::Detach),
        counts.virtio(VirtioRequest::Map),
        counts.virtio(VirtioRequest::Unmap),
    ])
}
