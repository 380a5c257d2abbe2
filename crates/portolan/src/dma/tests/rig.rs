//! A space, its queue, its clock and its devices.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use spin::Mutex;

use super::buffers::nothing;
use super::machine::{Block, Machine};
use crate::addr::{InvalTag, Iova, IovaRange, PageSize, Pasid, PhysAddr, PhysRange, StreamId};
use crate::dma::{Constraints, Device, DmaSpace, LazyBounds, Policy, SpaceOptions, Trust};
use crate::inval::{Caching, Capabilities, InvalidationQueue, Quirks, RangeForm, Step, TablesLeft};
use crate::iommu::{
    Attach, AttachError, Awaited, BoundDomain, FaultEvent, Iommu, IommuError, PagedDomain,
    ReservedRegion, Shadowing, TagPool,
};
use crate::platform::{AllMemory, Nanos, SlabTables, TraceEvent, Tracer};
use crate::table::PageTable;
use crate::table::format::{DirtyTracking, VtdLevels, VtdSecondStage};

/// A queue that counts, and that fails while `broken` is not 0.
#[derive(Debug, Default)]
pub(super) struct Hardware {
    pub syncs: AtomicU64,
    pub broken: AtomicU64,
    pub blocked: Mutex<Vec<StreamId>>,
    pub blocked_pasids: Mutex<Vec<Pasid>>,
    pub attached: AtomicU64,
    /// Runs once, during the next invalidation: another CPU, or a handler on this one.
    pub during_sync: Hook,
    /// Runs once, when the next stream is blocked.
    pub during_block: Hook,
    pub reserved: Mutex<Vec<ReservedRegion>>,
    pub now: AtomicU64,
    /// The CPU that calls.
    pub cpu: AtomicU64,
    /// Memory that the machine has handed out, by physical address.
    pub frames: Mutex<Vec<(PhysAddr, Block)>>,
    /// Blocks of those that a confidential guest has shared with its host.
    pub shared: Mutex<Vec<PhysAddr>>,
    /// Set if there is memory that CPUs do not cache.
    pub has_uncached: AtomicBool,
    /// Blocks with an address of their own that came back.
    pub aliases_freed: AtomicU64,
    pub flushes_wanted: AtomicU64,
    /// Cache lines that the machine wrote back, and those that it dropped.
    pub cleaned: Mutex<Vec<PhysRange>>,
    pub dropped: Mutex<Vec<PhysRange>>,
    /// All that was asked for, in order.
    pub steps: Mutex<Vec<Step>>,
    /// Lines that were reported to the tracer, if that is wanted.
    pub lines: Lines,
    /// Faults that the unit has to report.
    pub faults: Mutex<Vec<FaultEvent>>,
    /// Set if streams cannot be blocked.
    pub holds_on: AtomicBool,
    /// Time that the hardware takes to block a stream.
    pub block_takes: AtomicU64,
}

/// Takes the library's events, once it was told to.
#[derive(Debug, Default)]
pub(super) struct Lines(Mutex<Option<Vec<String>>>);

impl Lines {
    /// Begins, and forgets earlier lines.
    pub fn begin(&self) {
        *self.0.lock() = Some(Vec::new());
    }

    /// Those since the beginning, or since the last call.
    pub fn take(&self) -> Vec<String> {
        self.0.lock().as_mut().map(core::mem::take).unwrap_or_default()
    }

    pub fn tracer(&self) -> Option<&dyn Tracer> {
        let wanted = self.0.lock().is_some();
        wanted.then_some(self)
    }
}

impl Tracer for Lines {
    fn event(&self, event: &TraceEvent<'_>) {
        let line = alloc::format!("{event}");
        self.0.lock().as_mut().unwrap().push(line);
    }
}

/// Something that happens once, in the middle of something else.
#[derive(Default)]
pub(super) struct Hook(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Hook {
    pub fn set(&self, then: impl FnOnce() + Send + 'static) {
        *self.0.lock() = Some(Box::new(then));
    }

    fn run(&self) {
        let then = self.0.lock().take();
        if let Some(then) = then {
            then();
        }
    }
}

impl core::fmt::Debug for Hook {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Hook")
    }
}

#[derive(Clone, Debug)]
pub(super) struct Queue(pub Arc<Hardware>);

/// The value of `broken` for a queue that other callers have for too long.
pub(super) const BUSY: u64 = 2;

pub(super) const TIMED_OUT: IommuError =
    IommuError::TimedOut { awaited: Awaited::Completion, waited: Nanos::new(1) };

impl InvalidationQueue for Queue {
    type Error = IommuError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        let before = self.0.steps.lock().len();
        self.0.steps.lock().extend(steps);
        assert!(self.0.steps.lock().len() > before);
        self.0.syncs.fetch_add(1, Ordering::Relaxed);
        self.0.during_sync.run();
        match self.0.broken.load(Ordering::Relaxed) {
            0 => Ok(()),
            BUSY => Err(IommuError::TimedOut { awaited: Awaited::Turn, waited: Nanos::new(7) }),
            _ => Err(TIMED_OUT),
        }
    }
}

impl TagPool for Queue {
    fn release(&self, _context: InvalTag) -> Result<(), IommuError> {
        match self.0.broken.load(Ordering::Relaxed) {
            0 => Ok(()),
            _ => Err(TIMED_OUT),
        }
    }
}

pub(super) type Cpus = Machine;
pub(super) type Memory = Arc<SlabTables<AtomicU64>>;
pub(super) type Domain = PagedDomain<VtdSecondStage, Memory, Queue>;
pub(super) type Space = DmaSpace<Cpus>;

