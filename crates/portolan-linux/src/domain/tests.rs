//! The domain over a kernel in miniature, which keeps type 1's rules, against a map of pages.

use super::*;
use crate::promised::promised;
use portolan::addr::PhysAddr;
use portolan::table::{DirtyError, TableAccessError};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

const PAGE: u64 = 4096;

/// Mappings as type 1 keeps them: never cut, never joined.
#[derive(Debug, Default)]
pub(crate) struct Kernel {
    mappings: Mutex<BTreeMap<u64, (IovaRange, PhysAddr)>>,
    access: Mutex<BTreeMap<u64, Access>>,
    calls: Mutex<(u64, u64)>,
    /// Mappings that there may be.
    room: Mutex<Option<usize>>,
    /// Pages that devices have written.
    written: Mutex<BTreeSet<u64>>,
}

impl Kernel {
    pub(crate) fn pages(&self) -> BTreeMap<u64, u64> {
        let mappings = self.mappings.lock().unwrap();
        let each = mappings.values().flat_map(|(range, memory)| {
            let pages = 0..range.pages(PageSize::SIZE_4K);
            pages.map(|n| (range.start().get() + n * PAGE, memory.get() + n * PAGE))
        });
        each.collect()
    }

    /// Access of the last mapping that began at `iova`.
    pub(crate) fn access(&self, iova: Iova) -> Option<Access> {
        self.access.lock().unwrap().get(&iova.get()).copied()
    }

    /// Maps, and unmaps.
    pub(crate) fn counts(&self) -> (u64, u64) {
        *self.calls.lock().unwrap()
    }
}

impl Calls for Kernel {
    fn map(&self, range: IovaRange, memory: PhysAddr, access: Access) -> Result<(), IommuError> {
        self.calls.lock().unwrap().0 += 1;
        let mut mappings = self.mappings.lock().unwrap();
        if self.room.lock().unwrap().is_some_and(|room| mappings.len() >= room) {
            return Err(IommuError::Refused { code: 12 });
        }
        assert!(mappings.values().all(|(other, _)| !other.overlaps(range)), "EEXIST");
        mappings.insert(range.start().get(), (range, memory));
        self.access.lock().unwrap().insert(range.start().get(), access);
        Ok(())
    }

    fn unmap(&self, range: IovaRange, bytes: u64) -> Result<(), IommuError> {
        self.calls.lock().unwrap().1 += 1;
        let mut mappings = self.mappings.lock().unwrap();
        let mut sum = 0;
        mappings.retain(|_, (one, _)| {
            assert!(!one.overlaps(range) || range.covers(*one), "EINVAL: {one} cut by {range}");
            let gone = range.covers(*one);
            sum += if gone { one.len_minus_one() + 1 } else { 0 };
            !gone
        });
        assert_eq!(sum, bytes, "the kernel says how many bytes it unmapped");
        Ok(())
    }

    fn dirty(
        &self,
        range: IovaRange,
        page: PageSize,
        after: AfterRead,
        bitmap: &mut [u64],
    ) -> Result<(), IommuError> {
        let mappings = self.mappings.lock().unwrap();
        let cut = |one: &IovaRange| one.overlaps(range) && !range.covers(*one);
        assert!(!mappings.values().any(|(one, _)| cut(one)), "EINVAL");
        let mut written = self.written.lock().unwrap();
        let room = bitmap.len() as u64 * 64;
        assert!(range.pages(page) <= room && page.bytes() == PAGE);
        for bit in range.pages(page)..room {
            bitmap[bit as usize / 64] |= 1 << (bit % 64);
        }
        written.retain(|at| {
            let inside = range.contains(Iova::new(*at));
            let bit = at.wrapping_sub(range.start().get()) / PAGE;
            if inside {
                bitmap[bit as usize / 64] |= 1 << (bit % 64);
            }
            !inside || after == AfterRead::Kept
        });
        match self.room.lock().unwrap().is_some() {
            true => Err(IommuError::Unsupported),
            false => Ok(()),
        }
    }
}

pub(crate) fn reach() -> Arc<Reach> {
    let range = |a, b| IovaRange::new(Iova::new(a), Iova::new(b)).unwrap();
    Arc::new(Reach {
        ranges: vec![range(0, 0xfedf_ffff), range(0xfef0_0000, 0xffff_ffff)],
        granule: PageSize::SIZE_4K,
    })
}

fn domain() -> (Arc<Kernel>, UserDomain) {
    let kernel = Arc::new(Kernel::default());
    let domain = UserDomain::new(reach(), DirtyTracking::Off, None);
    domain.enter(kernel.clone()).unwrap();
    (kernel, domain)
}

fn pages(first: u64, count: u64) -> IovaRange {
    IovaRange::from_len(Iova::new(first * PAGE), count * PAGE).unwrap()
}

