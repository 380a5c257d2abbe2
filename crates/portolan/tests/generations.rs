//! Every interleaving of CPUs that defer buffers into one queue and reclaim them.
//!
//! The table and the plan are the real ones. The hardware notes the addresses that it has been told
//! to forget; a buffer that comes back before its addresses are among that fails the test, and so
//! does an address that is given out again.
#![allow(missing_docs)]

#[path = "support/attached.rs"]
mod attached;
mod support;

use std::collections::BTreeMap;
use std::sync::Mutex;

use attached::{Attached, simulated, unowned};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64 as Noted, Ordering};
use portolan::addr::{InvalTag, Iova, IovaRange, PageSize, PhysAddr, PhysRange};
use portolan::dma::{Constraints, DmaSpace, LazyBounds, Policy, SpaceOptions};
use portolan::inval::{
    Capabilities, Command, InvalidationQueue, Preference, Quirks, Step, TablesLeft, WalkFlush,
};
use portolan::iommu::{BoundDomain, IommuError, PagedDomain, TagPool};
use portolan::platform::{Cpus, SlabTables};
use portolan::table::format::{VtdLevels, VtdSecondStage};
use portolan::table::{Access, PageTable};
use portolan_protocol::run::CheckedMemory;
use support::loom_cpus::{HastyCpus, LoomCpus, explore, on_cpu, runs};

#[derive(Default)]
struct State {
    /// Number of times that each address has been forgotten.
    forgotten: BTreeMap<u64, u64>,
    fail: u32,
}

/// Beside the state a word for each page, which has as the state does the number of times that it
/// was forgotten, and which nothing orders: a CPU that does not come after that invalidation may
/// read an older number.
#[derive(Clone)]
struct Hardware(std::sync::Arc<Mutex<State>>, std::sync::Arc<[Noted; 16]>);

