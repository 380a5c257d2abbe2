//! Real memory of this process behind a container, taken back by one thread while others fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use portolan::addr::{CpuId, InvalTag, Iova, IovaRange, PageSize, PhysAddr, StreamId};
use portolan::demand::premap::Requester;
use portolan::demand::{Ioas, IoasOptions, RegionOptions, Request, Residency, Window};
use portolan::inval::{
    Caching, Capabilities, InvalidationQueue, LeafOnly, PageForm, Quirks, RangeForm, Step, Walker,
    WriteBuffer,
};
use portolan::iommu::{Domain as _, IommuError, PagedDomain, TagPool};
use portolan::platform::{Clock, Nanos, SlabTables, SpinCpus};
use portolan::table::format::{DirtyTracking, VtdLevels, VtdSecondStage};
use portolan::table::{Access, PageTable};

use super::{GuestMemory, ReclaimError};
use crate::memory::{Backing, Base, HostMemory};

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

    fn execute(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), IommuError> {
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
    let format = VtdSecondStage {
        levels: VtdLevels::Four,
        output_lg2: 46,
        dirty: DirtyTracking::Off,
    };
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
    let options = IoasOptions {
        window: Window::Page,
        ..IoasOptions::default()
    };
    let container = Ioas::new(domain.clone(), cpus, options);
    let region = RegionOptions {
        range: guest.range().unwrap(),
        access: Access::READ | Access::WRITE,
        hold,
    };
    container.add_region(&region, guest.clone()).unwrap();
    (guest, domain, container)
}

fn fault(container: &Container, page: u64) {
    let request = Request {
        who: Requester {
            stream: StreamId::new(1),
            pasid: None,
        },
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
        assert!(
            matches!(failed, Err(ReclaimError::Notifier(_))),
            "{failed:?}"
        );
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

/// A notifier that unwinds leaves nobody waiting for ever.
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

/// Numbers that look random.
fn fastrand(seed: u64) -> impl Iterator<Item = u64> {
    let step = |number: &u64| {
        Some(
            number
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(99),
        )
    };
    std::iter::successors(Some(seed), step).map(|number| number >> 33)
}
