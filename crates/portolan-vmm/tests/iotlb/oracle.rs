//! Random updates, invalidations and look-ups beside a list of ranges.

use fastrand::Rng;
use portolan::addr::{Iova, IovaRange};
use portolan_chips::fixture::seed;
use portolan_vmm::{FrontendAddr, Replacement, VhostIotlb};
use vm_memory::Permissions;

use crate::{FRONTEND, MEMORY, iotlb, options, page, pieces, range};

/// First addresses of translations: few places, so that they meet.
const BASES: [u64; 4] = [0, 0x1_ffff_0000, 0xff_ffff_0000, 0x7fff_fff0_0000];
const LENGTHS: [u64; 8] = [1, 17, 4096, 4096, 4096, 0x1_0000, 2 << 20, 20 << 30];

/// Translations of the front-end, the last one of each address.
#[derive(Default)]
struct Oracle(Vec<(IovaRange, u64, Permissions)>);

impl Oracle {
    /// An IOTLB may forget more than it is told; this one forgets whole translations.
    fn forget(&mut self, range: IovaRange) {
        self.0.retain(|(iova, ..)| !iova.overlaps(range));
    }

    /// Each byte by itself, with neighbours of one direction put together.
    fn pieces(&self, asked: IovaRange, access: Permissions) -> Option<Vec<(u64, usize)>> {
        let mut found: Vec<(u64, usize)> = Vec::new();
        let mut at = asked.start();
        loop {
            let mut all = self.0.iter();
            let (iova, target, allowed) = all.find(|(iova, ..)| iova.contains(at))?;
            if !allowed.allow(access) {
                return None;
            }
            let last = iova.last().min(asked.last());
            let length = (last.get() - at.get() + 1) as usize;
            let base = target + (at.get() - iova.start().get());
            match found.last_mut() {
                Some((start, bytes)) if *start + *bytes as u64 == base => *bytes += length,
                _ => found.push((base, length)),
            }
            if last == asked.last() {
                return Some(found);
            }
            at = Iova::new(last.get() + 1);
        }
    }
}

/// Neighbours put together, as the oracle has them.
fn joined(pieces: Vec<(u64, usize)>) -> Vec<(u64, usize)> {
    let mut joined: Vec<(u64, usize)> = Vec::new();
    for (base, length) in pieces {
        match joined.last_mut() {
            Some((start, bytes)) if *start + *bytes as u64 == base => *bytes += length,
            _ => joined.push((base, length)),
        }
    }
    joined
}

fn some_range(rng: &mut Rng) -> IovaRange {
    let base = rng.choice(BASES).unwrap();
    let length = rng.choice(LENGTHS).unwrap();
    let start = match length.is_power_of_two() && rng.bool() {
        true => (base + rng.u64(..0x4_0000)) & !(length - 1),
        false => base + rng.u64(..0x4_0000),
    };
    range(start, start + length - 1)
}

fn some_access(rng: &mut Rng) -> Permissions {
    let all = [Permissions::Read, Permissions::Write, Permissions::ReadWrite];
    rng.choice(all).unwrap()
}

/// Does one thing to both.
fn step(rng: &mut Rng, iotlb: &VhostIotlb, oracle: &mut Oracle, whole: bool) {
    let range = some_range(rng);
    match rng.u32(..10) {
        0..4 => {
            let target = rng.u64(..MEMORY - (40 << 30));
            let access = some_access(rng);
            let frontend = FrontendAddr::new(FRONTEND + target);
            iotlb.update(range, frontend, access).unwrap();
            oracle.forget(range);
            oracle.0.push((range, target, access));
        }
        4 => {
            iotlb.invalidate(range).unwrap();
            oracle.forget(range);
        }
        _ => {
            let (start, access) = (range.start().get(), some_access(rng));
            let length = (range.len_minus_one() + 1).min(0x3_0000);
            let asked = crate::range(start, start + length - 1);
            let found = pieces(iotlb, start, length as usize, access).map(joined);
            let wanted = oracle.pieces(asked, access);
            // Those that were forgotten for want of room are missed, and no others.
            if found.is_some() || whole {
                assert_eq!(found, wanted, "{asked} {access:?}");
            }
        }
    }
}

#[test]
fn whatever_is_found_is_the_last_word_of_the_front_end() {
    let mut rng = Rng::with_seed(seed());
    for _ in 0..60 {
        let replacement = match rng.bool() {
            true => Replacement::InSets,
            false => Replacement::WhenFull,
        };
        let capacity = rng.choice([1, 7, 64, 1 << 16]).unwrap();
        let whole = replacement == Replacement::WhenFull && capacity > 1000;
        let (iotlb, mut oracle) = (iotlb(options(capacity, replacement)), Oracle::default());
        for _ in 0..1_000 {
            step(&mut rng, &iotlb, &mut oracle, whole);
            assert!(iotlb.translations() <= capacity);
            if whole {
                assert_eq!(iotlb.translations(), oracle.0.len());
            }
        }
        iotlb.invalidate(range(0, u64::MAX)).unwrap();
        assert_eq!(iotlb.translations(), 0);
    }
}

#[test]
fn what_does_not_fit_is_forgotten_and_counted() {
    for replacement in [Replacement::InSets, Replacement::WhenFull] {
        let iotlb = iotlb(options(64, replacement));
        for number in 0..1_000 {
            crate::map(&iotlb, number, number, Permissions::Read);
        }
        let counts = iotlb.counts();
        assert!(iotlb.translations() <= 64);
        let gone = 1_000 - iotlb.translations() as u64;
        assert_eq!((counts.updates, counts.evictions), (1_000, gone));
        let last = page(999).start().get();
        assert!(pieces(&iotlb, last, 1, Permissions::Read).is_some());
    }
}

#[test]
fn pages_of_a_dense_space_all_fit() {
    let iotlb = iotlb(options(4096, Replacement::InSets));
    for number in 0..4096 {
        crate::map(&iotlb, number, 4096 - number, Permissions::Read);
    }
    assert_eq!(iotlb.translations(), 4096);
    assert_eq!(iotlb.counts().evictions, 0);
}
