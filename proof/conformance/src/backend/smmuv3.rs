//! The SMMUv3 driver on the model's registers and on QEMU's.

use crate::promise::all_memory;
use std::collections::BTreeMap;
use std::sync::Arc;

use portolan::addr::StreamId;
use portolan::iommu::handover::UnitHandover;
use portolan::iommu::{Attach, Iommu as _, IommuError};
use portolan::iopf::Responder as _;
use portolan::platform::{TableClaims, UnitParts, UnitPlatform};
use portolan::table::format::DirtyTracking;
use portolan_chips::memory::{ModelMemory, Visibility};
use portolan_chips::smmuv3::{Beside, SmmuIdentification, SmmuRegisters, SmmuSetup};
use portolan_hw::smmuv3::{
    Config, FirstStage, MoreQueues, PageRequestEvent, SecondStage, Smmu, SmmuDomainOptions,
    StallOrFault, TableUpdate, Want,
};
use portolan_qemu::config::{Architecture, Iommu};
use portolan_qemu::guest_tables::GuestTables;
use portolan_qemu::machine::Builder;
use portolan_qemu::mmio::HostClock;
use portolan_qemu::trace::Counts;
use portolan_sim::clock::PollingClock;
use portolan_sim::tables::Lag;

use super::model::{LIMIT, LOOK_NS, MEMORY, ModelHost};
use super::nested::Nested;
use super::qemu::QemuHost;
use super::seam::{self, Interface, QemuRegs, Seam};
use super::{by_name, failed};
use crate::conformance::{
    Abilities, DriverEvent, FaultSource, Faulting, Foreign, Has, Layout, MakeDomain, Next, Outcome,
    Pasids, Rig,
};

type ModelClock = Arc<PollingClock<Arc<SmmuRegisters>>>;
/// Registers and memory of the model behind a seam.
type ModelRegs = seam::ModelRegs<SmmuRegisters>;
type ModelMem = seam::ModelTables;
/// Machine of the model.
type ModelMachine = UnitParts<ModelRegs, ModelMem, ModelClock>;
/// Machine of QEMU.
type QemuMachine = UnitParts<QemuRegs, GuestTables, HostClock>;
type ModelUnit = Smmu<ModelMachine>;
type QemuUnit = Smmu<QemuMachine>;

/// The driver on the model, with domains `D`.
pub type ModelRig<D> = Rig<ModelUnit, D, ModelHost<SmmuRegisters>>;
/// The driver on QEMU, with domains `D`.
pub type QemuRig<D> = Rig<QemuUnit, D, QemuHost>;
/// First-stage domains on the model.
pub type FirstOnModel = FirstStage<12, ModelMachine>;
/// Second-stage domains on the model.
pub type SecondOnModel = SecondStage<12, ModelMachine>;
/// First-stage domains on QEMU.
pub type FirstOnQemu = FirstStage<12, QemuMachine>;
/// Second-stage domains on QEMU.
pub type SecondOnQemu = SecondStage<12, QemuMachine>;

/// A guest in each domain, on the model.
pub type NestedModelRig = Rig<Nested<Smmu<ModelMachine>>, SecondOnModel, ModelHost<SmmuRegisters>>;
/// A guest in each domain, on QEMU.
pub type NestedQemuRig = Rig<Nested<Smmu<QemuMachine>>, SecondOnQemu, QemuHost>;

/// Kind of unit that the model plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmmuV3Kind {
    /// Coherent; written pages are marked.
    Plain,
    /// Walks do not snoop: lines have to be cleaned.
    NotCoherent,
    /// CPUs have enhanced command queues of their own.
    EnhancedQueues,
    /// No range invalidation; too many commands without a sync lock its queue up.
    Mmu700,
}

/// Exponent of a stream's substreams.
const PASIDS_LG2: u32 = 4;

fn submitted<P: UnitPlatform>(unit: &Smmu<P>) -> BTreeMap<String, u64> {
    let counts = unit.counts();
    by_name(counts.iter().map(|(kind, count)| (kind.name(), count)))
}

