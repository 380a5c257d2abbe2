//! Interrupt handlers that call the library between any two steps of the interrupted code.
//!
//! A handler makes the calls that its context allows: it unmaps, makes maps that need no wait, asks for buffers, and
//! reads faults and errors of the unit. No lock of the interrupted code may be in its way, and it may not wait.
#![allow(missing_docs)]

#[path = "../../portolan/tests/support/promised.rs"]
mod promised;

use promised::promised;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use portolan::addr::{CpuId, InvalTag, Iova, IovaRange, PageSize, PhysAddr, PhysRange, StreamId};
use portolan::dma::{
    Constraints, Deferred, Device, DmaSpace, LazyBounds, Mapping, Policy, Quarantine, SpaceOptions,
    ToDevice, Unowned,
};
use portolan::inval::{
    CombineOptions, Combined, Gather, InvalidationQueue, Quirks, Ranges, Step, TablesLeft,
};
use portolan::iommu::{Attach, BoundDomain, Domain, IommuError, PagedDomain, TagPool};
use portolan::platform::{Clock, Cpus, Nanos, SlabTables, TrustedBase, UnitParts};
use portolan::table::format::{VtdLevels, VtdSecondStage};
use portolan::table::{Access, PageTable};
use portolan_chips::fixture::Attached;
use portolan_chips::interrupts::{
    InterruptedCpu, InterruptedLock, InterruptedWord, Masking, Scenario, Stepping, drop_left, sweep,
};
use portolan_chips::memory::{ModelMemory, Visibility};
use portolan_chips::smmuv2::{SmmuV2Registers, SmmuV2Setup};
use portolan_chips::smmuv3::{SmmuRegisters, SmmuSetup};
use portolan_chips::vtd::{VtdRegisters, VtdSetup};
use portolan_hw::{smmuv2, smmuv3, vtd};
use portolan_sim::clock::Tick;
use portolan_sim::iommu::Setup;

const STREAM: StreamId = StreamId::new(0x20);
const PAGE: u64 = 0x1000;
const MEMORY: PhysAddr = PhysAddr::new(0x8000_0000);
const LIMIT: Nanos = Nanos::from_millis(5);
const BOTH: Access = Access::READ.union(Access::WRITE);

/// The CPU beside a unit, which goes on while the CPU waits.
struct Beside<R>(Arc<R>);

impl<R: Tick + 'static> Clock for Beside<R> {
    fn now(&self) -> Nanos {
        InterruptedCpu.now()
    }

    fn relax(&self) {
        self.0.tick();
        InterruptedCpu.relax();
    }
}

impl<R: Tick + 'static> Cpus for Beside<R> {
    type Word = InterruptedWord;
    type Lock<T: Send> = InterruptedLock<T>;

    fn count(&self) -> usize {
        1
    }

    fn current(&self) -> CpuId {
        CpuId::new(0)
    }

    fn flush_wanted(&self) {}

    fn drop_later(&self, left: portolan::platform::LeftBehind) {
        drop(left);
    }
}

fn page(at: u64) -> IovaRange {
    IovaRange::page(Iova::new(at * PAGE), PageSize::SIZE_4K)
}

fn map(domain: &impl Domain, at: u64) -> IovaRange {
    let mut owed = Gather::new();
    let (iova, pa) = (page(at).start(), PhysAddr::new(0x9000_0000 + at * PAGE));
    let range = domain.map(iova, promised(pa, PAGE), BOTH, &mut owed).expect("mapped");
    domain.sync(&mut owed).expect("synced");
    range
}

/// A unit with two domains.
type Made<U, D> = (Arc<U>, [Arc<D>; 2]);

