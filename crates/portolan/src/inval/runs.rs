//! The runs of addresses that cover a range, in the form that the hardware's range command has.
//!
//! Power of two: one aligned run that may cover more. `num * 2^scale`: as many exact runs as it
//! takes, the small ones first, so that the rest is a multiple of the next scale.

use super::{Capabilities, RangeForm, Run};
use crate::addr::{Iova, IovaRange, PageSize};

/// Runs in one plan beyond which the whole context is cheaper on any hardware; also bounds the time
/// it takes to count them.
const MAX_RUNS: u64 = 4096;

/// Number of runs that cover `range`; `None` if they cannot, or are too many.
pub(super) fn count_runs(caps: &Capabilities, range: IovaRange) -> Option<u64> {
    let mut left = Pages::of(range, caps.granule);
    let mut count = 0;
    while left.take_run(caps.range).is_some() {
        count += 1;
        if count > MAX_RUNS {
            return None;
        }
    }
    left.is_empty().then_some(count)
}

/// Exponent of the smallest aligned power of two of granules that covers `range`.
fn mask(granule: PageSize, range: IovaRange) -> u32 {
    let differ = (range.start().get() ^ range.last().get()) >> granule.lg2();
    64 - differ.leading_zeros()
}

/// One run that covers `range`, and more addresses around it if it takes that; `None` if the
/// hardware has none so long.
pub(super) fn covering(form: RangeForm, granule: PageSize, range: IovaRange) -> Option<Run> {
    let first = range.start().get() >> granule.lg2();
    let address = |page: u64| Iova::new(page << granule.lg2());
    match form {
        RangeForm::Absent => None,
        RangeForm::PowerOfTwo { max_lg2_pages } => {
            let lg2 = mask(granule, range);
            let start = address(first.checked_shr(lg2)?.checked_shl(lg2)?);
            let lg2_pages = lg2 as u8;
            (lg2_pages <= max_lg2_pages).then_some(Run::PowerOfTwo { start, lg2_pages })
        }
        RangeForm::NumScale { max_num, max_scale } => {
            let most = u64::from(max_num.clamp(1, 32));
            let pages = range.pages(granule);
            let scale =
                (0..=max_scale.min(51)).find(|&scale| pages.div_ceil(1 << scale) <= most)?;
            let num = pages.div_ceil(1 << scale);
            // Pages that it covers beyond the range have to be addresses.
            let end = first.checked_add(num << scale)?;
            (end.leading_zeros() >= granule.lg2()).then_some(())?;
            Some(Run::NumScale { start: address(first), num: num as u8, scale })
        }
    }
}

/// The pages of one range that no command names yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pages {
    /// Number of the first one.
    at: u64,
    /// Number of pages.
    left: u64,
    size: PageSize,
}

impl Pages {
    #[inline]
    pub(super) fn of(range: IovaRange, size: PageSize) -> Self {
        let at = range.start().get() >> size.lg2();
        let left = range.pages(size);
        Self { at, left, size }
    }

    pub(super) fn none(size: PageSize) -> Self {
        let (at, left) = (0, 0);
        Self { at, left, size }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.left == 0
    }

    #[inline]
    fn first(&self) -> Iova {
        Iova::new(self.at << self.size.lg2())
    }

    /// Takes one page out.
    #[inline]
    pub(super) fn take_page(&mut self) -> Option<(Iova, PageSize)> {
        self.left = self.left.checked_sub(1)?;
        let page = self.first();
        self.at += 1;
        Some((page, self.size))
    }

    /// Takes out the pages that the next range command of `form` names; nothing where it has none
    /// so long.
    #[inline]
    pub(super) fn take_run(&mut self, form: RangeForm) -> Option<Run> {
        if self.left == 0 {
            return None;
        }
        match form {
            RangeForm::Absent => None,
            RangeForm::PowerOfTwo { max_lg2_pages } => {
                let lg2 = 64 - (self.at ^ (self.at + (self.left - 1))).leading_zeros();
                if lg2 > u32::from(max_lg2_pages) {
                    return None;
                }
                self.left = 0;
                self.at = if lg2 >= 64 { 0 } else { self.at >> lg2 << lg2 };
                let (start, lg2_pages) = (self.first(), lg2 as u8);
                Some(Run::PowerOfTwo { start, lg2_pages })
            }
            RangeForm::NumScale { max_num, max_scale } => {
                let max_num = u64::from(max_num.clamp(1, 32));
                let scale = self.left.trailing_zeros().min(u32::from(max_scale));
                let units = self.left >> scale;
                let num = match units & 31 {
                    // The last run: nothing is left to compute.
                    _ if units <= max_num => units,
                    0 => max_num,
                    rest => rest.min(max_num),
                };
                let start = self.first();
                self.at += num << scale;
                self.left -= num << scale;
                let (num, scale) = (num as u8, scale as u8);
                Some(Run::NumScale { start, num, scale })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inval::tests::CAPS;
    use alloc::vec::Vec;

    fn pages(first: u64, count: u64) -> IovaRange {
        IovaRange::from_len(Iova::new(first << 12), count << 12).unwrap()
    }

    #[test]
    fn scales_that_end_early_take_the_largest_number_again_and_again() {
        for (max_num, count, expected) in [
            (32, 64, &[32, 32][..]),
            (32, 65, &[1, 32, 32]),
            (32, 32, &[32]),
            (16, 16, &[16]),
            (16, 48, &[16, 16, 16]),
            (16, 31, &[16, 15]),
        ] {
            let range = RangeForm::NumScale { max_num, max_scale: 0 };
            let mut at = 7;
            let mut left = Pages::of(pages(at, count), CAPS.granule);
            let runs = core::iter::from_fn(|| left.take_run(range));
            let numbers = runs.map(|run| {
                let Run::NumScale { num, scale, start } = run else {
                    panic!("{run:?}");
                };
                assert_eq!((start, scale), (Iova::new(at << 12), 0));
                at += u64::from(num);
                num
            });
            assert_eq!(numbers.collect::<Vec<_>>(), expected, "{max_num} {count}");
        }
    }

    #[test]
    fn one_run_that_covers_has_the_smallest_scale_and_ends_among_the_addresses() {
        let covered = |max_scale, range| {
            let form = RangeForm::NumScale { max_num: 32, max_scale };
            covering(form, CAPS.granule, range)
        };
        for (count, num, scale) in [(1, 1, 0), (32, 32, 0), (33, 17, 1), (64, 32, 1), (65, 17, 2)] {
            let start = Iova::new(0x5000);
            let run = Run::NumScale { start, num, scale };
            assert_eq!(covered(31, pages(5, count)), Some(run), "{count}");
        }
        assert!(covered(1, pages(5, 64)).is_some());
        assert_eq!(covered(1, pages(5, 65)), None);
        // 33 pages are covered by 34, of which the last is no address any more.
        let end = 1 << 52;
        assert!(covered(1, pages(end - 35, 33)).is_some());
        assert_eq!(covered(1, pages(end - 33, 33)), None);
    }
}
