//! The random machine of a round: the abilities of its IOMMU and the options of the plan.

use fastrand::Rng;
use portolan::addr::PageSize;
use portolan::inval::{
    Caching, Capabilities, LeafOnly, PageForm, Preference, Quirks, RangeForm, WalkFlush, Walker,
    WriteBuffer,
};
use portolan_sim::iommu::Names;

use super::sabotage::DebtSabotage;

/// More commands than this are never wanted, so that a round ends.
const MOST_COMMANDS: u64 = 2048;

fn one_of<T: Copy, const N: usize>(rng: &mut Rng, all: [T; N]) -> T {
    all[rng.usize(..N)]
}

/// Random capabilities, under which `sabotage` matters.
pub(super) fn capabilities(
    rng: &mut Rng,
    granule: PageSize,
    sabotage: DebtSabotage,
) -> Capabilities {
    let range = match rng.u8(..3) {
        0 => RangeForm::Absent,
        1 => RangeForm::PowerOfTwo { max_lg2_pages: rng.u8(..=40) },
        _ => RangeForm::NumScale { max_num: rng.u8(1..=32), max_scale: rng.u8(..=31) },
    };
    let pages = [PageForm::Absent, PageForm::Granule, PageForm::Whole];
    let mut caps = Capabilities {
        granule,
        page: one_of(rng, pages),
        range,
        leaf_only: one_of(rng, [LeafOnly::Absent, LeafOnly::Present]),
        walker: one_of(rng, [Walker::Coherent, Walker::NonCoherent]),
        caching: one_of(rng, [Caching::PresentOnly, Caching::NotPresentToo]),
        write_buffer: one_of(rng, [WriteBuffer::Absent, WriteBuffer::MustFlush]),
    };
    sabotage.concerns(&mut caps);
    if sabotage == DebtSabotage::WalkCaches {
        // By context, there is nothing to make shallow.
        caps.page = PageForm::Granule;
        caps.range = RangeForm::PowerOfTwo { max_lg2_pages: 40 };
    }
    if let (PageForm::Whole, RangeForm::NumScale { .. }) = (caps.page, caps.range) {
        // Of several exact runs none need name a large page whole: no hardware has both.
        caps.range = RangeForm::Absent;
    }
    caps
}

/// Part of a page that an invalidation has to name, on a machine with these capabilities.
pub(super) fn names(caps: &Capabilities) -> Names {
    match caps.page {
        PageForm::Whole => Names::WholePage,
        PageForm::Absent | PageForm::Granule => Names::AnyPart,
    }
}

/// Random quirks, under which `sabotage` matters.
pub(super) fn quirks(rng: &mut Rng, sabotage: DebtSabotage) -> Quirks {
    let mut quirks = Quirks {
        walk_flush: one_of(rng, [WalkFlush::ByAddress, WalkFlush::ByContext]),
        preference: one_of(
            rng,
            [Preference::Fewest, Preference::ByPage, Preference::ByRange, Preference::ByContext],
        ),
        context_above: one_of(rng, [0, 1, 2, 33, MOST_COMMANDS]),
        repeat: rng.u8(..=2),
    };
    if sabotage == DebtSabotage::WalkCaches {
        quirks.walk_flush = WalkFlush::ByAddress;
        quirks.preference = Preference::Fewest;
        quirks.context_above = MOST_COMMANDS;
    }
    if sabotage == DebtSabotage::LargePages {
        quirks.walk_flush = WalkFlush::ByAddress;
        quirks.preference = Preference::ByPage;
        // A block of 512 MiB has as many pages of 64 KiB.
        quirks.context_above = 1 << 13;
    }
    if sabotage == DebtSabotage::LastCommand {
        quirks.repeat = 1;
    }
    quirks
}
