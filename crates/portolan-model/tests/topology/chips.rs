//! The same driver on every chip whose registers were published: open, map, DMA, unmap, close.

use portolan::addr::StreamId;
use portolan_model::chips;
use portolan_model::decode::AccessKind;
use portolan_model::inject::Piece;
use portolan_model::smmuv3::SmmuIdentification;

use super::machine::{DEVICE, IORT, OTHER, REGISTERS, SECOND, amd_of, dmar, ivrs, smmu, vtd};
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
        driver(&device, |at| {
            first(unit.dma(stream(), None, at, AccessKind::Write, 8))
        });
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
        driver(&device, |at| {
            first(unit.dma(stream, at, AccessKind::Write, 8))
        });
        drop((device, iommus));
        assert_eq!(unit.violations(), [], "{}", chip.name);
    }
}

/// An identification with open fields filled: nothing, each alone, all.
fn filled(identification: SmmuIdentification) -> Vec<SmmuIdentification> {
    let open = chips::SMMU_V3_OPEN;
    let with = |fields: &[(usize, u32)]| {
        let mut filled = identification;
        fields
            .iter()
            .for_each(|(register, field)| filled.idr[*register] |= field);
        filled
    };
    let each = open.iter().map(|one| with(std::slice::from_ref(one)));
    each.chain([with(&[]), with(&open)]).collect()
}

#[test]
fn a_disk_does_dma_behind_every_real_smmu_of_version_3_whatever_is_not_known_of_it() {
    for chip in chips::SMMU_V3 {
        println!("{}, {}", chip.name, chip.source);
        for identification in filled(chip.identification) {
            let machine = smmu(identification);
            let iommus = opened(machine.kernel(), &IORT.bytes());
            let device = iommus.trusted_device(DEVICE).expect(chip.name);
            let unit = &machine.unit;
            driver(&device, |at| {
                first(unit.dma(stream(), None, at, AccessKind::Write, 8))
            });
            drop((device, iommus));
            let idr = identification.idr;
            assert_eq!(unit.violations(), [], "{}, {idr:x?}", chip.name);
        }
    }
}
