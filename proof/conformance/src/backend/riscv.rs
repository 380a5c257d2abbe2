//! The RISC-V IOMMU's driver on the model's registers and on QEMU's.

use crate::promise::described;
use std::collections::BTreeMap;
use std::sync::Arc;

use portolan::addr::StreamId;
use portolan::iommu::handover::UnitHandover;
use portolan::iommu::{Attach, Domain, Iommu as _};
use portolan::platform::{TableClaims, UnitParts, UnitPlatform};
use portolan::table::format::{DirtyTracking, RiscvContiguity, RiscvLevels};
use portolan_chips::memory::{ModelMemory, Visibility};
use portolan_chips::riscv::{RiscvIdentification, RiscvRegisters, RiscvSetup};
use portolan_hw::riscv::{
    CommandKind as K, Config, FirstDomain, InterruptFiles, Messages, RiscvIommu, SecondDomain,
};
use portolan_qemu::config::{Architecture, Iommu};
use portolan_qemu::guest_tables::GuestTables;
use portolan_qemu::machine::Builder;
use portolan_qemu::mmio::{HostClock, Registers};
use portolan_qemu::trace::{Counts, RiscvCommand as Q};
use portolan_sim::clock::PollingClock;

use super::asks::{asking_by_tlb, request_event};
use super::behind::INTERRUPT_FILES;
use super::model::{LIMIT, LOOK_NS, MEMORY, ModelHost};
use super::qemu::QemuHost;
use super::seam::{self, Interface, Seam};
use super::{by_name, failed};
use crate::conformance::{Abilities, Has, MakeDomain, Next, Outcome, Pasids, Rig};

type ModelClock = Arc<PollingClock<Arc<RiscvRegisters>>>;
/// Registers and memory of the model behind a seam.
type ModelRegs = seam::ModelRegs<RiscvRegisters>;
type ModelMem = seam::ModelTables;
/// Machine of the model.
type ModelMachine = UnitParts<ModelRegs, ModelMem, ModelClock>;
/// Machine of QEMU.
type QemuMachine = UnitParts<Registers, GuestTables, HostClock>;
type ModelUnit = RiscvIommu<ModelMachine>;
/// The driver on the model, with domains `D`.
pub type OnModel<D> = Rig<ModelUnit, D, ModelHost<RiscvRegisters>>;
/// First-stage domains on the model.
pub type FirstOnModel = FirstDomain<ModelMachine>;
/// Second-stage domains on the model.
pub type SecondOnModel = SecondDomain<ModelMachine>;

type QemuUnit = RiscvIommu<QemuMachine>;
/// The driver on QEMU, with domains `D`.
pub type OnQemu<D> = Rig<QemuUnit, D, QemuHost>;
/// First-stage domains on QEMU.
pub type FirstOnQemu = FirstDomain<QemuMachine>;
/// Second-stage domains on QEMU.
pub type SecondOnQemu = SecondDomain<QemuMachine>;

/// Vendor and device of QEMU's PCI function.
const FUNCTION: (u16, u16) = (0x1b36, 0x0014);

/// Kind of unit that the model plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RiscvKind {
    /// Contexts in base format; leaves are invalidated by address, and all else by context; written pages are marked.
    Plain,
    /// Contexts in extended format; ranges, and entries above the leaves; leaves of 64 KiB.
    Extended,
    /// The same with interrupts through MSI page tables.
    Interrupts,
}

/// A new model with a unit of `kind`, first stage.
///
/// # Errors
/// If the driver does not take it over.
pub fn first_on_model(kind: RiscvKind, seam: Seam) -> Result<OnModel<FirstOnModel>, Outcome> {
    let made = model(kind, seam, |unit| unit.first_stage(RiscvLevels::Four).map(Arc::new));
    let pasids = Some(Pasids {
        enable: |unit: &ModelUnit, stream| unit.enable_pasids(stream, 4),
        attach: |unit, stream, pasid, domain| unit.attach_pasid(stream, pasid, domain),
        block: |unit, stream, pasid| unit.block_pasid(stream, pasid),
    });
    made.map(|rig| Rig { pasids, ..rig })
}

/// A new model with a unit of `kind`, second stage.
///
/// # Errors
/// If the driver does not take it over.
pub fn second_on_model(kind: RiscvKind, seam: Seam) -> Result<OnModel<SecondOnModel>, Outcome> {
    model(kind, seam, |unit| unit.second_stage(RiscvLevels::Three).map(Arc::new))
}

