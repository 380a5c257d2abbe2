//! Every interleaving of a fault, of owners that take memory back, and of a region that goes.
#![allow(missing_docs)]

#[path = "support/promised.rs"]
mod promised;
mod support;

use promised::{promised, simulated};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use loom::sync::Arc;
use portolan::addr::{InvalTag, Iova, IovaRange, PageSize, PhysAddr, StreamId};
use portolan::demand::premap::Requester;
use portolan::demand::{
    FaultError, FaultRequest, Frames, InvalidateError, Ioas, IoasOptions, Pager, PopulateError,
    RegionOptions, Residency, Unreached,
};
use portolan::inval::{Capabilities, Command, InvalidationQueue, Quirks, Step, TablesLeft};
use portolan::iommu::{Awaited, Domain as _, IommuError, PagedDomain, TagPool};
use portolan::platform::{Nanos, SlabTables};
use portolan::table::format::{VtdLevels, VtdSecondStage};
use portolan::table::{Access, PageTable};
use portolan_protocol::run::CheckedMemory;
use support::loom_cpus::{LoomCpus, TellingCpus, explore, on_cpu, runs};

const PAGE: u64 = 4096;

/// A device: the frame that its cache holds for each page, and the memory that it must not reach.
#[derive(Default)]
struct Device {
    cached: Mutex<BTreeMap<u64, u64>>,
    freed: Mutex<Vec<u64>>,
    /// Syncs that fail from now on.
    failing: AtomicU64,
}

impl Device {
    fn forget(&self, step: Step) {
        let mut cached = self.cached.lock().unwrap();
        let range = match step {
            Step::Invalidate(Command::Page { iova, size, .. }) => IovaRange::page(iova, size),
            Step::Invalidate(Command::Range { run, granule, .. }) => run.range(granule),
            Step::Invalidate(_) => return cached.clear(),
            _ => return,
        };
        cached.retain(|page, _| !range.contains(Iova::new(page * PAGE)));
    }
}

/// Waits for the other CPUs at some point before it invalidates, or fails.
struct Queue(std::sync::Arc<Device>);

const TIMED_OUT: IommuError =
    IommuError::TimedOut { awaited: Awaited::Completion, waited: Nanos::new(1) };

impl InvalidationQueue for Queue {
    type Error = IommuError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        let steps: Vec<_> = steps.collect();
        if !steps.iter().any(|step| matches!(step, Step::Invalidate(_))) {
            return Ok(());
        }
        loom::thread::yield_now();
        let failing = self.0.failing.load(Ordering::Relaxed);
        if failing != 0 {
            self.0.failing.store(failing - 1, Ordering::Relaxed);
            return Err(TIMED_OUT);
        }
        steps.into_iter().for_each(|step| self.0.forget(step));
        Ok(())
    }
}

impl TagPool for Queue {
    fn release(&self, _context: InvalTag) -> Result<(), IommuError> {
        Ok(())
    }
}

/// Memory: the number of times that each page has moved. Its frame is one of the page's own.
#[derive(Default)]
struct Owner(Mutex<BTreeMap<u64, u64>>);

/// Frames of a page.
const FRAMES: u64 = 16;

impl Pager for Owner {
    fn populate(
        &self,
        range: IovaRange,
        _access: Access,
        frames: &mut Frames,
    ) -> Result<(), PopulateError> {
        let page = range.start().get() / PAGE;
        let moved = self.0.lock().unwrap().get(&page).copied().unwrap_or(0);
        let frame = page * FRAMES + moved;
        loom::thread::yield_now();
        let pushed = frames.push(promised(PhysAddr::new((1 << 30) + frame * PAGE), PAGE));
        assert!(pushed.is_ok());
        Ok(())
    }

    fn pin(&self, _: IovaRange, _: Access, _: &mut Frames) -> Result<(), PopulateError> {
        unreachable!()
    }