/// The unit is worked with, and its handler reads faults and unmaps in another domain.
fn unit<U, D>(masking: Masking, make: impl Fn() -> Made<U, D>, service: fn(&U)) -> u64
where
    U: Attach<D> + 'static,
    D: Domain + 'static,
{
    sweep(masking, || {
        let (unit, [one, other]) = make();
        let left = map(&*other, 7);
        let debt = Arc::new(Mutex::new(Gather::new()));
        let (handlers, domain, owed) = (unit.clone(), other.clone(), debt.clone());
        Scenario {
            body: Box::new(move || {
                unit.attach(STREAM, &one).expect("attached");
                let range = map(&*one, 3);
                let mut owed = Gather::new();
                one.unmap(range, &mut owed).expect("unmapped");
                one.sync(&mut owed).expect("synced");
                service(&unit);
                while unit.next_fault().expect("sound hardware").is_some() {}
                unit.block(STREAM).expect("blocked");
            }),
            handler: Box::new(move || {
                service(&handlers);
                handlers.next_fault().expect("sound hardware");
                let mut owed = owed.lock().expect("nobody panicked");
                domain.unmap(left, &mut owed).expect("unmapped");
            }),
            after: Box::new(move || {
                let mut owed = debt.lock().expect("nobody panicked");
                other.sync(&mut owed).expect("synced");
            }),
        }
    })
}

/// Parts of a simulated machine.
fn simulated() -> TrustedBase {
    // SAFETY: its devices reach no memory of the process.
    unsafe { TrustedBase::new() }
}

fn memory() -> Arc<ModelMemory> {
    Arc::new(ModelMemory::new(MEMORY, 256, Visibility::AtOnce))
}

type SmmuCpu = Arc<Beside<SmmuRegisters>>;
type SmmuParts = UnitParts<Stepping<Arc<SmmuRegisters>>, Arc<ModelMemory>, SmmuCpu>;
type SmmuMade = smmuv3::Smmu<SmmuParts>;
type SmmuDomain = smmuv3::FirstStage<12, SmmuParts>;

fn smmu() -> Made<SmmuMade, SmmuDomain> {
    let memory = memory();
    let registers = Arc::new(SmmuRegisters::new(SmmuSetup::default(), memory.clone()));
    let mut config = smmuv3::Config::default();
    config.stream_lg2 = 8;
    config.limit = LIMIT;
    let cpu = Arc::new(Beside(registers.clone()));
    let unit = SmmuMade::enable(Stepping(registers), memory, UnitParts::new(cpu), config)
        .expect("enabled");
    let options = smmuv3::SmmuDomainOptions::default();
    let domain = || Arc::new(unit.first_stage(&options).expect("a domain"));
    let domains = [domain(), domain()];
    (Arc::new(unit), domains)
}

fn service_smmu(unit: &SmmuMade) {
    unit.service_errors().expect("sound hardware");
}

#[test]
fn smmuv3_serves_a_handler_at_any_step() {
    let steps = unit(Masking::Present, smmu, service_smmu);
    assert!(steps > 40, "{steps} steps");
}

#[test]
#[should_panic(expected = "held by the code that was interrupted")]
fn smmuv3_with_locks_that_let_interrupts_in_is_noticed() {
    unit(Masking::Absent, smmu, service_smmu);
}

type VtdCpu = Arc<Beside<VtdRegisters>>;
type VtdParts = UnitParts<Stepping<Arc<VtdRegisters>>, Arc<ModelMemory>, VtdCpu>;
type VtdMade = vtd::Vtd<VtdParts>;
type VtdDomain = vtd::SecondDomain<VtdParts>;

fn intel() -> Made<VtdMade, VtdDomain> {
    let memory = memory();
    let registers = Arc::new(VtdRegisters::new(VtdSetup::default(), memory.clone()));
    let mut config = vtd::Config::default();
    config.limit = LIMIT;
    let cpu = Arc::new(Beside(registers.clone()));
    let unit =
        VtdMade::enable(Stepping(registers), memory, UnitParts::new(cpu), config).expect("enabled");
    let domain = || Arc::new(unit.second_stage().expect("a domain"));
    let domains = [domain(), domain()];
    (Arc::new(unit), domains)
}

#[test]
fn vtd_serves_a_handler_at_any_step() {
    let steps = unit(Masking::Present, intel, |_| {});
    assert!(steps > 40, "{steps} steps");
}

#[test]
#[should_panic(expected = "held by the code that was interrupted")]
fn vtd_with_locks_that_let_interrupts_in_is_noticed() {
    unit(Masking::Absent, intel, |_| {});
}

