//! Published capability registers of real chips, decoded.

use portolan::addr::{Iova, PageSize, PageSizes, PhysAddr};
use portolan::inval::Gather;
use portolan::iommu::{Attach as _, AttachError, Domain as _, Iommu as _, IommuError};
use portolan::table::Access;
use portolan_chips::chips;

use super::kit::{CAP, ECAP, new_machine, of_version};
use super::{STREAM, legacy};
use crate::chassis::tests::suite::Driven;
use crate::promise::tests::{all_memory, promised};
use crate::vtd::Config;
use portolan_spec::vtd::reg::{self, command};

/// No address is handed out that the unit does not take, even if its tables have room for it: MGAW
/// has 39 bits where SAGAW has four levels alone, on client chips from Haswell on.
#[test]
fn every_real_chip_has_a_domain_as_wide_as_mgaw() {
    for chip in chips::VTD {
        let identification = chip.identification;
        let (version, cap, ecap) =
            (identification.version, identification.cap, identification.ecap);
        let unit = of_version(version, cap, ecap).enable(legacy());
        let unit = unit.expect(chip.name);
        let domain = unit.second_stage().expect(chip.name);
        let levels = cap >> 8 & 0x1f;
        let table = [39, 48, 57].iter().zip(1..).filter(|(_, bit)| levels >> bit & 1 != 0);
        let table = table.map(|(width, _)| *width).max().unwrap();
        let width = table.min((cap >> 16 & 0x3f) as u32 + 1);
        let last = domain.input_range().last().get();
        assert_eq!(last, (1 << width) - 1, "{}", chip.name);
        let beyond = Iova::new(last + 1);
        let mut owed = Gather::new();
        let page = PageSize::SIZE_4K.bytes();
        let access = Access::READ_WRITE;
        let refused = domain.map(beyond, promised(PhysAddr::new(0), page), access, &mut owed);
        assert!(refused.is_err(), "{}", chip.name);
    }
}

/// Pages of 2 MiB and 1 GiB by themselves (SLLPS): where both are missing, all are of 4 KiB.
#[test]
fn large_pages_are_made_where_the_unit_has_them() {
    let large = [PageSize::SIZE_2M, PageSize::SIZE_1G];
    // 1 GiB alone could not be split.
    for (sllps, has) in [(0, 0), (1, 1), (2, 0), (3, 2)] {
        let machine = new_machine(CAP & !(0b11 << 34) | sllps << 34, ECAP);
        let unit = machine.enable(legacy()).unwrap();
        let small = PageSizes::default().with(PageSize::SIZE_4K);
        let sizes = large[..has].iter().fold(small, |all, size| all.with(*size));
        assert_eq!(unit.features().second_sizes(), sizes);
        let domain = alloc::sync::Arc::new(unit.second_stage().unwrap());
        unit.attach(STREAM, &domain).unwrap();
        let (at, to) = (Iova::new(1 << 30), PhysAddr::new(1 << 30));
        let mut owed = Gather::new();
        let bytes = [4 << 20, 64 << 20, 1 << 30][has];
        let whole = domain.map(at, promised(to, bytes), Access::READ_WRITE, &mut owed);
        let whole = whole.unwrap();
        domain.sync(&mut owed).unwrap();
        let reached = machine.read(STREAM, at.get() + 0x23_4560);
        assert_eq!(reached, Some(to.get() + 0x23_4560), "{sllps}");
        let leaf = domain.translate(at).unwrap().size;
        assert_eq!(leaf, sizes.iter().last().unwrap());
        domain.unmap(whole, &mut owed).unwrap();
        domain.sync(&mut owed).unwrap();
        assert_eq!(machine.read(STREAM, at.get()), None);
    }
}

/// Such units exist; Linux leaves them out of DMA remapping, and uses them for interrupts.
#[test]
fn a_unit_without_address_widths_remaps_interrupts_and_translates_nothing() {
    let ir = 1 << 3;
    let machine = new_machine(CAP & !(0x1f << 8), ECAP | ir);
    let config = Config { interrupts: Some(crate::interrupt::Remapping::default()), ..legacy() };
    let unit = machine.enable(config).unwrap();
    let status = machine.reg32(reg::GSTS);
    assert_eq!(status & (command::TE | command::IRE), command::IRE);
    assert_eq!(unit.second_stage().err(), Some(IommuError::Unsupported));
    let unsupported = AttachError::from(IommuError::Unsupported);
    assert_eq!(unit.block(STREAM), Err(unsupported));
    assert_eq!(unit.pass_through(STREAM, all_memory()), Ok(()));
    unit.release(all_memory()).unwrap();
    assert_eq!(machine.reg32(reg::GSTS) & command::IRE, 0);
}
