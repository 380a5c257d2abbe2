//! The library's DMA layer over one model IOMMU: a space with a policy, behind page tables whose queue
//! is the model's, on CPUs whose time and number the caller sets.
//!
//! One thread drives it, so no CPU ever waits for another here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use anyhow::{Context, Result};
use portolan::addr::{CpuId, InvalTag, Iova, IovaRange, StreamId};
use portolan::dma::{
    Bidirectional, Bounds, Constraints, Deferred, Device, DmaSpace, Mapping, Policy, SpaceOptions,
};
use portolan::inval::{Capabilities, InvalidationQueue, Quirks, Step};
use portolan::iommu::{BoundDomain, IommuError, PagedDomain, TagPool};
use portolan::platform::{Clock, Nanos, SlabTables, SpinCpus};
use portolan::table::{Format, PageTable};
use portolan_model::fixture::Attached;

use crate::buffers::Memory;
use crate::rig::{CONTEXT, Rig};

/// When and where the caller says that it is.
#[derive(Debug, Default)]
pub(crate) struct Moment {
    ns: AtomicU64,
    cpu: AtomicU32,
}

impl Moment {
    pub(crate) fn set(&self, ns: u64, cpu: u16) {
        self.ns.store(ns, Ordering::Relaxed);
        self.cpu.store(cpu.into(), Ordering::Relaxed);
    }

    pub(crate) fn set_ns(&self, ns: u64) {
        self.ns.store(ns, Ordering::Relaxed);
    }
}

impl Clock for Moment {
    fn now(&self) -> Nanos {
        Nanos::new(self.ns.load(Ordering::Relaxed))
    }

    /// Time goes on, so that no wait is without end.
    fn relax(&self) {
        self.ns.fetch_add(1000, Ordering::Relaxed);
    }
}

type Current = Box<dyn Fn() -> CpuId + Send + Sync>;
type LabCpus = Arc<SpinCpus<Arc<Moment>, Current>>;

/// The model's queue, as page tables want it.
pub(crate) struct ModelQueue<F: Format> {
    rig: Arc<Rig<F>>,
    /// Whether what comes now is a map's debt.
    mapping: AtomicBool,
}

impl<F: Format> InvalidationQueue for ModelQueue<F> {
    type Error = IommuError;

    fn execute(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), IommuError> {
        let done = match self.mapping.load(Ordering::Relaxed) {
            true => self.rig.execute_after_map(steps),
            false => self.rig.execute(steps),
        };
        // The model refuses nothing that its capabilities allow.
        done.map_err(|_| IommuError::Stopped)
    }
}

impl<F: Format> TagPool for ModelQueue<F> {
    /// The model goes with its only context.
    fn release(&self, _context: InvalTag) -> Result<(), IommuError> {
        Ok(())
    }
}

type LabDomain<F> = PagedDomain<F, Arc<SlabTables<<F as Format>::Word>>, Arc<ModelQueue<F>>>;
pub(crate) type LabSpace = DmaSpace<LabCpus>;
pub(crate) type LabMapping = Mapping<LabCpus, Memory, Bidirectional>;
pub(crate) type LabDeferred = Deferred<LabCpus, Memory>;

/// How a space is set up.
pub(crate) struct SpaceSetup {
    pub(crate) policy: Policy,
    pub(crate) bounds: Bounds,
    pub(crate) caps: Capabilities,
    pub(crate) quirks: Quirks,
    /// Addresses are below two to this.
    pub(crate) window_lg2: u32,
    pub(crate) cpus: usize,
}

/// A space over a model IOMMU, and a device attached to it.
pub(crate) struct DmaRig<F: Format> {
    pub(crate) device: Device<LabCpus>,
    pub(crate) space: Arc<LabSpace>,
    domain: Arc<LabDomain<F>>,
    pub(crate) moment: Arc<Moment>,
    pub(crate) rig: Arc<Rig<F>>,
    queue: Arc<ModelQueue<F>>,
}

impl<F: Format> DmaRig<F> {
    /// A space whose tables lie in `memory`; `rig` makes the model that walks the table at the root
    /// that it is told.
    ///
    /// # Errors
    /// Of `rig`, and if the library refuses the setup.
    pub(crate) fn new(
        format: F,
        memory: Arc<SlabTables<F::Word>>,
        setup: &SpaceSetup,
        rig: impl FnOnce(portolan::addr::PhysAddr) -> Result<Rig<F>>,
    ) -> Result<Self> {
        let table = PageTable::new(format, memory)?;
        let rig = Arc::new(rig(table.root())?);
        let queue = Arc::new(ModelQueue {
            rig: rig.clone(),
            mapping: AtomicBool::new(false),
        });
        let domain = PagedDomain::new(table, CONTEXT, setup.caps, setup.quirks, queue.clone());
        let moment = Arc::new(Moment::default());
        let here = moment.clone();
        let current: Current = Box::new(move || CpuId::new(here.cpu.load(Ordering::Relaxed)));
        let cpus: LabCpus = Arc::new(SpinCpus::new(setup.cpus, moment.clone(), current));
        let first = Iova::new(F::GRANULE.bytes());
        let last = Iova::new((1u64 << setup.window_lg2.min(63)) - 1);
        let options = SpaceOptions {
            window: IovaRange::new(first, last).context("an empty window of addresses")?,
            policy: setup.policy,
            bounds: setup.bounds,
            ..SpaceOptions::default()
        };
        let domain = Arc::new(domain);
        let space = Arc::new(DmaSpace::new(
            BoundDomain::new(Arc::new(Attached), domain.clone()),
            cpus,
            &options,
        )?);
        let device = Device::translated(space.clone(), StreamId::new(1), Constraints::default())?;
        Ok(Self {
            device,
            space,
            domain,
            moment,
            rig,
            queue,
        })
    }

    /// Runs `map`, and has the model charge what comes of it as a map's debt.
    pub(crate) fn while_mapping<R>(&self, map: impl FnOnce() -> R) -> R {
        self.queue.mapping.store(true, Ordering::Relaxed);
        let done = map();
        self.queue.mapping.store(false, Ordering::Relaxed);
        done
    }

    /// The page tables.
    pub(crate) fn table(&self) -> &PageTable<F, Arc<SlabTables<F::Word>>> {
        self.domain.table()
    }
}
