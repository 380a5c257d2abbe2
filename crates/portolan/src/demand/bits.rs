//! One bit for each granule of a slot.

/// Granules in a slot.
pub(super) const GRANULES: u32 = 512;
const WORDS: usize = GRANULES as usize / 64;

/// A set of granules of one slot, by number from 0 to 511.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bits([u64; WORDS]);

/// Granules `first` to `last`, both included; numbers above 511 never occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GranuleRun {
    pub(super) first: u32,
    pub(super) last: u32,
}

impl GranuleRun {
    pub(super) fn new(first: u32, last: u32) -> Option<Self> {
        (first <= last && last < GRANULES).then_some(Self { first, last })
    }

    pub(super) const fn count(self) -> u64 {
        (self.last - self.first + 1) as u64
    }
}

impl Bits {
    pub(super) const EMPTY: Self = Self([0; WORDS]);

    pub(super) fn has(&self, granule: u32) -> bool {
        self.0.get(granule as usize / 64).is_some_and(|word| word >> (granule % 64) & 1 != 0)
    }

    /// The bits of word `at` that `run` covers.
    fn mask(run: GranuleRun, at: usize) -> u64 {
        let low = (at as u32) * 64;
        if run.last < low || run.first > low + 63 {
            return 0;
        }
        let first = run.first.saturating_sub(low);
        let last = (run.last - low).min(63);
        (u64::MAX << first) & (u64::MAX >> (63 - last))
    }

    pub(super) fn set(&mut self, run: GranuleRun) {
        for (at, word) in self.0.iter_mut().enumerate() {
            *word |= Self::mask(run, at);
        }
    }

    pub(super) fn clear(&mut self, run: GranuleRun) {
        for (at, word) in self.0.iter_mut().enumerate() {
            *word &= !Self::mask(run, at);
        }
    }

    /// The first run of granules in `within` whose bits are `value`.
    pub(super) fn run_of(&self, value: bool, within: GranuleRun) -> Option<GranuleRun> {
        let first = self.next(value, within.first, within.last)?;
        let end = self.next(!value, first, within.last);
        GranuleRun::new(first, end.map_or(within.last, |end| end - 1))
    }

    /// The longest run around `granule`, inside `within`, whose bits are clear.
    pub(super) fn clear_around(&self, granule: u32, within: GranuleRun) -> Option<GranuleRun> {
        if self.has(granule) {
            return None;
        }
        let mut first = granule;
        while first > within.first && !self.has(first - 1) {
            first -= 1;
        }
        let end = self.next(true, granule, within.last);
        GranuleRun::new(first, end.map_or(within.last, |end| end - 1))
    }

    /// The first granule from `from` to `last` whose bit is `value`.
    fn next(&self, value: bool, from: u32, last: u32) -> Option<u32> {
        let mut at = from;
        while at <= last {
            let word = self.0.get(at as usize / 64)?;
            let wanted = if value { *word } else { !*word };
            let rest = wanted >> (at % 64);
            if rest != 0 {
                let found = at + rest.trailing_zeros();
                return (found <= last).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u32, last: u32) -> GranuleRun {
        GranuleRun::new(first, last).unwrap()
    }

    #[test]
    fn runs_agree_with_single_bits() {
        for (first, last) in [(0, 0), (0, 511), (63, 64), (5, 130), (511, 511), (64, 127)] {
            let mut bits = Bits::default();
            bits.set(run(first, last));
            for granule in 0..GRANULES {
                let inside = (first..=last).contains(&granule);
                assert_eq!(bits.has(granule), inside, "{granule} of {first}..={last}");
            }
            assert_eq!(bits.run_of(true, run(0, 511)), Some(run(first, last)));
            let mut full = Bits::default();
            full.set(run(0, 511));
            full.clear(run(first, last));
            assert_eq!(full.run_of(false, run(0, 511)), Some(run(first, last)));
            assert_eq!(full.clear_around(first, run(0, 511)), Some(run(first, last)));
            assert_eq!(full.clear_around(last, run(last, 511)), Some(run(last, last)));
        }
        assert_eq!(Bits::default().run_of(true, run(0, 511)), None);
        assert!(GranuleRun::new(3, 2).is_none() && GranuleRun::new(0, GRANULES).is_none());
    }
}
