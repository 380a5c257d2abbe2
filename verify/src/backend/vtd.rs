//! The VT-d driver on the model's registers and on QEMU's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use portolan::addr::{PhysAddr, StreamId};
use portolan::inval::{Command, InvalidationQueue as _, Step};
use portolan::platform::{Clock, Mmio, TableMem};
use portolan::table::format::VtdFirstLevels;
use portolan::unit::UnitError;
use portolan_hw::vtd::{Config, FirstDomain, Invalidation, Mode, SecondDomain, Vtd};
use portolan_model::clock::PollingClock;
use portolan_model::inject::RegisterFaults;
use portolan_model::memory::{ModelMemory, Visibility};
use portolan_model::tables::Lag;
use portolan_model::vtd::{VtdIdentification, VtdRegisters, VtdSetup};
use portolan_qemu::config::{Architecture, Device, Iommu, Vtd as QemuVtd, VtdFeature, VtdWidth};
use portolan_qemu::guest_tables::GuestTables;
use portolan_qemu::machine::Builder;
use portolan_qemu::mmio::{HostClock, Registers};
use portolan_qemu::trace::{Counts, VtdInvalidation};

use super::model::{Behind as _, ModelHost};
use super::qemu::QemuHost;
use crate::conformance::{Abilities, Has, Outcome, Rig};

type ModelClock = Arc<PollingClock<Arc<VtdRegisters>>>;
type ModelUnit = Vtd<Arc<VtdRegisters>, Arc<ModelMemory>, ModelClock>;
type QemuUnit = Vtd<Registers, GuestTables, HostClock>;

/// Second-stage tables on the model.
pub type SecondOnModel = Rig<
    ModelUnit,
    SecondDomain<Arc<VtdRegisters>, Arc<ModelMemory>, ModelClock>,
    ModelHost<VtdRegisters>,
>;
/// First-stage tables on the model.
pub type FirstOnModel = Rig<
    ModelUnit,
    FirstDomain<Arc<VtdRegisters>, Arc<ModelMemory>, ModelClock>,
    ModelHost<VtdRegisters>,
>;
/// Second-stage tables on QEMU.
pub type SecondOnQemu = Rig<QemuUnit, SecondDomain<Registers, GuestTables, HostClock>, QemuHost>;
/// First-stage tables on QEMU.
pub type FirstOnQemu = Rig<QemuUnit, FirstDomain<Registers, GuestTables, HostClock>, QemuHost>;

/// Which unit the model plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
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
    /// Scalable mode.
    Scalable,
}

const MEMORY: (PhysAddr, u32) = (PhysAddr::new(0x8000_0000), 1 << 14);
const LOOK_NS: u64 = 100;

fn failed(error: UnitError) -> Outcome {
    Outcome::Fail(format!("enabling the unit: {error}"))
}

const ABILITIES: Abilities = Abilities {
    caches: Has::Yes,
    page_exact: Has::Yes,
    domain_exact: Has::Yes,
    records: Has::Yes,
    reasons: Has::No("the unit does not tell missing from forbidden"),
    pass_through: Has::Yes,
    blocks: Has::Yes,
    reads: Has::Yes,
};

/// Entries of the queue: a page of descriptors.
fn entries(config: &Config) -> u64 {
    match config.mode {
        Mode::Legacy => 256 << config.queue_lg2_pages,
        Mode::Scalable => 128 << config.queue_lg2_pages,
    }
}

