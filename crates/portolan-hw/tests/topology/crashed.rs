//! A kernel that starts after the crash of another one, whose devices are at work.

use std::mem;

use portolan::addr::{Iova, PageSize, PciFunction, PhysAddr, PhysRange, StreamId};
use portolan::dma::Direction;
use portolan::platform::{FormerMemory, PreservedMemory};
use portolan_chips::amd::AmdRegisters;
use portolan_chips::inject::Piece;
use portolan_chips::memory::ModelMemory;
use portolan_chips::riscv::{RiscvRegisters, RiscvSetup};
use portolan_chips::smmuv3::{SmmuIdentification, SmmuRegisters};
use portolan_chips::vtd::{VtdIdentification, VtdRegisters};
use portolan_hw::handover::AdoptError;
use portolan_hw::topology::{Iommus, Options, TakenOver, Topology};
use portolan_sim::decode::AccessKind;

use super::handed_over::preserved;
use super::machine::{
    DEVICE, IORT, Kernel, Machine, OTHER, OTHER_REGISTERS, REGISTERS, SECOND, Unit, amd, described,
    dmar_with_scopes, ivrs, riscv, smmu, vtd,
};
use super::riscv::platform_device;
use super::{driver, packet};

/// Memory of the packets.
const REACHED: Option<u64> = Some(0x1234_5000);

/// A machine with two devices, and the memory that each reaches at an address.
struct Scene<R> {
    machine: Machine<R>,
    topology: fn() -> Topology,
    reach: fn(&Machine<R>, PciFunction, Iova) -> Option<u64>,
}

fn first<E>(outcome: Result<Vec<Piece>, E>) -> Option<u64> {
    outcome.ok()?.first().map(|piece| piece.pa.get())
}

/// A word of the model's memory.
fn word(memory: &ModelMemory, at: PhysAddr) -> Option<u64> {
    let mut bytes = [0; 8];
    memory.read(at, &mut bytes)?;
    Some(u64::from_le_bytes(bytes))
}

impl<R: Unit> Scene<R> {
    /// Both devices, left at work by a kernel that crashes: their addresses.
    fn crash(&self) -> [Iova; 2] {
        let (kernel, options) = (self.machine.kernel(), Options::default());
        let former = (self.topology)().enable(kernel, options, described()).unwrap();
        let at = [DEVICE, OTHER].map(|function| {
            let device = former.trusted_device(function).unwrap();
            let mapping = device.map(packet(), Direction::FromDevice).unwrap();
            let at = mapping.iova();
            mem::forget((device, mapping));
            at
        });
        mem::forget(former);
        assert_eq!(self.both(at), [REACHED; 2]);
        at
    }

    fn both(&self, at: [Iova; 2]) -> [Option<u64>; 2] {
        [(DEVICE, at[0]), (OTHER, at[1])].map(|(of, at)| (self.reach)(&self.machine, of, at))
    }

    /// The memory that the former kernel has mapped at `at`.
    fn mapped(&self, function: PciFunction, at: Iova) -> Option<u64> {
        let read = |at| word(&self.machine.memory, at);
        // SAFETY: as below.
        let former = unsafe { FormerMemory::new(&read) };
        let (topology, kernel) = ((self.topology)(), self.machine.kernel());
        let found = topology.former_translation(&kernel, described(), function, at, former)?;
        Some(found.pa.get())
    }

    fn take_over(
        &self,
        keep: &[PciFunction],
        preserved: PreservedMemory<'_>,
    ) -> (Iommus<Kernel>, TakenOver) {
        let read = |at| word(&self.machine.memory, at);
        // SAFETY: the model's memory is one kernel's after the other, and its devices reach none of this process.
        let former = unsafe { FormerMemory::new(&read) };
        let (kernel, options) = (self.machine.kernel(), Options::default());
        let topology = (self.topology)();
        topology.take_over(kernel, options, described(), keep, former, preserved).unwrap()
    }

