//! Domains of a unit: tables, an identifier, and the descriptor or entry that points at them.
//!
//! IHI 0070, sections 5.4 (context descriptor) and 5.2 (second-stage fields of the entry); input
//! and output widths as in DDI 0487, section D8.2.
//!
//! *Context.* Interrupt: the public types here are values.

use super::command::SmmuTag;
use super::features::{Features, StallModel, TableUpdate};
use super::queue::{SmmuQueue, granule_code};
use super::unit::Smmu;
use crate::chassis::arm::{self, StageReach};
use crate::chassis::handed::handover_methods;
use crate::chassis::{common_methods, plain};
use crate::ids::Ids;
use crate::promise;
use alloc::sync::Arc;
use core::sync::atomic::AtomicU64;
use portolan::addr::{Asid, PageSize, PhysAddr, StreamId, Vmid};
use portolan::inval::{Capabilities, Quirks};
use portolan::iommu::{
    AttachError, BoundDomain, Conditions, DeviceTlb, Iommu, IommuDomains, IommuError, PagedDomain,
    RecoverableFaults, Stage,
};
use portolan::platform::{AllMemory, ForeignTables, OutOfTableMemory, TableMem, UnitPlatform};
use portolan::table::PageTable;
use portolan::table::format::{
    Armv8Config, Armv8Stage1, Armv8Stage2, DirtyTracking, Format, SplitRule,
};
use portolan_spec::smmuv3::{cd, ste};

/// A domain over tables of format `F`.
type Over<F, P> = Tables<F, <P as UnitPlatform>::Memory, P>;
/// The same, with tables in memory `T`.
type Tables<F, T, P> = PagedDomain<F, T, SmmuQueue<P>>;
/// A first-stage domain with a granule of `2^G` bytes.
pub type FirstStage<const G: u32, P> = Over<Armv8Stage1<G>, P>;
/// A first-stage domain over tables that a kernel built itself.
pub type ForeignFirstStage<const G: u32, P> = Tables<Armv8Stage1<G>, ForeignTables, P>;
/// A second-stage domain with a granule of `2^G` bytes.
pub type SecondStage<const G: u32, P> = Over<Armv8Stage2<G>, P>;

/// Options of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SmmuDomainOptions {
    /// Bits of an input address; the most that the unit has if `None`.
    pub input_lg2: Option<u32>,
    /// Dirty state that the hardware keeps: of units whose walks are coherent. It keeps it while the domain is there:
    /// marks that are switched off are not read.
    pub dirty: DirtyTracking,
    /// Way in which blocks are split; as the unit allows if `None`.
    pub split: Option<SplitRule>,
    /// Capabilities that the invalidation plan may use; all that the unit has if `None`.
    pub capabilities: Option<Capabilities>,
    /// Quirks that the plan respects.
    pub quirks: Quirks,
}

impl Default for SmmuDomainOptions {
    fn default() -> Self {
        Self {
            input_lg2: None,
            dirty: DirtyTracking::Off,
            split: None,
            capabilities: None,
            quirks: Quirks::default(),
        }
    }
}

/// Widths for granule `2^g` of a stage.
fn config(
    features: &Features,
    stage: StageReach,
    g: u32,
    options: &SmmuDomainOptions,
) -> Result<Armv8Config, IommuError> {
    let input_lg2 = arm::input_lg2(stage, g, options.input_lg2)?;
    // Without coherent walks, the unit's updates and the CPU's are not exchanged in one step.
    let keeps = features.update == TableUpdate::Dirty && features.coherent;
    let dirty = options.dirty == DirtyTracking::Hardware && !keeps;
    let direct = options.split == Some(SplitRule::Direct) && features.split != SplitRule::Direct;
    if dirty || direct {
        return Err(IommuError::Unsupported);
    }
    Ok(Armv8Config {
        input_lg2,
        output_lg2: output_lg2(features, g),
        split: options.split.unwrap_or(features.split),
        dirty: options.dirty,
    })
}

/// Bits of an output address of tables with granule `2^g`.
fn output_lg2(features: &Features, g: u32) -> u32 {
    features.output_lg2.min(if g == 16 { 52 } else { 48 })
}

/// *Context.* Task.
impl<P: UnitPlatform> Smmu<P> {
    /// An empty first-stage domain with a granule of `2^G` bytes.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`], [`IommuError::OutOfContexts`] or [`IommuError::Memory`].
    pub fn first_stage<const G: u32>(
        &self,
        options: &SmmuDomainOptions,
    ) -> Result<FirstStage<G, P>, IommuError> {
        let format = self.first_format(options)?;
        let mem = self.shared.machine.mem.clone();
        let tables = || PageTable::new(format, mem);
        let tag = |id| SmmuTag::Asid(Asid::new(id));
        self.domain(tables, &self.shared.asids, tag, options)
    }

