//! The parts of a profile that describe hardware, as they are written in its file.

use portolan::addr::PageSize;
use portolan::dma::{DeviceTlbPresence, Shadowing, TrapCost, Trust};
use portolan::inval::{
    Caching, Capabilities, LeafOnly, PageForm, Preference, Quirks, RangeForm, WalkFlush, Walker,
    WriteBuffer,
};
use serde::{Deserialize, Deserializer, Serialize, de};

use super::ProfileError;
use crate::decode::TableFormat;

/// Tag of translations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ContextKind {
    /// An address space identifier (first stage).
    Asid,
    /// A virtual machine identifier (second stage).
    Vmid,
    /// A domain identifier.
    Domain,
}

/// The command queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueLimits {
    /// Commands that fit before the queue has to drain.
    pub depth: u32,
    /// Nanoseconds after which a sync that has not completed is an error.
    pub deadline_ns: u64,
}

impl QueueLimits {
    pub(super) fn check(self) -> Result<Self, ProfileError> {
        if self.depth == 0 {
            let why = "a queue holds at least one command".to_owned();
            return Err(ProfileError::Value { key: "queue.depth", why });
        }
        Ok(self)
    }
}

/// Size of one cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheGeometry {
    /// Number of entries; a multiple of `ways`.
    pub entries: u32,
    /// Entries that compete for one place; as many as `entries` if fully associative.
    pub ways: u32,
}

/// Sizes of all caches, for the realistic temper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheSizes {
    /// Leaf translations.
    pub iotlb: CacheGeometry,
    /// Entries that point at tables: one cache of this size for each level.
    pub walk: CacheGeometry,
    /// Configuration of streams.
    pub configuration: CacheGeometry,
    /// Source of the sizes.
    pub source: String,
}

impl CacheSizes {
    pub(super) fn check(&self) -> Result<(), ProfileError> {
        let caches = [
            ("caches.iotlb", self.iotlb),
            ("caches.walk", self.walk),
            ("caches.configuration", self.configuration),
        ];
        for (key, cache) in caches {
            if cache.ways == 0 || cache.entries == 0 || cache.entries % cache.ways != 0 {
                let why = format!("{} entries in {} ways", cache.entries, cache.ways);
                return Err(ProfileError::Value { key, why });
            }
        }
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum FormatFile {
    #[serde(rename = "armv8-stage1")]
    Armv8Stage1 {
        #[serde(deserialize_with = "page_size")]
        granule: PageSize,
        input_lg2: u8,
        output_lg2: u8,
    },
    #[serde(rename = "armv8-stage2")]
    Armv8Stage2 {
        #[serde(deserialize_with = "page_size")]
        granule: PageSize,
        input_lg2: u8,
        output_lg2: u8,
    },
    VtdSecondStage {
        levels: u8,
    },
    VtdFirstStage {
        levels: u8,
    },
    Tegra {
        output_lg2: u8,
    },
    /// Host tables of version 1.
    AmdV1 {
        levels: u8,
    },
}

impl FormatFile {
    pub(super) fn check(self) -> Result<TableFormat, ProfileError> {
        let format = match self {
            Self::Armv8Stage1 { granule, input_lg2, output_lg2 } => {
                TableFormat::armv8_stage1(granule, input_lg2, output_lg2)
            }
            Self::Armv8Stage2 { granule, input_lg2, output_lg2 } => {
                TableFormat::armv8_stage2(granule, input_lg2, output_lg2)
            }
            Self::VtdSecondStage { levels } => TableFormat::vtd_second_stage(levels),
            Self::VtdFirstStage { levels } => TableFormat::vtd_first_stage(levels),
            Self::Tegra { output_lg2 } => TableFormat::tegra(output_lg2),
            Self::AmdV1 { levels } => TableFormat::amd_v1(levels),
        };
        format.map_err(|error| ProfileError::Value { key: "format", why: error.to_string() })
    }
}

fn page_size<'de, D: Deserializer<'de>>(from: D) -> Result<PageSize, D::Error> {
    let text = String::deserialize(from)?;
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'K')) => (&text[..at], 10),
        Some((at, 'M')) => (&text[..at], 20),
        Some((at, 'G')) => (&text[..at], 30),
        _ => (text.as_str(), 0),
    };
    let wrong = || de::Error::custom(format!("`{text}` is not a page size such as 4K or 2M"));
    let number: u32 = digits.parse().map_err(|_| wrong())?;
    if !number.is_power_of_two() {
        return Err(wrong());
    }
    PageSize::from_lg2(number.trailing_zeros() + unit).ok_or_else(wrong)
}

