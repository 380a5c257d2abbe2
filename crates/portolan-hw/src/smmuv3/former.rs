//! Entries of a former kernel's stream table, for streams that go on through its tables.
//!
//! IHI 0070, sections 3.3 (stream table and context descriptors), 5.1 to 5.4, 6.3.24 (STRTAB_BASE) and 6.3.25
//! (STRTAB_BASE_CFG). An entry goes on as it is, but for its substreams: word 0 then names the one descriptor that
//! accesses without a substream use, so that a linear table needs no more than that word. Identifiers stay the former
//! kernel's: until the unit has forgotten everything, these tag what it has cached of the same tables.
//!
//! Not supported: substreams, except of a guest's first stage, which goes on whole.

use super::features::Features;
use super::queue::SmmuShared;
use crate::chassis::{Present as _, arm};
use alloc::vec::Vec;
use portolan::addr::{Iova, PageSize, PhysAddr, StreamId};
use portolan::iommu::IommuError;
use portolan::platform::{FormerMemory, Mmio, OutOfTableMemory, UnitPlatform};
use portolan::table::Translation;
use portolan::table::format::{Armv8Config, Armv8Stage1, Armv8Stage2, DirtyTracking, SplitRule};
use portolan_spec::smmuv3::cd::granule;
use portolan_spec::smmuv3::{address, cd, reg, ste};

/// Exponents of the number of streams of a second-level table that the architecture has.
const SPLITS: [u32; 3] = [6, 8, 10];

/// Shape and place of a former kernel's stream table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FormerShape {
    pub(super) root: PhysAddr,
    /// Exponent of the number of streams.
    pub(super) lg2: u32,
    /// Exponent of the number of streams of a second-level table; `None` for a linear table.
    pub(super) split: Option<u32>,
}

impl FormerShape {
    /// Exponent of the bytes of the table, or of its first level.
    pub(super) fn bytes_lg2(&self) -> u32 {
        match self.split {
            Some(split) => self.lg2.saturating_sub(split) + 3,
            None => self.lg2 + ste::LG2_BYTES,
        }
    }
}

/// Identifiers of a kept entry's translations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeptTags {
    /// Of a first stage; 0 without one.
    pub(super) asid: u16,
    /// Of a second stage; 0 where none is named.
    pub(super) vmid: u16,
}

/// Stream that goes on through the tables of a former kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeptStream {
    pub(super) stream: StreamId,
    pub(super) entry: ste::Ste,
    /// `None` if the stream passes through.
    pub(super) tags: Option<KeptTags>,
}

/// The stream table that a former kernel left.
pub(super) struct FormerStreams<'r> {
    pub(super) shape: FormerShape,
    memory: FormerMemory<'r>,
}

impl<'r> FormerStreams<'r> {
    /// The table that the unit uses, if it translates.
    ///
    /// # Errors
    /// [`IommuError::Nonsense`] for a shape that there is not.
    pub(super) fn of(
        registers: &impl Mmio,
        features: &Features,
        memory: FormerMemory<'r>,
    ) -> Result<Option<Self>, IommuError> {
        if registers.present32(reg::CR0ACK)? & reg::cr0::SMMUEN == 0 {
            return Ok(None);
        }
        let base = registers.present64(reg::STRTAB_BASE)?;
        let value = u64::from(registers.present32(reg::STRTAB_BASE_CFG)?);
        let nonsense = IommuError::Nonsense { offset: reg::STRTAB_BASE_CFG, value };
        let split = match reg::STRTAB_FMT.of(value) {
            0 => None,
            1 if features.two_level_streams => {
                let split = reg::STRTAB_SPLIT.of(value) as u32;
                Some(SPLITS.into_iter().find(|known| *known == split).ok_or(nonsense)?)
            }
            _ => return Err(nonsense),
        };
        let lg2 = (reg::STRTAB_LOG2SIZE.of(value) as u32).min(features.stream_lg2);
        let mut shape = FormerShape { root: PhysAddr::new(0), lg2, split };
        shape.root = PhysAddr::new(address(base, shape.bytes_lg2().max(ste::LG2_BYTES)));
        Ok(Some(Self { shape, memory }))
    }