    /// A first-stage domain over the tables of a process, which its kernel built and keeps: for a
    /// PASID of a device that shares them (SVA). `options` have the width of their addresses.
    /// Leaves have their access flag set, and name memory attributes by the indices of
    /// [`Armv8Stage1::MAIR`]. It has an ASID of its own: the unit does not listen to the CPUs'
    /// invalidations (DVM), which the kernel forwards ([`PagedDomain::invalidate`]).
    ///
    /// # Errors
    /// As [`Smmu::first_stage`], but for memory.
    pub fn foreign_first_stage<const G: u32>(
        &self,
        options: &SmmuDomainOptions,
        tables: ForeignTables,
    ) -> Result<ForeignFirstStage<G, P>, IommuError> {
        let format = self.first_format(options)?;
        let tables = || Ok(PageTable::foreign(format, tables));
        let tag = |id| SmmuTag::Asid(Asid::new(id));
        self.domain(tables, &self.shared.asids, tag, options)
    }

    /// The format of first-stage tables with a granule of `2^G` bytes.
    pub(super) fn first_format<const G: u32>(
        &self,
        options: &SmmuDomainOptions,
    ) -> Result<Armv8Stage1<G>, IommuError> {
        let features = &self.shared.features;
        let widest = if G == 16 { features.input_lg2 } else { 48 };
        let (present, granules) = (features.stage1, features.granules);
        let stage = StageReach { present, granules, widest_lg2: widest };
        let config = config(features, stage, G, options)?;
        Armv8Stage1::new(config).map_err(|_| IommuError::Unsupported)
    }

    /// An empty second-stage domain with a granule of `2^G` bytes.
    ///
    /// # Errors
    /// As [`Smmu::first_stage`].
    pub fn second_stage<const G: u32>(
        &self,
        options: &SmmuDomainOptions,
    ) -> Result<SecondStage<G, P>, IommuError> {
        let format = self.second_format(options)?;
        let mem = self.shared.machine.mem.clone();
        let tables = || PageTable::new(format, mem);
        let tag = |id| SmmuTag::Vmid(Vmid::new(id));
        self.domain(tables, &self.shared.vmids, tag, options)
    }

    /// The format of second-stage tables with a granule of `2^G` bytes.
    pub(super) fn second_format<const G: u32>(
        &self,
        options: &SmmuDomainOptions,
    ) -> Result<Armv8Stage2<G>, IommuError> {
        let features = &self.shared.features;
        let widest = arm::second_stage_width(output_lg2(features, G), G);
        let (present, granules) = (features.stage2, features.granules);
        let stage = StageReach { present, granules, widest_lg2: widest };
        let config = config(features, stage, G, options)?;
        Armv8Stage2::new(config).map_err(|_| IommuError::Unsupported)
    }

    /// A domain over `tables`, with a tag by one of `ids`.
    fn domain<F: Format<Word = AtomicU64>, T: TableMem<AtomicU64>>(
        &self,
        tables: impl FnOnce() -> Result<PageTable<F, T>, OutOfTableMemory>,
        ids: &Ids<P>,
        tag: impl FnOnce(u16) -> SmmuTag,
        options: &SmmuDomainOptions,
    ) -> Result<Tables<F, T, P>, IommuError> {
        let shared = &self.shared;
        let id = ids.take().ok_or(IommuError::OutOfContexts)?;
        let table = tables().inspect_err(|_| ids.give_back(id))?;
        let own = || shared.features.capabilities(F::GRANULE);
        let capabilities = options.capabilities.unwrap_or_else(own);
        let (context, quirks) = (tag(id as u16).context(), options.quirks);
        let queue = self.queue();
        Ok(PagedDomain::new(table, context, capabilities, quirks, queue))
    }
}

/// Cacheability and shareability of walks.
pub(super) fn walk_attributes(coherent: bool) -> (u64, u64) {
    if coherent { (ste::WRITE_BACK, ste::INNER) } else { (0, ste::OUTER) }
}