type Arm2Cpu = Arc<Beside<SmmuV2Registers>>;
type Arm2Parts = UnitParts<Stepping<Arc<SmmuV2Registers>>, Arc<ModelMemory>, Arm2Cpu>;
type Arm2Made = smmuv2::SmmuV2<Arm2Parts>;
type Arm2Domain = smmuv2::FirstStage<12, Arm2Parts>;

fn arm2() -> Made<Arm2Made, Arm2Domain> {
    let memory = memory();
    let registers = Arc::new(SmmuV2Registers::new(SmmuV2Setup::default(), memory.clone()));
    let mut config = smmuv2::Config::default();
    config.limit = LIMIT;
    let cpu = Arc::new(Beside(registers.clone()));
    let unit = Arm2Made::enable(Stepping(registers), memory, UnitParts::new(cpu), config)
        .expect("enabled");
    let domain =
        || Arc::new(unit.first_stage(&smmuv2::SmmuV2DomainOptions::default()).expect("a domain"));
    let domains = [domain(), domain()];
    (Arc::new(unit), domains)
}

#[test]
fn smmuv2_serves_a_handler_at_any_step() {
    let steps = unit(Masking::Present, arm2, |_| {});
    assert!(steps > 40, "{steps} steps");
}

/// A queue whose hardware takes a few looks.
#[derive(Clone, Copy)]
struct Slow;

impl InvalidationQueue for Slow {
    type Error = IommuError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        for step in steps {
            InterruptedCpu.now();
            if step == Step::Sync {
                InterruptedCpu.relax();
            }
        }
        Ok(())
    }
}

impl TagPool for Slow {
    fn release(&self, _context: InvalTag) -> Result<(), IommuError> {
        Ok(())
    }
}

fn device(policy: Policy) -> Device<InterruptedCpu> {
    let format = VtdSecondStage::new(VtdLevels::Four, 46);
    let memory = SlabTables::new(MEMORY, PageSize::SIZE_4K, 64);
    let table = PageTable::new(format, memory).expect("memory for a root");
    let caps = Setup::able(PageSize::SIZE_4K);
    let queue = Combined::new(InterruptedCpu, Slow, Ranges::of(&caps), CombineOptions::default());
    let domain = PagedDomain::new(table, InvalTag::new(1), caps, Quirks::default(), queue);
    let mut options = SpaceOptions::default();
    options.policy = policy;
    // Each unmap reaches a bound.
    options.bounds = LazyBounds { entries: 1, ..LazyBounds::default() };
    let bound = BoundDomain::new(Arc::new(Attached), Arc::new(domain), simulated());
    let space = DmaSpace::with_cpus(bound, InterruptedCpu, &options, simulated());
    let space = space.expect("a space");
    let limits = Constraints::trusted();
    Device::translated(Arc::new(space), STREAM, limits).expect("a device")
}

fn buffer(number: u64) -> Unowned {
    let memory = PhysRange::from_len(PhysAddr::new(number * 2 * PAGE), PAGE).expect("a range");
    // SAFETY: the model has no memory: no code reads or writes there.
    unsafe { Unowned::new(memory) }
}

/// A driver maps, unmaps and flushes; its handler retires, asks and maps.
fn driver(masking: Masking, policy: Policy) -> u64 {
    sweep(masking, || {
        let device = Arc::new(device(policy));
        let mapped = |number| {
            let mapping = device.map(buffer(number), ToDevice);
            mapping.map_err(|refused| refused.error).expect("mapped")
        };
        let (first, second) = (mapped(1), mapped(2));
        type Back = Arc<Mutex<Vec<Deferred<InterruptedCpu, Unowned>>>>;
        let back = Back::default();
        let (bodys, handlers) = (device.clone(), device.clone());
        let (put, late) = (back.clone(), back.clone());
        Scenario {
            body: Box::new(move || {
                first.unmap().map_err(|kept| kept.error).expect("unmapped");
                let third = bodys.map(buffer(3), ToDevice);
                let third = third.map_err(|refused| refused.error).expect("mapped");
                let deferred = third.defer().map_err(|kept| kept.error).expect("deferred");
                bodys.space().expect("translated").flush().expect("flushed");
                late.lock().expect("nobody panicked").push(deferred);
            }),
            handler: Box::new(move || {
                let deferred = second.defer().map_err(|kept| kept.error).expect("deferred");
                if let Err(deferred) = deferred.try_reclaim() {
                    put.lock().expect("nobody panicked").push(deferred);
                }
                let space = handlers.space().expect("translated");
                let _ = (space.is_flush_due(), space.waiting(), space.failure());
                if let Ok(fourth) = handlers.try_map(buffer(4), ToDevice) {
                    let deferred = fourth.defer().map_err(|kept| kept.error).expect("deferred");
                    put.lock().expect("nobody panicked").push(deferred);
                }
            }),
            after: Box::new(move || {
                for deferred in back.lock().expect("nobody panicked").drain(..) {
                    deferred.reclaim().map_err(|kept| kept.error).expect("quiet");
                }
                let space = device.space().expect("translated");
                space.flush().expect("flushed");
                assert_eq!((space.waiting(), space.failure()), ((0, 0), None));
                assert_eq!(space.quarantine(), Quarantine::default());
            }),
        }
    })
}

