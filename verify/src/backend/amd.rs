//! The AMD-Vi driver on QEMU's AMD-Vi.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_hw::amd::{AmdDomain, AmdVi, Capability, CommandKind as K, Config};
use portolan_qemu::config::{Architecture, Iommu};
use portolan_qemu::guest_tables::GuestTables;
use portolan_qemu::machine::Builder;
use portolan_qemu::mmio::{HostClock, Registers};
use portolan_qemu::pci::Pci;
use portolan_qemu::trace::{AmdCommand, Counts};

use super::qemu::QemuHost;
use crate::conformance::{Abilities, Has, Outcome, Rig};

type Opened = AmdVi<Registers, GuestTables, HostClock>;
type Domain = AmdDomain<Registers, GuestTables, HostClock>;
/// The driver on QEMU.
pub type OnQemu = Rig<Opened, Domain, QemuHost>;

/// Capability ID of a secure device, which an IOMMU is.
const SECURE_DEVICE: u8 = 0x0f;

/// A new QEMU with a unit.
///
/// # Errors
/// [`Outcome::Skip`] without QEMU; [`Outcome::Fail`] if the driver does not take the unit over.
pub fn on_qemu() -> Result<OnQemu, Outcome> {
    let builder = Builder::new(Architecture::X86).iommu(Iommu::Amd);
    let host = QemuHost::start(builder, Some(seen))?;
    let machine = host.machine();
    let fail = |what: &str| Outcome::Fail(format!("enabling the unit: {what}"));
    let capability = capability(host.pci()).ok_or_else(|| fail("no function is an IOMMU"))?;
    let registers = machine.iommu_registers();
    let registers = registers.ok_or_else(|| fail("the machine has no unit"))?;
    let config = Config::default();
    let queue_entries = Some(1 << config.queue_lg2);
    let tables = machine.tables().clone();
    let unit = AmdVi::enable(registers, tables, HostClock::new(), capability, config);
    Ok(Rig {
        unit: unit.map_err(|error| fail(&error.to_string()))?,
        abilities: Abilities {
            caches: Has::Yes,
            page_exact: Has::No("QEMU drops the whole domain whatever the address"),
            domain_exact: Has::Yes,
            records: Has::No("QEMU logs nothing of an entry that is zero or that forbids"),
            reasons: Has::No("QEMU logs nothing of an entry that is zero or that forbids"),
            pass_through: Has::Yes,
            blocks: Has::Yes,
            reads: Has::No("edu writes only"),
        },
        domain: |unit| unit.domain().map(Arc::new),
        pasids: None,
        faulting: None,
        queue_entries,
        fault_room: None,
        bad_command: |_, _| None,
        submitted: |unit| {
            let counts = unit.counts();
            let of = |kind| counts.of(kind);
            named([
                of(K::Wait) + of(K::Fence) + of(K::Replaced),
                of(K::DeviceEntry),
                of(K::Pages) + of(K::Domain),
                of(K::All),
            ])
        },
        host,
    })
}

/// What the IOMMU's own function says of it.
fn capability(pci: &Pci) -> Option<Capability> {
    let found = pci.functions().iter().find_map(|function| {
        let at = function.capability(SECURE_DEVICE).ok()?;
        let mut words = [0; 5];
        for (offset, word) in (at..).step_by(4).zip(&mut words) {
            *word = function.read32(offset).ok()?;
        }
        Some(words)
    });
    Capability::parse(found?).ok()
}

fn named(counts: [u64; 4]) -> BTreeMap<String, u64> {
    let names = ["completion wait", "device table entry", "pages", "all"];
    let names = names.into_iter().map(str::to_owned);
    names.zip(counts).collect()
}

fn seen(counts: &Counts) -> BTreeMap<String, u64> {
    named([
        counts.amd(AmdCommand::CompletionWait),
        counts.amd(AmdCommand::DeviceTableEntry),
        counts.amd(AmdCommand::Pages),
        counts.amd(AmdCommand::All),
    ])
}
