//! Domains of a unit: tables, an identifier, and the descriptor or entry that points at them.
//!
//! IHI 0070, sections 5.4 (context descriptor) and 5.2 (second-stage fields of the entry); input
//! and output widths as in DDI 0487, section D8.2.
//!
//! *Context.* Interrupt: the public types here are values.

use super::context::Tag;
use super::features::{Features, Has, TableUpdate};
use super::shared::{Shared, SmmuQueue, granule_code};
use super::spec::{cd, ste};
use alloc::sync::Arc;
use core::sync::atomic::AtomicU64;
use portolan::addr::{Asid, PageSize, PhysAddr, Vmid};
use portolan::inval::{Capabilities, Quirks};
use portolan::iommu::{IommuError, PagedDomain, TagPool};
use portolan::platform::{Cpus, Mmio, TableMem};
use portolan::table::PageTable;
use portolan::table::format::{
    Armv8Config, Armv8Stage1, Armv8Stage2, DirtyTracking, Format, SplitRule,
};

/// A first-stage domain with a granule of `2^G` bytes.
pub type FirstStage<const G: u32, R, M, C> = PagedDomain<Armv8Stage1<G>, M, SmmuQueue<R, M, C>>;
/// A second-stage domain with a granule of `2^G` bytes.
pub type SecondStage<const G: u32, R, M, C> = PagedDomain<Armv8Stage2<G>, M, SmmuQueue<R, M, C>>;

/// A domain over tables of format `F`.
type Over<F, R, M, C> = PagedDomain<F, M, SmmuQueue<R, M, C>>;

/// What a domain is to be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainOptions {
    /// Bits of an input address; the most that the unit has if `None`.
    pub input_lg2: Option<u32>,
    /// Whether the hardware keeps dirty state.
    pub dirty: DirtyTracking,
    /// How blocks are split; as the unit allows if `None`.
    pub split: Option<SplitRule>,
    /// What the invalidation plan may use; all that the unit has if `None`.
    pub capabilities: Option<Capabilities>,
    /// How it chooses.
    pub quirks: Quirks,
}

impl Default for DomainOptions {
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

/// Narrowest input address that a descriptor can name.
const NARROWEST: u32 = 25;

/// Widths for granule `2^g`, with input addresses of at most `widest` bits.
fn config(
    features: &Features,
    options: &DomainOptions,
    g: u32,
    widest: u32,
) -> Result<Armv8Config, IommuError> {
    let granule = PageSize::from_lg2(g).filter(|&g| features.granules.contains(g));
    granule.ok_or(IommuError::Unsupported)?;
    let input_lg2 = options.input_lg2.unwrap_or(widest);
    let dirty = options.dirty == DirtyTracking::Hardware && features.update != TableUpdate::Dirty;
    let direct = options.split == Some(SplitRule::Direct) && features.split != SplitRule::Direct;
    if input_lg2 > widest || input_lg2 < NARROWEST || dirty || direct {
        return Err(IommuError::Unsupported);
    }
    let most = if g == 16 { 52 } else { 48 };
    Ok(Armv8Config {
        input_lg2,
        output_lg2: features.output_lg2.min(most),
        split: options.split.unwrap_or(features.split),
        dirty: options.dirty,
    })
}

/// The widest input address of a second stage without tables side by side at its root: a walk from
/// the topmost level is allowed only with wide output addresses.
fn second_stage_width(features: &Features, g: u32) -> u32 {
    let step = g - 3;
    let output = features.output_lg2.min(if g == 16 { 52 } else { 48 });
    let wide = match g {
        12 => features.output_lg2 >= 44,
        14 => features.output_lg2 >= 42,
        _ => features.output_lg2 >= 44,
    };
    // Levels that may be used: four of 4 KiB tables and three of others, or one fewer.
    let levels = if g == 12 { 4 } else { 3 } - u32::from(!wide);
    output.min(g + levels * step)
}

/// A first-stage domain over fresh tables.
pub(super) fn first_stage<const G: u32, R, M, C>(
    shared: &Arc<Shared<R, M, C>>,
    options: &DomainOptions,
) -> Result<FirstStage<G, R, M, C>, IommuError>
where
    R: Mmio,
    M: TableMem<AtomicU64> + Clone,
    C: Cpus,
{
    let features = &shared.features;
    if features.stage1 == Has::No {
        return Err(IommuError::Unsupported);
    }
    let widest = if G == 16 { features.input_lg2 } else { 48 };
    let config = config(features, options, G, widest)?;
    let format = Armv8Stage1::<G>::new(config).map_err(|_| IommuError::Unsupported)?;
    let asid = shared.asids.take().ok_or(IommuError::OutOfContexts)?;
    let tag = Tag::Asid(Asid::new(asid as u16));
    domain(shared, format, tag, options).inspect_err(|_| shared.asids.give_back(asid))
}

/// A second-stage domain over fresh tables.
pub(super) fn second_stage<const G: u32, R, M, C>(
    shared: &Arc<Shared<R, M, C>>,
    options: &DomainOptions,
) -> Result<SecondStage<G, R, M, C>, IommuError>
where
    R: Mmio,
    M: TableMem<AtomicU64> + Clone,
    C: Cpus,
{
    let features = &shared.features;
    if features.stage2 == Has::No {
        return Err(IommuError::Unsupported);
    }
    let config = config(features, options, G, second_stage_width(features, G))?;
    let format = Armv8Stage2::<G>::new(config).map_err(|_| IommuError::Unsupported)?;
    let vmid = shared.vmids.take().ok_or(IommuError::OutOfContexts)?;
    let tag = Tag::Vmid(Vmid::new(vmid as u16));
    domain(shared, format, tag, options).inspect_err(|_| shared.vmids.give_back(vmid))
}

fn domain<F, R, M, C>(
    shared: &Arc<Shared<R, M, C>>,
    format: F,
    tag: Tag,
    options: &DomainOptions,
) -> Result<Over<F, R, M, C>, IommuError>
where
    F: Format<Word = AtomicU64>,
    R: Mmio,
    M: TableMem<AtomicU64> + Clone,
    C: Cpus,
    SmmuQueue<R, M, C>: TagPool,
{
    let table = PageTable::new(format, shared.machine.mem.clone())?;
    let capabilities = options
        .capabilities
        .unwrap_or_else(|| shared.features.capabilities(F::GRANULE));
    let queue = SmmuQueue(shared.clone());
    let (context, quirks) = (tag.context(), options.quirks);
    Ok(PagedDomain::new(
        table,
        context,
        capabilities,
        quirks,
        queue,
    ))
}

/// Cacheability and shareability of walks.
pub(super) fn walk_attributes(coherent: Has) -> (u64, u64) {
    match coherent {
        Has::Yes => (ste::WRITE_BACK, ste::INNER),
        Has::No => (0, ste::OUTER),
    }
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
    // The code counts levels from two with 4 KiB tables and from one with others.
    let fewest = if G == 12 { 2 } else { 1 };
    let begin = u64::from(format.levels().saturating_sub(fewest));
    ste::S2VMID.set(entry, vmid.get().into());
    ste::S2T0SZ.set(entry, u64::from(64 - config.input_lg2));
    ste::S2SL0.set(entry, begin);
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