    fn unpin(&self, _: &Unreached) {
        unreachable!()
    }
}

type Tables = std::sync::Arc<CheckedMemory<SlabTables<AtomicU64>>>;
type Domain = PagedDomain<VtdSecondStage, Tables, Queue>;

struct Machine {
    device: std::sync::Arc<Device>,
    owner: std::sync::Arc<Owner>,
    domain: std::sync::Arc<Domain>,
    container: Ioas<Domain, std::sync::Arc<Owner>, TellingCpus>,
}

fn page(number: u64) -> IovaRange {
    IovaRange::page(Iova::new(number * PAGE), PageSize::SIZE_4K)
}

/// The first page of the second slot.
const FAR: u64 = 512;

impl Machine {
    fn new() -> Arc<Self> {
        Self::with_pages(1)
    }

    fn with_pages(pages: u64) -> Arc<Self> {
        let device = std::sync::Arc::new(Device::default());
        let format = VtdSecondStage::new(VtdLevels::Three, 39);
        let tables = SlabTables::new(PhysAddr::new(1 << 36), PageSize::SIZE_4K, 8);
        let tables = CheckedMemory(tables, runs::current());
        let table = PageTable::new(format, Tables::new(tables)).unwrap();
        let caps = Capabilities::new(PageSize::SIZE_4K);
        let (context, quirks) = (InvalTag::new(1), Quirks::default());
        let queue = Queue(device.clone());
        let domain = PagedDomain::new(table, context, caps, quirks, queue);
        let domain = std::sync::Arc::new(domain);
        let options = IoasOptions::default();
        let container =
            Ioas::new(domain.clone(), TellingCpus(LoomCpus::new(3)), options, simulated());
        let container = container.unwrap();
        let owner = std::sync::Arc::new(Owner::default());
        let region = RegionOptions {
            range: page(0).hull(page(pages - 1)),
            access: Access::READ,
            hold: Residency::OnDemand,
        };
        container.add_region(&region, owner.clone()).unwrap();
        Arc::new(Self { device, owner, domain, container })
    }

    /// The device accesses its first page.
    fn access(&self) -> Option<u64> {
        self.access_at(0)
    }

    /// The device accesses a page, by its cached translation if it has one; returns the frame that
    /// it reaches.
    fn access_at(&self, page: u64) -> Option<u64> {
        let mut cached = self.device.cached.lock().unwrap();
        if let Entry::Vacant(missing) = cached.entry(page) {
            let found = self.domain.translate(Iova::new(page * PAGE))?;
            missing.insert((found.pa.get() - (1 << 30)) / PAGE);
        }
        let frame = *cached.get(&page)?;
        assert!(!self.device.freed.lock().unwrap().contains(&frame));
        Some(frame)
    }

    fn fault(&self) -> Result<(), FaultError> {
        self.fault_at(0)
    }

    fn fault_at(&self, page: u64) -> Result<(), FaultError> {
        let request = FaultRequest {
            who: Requester { stream: StreamId::new(1), pasid: None },
            iova: Iova::new(page * PAGE),
            access: Access::READ,
        };
        self.container.fault(&request).map(drop)
    }

    /// The owner moves the first page to another frame, and frees the old one.
    fn migrate(&self) {
        assert_eq!(self.migrate_at(0), 0);
    }

    /// The owner moves a page to another frame, and frees the old one once the page was taken back;
    /// returns the number of failures before.
    fn migrate_at(&self, number: u64) -> u64 {
        let old = {
            let mut moved = self.owner.0.lock().unwrap();
            let moved = moved.entry(number).or_default();
            *moved += 1;
            number * FRAMES + *moved - 1
        };
        let mut failed = 0;
        while let Err(error) = self.container.invalidate(page(number)) {
            assert_eq!(error, InvalidateError::Iommu(TIMED_OUT));
            failed += 1;
        }
        self.device.freed.lock().unwrap().push(old);
        self.access_at(number);
        failed
    }
}

