//! Real memory of this process behind a container, taken back by one thread while others fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use portolan::addr::{CpuId, InvalTag, Iova, IovaRange, PageSize, PhysAddr, PhysRange, StreamId};
use portolan::demand::premap::Requester;
use portolan::demand::{FaultRequest, Ioas, IoasOptions, RegionOptions, Residency, Window};
use portolan::inval::{
    Caching, Capabilities, InvalidationQueue, LeafOnly, PageForm, Quirks, RangeForm, Step,
    TablesLeft, Walker, WriteBuffer,
};
use portolan::iommu::{Domain as _, IommuError, PagedDomain, TagPool};
use portolan::platform::{Clock, Nanos, SlabTables, SpinCpus};
use portolan::table::format::{DirtyTracking, VtdLevels, VtdSecondStage};
use portolan::table::{Access, PageTable};

use super::{GuestMemory, ReclaimError};
use crate::memory::{Backing, Base, HostMemory, MadeBy, Told, UserFaults};

const PAGE: u64 = 4096;
const BASE: u64 = 1 << 30;
const PAGES: u64 = 64;

/// Hardware that works until it is broken.
#[derive(Default)]
struct Free {
    broken: AtomicBool,
}

impl InvalidationQueue for Free {
    type Error = IommuError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        steps.for_each(drop);
        match self.broken.load(Ordering::Relaxed) {
            true => Err(IommuError::Refused { code: 1 }),
            false => Ok(()),
        }
    }
}

impl TagPool for Free {
    fn release(&self, _context: InvalTag) -> Result<(), IommuError> {
        Ok(())
    }
}

#[derive(Debug)]
struct Looks(AtomicU64);

impl Clock for Looks {
    fn now(&self) -> Nanos {
        Nanos::new(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

type Domain = PagedDomain<VtdSecondStage, SlabTables<AtomicU64>, Free>;
type Container = Ioas<Domain, Arc<GuestMemory>, SpinCpus<Looks, fn() -> CpuId>>;

fn pages(first: u64, count: u64) -> IovaRange {
    IovaRange::from_len(Iova::new(BASE + first * PAGE), count * PAGE).unwrap()
}

fn rig(backing: Backing, hold: Residency<'_>) -> (Arc<GuestMemory>, Arc<Domain>, Container) {
    let base = Base::At(PhysAddr::new(1 << 32));
    let memory = HostMemory::new(PAGES * PAGE, backing, base).unwrap();
    let guest = Arc::new(GuestMemory::new(memory, Iova::new(BASE)));
    let format =
        VtdSecondStage { levels: VtdLevels::Four, output_lg2: 46, dirty: DirtyTracking::Off };
    let caps = Capabilities {
        granule: PageSize::SIZE_4K,
        page: PageForm::Granule,
        range: RangeForm::Absent,
        leaf_only: LeafOnly::Present,
        walker: Walker::Coherent,
        caching: Caching::PresentOnly,
        write_buffer: WriteBuffer::Absent,
    };
    let tables = SlabTables::new(PhysAddr::new(1 << 40), PageSize::SIZE_4K, 16);
    let table = PageTable::new(format, tables).unwrap();
    let (context, quirks) = (InvalTag::new(1), Quirks::default());
    let queue = Free::default();
    let domain = Arc::new(PagedDomain::new(table, context, caps, quirks, queue));
    let current: fn() -> CpuId = || CpuId::new(0);
    let cpus = SpinCpus::new(1, Looks(AtomicU64::new(0)), current);
    let options = IoasOptions { window: Window::Page, ..IoasOptions::default() };
    let container = Ioas::new(domain.clone(), cpus, options, crate::sys::kernel()).unwrap();
    let region =
        RegionOptions { range: guest.range().unwrap(), access: Access::READ | Access::WRITE, hold };
    container.add_region(&region, guest.clone()).unwrap();
    (guest, domain, container)
}

fn fault(container: &Container, page: u64) {
    let request = FaultRequest {
        who: Requester { stream: StreamId::new(1), pasid: None },
        iova: Iova::new(BASE + page * PAGE),
        access: Access::WRITE,
    };
    container.fault(&request).unwrap();
}

#[test]
fn pages_come_and_go() {
    for backing in [Backing::Anonymous, Backing::File] {
        let (guest, domain, container) = rig(backing, Residency::OnDemand);
        fault(&container, 3);
        let found = domain.translate(Iova::new(BASE + 3 * PAGE)).unwrap();
        assert_eq!(Some(found.pa), guest.behind(Iova::new(BASE + 3 * PAGE)));
        guest.memory().write(found.pa, b"device").unwrap();
        let taken = guest.reclaim(pages(0, PAGES), |range| container.invalidate(range));
        assert_eq!(taken.unwrap(), 1);
        assert!(domain.translate(Iova::new(BASE + 3 * PAGE)).is_none());
        let mut bytes = [1; 6];
        guest.memory().read(found.pa, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 6]);
        fault(&container, 3);
    }
}

#[test]
fn pages_that_devices_may_still_reach_stay_until_they_are_quiet() {
    let (guest, domain, container) = rig(Backing::Anonymous, Residency::OnDemand);
    fault(&container, 3);
    let at = guest.behind(Iova::new(BASE + 3 * PAGE)).unwrap();
    guest.memory().write(at, b"device").unwrap();
    domain.queue().broken.store(true, Ordering::Relaxed);
    let reclaim = || guest.reclaim(pages(0, PAGES), |range| container.invalidate(range));
    for _ in 0..2 {
        let failed = reclaim();
        assert!(matches!(failed, Err(ReclaimError::Notifier(_))), "{failed:?}");
        let mut bytes = [0; 6];
        guest.memory().read(at, &mut bytes).unwrap();
        assert_eq!(&bytes, b"device");
    }
    assert_eq!(container.usage().leaving_bytes, PAGE);
    domain.queue().broken.store(false, Ordering::Relaxed);
    assert_eq!(reclaim().unwrap(), 0);
    let mut bytes = [1; 6];
    guest.memory().read(at, &mut bytes).unwrap();
    assert_eq!((bytes, container.usage().leaving_bytes), ([0; 6], 0));
    fault(&container, 3);
}

/// After a notifier that unwinds, no thread waits for ever.
#[test]
fn pages_are_there_after_a_notifier_that_unwinds() {
    let (guest, _domain, container) = rig(Backing::Anonymous, Residency::OnDemand);
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        guest.reclaim(pages(0, PAGES), |_| panic!("as the test wants it"))
    }));
    assert!(unwound.is_err());
    fault(&container, 3);
    let taken = guest.reclaim(pages(0, PAGES), |range| container.invalidate(range));
    assert_eq!(taken.unwrap(), 1);
}

