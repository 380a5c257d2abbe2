//! Domains and conditions that the opener of devices gets of each unit, on units of
//! `portolan-chips`.

use crate::promise::tests::all_memory;
use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{PageSize, PhysAddr, StreamId};
use portolan::iommu::{
    AttachError, BoundDomain, Conditions, Iommu as _, IommuDomains, IommuError, RecoverableFaults,
    Shadowing, Stage, TrapCost,
};
use portolan_chips::amd::{AmdIdentification, AmdMachine, AmdSetup};
use portolan_chips::chips::SKYLAKE_SP;
use portolan_chips::machine::{Design, Machine};
use portolan_chips::memory::{ModelMemory, Visibility};
use portolan_chips::riscv::{RiscvIdentification, RiscvMachine, RiscvSetup};
use portolan_chips::smmuv2::{SmmuV2Machine, SmmuV2Setup};
use portolan_chips::smmuv3::{SmmuIdentification, SmmuMachine, SmmuSetup};
use portolan_chips::vtd::{VtdIdentification, VtdMachine, VtdSetup};

use crate::amd::{self, AmdVi, Capability};
use crate::riscv::{self, RiscvIommu};
use crate::smmuv2::{self, SmmuV2};
use crate::smmuv3::{self, Smmu};
use crate::vtd::{self, Mode, Vtd};

fn machine<D: Design>(setup: D::Setup) -> Machine<D> {
    let base = PhysAddr::new(0x10_0000);
    Machine::new(setup, ModelMemory::of_words(base, 1024, Visibility::AtOnce))
}

type VtdUnit = Vtd<VtdMachine>;

fn vtd(identification: VtdIdentification, mode: Mode) -> Arc<VtdUnit> {
    let machine: VtdMachine = machine(VtdSetup { identification, ..VtdSetup::default() });
    let config = vtd::Config { mode, ..vtd::Config::default() };
    Arc::new(Vtd::enable(machine.clone(), machine.clone(), machine, config).unwrap())
}

type SmmuUnit = Smmu<SmmuMachine>;

fn smmu(identification: SmmuIdentification) -> Arc<SmmuUnit> {
    let machine: SmmuMachine = machine(SmmuSetup { identification, ..SmmuSetup::default() });
    let config = smmuv3::Config::default();
    Arc::new(Smmu::enable(machine.clone(), machine.clone(), machine, config).unwrap())
}

type AmdUnit = AmdVi<AmdMachine>;

fn amd(identification: AmdIdentification) -> Arc<AmdUnit> {
    let machine: AmdMachine = machine(AmdSetup { identification, ..AmdSetup::default() });
    let capability = Capability::parse(identification.capability).unwrap();
    let config = amd::Config { streams_lg2: 7, ..amd::Config::default() };
    let (regs, mem) = (machine.clone(), machine.clone());
    Arc::new(AmdVi::enable(regs, mem, machine, capability, config).unwrap())
}

type RiscvUnit = RiscvIommu<RiscvMachine>;

fn riscv(identification: RiscvIdentification, config: riscv::Config) -> Arc<RiscvUnit> {
    let machine: RiscvMachine = machine(RiscvSetup { identification, ..RiscvSetup::default() });
    Arc::new(RiscvIommu::enable(machine.clone(), machine.clone(), machine, config).unwrap())
}

/// A new domain, to which a stream of the unit can be attached.
fn domain(unit: &Arc<impl IommuDomains + 'static>) -> BoundDomain {
    let bound = unit.clone().new_domain().unwrap();
    bound.attach(StreamId::new(8)).unwrap();
    bound
}

fn granule(unit: &Arc<SmmuUnit>) -> PageSize {
    domain(unit).domain().granule()
}

const fn plain(stage: Stage) -> Conditions {
    Conditions { stage, shadowing: Shadowing::None, exits: TrapCost::None }
}

const fn cached(stage: Stage) -> Conditions {
    Conditions { stage, shadowing: Shadowing::CachingMode, exits: TrapCost::Expensive }
}

