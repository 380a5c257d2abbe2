//! Identification by hand and at random.

mod contexts;
mod faults;
mod kit;
mod model;
mod quirks;
mod stalls;
mod taking_over;

crate::chassis::tests::hostile::on_a_hostile_machine! { crate::smmuv2::tests::kit::Machine }

use super::*;
use portolan::addr::PageSize;
use portolan::iommu::IommuError;

/// Both stages, stream matching, coherent, 48 match registers.
const ID0: u32 = 1 << 30 | 1 << 29 | 1 << 27 | 1 << 14 | 15 << 9 | 48;
/// 32 pages of 4 KiB, 16 banks, 2 of stage 2 only.
const ID1: u32 = 4 << 28 | 2 << 16 | 16;
/// All granules; 48 bits everywhere.
const ID2: u32 = 0b111 << 12 | 5 << 8 | 5 << 4 | 5;

#[test]
fn identification_by_hand() {
    let features = Features::decode(ID0, ID1, ID2).unwrap();
    assert_eq!(features.streams, 48);
    assert_eq!((features.banks, features.banks_of_stage2), (16, 2));
    assert_eq!((features.pages, features.page_lg2), (32, 12));
    assert_eq!((features.input_lg2, features.output_lg2), (48, 48));
    assert!(features.granules.contains(PageSize::SIZE_4K));
    let indexed = Features::decode(ID0 & !(1 << 27) & !(15 << 9) | 7 << 9, ID1, ID2).unwrap();
    assert_eq!(indexed.selection, Selection::Indexing);
    assert_eq!(indexed.streams, 128);
}

#[test]
fn nonsense_names_the_register() {
    let offset = |result| match result {
        Err(IommuError::Nonsense { offset, .. }) => Some(offset),
        _ => None,
    };
    // No stage; no match registers; more streams than registers that are indexed by them.
    let indexed = ID0 & !(1 << 27 | 0xf << 9) | 8 << 9;
    for id0 in [ID0 & !(3 << 29), ID0 & !0xff, indexed] {
        assert_eq!(offset(Features::decode(id0, ID1, ID2)), Some(0x20));
    }
    // No banks; more than pages; more of stage 2 than there are.
    for id1 in [ID1 & !0xff, ID1 | 0x3f, ID1 | 0xff << 16] {
        assert_eq!(offset(Features::decode(ID0, id1, ID2)), Some(0x24));
    }
    assert_eq!(offset(Features::decode(ID0, ID1, ID2 | 0xf0)), Some(0x28));
    let no_tables = Features::decode(ID0, ID1, ID2 & !(7 << 12));
    assert_eq!(no_tables, Err(IommuError::Unsupported));
}

#[test]
fn a_unit_has_as_many_banks_as_pages_and_128_at_most() {
    let banks = |pages_code: u32, second: u32, all: u32| {
        let id1 = pages_code << 28 | second << 16 | all;
        Features::decode(ID0, id1, ID2).map(|features| features.banks)
    };
    // 128 and 256 pages.
    assert_eq!(banks(6, 0, 128), Ok(128));
    assert_eq!(banks(7, 0, 128), Ok(128));
    assert!(banks(7, 0, 129).is_err());
    // Two pages; all banks of the second stage.
    assert_eq!(banks(0, 2, 2), Ok(2));
    assert!(banks(0, 0, 3).is_err());
    assert!(banks(0, 3, 2).is_err());
}

#[test]
fn any_identification_is_answered() {
    let mut random = fastrand::Rng::with_seed(0x500);
    for _ in 0..100_000 {
        let mut word = |like: u32| match random.u8(..3) {
            0 => random.u32(..),
            1 => like ^ 1 << random.u8(..32),
            _ => like,
        };
        if let Ok(features) = Features::decode(word(ID0), word(ID1), word(ID2)) {
            assert!(features.banks as usize <= features.pages && features.streams <= 128);
            let caps = features.capabilities(PageSize::SIZE_4K);
            assert_eq!(caps.granule, PageSize::SIZE_4K);
        }
    }
}