const NESTED: Abilities =
    Abilities { page_exact: Has::No("what both stages came to goes as a whole"), ..Abilities::ALL };

/// Functions with which devices of the model request pages or wait.
fn faulting() -> Faulting<ModelUnit> {
    Faulting {
        ways: &[FaultSource::Requests, FaultSource::Stalls],
        enable: |unit, stream, way| match way {
            FaultSource::Requests => unit.enable_ats(stream, all_memory()),
            FaultSource::Stalls => unit.enable_stalls(stream),
        },
        disable: Some(|unit, stream| unit.disable_ats(stream)),
        gone: |unit, stream| unit.device_gone(stream),
        next: asked,
        respond: |unit, to, response| unit.respond(to, response),
    }
}

/// A new model with a unit of `kind`, for domains that `domain` makes.
fn model<D>(
    kind: SmmuV3Kind,
    seam: Seam,
    domain: MakeDomain<ModelUnit, D>,
    pasids: Option<Pasids<ModelUnit, D>>,
) -> Result<ModelRig<D>, Outcome> {
    let plain = SmmuIdentification::able();
    let (identification, visibility) = match kind {
        SmmuV3Kind::Plain => (plain.marks().stalls().page_requests(), Visibility::AtOnce),
        SmmuV3Kind::NotCoherent => (plain.not_coherent(), Visibility::Late(Lag::CacheLines)),
        SmmuV3Kind::EnhancedQueues => (plain, Visibility::AtOnce),
        SmmuV3Kind::Mmu700 => (plain.mmu_700(), Visibility::AtOnce),
    };
    let beside = match kind {
        SmmuV3Kind::EnhancedQueues => Beside::Enhanced { pages_lg2: 1, queues_lg2: 2 },
        _ => Beside::None,
    };
    let setup = SmmuSetup {
        identification,
        beside,
        // Fewer than 64 between two syncs.
        most_unsynced: (kind == SmmuV3Kind::Mmu700).then_some(63),
        ..SmmuSetup::default()
    };
    let memory = Arc::new(ModelMemory::new(MEMORY.0, MEMORY.1, visibility).checked());
    let registers = Arc::new(SmmuRegisters::new(setup, memory.clone()));
    let mut config = Config::default();
    config.limit = LIMIT;
    config.page_requests = Want::IfThere;
    let kernel = {
        let (registers, memory) = (registers.clone(), memory.clone());
        move || {
            let clock = PollingClock::new(registers.clock().clone(), LOOK_NS, registers.clone());
            let (theirs, tables) = seam.model(&registers, &memory, Interface::Smmuv3);
            (theirs, tables, UnitParts::new(Arc::new(clock)))
        }
    };
    let queue_entries = Some(1 << config.command_queue_lg2);
    let fault_room = Some(1 << config.event_queue_lg2);
    let adopt = {
        let (kernel, config) = (kernel.clone(), config.clone());
        move |state: &UnitHandover, claims: &mut TableClaims<'_>| {
            let (registers, tables, clock) = kernel();
            Smmu::adopt(registers, tables, clock, config.clone(), state, claims)
        }
    };
    let enable = move || {
        let (registers, tables, clock) = kernel();
        let more = match kind {
            SmmuV3Kind::EnhancedQueues => MoreQueues::Enhanced,
            _ => MoreQueues::None,
        };
        Smmu::enable_with(registers, more, tables, clock, config.clone())
    };
    let unit = enable();
    let devices = [StreamId::new(0x20), StreamId::new(0x128)];
    let host = ModelHost::new(registers, memory, devices);
    Ok(Rig {
        pasids,
        faulting: (kind == SmmuV3Kind::Plain).then(faulting),
        next: Some(Next {
            former: |unit| unit,
            enable: Box::new(move || Ok(Arc::new(enable()?))),
            adopt: Box::new(move |state, claims| Ok(Arc::new(adopt(state, claims)?))),
        }),
        queue_entries,
        fault_room,
        bad_command: |unit, host| Some(host.refuse_one(&unit.queue())),
        ..Rig::new(unit.map_err(failed)?, host, domain, submitted)
    })
}