/// A core enumeration without fields, read from its words in kebab case.
macro_rules! words {
    ($mirror:ident => $core:ty { $($variant:ident),* }) => {
        #[derive(Clone, Copy, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub(super) enum $mirror { $($variant),* }

        impl From<$mirror> for $core {
            fn from(from: $mirror) -> Self {
                match from { $($mirror::$variant => Self::$variant),* }
            }
        }
    };
}

words!(PageWord => PageForm { Absent, Granule });
words!(LeafOnlyWord => LeafOnly { Absent, Present });
words!(WalkerWord => Walker { Coherent, NonCoherent });
words!(CachingWord => Caching { PresentOnly, NotPresentToo });
words!(WriteBufferWord => WriteBuffer { Absent, MustFlush });
words!(WalkFlushWord => WalkFlush { ByAddress, ByContext });
words!(ExitsWord => TrapCost { None, Expensive });
words!(DeviceTlbWord => DeviceTlbPresence { Absent, Present });
words!(ShadowingWord => Shadowing { None, CachingMode, WriteProtection, Requests });
words!(TrustWord => Trust { Trusted, Untrusted });
words!(PreferenceWord => Preference { Fewest, ByPage, ByRange, ByContext });

#[derive(Deserialize)]
#[serde(tag = "form", rename_all = "kebab-case", deny_unknown_fields)]
enum RangeFile {
    // Braces, so that unknown keys are errors here too.
    Absent {},
    PowerOfTwo { max_lg2_pages: u8 },
    NumScale { max_num: u8, max_scale: u8 },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CapabilitiesFile {
    #[serde(deserialize_with = "page_size")]
    granule: PageSize,
    page: PageWord,
    range: RangeFile,
    leaf_only: LeafOnlyWord,
    walker: WalkerWord,
    caching: CachingWord,
    write_buffer: WriteBufferWord,
}

impl From<CapabilitiesFile> for Capabilities {
    fn from(file: CapabilitiesFile) -> Self {
        Self {
            granule: file.granule,
            page: file.page.into(),
            range: match file.range {
                RangeFile::Absent {} => RangeForm::Absent,
                RangeFile::PowerOfTwo { max_lg2_pages } => RangeForm::PowerOfTwo { max_lg2_pages },
                RangeFile::NumScale { max_num, max_scale } => {
                    RangeForm::NumScale { max_num, max_scale }
                }
            },
            leaf_only: file.leaf_only.into(),
            walker: file.walker.into(),
            caching: file.caching.into(),
            write_buffer: file.write_buffer.into(),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QuirksFile {
    walk_flush: Option<WalkFlushWord>,
    preference: Option<PreferenceWord>,
    context_above: Option<u64>,
    repeat: Option<u8>,
}

impl From<QuirksFile> for Quirks {
    fn from(file: QuirksFile) -> Self {
        let usual = Self::default();
        Self {
            walk_flush: file.walk_flush.map_or(usual.walk_flush, Into::into),
            preference: file.preference.map_or(usual.preference, Into::into),
            context_above: file.context_above.unwrap_or(usual.context_above),
            repeat: file.repeat.unwrap_or(usual.repeat),
        }
    }
}

/// Inputs of a default policy besides the unit's invalidation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// Way in which a hypervisor follows tables. It does not shadow first-stage tables even under caching mode, so
    /// [`Capabilities::caching`] may report less.
    pub shadowing: Shadowing,
    /// Cost of an invalidation besides the unit's work.
    pub exits: TrapCost,
    /// Presence of device TLBs.
    pub device_tlb: DeviceTlbPresence,
    /// Trust in the devices.
    pub trust: Trust,
    /// CPUs that receive at once where an exit has its lowest price, its price and its highest, if the price ranges
    /// over their number.
    pub receiving: Option<[u32; 3]>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SurroundingsFile {
    shadowing: Option<ShadowingWord>,
    exits: Option<ExitsWord>,
    device_tlb: Option<DeviceTlbWord>,
    trust: Option<TrustWord>,
    receiving: Option<[u32; 3]>,
}

impl SurroundingsFile {
    /// Fills absent fields in: bare metal, and devices that are trusted and cache nothing.
    pub(super) fn filled(self) -> Surroundings {
        Surroundings {
            shadowing: self.shadowing.map_or(Shadowing::None, Into::into),
            exits: self.exits.map_or(TrapCost::None, Into::into),
            device_tlb: self.device_tlb.map_or(DeviceTlbPresence::Absent, Into::into),
            trust: self.trust.map_or(Trust::Trusted, Into::into),
            receiving: self.receiving,
        }
    }
}
