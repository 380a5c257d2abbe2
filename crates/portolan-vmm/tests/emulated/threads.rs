//! Walks and look-ups beside a guest that edits its tables and invalidates.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use fastrand::Rng;
use portolan::addr::{InvalTag, PhysAddr};
use portolan_chips::fixture::seed;
use portolan_vmm::Endpoint;
use portolan_vmm::emulated::{Context, EmulatedUnit, Scope, UnitOptions};
use vm_memory::iommu::Iommu;
use vm_memory::{Bytes, GuestAddress, GuestAddressSpace, GuestMemoryMmap, Permissions};

use crate::{ENDPOINT, Guest, LONG, VTD, guest, range, reach, unit};

const PAGE: u64 = 4096;
const PAGES: u64 = 24;
const TAG: InvalTag = InvalTag::new(9);

fn write(guest: &Guest, at: u64, raw: u64) {
    guest.store(raw, GuestAddress(at), SeqCst).unwrap();
}

/// Tables of three levels at 0x1000, 0x2000, 0x3000.
fn tables(guest: &Guest) -> Context {
    write(guest, 0x1000, 0x2003);
    write(guest, 0x2000, 0x3003);
    Context::tables(VTD, PhysAddr::new(0x1000), TAG).unwrap()
}

fn page(number: u64) -> Option<portolan::addr::IovaRange> {
    Some(range(number * PAGE, number * PAGE + PAGE - 1))
}

/// Each page's number of times that it was changed, and so where it leads.
fn look_up(endpoint: &Endpoint, done: &[AtomicU64], over: &AtomicBool, mut rng: Rng) -> u64 {
    let mut found = 0;
    while !over.load(SeqCst) {
        let number = rng.u64(..PAGES);
        let before = done[number as usize].load(SeqCst);
        let at = GuestAddress(number * PAGE);
        let mut held = endpoint.translate(at, 8, Permissions::Read).unwrap();
        let version = held.next().unwrap().base.0 / PAGE;
        assert!(version >= before, "page {number}: {version} after {before}");
        let after = done[number as usize].load(SeqCst);
        assert!(version >= after, "page {number}: {version} is held, {after} is done");
        drop(held);
        found += 1;
    }
    found
}

#[test]
fn nothing_old_is_found_or_held_once_its_invalidation_is_done() {
    let guest = guest(0x8000);
    let (unit, endpoint) = unit(&guest, 16, LONG);
    let context = tables(&guest);
    for number in 0..PAGES {
        write(&guest, 0x3000 + number * 8, PAGE | 1);
    }
    unit.attach(ENDPOINT, context).unwrap();
    let done: Vec<_> = (0..PAGES).map(|_| AtomicU64::new(1)).collect();
    let over = AtomicBool::new(false);
    let mut rng = Rng::with_seed(seed());
    let found = std::thread::scope(|scope| {
        let readers = [rng.fork(), rng.fork()];
        let readers = readers.map(|rng| scope.spawn(|| look_up(&endpoint, &done, &over, rng)));
        for version in 2..30_000 {
            let number = rng.u64(..PAGES);
            write(&guest, 0x3000 + number * 8, (version * PAGE) | 1);
            let (scope, range) = match rng.u32(..4) {
                0 => (Scope::All, None),
                1 => (Scope::Tag(TAG), None),
                _ => (Scope::Tag(TAG), page(number)),
            };
            unit.invalidate(scope, range).unwrap();
            done[number as usize].store(version, SeqCst);
        }
        over.store(true, SeqCst);
        readers.map(|reader| reader.join().unwrap())
    });
    println!("{found:?} look-ups");
}

#[test]
fn an_invalidation_is_not_done_while_its_range_is_held() {
    let guest = guest(0x8000);
    let (unit, endpoint) = unit(&guest, 16, Duration::ZERO);
    unit.attach(ENDPOINT, tables(&guest)).unwrap();
    write(&guest, 0x3000, 0x5001);
    write(&guest, 0x3000 + 64 * 8, 0x6001);
    assert!(reach(&endpoint, 64 * PAGE, 8, Permissions::Read).is_some());
    let held = endpoint.translate(GuestAddress(0), 8, Permissions::Read);
    let held = held.unwrap();
    assert_eq!(unit.invalidate(Scope::All, page(64)), Ok(()), "another's range");
    assert!(unit.invalidate(Scope::Tag(TAG), page(0)).is_err());
    assert!(unit.attach(ENDPOINT, Context::blocked()).is_err());
    assert_eq!(reach(&endpoint, 0, 8, Permissions::Read), None, "for others");
    drop(held);
    assert_eq!(unit.invalidate(Scope::All, None), Ok(()));
}

/// Guest memory whose third reading waits until it is let go on.
#[derive(Clone)]
struct Gated(Arc<Gate>);

struct Gate {
    guest: Guest,
    readings: AtomicUsize,
    open: AtomicBool,
}

impl Deref for Gated {
    type Target = GuestMemoryMmap;

    fn deref(&self) -> &GuestMemoryMmap {
        if self.0.readings.fetch_add(1, SeqCst) == 2 {
            while !self.0.open.load(SeqCst) {
                std::thread::yield_now();
            }
        }
        &self.0.guest
    }
}

impl GuestAddressSpace for Gated {
    type M = GuestMemoryMmap;
    type T = Self;

    fn memory(&self) -> Self {
        self.clone()
    }
}

#[test]
fn a_walk_that_began_before_an_invalidation_leaves_nothing_behind() {
    let guest = guest(0x8000);
    let gate = Arc::new(Gate {
        guest: Arc::clone(&guest),
        readings: AtomicUsize::new(0),
        open: AtomicBool::new(false),
    });
    let unit = EmulatedUnit::new(Gated(Arc::clone(&gate)), UnitOptions::default());
    let endpoint = unit.add(ENDPOINT).unwrap();
    unit.attach(ENDPOINT, tables(&guest)).unwrap();
    write(&guest, 0x3000, 0x5001);
    write(&guest, 0x4000, 0x6001);
    let invalidated = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let walk = scope.spawn(|| reach(&endpoint, 0, 8, Permissions::Read));
        // It has read where the lowest table is.
        while gate.readings.load(SeqCst) < 3 {
            std::thread::yield_now();
        }
        // Another one takes its place.
        write(&guest, 0x2000, 0x4003);
        scope.spawn(|| {
            unit.invalidate(Scope::All, None).unwrap();
            invalidated.store(true, SeqCst);
        });
        // If it does not wait for the walk, it is done soon.
        for _ in 0..100_000 {
            if invalidated.load(SeqCst) {
                break;
            }
            std::thread::yield_now();
        }
        gate.open.store(true, SeqCst);
        let found = walk.join().unwrap().unwrap();
        assert!(found == [(0x5000, 8)] || found == [(0x6000, 8)], "{found:x?}");
    });
    let found = reach(&endpoint, 0, 8, Permissions::Read);
    assert_eq!(found, Some(vec![(0x6000, 8)]), "what was read before");
}
