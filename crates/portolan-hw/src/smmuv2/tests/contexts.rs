//! Registers of a context bank for a domain, by hand.

use portolan::addr::Iova;
use portolan::iommu::Domain;

use super::super::SmmuV2DomainOptions;
use super::kit::{FEW, Machine, TABLES, Unit, bank, of};

/// CBAR, CBA2R, TCR, TTBR0's halves and SCTLR of bank `n`.
fn registers(machine: &Machine, n: usize) -> [u32; 6] {
    [
        machine.reg32(0x1000 + 4 * n),
        machine.reg32(0x1800 + 4 * n),
        machine.reg32(bank(n, 0x30)),
        machine.reg32(bank(n, 0x20)),
        machine.reg32(bank(n, 0x24)),
        machine.reg32(bank(n, 0x00)),
    ]
}

#[test]
fn a_first_stage_has_its_attributes_and_its_number() {
    let (machine, unit) = of(FEW);
    let _domain = unit.first_stage::<12>(&SmmuV2DomainOptions::default()).unwrap();
    // Stage 1 only, write-back and not shareable without a second; 48 bits, write-back and inner
    // shareable walks, none by TTBR1; ASID 1; on, faults recorded and reported, others go on.
    let wanted = [0x0001_f300, 1, 0x0080_3510, TABLES as u32, 0x0001_0000, 0x0000_1167];
    assert_eq!(registers(&machine, 0), wanted);
    // 48 bits out, ASIDs of 16 bits, addresses as wide as those that come in.
    assert_eq!(machine.reg32(bank(0, 0x10)), 0x0003_8015);
}

#[test]
fn a_first_stage_says_its_granule() {
    // 64 KiB is 1, 16 KiB is 2.
    let options = SmmuV2DomainOptions::default();
    let granule = |machine: &Machine| machine.reg32(bank(0, 0x30)) >> 14 & 3;
    let (machine, unit) = of(FEW);
    let _domain = unit.first_stage::<16>(&options).unwrap();
    assert_eq!(granule(&machine), 1);
    // Index 0 is write-back memory, index 1 a device's.
    assert_eq!((machine.reg32(bank(0, 0x38)), machine.reg32(bank(0, 0x3c))), (0x04ff, 0));
    let (machine, unit) = of(FEW);
    let _domain = unit.first_stage::<14>(&options).unwrap();
    assert_eq!(granule(&machine), 2);
}

#[test]
fn a_second_stage_has_its_number_and_begins_where_its_width_allows() {
    let (machine, unit) = of(FEW);
    let _domain = unit.second_stage::<12>(&SmmuV2DomainOptions::default()).unwrap();
    // VMID 1; 48 bits in and out, from level 0.
    let wanted = [0x0000_0001, 1, 0x8005_3590, TABLES as u32, 0, 0x0000_0167];
    assert_eq!(registers(&machine, 0), wanted);
}

#[test]
fn a_second_stage_of_40_bits_has_three_levels() {
    let options = SmmuV2DomainOptions::default();
    let (machine, unit) = of_40_bits();
    let domain = unit.second_stage::<12>(&options).unwrap();
    // A root of one table of 4 KiB at level 1: 39 bits.
    assert_eq!(domain.input_range().last(), Iova::new((1 << 39) - 1));
    assert_eq!(registers(&machine, 0)[2], 0x8005_3559);
    let too_wide = SmmuV2DomainOptions { input_lg2: Some(40), ..options };
    assert!(unit.second_stage::<12>(&too_wide).is_err());
    // Two levels of 11 bits each.
    let (machine, unit) = of_40_bits();
    let domain = unit.second_stage::<14>(&options).unwrap();
    assert_eq!(machine.reg32(bank(0, 0x30)) >> 14 & 3, 2, "16 KiB");
    assert_eq!(domain.input_range().last(), Iova::new((1 << 36) - 1));
    // Two levels of up to 13 bits each.
    let (_, unit) = of_40_bits();
    let domain = unit.second_stage::<16>(&options).unwrap();
    assert_eq!(domain.input_range().last(), Iova::new((1 << 40) - 1));
}

/// A unit with 40 bits between the stages.
fn of_40_bits() -> (Machine, Unit) {
    let mut identification = FEW;
    identification.idr[2] = FEW.idr[2] & !0xf | 2;
    of(identification)
}
