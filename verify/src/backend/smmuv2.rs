//! The SMMUv2 driver on the model's registers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use portolan::addr::{PhysAddr, StreamId};
use portolan::platform::{Cpus, Mmio, Nanos, TableMem};
use portolan_hw::smmuv2::{
    Config, DomainOptions, FirstStage, Implementation, SecondStage, SmmuV2, WaitForSafe,
};
use portolan_model::clock::PollingClock;
use portolan_model::memory::{ModelMemory, Visibility};
use portolan_model::smmuv2::{SmmuV2Identification, SmmuV2Registers, SmmuV2Setup};
use portolan_model::tables::Lag;

use super::model::ModelHost;
use super::wrap::Wrap;
use crate::conformance::{Abilities, Has, MakeDomain, Outcome, Rig};

type ModelClock = Arc<PollingClock<Arc<SmmuV2Registers>>>;
/// Registers and memory of the model behind `W`.
type Regs<W> = <W as Wrap<Arc<SmmuV2Registers>, Arc<ModelMemory>>>::Registers;
type Mem<W> = <W as Wrap<Arc<SmmuV2Registers>, Arc<ModelMemory>>>::Memory;
type Iommu<W> = SmmuV2<Regs<W>, Mem<W>, ModelClock>;

/// The driver on the model, behind `W`, with domains `D`.
pub type ModelRig<W, D> = Rig<Iommu<W>, D, ModelHost<SmmuV2Registers>>;
/// First-stage domains.
pub type First<W> = FirstStage<12, Regs<W>, Mem<W>, ModelClock>;
/// Second-stage domains.
pub type Second<W> = SecondStage<12, Regs<W>, Mem<W>, ModelClock>;

/// Which unit the model plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Arm's, coherent.
    Plain,
    /// Lines have to be cleaned.
    NotCoherent,
    /// Qualcomm's: watched by firmware, with slow synchronisations and a stream that a boot loader
    /// left passing through.
    Qualcomm,
}

/// Pages of the model's memory, and where it is.
const MEMORY: (PhysAddr, u32) = (PhysAddr::new(0x8000_0000), 1 << 12);
/// Virtual nanoseconds between two looks of a waiting driver.
const LOOK_NS: u64 = 100;
/// Virtual nanoseconds of a slow synchronisation.
const SLOW_NS: u64 = 1_000;
/// Longest wait of a driver on the model, in virtual time.
const LIMIT: Nanos = Nanos::from_millis(5);

fn submitted<R, M, C>(unit: &SmmuV2<R, M, C>) -> BTreeMap<String, u64>
where
    R: Mmio,
    M: TableMem<AtomicU64>,
    C: Cpus,
{
    let counts = unit.counts();
    let named = counts
        .iter()
        .map(|(kind, count)| (kind.name().to_owned(), count));
    named.collect()
}

/// A new model with a unit of `kind`, for domains that `domain` makes.
fn model<W, D>(
    kind: Kind,
    wrap: &W,
    domain: MakeDomain<Iommu<W>, D>,
) -> Result<ModelRig<W, D>, Outcome>
where
    W: Wrap<Arc<SmmuV2Registers>, Arc<ModelMemory>>,
{
    let plain = SmmuV2Setup::default();
    let (setup, visibility, implementation) = match kind {
        Kind::Plain => (plain, Visibility::AtOnce, Implementation::Arm),
        Kind::NotCoherent => {
            let identification = SmmuV2Identification::default().not_coherent();
            let setup = SmmuV2Setup {
                identification,
                ..plain
            };
            (
                setup,
                Visibility::Late(Lag::CacheLines),
                Implementation::Arm,
            )
        }
        Kind::Qualcomm => (
            SmmuV2Setup::qualcomm(SLOW_NS),
            Visibility::AtOnce,
            Implementation::Qualcomm(WaitForSafe::Off),
        ),
    };
    let memory = Arc::new(ModelMemory::new(MEMORY.0, MEMORY.1, visibility));
    let registers = Arc::new(SmmuV2Registers::new(setup, memory.clone()));
    let clock = PollingClock::new(registers.clock().clone(), LOOK_NS, registers.clone());
    let config = Config {
        limit: LIMIT,
        implementation,
        ..Config::default()
    };
    let (theirs, tables) = wrap.wrap(registers.clone(), memory.clone());
    let unit = SmmuV2::enable(theirs, tables, Arc::new(clock), config);
    let devices = [StreamId::new(0x20), StreamId::new(0x128)];
    Ok(Rig {
        unit: unit.map_err(|error| Outcome::Fail(format!("enabling the unit: {error}")))?,
        host: ModelHost::new(registers, memory, devices),
        abilities: Abilities {
            caches: Has::Yes,
            page_exact: Has::Yes,
            domain_exact: Has::Yes,
            records: Has::Yes,
            reasons: Has::Yes,
            pass_through: Has::Yes,
            blocks: Has::Yes,
            reads: Has::Yes,
        },
        domain,
        pasids: None,
        faulting: None,
        // Commands are register writes, and none can be refused.
        queue_entries: None,
        bad_command: |_, _| None,
        // One record for each context bank.
        fault_room: Some(1),
        submitted,
    })
}

/// A new model whose domains have first-stage tables.
///
/// # Errors
/// If the driver does not take it over.
pub fn first_on_model<W>(kind: Kind, wrap: &W) -> Result<ModelRig<W, First<W>>, Outcome>
where
    W: Wrap<Arc<SmmuV2Registers>, Arc<ModelMemory>>,
{
    let domain = |unit: &SmmuV2<_, _, _>| unit.first_stage(&DomainOptions::default()).map(Arc::new);
    model(kind, wrap, domain)
}

/// A new model whose domains have second-stage tables.
///
/// # Errors
/// If the driver does not take it over.
pub fn second_on_model<W>(kind: Kind, wrap: &W) -> Result<ModelRig<W, Second<W>>, Outcome>
where
    W: Wrap<Arc<SmmuV2Registers>, Arc<ModelMemory>>,
{
    let domain =
        |unit: &SmmuV2<_, _, _>| unit.second_stage(&DomainOptions::default()).map(Arc::new);
    model(kind, wrap, domain)
}