#[test]
fn pinned_pages_stay() {
    let part = [pages(8, 4)];
    let (guest, _domain, container) = rig(Backing::Anonymous, Residency::Selective(&part));
    let refused = guest.reclaim(pages(0, 9), |range| container.invalidate(range));
    assert!(matches!(refused, Err(ReclaimError::Pinned { .. })));
    container.remove_region(Iova::new(BASE)).unwrap();
    let taken = guest.reclaim(pages(0, 9), |range| container.invalidate(range));
    assert_eq!(taken.unwrap(), 0);
    let outside = guest.reclaim(pages(PAGES, 1), |_| Ok(0));
    assert!(matches!(outside, Err(ReclaimError::Range { .. })));
}

#[test]
fn threads_fault_while_one_takes_back() {
    let (guest, domain, container) = rig(Backing::Anonymous, Residency::OnDemand);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (container, done) = (&container, &done);
            scope.spawn(move || {
                let mut rng = fastrand(thread);
                // However late the thread is, it faults.
                loop {
                    fault(container, rng.next().unwrap_or(0) % PAGES);
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let mut rng = fastrand(7);
        for _ in 0..2000 {
            let first = rng.next().unwrap_or(0) % (PAGES - 4);
            let range = pages(first, 4);
            let during = |range| {
                let taken = container.invalidate(range);
                // Faults there wait for the owner now.
                for page in first..first + 4 {
                    assert!(domain.translate(Iova::new(BASE + page * PAGE)).is_none());
                }
                taken
            };
            guest.reclaim(range, during).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(container.usage().faults > 0);
}

/// The same memory with the system telling of it, or the reason why it does not.
fn told_rig(backing: Backing) -> Option<(Arc<GuestMemory>, Arc<Domain>, Container, UserFaults)> {
    let (guest, domain, container) = rig(backing, Residency::OnDemand);
    match UserFaults::new(guest.memory().clone()) {
        Ok(faults) => Some((guest, domain, container, faults)),
        Err(why) => {
            println!("SKIP: {why}");
            None
        }
    }
}

/// Follows until `thread` has ended; all that was told.
fn follow_until(
    thread: &std::thread::ScopedJoinHandle<'_, ()>,
    guest: &GuestMemory,
    faults: &UserFaults,
    container: &Container,
) -> Vec<Told> {
    let mut all = Vec::new();
    loop {
        let ended = thread.is_finished();
        let told = guest.follow(faults, 1, |range| container.invalidate(range));
        all.extend(told.unwrap());
        if ended {
            return all;
        }
    }
}

fn follow_one(guest: &GuestMemory, faults: &UserFaults, container: &Container) -> Told {
    loop {
        let told = guest.follow(faults, 1000, |range| container.invalidate(range));
        if let Some(told) = told.unwrap() {
            return told;
        }
    }
}

#[test]
fn what_any_thread_gives_back_is_taken_from_devices() {
    for backing in [Backing::Anonymous, Backing::File] {
        let Some((guest, domain, container, faults)) = told_rig(backing) else {
            return;
        };
        let at = guest.behind(Iova::new(BASE + 3 * PAGE)).unwrap();
        let page = PhysRange::from_len(at, PAGE).unwrap();
        let mapped = || domain.translate(Iova::new(BASE + 3 * PAGE)).is_some();
        std::thread::scope(|scope| {
            // The fault waits for the page, which the system says is missing.
            let faulting = scope.spawn(|| fault(&container, 3));
            let told = follow_until(&faulting, &guest, &faults, &container);
            assert_eq!(told, [Told::Missing { page: at }]);
            assert!(mapped());
            guest.memory().write(at, b"device").unwrap();
            // A thread that knows nothing of devices.
            let giving = scope.spawn(|| guest.memory().discard(page).unwrap());
            assert_eq!(follow_one(&guest, &faults, &container), Told::Removed { range: page });
            assert!(!mapped());
            giving.join().unwrap();
            let faulting = scope.spawn(|| fault(&container, 3));
            let told = follow_until(&faulting, &guest, &faults, &container);
            assert_eq!(told, [Told::Missing { page: at }]);
            assert!(mapped());
        });
        let mut bytes = [1; 6];
        guest.memory().read(at, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 6]);
    }
}

#[test]
fn a_page_that_is_about_to_go_is_not_handed_over() {
    let Some((guest, domain, container, faults)) = told_rig(Backing::Anonymous) else {
        return;
    };
    let at = guest.behind(Iova::new(BASE + 3 * PAGE)).unwrap();
    let range = PhysRange::from_len(at, PAGE).unwrap();
    std::thread::scope(|scope| {
        let faulting = scope.spawn(|| fault(&container, 3));
        follow_until(&faulting, &guest, &faults, &container);
        // Told, and the page is still there.
        let told = Told::Removed { range };
        guest.act(told, |range| container.invalidate(range)).unwrap();
        let request = FaultRequest {
            who: Requester { stream: StreamId::new(1), pasid: None },
            iova: Iova::new(BASE + 3 * PAGE),
            access: Access::WRITE,
        };
        let refused = container.fault(&request);
        assert!(refused.is_err(), "{refused:?}");
        assert!(domain.translate(request.iova).is_none());
        let giving = scope.spawn(|| guest.memory().discard(range).unwrap());
        follow_until(&giving, &guest, &faults, &container);
        let faulting = scope.spawn(|| fault(&container, 3));
        follow_until(&faulting, &guest, &faults, &container);
        assert!(domain.translate(request.iova).is_some());
    });
}

/// A page of a device that goes without notice: the thread that touches it next does not see another one
/// than the device.
#[test]
fn a_page_that_is_missing_is_no_device_s() {
    let Some((guest, domain, container, faults)) = told_rig(Backing::Anonymous) else {
        return;
    };
    let page = guest.behind(Iova::new(BASE + 3 * PAGE)).unwrap();
    std::thread::scope(|scope| {
        let faulting = scope.spawn(|| fault(&container, 3));
        follow_until(&faulting, &guest, &faults, &container);
        let told = Told::Missing { page };
        guest.act(told, |range| container.invalidate(range)).unwrap();
        assert!(domain.translate(Iova::new(BASE + 3 * PAGE)).is_none());
        // It is there, so that nothing is made.
        assert_eq!(faults.zero(page).unwrap(), MadeBy::Others);
    });
}

#[test]
fn memory_that_is_replaced_is_no_device_s_any_more() {
    let Some((guest, domain, container, faults)) = told_rig(Backing::Anonymous) else {
        return;
    };
    let at = guest.behind(Iova::new(BASE + 3 * PAGE)).unwrap();
    let range = PhysRange::from_len(at, PAGE).unwrap();
    let request = FaultRequest {
        who: Requester { stream: StreamId::new(1), pasid: None },
        iova: Iova::new(BASE + 3 * PAGE),
        access: Access::WRITE,
    };
    std::thread::scope(|scope| {
        let faulting = scope.spawn(|| fault(&container, 3));
        follow_until(&faulting, &guest, &faults, &container);
        let replacing = scope.spawn(|| crate::memory::replace(guest.memory(), range).unwrap());
        let told = follow_until(&replacing, &guest, &faults, &container);
        assert_eq!(told, [Told::Gone { range }]);
        assert!(domain.translate(request.iova).is_none());
        assert!(container.fault(&request).is_err());
    });
}

#[test]
fn threads_fault_while_others_give_back_and_one_follows() {
    let Some((guest, _domain, container, faults)) = told_rig(Backing::Anonymous) else {
        return;
    };
    std::thread::scope(|scope| {
        let (guest, container) = (&guest, &container);
        let work = scope.spawn(move || {
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let mut rng = fastrand(1);
                    for _ in 0..500 {
                        fault(container, rng.next().unwrap_or(0) % PAGES);
                    }
                });
                let mut rng = fastrand(7);
                for _ in 0..500 {
                    let first = rng.next().unwrap_or(0) % PAGES;
                    let at = guest.behind(Iova::new(BASE + first * PAGE)).unwrap();
                    guest.memory().discard(PhysRange::from_len(at, PAGE).unwrap()).unwrap();
                }
            });
        });
        let told = follow_until(&work, guest, &faults, container);
        let removed = told.iter().filter(|told| matches!(told, Told::Removed { .. }));
        assert_eq!(removed.count(), 500);
    });
    assert_eq!(container.usage().failed, 0);
}

/// Numbers that look random.
fn fastrand(seed: u64) -> impl Iterator<Item = u64> {
    let step = |number: &u64| Some(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99));
    std::iter::successors(Some(seed), step).map(|number| number >> 33)
}