/// Options of domains whose written pages are marked, where the unit does that.
fn marking<P: UnitPlatform>(unit: &Smmu<P>) -> SmmuDomainOptions {
    let (mut options, features) = (SmmuDomainOptions::default(), unit.features());
    if features.update == TableUpdate::Dirty && features.coherent {
        options.dirty = DirtyTracking::Hardware;
    }
    options
}

/// A new model whose domains have first-stage tables.
///
/// # Errors
/// If the driver does not take it over.
pub fn first_on_model(kind: SmmuV3Kind, seam: Seam) -> Result<ModelRig<FirstOnModel>, Outcome> {
    let pasids = Pasids {
        enable: |unit: &ModelUnit, stream| unit.enable_pasids(stream, PASIDS_LG2),
        attach: |unit, stream, pasid, domain| unit.attach_pasid(stream, pasid, domain),
        block: |unit, stream, pasid| unit.block_pasid(stream, pasid),
    };
    let domain = |unit: &Smmu<_>| unit.first_stage(&marking(unit)).map(Arc::new);
    let mut rig = model(kind, seam, domain, Some(pasids))?;
    rig.foreign = Some(Foreign {
        layout: Layout::ARMV8,
        memory: rig.host.ram().clone(),
        attach: |unit, stream, pasid, tables| {
            let domain = unit.foreign_first_stage::<12>(&SmmuDomainOptions::default(), tables)?;
            let domain = Arc::new(domain);
            unit.attach_pasid(stream, pasid, &domain)?;
            Ok(Box::new(move |range| Ok(domain.invalidate(range)?)))
        },
    });
    Ok(rig)
}

/// A new model whose domains have second-stage tables.
///
/// # Errors
/// If the driver does not take it over.
pub fn second_on_model(kind: SmmuV3Kind, seam: Seam) -> Result<ModelRig<SecondOnModel>, Outcome> {
    let domain = |unit: &Smmu<_>| unit.second_stage(&marking(unit)).map(Arc::new);
    model(kind, seam, domain, None)
}

/// A new model whose domains have second-stage tables with a guest's first stage on top.
///
/// # Errors
/// If the driver does not take it over.
pub fn nested_on_model(seam: Seam) -> Result<NestedModelRig, Outcome> {
    let rig = second_on_model(SmmuV3Kind::Plain, seam)?;
    let memory = rig.host.ram().clone();
    let unit = Nested::new(rig.unit, memory).map_err(failed)?;
    Ok(Rig {
        guest: unit.guest(),
        abilities: NESTED,
        faulting: Some(Faulting {
            ways: &[FaultSource::Requests, FaultSource::Stalls],
            enable: |unit, stream, way| match way {
                FaultSource::Requests => unit.unit.enable_ats(stream, all_memory()),
                FaultSource::Stalls => {
                    unit.stall();
                    unit.unit.enable_stalls(stream)
                }
            },
            disable: Some(|unit, stream| unit.unit.disable_ats(stream)),
            gone: |unit, stream| unit.unit.device_gone(stream),
            next: |unit| asked(&unit.unit),
            respond: |unit, to, response| unit.unit.respond(to, response),
        }),
        queue_entries: rig.queue_entries,
        fault_room: rig.fault_room,
        bad_command: |unit, host| Some(host.refuse_one(&unit.unit.queue())),
        ..Rig::new(
            unit,
            rig.host,
            |unit| {
                let domain = unit.unit.second_stage(&SmmuDomainOptions::default());
                domain.map(Arc::new)
            },
            |unit| submitted(&unit.unit),
        )
    })
}

