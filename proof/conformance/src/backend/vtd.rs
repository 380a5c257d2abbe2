//! The VT-d driver on the model's registers and on QEMU's.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan::addr::{PhysAddr, StreamId};
use portolan::iommu::handover::UnitHandover;
use portolan::iommu::{Attach, Domain, Iommu as _};
use portolan::platform::{TableClaims, UnitParts, UnitPlatform};
use portolan::table::format::{DirtyTracking, VtdFirstLevels};
use portolan_chips::chips::SKYLAKE_SP;
use portolan_chips::memory::{ModelMemory, PairStores, Visibility};
use portolan_chips::vtd::{VtdRegisters, VtdSetup};
use portolan_hw::interrupt::Remapping;
use portolan_hw::vtd::{
    CommandKind as K, Config, FirstDomain, Invalidation, Mode, PageEvent, SecondDomain, Vtd,
};
use portolan_qemu::config::{Architecture, Iommu, Vtd as QemuVtd, VtdFeature, VtdWidth};
use portolan_qemu::guest_tables::GuestTables;
use portolan_qemu::machine::Builder;
use portolan_qemu::mmio::HostClock;
use portolan_qemu::trace::{Counts, VtdDescriptor, VtdInvalidation};
use portolan_sim::clock::PollingClock;
use portolan_sim::tables::Lag;

use super::asks::asking_by_tlb;
use super::model::{LIMIT, LOOK_NS, MEMORY, ModelHost};
use super::qemu::QemuHost;
use super::seam::{self, Interface, QemuRegs, Seam};
use super::{by_name, failed};
use crate::conformance::{
    Abilities, DriverEvent, Faulting, Foreign, Has, Layout, MakeDomain, Next, Outcome, Pasids, Rig,
};

type ModelClock = Arc<PollingClock<Arc<VtdRegisters>>>;
/// Registers and memory of the model behind a seam.
type ModelRegs = seam::ModelRegs<VtdRegisters>;
type ModelMem = seam::ModelTables;
/// Machine of the model.
type ModelMachine = UnitParts<ModelRegs, ModelMem, ModelClock>;
/// Machine of QEMU.
type QemuMachine = UnitParts<QemuRegs, GuestTables, HostClock>;
type ModelUnit = Vtd<ModelMachine>;
type QemuUnit = Vtd<QemuMachine>;

/// The driver on the model, with domains `D`.
pub type ModelRig<D> = Rig<ModelUnit, D, ModelHost<VtdRegisters>>;
/// The driver on QEMU, with domains `D`.
pub type QemuRig<D> = Rig<QemuUnit, D, QemuHost>;
/// First-stage domains on the model.
pub type FirstOnModel = FirstDomain<ModelMachine>;
/// Second-stage domains on the model.
pub type SecondOnModel = SecondDomain<ModelMachine>;
/// First-stage domains on QEMU.
pub type FirstOnQemu = FirstDomain<QemuMachine>;
/// Second-stage domains on QEMU.
pub type SecondOnQemu = SecondDomain<QemuMachine>;

/// Kind of unit that the model plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VtdKind {
    /// Legacy mode, coherent, with a queue.
    Plain,
    /// Legacy mode; absence is cached.
    CachingMode,
    /// Legacy mode; the write buffer has to be flushed.
    WriteBuffer,
    /// Legacy mode; lines have to be cleaned.
    NotCoherent,
    /// Legacy mode; invalidation through registers.
    Registers,
    /// Scalable mode; written pages are marked.
    Scalable,
}

const ABILITIES: Abilities = Abilities {
    reasons: Has::No("the unit does not tell missing from forbidden"),
    ..Abilities::ALL
};

/// Entries of the queue: a page of descriptors.
fn entries(config: &Config) -> u64 {
    match config.mode {
        Mode::Legacy => 256 << config.queue_lg2_pages,
        Mode::Scalable => 128 << config.queue_lg2_pages,
    }
}

