//! Messages of a hostile front-end, and addresses of a hostile guest.

use fastrand::Rng;
use portolan::addr::PhysAddr;
use portolan_chips::fixture::seed;
use portolan_vmm::{ApplyError, FrontendAddr, MemoryRegion, Replacement, VhostIotlb};
use vm_memory::Permissions;

use crate::{FRONTEND, PAGE, iotlb, options, pieces, range};

/// Messages that once were thought of: IOVA, size, target, permissions, type.
const CORPUS: &[(u64, u64, u64, u8, u8)] = &[
    (0, 0, 0, 0, 0),
    (0, u64::MAX, FRONTEND, 3, 2),
    (1, u64::MAX, FRONTEND, 3, 2),
    (u64::MAX, 1, FRONTEND, 3, 2),
    (u64::MAX, 2, FRONTEND, 3, 2),
    (u64::MAX - 1, 1, FRONTEND, 3, 2),
    (0, 1 << 40, FRONTEND, 3, 2),
    (0, (1 << 40) + 1, FRONTEND, 3, 2),
    (1 << 63, 1 << 40, FRONTEND, 1, 2),
    (0, PAGE, FRONTEND - 1, 3, 2),
    (0, PAGE, FRONTEND + (1 << 40) - PAGE + 1, 3, 2),
    (0, PAGE, u64::MAX, 3, 2),
    (0, PAGE, u64::MAX - PAGE + 1, 3, 2),
    (0, PAGE, FRONTEND, 0, 2),
    (0, PAGE, FRONTEND, 4, 2),
    (0, PAGE, FRONTEND, 3, 1),
    (0, PAGE, FRONTEND, 3, 4),
    (0, 0, 0, 0, 3),
    (u64::MAX, 0, 0, 0, 3),
    (u64::MAX, u64::MAX, 0, 0, 3),
    (0, u64::MAX, 0, 0, 3),
    (PAGE, 1, 0, 0, 3),
];

const CAPACITY: usize = 128;
/// The guest has two pieces of memory.
const REGIONS: [(u64, u64, u64); 2] =
    [(0x1000, FRONTEND, 0x8000), (0x10_0000, FRONTEND + 0x8000, 0x4_0000)];

fn payload((iova, size, target, access, kind): (u64, u64, u64, u8, u8)) -> Vec<u8> {
    let words = [iova, size, target].map(u64::to_le_bytes).concat();
    [words, vec![access, kind, 0, 0, 0, 0, 0, 0]].concat()
}

fn guest() -> VhostIotlb {
    let iotlb = iotlb(options(CAPACITY, Replacement::InSets));
    let regions = REGIONS.map(|(guest, frontend, bytes)| MemoryRegion {
        guest: PhysAddr::new(guest),
        frontend: FrontendAddr::new(frontend),
        bytes,
    });
    iotlb.set_memory(&regions).unwrap();
    iotlb
}

/// All that is found is the guest's memory.
fn inside(found: &[(u64, usize)]) {
    for &(base, length) in found {
        let last = base.checked_add(length as u64 - 1).unwrap();
        let mut regions = REGIONS.iter();
        let within = |(start, _, bytes): &(u64, u64, u64)| base >= *start && last < start + bytes;
        assert!(regions.any(within), "{base:#x} to {last:#x}");
    }
}

/// Looks at places that messages speak of.
fn look(iotlb: &VhostIotlb, rng: &mut Rng, at: u64) {
    for access in [Permissions::Read, Permissions::Write, Permissions::No] {
        let at = at.wrapping_add(rng.u64(..3)).wrapping_sub(1);
        let length = rng.choice([0, 1, 2, 4096, 0x1_0001, usize::MAX]).unwrap();
        if let Some(found) = pieces(iotlb, at, length, access) {
            inside(&found);
            let sum: usize = found.iter().map(|(_, length)| length).sum();
            assert_eq!(sum, length);
        }
    }
}

fn mutated(rng: &mut Rng, words: (u64, u64, u64, u8, u8)) -> Vec<u8> {
    let mut payload = payload(words);
    for _ in 0..rng.usize(..3) {
        let at = rng.usize(..payload.len());
        payload[at] = rng.u8(..);
    }
    if rng.u32(..16) == 0 {
        payload.truncate(rng.usize(..32));
    }
    payload
}

#[test]
fn no_message_gives_more_than_the_guests_memory() {
    let mut rng = Rng::with_seed(seed());
    let iotlb = guest();
    for &words in CORPUS {
        // Good or refused; nothing else.
        let _ = iotlb.handle(&payload(words));
        look(&iotlb, &mut rng, words.0);
    }
    let mut taken = 0;
    for _ in 0..100_000 {
        let words = match rng.bool() {
            true => *rng.choice(CORPUS).unwrap(),
            false => (
                rng.u64(..0x20_0000),
                rng.u64(..0x1_0000),
                FRONTEND + rng.u64(..0x5_0000),
                rng.u8(1..4),
                2 + u8::from(rng.u32(..8) == 0),
            ),
        };
        taken += u32::from(iotlb.handle(&mutated(&mut rng, words)).is_ok());
        look(&iotlb, &mut rng, words.0);
        assert!(iotlb.translations() <= CAPACITY);
    }
    assert!(taken > 1_000, "{taken} were good");
}

#[test]
fn memory_of_two_regions_is_not_one_translation() {
    let iotlb = guest();
    let target = FrontendAddr::new(FRONTEND + 0x7000);
    let iova = range(0, 2 * PAGE - 1);
    let refused = iotlb.update(iova, target, Permissions::Read);
    assert_eq!(refused, Err(ApplyError::NotMemory { iova, target }));
    assert_eq!(iotlb.translations(), 0);
}

#[test]
fn another_table_of_memory_takes_all_translations_along() {
    let iotlb = guest();
    let target = FrontendAddr::new(FRONTEND);
    iotlb.update(range(0, 0xfff), target, Permissions::Read).unwrap();
    assert!(pieces(&iotlb, 0, 1, Permissions::Read).is_some());
    let damaged = MemoryRegion { guest: PhysAddr::new(0), frontend: target, bytes: 0 };
    assert!(iotlb.set_memory(&[damaged]).is_err());
    assert!(pieces(&iotlb, 0, 1, Permissions::Read).is_some(), "it stays");
    iotlb.set_memory(&[]).unwrap();
    assert_eq!(pieces(&iotlb, 0, 1, Permissions::Read), None);
}

#[test]
fn a_range_of_endless_pieces_is_refused() {
    let iotlb = iotlb(options(1 << 14, Replacement::InSets));
    for number in 0..5_000 {
        // Every page leads to the same one, so none joins its neighbour.
        crate::map(&iotlb, number, 1, Permissions::Read);
    }
    let bytes = |pages: u64| (pages * PAGE) as usize;
    let found = pieces(&iotlb, 0, bytes(4_096), Permissions::Read).unwrap();
    assert_eq!(found.len(), 4_096);
    assert_eq!(pieces(&iotlb, 0, bytes(4_097), Permissions::Read), None);
}