fn map(domain: &UserDomain, first: u64, memory: u64, count: u64) -> Result<IovaRange, DomainError> {
    let (iova, pa) = (Iova::new(first * PAGE), PhysAddr::new(memory * PAGE));
    let mut owed = Gather::new();
    let mapped = domain.map(iova, promised(pa, count * PAGE), Access::READ_WRITE, &mut owed);
    assert!(!domain.is_due(&owed));
    mapped
}

#[test]
fn one_call_unmaps_all_in_a_row_and_stops_at_what_is_wanted() {
    let (kernel, domain) = domain();
    for page in 0..10 {
        map(&domain, 2 * page, 100 + page, 1).unwrap();
    }
    let mut owed = Gather::new();
    for page in (0..10).filter(|page| *page != 6) {
        domain.unmap(pages(2 * page, 1), &mut owed).unwrap();
    }
    assert_eq!(kernel.pages().len(), 10, "nothing is unmapped before it is paid for");
    domain.sync(&mut owed).unwrap();
    assert_eq!(kernel.counts(), (10, 2));
    assert_eq!(kernel.pages(), BTreeMap::from([(12 * PAGE, 106 * PAGE)]));
    assert_eq!(domain.translate(Iova::new(12 * PAGE + 5)).unwrap().pa.get(), 106 * PAGE + 5);
    assert!(owed.is_empty());
}

#[test]
fn a_domain_in_a_part_of_its_units_addresses_leaves_the_others_alone() {
    let (kernel, unit) = (Arc::new(Kernel::default()), reach());
    let part = pages(16, 16);
    let domain = UserDomain::new(unit.clone(), DirtyTracking::Off, None)
        .within(Reach { ranges: vec![part], granule: PageSize::SIZE_4K });
    assert!(domain.is_of(&unit) && !domain.is_of(&reach()));
    domain.enter(kernel.clone()).unwrap();
    assert_eq!(domain.input_range(), part);
    for (first, count) in [(15, 1), (15, 2), (31, 2), (32, 1), (0, 64)] {
        assert!(map(&domain, first, 100, count).is_err(), "{first} {count}");
    }
    assert_eq!(kernel.counts(), (0, 0));
    map(&domain, 16, 100, 16).unwrap();
    assert_eq!(kernel.pages().len(), 16);
}

