//! A machine in virtual time: the library's tables and DMA layer, on virtual CPUs, over one model
//! IOMMU.
//!
//! The model's caches are of the machine's sizes. Its walker reads table memory as it is: where it
//! does not snoop, CPUs take the time to write lines back, but nothing is missed without. It
//! carries out the submissions of all CPUs one after the other; each CPU waits for its own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use portolan::addr::{InvalTag, IovaRange, PageSize, PhysAddr, PhysRange, StreamId};
use portolan::dma::{Buffer, Constraints, DataDirection, Device, DmaSpace, Mapping, SpaceOptions};
use portolan::inval::{
    Capabilities, CombineOptions, Combined, InvalidationQueue, Quirks, Ranges, Step, TablesLeft,
};
use portolan::iommu::{
    Attach, AttachError, BoundDomain, Domain, FaultEvent, Iommu, IommuError, PagedDomain, TagPool,
};
use portolan::platform::{AllMemory, Cpus as _, OutOfTableMemory, SlabTables, TableMem, Word};
use portolan::table::{Format, PageTable};
use portolan_sim::cpus::{SharingPrices, VirtualCpus};
use portolan_sim::decode::{AccessKind, TableFormat, TableReader, TableRoot, WalkMemory};
use portolan_sim::iommu::{self as model, CommandPrices, Setup, StreamConfig};
use portolan_sim::profile::Profile;
use portolan_sim::tables::LINE;

use crate::buffers::{all_memory, simulated};

/// The tag of a fixture's only domain.
pub const CONTEXT: InvalTag = InvalTag::new(1);
/// Address of table memory for the model; any other would do.
const TABLES_AT: u64 = 1 << 40;
/// Nanoseconds between two looks of a CPU that waits for another one.
const LOOK_NS: f64 = 100.0;

/// Memory for tables.
pub type Tables<F> = Arc<CountedTables<<F as Format>::Word>>;
/// A domain with tables in [`Tables`] and tags from any pool.
pub type LabDomain<F> = PagedDomain<F, Tables<F>, Arc<dyn TagPool>>;
/// The model, with tables of any format.
pub type Model = model::Iommu<AnyTables>;

/// Memory for tables of any format.
pub struct AnyTables(Box<dyn WalkMemory + Send + Sync>);

impl WalkMemory for AnyTables {
    fn read_u64(&self, pa: PhysAddr) -> Option<u64> {
        self.0.read_u64(pa)
    }

    fn read_u32(&self, pa: PhysAddr) -> Option<u32> {
        self.0.read_u32(pa)
    }
}

/// CPUs of a machine without costs of sharing.
pub fn cpus(count: usize) -> VirtualCpus {
    let relax = LOOK_NS;
    VirtualCpus::new(count, SharingPrices { relax, ..SharingPrices::default() })
}

/// Table memory that counts the cache lines written back; each keeps its CPU busy for a time.
pub struct CountedTables<W> {
    slab: SlabTables<W>,
    cpus: VirtualCpus,
    /// Nanoseconds of a line.
    line_ns: f64,
    lines: AtomicU64,
}

impl<W: Word> TableMem<W> for CountedTables<W> {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        self.slab.alloc(size)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        self.slab.free(table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[W] {
        self.slab.table(table, size)
    }

    fn clean(&self, bytes: PhysRange) {
        let lines = bytes.pages(LINE);
        self.lines.fetch_add(lines, Ordering::Relaxed);
        self.cpus.work(self.line_ns * lines as f64);
    }

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: PhysRange) {}
}

/// Memory for `pages` tables of `format`, in which one of `cpus` needs `line_ns` to write a line back.
pub fn tables<F: Format>(format: &F, pages: u32, cpus: &VirtualCpus, line_ns: f64) -> Tables<F> {
    // Memory outside the format's reach would do for tables that only CPUs read.
    let at = TABLES_AT.min(1 << (format.output_lg2() - 1));
    Arc::new(CountedTables {
        slab: SlabTables::new(PhysAddr::new(at), F::GRANULE, pages),
        cpus: cpus.clone(),
        line_ns,
        lines: AtomicU64::new(0),
    })
}

/// The model of a machine's IOMMU that can do `caps`, with tables in `memory`.
///
/// # Errors
/// If the profile lacks a price.
pub fn model<F: Format>(
    profile: &Profile,
    caps: Capabilities,
    memory: Tables<F>,
) -> Result<Arc<Model>> {
    let mut setup = Setup::realistic(profile)?;
    setup.capabilities = caps;
    let reader = TableReader::<F::Word, _>::new(memory, F::GRANULE);
    Ok(Arc::new(Model::new(setup, AnyTables(Box::new(reader)))))
}

