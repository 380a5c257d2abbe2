//! Every interleaving of a fault, of owners that take memory back, and of a region that goes.
#![allow(missing_docs)]

mod support;

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use loom::sync::Arc;
use portolan::addr::{ContextId, Iova, IovaRange, PageSize, PhysAddr, StreamId};
use portolan::inval::{
    Caching, Capabilities, InvalidationQueue, LeafOnly, PageForm, Quirks, RangeForm, Step, Walker,
    WriteBuffer,
};
use portolan::passthrough::premap::Requester;
use portolan::passthrough::{
    FaultError, Frames, Hold, MemoryOwner, Passthrough, PassthroughOptions, PopulateError,
    RegionOptions, Request,
};
use portolan::platform::SlabTables;
use portolan::table::format::{DirtyTracking, VtdLevels, VtdSecondStage};
use portolan::table::{Access, PageTable};
use portolan::unit::{ContextHome, Domain as _, PagedDomain, UnitError};
use support::loom_cpus::{LoomCpus, TellingCpus, explore, on_cpu};

const PAGE: u64 = 4096;

/// A device with one page: what its cache holds, and the memory that it must not reach.
#[derive(Default)]
struct Device {
    cached: Mutex<Option<u64>>,
    freed: Mutex<Vec<u64>>,
}

/// Waits for the other CPUs at some point before it invalidates.
struct Queue(std::sync::Arc<Device>);

impl InvalidationQueue for Queue {
    type Error = UnitError;

    fn execute(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), UnitError> {
        let count = steps
            .filter(|step| matches!(step, Step::Invalidate(_)))
            .count();
        if count != 0 {
            loom::thread::yield_now();
            *self.0.cached.lock().unwrap() = None;
        }
        Ok(())
    }
}

impl ContextHome for Queue {
    fn retire(&self, _context: ContextId) -> Result<(), UnitError> {
        Ok(())
    }
}

/// One page of memory, in the frame that it is in now.
#[derive(Default)]
struct Owner(Mutex<u64>);

impl MemoryOwner for Owner {
    fn populate(
        &self,
        _range: IovaRange,
        _access: Access,
        frames: &mut Frames,
    ) -> Result<(), PopulateError> {
        let frame = *self.0.lock().unwrap();
        loom::thread::yield_now();
        let pushed = frames.push(PhysAddr::new((1 << 30) + frame * PAGE), PAGE);
        assert!(pushed.is_ok());
        Ok(())
    }

    fn pin(&self, _: IovaRange, _: Access, _: &mut Frames) -> Result<(), PopulateError> {
        unreachable!()
    }

    fn unpin(&self, _: IovaRange) {
        unreachable!()
    }
}

type Tables = std::sync::Arc<SlabTables<AtomicU64>>;
type Domain = PagedDomain<VtdSecondStage, Tables, Queue>;

struct Machine {
    device: std::sync::Arc<Device>,
    owner: std::sync::Arc<Owner>,
    domain: std::sync::Arc<Domain>,
    container: Passthrough<Domain, std::sync::Arc<Owner>, TellingCpus>,
}

fn page() -> IovaRange {
    IovaRange::page(Iova::new(0), PageSize::SIZE_4K)
}

impl Machine {
    fn new() -> Arc<Self> {
        let device = std::sync::Arc::new(Device::default());
        let format = VtdSecondStage {
            levels: VtdLevels::Three,
            output_lg2: 39,
            dirty: DirtyTracking::Off,
        };
        let tables = SlabTables::new(PhysAddr::new(1 << 36), PageSize::SIZE_4K, 8);
        let table = PageTable::new(format, Tables::new(tables)).unwrap();
        let caps = Capabilities {
            granule: PageSize::SIZE_4K,
            page: PageForm::Granule,
            range: RangeForm::Absent,
            leaf_only: LeafOnly::Present,
            walker: Walker::Coherent,
            caching: Caching::PresentOnly,
            write_buffer: WriteBuffer::Absent,
        };
        let (context, quirks) = (ContextId::new(1), Quirks::default());
        let queue = Queue(device.clone());
        let domain = PagedDomain::new(table, context, caps, quirks, queue);
        let domain = std::sync::Arc::new(domain);
        let options = PassthroughOptions::default();
        let container = Passthrough::new(domain.clone(), TellingCpus(LoomCpus::new(3)), options);
        let owner = std::sync::Arc::new(Owner::default());
        let region = RegionOptions {
            range: page(),
            access: Access::READ,
            hold: Hold::OnDemand,
        };
        container.add_region(&region, owner.clone()).unwrap();
        Arc::new(Self {
            device,
            owner,
            domain,
            container,
        })
    }

    /// The device accesses its page, by what it remembers if it does; the frame that it reaches.
    fn access(&self) -> Option<u64> {
        let mut cached = self.device.cached.lock().unwrap();
        if cached.is_none() {
            let found = self.domain.translate(Iova::new(0))?;
            *cached = Some((found.pa.get() - (1 << 30)) / PAGE);
        }
        let frame = (*cached)?;
        assert!(!self.device.freed.lock().unwrap().contains(&frame));
        Some(frame)
    }

    fn fault(&self) -> Result<(), FaultError> {
        let request = Request {
            who: Requester {
                stream: StreamId::new(1),
                pasid: None,
            },
            iova: Iova::new(0),
            access: Access::READ,
        };
        self.container.fault(&request).map(drop)
    }

    /// The owner moves the page to another frame, and frees the old one.
    fn migrate(&self) {
        let old = {
            let mut frame = self.owner.0.lock().unwrap();
            *frame += 1;
            *frame - 1
        };
        self.container.invalidate(page()).unwrap();
        self.device.freed.lock().unwrap().push(old);
        self.access();
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
fn whoever_takes_memory_back_second_waits_for_the_first() {
    explore(2, || {
        let machine = Machine::new();
        machine.fault().unwrap();
        machine.access();
        let take = |machine: &Machine| {
            machine.container.invalidate(page()).unwrap();
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
