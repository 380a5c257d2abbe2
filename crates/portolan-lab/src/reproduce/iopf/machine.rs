//! A container of the library over the model: a device that faults, tries again, and is counted.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use portolan::addr::{Iova, IovaRange, PageSize, Pasid, PhysAddr, StreamId};
use portolan::demand::premap::Requester;
use portolan::demand::{
    Frames, Ioas, IoasOptions, Pager, PopulateError, RegionOptions, Request, Residency, Window,
};
use portolan::table::{Access, Format, PageTable};
use portolan_model::cpus::VirtualCpus;
use portolan_model::decode::{AccessKind, TableFormat, TableRoot};
use portolan_model::iommu::StreamConfig;
use portolan_model::profile::Profile;

use crate::fixture::{self, CONTEXT, LabDomain, Model, ModelQueue};

const STREAM: StreamId = StreamId::new(1);
const PAGE: u64 = PageSize::SIZE_4K.bytes();
/// Where the owner's memory lies behind the IOMMU, above the address that leads there.
const MEMORY: u64 = 1 << 44;
const TABLE_PAGES: u32 = 1024;
/// Accesses to a page until it goes through: one that faults, and one after that.
const TRIES: u32 = 2;

/// What a device did to a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// Faults.
    pub(super) faults: u64,
    /// Pages that they mapped.
    pub(super) mapped: u64,
    /// Pages that the device accessed.
    pub(super) used: u64,
}

impl Counted {
    /// Of each hundred pages mapped, those that the device did not access.
    pub(super) fn wasted_pct(self) -> f64 {
        100.0 * (self.mapped - self.used) as f64 / self.mapped.max(1) as f64
    }
}

/// Memory that is always there, in one piece.
struct Contiguous;

impl Pager for Contiguous {
    fn populate(
        &self,
        range: IovaRange,
        _access: Access,
        frames: &mut Frames,
    ) -> Result<(), PopulateError> {
        let pa = PhysAddr::new(MEMORY + range.start().get());
        let iova = range.start();
        (frames.push(pa, range.len_minus_one() + 1))
            .map_err(|_| PopulateError::OutOfMemory { iova })
    }

    fn pin(
        &self,
        range: IovaRange,
        access: Access,
        frames: &mut Frames,
    ) -> Result<(), PopulateError> {
        self.populate(range, access, frames)
    }

    fn unpin(&self, _range: IovaRange) {}
}

/// One device and the memory that it may use.
pub(super) struct Machine<F: Format> {
    model: Arc<Model>,
    container: Ioas<LabDomain<F>, Contiguous, VirtualCpus>,
    pasid: Option<Pasid>,
    used: BTreeSet<u64>,
}

impl<F: Format> Machine<F> {
    /// A device that may use `memory` bytes from address 0, tagged with `pasid`.
    pub(super) fn new(
        profile: &Profile,
        format: F,
        layout: TableFormat,
        window: Window,
        pasid: Option<Pasid>,
        memory: u64,
    ) -> Result<Self> {
        let (caps, quirks) = (profile.capabilities(), profile.quirks());
        let tables = fixture::tables(&format, TABLE_PAGES);
        let table = PageTable::new(format, tables.clone())?;
        let model = fixture::model::<F>(profile, caps, tables)?;
        let config = StreamConfig::Translate {
            context: CONTEXT,
            table: TableRoot {
                root: table.root(),
                format: layout,
            },
        };
        model.attach(STREAM, config);
        let cpus = fixture::cpus(1);
        let queue = Arc::new(ModelQueue::new(model.clone(), cpus.clone()));
        let domain = LabDomain::<F>::new(table, CONTEXT, caps, quirks, queue);
        let options = IoasOptions {
            window,
            ..IoasOptions::default()
        };
        let container = Ioas::new(Arc::new(domain), cpus, options);
        let region = RegionOptions {
            range: IovaRange::from_len(Iova::new(0), memory).context("memory without bytes")?,
            access: Access::READ | Access::WRITE,
            hold: Residency::OnDemand,
        };
        container.add_region(&region, Contiguous)?;
        Ok(Self {
            model,
            container,
            pasid,
            used: BTreeSet::new(),
        })
    }

    /// The device accesses a page; whether it faulted.
    pub(super) fn access(&mut self, page: u64, kind: AccessKind) -> Result<bool> {
        self.used.insert(page);
        let iova = Iova::new(page * PAGE);
        let access = match kind {
            AccessKind::Write => Access::WRITE,
            _ => Access::READ,
        };
        for tried in 0..TRIES {
            if let Ok(found) = self.model.translate(STREAM, iova, kind) {
                if found.pa != PhysAddr::new(MEMORY + iova.get()) {
                    bail!("{iova} leads to {}", found.pa);
                }
                return Ok(tried != 0);
            }
            let who = Requester {
                stream: STREAM,
                pasid: self.pasid,
            };
            let request = Request { who, iova, access };
            self.container
                .fault(&request)
                .map_err(|error| anyhow!(error).context("a fault was not served"))?;
        }
        bail!("{iova} faults after its fault was served");
    }

    /// What happened so far.
    pub(super) fn counted(&self) -> Counted {
        let usage = self.container.usage();
        Counted {
            faults: usage.faults,
            mapped: usage.granules_mapped,
            used: self.used.len() as u64,
        }
    }
}
