//! The AMD-Vi driver on the model's registers and on QEMU's.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan::addr::StreamId;
use portolan::iommu::handover::UnitHandover;
use portolan::iommu::{Attach, Domain, Iommu as _};
use portolan::iopf::Responder as _;
use portolan::platform::{TableClaims, UnitParts, UnitPlatform};
use portolan::table::format::{AmdSizes, AmdV2Levels, DirtyTracking};
use portolan_chips::amd::{AmdRegisters, AmdSetup};
use portolan_chips::chips::{RAVEN_RIDGE, ROME};
use portolan_chips::memory::{ModelMemory, PairStores, Visibility};
use portolan_hw::amd::{AmdDomain, AmdGuestDomain, AmdVi, Capability, CommandKind as K, Config};
use portolan_hw::interrupt::{ApicMode, Remapping};
use portolan_qemu::config::{Architecture, Iommu};
use portolan_qemu::guest_tables::GuestTables;
use portolan_qemu::machine::Builder;
use portolan_qemu::mmio::{HostClock, Registers};
use portolan_qemu::pci::Pci;
use portolan_qemu::trace::{AmdCommand, Counts};
use portolan_sim::clock::PollingClock;
use portolan_spec::pci::id;

use super::asks::{asking_by_tlb, keep_translations, request_event};
use super::failed;
use super::model::{LIMIT, LOOK_NS, MEMORY, ModelHost};
use super::nested::Nested;
use super::qemu::{QemuHost, needs_stages};
use super::seam::{self, Interface, Seam};
use crate::conformance::{
    Abilities, FaultSource, Faulting, Foreign, Has, Layout, MakeDomain, Next, Outcome, Pasids, Rig,
};

type ModelClock = Arc<PollingClock<Arc<AmdRegisters>>>;
/// Registers and memory of the model behind a seam.
type ModelRegs = seam::ModelRegs<AmdRegisters>;
type ModelMem = seam::ModelTables;
/// Machine of the model.
type ModelMachine = UnitParts<ModelRegs, ModelMem, ModelClock>;
/// Machine of QEMU.
type QemuMachine = UnitParts<Registers, GuestTables, HostClock>;
/// The driver on the model, with domains `D`.
pub type ModelRig<D> = Rig<AmdVi<ModelMachine>, D, ModelHost<AmdRegisters>>;
/// The driver on the model.
pub type OnModel = ModelRig<AmdDomain<ModelMachine>>;
/// The driver on the model, with guest tables.
pub type GuestsOnModel = ModelRig<AmdGuestDomain<ModelMachine>>;
/// The driver on the model, with guests' tables over host tables.
pub type NestedOnModel =
    Rig<Nested<AmdVi<ModelMachine>>, AmdDomain<ModelMachine>, ModelHost<AmdRegisters>>;
type Opened = AmdVi<QemuMachine>;
/// The driver on QEMU.
pub type OnQemu = Rig<Opened, AmdDomain<QemuMachine>, QemuHost>;

/// Kind of unit that the model plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AmdKind {
    /// All optional features.
    Plain,
    /// All optional features; absence is cached.
    CachesAbsence,
    /// Interrupts for CPUs with identifiers of 32 bits.
    X2Apic,
    /// Guest tables with PASIDs of 20 bits.
    Guests,
    /// The same; absence is cached.
    GuestsCacheAbsence,
    /// Guest tables over host tables.
    Nested,
    /// The same; absence is cached.
    NestedCachesAbsence,
}

/// Reason why plain messages are not refused: the data of every message is taken for the index of an entry.
const NAMES: Has = Has::No("each message names an entry of the device's table");

/// Remapping with destinations of `apic`.
fn remapping(apic: ApicMode) -> Remapping {
    let mut wanted = Remapping::default();
    wanted.apic = apic;
    wanted
}

/// Reach of interrupts with destinations of `apic`.
fn wide(apic: ApicMode) -> Has {
    match apic {
        ApicMode::XApic => Abilities::ALL.wide_destinations,
        ApicMode::X2Apic => Has::Yes,
    }
}

