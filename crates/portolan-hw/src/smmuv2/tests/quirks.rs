//! Differences between implementations and boards.

use portolan::addr::{Iova, IovaRange, PageSize};
use portolan::inval::{Gather, Quirks, WalkFlush, Walker};
use portolan::iommu::{Attach as _, Domain, Iommu as _, IommuError};
use portolan_chips::chips;
use portolan_chips::smmuv2::{SmmuV2Identification, SmmuV2Setup};

use super::super::{Config, Implementation, Prefetch, SmmuV2DomainOptions, WaitForSafe};
use super::kit::{FEW, Kit, Machine, bank, few, machine, map};
use portolan_tables::overrides::CoherencyOverride;
use portolan_tables::sdt::Maker;

/// ACR of an MMU-500 after reset: locked, with a bit that does not matter here.
const ACR: u32 = 1 << 26 | 1 << 4;

/// An MMU-500 of revision `rn`p1 that walks ahead in each bank.
fn mmu500(n: u32) -> Machine {
    let identification = SmmuV2Identification { revision: n << 4 | 1, ..FEW };
    let machine = machine(SmmuV2Setup { identification, ..SmmuV2Setup::default() });
    for n in 0..4 {
        machine.set(bank(n, 0x04), 0b11);
    }
    machine.set(0x10, ACR);
    machine
}

fn as_mmu500() -> Config {
    Config { implementation: Implementation::Mmu500, ..plain() }
}

fn plain() -> Config {
    Config { limit: portolan::platform::Nanos::from_millis(1), ..Config::default() }
}

#[test]
fn the_prefetcher_of_an_mmu_500_is_off_in_every_bank() {
    let machine = mmu500(2);
    let unit = machine.enable(as_mmu500());
    assert_eq!(unit.unwrap().prefetch(), Prefetch::Off);
    assert_eq!(machine.reg32(0x10), 1 << 10 | 1 << 8 | 1 << 4);
    for n in 0..4 {
        assert_eq!(machine.reg32(bank(n, 0x04)), 0b01, "bank {n}");
    }
}

#[test]
fn the_lock_of_a_first_mmu_500_is_no_lock() {
    // Before r2p0 the bit is not defined.
    let machine = mmu500(1);
    let unit = machine.enable(as_mmu500());
    assert_eq!(unit.unwrap().prefetch(), Prefetch::Off);
    assert_eq!(machine.reg32(0x10), ACR | 1 << 10 | 1 << 8);
    assert_eq!(machine.reg32(bank(3, 0x04)), 0b01);
}

#[test]
fn a_prefetcher_that_secure_software_keeps_on_is_told_of() {
    let machine = mmu500(2);
    machine.lie(bank(0, 0x04), 0b11, 0b11);
    let unit = machine.enable(as_mmu500());
    assert_eq!(unit.unwrap().prefetch(), Prefetch::On);
}

#[test]
fn auxiliary_registers_of_other_makes_are_left_alone() {
    let machine = mmu500(2);
    let unit = machine.enable(plain());
    assert_eq!(unit.unwrap().prefetch(), Prefetch::NotKnown);
    assert_eq!((machine.reg32(0x10), machine.reg32(bank(0, 0x04))), (ACR, 0b11));
}

#[test]
fn firmware_s_word_on_coherency_counts_for_more_than_the_register() {
    let config = Config { coherency: CoherencyOverride::NotCoherent, ..plain() };
    let machine = few(&[]);
    let unit = machine.enable(config).unwrap();
    assert!(!unit.features().coherent);
    let domain = unit.first_stage::<12>(&SmmuV2DomainOptions::default()).unwrap();
    assert_eq!(domain.capabilities().walker, Walker::NonCoherent);
    // Walks are neither cacheable nor inner shareable.
    assert_eq!(machine.reg32(bank(0, 0x30)), 0x0080_2010);
}

