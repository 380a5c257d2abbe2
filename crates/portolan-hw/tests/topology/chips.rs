//! The same driver on every chip whose registers were published: open, map, DMA, unmap, close.

use portolan::addr::StreamId;
use portolan_chips::chips;
use portolan_chips::inject::Piece;
use portolan_chips::riscv::RiscvSetup;
use portolan_chips::smmuv3::SmmuIdentification;
use portolan_hw::topology::{Options, Topology};
use portolan_sim::decode::AccessKind;

use super::machine::{
    DEVICE, IORT, OTHER, REGISTERS, SECOND, amd_of, described, dmar, ivrs, riscv, smmu,
    smmu_with_enhanced_queues, vtd,
};
use super::riscv::platform_device;
use super::{driver, opened};

/// Memory that the first piece of an access reached.
fn first<E>(found: Result<Vec<Piece>, E>) -> Option<u64> {
    found.ok()?.first().map(|piece| piece.pa.get())
}

/// A device's stream where requesters and streams are the same.
fn stream() -> StreamId {
    DEVICE.requester.stream()
}

#[test]
fn a_disk_does_dma_behind_every_real_chip_of_intel() {
    for chip in chips::VTD {
        println!("{}, {}", chip.name, chip.source);
        let machine = vtd(chip.identification);
        let iommus = opened(machine.kernel(), &dmar(REGISTERS));
        let device = iommus.trusted_device(DEVICE).expect(chip.name);
        let unit = &machine.unit;
        driver(&device, |at| first(unit.dma(stream(), None, at, AccessKind::Write, 8)));
        drop((device, iommus));
        assert_eq!(unit.violations(), [], "{}", chip.name);
    }
}

#[test]
fn a_disk_does_dma_behind_every_real_chip_of_amd() {
    for chip in chips::AMD {
        println!("{}, {}", chip.name, chip.source);
        let machine = amd_of(chip.identification);
        let iommus = opened(machine.kernel(), &ivrs(SECOND));
        let device = iommus.trusted_device(OTHER).expect(chip.name);
        let (unit, stream) = (&machine.unit, OTHER.requester.stream());
        driver(&device, |at| first(unit.dma(stream, at, AccessKind::Write, 8)));
        drop((device, iommus));
        assert_eq!(unit.violations(), [], "{}", chip.name);
    }
}

#[test]
fn a_disk_does_dma_behind_every_real_smmu_of_version_3_whatever_is_not_known_of_it() {
    for chip in chips::SMMU_V3 {
        println!("{}, {}", chip.name, chip.source);
        for idr in chips::filled(chip.identification.idr, &chips::SMMU_V3_OPEN) {
            let machine = smmu(SmmuIdentification { idr, ..chip.identification });
            let iommus = opened(machine.kernel(), &IORT.bytes());
            let device = iommus.trusted_device(DEVICE).expect(chip.name);
            let unit = &machine.unit;
            driver(&device, |at| first(unit.dma(stream(), None, at, AccessKind::Write, 8)));
            drop((device, iommus));
            assert_eq!(unit.violations(), [], "{}, {idr:x?}", chip.name);
        }
    }
}

#[test]
fn a_disk_does_dma_behind_an_smmu_whose_cpus_have_queues_of_their_own() {
    for enhanced_queues in [true, false] {
        let machine = smmu_with_enhanced_queues();
        let topology = Topology::from_acpi([&IORT.bytes()[..]]).unwrap();
        let mut options = Options::default();
        options.enhanced_queues = enhanced_queues;
        let iommus = topology.enable(machine.kernel(), options, described()).unwrap();
        let device = iommus.trusted_device(DEVICE).unwrap();
        let unit = &machine.unit;
        driver(&device, |at| first(unit.dma(stream(), None, at, AccessKind::Write, 8)));
        drop((device, iommus));
        // The machine has one CPU, and so the unit serves one of the queues.
        let used: Vec<_> = unit.beside().into_iter().map(|index| index != 0).collect();
        assert_eq!(used, [enhanced_queues, false, false, false]);
        assert_eq!(unit.violations(), []);
    }
}

#[test]
fn a_disk_does_dma_behind_every_published_unit_of_riscv() {
    for chip in chips::RISCV {
        println!("{}, {}", chip.name, chip.source);
        let machine =
            riscv(&RiscvSetup { identification: chip.identification, ..RiscvSetup::default() });
        let tree = platform_device();
        let topology = Topology::from_device_tree(&tree).expect(chip.name);
        let iommus = topology.enable(machine.kernel(), Options::default(), described());
        let iommus = iommus.expect(chip.name);
        let (_, stream) = iommus.unit_of(DEVICE).expect(chip.name);
        let device = iommus.trusted_device(DEVICE).expect(chip.name);
        let unit = &machine.unit;
        driver(&device, |at| first(unit.dma(stream, None, at, AccessKind::Write, 8)));
        drop((device, iommus));
        assert_eq!(unit.violations(), [], "{}", chip.name);
    }
}

/// All that were published, each once.
#[test]
fn no_two_real_chips_are_the_same() {
    fn names<I: PartialEq + std::fmt::Debug>(list: &[chips::RealChip<I>]) -> usize {
        for (at, chip) in list.iter().enumerate() {
            let same = |other: &&chips::RealChip<I>| {
                other.name == chip.name || other.identification == chip.identification
            };
            let twin = list[..at].iter().find(same);
            assert!(twin.is_none(), "{twin:?} and {}", chip.name);
            assert!(!chip.source.is_empty());
        }
        list.len()
    }
    let arm = names(chips::SMMU_V2) + names(chips::SMMU_V3);
    let all = names(chips::VTD) + names(chips::AMD) + arm + names(chips::RISCV);
    assert!(all >= 40, "{all}");
}