    fn word(&self, at: u64) -> Option<u64> {
        self.memory.word(PhysAddr::new(at))
    }

    /// The entry of `stream`, if there is one.
    fn entry(&self, stream: StreamId) -> Option<ste::Ste> {
        let FormerShape { root, lg2, split } = self.shape;
        let index = Some(u64::from(stream.get())).filter(|index| index >> lg2 == 0)?;
        let first = match split {
            None => root.get() + (index << ste::LG2_BYTES),
            Some(split) => {
                let descriptor = self.word(root.get() + (index >> split) * 8)?;
                let span = (ste::level1::SPAN.get(&[descriptor]) as u32).checked_sub(1)?;
                let within = index & ((1 << split) - 1);
                if span > split || within >> span != 0 {
                    return None;
                }
                address(descriptor, span + ste::LG2_BYTES) + (within << ste::LG2_BYTES)
            }
        };
        let mut entry = [0; ste::WORDS];
        for (number, word) in (0..).zip(&mut entry) {
            *word = self.word(first + number * 8)?;
        }
        Some(entry)
    }

    /// The entry with which `stream` goes on, if it lets something through that can be kept.
    pub(super) fn kept(&self, stream: StreamId) -> Option<KeptStream> {
        let mut entry = self.entry(stream).filter(|entry| ste::V.get(entry) != 0)?;
        let vmid = ste::S2VMID.get(&entry) as u16;
        let tags = match ste::CONFIG.get(&entry) {
            ste::config::BYPASS => None,
            // Of a guest's first stage all tags have this VMID as well.
            ste::config::STAGE2 | ste::config::NESTED if vmid != 0 => {
                Some(KeptTags { asid: 0, vmid })
            }
            ste::config::STAGE1 => {
                self.first_stage(&mut entry)?.map(|asid| KeptTags { asid, vmid })
            }
            _ => return None,
        };
        Some(KeptStream { stream, entry, tags })
    }

    /// The streams of `keep` that can go on, in order; those that pass through with leave alone.
    pub(super) fn all_kept(&self, keep: &[StreamId]) -> Result<Vec<KeptStream>, IommuError> {
        let mut kept: Vec<KeptStream> = Vec::new();
        kept.try_reserve(keep.len()).map_err(|_| OutOfTableMemory { size: PageSize::SIZE_4K })?;
        kept.extend(keep.iter().filter_map(|stream| self.kept(*stream)));
        kept.retain(|one| self.memory.passes().is_some() || one.tags.is_some());
        kept.sort_by_key(|one| one.stream);
        kept.dedup_by_key(|one| one.stream);
        Ok(kept)
    }

    /// Translation of `iova` for accesses of `stream` without a substream, if one stage translates them.
    pub(super) fn translate(&self, stream: StreamId, iova: Iova) -> Option<Translation> {
        let entry = self.kept(stream)?.entry;
        match ste::CONFIG.get(&entry) {
            ste::config::STAGE1 => {
                let at = ste::S1CONTEXTPTR.get(&entry) << 6;
                let descriptor = [self.word(at)?, self.word(at + 8)?];
                if cd::AA64.get(&descriptor) == 0 || cd::EPD0.get(&descriptor) != 0 {
                    return None;
                }
                let root = PhysAddr::new(cd::TTB0.get(&descriptor) << 4);
                let of = config(cd::T0SZ.get(&descriptor));
                let memory = &self.memory;
                match cd::TG0.get(&descriptor) {
                    granule::SIZE_4K => {
                        memory.translate(&Armv8Stage1::<12>::new(of(48)).ok()?, root, iova)
                    }
                    granule::SIZE_16K => {
                        memory.translate(&Armv8Stage1::<14>::new(of(48)).ok()?, root, iova)
                    }
                    granule::SIZE_64K => {
                        memory.translate(&Armv8Stage1::<16>::new(of(52)).ok()?, root, iova)
                    }
                    _ => None,
                }
            }
            // Roots of several tables are not known here.
            ste::config::STAGE2 if ste::S2TG.get(&entry) == granule::SIZE_4K => {
                let root = PhysAddr::new(ste::S2TTB.get(&entry) << 4);
                let format = Armv8Stage2::<12>::new(config(ste::S2T0SZ.get(&entry))(48)).ok()?;
                let whole = u64::from(arm::start_level(&format)) == ste::S2SL0.get(&entry);
                whole.then(|| self.memory.translate(&format, root, iova)).flatten()
            }
            _ => None,
        }
    }