/// Hypervisors do not shadow first-stage tables: a guest that got the second stage would pay for each map.
#[test]
fn a_unit_in_scalable_mode_gets_first_stage_tables() {
    let (legacy, scalable) = (SKYLAKE_SP.identification, SKYLAKE_SP.identification.scalable());
    for (identification, mode, stage) in [
        (legacy, Mode::Legacy, Stage::Second),
        (scalable, Mode::Legacy, Stage::Second),
        (scalable, Mode::Scalable, Stage::First),
    ] {
        let unit = vtd(identification, mode);
        assert_eq!(unit.conditions(), plain(stage));
        let largest = domain(&unit).domain().input_range().last().get();
        // First-stage addresses are sign-extended: half of 48 bits.
        let bits = match stage {
            Stage::First => 47,
            Stage::Second => 48,
        };
        assert_eq!(largest, (1 << bits) - 1, "{mode:?}");
        let mut caching = identification;
        caching.cap |= 1 << 7;
        assert_eq!(vtd(caching, mode).conditions(), cached(stage));
    }
}

#[test]
fn recoverable_faults_are_offered_where_the_unit_takes_page_requests() {
    let (mut requests, scalable) =
        (SKYLAKE_SP.identification.scalable(), SKYLAKE_SP.identification.scalable());
    requests.ecap |= 1 << 2 | 1 << 29;
    let (absent, present) = (RecoverableFaults::Absent, RecoverableFaults::Present);
    let of_vtd = |identification, mode| vtd(identification, mode).recoverable_faults();
    assert_eq!(of_vtd(requests, Mode::Scalable), present);
    assert_eq!(of_vtd(requests, Mode::Legacy), absent);
    assert_eq!(of_vtd(scalable, Mode::Scalable), absent);
    let plain = SmmuIdentification::able();
    let of_smmu = |identification| smmu(identification).recoverable_faults();
    assert_eq!(of_smmu(plain), absent);
    assert_eq!(of_smmu(plain.stalls()), present);
    assert_eq!(of_smmu(plain.page_requests()), present);
    let ats = RiscvIdentification::able().ats();
    for (requests_lg2, wanted) in [(None, absent), (Some(5), present)] {
        let config = riscv::Config { requests_lg2, ..riscv::Config::default() };
        assert_eq!(riscv(ats, config).recoverable_faults(), wanted);
    }
    assert_eq!(amd(AmdIdentification::default()).recoverable_faults(), absent);
}

/// As Linux has it: the smallest granule that the unit can do, in the first stage if there is one.
#[test]
fn a_unit_gets_tables_of_the_smallest_pages_that_it_can_walk() {
    let all = SmmuIdentification::able();
    let granules = [(1 << 4, 12), (1 << 5, 14), (1 << 6, 16)];
    for stage in [Stage::First, Stage::Second] {
        for (first, (_, lg2)) in granules.iter().enumerate() {
            let mut identification = all;
            if stage == Stage::Second {
                identification.idr[0] &= !(1 << 1);
            }
            identification.idr[5] &= !(0b111 << 4);
            let kept: u32 = granules[first..].iter().map(|(bit, _)| bit).sum();
            identification.idr[5] |= kept;
            let unit = smmu(identification);
            assert_eq!(unit.conditions(), plain(stage));
            assert_eq!(granule(&unit), PageSize::of_lg2(*lg2), "{stage:?}");
        }
    }
}

#[test]
fn a_unit_that_caches_absence_is_said_to_be_a_virtual_one() {
    let real = amd(AmdIdentification::default());
    assert_eq!(real.conditions(), plain(Stage::Second));
    assert_eq!(domain(&real).domain().granule(), PageSize::SIZE_4K);
    let played = amd(AmdIdentification::default().caching_absence());
    assert_eq!(played.conditions(), cached(Stage::Second));
    assert!(played.interrupts().is_none());
}