/// A new model with a unit of `kind`, for domains that `domain` makes.
fn model<D>(
    kind: Kind,
    domain: fn(&ModelUnit) -> Result<Arc<D>, UnitError>,
) -> Result<Rig<ModelUnit, D, ModelHost<VtdRegisters>>, Outcome> {
    let plain = VtdIdentification::default();
    let (identification, visibility) = match kind {
        Kind::Plain => (plain, Visibility::AtOnce),
        Kind::CachingMode => (plain.caching_mode(), Visibility::AtOnce),
        Kind::WriteBuffer => (plain.write_buffer(), Visibility::Late(Lag::WriteBuffer)),
        Kind::NotCoherent => (plain.not_coherent(), Visibility::Late(Lag::CacheLines)),
        Kind::Registers => (plain.without_queue(), Visibility::AtOnce),
        Kind::Scalable => (VtdIdentification::scalable(), Visibility::AtOnce),
    };
    let setup = VtdSetup {
        identification,
        ..VtdSetup::default()
    };
    let config = Config {
        mode: match kind {
            Kind::Scalable => Mode::Scalable,
            _ => Mode::Legacy,
        },
        invalidation: match kind {
            Kind::Registers => Invalidation::Registers,
            _ => Invalidation::Best,
        },
        ..Config::default()
    };
    let memory = Arc::new(ModelMemory::new(MEMORY.0, MEMORY.1, visibility));
    let registers = Arc::new(VtdRegisters::new(setup, memory.clone()));
    let clock = PollingClock::new(registers.clock().clone(), LOOK_NS, registers.clone());
    let queue_entries = (kind != Kind::Registers).then_some(entries(&config));
    let unit = Vtd::enable(registers.clone(), memory.clone(), Arc::new(clock), config);
    let unit = unit.map_err(failed)?;
    let devices = [StreamId::new(0x20), StreamId::new(0x128)];
    Ok(Rig {
        fault_room: Some(unit.features().fault_count as u64),
        unit,
        host: ModelHost::new(registers, memory, devices),
        abilities: ABILITIES,
        domain,
        queue_entries,
        bad_command: match kind {
            Kind::Registers => |_, _| None,
            _ => refused,
        },
        submitted: by_type,
    })
}

/// A new model whose domains have second-stage tables.
///
/// # Errors
/// If the driver does not take it over.
pub fn second_on_model(kind: Kind) -> Result<SecondOnModel, Outcome> {
    model(kind, |unit| unit.second_stage().map(Arc::new))
}

/// A new model in scalable mode whose domains have first-stage tables.
///
/// # Errors
/// If the driver does not take it over.
pub fn first_on_model() -> Result<FirstOnModel, Outcome> {
    let domain = |unit: &ModelUnit| unit.first_stage(VtdFirstLevels::Four).map(Arc::new);
    model(Kind::Scalable, domain)
}

/// Has the model refuse the next descriptor, as if it were malformed, and sends one.
fn refused(unit: &ModelUnit, host: &ModelHost<VtdRegisters>) -> Option<Result<(), UnitError>> {
    const QUEUE_ERROR: u32 = 1 << 4;
    let mut answer = Ok(());
    // The refused ones are not among those carried out: try the next numbers as well.
    for more in 1..16 {
        let carried_out: u64 = host.unit().commands().values().sum();
        host.unit().inject(RegisterFaults {
            refuse: Some((carried_out + more, QUEUE_ERROR)),
            ..RegisterFaults::default()
        });
        let steps = [Step::Invalidate(Command::Global), Step::Sync];
        answer = unit.queue().execute(&mut steps.into_iter());
        if answer.is_err() {
            break;
        }
    }
    host.unit().inject(RegisterFaults::default());
    Some(answer)
}

fn by_type<R, M, C>(unit: &Vtd<R, M, C>) -> BTreeMap<String, u64>
where
    R: Mmio,
    M: TableMem<AtomicU64>,
    C: Clock,
{
    let counts = unit.counts();
    named([
        (
            "CONTEXT_CACHE",
            counts.context_global + counts.context_device,
        ),
        (
            "IOTLB",
            counts.iotlb_global + counts.iotlb_domain + counts.iotlb_pages,
        ),
        ("PASID_IOTLB", counts.pasid_iotlb),
        ("PASID_CACHE", counts.pasid_cache),
        ("WAIT", counts.wait),
    ])
}