#[test]
fn units_that_share_their_caches_share_no_number() {
    let of = |banks_before| {
        let implementation = Implementation::of_iort(NOT_KNOWN, 5, banks_before).unwrap();
        let config = Config { implementation, ..plain() };
        let machine = few(&[]);
        let unit = machine.enable(config).unwrap();
        (machine, unit)
    };
    let options = SmmuV2DomainOptions::default();
    let ((one, first), (two, second)) = (of(0), of(4));
    let domains: [_; 2] = core::array::from_fn(|_| {
        let one = first.first_stage::<12>(&options).unwrap();
        (one, second.first_stage::<12>(&options).unwrap())
    });
    let asids = |machine: &Machine| [0, 1].map(|n| machine.reg32(bank(n, 0x24)) >> 16);
    assert_eq!((asids(&one), asids(&two)), ([1, 2], [5, 6]));
    one.take();
    two.take();
    let (domain, mut owed) = (&domains[0].1, Gather::new());
    map(domain, 0x1000, 0x9000_0000);
    let range = IovaRange::page(Iova::new(0x1000), PageSize::SIZE_4K);
    domain.unmap(range, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    // TLBIVA and TLBIVAL, and TLBIASID.
    let asid = |(offset, value): (usize, u64)| match offset {
        at if at == bank(0, 0x600) || at == bank(0, 0x620) => Some(value >> 48),
        at if at == bank(0, 0x610) => Some(value),
        _ => None,
    };
    let invalidated = two.take_writes().find_map(asid);
    assert_eq!((invalidated, one.take_writes().count()), (Some(5), 0));
}

#[test]
fn numbers_end_where_their_fields_do() {
    let with = |banks_before| {
        let config =
            Config { implementation: Implementation::ThunderX { banks_before }, ..plain() };
        few(&[]).enable(config)
    };
    // Bank 0 has VMID 255, and there is no 256.
    let unit = with(254).unwrap();
    let options = SmmuV2DomainOptions::default();
    let last = unit.second_stage::<12>(&options).unwrap();
    let full = unit.second_stage::<12>(&options).err();
    assert_eq!(full, Some(IommuError::OutOfContexts));
    // ASIDs are wider, and the bank that was no good for a VMID is good for one.
    let first = unit.first_stage::<12>(&options);
    assert!(first.is_ok());
    drop(last);
    assert!(unit.second_stage::<12>(&options).is_ok());
    assert!(matches!(with(u16::MAX), Err(IommuError::Unsupported)));
    // The last of four banks has 65534, or 65535, which is one more than there may be.
    assert!(with(u16::MAX - 5).is_ok());
    assert!(matches!(with(u16::MAX - 4), Err(IommuError::Unsupported)));
}

/// A maker whose units are as their model says.
const NOT_KNOWN: Maker = Maker { oem: *b"ARMLTD", table: *b"ARM-JUNO", revision: 0 };

#[test]
fn a_model_of_firmware_s_table_is_an_implementation() {
    use Implementation::{Arm, Mmu500, ThunderX};
    let thunderx = ThunderX { banks_before: 9 };
    let of = |model| Implementation::of_iort(NOT_KNOWN, model, 9);
    // Version 1 and 2, Corelink MMU-400, MMU-500, MMU-401, ThunderX.
    let models = [Arm, Arm, Arm, Mmu500, Arm, thunderx].map(Some);
    let found: [_; 6] = core::array::from_fn(|model| of(model as u32));
    assert_eq!(found, models);
    assert_eq!([6, u32::MAX].map(of), [None; 2]);
}

/// Linux knows them so on the chip of 2019, and laptops with later ones have the same makers.
#[test]
fn an_mmu_500_of_a_maker_of_laptops_with_qualcomm_s_chips_is_qualcomm_s() {
    let of = |oem: &[u8; 6], table: &[u8; 8], model| {
        let maker = Maker { oem: *oem, table: *table, revision: 0x8180 };
        Implementation::of_iort(maker, model, 0)
    };
    let qualcomm = Some(Implementation::Qualcomm(WaitForSafe::Off));
    assert_eq!(of(b"LENOVO", b"CB-01   ", 3), qualcomm);
    assert_eq!(of(b"QCOM  ", b"QCOMEDK2", 3), qualcomm);
    // That of the graphics of the chip of 2018.
    assert_eq!(of(b"QCOM  ", b"QCOMEDK2", 1), Some(Implementation::Arm));
    assert_eq!(of(b"LENOVO", b"QCOMEDK2", 3), Some(Implementation::Mmu500));
}

#[test]
fn only_qualcomm_s_units_have_walks_flushed_by_context_and_few_pages_named() {
    let longest = portolan::platform::Nanos::from_millis(1);
    let plain = Quirks::default();
    for other in [Implementation::Arm, Implementation::Mmu500] {
        assert_eq!(other.quirks(), plain);
    }
    let found = [WaitForSafe::Off, WaitForSafe::On { longest }].map(|wait| {
        let implementation = Implementation::Qualcomm(wait);
        let quirks = implementation.quirks();
        assert_eq!(quirks.walk_flush, WalkFlush::ByContext);
        quirks.context_above
    });
    assert_eq!(found, [3, 3]);
    assert!(plain.context_above > 3);
}

/// SC8280XP and others count more stream match registers than there is room for; Linux uses the first 128.
#[test]
fn a_unit_of_qualcomm_with_more_than_128_match_registers_is_driven() {
    let idr = FEW.idr;
    let found = super::super::Features::decode(idr[0] & !0xff | 162, idr[1], idr[2]);
    assert_eq!(found.map(|found| found.streams), Ok(128));
}

/// Hypervisors of some of Qualcomm's firmware trap these registers, and go wrong at stores of the zero register.
#[test]
fn nothing_is_written_as_zero_to_qualcomms_trapped_commands() {
    // sTLBIALLNSNH, sTLBIALLH, sTLBGSYNC, and TLBSYNC of each bank.
    let commands = |offset: usize| {
        let banks = (0..4).map(|n| bank(n, 0x7f0));
        [0x68, 0x6c, 0x70].into_iter().chain(banks).any(|one| one == offset)
    };
    let machine = few(&[]);
    let config = Config { implementation: Implementation::Qualcomm(WaitForSafe::Off), ..plain() };
    let unit = machine.enable(config).unwrap();
    let domain = unit.first_stage::<12>(&SmmuV2DomainOptions::default()).unwrap();
    map(&domain, 0x6000, 0x1000);
    drop((domain, unit));
    let all: alloc::vec::Vec<_> = machine.take_writes().collect();
    let given: alloc::vec::Vec<_> = all.iter().filter(|(at, _)| commands(*at)).collect();
    assert!(given.len() > 2);
    assert!(given.iter().all(|(_, value)| *value != 0), "{given:?}");
}

/// Stages, match registers, banks and widths of real chips, and unknown properties of them either
/// way.
#[test]
fn a_disk_does_dma_behind_every_real_smmu_of_version_2() {
    for chip in chips::SMMU_V2 {
        for idr in chips::filled(chip.identification.idr, &chips::SMMU_V2_OPEN) {
            let identification = SmmuV2Identification { idr, ..chip.identification };
            does_dma(identification, chip.name);
        }
    }
}

fn does_dma(identification: SmmuV2Identification, name: &str) {
    let (machine, unit) = super::kit::of(identification);
    let options = SmmuV2DomainOptions::default();
    // Widths of devices' addresses, and of those between the stages.
    let codes = [8, 0].map(|low| identification.idr[2] as usize >> low & 0xf);
    let [device, between] = codes.map(|code| [32, 36, 40, 42, 44, 48][code]);
    let widest = if unit.features().stage1 { device } else { between };
    let reach = |domain: &dyn Domain| {
        let range = domain.input_range();
        assert_eq!(range.last().get() >> widest, 0, "{name}");
        machine.reach(3, 0x6000)
    };
    let attached = if unit.features().stage1 {
        let domain = super::kit::first(&unit);
        unit.attach(super::kit::stream(3), &domain).unwrap();
        map(&*domain, 0x6000, 0x1000);
        reach(&*domain)
    } else {
        let domain = unit.second_stage::<12>(&options).unwrap();
        let domain = alloc::sync::Arc::new(domain);
        unit.attach(super::kit::stream(3), &domain).unwrap();
        map(&*domain, 0x6000, 0x1000);
        reach(&*domain)
    };
    assert_eq!(attached, Some(0x1000), "{name}, {identification:x?}");
    unit.block(super::kit::stream(3)).unwrap();
    assert_eq!(machine.reach(3, 0x6000), None, "{name}");
    drop(unit);
    assert_eq!(machine.unit().violations(), [], "{name}");
}