#[test]
fn a_unit_without_a_first_stage_gets_second_stage_tables() {
    let config = riscv::Config::default;
    let both = RiscvIdentification::able();
    for (identification, stage) in [(both, Stage::First), (both.second_stage_only(), Stage::Second)]
    {
        let unit = riscv(identification, config());
        assert_eq!(unit.conditions(), plain(stage));
        assert!(unit.interrupts().is_none());
        let last = domain(&unit).domain().input_range().last().get();
        // The lower half of Sv48; all of Sv48x4.
        let bits = match stage {
            Stage::First => 47,
            Stage::Second => 50,
        };
        assert_eq!(last, (1 << bits) - 1, "{stage:?}");
    }
}

#[test]
fn a_device_with_a_tlb_is_refused_by_a_unit_that_cannot_tell_it_anything() {
    let tlb = portolan::iommu::DeviceTlb { depth: 4, physical: 8, twice: false };
    let (stream, unsupported) = (StreamId::new(8), Err(IommuError::Unsupported));
    let without = vtd(VtdIdentification::default(), Mode::Legacy);
    let refused = IommuDomains::use_device_tlb(&*without, stream, tlb, all_memory());
    assert_eq!(refused, unsupported);
    let unit = vtd(SKYLAKE_SP.identification, Mode::Legacy);
    assert_eq!(IommuDomains::use_device_tlb(&*unit, stream, tlb, all_memory()), Ok(()));
    let without = riscv(RiscvIdentification::able(), riscv::Config::default());
    let refused = IommuDomains::use_device_tlb(&*without, stream, tlb, all_memory());
    assert_eq!(refused, unsupported);
    let without = smmu(SmmuIdentification::able());
    let refused = IommuDomains::use_device_tlb(&*without, stream, tlb, all_memory());
    assert_eq!(refused, unsupported);
}

#[test]
fn an_smmu_lets_a_blocked_device_have_a_tlb_and_says_why_not() {
    let tlb = portolan::iommu::DeviceTlb { depth: 4, physical: 8, twice: false };
    let identification = SmmuIdentification::able().page_requests();
    let machine: SmmuMachine = machine(SmmuSetup { identification, ..SmmuSetup::default() });
    let (regs, mem, clock) = (machine.clone(), machine.clone(), machine.clone());
    let unit = Smmu::enable(regs, mem, clock, smmuv3::Config::default()).unwrap();
    let use_of =
        |stream| IommuDomains::use_device_tlb(&unit, StreamId::new(stream), tlb, all_memory());
    assert_eq!(use_of(8), Ok(()));
    // Its requests would be refused then.
    let passes = unit.pass_through(StreamId::new(8), all_memory());
    assert_eq!(passes, Err(AttachError::Mismatch));
    unit.pass_through(StreamId::new(9), all_memory()).unwrap();
    for stream in [9, u32::MAX] {
        assert_eq!(use_of(stream), Err(IommuError::Unsupported));
    }
    // In a part of the table that is not there yet.
    machine.fail_in(1);
    assert!(matches!(use_of(0x900), Err(IommuError::Memory(_))));
    assert_eq!(use_of(0x900), Ok(()));
}

/// Each command's name once, and those that the unit was given since it was taken over.
#[test]
fn commands_are_counted_under_the_names_of_their_specifications() {
    let smmu_v2: SmmuV2Machine = machine(SmmuV2Setup::default());
    let config = smmuv2::Config::default();
    let smmu_v2 = SmmuV2::enable(smmu_v2.clone(), smmu_v2.clone(), smmu_v2, config).unwrap();
    assert_eq!(smmu_v2.conditions(), plain(Stage::First));
    let units: [Arc<dyn IommuDomains>; 5] = [
        vtd(VtdIdentification::default(), Mode::Legacy),
        smmu(SmmuIdentification::able()),
        amd(AmdIdentification::default()),
        riscv(RiscvIdentification::able(), riscv::Config::default()),
        Arc::new(smmu_v2),
    ];
    for unit in units {
        let mut all = Vec::new();
        unit.commands(&mut |name, count| all.push((name, count)));
        let given: u64 = all.iter().map(|(_, count)| count).sum();
        assert!(given > 0, "{all:?}");
        let names = all.len();
        all.sort_unstable();
        all.dedup_by_key(|(name, _)| *name);
        assert_eq!(all.len(), names);
    }
}