#[test]
fn memory_that_moves_during_a_fault_is_not_mapped() {
    for mapped_before in [false, true] {
        explore(2, move || {
            let machine = Machine::new();
            if mapped_before {
                machine.fault().unwrap();
                machine.access();
            }
            let other = {
                let machine = machine.clone();
                on_cpu(1, move || machine.migrate())
            };
            machine.fault().unwrap();
            machine.access();
            other.join().unwrap();
            machine.fault().unwrap();
            assert_eq!(machine.access(), Some(1));
        });
    }
}

#[test]
fn a_caller_that_takes_memory_back_second_waits_for_the_first() {
    explore(2, || {
        let machine = Machine::new();
        machine.fault().unwrap();
        machine.access();
        let take = |machine: &Machine| {
            machine.container.invalidate(page(0)).unwrap();
            assert_eq!(machine.access(), None);
        };
        let other = {
            let machine = machine.clone();
            on_cpu(1, move || take(&machine))
        };
        take(&machine);
        other.join().unwrap();
    });
}

#[test]
fn a_region_that_is_removed_during_a_fault_stays_unmapped() {
    explore(2, || {
        let machine = Machine::new();
        let other = {
            let machine = machine.clone();
            on_cpu(1, move || {
                machine.container.remove_region(Iova::new(0)).unwrap();
                assert_eq!(machine.access(), None);
            })
        };
        match machine.fault() {
            Ok(()) => drop(machine.access()),
            Err(error) => assert!(matches!(error, FaultError::NoRegion { .. }), "{error}"),
        }
        other.join().unwrap();
        assert_eq!(machine.access(), None);
        assert_eq!(machine.container.usage().mapped_bytes, 0);
    });
}

#[test]
fn two_faults_map_once() {
    explore(2, || {
        let machine = Machine::new();
        let other = {
            let machine = machine.clone();
            on_cpu(1, move || machine.fault().unwrap())
        };
        machine.fault().unwrap();
        assert_eq!(machine.access(), Some(0));
        other.join().unwrap();
        assert_eq!(machine.container.usage().mapped_bytes, PAGE);
    });
}

/// Two owners take memory back through hardware that fails at first: neither has it back before a
/// sync of its own debt has completed, paid by either.
#[test]
fn a_sync_that_fails_beside_another_gives_no_memory_back() {
    for failing in 1..3 {
        explore(2, move || {
            let machine = Machine::with_pages(FAR + 1);
            for page in [0, FAR] {
                machine.fault_at(page).unwrap();
                machine.access_at(page);
            }
            machine.device.failing.store(failing, Ordering::Relaxed);
            let other = {
                let machine = machine.clone();
                on_cpu(1, move || machine.migrate_at(FAR))
            };
            let failed = machine.migrate_at(0);
            let failed = failed + other.join().unwrap();
            assert!(failed <= failing);
            let usage = machine.container.usage();
            assert_eq!((usage.mapped_bytes, usage.leaving_bytes), (0, 0));
        });
    }
}

/// One owner tries a failed sync again while another CPU recovers, and a device faults.
#[test]
fn recovering_beside_an_owner_that_tries_again_gives_back_what_is_quiet() {
    explore(2, || {
        let machine = Machine::new();
        machine.fault().unwrap();
        machine.access();
        machine.device.failing.store(2, Ordering::Relaxed);
        let other = {
            let machine = machine.clone();
            on_cpu(1, move || {
                let _ = machine.container.recover();
                machine.access();
                match machine.fault() {
                    Ok(()) | Err(FaultError::NotQuiet { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
                machine.access();
            })
        };
        machine.migrate_at(0);
        other.join().unwrap();
        machine.fault().unwrap();
        assert_eq!(machine.access(), Some(1));
        assert_eq!(machine.container.usage().leaving_bytes, 0);
    });
}