/// The descriptor of a first-stage domain.
pub(super) fn descriptor<const G: u32>(
    features: &Features,
    format: &Armv8Stage1<G>,
    root: PhysAddr,
    asid: Asid,
) -> cd::Cd {
    let config = format.config();
    let (cacheable, shareable) = walk_attributes(features.coherent);
    let mut words = [0; cd::WORDS];
    cd::T0SZ.set(&mut words, u64::from(64 - config.input_lg2));
    cd::TG0.set(&mut words, granule_code(PageSize::of_lg2(G)));
    cd::IR0.set(&mut words, cacheable);
    cd::OR0.set(&mut words, cacheable);
    cd::SH0.set(&mut words, shareable);
    cd::EPD1.set(&mut words, 1);
    cd::V.set(&mut words, 1);
    cd::IPS.set(&mut words, features.output_code(config.output_lg2));
    cd::AA64.set(&mut words, 1);
    if config.dirty == DirtyTracking::Hardware {
        cd::HA.set(&mut words, 1);
        cd::HD.set(&mut words, 1);
    }
    cd::R.set(&mut words, 1);
    cd::A.set(&mut words, 1);
    cd::ASET.set(&mut words, 1);
    cd::ASID.set(&mut words, asid.get().into());
    cd::TTB0.set(&mut words, root.get() >> 4);
    cd::MAIR.set(&mut words, Armv8Stage1::<G>::MAIR);
    words
}

/// Adds the second stage of a domain to an entry.
pub(super) fn describe_second_stage<const G: u32>(
    entry: &mut ste::Ste,
    features: &Features,
    format: &Armv8Stage2<G>,
    root: PhysAddr,
    vmid: Vmid,
) {
    let config = format.config();
    let (cacheable, shareable) = walk_attributes(features.coherent);
    ste::S2VMID.set(entry, vmid.get().into());
    ste::S2T0SZ.set(entry, u64::from(64 - config.input_lg2));
    ste::S2SL0.set(entry, arm::start_level(format).into());
    ste::S2IR0.set(entry, cacheable);
    ste::S2OR0.set(entry, cacheable);
    ste::S2SH0.set(entry, shareable);
    ste::S2TG.set(entry, granule_code(PageSize::of_lg2(G)));
    ste::S2PS.set(entry, features.output_code(config.output_lg2));
    ste::S2AA64.set(entry, 1);
    ste::S2PTW.set(entry, 1);
    ste::S2R.set(entry, 1);
    if config.dirty == DirtyTracking::Hardware {
        ste::S2HA.set(entry, 1);
        ste::S2HD.set(entry, 1);
    } else {
        ste::S2AFFD.set(entry, 1);
    }
    ste::S2TTB.set(entry, root.get() >> 4);
}

impl<P: UnitPlatform> IommuDomains for Smmu<P> {
    /// First-stage tables with the smallest granule, as Linux has it; second-stage tables where there
    /// is no first stage.
    fn new_domain(self: Arc<Self>) -> Result<BoundDomain, IommuError> {
        let options = SmmuDomainOptions::default();
        let has = |granule| self.features().granules.contains(granule);
        macro_rules! domain {
            ($make:ident, $lg2:literal) => {{
                let domain = Arc::new(self.$make::<$lg2>(&options)?);
                Ok(BoundDomain::new(self, domain, promise::drivers()))
            }};
        }
        let stage = self.conditions().stage;
        match stage {
            Stage::First if has(PageSize::SIZE_4K) => domain!(first_stage, 12),
            Stage::First if has(PageSize::of_lg2(14)) => domain!(first_stage, 14),
            Stage::First => domain!(first_stage, 16),
            Stage::Second if has(PageSize::SIZE_4K) => domain!(second_stage, 12),
            Stage::Second if has(PageSize::of_lg2(14)) => domain!(second_stage, 14),
            Stage::Second => domain!(second_stage, 16),
        }
    }

    fn conditions(&self) -> Conditions {
        plain(if self.features().stage1 { Stage::First } else { Stage::Second })
    }

    fn recoverable_faults(&self) -> RecoverableFaults {
        let features = self.features();
        match (features.stalls, features.pri) {
            (StallModel::Terminate, false) => RecoverableFaults::Absent,
            _ => RecoverableFaults::Present,
        }
    }

    /// The stream has to be blocked, and must not stall.
    fn use_device_tlb(
        &self,
        stream: StreamId,
        _: DeviceTlb,
        all: AllMemory,
    ) -> Result<(), IommuError> {
        self.enable_ats(stream, all).map_err(|error| match error {
            AttachError::Iommu(error) => error,
            _ => IommuError::Unsupported,
        })
    }

    common_methods!();
    handover_methods!();
}