    /// Leaves one descriptor to `entry`, and returns its ASID; none if accesses without a substream pass through.
    fn first_stage(&self, entry: &mut ste::Ste) -> Option<Option<u16>> {
        let pointer = ste::S1CONTEXTPTR.get(entry) << 6;
        let lg2 = ste::S1CDMAX.get(entry) as u32;
        let mut at = address(pointer, cd::LG2_BYTES);
        if lg2 != 0 {
            match ste::S1DSS.get(entry) {
                ste::s1dss::SSID0 => {}
                // An entry that passes through refuses translation requests.
                ste::s1dss::BYPASS if ste::EATS.get(entry) == ste::eats::ABORT => {
                    ste::CONFIG.set(entry, ste::config::BYPASS);
                    return Some(None);
                }
                _ => return None,
            }
            at = match ste::S1FMT.get(entry) {
                ste::s1fmt::LINEAR => address(pointer, lg2 + cd::LG2_BYTES),
                ste::s1fmt::TWO_LEVEL_4K | ste::s1fmt::TWO_LEVEL_64K => {
                    let upper = self.word(pointer)?;
                    (cd::level1::V.get(&[upper]) != 0).then_some(address(upper, 12))?
                }
                _ => return None,
            };
            ste::S1CDMAX.set(entry, 0);
            ste::S1FMT.set(entry, ste::s1fmt::LINEAR);
            ste::S1CONTEXTPTR.set(entry, at >> 6);
        }
        let descriptor = [self.word(at)?];
        (cd::V.get(&descriptor) != 0).then_some(Some(cd::ASID.get(&descriptor) as u16))
    }
}

/// Widths of tables whose input is `2^(64 - less)` addresses, by their outputs' width.
fn config(less: u64) -> impl Fn(u32) -> Armv8Config {
    let input_lg2 = u64::BITS.saturating_sub(less as u32);
    let (split, dirty) = (SplitRule::BreakBeforeMake, DirtyTracking::Off);
    move |output_lg2| Armv8Config { input_lg2, output_lg2, split, dirty }
}

/// Translation of `iova` for `stream` by the tables of the kernel before, which `memory` reads, as far as one stage of
/// the unit of these registers translates the stream: at most 17 words are read, and no register is written.
///
/// *Context.* Interrupt, if the embedder's reading is.
///
/// # Errors
/// [`IommuError::Gone`], and [`IommuError::Nonsense`] for a table of a shape that there is not.
pub(crate) fn former_translation(
    registers: &impl Mmio,
    memory: FormerMemory<'_>,
    stream: StreamId,
    iova: Iova,
) -> Result<Option<Translation>, IommuError> {
    let former = FormerStreams::of(registers, &Features::read(registers)?, memory)?;
    Ok(former.and_then(|former| former.translate(stream, iova)))
}

/// Takes the identifiers of `all` out of use, and leaves out the streams whose identifiers are needed otherwise.
pub(super) fn reserve<P: UnitPlatform>(shared: &SmmuShared<P>, all: &mut Vec<KeptStream>) {
    let mut held: Vec<KeptTags> = Vec::new();
    all.retain(|one| {
        let Some(tags) = one.tags else { return true };
        let KeptTags { asid, vmid } = tags;
        // No domain has the identifier 0.
        let asid = asid == 0
            || held.iter().any(|other| other.asid == asid)
            || shared.asids.take_this(asid.into());
        let vmid = vmid == 0
            || held.iter().any(|other| other.vmid == vmid)
            || shared.vmids.take_this(vmid.into());
        if asid && vmid {
            held.push(tags);
        }
        asid && vmid
    });
}

#[cfg(test)]
mod tests;
