//! The unit of most benchmarks: its format, its abilities, and the space of a device behind it.
//!
//! Arm DDI 0487, Armv8 stage 1; Arm IHI 0070 (SMMUv3), range invalidation. Compiled with SSE and, in `no-sse`, without.

use portolan::addr::{InvalTag, Iova, IovaRange, PageSize};
use portolan::dma::{LazyBounds, Policy, SpaceOptions};
use portolan::inval::{Capabilities, Preference, Quirks, RangeForm, WalkFlush};
use portolan::platform::Nanos;
use portolan::table::format::{
    Armv8Config, Armv8ConfigError, Armv8Stage1, DirtyTracking, SplitRule,
};

pub(crate) type Format = Armv8Stage1<12>;

pub(crate) const BASE: Iova = Iova::new(0x12_4000_0000);
pub(crate) const CONTEXT: InvalTag = InvalTag::new(1);
/// Bits of an input address: three levels.
pub(crate) const INPUT_BITS: u32 = 39;
/// Pages of tables of a space.
pub(crate) const TABLE_PAGES: u32 = 1 << 14;

/// SMMUv3 with range invalidation and a coherent walker.
pub(crate) const CAPS: Capabilities = Capabilities {
    range: RangeForm::NumScale { max_num: 32, max_scale: 31 },
    ..Capabilities::new(PageSize::SIZE_4K)
};

pub(crate) const QUIRKS: Quirks = Quirks {
    walk_flush: WalkFlush::ByAddress,
    preference: Preference::Fewest,
    context_above: u64::MAX,
    repeat: 1,
};

pub(crate) fn format() -> Result<Format, Armv8ConfigError> {
    Armv8Stage1::new(Armv8Config {
        input_lg2: INPUT_BITS,
        output_lg2: 44,
        split: SplitRule::BreakBeforeMake,
        dirty: DirtyTracking::Off,
    })
}

/// A space of 4 GiB in which nothing grows old.
pub(crate) fn space_options(policy: Policy) -> SpaceOptions {
    let mut options = SpaceOptions::default();
    if let Some(window) = IovaRange::from_len(BASE, 1 << 32) {
        options.window = window;
    }
    options.policy = policy;
    options.bounds = LazyBounds { age: Nanos::new(u64::MAX), ..LazyBounds::default() };
    options
}
