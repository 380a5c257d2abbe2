//! Common code for the architectures of Arm's SMMUs: widths of the tables that both of them walk
//! (DDI 0487, section D8.2), and the treatment of accesses while a unit is disabled.

use portolan::addr::{PageSize, PageSizes};
use portolan::inval::Walker;
use portolan::iommu::IommuError;
use portolan::platform::AllMemory;
use portolan::table::Format;
use portolan::table::format::Armv8Stage2;

/// Treatment of accesses while a unit is disabled.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenDisabled {
    /// They are aborted: they fault.
    Abort,
    /// They pass through, as that gives leave to.
    Bypass(AllMemory),
}

/// Walker of a unit with or without coherent access.
pub(crate) const fn walker(coherent: bool) -> Walker {
    if coherent { Walker::Coherent } else { Walker::NonCoherent }
}

/// Coherent access of a unit with this walker.
pub(crate) const fn is_coherent(walker: Walker) -> bool {
    matches!(walker, Walker::Coherent)
}

/// Granules by a unit's flags for those of 4, 16 and 64 KiB; `None` if it has none.
pub(crate) fn granules(of: [bool; 3]) -> Option<PageSizes> {
    let there = of.into_iter().zip([12, 14, 16]).filter(|(has, _)| *has);
    let all = there.fold(PageSizes::default(), |set, (_, lg2)| set.with(PageSize::of_lg2(lg2)));
    all.smallest().map(|_| all)
}

/// Narrowest input address that a descriptor or a bank can name.
const NARROWEST: u32 = 25;

/// One stage of a unit, and the tables that it walks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StageReach {
    /// Set if the unit has the stage.
    pub(crate) present: bool,
    pub(crate) granules: PageSizes,
    /// Bits of the widest input address.
    pub(crate) widest_lg2: u32,
}

/// Bits of an input address of a stage with granule `2^g`: the most that there are, or `wanted`.
///
/// # Errors
/// [`IommuError::Unsupported`] without the stage or the granule, or if it has not as many or as few.
pub(crate) fn input_lg2(stage: StageReach, g: u32, wanted: Option<u32>) -> Result<u32, IommuError> {
    let granule = PageSize::from_lg2(g).is_some_and(|g| stage.granules.contains(g));
    let input_lg2 = wanted.unwrap_or(stage.widest_lg2);
    let fits = (NARROWEST..=stage.widest_lg2).contains(&input_lg2);
    if stage.present && granule && fits { Ok(input_lg2) } else { Err(IommuError::Unsupported) }
}

/// The widest input address of a second stage without tables side by side at its root: a walk from
/// the topmost level is allowed only with wide addresses, of `lg2` bits, behind it.
pub(crate) fn second_stage_width(lg2: u32, g: u32) -> u32 {
    let wide = lg2 >= if g == 14 { 42 } else { 44 };
    // Levels that may be used: four of 4 KiB tables and three of others, or one fewer.
    let levels = if g == 12 { 4 } else { 3 } - u32::from(!wide);
    lg2.min(g + levels * (g - 3))
}

/// The code of the level at which the walk of a second stage begins.
pub(crate) fn start_level<const G: u32>(format: &Armv8Stage2<G>) -> u32 {
    // It counts levels from two with 4 KiB tables and from one with others.
    let fewest = if G == 12 { 2 } else { 1 };
    format.levels().saturating_sub(fewest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_address_has_25_bits_at_least_and_as_many_as_there_are_at_most() {
        let granules = granules([true, false, true]).unwrap();
        let of = |present, g, wanted| {
            input_lg2(StageReach { present, granules, widest_lg2: 48 }, g, wanted)
        };
        assert_eq!(of(true, 12, None), Ok(48));
        for fits in [25, 26, 47, 48] {
            assert_eq!(of(true, 16, Some(fits)), Ok(fits));
        }
        let refused = Err(IommuError::Unsupported);
        for wide in [0, 24, 49, 64, u32::MAX] {
            assert_eq!(of(true, 12, Some(wide)), refused, "{wide}");
        }
        // Without the stage, without the granule, and with one that cannot be.
        assert_eq!(of(false, 12, None), refused);
        assert_eq!(of(true, 14, None), refused);
        assert_eq!(of(true, 99, None), refused);
    }

    #[test]
    fn a_second_stage_is_as_wide_as_the_tables_that_it_may_begin_with() {
        // Tables of 4 KiB resolve nine bits each, four of them from 44 bits on.
        let of_4k = [(32, 32), (39, 39), (43, 39), (44, 44), (48, 48), (52, 48)];
        // Of 16 KiB eleven, three from 42 bits on; of 64 KiB thirteen, three from 44 bits on.
        let of_16k = [(36, 36), (41, 36), (42, 42), (48, 47)];
        let of_64k = [(40, 40), (42, 42), (43, 42), (44, 44), (52, 52), (60, 55)];
        let all = [(12, &of_4k[..]), (14, &of_16k[..]), (16, &of_64k[..])];
        for (g, widths) in all {
            for &(lg2, width) in widths {
                assert_eq!(second_stage_width(lg2, g), width, "{lg2} bits, 2^{g}");
            }
        }
    }
}