    fn goes_on(make: impl Fn() -> Self) {
        let scene = make();
        let at = scene.crash();
        let (next, taken) = scene.take_over(&[DEVICE], preserved());
        assert_eq!((taken.kept, taken.refused), (vec![DEVICE], vec![]));
        assert_eq!(scene.both(at), [REACHED, None]);
        // It is in a space of this kernel's once it is opened.
        let device = next.trusted_device(DEVICE).unwrap();
        assert_eq!(scene.both(at), [None; 2]);
        driver(&device, |at| (scene.reach)(&scene.machine, DEVICE, at));
        // What is not named is blocked.
        let scene = make();
        let at = scene.crash();
        let (_next, taken) = scene.take_over(&[], preserved());
        assert_eq!((taken.kept, taken.refused), (vec![], vec![]));
        assert_eq!(scene.both(at), [None; 2]);
    }
}

fn behind_smmu() -> Scene<SmmuRegisters> {
    Scene {
        machine: smmu(SmmuIdentification::default()),
        topology: || Topology::from_acpi([&IORT.bytes()[..]]).unwrap(),
        reach: |machine, of, at| {
            first(machine.unit.dma(of.requester.stream(), None, at, AccessKind::Write, 8))
        },
    }
}

#[test]
fn a_device_behind_an_smmu_goes_on_after_a_crash() {
    Scene::goes_on(behind_smmu);
}

#[test]
fn a_device_behind_amd_s_unit_goes_on_after_a_crash() {
    Scene::goes_on(|| Scene {
        machine: amd(),
        topology: || Topology::from_acpi([&ivrs(SECOND)[..]]).unwrap(),
        reach: |machine: &Machine<AmdRegisters>, of, at| {
            let unit = if of == DEVICE { &machine.other } else { &machine.unit };
            first(unit.dma(of.requester.stream(), at, AccessKind::Write, 8))
        },
    });
}

#[test]
fn a_device_behind_a_riscv_unit_goes_on_after_a_crash() {
    Scene::goes_on(|| Scene {
        machine: riscv(&RiscvSetup::default()),
        topology: || Topology::from_device_tree(&platform_device()).unwrap(),
        reach: |machine: &Machine<RiscvRegisters>, of, at| {
            // Where the tree's `iommu-map` has it.
            let stream = StreamId::new(0x100 + of.requester.stream().get());
            first(machine.unit.dma(stream, None, at, AccessKind::Write, 8))
        },
    });
}

/// Each is behind a unit of its own.
fn behind_two_units() -> Scene<VtdRegisters> {
    Scene {
        machine: vtd(VtdIdentification::default()),
        topology: || {
            let table = dmar_with_scopes([REGISTERS, OTHER_REGISTERS]);
            Topology::from_acpi([&table[..]]).unwrap()
        },
        reach: |machine, of, at| {
            let unit = if of == DEVICE { &machine.unit } else { &machine.other };
            first(unit.dma(of.requester.stream(), None, at, AccessKind::Write, 8))
        },
    }
}

#[test]
fn a_device_behind_one_of_two_units_goes_on_after_a_crash() {
    Scene::goes_on(behind_two_units);
}

impl<R: Unit> Scene<R> {
    fn tells(&self) {
        assert_eq!(self.mapped(DEVICE, Iova::new(0xfff_0000)), None);
        let [at, other] = self.crash();
        let within = Iova::new(at.get() + 0x123);
        assert_eq!(self.mapped(DEVICE, within), REACHED.map(|at| at + 0x123));
        assert_eq!(self.mapped(OTHER, other), REACHED);
        assert_eq!(self.mapped(DEVICE, Iova::new(at.get() ^ 0x1_0000)), None);
        assert_eq!(self.mapped(DEVICE, Iova::new(at.get() | 1 << 52)), None);
    }
}

#[test]
fn the_former_kernel_s_tables_tell_where_a_device_is_led() {
    behind_smmu().tells();
    behind_two_units().tells();
}

/// A table that stays in use has to be in memory that was named for it.
#[test]
fn a_unit_whose_table_may_not_stay_is_blocked() {
    let scene = behind_smmu();
    let at = scene.crash();
    let elsewhere = [PhysRange::page(PhysAddr::new(0x4000), PageSize::SIZE_4K)];
    // SAFETY: as of `preserved`.
    let (_next, taken) =
        scene.take_over(&[DEVICE], unsafe { PreservedMemory::new(&elsewhere, &[]) });
    assert!(matches!(taken.refused[..], [(0, AdoptError::Claim(_))]), "{taken:?}");
    assert_eq!((taken.kept, taken.tables), (vec![], vec![]));
    assert_eq!(scene.both(at), [None; 2]);
}