#[test]
fn a_mapping_is_not_cut() {
    let (kernel, domain) = domain();
    map(&domain, 4, 100, 4).unwrap();
    map(&domain, 8, 200, 1).unwrap();
    let mut owed = Gather::new();
    for (first, count) in [(4, 1), (5, 2), (7, 1), (7, 2)] {
        let error = domain.unmap(pages(first, count), &mut owed).unwrap_err();
        let block = pages(4, 4);
        assert_eq!(error, TableUnmapError::NeedsSplit { block }.into(), "{first} {count}");
        assert!(domain.unmap_part(pages(first, count), &mut owed).is_err());
    }
    for (first, count, missing) in [(3, 5, 3), (4, 6, 9), (9, 1, 9)] {
        let error = domain.unmap(pages(first, count), &mut owed).unwrap_err();
        let iova = Iova::new(missing * PAGE);
        assert_eq!(error, TableUnmapError::NotMapped { iova }.into());
    }
    domain.unmap(pages(4, 5), &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    assert_eq!((kernel.counts(), kernel.pages().len()), ((2, 1), 0));
}

#[test]
fn neighbours_in_memory_are_one_mapping() {
    let (kernel, domain) = domain();
    let piece = |at, bytes| promised(PhysAddr::new(at), bytes);
    // Two that meet at a page's end, and one elsewhere that fills no page.
    let list = [piece(0x5000, 0x1000), piece(0x6000, 0x2000), piece(0x9010, 0x20)];
    let mut owed = Gather::new();
    let at = Iova::new(0x10_0000);
    let range = domain.map_sg(at, &list, Access::WRITE, &mut owed).unwrap();
    assert_eq!((range.pages(PageSize::SIZE_4K), kernel.counts()), (4, (2, 0)));
    assert_eq!(kernel.pages()[&0x10_3000], 0x9000);
}

#[test]
fn what_makes_no_sense_is_refused_before_any_call() {
    let (kernel, domain) = domain();
    let mut owed = Gather::new();
    let mut map = |iova: u64, pa: u64, bytes: u64, access| {
        domain
            .map(Iova::new(iova), promised(PhysAddr::new(pa), bytes), access, &mut owed)
            .unwrap_err()
    };
    let rw = Access::READ_WRITE;
    let iova = Iova::new;
    assert_eq!(map(8, 0, PAGE, rw), TableMapError::UnalignedIova { iova: iova(8) }.into());
    let (pa, bytes) = (PhysAddr::new(8), PAGE);
    assert_eq!(map(0, 8, PAGE, rw), TableMapError::UnalignedMemory { pa, bytes }.into());
    // Into the window of interrupts, over it, and past the end.
    for (at, bytes) in
        [(0xfee0_0000, PAGE), (0xfedf_f000, 2 * PAGE), (0xfedf_f000, 1 << 24), (1 << 32, PAGE)]
    {
        assert_eq!(map(at, 0, bytes, rw), TableMapError::IovaOutOfRange { iova: iova(at) }.into());
    }
    for access in [Access::empty(), Access::EXECUTE, rw | Access::EXECUTE, Access::DEVICE] {
        assert_eq!(
            map(0, 0, PAGE, access),
            TableMapError::from(TableAccessError { access }).into()
        );
    }
    assert_eq!(kernel.counts(), (0, 0));
    let holes: Vec<_> = reach().holes().collect();
    assert_eq!(holes, [IovaRange::new(iova(0xfee0_0000), iova(0xfeef_ffff)).unwrap()]);
}

#[test]
fn a_map_that_fails_leaves_nothing() {
    let (kernel, domain) = domain();
    map(&domain, 1, 50, 1).unwrap();
    *kernel.room.lock().unwrap() = Some(3);
    let piece = |page| promised(PhysAddr::new(page * PAGE), PAGE);
    let list = [piece(10), piece(20), piece(30)];
    let mut owed = Gather::new();
    let failed = domain.map_sg(Iova::new(8 * PAGE), &list, Access::READ, &mut owed);
    assert_eq!(failed, Err(IommuError::Refused { code: 12 }.into()));
    assert_eq!(kernel.pages().len(), 1);
    *kernel.room.lock().unwrap() = None;
    domain.map_sg(Iova::new(8 * PAGE), &list, Access::READ, &mut owed).unwrap();
    assert_eq!(kernel.pages().len(), 4);
}

#[test]
fn what_was_unmapped_and_not_paid_for_makes_room() {
    let (kernel, domain) = domain();
    map(&domain, 1, 50, 1).unwrap();
    let mut owed = Gather::new();
    domain.unmap(pages(1, 1), &mut owed).unwrap();
    assert_eq!(domain.translate(Iova::new(PAGE)), None);
    map(&domain, 1, 60, 1).unwrap();
    domain.sync(&mut owed).unwrap();
    assert_eq!(kernel.pages(), BTreeMap::from([(PAGE, 60 * PAGE)]));
    assert_eq!(
        map(&domain, 1, 70, 1),
        Err(TableMapError::AlreadyMapped { iova: Iova::new(PAGE) }.into())
    );
}

#[test]
fn it_moves_with_all_that_is_mapped_and_is_in_one_place() {
    let (first, second) = (Arc::new(Kernel::default()), Arc::new(Kernel::default()));
    let domain = UserDomain::new(reach(), DirtyTracking::Off, None);
    map(&domain, 1, 50, 2).unwrap();
    map(&domain, 9, 90, 1).unwrap();
    domain.enter(first.clone()).unwrap();
    assert_eq!(first.pages().len(), 3);
    assert_eq!(domain.enter(second.clone()), Err(AttachError::Mismatch));
    let mut owed = Gather::new();
    domain.unmap(pages(9, 1), &mut owed).unwrap();
    domain.leave().unwrap();
    assert_eq!((first.pages().len(), first.counts()), (0, (2, 1)));
    *second.room.lock().unwrap() = Some(0);
    let refused = IommuError::Refused { code: 12 };
    assert_eq!(domain.enter(second.clone()), Err(refused.into()));
    *second.room.lock().unwrap() = None;
    domain.enter(second.clone()).unwrap();
    domain.sync(&mut owed).unwrap();
    assert_eq!(second.pages().len(), 2);
}

#[test]
fn random_maps_and_unmaps_against_a_map_of_pages() {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut state = seed;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    let (kernel, domain) = domain();
    // Mappings that are wanted, and mappings that are unmapped and owed.
    let mut wanted: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut owed = Gather::new();
    for _ in 0..4000 {
        let first = random(64);
        match random(4) {
            0 | 1 => {
                let (count, memory) = (1 + random(3), 1000 + random(1000));
                let free =
                    wanted.iter().all(|(at, (n, _))| at + n <= first || first + count <= *at);
                let mapped = map(&domain, first, memory, count);
                assert_eq!(mapped.is_ok(), free, "{mapped:?}");
                if free {
                    wanted.insert(first, (count, memory));
                }
            }
            2 => {
                let Some((&at, &(count, _))) = wanted.range(first..).next() else {
                    continue;
                };
                domain.unmap(pages(at, count), &mut owed).unwrap();
                wanted.remove(&at);
            }
            _ => drop(domain.sync(&mut owed).unwrap()),
        }
        if owed.is_empty() {
            let each = wanted.iter().flat_map(|(at, (count, memory))| {
                (0..*count).map(move |n| ((at + n) * PAGE, (memory + n) * PAGE))
            });
            assert_eq!(kernel.pages(), each.collect());
        }
    }
}

#[test]
fn threads_on_ranges_of_their_own_never_lose_a_mapping() {
    let (kernel, domain) = domain();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (domain, kernel) = (&domain, &kernel);
            scope.spawn(move || {
                for round in 0..500 {
                    // Every fourth page: runs of unwanted ones have holes where others map.
                    let at = 4 * (round % 8) + thread;
                    map(domain, at, 1000 + at, 1).unwrap();
                    assert_eq!(kernel.pages().get(&(at * PAGE)), Some(&((1000 + at) * PAGE)));
                    let mut owed = Gather::new();
                    domain.unmap(pages(at, 1), &mut owed).unwrap();
                    let mut wide = Gather::new();
                    wide.owe_unmap(domain.id(), pages(0, 32), PageSize::SIZE_4K).unwrap();
                    domain.absorb(&mut wide, &mut owed).unwrap();
                    domain.sync(&mut wide).unwrap();
                    assert_eq!(kernel.pages().get(&(at * PAGE)), None);
                }
            });
        }
    });
    assert!(kernel.pages().is_empty());
}

