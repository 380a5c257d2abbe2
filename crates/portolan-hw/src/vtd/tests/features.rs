//! Capabilities by hand, and the quirks of chipsets.

use crate::vtd::{Features, INTEL, PciIdentity, Quirks, VtdFeature};
use portolan::inval::{Caching, PageForm, RangeForm, Walker};
use portolan::iommu::IommuError;
use portolan::table::format::VtdLevels;
use portolan_spec::vtd::reg;
use std::println;

fn nonsense(offset: usize, value: u64) -> IommuError {
    IommuError::Nonsense { offset, value }
}

/// As QEMU 7.2 has them with 48 bits, and with scalable mode.
const CAP: u64 = 0x00d2_008c_222f_0606;
const ECAP: u64 = 0x00f0_0f4a;
const SCALABLE: u64 = 0x4800_80f0_0f4a;

#[test]
fn qemu_is_understood() {
    let f = Features::check(CAP, ECAP).unwrap();
    assert_eq!((f.domain_bits, f.width, f.max_mask), (16, 48, 18));
    assert_eq!((f.faults, f.fault_count, f.iotlb), (0x220, 1, 0xf0));
    assert!(
        f.has.contains(VtdFeature::QUEUE | VtdFeature::PASS_THROUGH | VtdFeature::PAGE_SELECTIVE)
    );
    assert!(
        f.has.contains(VtdFeature::SECOND_2M | VtdFeature::SECOND_1G | VtdFeature::DRAIN_READS)
    );
    assert!(
        !f.has.intersects(VtdFeature::SCALABLE | VtdFeature::SNOOPS | VtdFeature::CACHING_MODE)
    );
    assert!(f.second_levels().eq([VtdLevels::Three, VtdLevels::Four]));
    assert_eq!(f.best_second_levels(), Some(VtdLevels::Four));
    let narrow = Features::check(0x00d2_008c_2226_0206, ECAP).unwrap();
    assert_eq!(narrow.best_second_levels(), Some(VtdLevels::Three));
    let f = Features::check(CAP, SCALABLE).unwrap();
    assert!(f.has.contains(VtdFeature::SCALABLE | VtdFeature::SCALABLE_SECOND));
}

#[test]
fn each_nonsense_names_its_register() {
    let of = |cap_word, ecap_word| Features::check(cap_word, ecap_word).unwrap_err();
    let cap_cases = [CAP | 7, CAP & !(0x3f << 16), CAP | 0x3f << 16, CAP & !(0x3ff << 24)];
    for value in cap_cases {
        assert_eq!(of(value, ECAP), nonsense(reg::CAP, value));
    }
    let pasid = SCALABLE | 1 << 40 | 0x1f << 35;
    let low = ECAP & !(0x3ff << 8);
    for value in [low, low | 0x22 << 8, pasid] {
        assert_eq!(of(CAP, value), nonsense(reg::ECAP, value));
    }
}

#[test]
fn no_register_value_panics() {
    let seed = 0x7d5_eed;
    println!("seed {seed:#x}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..100_000 {
        if let Ok(f) = Features::check(random.u64(..), random.u64(..)) {
            let second = f.best_second_levels().is_some();
            assert_eq!(f.translates(), second || f.has.contains(VtdFeature::FIRST));
        }
    }
}

#[test]
fn caching_mode_concerns_second_stage_only() {
    let f = Features::check(CAP | 1 << 7, SCALABLE).unwrap();
    let (second, first) =
        (f.second_capabilities(Walker::Coherent), f.first_capabilities(Walker::Coherent));
    assert_eq!(second.caching, Caching::NotPresentToo);
    assert_eq!(first.caching, Caching::PresentOnly);
}

#[test]
fn without_page_selection_everything_is_by_domain() {
    let f = Features::check(CAP & !(1 << 39), ECAP).unwrap();
    let caps = f.second_capabilities(Walker::Coherent);
    assert_eq!((caps.page, caps.range), (PageForm::Absent, RangeForm::Absent));
}

fn quirks_of(device: u16, base_class: u8) -> Quirks {
    let vendor = INTEL;
    Quirks::of(PciIdentity { vendor, device, base_class })
}

#[test]
fn each_chipset_has_its_quirks_and_no_other() {
    let graphics = Quirks::GRAPHICS_UNTRANSLATED;
    assert_eq!(quirks_of(0x2a40, 6), Quirks::WRITE_BUFFER | graphics);
    assert_eq!(quirks_of(0x2e90, 6), Quirks::WRITE_BUFFER | graphics);
    assert_eq!(quirks_of(0x0044, 6), graphics);
    for broadwell in [0x1602, 0x160b, 0x161e, 0x162a, 0x163d] {
        assert_eq!(quirks_of(broadwell, 3), graphics);
    }
    assert_eq!(quirks_of(0x1604, 6), Quirks::empty());
    assert_eq!(quirks_of(0x0062, 6), graphics);
    assert_eq!(quirks_of(0x9a49, 3), Quirks::KEEP_TRANSLATION);
    assert_eq!(quirks_of(0x9a49, 2), Quirks::empty());
    let other = PciIdentity { vendor: 0x1022, device: 0x2a40, base_class: 3 };
    assert_eq!(Quirks::of(other), Quirks::empty());
}