/// Functions with which devices of the model request pages.
fn faulting<P: UnitPlatform>() -> Faulting<AmdVi<P>> {
    let gone = |unit: &AmdVi<P>, stream| unit.device_gone(stream);
    asking_by_tlb(gone, |unit| Ok(unit.next_page_request()?.map(request_event)))
}

/// A new model with a unit of `kind`.
///
/// # Errors
/// If the driver does not take it over.
pub fn on_model(kind: AmdKind, seam: Seam) -> Result<OnModel, Outcome> {
    let mut rig = model(kind, seam, |unit| unit.domain().map(Arc::new))?;
    rig.faulting = Some(faulting());
    Ok(rig)
}

/// A new model with a unit of `kind` whose domains have guest tables.
///
/// # Errors
/// If the driver does not take it over.
pub fn guests_on_model(kind: AmdKind, seam: Seam) -> Result<GuestsOnModel, Outcome> {
    let domain = |unit: &AmdVi<_>| unit.guest_domain(AmdV2Levels::Four).map(Arc::new);
    let mut rig = model(kind, seam, domain)?;
    // Of a unit that caches absence a kernel would have to say each page that it brings in.
    rig.faulting = (kind == AmdKind::Guests).then(faulting);
    rig.pasids = Some(Pasids {
        enable: |_, _| Ok(()),
        attach: |unit, stream, pasid, domain| unit.attach_pasid(stream, pasid, domain),
        block: |unit, stream, pasid| unit.block_pasid(stream, pasid),
    });
    rig.foreign = Some(Foreign {
        layout: Layout::X86,
        memory: rig.host.ram().clone(),
        attach: |unit, stream, pasid, tables| {
            let domain = Arc::new(unit.foreign_guest_domain(AmdV2Levels::Four, tables)?);
            unit.attach_pasid(stream, pasid, &domain)?;
            Ok(Box::new(move |range| Ok(domain.invalidate(range)?)))
        },
    });
    Ok(rig)
}

/// A new model with a unit of `kind` whose domains carry guests.
///
/// # Errors
/// If the driver does not take it over.
pub fn nested_on_model(kind: AmdKind, seam: Seam) -> Result<NestedOnModel, Outcome> {
    let rig = model(kind, seam, |unit| unit.domain().map(Arc::new))?;
    let memory = rig.host.ram().clone();
    Ok(Rig {
        abilities: Abilities {
            page_exact: Has::No("what both tables came to goes as a whole"),
            ..rig.abilities
        },
        // Where absence is cached, each map has the device forget everything: nothing is left to be missed.
        faulting: (kind == AmdKind::Nested).then_some(Faulting {
            ways: &[FaultSource::Requests],
            enable: |unit, stream, _| keep_translations(&unit.unit, stream),
            disable: None,
            gone: |unit, stream| unit.unit.device_gone(stream),
            next: |unit| Ok(unit.unit.next_page_request()?.map(request_event)),
            respond: |unit, to, response| unit.unit.respond(to, response),
        }),
        interrupts: Some(|unit| &unit.unit),
        queue_entries: rig.queue_entries,
        fault_room: rig.fault_room,
        bad_command: |unit, host| Some(host.refuse_one(&unit.unit.queue())),
        ..Rig::new(
            Nested::over_amd(rig.unit, memory).map_err(failed)?,
            rig.host,
            |unit| unit.unit.domain().map(Arc::new),
            |unit| submitted(&unit.unit),
        )
    })
}

/// Memory of a unit of `kind`. Entries of two words change by both.
fn memory_of(kind: AmdKind, seam: Seam) -> Arc<ModelMemory> {
    let pairs = match kind {
        AmdKind::X2Apic => seam.sabotage().pairs,
        _ => PairStores::Absent,
    };
    let memory = ModelMemory::new(MEMORY.0, MEMORY.1, Visibility::AtOnce);
    Arc::new(memory.with_pairs(pairs).checked())
}