fn named<const N: usize>(counts: [(&str, u64); N]) -> BTreeMap<String, u64> {
    let counts = counts.into_iter();
    counts
        .map(|(name, count)| (name.to_owned(), count))
        .collect()
}

/// A new QEMU with a unit, for domains that `domain` makes.
fn qemu<D>(
    vtd: QemuVtd,
    mode: Mode,
    domain: fn(&QemuUnit) -> Result<Arc<D>, UnitError>,
) -> Result<Rig<QemuUnit, D, QemuHost>, Outcome> {
    let builder = Builder::new(Architecture::X86)
        .iommu(Iommu::Vtd(vtd))
        .device(Device::edu())
        .device(Device::edu())
        .trace("vtd_inv_desc*");
    let host = QemuHost::start(&builder, Some(seen))?;
    let machine = host.machine();
    let none = || Outcome::Fail("the machine has no unit".to_owned());
    let registers = machine.iommu_registers().ok_or_else(none)?;
    let config = Config {
        mode,
        ..Config::default()
    };
    let queue_entries = Some(entries(&config));
    let tables = machine.tables().clone();
    let unit = Vtd::enable(registers, tables, HostClock::new(), config);
    let unit = unit.map_err(failed)?;
    Ok(Rig {
        fault_room: Some(unit.features().fault_count as u64),
        unit,
        abilities: Abilities {
            reads: Has::No("edu writes only"),
            ..ABILITIES
        },
        domain,
        queue_entries,
        bad_command: |_, _| None,
        submitted: |unit| {
            let counts = unit.counts();
            named([
                ("context global", counts.context_global),
                ("context device", counts.context_device),
                ("iotlb global", counts.iotlb_global),
                ("iotlb domain", counts.iotlb_domain),
                ("iotlb pages", counts.iotlb_pages),
                ("wait", counts.wait),
            ])
        },
        host,
    })
}

fn seen(counts: &Counts) -> BTreeMap<String, u64> {
    let of = |invalidation| counts.vtd_invalidation(invalidation);
    named([
        ("context global", of(VtdInvalidation::ContextGlobal)),
        ("context device", of(VtdInvalidation::ContextDevices)),
        ("iotlb global", of(VtdInvalidation::IotlbGlobal)),
        ("iotlb domain", of(VtdInvalidation::IotlbDomain)),
        ("iotlb pages", of(VtdInvalidation::IotlbPages)),
        ("wait", of(VtdInvalidation::WaitWrite)),
    ])
}

/// A new QEMU in legacy mode.
///
/// # Errors
/// [`Outcome::Skip`] without QEMU; [`Outcome::Fail`] if the driver does not take the unit over.
pub fn legacy_on_qemu() -> Result<SecondOnQemu, Outcome> {
    let vtd = QemuVtd::new(VtdWidth::Bits48).with(VtdFeature::CachingMode);
    qemu(vtd, Mode::Legacy, |unit| unit.second_stage().map(Arc::new))
}

/// A new QEMU in scalable mode, with second-stage tables.
///
/// # Errors
/// As [`legacy_on_qemu`].
pub fn scalable_on_qemu() -> Result<SecondOnQemu, Outcome> {
    let vtd = QemuVtd::new(VtdWidth::Bits48).with(VtdFeature::Scalable);
    qemu(vtd, Mode::Scalable, |unit| {
        unit.second_stage().map(Arc::new)
    })
}

/// A new QEMU in scalable mode, with first-stage tables, which takes version 10.0.
///
/// # Errors
/// As [`legacy_on_qemu`].
pub fn first_on_qemu() -> Result<FirstOnQemu, Outcome> {
    let vtd = QemuVtd::new(VtdWidth::Bits48);
    let vtd = vtd.with(VtdFeature::Scalable).with(VtdFeature::FirstLevel);
    let domain = |unit: &QemuUnit| unit.first_stage(VtdFirstLevels::Four).map(Arc::new);
    qemu(vtd, Mode::Scalable, domain)
}
