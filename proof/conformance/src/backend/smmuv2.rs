//! The SMMUv2 driver on the model's registers.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan::addr::StreamId;
use portolan::platform::{UnitParts, UnitPlatform};
use portolan_chips::chips::LS1088A;
use portolan_chips::memory::{ModelMemory, Visibility};
use portolan_chips::smmuv2::{SmmuV2Registers, SmmuV2Setup};
use portolan_hw::smmuv2::{
    Config, FirstStage, Implementation, SecondStage, SmmuV2, SmmuV2DomainOptions, WaitForSafe,
};
use portolan_sim::clock::PollingClock;
use portolan_sim::tables::Lag;

use super::bent::Bent;
use super::model::{LIMIT, LOOK_NS, MEMORY, ModelHost};
use super::seam::{ModelTables, Seam};
use super::{by_name, failed};
use crate::conformance::{MakeDomain, Outcome, Rig};

type ModelClock = Arc<PollingClock<Arc<SmmuV2Registers>>>;
/// Registers and memory of the model behind a seam.
type Regs = Bent<Arc<SmmuV2Registers>>;
type Mem = ModelTables;
/// Machine of the model.
type ModelMachine = UnitParts<Regs, Mem, ModelClock>;
type Iommu = SmmuV2<ModelMachine>;

/// The driver on the model, with domains `D`.
pub type ModelRig<D> = Rig<Iommu, D, ModelHost<SmmuV2Registers>>;
/// First-stage domains.
pub type First = FirstStage<12, ModelMachine>;
/// Second-stage domains.
pub type Second = SecondStage<12, ModelMachine>;

/// Kind of unit that the model plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmmuV2Kind {
    /// Arm's, coherent.
    Plain,
    /// Walks do not snoop: lines have to be cleaned.
    NotCoherent,
    /// Qualcomm's: watched by firmware, with slow synchronisations and a stream that a boot loader
    /// left passing through.
    Qualcomm,
}

/// Virtual nanoseconds of a slow synchronisation.
const SLOW_NS: u64 = 1_000;

fn submitted<P: UnitPlatform>(unit: &SmmuV2<P>) -> BTreeMap<String, u64> {
    let counts = unit.counts();
    by_name(counts.iter().map(|(kind, count)| (kind.name(), count)))
}

/// A new model with a unit of `kind`, for domains that `domain` makes.
fn model<D>(
    kind: SmmuV2Kind,
    seam: Seam,
    domain: MakeDomain<Iommu, D>,
) -> Result<ModelRig<D>, Outcome> {
    let plain = SmmuV2Setup::of(LS1088A.identification.coherent());
    let (setup, visibility, implementation) = match kind {
        SmmuV2Kind::Plain => (plain, Visibility::AtOnce, Implementation::Arm),
        SmmuV2Kind::NotCoherent => (
            SmmuV2Setup::of(LS1088A.identification),
            Visibility::Late(Lag::CacheLines),
            Implementation::Arm,
        ),
        SmmuV2Kind::Qualcomm => (
            SmmuV2Setup { identification: plain.identification, ..SmmuV2Setup::qualcomm(SLOW_NS) },
            Visibility::AtOnce,
            Implementation::Qualcomm(WaitForSafe::Off),
        ),
    };
    let memory = Arc::new(ModelMemory::new(MEMORY.0, MEMORY.1, visibility).checked());
    let registers = Arc::new(SmmuV2Registers::new(setup, memory.clone()));
    let clock = PollingClock::new(registers.clock().clone(), LOOK_NS, registers.clone());
    let mut config = Config::default();
    config.limit = LIMIT;
    config.implementation = implementation;
    let theirs = Bent::new(registers.clone(), seam.sabotage());
    let tables = seam.tables(&memory);
    let unit = SmmuV2::enable(theirs, tables, UnitParts::new(Arc::new(clock)), config);
    let devices = [StreamId::new(0x20), StreamId::new(0x128)];
    let host = ModelHost::new(registers, memory, devices);
    Ok(Rig {
        // One record for each context bank.
        fault_room: Some(1),
        ..Rig::new(unit.map_err(failed)?, host, domain, submitted)
    })
}

/// A new model whose domains have first-stage tables.
///
/// # Errors
/// If the driver does not take it over.
pub fn first_on_model(kind: SmmuV2Kind, seam: Seam) -> Result<ModelRig<First>, Outcome> {
    let domain = |unit: &SmmuV2<_>| unit.first_stage(&SmmuV2DomainOptions::default()).map(Arc::new);
    model(kind, seam, domain)
}

/// A new model whose domains have second-stage tables.
///
/// # Errors
/// If the driver does not take it over.
pub fn second_on_model(kind: SmmuV2Kind, seam: Seam) -> Result<ModelRig<Second>, Outcome> {
    let domain =
        |unit: &SmmuV2<_>| unit.second_stage(&SmmuV2DomainOptions::default()).map(Arc::new);
    model(kind, seam, domain)
}