/// A new model with a unit of `kind`, for domains that `domain` makes.
fn model<D>(
    kind: AmdKind,
    seam: Seam,
    domain: MakeDomain<AmdVi<ModelMachine>, D>,
) -> Result<ModelRig<D>, Outcome>
where
    D: Domain,
    AmdVi<ModelMachine>: Attach<D>,
{
    let guests = RAVEN_RIDGE.identification.marks().guests();
    let (identification, apic) = match kind {
        AmdKind::Guests => (guests, ApicMode::XApic),
        AmdKind::GuestsCacheAbsence => (guests.caching_absence(), ApicMode::XApic),
        AmdKind::Nested => (guests.nesting(), ApicMode::XApic),
        AmdKind::NestedCachesAbsence => (guests.nesting().caching_absence(), ApicMode::XApic),
        AmdKind::Plain => (RAVEN_RIDGE.identification.marks(), ApicMode::XApic),
        AmdKind::CachesAbsence => (RAVEN_RIDGE.identification.caching_absence(), ApicMode::XApic),
        AmdKind::X2Apic => (ROME.identification, ApicMode::X2Apic),
    };
    let setup = AmdSetup { identification, ..AmdSetup::default() };
    let mut config = Config::default();
    config.limit = LIMIT;
    config.interrupts = Some(remapping(apic));
    if identification.has_marks() {
        config.dirty = DirtyTracking::Hardware;
    } else {
        config.sizes = AmdSizes::Between;
    }
    config.requests_lg2 = Some(8);
    config.sleepers_lg2 = (kind == AmdKind::X2Apic).then_some(9);
    config.pasid_bits = 20;
    let memory = memory_of(kind, seam);
    let registers = Arc::new(AmdRegisters::new(setup, memory.clone()));
    let (queue_entries, log_entries) = (1 << config.queue_lg2, 1 << config.events_lg2);
    let kernel = {
        let (registers, memory) = (registers.clone(), memory.clone());
        move || {
            let clock = PollingClock::new(registers.clock().clone(), LOOK_NS, registers.clone());
            let (theirs, tables) = seam.model(&registers, &memory, Interface::Amd);
            (theirs, tables, UnitParts::new(Arc::new(clock)))
        }
    };
    let capability = Capability::parse(identification.capability).map_err(failed)?;
    let adopt = {
        let (kernel, config) = (kernel.clone(), config.clone());
        move |state: &UnitHandover, claims: &mut TableClaims<'_>| {
            let (registers, tables, clock) = kernel();
            AmdVi::adopt(registers, tables, clock, capability, config.clone(), state, claims)
        }
    };
    let enable = move || {
        let (registers, tables, clock) = kernel();
        AmdVi::enable(registers, tables, clock, capability, config.clone())
    };
    let unit = enable();
    let devices = [StreamId::new(0x20), StreamId::new(0x128)];
    let host = ModelHost::new(registers, memory, devices);
    Ok(Rig {
        abilities: Abilities {
            page_exact: match identification.has_marks() {
                true => Has::Yes,
                false => Has::No("pages in a row are one leaf"),
            },
            refuses_plain: NAMES,
            wide_destinations: wide(apic),
            ..Abilities::ALL
        },
        interrupts: Some(|unit| unit),
        next: Some(Next {
            former: |unit| unit,
            enable: Box::new(move || Ok(Arc::new(enable()?))),
            adopt: Box::new(move |state, claims| Ok(Arc::new(adopt(state, claims)?))),
        }),
        queue_entries: Some(queue_entries),
        // One place stays empty.
        fault_room: Some(log_entries - 1),
        bad_command: |unit, host| Some(host.refuse_one(&unit.queue())),
        ..Rig::new(unit.map_err(failed)?, host, domain, submitted)
    })
}

