//! The driver of Tegra's SMMU on the model's registers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use portolan::addr::PhysAddr;
use portolan::platform::{UnitParts, UnitPlatform};
use portolan::table::format::Tegra;
use portolan_chips::memory::{ModelMemory, Visibility};
use portolan_chips::tegra_smmu::{TegraChip, TegraRegisters, TegraSetup};
use portolan_hw::tegra_smmu::{Chip, Config, TegraDomain, TegraSmmu};
use portolan_sim::clock::PollingClock;
use portolan_sim::tables::Lag;

use super::model::{LIMIT, LOOK_NS, ModelHost};
use super::seam::{self, Interface, Seam};
use super::{by_name, failed};
use crate::conformance::{Abilities, Has, Outcome, Rig};

/// The model's memory.
pub type Memory = Arc<ModelMemory<AtomicU32>>;
type ModelClock = Arc<PollingClock<Arc<TegraRegisters>>>;
/// Registers and memory of the model behind a seam.
type Regs = seam::ModelRegs<TegraRegisters, AtomicU32>;
type Mem = seam::ModelTables<AtomicU32>;
/// Machine of the model.
type ModelMachine = UnitParts<Regs, Mem, ModelClock>;
type Iommu = TegraSmmu<ModelMachine>;
type Domain = TegraDomain<ModelMachine>;

/// The driver on the model.
pub type ModelRig = Rig<Iommu, Domain, ModelHost<TegraRegisters>>;

/// Pages of the model's memory.
const PAGES: u32 = 1 << 12;

const ABILITIES: Abilities = Abilities {
    page_exact: Has::No("four pages share a line of the translation buffer and go as one"),
    block: Tegra::SECTION,
    ..Abilities::ALL
};

/// Model of a chip, and the address of its memory, which is beyond 4 GiB on a chip that can address it.
pub const fn model_of(chip: Chip) -> (TegraChip, PhysAddr) {
    let low = PhysAddr::new(0x8000_0000);
    match chip {
        Chip::Tegra30 => (TegraChip::Tegra30, low),
        Chip::Tegra114 => (TegraChip::Tegra114, low),
        Chip::Tegra124 => (TegraChip::Tegra124, low),
        Chip::Tegra210 => (TegraChip::Tegra210, PhysAddr::new(0x2_8000_0000)),
    }
}

fn submitted<P: UnitPlatform<AtomicU32>>(unit: &TegraSmmu<P>) -> BTreeMap<String, u64> {
    let counts = unit.counts();
    by_name(counts.iter().map(|(kind, count)| (kind.name(), count)))
}

/// A new model.
///
/// # Errors
/// If the driver does not take it over.
pub fn on_model(chip: Chip, seam: Seam) -> Result<ModelRig, Outcome> {
    let (model, base) = model_of(chip);
    let late = Visibility::Late(Lag::CacheLines);
    let memory = Arc::new(ModelMemory::narrow(base, PAGES, late).checked());
    let registers = Arc::new(TegraRegisters::new(TegraSetup::of(model), memory.clone()));
    let clock = PollingClock::new(registers.clock().clone(), LOOK_NS, registers.clone());
    let mut config = Config::of(chip);
    config.limit = LIMIT;
    let (theirs, tables) = seam.model(&registers, &memory, Interface::Registers);
    let unit = TegraSmmu::enable(theirs, tables, UnitParts::new(Arc::new(clock)), config);
    let [first, second, _] = model.clients();
    let devices = [first.stream, second.stream];
    let host = ModelHost::new(registers, memory, devices);
    Ok(Rig {
        abilities: ABILITIES,
        ..Rig::new(unit.map_err(failed)?, host, |unit| unit.domain().map(Arc::new), submitted)
    })
}
