//! Answers of a kernel to `portolan-linux`: descriptions with chains of capabilities, records of page requests, events
//! of virtual IOMMUs and of their queues, descriptions of hardware. The first byte says which.

use std::collections::BTreeMap;

use portolan::addr::StreamId;

use super::container::{available, reach};
use super::device::region;
use super::faults::{FaultRecord, RECORD};
use super::hardware::Hardware;
use super::nested::events::{HEADER, NUMBERS, parse};
use super::nested::kinds::{CmdqvErrors, EventKind, VirtualSmmu};
use crate::chain::{areas, capability, long, range_list, word};
use crate::sys::iommufd::nested::{Described, WORDS};

/// Bytes of a region whose parts are listed.
const REGION: u64 = 1 << 16;
/// The one device that there is.
const DEVICE: u32 = 4;

/// Reads one answer.
pub fn answers(bytes: &[u8]) {
    let Some((kind, answer)) = bytes.split_first() else {
        return;
    };
    match kind % 5 {
        0 => chains(answer),
        1 => page_requests(answer),
        2 => events::<VirtualSmmu>(answer),
        3 => hardware(answer),
        _ => events::<CmdqvErrors>(answer),
    }
}

fn chains(info: &[u8]) {
    let first = word(info, 0).unwrap_or(0);
    for wanted in 1..4 {
        let Ok(Some(body)) = capability(info, first, wanted) else {
            continue;
        };
        assert!(body.len() < info.len());
        let ranges = range_list(body).unwrap_or_default();
        assert!(ranges.windows(2).all(|pair| pair[0].last() < pair[1].start()));
        let inside =
            |(at, size): &(u64, u64)| at.checked_add(*size).is_some_and(|end| end <= REGION);
        assert!(areas(body, REGION).unwrap_or_default().iter().all(inside));
    }
    if let Ok(found) = reach(info) {
        assert!(found.granule.bytes() >= 4096);
        found.holes().for_each(|hole| assert!(found.ranges.iter().all(|one| !one.overlaps(hole))));
    }
    let _ = (available(info), region(info, 0));
}

fn page_requests(bytes: &[u8]) {
    let streams = BTreeMap::from([(DEVICE, StreamId::new(0x28))]);
    for record in bytes.chunks(RECORD) {
        let found = FaultRecord::read(record, &streams);
        assert_eq!(found.is_ok(), record.len() == RECORD);
        if let Some(request) = found.ok().and_then(|found| found.request) {
            assert_eq!(word(record, 4), Ok(DEVICE));
            let _ = request.check();
        }
    }
}

fn events<K: EventKind>(bytes: &[u8]) {
    let (mut next, mut handed) = (word(bytes, 0).unwrap_or(0) % NUMBERS, 0);
    let bytes = bytes.get(4..).unwrap_or_default();
    let counts = parse::<K>(bytes, &mut next, |_| handed += 1);
    assert!(next < NUMBERS && handed <= bytes.len() as u64 / HEADER as u64);
    assert!(counts.is_err() || counts.is_ok_and(|counts| counts.taken == handed));
}

fn hardware(bytes: &[u8]) {
    let words = std::array::from_fn::<u64, WORDS, _>(|at| long(bytes, 16 + 8 * at).unwrap_or(0));
    let (kind, pasid_bits) = (word(bytes, 0).unwrap_or(0), word(bytes, 4).unwrap_or(0) as u8);
    let capabilities = long(bytes, 8).unwrap_or(0);
    let found = Hardware::read(&Described { kind, words, capabilities, pasid_bits });
    assert_eq!(found.pasid_bits, pasid_bits);
}