/// A new QEMU with a unit, for interrupts with destinations of `apic`: those of 32 bits take version 10.0.
///
/// # Errors
/// [`Outcome::Skip`] without QEMU; [`Outcome::Fail`] if the driver does not take the unit over.
pub fn on_qemu(apic: ApicMode) -> Result<OnQemu, Outcome> {
    let iommu = match apic {
        ApicMode::XApic => Iommu::Amd,
        ApicMode::X2Apic => {
            needs_stages(Architecture::X86)?;
            Iommu::AmdX2Apic
        }
    };
    let builder = Builder::new(Architecture::X86)
        .iommu(iommu)
        .trace("amdvi_ir_remap_msi")
        .trace("amdvi_intr_inval");
    let host = QemuHost::start(builder, Some(seen))?;
    let machine = host.machine();
    let capability = capability(host.pci()).ok_or_else(|| failed("no function is an IOMMU"))?;
    let registers = machine.iommu_registers().ok_or_else(|| failed("the machine has no unit"))?;
    let mut config = Config::default();
    config.interrupts = Some(remapping(apic));
    let queue_entries = Some(1 << config.queue_lg2);
    let tables = machine.tables().clone();
    let unit =
        AmdVi::enable(registers, tables, UnitParts::new(HostClock::new()), capability, config);
    Ok(Rig {
        abilities: Abilities {
            page_exact: Has::No("QEMU drops the whole domain whatever the address"),
            records: Has::No("QEMU logs nothing of an entry that is zero or that forbids"),
            reasons: Has::No("QEMU logs nothing of an entry that is zero or that forbids"),
            reads: Has::No("edu writes only"),
            records_interrupts: Has::No("QEMU logs nothing of a refused interrupt"),
            refuses_plain: NAMES,
            wide_destinations: wide(apic),
            ..Abilities::ALL
        },
        interrupts: Some(|unit| unit),
        queue_entries,
        ..Rig::new(unit.map_err(failed)?, host, |unit| unit.domain().map(Arc::new), submitted)
    })
}

/// Capability of the IOMMU, as its own PCI function reports it.
fn capability(pci: &Pci) -> Option<Capability> {
    let found = pci.functions().iter().find_map(|function| {
        let at = function.capability(id::SECURE_DEVICE).ok()?;
        let mut words = [0; 5];
        for (offset, word) in (at..).step_by(4).zip(&mut words) {
            *word = function.read32(offset).ok()?;
        }
        Some(words)
    });
    Capability::parse(found?).ok()
}

/// Commands that both sides count, by their names in the specification.
fn named(counts: [u64; 7]) -> BTreeMap<String, u64> {
    let names = [
        "COMPLETION_WAIT",
        "INVALIDATE_DEVTAB_ENTRY",
        "INVALIDATE_IOMMU_PAGES",
        "INVALIDATE_IOMMU_ALL",
        "INVALIDATE_INTERRUPT_TABLE",
        "INVALIDATE_IOTLB_PAGES",
        "COMPLETE_PPR_REQUEST",
    ];
    let names = names.into_iter().map(str::to_owned);
    names.zip(counts).collect()
}

fn submitted<P: UnitPlatform>(unit: &AmdVi<P>) -> BTreeMap<String, u64> {
    let counts = unit.counts();
    let of = |kind| counts.of(kind);
    named([
        of(K::Wait) + of(K::Fence) + of(K::Replaced),
        of(K::DeviceEntry),
        of(K::Pages) + of(K::Domain) + of(K::Guest),
        of(K::All),
        of(K::Interrupts),
        of(K::DeviceTlb),
        of(K::Response),
    ])
}

fn seen(counts: &Counts) -> BTreeMap<String, u64> {
    named([
        counts.amd(AmdCommand::CompletionWait),
        counts.amd(AmdCommand::DeviceTableEntry),
        counts.amd(AmdCommand::Pages),
        counts.amd(AmdCommand::All),
        counts.amd(AmdCommand::InterruptTable),
        // Neither is sent there.
        0,
        0,
    ])
}