/// The model's queue, as domains want it.
pub struct ModelQueue {
    model: Arc<Model>,
    cpus: VirtualCpus,
    /// Time at which all submissions are done, in virtual nanoseconds.
    free_at: Mutex<f64>,
    /// For each CPU, true while it submits the debt of a map.
    mapping: Box<[AtomicBool]>,
    /// Submissions of each CPU.
    submitted: Box<[AtomicU64]>,
}

impl ModelQueue {
    /// The queue of `model`, for `cpus`.
    pub fn new(model: Arc<Model>, cpus: VirtualCpus) -> Self {
        let count = 0..cpus.count();
        Self {
            model,
            cpus,
            free_at: Mutex::default(),
            mapping: count.clone().map(|_| AtomicBool::default()).collect(),
            submitted: count.map(|_| AtomicU64::default()).collect(),
        }
    }

    fn cpu(&self) -> usize {
        self.cpus.current().get() as usize
    }

    /// Submissions of the calling CPU so far.
    pub fn submitted(&self) -> u64 {
        self.submitted[self.cpu()].load(Ordering::Relaxed)
    }
}

impl InvalidationQueue for ModelQueue {
    type Error = IommuError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        let cpu = self.cpu();
        let begin = self.model.clock().now_exact_ns();
        let done = if self.mapping[cpu].load(Ordering::Relaxed) {
            self.model.map_side().pay(steps, TablesLeft::ByDepth)
        } else {
            self.model.pay(steps, TablesLeft::ByDepth)
        };
        let took = self.model.clock().now_exact_ns() - begin;
        self.submitted[cpu].fetch_add(1, Ordering::Relaxed);
        let end = {
            let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
            *free_at = free_at.max(self.cpus.now_exact_ns()) + took;
            *free_at
        };
        self.cpus.sleep_until(end);
        // The model refuses nothing that its capabilities allow.
        done.map_err(|_| IommuError::Stopped)
    }
}

impl TagPool for ModelQueue {
    /// Does nothing: the model is dropped with its only domain.
    fn release(&self, _context: InvalTag) -> Result<(), IommuError> {
        Ok(())
    }
}

/// The model as the library's IOMMU.
struct ModelUnit {
    model: Arc<Model>,
    format: TableFormat,
}

impl Iommu for ModelUnit {
    fn block(&self, stream: StreamId) -> Result<(), AttachError> {
        self.model.attach(stream, StreamConfig::Blocked);
        Ok(())
    }

    fn pass_through(&self, stream: StreamId, _all: AllMemory) -> Result<(), AttachError> {
        self.model.attach(stream, StreamConfig::Bypass);
        Ok(())
    }

    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        Ok(None)
    }

    fn reserved(&self, _: StreamId, _: &mut dyn FnMut(portolan::iommu::ReservedRegion)) {}
}

impl<F: Format> Attach<LabDomain<F>> for ModelUnit {
    fn attach(&self, stream: StreamId, domain: &Arc<LabDomain<F>>) -> Result<(), AttachError> {
        let (root, format) = (domain.table().root(), self.format);
        let config = StreamConfig::Translate {
            context: domain.context(),
            table: TableRoot { root, format },
        };
        self.model.attach(stream, config);
        Ok(())
    }
}

/// Submitters of the CPUs' invalidations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitting {
    /// Each CPU its own.
    Alone,
    /// CPUs that meet share a submission.
    Combined,
}

/// Setup of a fixture.
pub struct FixtureSetup<'p> {
    /// The machine.
    pub profile: &'p Profile,
    /// The layout of the tables, as the model names it.
    pub layout: TableFormat,
    /// Capabilities of its invalidation.
    pub caps: Capabilities,
    /// Quirks by which invalidations are planned.
    pub quirks: Quirks,
    /// Number of CPUs.
    pub cpus: usize,
    /// Submitters of invalidations.
    pub submitting: Submitting,
    /// Options of the space.
    pub options: SpaceOptions,
    /// Table pages that there is memory for.
    pub table_pages: u32,
}

/// Counts of a domain's tables, for any format.
trait TablesMade: Send + Sync {
    /// Number of table pages, including those that wait for an invalidation.
    fn pages(&self) -> usize;
    /// Cache lines written back.
    fn lines(&self) -> u64;
}

/// A domain and the memory of its tables.
struct Made<F: Format> {
    domain: Arc<LabDomain<F>>,
    memory: Tables<F>,
}

impl<F: Format> TablesMade for Made<F> {
    fn pages(&self) -> usize {
        self.domain.table().pages()
    }

    fn lines(&self) -> u64 {
        self.memory.lines.load(Ordering::Relaxed)
    }
}