/// A table of a page.
fn small() -> Remapping {
    let mut small = Remapping::default();
    small.lg2_entries = 8;
    small
}

/// Functions with which devices of the model request pages.
fn faulting<P: UnitPlatform>() -> Faulting<Vtd<P>> {
    let gone = |unit: &Vtd<P>, stream| unit.device_gone(stream);
    asking_by_tlb(gone, |unit| {
        Ok(unit.next_page_request()?.map(|event| match event {
            PageEvent::Request { request, .. } => DriverEvent::Request(request),
            PageEvent::Lost => DriverEvent::Lost,
            PageEvent::Unknown { .. } => DriverEvent::Other,
        }))
    })
}

/// Configuration that the driver gets for a unit of `kind`.
fn config_of(kind: VtdKind) -> Config {
    let mut config = Config::default();
    config.limit = LIMIT;
    config.mode = match kind {
        VtdKind::Scalable => Mode::Scalable,
        _ => Mode::Legacy,
    };
    config.interrupts = (kind != VtdKind::Registers).then(small);
    if kind == VtdKind::Scalable {
        config.dirty = DirtyTracking::Hardware;
    }
    config.invalidation = match kind {
        VtdKind::Registers => Invalidation::Registers,
        _ => Invalidation::Best,
    };
    config
}

/// Memory of a unit of `kind`. Scalable mode's lies above 4 GiB, and entries of interrupts change there by both words.
fn memory_of(kind: VtdKind, seam: Seam, visibility: Visibility) -> Arc<ModelMemory> {
    let (base, pairs) = match kind {
        VtdKind::Scalable => (PhysAddr::new(0x12_8000_0000), seam.sabotage().pairs),
        _ => (MEMORY.0, PairStores::Absent),
    };
    Arc::new(ModelMemory::new(base, MEMORY.1, visibility).with_pairs(pairs).checked())
}

/// A new model with a unit of `kind`, for domains that `domain` makes.
fn model<D>(
    kind: VtdKind,
    seam: Seam,
    domain: MakeDomain<ModelUnit, D>,
) -> Result<ModelRig<D>, Outcome>
where
    D: Domain,
    ModelUnit: Attach<D>,
{
    let plain = SKYLAKE_SP.identification;
    let (identification, visibility) = match kind {
        VtdKind::Plain => (plain, Visibility::AtOnce),
        VtdKind::CachingMode => (plain.caching_mode(), Visibility::AtOnce),
        VtdKind::WriteBuffer => (plain.write_buffer(), Visibility::Late(Lag::WriteBuffer)),
        VtdKind::NotCoherent => (plain.not_coherent(), Visibility::Late(Lag::CacheLines)),
        VtdKind::Registers => (plain.without_queue(), Visibility::AtOnce),
        VtdKind::Scalable => {
            let scalable = SKYLAKE_SP.identification.scalable().marks().page_requests();
            (scalable, Visibility::AtOnce)
        }
    };
    let setup = VtdSetup { identification: identification.posted(), ..VtdSetup::default() };
    let config = config_of(kind);
    let memory = memory_of(kind, seam, visibility);
    let registers = Arc::new(VtdRegisters::new(setup, memory.clone()));
    let queue_entries = (kind != VtdKind::Registers).then_some(entries(&config));
    let kernel = {
        let (registers, memory) = (registers.clone(), memory.clone());
        move || {
            let clock = PollingClock::new(registers.clock().clone(), LOOK_NS, registers.clone());
            let (theirs, tables) = seam.model(&registers, &memory, Interface::Vtd);
            (theirs, tables, UnitParts::new(Arc::new(clock)))
        }
    };
    let adopt = {
        let (kernel, config) = (kernel.clone(), config.clone());
        move |state: &UnitHandover, claims: &mut TableClaims<'_>| {
            let (registers, tables, clock) = kernel();
            Vtd::adopt(registers, tables, clock, config.clone(), state, claims)
        }
    };
    let enable = move || {
        let (registers, tables, clock) = kernel();
        Vtd::enable(registers, tables, clock, config.clone())
    };
    let unit = enable().map_err(failed)?;
    if kind == VtdKind::Scalable {
        unit.read_page_requests(0).map_err(failed)?;
    }
    let devices = [StreamId::new(0x20), StreamId::new(0x128)];
    let host = ModelHost::new(registers, memory, devices);
    Ok(Rig {
        fault_room: Some(unit.features().fault_count as u64),
        abilities: ABILITIES,
        pasids: (kind == VtdKind::Scalable).then_some(Pasids {
            enable: |_, _| Ok(()),
            attach: |unit, stream, pasid, domain| unit.attach_pasid(stream, pasid, domain),
            block: |unit, stream, pasid| unit.block_pasid(stream, pasid),
        }),
        faulting: (kind == VtdKind::Scalable).then(faulting),
        interrupts: match kind {
            VtdKind::Registers => None,
            _ => Some(|unit| unit),
        },
        next: Some(Next {
            former: |unit| unit,
            enable: Box::new(move || Ok(Arc::new(enable()?))),
            adopt: Box::new(move |state, claims| Ok(Arc::new(adopt(state, claims)?))),
        }),
        queue_entries,
        bad_command: match kind {
            VtdKind::Registers => |_, _| None,
            _ => |unit, host| Some(host.refuse_one(&unit.queue())),
        },
        ..Rig::new(unit, host, domain, by_type)
    })
}