fn model<D>(
    kind: RiscvKind,
    seam: Seam,
    domain: MakeDomain<ModelUnit, D>,
) -> Result<OnModel<D>, Outcome>
where
    D: Domain + Send + Sync + 'static,
    ModelUnit: Attach<D>,
{
    let plain = RiscvIdentification::able().pasids().ats();
    let identification = match kind {
        RiscvKind::Plain => plain.updates(),
        RiscvKind::Extended => plain.extended(),
        RiscvKind::Interrupts => plain.extended().interrupt_files(),
    };
    let setup = RiscvSetup { identification, ..RiscvSetup::default() };
    let mut config = Config::default();
    config.limit = LIMIT;
    config.requests_lg2 = Some(8);
    match kind {
        RiscvKind::Plain => config.dirty = DirtyTracking::Hardware,
        RiscvKind::Extended | RiscvKind::Interrupts => {
            config.contiguity = RiscvContiguity::Svnapot;
        }
    }
    if kind == RiscvKind::Interrupts {
        let files = InterruptFiles::new(INTERRUPT_FILES, 2);
        config.interrupts = Some(Messages::new(files, described()));
    }
    let memory = Arc::new(ModelMemory::new(MEMORY.0, MEMORY.1, Visibility::AtOnce).checked());
    let registers = Arc::new(RiscvRegisters::new(setup, memory.clone()));
    let (queue_entries, records) = (1 << config.queue_lg2, 1 << config.faults_lg2);
    let kernel = {
        let (registers, memory) = (registers.clone(), memory.clone());
        move || {
            let clock = PollingClock::new(registers.clock().clone(), LOOK_NS, registers.clone());
            let (theirs, tables) = seam.model(&registers, &memory, Interface::Riscv);
            (theirs, tables, UnitParts::new(Arc::new(clock)))
        }
    };
    let adopt = {
        let (kernel, config) = (kernel.clone(), config.clone());
        move |state: &UnitHandover, claims: &mut TableClaims<'_>| {
            let (registers, tables, clock) = kernel();
            RiscvIommu::adopt(registers, tables, clock, config.clone(), state, claims)
        }
    };
    let enable = move || {
        let (registers, tables, clock) = kernel();
        RiscvIommu::enable(registers, tables, clock, config.clone())
    };
    let unit = enable();
    let devices = [StreamId::new(0x20), StreamId::new(0x128)];
    let host = ModelHost::new(registers, memory, devices);
    Ok(Rig {
        abilities: Abilities {
            refuses_plain: Has::No("a message names an address, and there is no other kind"),
            renumbers: Has::No("the interrupt's number is the device's own word"),
            ..Abilities::ALL
        },
        faulting: Some(asking_by_tlb(
            |unit: &RiscvIommu<_>, stream| unit.device_gone(stream),
            |unit| Ok(unit.next_page_request()?.map(request_event)),
        )),
        interrupts: (kind == RiscvKind::Interrupts).then_some(|unit| unit),
        next: Some(Next {
            former: |unit| unit,
            enable: Box::new(move || Ok(Arc::new(enable()?))),
            adopt: Box::new(move |state, claims| Ok(Arc::new(adopt(state, claims)?))),
        }),
        queue_entries: Some(queue_entries),
        // One place stays empty.
        fault_room: Some(records - 1),
        bad_command: |unit, host| Some(host.refuse_one(&unit.queue())),
        ..Rig::new(unit.map_err(failed)?, host, domain, submitted)
    })
}

/// A new QEMU with a unit that is `iommu`, first stage.
///
/// # Errors
/// [`Outcome::Skip`] without QEMU 10; [`Outcome::Fail`] if the driver does not take the unit over.
pub fn first_on_qemu(iommu: Iommu) -> Result<OnQemu<FirstOnQemu>, Outcome> {
    on_qemu(iommu, |unit| unit.first_stage(RiscvLevels::Four).map(Arc::new))
}

/// A new QEMU with a unit, second stage.
///
/// # Errors
/// As [`first_on_qemu`].
pub fn second_on_qemu() -> Result<OnQemu<SecondOnQemu>, Outcome> {
    on_qemu(Iommu::Riscv, |unit| unit.second_stage(RiscvLevels::Three).map(Arc::new))
}

fn on_qemu<D>(iommu: Iommu, domain: MakeDomain<QemuUnit, D>) -> Result<OnQemu<D>, Outcome>
where
    D: Domain + Send + Sync + 'static,
    QemuUnit: Attach<D>,
{
    let builder = Builder::new(Architecture::Riscv64).iommu(iommu);
    let host = QemuHost::start(builder, Some(seen))?;
    let registers = match host.machine().iommu_registers() {
        Some(registers) => registers,
        None => {
            let function = host.pci().first(FUNCTION.0, FUNCTION.1).map_err(failed)?;
            function.enable().map_err(failed)?;
            function.bar(0).map_err(failed)?
        }
    };
    let config = Config::default();
    let (queue_entries, records) = (1 << config.queue_lg2, 1 << config.faults_lg2);
    let tables = host.machine().tables().clone();
    let unit = RiscvIommu::enable(registers, tables, UnitParts::new(HostClock::new()), config);
    Ok(Rig {
        abilities: Abilities {
            reads: Has::No("edu writes only"),
            details_of_blocked: Has::No("QEMU records a read of address zero"),
            ..Abilities::ALL
        },
        queue_entries: Some(queue_entries),
        fault_room: Some(records - 1),
        ..Rig::new(unit.map_err(failed)?, host, domain, submitted)
    })
}

fn seen(counts: &Counts) -> BTreeMap<String, u64> {
    by_name([
        ("INVAL_VMA", counts.riscv(Q::InvalVma)),
        ("INVAL_GVMA", counts.riscv(Q::InvalGvma)),
        ("INVAL_DDT", counts.riscv(Q::InvalDdt)),
        ("FENCE", counts.riscv(Q::Fence)),
    ])
}

/// Number of commands by kind, as both sides count them.
fn submitted<P: UnitPlatform>(unit: &RiscvIommu<P>) -> BTreeMap<String, u64> {
    let counts = unit.counts();
    let of = |kind| counts.of(kind);
    by_name([
        ("INVAL_VMA", of(K::Pages) + of(K::Context) + of(K::Both) + of(K::All)),
        ("INVAL_GVMA", of(K::GuestPages) + of(K::Guest) + of(K::Guests)),
        ("INVAL_DDT", of(K::Device) + of(K::Devices)),
        ("INVAL_PDT", of(K::Process)),
        ("ATS_INVAL", of(K::DeviceTlb)),
        ("ATS_PRGR", of(K::Response)),
        ("FENCE", of(K::Wait) + of(K::Fence) + of(K::Replaced)),
    ])
}