#[test]
fn a_handler_unmaps_and_maps_at_any_step_of_a_driver() {
    for policy in [Policy::Strict, Policy::Deferred, Policy::Lazy] {
        let steps = driver(Masking::Present, policy);
        assert!(steps > 40, "{policy:?}: {steps} steps");
    }
}

/// Work of a handler with the last mappings of a device.
type Last = fn(Deferred<InterruptedCpu, Unowned>, Mapping<InterruptedCpu, Unowned, ToDevice>);

/// A driver's device goes, with debts that are not paid, and its handler is the last to have something of it: its
/// space goes with a task, at any step at which the handler strikes.
fn gone(last: Last) {
    let handed_on = Arc::new(AtomicUsize::new(0));
    sweep(Masking::Present, || {
        let device = device(Policy::Deferred);
        let space = device.space().expect("translated").clone();
        let mapped = |number| {
            let mapping = device.map(buffer(number), ToDevice);
            mapping.map_err(|refused| refused.error).expect("mapped")
        };
        let deferred = mapped(1).defer().map_err(|kept| kept.error).expect("deferred");
        space.flush().expect("flushed");
        let mapping = mapped(2);
        // Its debt is paid when the space goes.
        drop(mapped(3).defer().map_err(|kept| kept.error).expect("deferred"));
        let alive = Arc::downgrade(&space);
        drop(space);
        let still = alive.clone();
        let left = Arc::new(Mutex::new(Some((deferred, mapping))));
        let (handlers, count) = (left.clone(), handed_on.clone());
        let take = |left: &Mutex<Option<_>>| left.lock().expect("nobody panicked").take();
        Scenario {
            body: Box::new(move || {
                drop(device);
                for _ in 0..4 {
                    InterruptedCpu.now();
                }
            }),
            handler: Box::new(move || {
                let (deferred, mapping) = take(&handlers).expect("it strikes once");
                last(deferred, mapping);
                // Also if it was not the last.
                assert_eq!(still.strong_count(), 1);
            }),
            after: Box::new(move || {
                count.fetch_add(drop_left(), Ordering::Relaxed);
                drop(take(&left));
                drop_left();
                assert_eq!(alive.strong_count(), 0);
            }),
        }
    });
    let handed_on = handed_on.load(Ordering::Relaxed);
    assert!(handed_on >= 4, "handed on {handed_on} times");
}

#[test]
fn a_handler_that_is_the_last_to_have_a_buffer_of_a_device_waits_for_nothing() {
    gone(|deferred, mapping| {
        assert!(deferred.try_reclaim().is_ok());
        drop(mapping);
    });
    gone(|deferred, mapping| {
        drop(mapping);
        drop(deferred);
    });
    gone(|deferred, mapping| {
        let second = mapping.defer().map_err(|kept| kept.error).expect("deferred");
        drop(second.try_reclaim());
        assert!(deferred.try_reclaim().is_ok());
    });
}

#[test]
#[should_panic(expected = "held by the code that was interrupted")]
fn dma_with_locks_that_let_interrupts_in_is_noticed() {
    driver(Masking::Absent, Policy::Deferred);
}