/// A new model whose domains have second-stage tables.
///
/// # Errors
/// If the driver does not take it over.
pub fn second_on_model(kind: VtdKind, seam: Seam) -> Result<ModelRig<SecondOnModel>, Outcome> {
    model(kind, seam, |unit| unit.second_stage().map(Arc::new))
}

/// A new model in scalable mode whose domains have first-stage tables.
///
/// # Errors
/// If the driver does not take it over.
pub fn first_on_model(seam: Seam) -> Result<ModelRig<FirstOnModel>, Outcome> {
    let domain = |unit: &Vtd<_>| unit.first_stage(VtdFirstLevels::Four).map(Arc::new);
    let mut rig = model(VtdKind::Scalable, seam, domain)?;
    rig.foreign = Some(Foreign {
        layout: Layout::X86,
        memory: rig.host.ram().clone(),
        attach: |unit, stream, pasid, tables| {
            let domain = Arc::new(unit.foreign_first_stage(VtdFirstLevels::Four, tables)?);
            unit.attach_pasid(stream, pasid, &domain)?;
            Ok(Box::new(move |range| Ok(domain.invalidate(range)?)))
        },
    });
    Ok(rig)
}

fn by_type<P: UnitPlatform>(unit: &Vtd<P>) -> BTreeMap<String, u64> {
    let counts = unit.counts();
    let of = |kind| counts.of(kind);
    by_name([
        ("CONTEXT_CACHE", of(K::ContextGlobal) + of(K::ContextDevice)),
        ("IOTLB", of(K::IotlbGlobal) + of(K::IotlbDomain) + of(K::IotlbPages)),
        ("PASID_IOTLB", of(K::PasidIotlb)),
        ("PASID_CACHE", of(K::PasidCache)),
        ("DEVICE_TLB", of(K::DeviceTlb)),
        ("PAGE_RESPONSE", of(K::Response)),
        ("INTERRUPT_ENTRIES", of(K::InterruptEntries)),
        ("WAIT", of(K::Wait)),
    ])
}

