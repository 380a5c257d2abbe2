//! Boards with X58, 5500 and 5520 whose firmware gave the sound controller's unit no TLB entries.

use super::build::{at, dmar, drhd, endpoint};
use super::{Fake, Has, Is};
use crate::topology::enable::vtd::quirks;
use crate::topology::pci::PciOverrides;
use crate::topology::{Remark, Topology};
use crate::vtd::Quirks;

/// A board whose register VTISOCHCTRL has the value `control`.
fn board(control: u32) -> Fake {
    Fake::default()
        .with(at(0, 0x14, 0), Is::Conventional, None, Has::Nothing)
        .word(0, 0x342e_8086)
        .word(0x188, control)
        .with(at(0, 0x1b, 0), Is::Conventional, None, Has::Nothing)
        .word(0, 0x3a3e_8086)
}

/// Quirks of the board, and the number of entries that is remarked on.
fn seen(board: &Fake) -> (Quirks, Option<u8>) {
    let azalia = at(0, 0x1b, 0);
    let units = [drhd(0, 0xfed9_1000, &[endpoint(0, 0x1b, 0)]), drhd(1, 0xfed9_0000, &[])];
    let table = dmar(38, 1, &units);
    let topology = Topology::from_acpi([&table[..]]).unwrap();
    let survey = topology.survey(PciOverrides::KNOWN, |of, offset| board.read(of, offset));
    let mut entries = survey.remarks().iter().filter_map(|remark| match remark {
        Remark::IsochronousEntries { function, entries } if *function == azalia => Some(*entries),
        _ => None,
    });
    let entries = (entries.next(), entries.next());
    assert_eq!(entries.1, None);
    (quirks(&|of, offset| board.read(of, offset), azalia.segment), entries.0)
}

#[test]
fn a_sound_controller_whose_unit_has_no_tlb_entries_is_not_translated_and_remarked_on() {
    let (translated, untranslated) = (Quirks::empty(), Quirks::AZALIA_UNTRANSLATED);
    assert_eq!(seen(&board(0)), (untranslated, Some(0)));
    assert_eq!(seen(&board(0x20)), (untranslated, Some(0)));
    assert_eq!(seen(&board(4)), (translated, Some(4)));
    assert_eq!(seen(&board(0x10)), (translated, None));
    // It goes through another unit.
    assert_eq!(seen(&board(1)), (translated, None));
    // The register is hidden, or there is no such controller.
    let sound = Fake::default().with(at(0, 0x1b, 0), Is::Conventional, None, Has::Nothing);
    assert_eq!(seen(&sound.word(0, 0x3a3e_8086)), (translated, None));
    let management = Fake::default().with(at(0, 0x14, 0), Is::Conventional, None, Has::Nothing);
    assert_eq!(seen(&management.word(0, 0x342e_8086)), (translated, None));
}