/// The oldest event of a unit; page requests are returned first.
fn asked<P: UnitPlatform>(unit: &Smmu<P>) -> Result<Option<DriverEvent>, IommuError> {
    match unit.next_page_request()? {
        Some(PageRequestEvent::Request(raw)) => return Ok(Some(DriverEvent::Request(raw))),
        Some(PageRequestEvent::Lost) => return Ok(Some(DriverEvent::Lost)),
        None => {}
    }
    Ok(unit.next_stall_or_fault()?.map(|event| match event {
        StallOrFault::Stalled { request, .. } => DriverEvent::Request(request),
        StallOrFault::Fault(_) => DriverEvent::Other,
    }))
}

/// A new QEMU with a unit, for domains that `domain` makes.
fn qemu<D>(seam: Seam, domain: MakeDomain<QemuUnit, D>) -> Result<QemuRig<D>, Outcome> {
    let builder =
        Builder::new(Architecture::Aarch64).iommu(Iommu::Smmuv3).trace("smmuv3_cmdq_opcode");
    let host = QemuHost::start(builder, Some(seen))?;
    let machine = host.machine();
    let none = || Outcome::Fail("the machine has no unit".to_owned());
    let registers = machine.iommu_registers().ok_or_else(none)?;
    let config = Config::default();
    let tables = machine.tables().clone();
    let registers = seam.qemu(registers, &tables, Interface::Smmuv3);
    let queue_entries = Some(1 << config.command_queue_lg2);
    let fault_room = Some(1 << config.event_queue_lg2);
    let unit = Smmu::enable(registers, tables, UnitParts::new(HostClock::new()), config);
    Ok(Rig {
        abilities: Abilities { reads: Has::No("edu writes only"), ..Abilities::ALL },
        queue_entries,
        fault_room,
        ..Rig::new(unit.map_err(failed)?, host, domain, submitted)
    })
}

/// A new QEMU whose domains have first-stage tables.
///
/// # Errors
/// [`Outcome::Skip`] without QEMU; [`Outcome::Fail`] if the driver does not take the unit over.
pub fn first_on_qemu(seam: Seam) -> Result<QemuRig<FirstOnQemu>, Outcome> {
    let domain = |unit: &Smmu<_>| unit.first_stage(&SmmuDomainOptions::default()).map(Arc::new);
    qemu(seam, domain)
}

/// A new QEMU whose domains have second-stage tables, which takes version 10.0.
///
/// # Errors
/// As [`first_on_qemu`].
pub fn second_on_qemu(seam: Seam) -> Result<QemuRig<SecondOnQemu>, Outcome> {
    super::qemu::needs_stages(Architecture::Aarch64)?;
    let domain = |unit: &Smmu<_>| unit.second_stage(&SmmuDomainOptions::default()).map(Arc::new);
    qemu(seam, domain)
}

/// A new QEMU whose domains have second-stage tables with a guest's first stage on top, which takes
/// version 10.0.
///
/// # Errors
/// As [`first_on_qemu`].
pub fn nested_on_qemu(seam: Seam) -> Result<NestedQemuRig, Outcome> {
    let rig = second_on_qemu(seam)?;
    let tables = Arc::new(rig.host.machine().tables().clone());
    let unit = Nested::new(rig.unit, tables);
    Ok(Rig {
        abilities: Abilities { reads: rig.abilities.reads, ..NESTED },
        queue_entries: rig.queue_entries,
        fault_room: rig.fault_room,
        ..Rig::new(
            unit.map_err(failed)?,
            rig.host,
            |unit| {
                let domain = unit.unit.second_stage(&SmmuDomainOptions::default());
                domain.map(Arc::new)
            },
            |unit| submitted(&unit.unit),
        )
    })
}

/// QEMU's counts by the driver's names.
fn seen(counts: &Counts) -> BTreeMap<String, u64> {
    let kinds = counts.by_kind().iter();
    kinds
        .filter_map(|(name, count)| {
            let (_, command) = name.rsplit_once("SMMU_CMD_")?;
            Some((command.to_owned(), *count))
        })
        .collect()
}
