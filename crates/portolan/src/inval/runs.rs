//! The runs of addresses that cover a range, in the form that the hardware's range command has.
//!
//! Power of two: one aligned run that may cover more. `num * 2^scale`: as many exact runs as it
//! takes, the small ones first, so that what is left is a multiple of the next scale.

use super::{Capabilities, RangeForm, Run};
use crate::addr::{Iova, IovaRange, PageSize};

/// Runs in one plan beyond which the whole context is cheaper on any hardware; also bounds the time
/// it takes to count them.
const MAX_RUNS: usize = 4096;

/// How many runs cover `range`; `None` if they cannot, or are too many.
pub(super) fn count_runs(caps: &Capabilities, range: IovaRange) -> Option<u64> {
    match caps.range {
        RangeForm::Absent => None,
        RangeForm::PowerOfTwo { max_lg2_pages } => {
            (mask(caps.granule, range) <= u32::from(max_lg2_pages)).then_some(1)
        }
        RangeForm::NumScale { .. } => {
            let count = Runs::new(caps, range).take(MAX_RUNS + 1).count();
            (count <= MAX_RUNS).then_some(count as u64)
        }
    }
}

/// Exponent of the smallest aligned power of two of granules that covers `range`.
fn mask(granule: PageSize, range: IovaRange) -> u32 {
    let differ = (range.start().get() ^ range.last().get()) >> granule.lg2();
    64 - differ.leading_zeros()
}

/// One run that covers `range`, and more of what is around it if it takes that; `None` if the hardware
/// has none so long.
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
            // What it covers beyond the range has to be addresses.
            let end = first.checked_add(num << scale)?;
            (end.leading_zeros() >= granule.lg2()).then_some(())?;
            Some(Run::NumScale {
                start: address(first),
                num: num as u8,
                scale,
            })
        }
    }
}

/// The runs that cover one range.
#[derive(Clone, Debug)]
pub(super) struct Runs {
    granule: PageSize,
    form: RangeForm,
    at: u64,
    pages: u64,
}

impl Runs {
    pub(super) fn new(caps: &Capabilities, range: IovaRange) -> Self {
        let at = range.start().get() >> caps.granule.lg2();
        Self {
            granule: caps.granule,
            form: caps.range,
            at,
            pages: range.pages(caps.granule),
        }
    }

    fn address(&self, page: u64) -> Iova {
        Iova::new(page << self.granule.lg2())
    }
}

impl Iterator for Runs {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        if self.pages == 0 {
            return None;
        }
        match self.form {
            RangeForm::Absent => None,
            RangeForm::PowerOfTwo { .. } => {
                let lg2 = 64 - (self.at ^ (self.at + (self.pages - 1))).leading_zeros();
                self.pages = 0;
                let start = if lg2 >= 64 { 0 } else { self.at >> lg2 << lg2 };
                Some(Run::PowerOfTwo {
                    start: self.address(start),
                    lg2_pages: lg2 as u8,
                })
            }
            RangeForm::NumScale { max_num, max_scale } => {
                let max_num = u64::from(max_num.clamp(1, 32));
                let scale = self.pages.trailing_zeros().min(u32::from(max_scale));
                let units = self.pages >> scale;
                let num = match units & 31 {
                    // The last run: nothing is left to compute.
                    _ if units <= max_num => units,
                    0 => max_num,
                    rest => rest.min(max_num),
                };
                let start = self.address(self.at);
                self.at += num << scale;
                self.pages -= num << scale;
                Some(Run::NumScale {
                    start,
                    num: num as u8,
                    scale: scale as u8,
                })
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
            let range = RangeForm::NumScale {
                max_num,
                max_scale: 0,
            };
            let mut at = 7;
            let runs = Runs::new(&Capabilities { range, ..CAPS }, pages(at, count));
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
            let form = RangeForm::NumScale {
                max_num: 32,
                max_scale,
            };
            covering(form, CAPS.granule, range)
        };
        for (count, num, scale) in [
            (1, 1, 0),
            (32, 32, 0),
            (33, 17, 1),
            (64, 32, 1),
            (65, 17, 2),
        ] {
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
