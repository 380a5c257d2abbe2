//! One model IOMMU set up for a machine: where a policy's debts are paid, where its device's
//! accesses go, and what that cost.
//!
//! Caches are of the machine's sizes. The walker reads table memory as it is: a walker that does
//! not snoop is charged for the lines that have to be cleaned, but does not miss them here.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use portolan::addr::{InvalTag, Iova, PhysAddr, StreamId, TableId};
use portolan::inval::{
    Capabilities, Gather, InvalidationQueue, Quiesced, Quirks, Step, Tagged, sync,
};
use portolan::platform::SlabTables;
use portolan::table::Format;
use portolan_model::counters::Counters;
use portolan_model::decode::{AccessKind, TableFormat, TableReader, TableRoot};
use portolan_model::iommu::{CommandPrices, Iommu, QueueError, Setup, StreamConfig};
use portolan_model::profile::{Event, Profile};

pub(crate) const CONTEXT: InvalTag = InvalTag::new(1);
const STREAM: StreamId = StreamId::new(1);

/// What CPU work costs on a machine, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuPrices {
    /// A call that maps.
    pub(crate) map_call: f64,
    /// A call that unmaps less than a whole table.
    pub(crate) unmap_call: f64,
    /// A call that takes whole tables out of the tree.
    pub(crate) unmap_call_tables: f64,
    /// An entry written or cleared in a run.
    pub(crate) entry: f64,
    /// A table page taken out of the tree and freed.
    pub(crate) table_free: f64,
}

type Reader<W> = TableReader<W, Arc<SlabTables<W>>>;

/// A model IOMMU over the tables in one memory.
pub(crate) struct Rig<F: Format> {
    iommu: Iommu<Reader<F::Word>>,
    cpu: CpuPrices,
    commands: CommandPrices,
}

impl<F: Format> Rig<F> {
    /// An IOMMU of the machine `profile` that walks the table at `root` in `memory`.
    ///
    /// # Errors
    /// If the profile lacks a price.
    pub(crate) fn new(
        profile: &Profile,
        memory: Arc<SlabTables<F::Word>>,
        root: PhysAddr,
    ) -> Result<Self> {
        let caps = profile.capabilities();
        Self::with(profile, profile.format(), caps, memory, root)
    }

    /// The same, with a unit that walks tables of `format` and can do `caps`.
    ///
    /// # Errors
    /// As [`Rig::new`].
    pub(crate) fn with(
        profile: &Profile,
        format: TableFormat,
        caps: Capabilities,
        memory: Arc<SlabTables<F::Word>>,
        root: PhysAddr,
    ) -> Result<Self> {
        let cpu = CpuPrices {
            map_call: profile.price(Event::MapCall)?,
            unmap_call: profile.price(Event::UnmapCall)?,
            unmap_call_tables: profile.price(Event::UnmapCallTables)?,
            entry: profile.price(Event::PteWrite)?,
            table_free: profile.price(Event::TableFree)?,
        };
        let mut setup = Setup::realistic(profile)?;
        setup.capabilities = caps;
        let commands = setup.prices;
        let iommu = Iommu::new(setup, TableReader::new(memory, F::GRANULE));
        let table = TableRoot { root, format };
        iommu.attach(
            STREAM,
            StreamConfig::Translate {
                context: CONTEXT,
                table,
            },
        );
        Ok(Self {
            iommu,
            cpu,
            commands,
        })
    }

    /// What CPU work costs.
    pub(crate) fn cpu(&self) -> CpuPrices {
        self.cpu
    }

    /// What commands cost.
    pub(crate) fn commands(&self) -> CommandPrices {
        self.commands
    }

    /// Virtual time of commands and waits, in nanoseconds.
    pub(crate) fn now_ns(&self) -> f64 {
        self.iommu.clock().now_exact_ns()
    }

    /// Pays a debt of `table` through the model's queue.
    ///
    /// # Errors
    /// If the model refuses a command, which is a defect.
    pub(crate) fn pay(
        &self,
        table: TableId,
        caps: &Capabilities,
        quirks: &Quirks,
        mut gather: Gather,
    ) -> Result<Quiesced> {
        let context = CONTEXT;
        let of = Tagged { table, context };
        let paid = match gather.unmapped() {
            [] => sync(&self.iommu.map_side(), of, caps, quirks, &mut gather),
            _ => sync(&self.iommu, of, caps, quirks, &mut gather),
        };
        paid.map_err(|error| anyhow!("the model refused an invalidation: {error}"))
    }

    /// Carries out the steps of an unmap's debt.
    ///
    /// # Errors
    /// If the model refuses one, which is a defect.
    pub(crate) fn execute(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), QueueError> {
        self.iommu.execute(steps)
    }

    /// Carries out the steps of a map's debt.
    ///
    /// # Errors
    /// As [`Rig::execute`].
    pub(crate) fn execute_after_map(
        &self,
        steps: &mut dyn Iterator<Item = Step>,
    ) -> Result<(), QueueError> {
        self.iommu.map_side().execute(steps)
    }

    /// Lets the device read at `iova`; a fault is counted by the model.
    #[inline]
    pub(crate) fn touch(&self, iova: Iova) {
        let _ = self.iommu.translate(STREAM, iova, AccessKind::Read);
    }

    /// Lets the device write at `iova`; a fault is counted by the model.
    pub(crate) fn fill(&self, iova: Iova) {
        let _ = self.iommu.translate(STREAM, iova, AccessKind::Write);
    }

    /// What happened.
    pub(crate) fn counters(&self) -> Counters {
        self.iommu.counters()
    }

    /// Nanoseconds that the device waited for walks.
    pub(crate) fn stall_ns(&self) -> f64 {
        self.iommu.stall_ns()
    }
}