/// A new QEMU with a unit, for domains that `domain` makes.
fn qemu<D>(
    vtd: QemuVtd,
    mode: Mode,
    seam: Seam,
    domain: MakeDomain<QemuUnit, D>,
) -> Result<QemuRig<D>, Outcome> {
    let vtd = vtd.with(VtdFeature::InterruptRemapping);
    let builder = Builder::new(Architecture::X86)
        .iommu(Iommu::Vtd(vtd))
        .trace("vtd_inv_desc*")
        .trace("vtd_ir_remap_msi");
    let host = QemuHost::start(builder, Some(seen))?;
    let machine = host.machine();
    let none = || Outcome::Fail("the machine has no unit".to_owned());
    let registers = machine.iommu_registers().ok_or_else(none)?;
    let mut config = Config::default();
    config.mode = mode;
    config.interrupts = Some(small());
    let queue_entries = Some(entries(&config));
    let tables = machine.tables().clone();
    let registers = seam.qemu(registers, &tables, Interface::Vtd);
    let unit =
        Vtd::enable(registers, tables, UnitParts::new(HostClock::new()), config).map_err(failed)?;
    Ok(Rig {
        fault_room: Some(unit.features().fault_count as u64),
        abilities: Abilities {
            reads: Has::No("edu writes only"),
            records_interrupts: Has::No("QEMU 7.2 does not record refused interrupts"),
            refuses_plain: Has::No("QEMU lets interrupts in compatibility format through"),
            ..ABILITIES
        },
        interrupts: Some(|unit| unit),
        queue_entries,
        ..Rig::new(unit, host, domain, |unit| {
            let counts = unit.counts();
            let of = |kind| counts.of(kind);
            by_name([
                ("context global", of(K::ContextGlobal)),
                ("context device", of(K::ContextDevice)),
                ("iotlb global", of(K::IotlbGlobal)),
                ("iotlb domain", of(K::IotlbDomain)),
                ("iotlb pages", of(K::IotlbPages)),
                ("interrupt entries", of(K::InterruptEntries)),
                ("wait", of(K::Wait)),
            ])
        })
    })
}

fn seen(counts: &Counts) -> BTreeMap<String, u64> {
    let of = |invalidation| counts.vtd_invalidation(invalidation);
    by_name([
        ("context global", of(VtdInvalidation::ContextGlobal)),
        ("context device", of(VtdInvalidation::ContextDevices)),
        ("iotlb global", of(VtdInvalidation::IotlbGlobal)),
        ("iotlb domain", of(VtdInvalidation::IotlbDomain)),
        ("iotlb pages", of(VtdInvalidation::IotlbPages)),
        ("interrupt entries", counts.vtd(VtdDescriptor::InterruptEntry)),
        ("wait", of(VtdInvalidation::WaitWrite)),
    ])
}

/// A new QEMU in legacy mode.
///
/// # Errors
/// [`Outcome::Skip`] without QEMU; [`Outcome::Fail`] if the driver does not take the unit over.
pub fn legacy_on_qemu(seam: Seam) -> Result<QemuRig<SecondOnQemu>, Outcome> {
    let vtd = QemuVtd::new(VtdWidth::Bits48).with(VtdFeature::CachingMode);
    let domain = |unit: &Vtd<_>| unit.second_stage().map(Arc::new);
    qemu(vtd, Mode::Legacy, seam, domain)
}

/// A new QEMU in scalable mode, with second-stage tables.
///
/// # Errors
/// As [`legacy_on_qemu`].
pub fn scalable_on_qemu(seam: Seam) -> Result<QemuRig<SecondOnQemu>, Outcome> {
    let vtd = QemuVtd::new(VtdWidth::Bits48).with(VtdFeature::Scalable);
    let domain = |unit: &Vtd<_>| unit.second_stage().map(Arc::new);
    qemu(vtd, Mode::Scalable, seam, domain)
}

/// A new QEMU in scalable mode, with first-stage tables, which takes version 10.0.
///
/// # Errors
/// As [`legacy_on_qemu`].
pub fn first_on_qemu(seam: Seam) -> Result<QemuRig<FirstOnQemu>, Outcome> {
    let vtd =
        QemuVtd::new(VtdWidth::Bits48).with(VtdFeature::Scalable).with(VtdFeature::FirstLevel);
    let domain = |unit: &Vtd<_>| unit.first_stage(VtdFirstLevels::Four).map(Arc::new);
    qemu(vtd, Mode::Scalable, seam, domain)
}
