//! Reports by hand, the sample report of a public implementation, and reports that are cut or changed.

use super::*;

extern crate alloc;
use alloc::vec::Vec;

/// The sample report of DMTF's libspdm emulator (`pci_tdisp_device` of `libtdisp`'s responder sample): two bits of
/// INTERFACE_INFO, four ranges, nothing of the device's own. Its `first_page` values are stored as they are.
const SAMPLE: [(u64, u32, u16, u16); 4] = [
    (0x0000, 1, range::NON_TEE, 1),
    (0x8000, 4, range::UPDATABLE, 2),
    (0x1_0000, 8, range::UPDATABLE, 3),
    (0x2_0000, 8, range::UPDATABLE, 4),
];

fn sample() -> Vec<u8> {
    let mut bytes = [3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0].to_vec();
    for (start, pages, attributes, id) in SAMPLE {
        bytes.extend(start.to_le_bytes());
        bytes.extend(pages.to_le_bytes());
        bytes.extend(attributes.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes.extend([0; 4]);
    bytes
}

#[test]
fn the_sample_report_of_a_public_implementation_is_read() {
    let bytes = sample();
    let report = InterfaceReport::new(&bytes).unwrap();
    assert_eq!(report.info(), info::NO_UPDATE | info::PLAIN_DMA);
    let found: Vec<_> =
        report.ranges().map(|one| (one.start, one.pages, one.attributes, one.id)).collect();
    assert_eq!(found, SAMPLE);
    assert!(report.device_specific().is_empty());
}

#[test]
fn fields_are_where_the_specification_has_them() {
    let mut bytes = [0u8; 16 + 16 + 4 + 3];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = at as u8;
    }
    bytes[12..16].copy_from_slice(&[1, 0, 0, 0]);
    bytes[32..36].copy_from_slice(&[3, 0, 0, 0]);
    let report = InterfaceReport::new(&bytes).unwrap();
    assert_eq!((report.info(), report.msix_control()), (0x0100, 0x0504));
    assert_eq!((report.lnr_control(), report.tph_control()), (0x0706, 0x0b0a_0908));
    let one = MmioRange {
        start: 0x1716_1514_1312_1110,
        pages: 0x1b1a_1918,
        attributes: 0x1d1c,
        id: 0x1f1e,
    };
    assert_eq!(report.ranges().collect::<Vec<_>>(), [one]);
    assert_eq!(report.device_specific(), [36, 37, 38]);
}

#[test]
fn a_report_that_is_cut_anywhere_is_refused() {
    let bytes = sample();
    for length in 0..bytes.len() {
        let refused = InterfaceReport::new(&bytes[..length]).unwrap_err();
        assert!(matches!(refused, ReportError::Cut { bytes, .. } if bytes == length));
    }
}

#[test]
fn any_byte_may_be_any_byte() {
    let bytes = sample();
    for at in 0..bytes.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] = value;
            if let Ok(report) = InterfaceReport::new(&changed) {
                assert!(report.ranges().count() <= 4);
            }
        }
    }
    // More ranges than any memory holds.
    let mut endless = bytes;
    endless[12..16].copy_from_slice(&[0xff; 4]);
    let wanted = 16 + 0xffff_ffff * 16 + 4;
    assert_eq!(
        InterfaceReport::new(&endless),
        Err(ReportError::Cut { bytes: endless.len(), wanted })
    );
}

#[test]
fn a_range_without_pages_or_beyond_the_top_is_refused() {
    for (start, pages) in [(0x1000, 0), (u64::MAX - 0xfff, 2)] {
        let mut bytes = sample();
        bytes[16..24].copy_from_slice(&u64::to_le_bytes(start));
        bytes[24..28].copy_from_slice(&u32::to_le_bytes(pages));
        let refused = InterfaceReport::new(&bytes).unwrap_err();
        assert!(matches!(refused, ReportError::Range { range } if range.start == start));
    }
    let mut bytes = sample();
    bytes[16..24].copy_from_slice(&u64::to_le_bytes(u64::MAX - 0xfff));
    assert!(InterfaceReport::new(&bytes).is_ok());
}
