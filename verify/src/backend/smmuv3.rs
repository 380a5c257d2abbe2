//! The SMMUv3 driver on the model's registers and on QEMU's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use portolan::addr::{PhysAddr, StreamId};
use portolan::inval::{Command, InvalidationQueue as _, Step};
use portolan::platform::{Clock, Mmio, TableMem};
use portolan::unit::UnitError;
use portolan_hw::smmuv3::{CommandKind, Config, DomainOptions, FirstStage, Smmu};
use portolan_model::clock::PollingClock;
use portolan_model::inject::RegisterFaults;
use portolan_model::memory::{ModelMemory, Visibility};
use portolan_model::smmuv3::{SmmuRegisters, SmmuSetup};
use portolan_qemu::config::{Architecture, Device, Iommu};
use portolan_qemu::guest_tables::GuestTables;
use portolan_qemu::machine::Builder;
use portolan_qemu::mmio::{HostClock, Registers};
use portolan_qemu::trace::Counts;

use super::model::{Behind as _, ModelHost};
use super::qemu::QemuHost;
use crate::conformance::{Abilities, Has, Outcome, Rig};

type Unit<R, M, C> = Smmu<R, M, C>;
type Domain<R, M, C> = FirstStage<12, R, M, C>;
type OnRig<R, M, C, H> = Rig<Unit<R, M, C>, Domain<R, M, C>, H>;

type ModelClock = Arc<PollingClock<Arc<SmmuRegisters>>>;
/// The driver on the model.
pub type OnModel =
    OnRig<Arc<SmmuRegisters>, Arc<ModelMemory>, ModelClock, ModelHost<SmmuRegisters>>;
/// The driver on QEMU.
pub type OnQemu = OnRig<Registers, GuestTables, HostClock, QemuHost>;

/// Pages of the model's memory, and where it is.
const MEMORY: (PhysAddr, u32) = (PhysAddr::new(0x8000_0000), 1 << 14);
/// Virtual nanoseconds between two looks of a waiting driver.
const LOOK_NS: u64 = 100;

fn failed(error: UnitError) -> Outcome {
    Outcome::Fail(format!("enabling the unit: {error}"))
}

fn submitted<R, M, C>(unit: &Unit<R, M, C>) -> BTreeMap<String, u64>
where
    R: Mmio,
    M: TableMem<AtomicU64>,
    C: Clock,
{
    let counts = unit.counts();
    let kinds = CommandKind::ALL.iter();
    kinds
        .map(|&kind| (kind.name().to_owned(), counts.of(kind)))
        .collect()
}

const ABILITIES: Abilities = Abilities {
    caches: Has::Yes,
    page_exact: Has::Yes,
    domain_exact: Has::Yes,
    records: Has::Yes,
    reasons: Has::Yes,
    pass_through: Has::Yes,
    blocks: Has::Yes,
    reads: Has::Yes,
};

/// A new model with a unit.
///
/// # Errors
/// If the driver does not take it over.
pub fn on_model() -> Result<OnModel, Outcome> {
    let memory = Arc::new(ModelMemory::new(MEMORY.0, MEMORY.1, Visibility::AtOnce));
    let registers = Arc::new(SmmuRegisters::new(SmmuSetup::default(), memory.clone()));
    let clock = PollingClock::new(registers.clock().clone(), LOOK_NS, registers.clone());
    let config = Config::default();
    let unit = Smmu::enable(registers.clone(), memory.clone(), Arc::new(clock), config);
    let devices = [StreamId::new(0x20), StreamId::new(0x128)];
    Ok(Rig {
        unit: unit.map_err(failed)?,
        host: ModelHost::new(registers, memory, devices),
        abilities: ABILITIES,
        domain: |unit| unit.first_stage(&DomainOptions::default()).map(Arc::new),
        queue_entries: Some(1 << config.command_queue_lg2),
        fault_room: Some(1 << config.event_queue_lg2),
        bad_command: refused,
        submitted,
    })
}

/// Has the model refuse the next command, as if it were illegal, and sends one.
fn refused(
    unit: &Unit<Arc<SmmuRegisters>, Arc<ModelMemory>, ModelClock>,
    host: &ModelHost<SmmuRegisters>,
) -> Option<Result<(), UnitError>> {
    const ILLEGAL: u32 = 1;
    let mut answer = Ok(());
    // The refused ones are not among those carried out: try the next numbers as well.
    for more in 1..16 {
        let carried_out: u64 = host.unit().commands().values().sum();
        host.unit().inject(RegisterFaults {
            refuse: Some((carried_out + more, ILLEGAL)),
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

/// A new QEMU with a unit.
///
/// # Errors
/// [`Outcome::Skip`] without QEMU; [`Outcome::Fail`] if the driver does not take the unit over.
pub fn on_qemu() -> Result<OnQemu, Outcome> {
    let builder = Builder::new(Architecture::Aarch64)
        .iommu(Iommu::Smmuv3)
        .device(Device::edu())
        .device(Device::edu())
        .trace("smmuv3_cmdq_opcode");
    let host = QemuHost::start(&builder, Some(seen))?;
    let machine = host.machine();
    let none = || Outcome::Fail("the machine has no unit".to_owned());
    let registers = machine.iommu_registers().ok_or_else(none)?;
    let config = Config::default();
    let tables = machine.tables().clone();
    let unit = Smmu::enable(registers, tables, HostClock::new(), config);
    Ok(Rig {
        unit: unit.map_err(failed)?,
        abilities: Abilities {
            reads: Has::No("edu writes only"),
            ..ABILITIES
        },
        domain: |unit| unit.first_stage(&DomainOptions::default()).map(Arc::new),
        queue_entries: Some(1 << config.command_queue_lg2),
        fault_room: Some(1 << config.event_queue_lg2),
        bad_command: |_, _| None,
        submitted,
        host,
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
