//! Records of event queues, forged ones among them.

use super::*;
use crate::vfio::nested::{CmdqvErrors, VirtualSmmu};

const LOST: u32 = 1;

fn header(flags: u32, number: u32) -> Vec<u8> {
    [flags, number].iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn event(number: u32, first: u64) -> Vec<u8> {
    let words = [first, 0, 0, !first];
    let data = words.iter().flat_map(|word| word.to_ne_bytes());
    header(0, number).into_iter().chain(data).collect()
}

fn parsed(records: &[Vec<u8>], next: &mut u32) -> Result<(VirtualEvents, Vec<u64>), InfoError> {
    let mut found = Vec::new();
    let counts = parse::<VirtualSmmu>(&records.concat(), next, |event| {
        assert_eq!(event[3], !event[0]);
        found.push(event[0]);
    })?;
    assert_eq!(counts.taken, found.len() as u64);
    Ok((counts, found))
}

#[test]
fn gaps_between_numbers_are_lost_events() {
    let mut next = 0;
    let counts = |taken, lost| VirtualEvents { taken, lost };
    assert_eq!(parsed(&[], &mut next), Ok((counts(0, 0), vec![])));
    let none_lost = parsed(&[event(0, 10), event(1, 11)], &mut next);
    assert_eq!(none_lost, Ok((counts(2, 0), vec![10, 11])));
    // Numbers 2 and 3 are missing.
    assert_eq!(parsed(&[event(4, 14)], &mut next), Ok((counts(1, 2), vec![14])));
    // The tail is lost: numbers 5, 6 and 7. The next event has the number behind.
    assert_eq!(parsed(&[header(LOST, 7)], &mut next), Ok((counts(0, 3), vec![])));
    assert_eq!(parsed(&[event(8, 18)], &mut next), Ok((counts(1, 0), vec![18])));
    // Numbers begin again behind the last.
    next = (1 << 31) - 1;
    let over = parsed(&[event((1 << 31) - 1, 1), event(0, 2), event(2, 3)], &mut next);
    assert_eq!(over, Ok((counts(3, 1), vec![1, 2, 3])));
    assert_eq!(next, 3);
}

#[test]
fn records_that_are_cut_are_an_error() {
    let whole = event(0, 5);
    for length in 1..whole.len() {
        let cut = parsed(&[whole[..length].to_vec()], &mut 0);
        assert!(matches!(cut, Err(InfoError::Cut { .. })), "{length}");
    }
    let wild = parsed(&[header(LOST, u32::MAX)], &mut 0).unwrap();
    assert_eq!(wild.0.lost, 1 << 31);
}

/// Bytes that a kernel writes for errors of the queues 1 and 65, then for one that it had no memory for, then for the
/// queue 127: a header of flags and number, and two words.
#[rustfmt::skip]
const ERRORS: [u8; 56] = [
    0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0,
    1, 0, 0, 0, 1, 0, 0, 0,
    0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80,
];

#[test]
fn errors_of_queues_are_maps_of_their_numbers() {
    let read = |bytes: &[u8], next: &mut u32| {
        let mut found = Vec::new();
        let counts = parse::<CmdqvErrors>(bytes, next, |map| found.push(map));
        (counts, found)
    };
    let mut next = 0;
    let (counts, found) = read(&ERRORS, &mut next);
    assert_eq!(counts, Ok(VirtualEvents { taken: 2, lost: 1 }));
    assert_eq!((found, next), (vec![[2, 2], [0, 1 << 63]], 3));
    // A map that is cut is none, and those before it have arrived.
    for (length, whole) in [(0, 0), (24, 1), (32, 1), (56, 2)] {
        assert_eq!(read(&ERRORS[..length], &mut 0).1.len(), whole);
    }
    for length in (1..56).filter(|length| ![24, 32].contains(length)) {
        let (counts, found) = read(&ERRORS[..length], &mut 0);
        assert!(matches!(counts, Err(InfoError::Cut { .. })), "{length}");
        assert_eq!(found.len(), usize::from(length > 24), "{length}");
    }
    // Of any bytes no more maps than there is room for.
    let wild: Vec<u8> = (0..=u8::MAX).map(|byte| byte.wrapping_mul(0xa7)).collect();
    for start in 0..wild.len() {
        assert!(read(&wild[start..], &mut 0).1.len() <= wild.len() / 24);
    }
}