impl InvalidationQueue for Hardware {
    type Error = IommuError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        let mut mine = Vec::new();
        for step in steps {
            match step {
                Step::Invalidate(Command::Page { iova, .. }) => mine.push(iova.get()),
                Step::Invalidate(_) => panic!("only pages were asked for"),
                _ => {}
            }
        }
        // A point at which CPUs interleave: the wait for the hardware.
        loom::thread::yield_now();
        let mut state = self.0.lock().unwrap();
        if state.fail > 0 {
            state.fail -= 1;
            return Err(IommuError::Stopped);
        }
        for iova in mine {
            *state.forgotten.entry(iova).or_default() += 1;
            self.noted(Iova::new(iova)).fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Hardware {
    fn new() -> Self {
        Self(std::sync::Arc::default(), std::sync::Arc::new([(); 16].map(|()| Noted::new(0))))
    }

    fn noted(&self, iova: Iova) -> &Noted {
        &self.1[(iova.get() >> 12 & 0xf) as usize]
    }

    fn forgotten(&self, iova: Iova) -> u64 {
        let state = self.0.lock().unwrap();
        state.forgotten.get(&iova.get()).copied().unwrap_or(0)
    }
}

impl TagPool for Hardware {
    fn release(&self, _context: InvalTag) -> Result<(), IommuError> {
        Ok(())
    }
}

type Space<C = LoomCpus> = DmaSpace<C>;

/// One queue for all CPUs, as where they move between CPUs.
fn space(hardware: &Hardware, bounds: LazyBounds) -> Arc<Space> {
    space_on(LoomCpus::new(1), hardware, bounds)
}

fn space_on<C: Cpus + Clone>(cpus: C, hardware: &Hardware, bounds: LazyBounds) -> Arc<Space<C>> {
    let memory = SlabTables::new(PhysAddr::new(0x8000_0000), PageSize::SIZE_4K, 16);
    let memory = CheckedMemory(memory, runs::current());
    let format = VtdSecondStage::new(VtdLevels::Three, 39);
    let table = PageTable::new(format, std::sync::Arc::new(memory)).unwrap();
    let caps = Capabilities::new(PageSize::SIZE_4K);
    let quirks = Quirks {
        walk_flush: WalkFlush::ByAddress,
        preference: Preference::ByPage,
        context_above: u64::MAX,
        repeat: 1,
    };
    let domain = PagedDomain::new(table, InvalTag::new(1), caps, quirks, hardware.clone());
    let window = IovaRange::new(Iova::new(0x10_0000), Iova::new(0x10_ffff)).unwrap();
    let mut options = SpaceOptions::default();
    options.window = window;
    options.policy = Policy::Deferred;
    options.bounds = bounds;
    let domain = std::sync::Arc::new(domain);
    let unit = std::sync::Arc::new(Attached);
    let bound = BoundDomain::new(unit, domain, simulated());
    let space = DmaSpace::with_cpus(bound, cpus, &options, simulated());
    Arc::new(space.unwrap())
}

fn map_and_unmap(space: &Space, hardware: &Hardware, page: u64) {
    let memory = PhysRange::from_len(PhysAddr::new(page << 12), 0x1000).unwrap();
    let constraints = Constraints::trusted();
    let (range, iova) =
        space.map_range(unowned(memory), Access::READ, &constraints).expect("there is room");
    let before = hardware.forgotten(iova);
    space.unmap_range(range).expect("the hardware completes");
    assert!(hardware.forgotten(iova) > before, "{iova} is not quiet");
    let noted = hardware.noted(iova).load(Ordering::Relaxed);
    assert!(noted > before, "{iova} is quiet, and its CPU need not see it");
}

#[test]
fn no_caller_returns_before_its_own_generation_is_quiet() {
    explore(2, || {
        let hardware = Hardware::new();
        let space = space(&hardware, LazyBounds::default());
        let other = {
            let (space, hardware) = (space.clone(), hardware.clone());
            on_cpu(0, move || map_and_unmap(&space, &hardware, 1))
        };
        map_and_unmap(&space, &hardware, 2);
        other.join().unwrap();
        assert_eq!(space.waiting(), (0, 0));
    });
}

#[test]
fn a_queue_that_is_full_is_flushed_by_one_and_used_by_the_other() {
    let bounds = LazyBounds { entries: 1, ..LazyBounds::default() };
    explore(2, move || {
        let hardware = Hardware::new();
        let space = space(&hardware, bounds);
        let other = {
            let (space, hardware) = (space.clone(), hardware.clone());
            on_cpu(0, move || map_and_unmap(&space, &hardware, 1))
        };
        map_and_unmap(&space, &hardware, 2);
        other.join().unwrap();
        assert_eq!(space.waiting(), (0, 0));
    });
}

#[test]
fn what_fails_for_one_is_kept_for_all() {
    explore(2, || {
        let hardware = Hardware::new();
        let space = space(&hardware, LazyBounds::default());
        let constraints = Constraints::trusted();
        let map = |page: u64| {
            let memory = PhysRange::from_len(PhysAddr::new(page << 12), 0x1000).unwrap();
            let mapped = space.map_range(unowned(memory), Access::READ, &constraints);
            mapped.unwrap()
        };
        let ((one, at_one), (two, at_two)) = (map(1), map(2));
        hardware.0.lock().unwrap().fail = 1;
        let other = {
            let space = space.clone();
            on_cpu(0, move || space.unmap_range(one).is_ok())
        };
        let well_two = space.unmap_range(two).is_ok();
        let well_one = other.join().unwrap();
        assert!(!(well_one && well_two));
        let quiet = |at: Iova| hardware.forgotten(at) != 0;
        assert!(!well_one || quiet(at_one));
        assert!(!well_two || quiet(at_two));
        space.recover().unwrap();
        assert!(quiet(at_one) && quiet(at_two));
        assert_eq!(space.waiting(), (0, 0));
    });
}

/// A debt for which a caller does not wait stays: the next flush pays for it.
#[test]
fn a_caller_whose_time_runs_out_leaves_its_debt_to_the_next() {
    explore(2, || {
        let hardware = Hardware::new();
        let space = space_on(HastyCpus(LoomCpus::new(1)), &hardware, LazyBounds::default());
        let map = |page: u64| {
            let memory = PhysRange::from_len(PhysAddr::new(page << 12), 0x1000).unwrap();
            let mapped = space.map_range(unowned(memory), Access::READ, &Constraints::trusted());
            mapped.unwrap()
        };
        let ((one, at_one), (two, at_two)) = (map(1), map(2));
        let other = {
            let space = space.clone();
            on_cpu(0, move || space.unmap_range(one).is_ok())
        };
        let well_two = space.unmap_range(two).is_ok();
        let quiet = |at: Iova| hardware.noted(at).load(Ordering::Relaxed) != 0;
        assert!(!well_two || quiet(at_two));
        let well_one = other.join().unwrap();
        assert!(well_one || well_two, "the hardware was waited for by none");
        assert!(!well_one || quiet(at_one));
        space.flush().unwrap();
        assert!(quiet(at_one) && quiet(at_two));
        assert_eq!(space.waiting(), (0, 0));
    });
}