/// A unit that only notes its calls.
impl Iommu for Hardware {
    fn block(&self, stream: StreamId) -> Result<(), AttachError> {
        self.blocked.lock().push(stream);
        let takes = self.block_takes.load(Ordering::Relaxed);
        self.now.fetch_add(takes, Ordering::Relaxed);
        self.during_block.run();
        match self.holds_on.load(Ordering::Relaxed) {
            true => Err(AttachError::Iommu(TIMED_OUT)),
            false => Ok(()),
        }
    }

    fn block_pasid(&self, _stream: StreamId, pasid: Pasid) -> Result<(), AttachError> {
        self.blocked_pasids.lock().push(pasid);
        Ok(())
    }

    fn pass_through(&self, _stream: StreamId, _all: AllMemory) -> Result<(), AttachError> {
        Ok(())
    }

    fn reserved(&self, _stream: StreamId, each: &mut dyn FnMut(ReservedRegion)) {
        self.reserved.lock().iter().for_each(|region| each(*region));
    }

    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        Ok(self.faults.lock().pop())
    }
}

impl Attach<Domain> for Hardware {
    fn attach(&self, _stream: StreamId, _domain: &Arc<Domain>) -> Result<(), AttachError> {
        self.attached.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn attach_pasid(
        &self,
        stream: StreamId,
        pasid: Pasid,
        domain: &Arc<Domain>,
    ) -> Result<(), AttachError> {
        match pasid.get() {
            0 => Err(AttachError::Mismatch),
            _ => self.attach(stream, domain),
        }
    }
}

pub(super) struct Rig {
    pub hardware: Arc<Hardware>,
    pub memory: Memory,
    pub cpus: Cpus,
    pub space: Arc<Space>,
    pub domain: Weak<Domain>,
}

pub(super) struct Setup {
    pub policy: Policy,
    pub bounds: LazyBounds,
    pub table_pages: u32,
    pub window: IovaRange,
    pub caching: Caching,
    pub shadowing: Shadowing,
    pub trust: Option<Trust>,
    pub dropped_buffers: usize,
    pub keep_tables: usize,
    pub dirty: DirtyTracking,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            policy: Policy::Strict,
            bounds: LazyBounds::default(),
            table_pages: 64,
            window: range(0x10_0000, 0xffff_ffff),
            caching: Caching::PresentOnly,
            shadowing: Shadowing::None,
            trust: None,
            dropped_buffers: 0,
            keep_tables: 256,
            dirty: DirtyTracking::Off,
        }
    }
}

pub(super) fn range(start: u64, last: u64) -> IovaRange {
    IovaRange::new(Iova::new(start), Iova::new(last)).unwrap()
}

impl Rig {
    pub fn new(setup: &Setup) -> Self {
        Self::on(Arc::default(), setup)
    }

    /// Another space on the same hardware.
    pub fn beside(&self) -> Self {
        Self::on(self.hardware.clone(), &Setup::default())
    }

    fn on(hardware: Arc<Hardware>, setup: &Setup) -> Self {
        let memory =
            SlabTables::new(PhysAddr::new(0x8000_0000), PageSize::SIZE_4K, setup.table_pages);
        let memory = Arc::new(memory);
        let format =
            VtdSecondStage { dirty: setup.dirty, ..VtdSecondStage::new(VtdLevels::Four, 46) };
        let table = PageTable::new(format, memory.clone()).unwrap();
        let caps = Capabilities {
            range: RangeForm::PowerOfTwo { max_lg2_pages: 18 },
            caching: setup.caching,
            ..Capabilities::new(PageSize::SIZE_4K)
        };
        let queue = Queue(hardware.clone());
        let context = InvalTag::new(1);
        let domain = PagedDomain::new(table, context, caps, Quirks::default(), queue)
            .shadowed(setup.shadowing);
        let cpus = Machine::new(hardware.clone());
        let options = SpaceOptions {
            window: setup.window,
            policy: setup.policy,
            trust: setup.trust,
            dropped_buffers: setup.dropped_buffers,
            keep_tables: setup.keep_tables,
            bounds: setup.bounds,
            ..SpaceOptions::default()
        };
        let domain = Arc::new(domain);
        let bound = BoundDomain::new(hardware.clone(), domain.clone(), nothing());
        let space = DmaSpace::with_cpus(bound, cpus.clone(), &options, nothing()).unwrap();
        Self { hardware, memory, cpus, space: Arc::new(space), domain: Arc::downgrade(&domain) }
    }

    /// The space's domain, for another space.
    pub fn bound(&self) -> BoundDomain {
        let domain = self.domain.upgrade().unwrap();
        BoundDomain::new(self.hardware.clone(), domain, nothing())
    }

    pub fn policy(policy: Policy) -> Self {
        Self::new(&Setup { policy, ..Setup::default() })
    }

    /// Blocks of the machine's memory that are allocated.
    pub fn frames(&self) -> usize {
        self.hardware.frames.lock().len()
    }

    pub fn syncs(&self) -> u64 {
        self.hardware.syncs.load(Ordering::Relaxed)
    }

    pub fn set_broken(&self, broken: u64) {
        self.hardware.broken.store(broken, Ordering::Relaxed);
    }

    pub fn pass(&self, nanos: u64) {
        self.hardware.now.fetch_add(nanos, Ordering::Relaxed);
    }
}

/// A device of `rig`, whose stream has the number.
pub(super) fn device_of(rig: &Rig, stream: u32, constraints: Constraints) -> Device<Cpus> {
    Device::translated(rig.space.clone(), StreamId::new(stream), constraints).unwrap()
}