fn tracked() -> (Arc<Kernel>, UserDomain) {
    let kernel = Arc::new(Kernel::default());
    let domain = UserDomain::new(reach(), DirtyTracking::Hardware, None);
    domain.enter(kernel.clone()).unwrap();
    (kernel, domain)
}

fn read_dirty(domain: &UserDomain, range: IovaRange) -> Result<Vec<IovaRange>, DirtyError> {
    let (mut found, mut owed) = (Vec::new(), Gather::new());
    domain.read_and_clear_dirty(range, &mut owed, &mut |dirty| found.push(dirty))?;
    assert!(!domain.is_due(&owed));
    Ok(found)
}

#[test]
fn what_devices_wrote_is_read_by_whole_mappings_and_once() {
    let (kernel, domain) = tracked();
    // Neighbours, a hole, pages that devices only read, and a mapping of many words of a bitmap.
    map(&domain, 1, 50, 2).unwrap();
    map(&domain, 3, 90, 1).unwrap();
    map(&domain, 6, 70, 1).unwrap();
    let (iova, pa) = (Iova::new(7 * PAGE), PhysAddr::new(80 * PAGE));
    let mut owed = Gather::new();
    domain.map(iova, promised(pa, PAGE), Access::READ, &mut owed).unwrap();
    map(&domain, 100, 200, 200).unwrap();
    let written = [1, 2, 3, 6, 7, 163, 164, 299];
    let write = || kernel.written.lock().unwrap().extend(written.map(|page| page * PAGE));
    write();
    let all = pages(0, 1000);
    let dirty = [pages(1, 3), pages(6, 1), pages(163, 2), pages(299, 1)];
    assert_eq!(read_dirty(&domain, all).unwrap(), dirty);
    assert_eq!(read_dirty(&domain, all).unwrap(), []);
    write();
    for _ in 0..2 {
        let mut found = Vec::new();
        domain.read_dirty(all, &mut |dirty| found.push(dirty)).unwrap();
        assert_eq!(found, dirty, "a read that keeps the marks");
    }
    // A range that cuts mappings: the kernel is asked for whole ones.
    let part = read_dirty(&domain, pages(2, 162)).unwrap();
    assert_eq!(part, [pages(2, 2), pages(6, 1), pages(163, 1)]);
    let mut owed = Gather::new();
    domain.unmap(pages(6, 1), &mut owed).unwrap();
    write();
    assert_eq!(read_dirty(&domain, pages(5, 3)).unwrap(), []);
}

#[test]
fn marks_that_nobody_keeps_are_an_error() {
    let range = pages(0, 10);
    assert_eq!(read_dirty(&domain().1, range), Err(DirtyError::NotTracked));
    let kept = domain().1.read_dirty(range, &mut |_| ());
    assert_eq!(kept, Err(DirtyError::NotTracked));
    let (kernel, domain) = tracked();
    let range = IovaRange::new(Iova::new(0), Iova::new(u64::MAX)).unwrap();
    let outside = Err(DirtyError::OutOfRange { range });
    assert_eq!(read_dirty(&domain, range), outside);
    map(&domain, 1, 50, 2).unwrap();
    *kernel.room.lock().unwrap() = Some(9);
    let refused = read_dirty(&domain, pages(0, 10));
    assert_eq!(refused, Err(DirtyError::Refused { code: 95 }));
    domain.leave().unwrap();
    assert_eq!(read_dirty(&domain, pages(0, 10)).unwrap(), []);
}