/// A space over a model IOMMU.
pub struct Fixture {
    /// The CPUs.
    pub cpus: VirtualCpus,
    /// The space.
    pub space: Arc<DmaSpace<VirtualCpus>>,
    /// The model of the IOMMU.
    pub model: Arc<Model>,
    /// Its queue.
    pub queue: Arc<ModelQueue>,
    domain: Arc<dyn Domain>,
    unit: Arc<dyn Iommu>,
    tables: Arc<dyn TablesMade>,
}

impl Fixture {
    /// A space with tables of `format`.
    ///
    /// # Errors
    /// If the profile lacks a price, or the library refuses the setup.
    pub fn new<F: Format>(format: F, setup: &FixtureSetup<'_>) -> Result<Self> {
        let (caps, quirks) = (setup.caps, setup.quirks);
        let cpus = cpus(setup.cpus);
        let line_ns = CommandPrices::of(setup.profile)?.clean_line;
        let memory = tables(&format, setup.table_pages, &cpus, line_ns);
        let model = model::<F>(setup.profile, caps, memory.clone())?;
        let queue = Arc::new(ModelQueue::new(model.clone(), cpus.clone()));
        let submit: Arc<dyn TagPool> = match setup.submitting {
            Submitting::Alone => queue.clone(),
            Submitting::Combined => {
                let (ranges, options) = (Ranges::of(&caps), CombineOptions::default());
                Arc::new(Combined::new(cpus.clone(), queue.clone(), ranges, options))
            }
        };
        let table = PageTable::new(format, memory.clone())?;
        let paged = Arc::new(LabDomain::<F>::new(table, CONTEXT, caps, quirks, submit));
        let unit = Arc::new(ModelUnit { model: model.clone(), format: setup.layout });
        let bound = BoundDomain::new(unit.clone(), paged.clone(), simulated());
        let space = DmaSpace::with_cpus(bound, cpus.clone(), &setup.options, simulated())?;
        Ok(Self {
            space: Arc::new(space),
            cpus,
            model,
            queue,
            domain: paged.clone(),
            unit,
            tables: Arc::new(Made { domain: paged, memory }),
        })
    }

    /// A device behind the IOMMU.
    ///
    /// # Errors
    /// If the stream is another's.
    pub fn device(&self, stream: StreamId) -> Result<Device<VirtualCpus>> {
        let limits = Constraints::trusted();
        Ok(Device::translated(self.space.clone(), stream, limits)?)
    }

    /// Creates a device that reaches memory untranslated.
    ///
    /// # Errors
    /// None here.
    pub fn untranslated(
        &self,
        stream: StreamId,
        limits: Constraints,
    ) -> Result<Device<VirtualCpus>> {
        let (cpus, unit) = (self.cpus.clone(), self.unit.clone());
        Ok(Device::identity(cpus, unit, stream, limits, all_memory())?)
    }

    /// Runs `map`. Meanwhile the model charges the calling CPU's submissions as debt of a map.
    pub fn while_mapping<R>(&self, map: impl FnOnce() -> R) -> R {
        let mapping = &self.queue.mapping[self.queue.cpu()];
        mapping.store(true, Ordering::Relaxed);
        let done = map();
        mapping.store(false, Ordering::Relaxed);
        done
    }

    /// Lets a device access each page of a mapping once, in its direction; faults are counted by the
    /// model.
    pub fn use_once<B: Buffer, D: DataDirection>(
        &self,
        device: &Device<VirtualCpus>,
        mapping: &Mapping<VirtualCpus, B, D>,
        direction: D,
    ) {
        let granule = self.domain.granule();
        let kind = if direction.direction().device_writes() {
            AccessKind::Write
        } else {
            AccessKind::Read
        };
        for segment in mapping.segments() {
            let last = segment.iova.get() + (segment.bytes.get() - 1);
            let mut at = Some(segment.iova.align_down(granule));
            while let Some(iova) = at.filter(|iova| iova.get() <= last) {
                let _ = self.model.translate(device.stream(), iova, kind);
                at = iova.checked_add(granule.bytes());
            }
        }
    }

    /// Entries that translate `range`; with larger pages fewer than its pages.
    pub fn entries(&self, range: IovaRange) -> u64 {
        let mut entries = 0;
        let mut at = Some(range.start());
        while let Some(iova) = at.filter(|iova| *iova <= range.last()) {
            let found = self.domain.translate(iova);
            let size = found.map_or(self.domain.granule(), |found| found.size);
            at = iova.align_down(size).checked_add(size.bytes());
            entries += 1;
        }
        entries
    }

    /// Number of table pages, including those that wait for an invalidation.
    pub fn table_pages(&self) -> usize {
        self.tables.pages()
    }

    /// Cache lines of tables written back.
    pub fn lines(&self) -> u64 {
        self.tables.lines()
    }
}
