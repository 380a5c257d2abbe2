//! A verdict on settings: their savings as a part of the load's time, and the worth of a change.

use super::cost::{MappingCost, WORTH_PCT_OF_LOAD};
use super::setting::Setting;

impl MappingCost {
    /// The most of the load's time that one of `settings` may save, in per cent; nothing where no price tells.
    pub(crate) fn most_saved_pct(&self, settings: &[Setting]) -> Option<f64> {
        let most = |setting: &Setting| {
            let saving = setting.effect.saving?;
            let high = self.now.high / self.now.cpu_us_per_s * saving.before_us;
            let most = high.max(saving.before_us) * saving.range_pct[1] / 100.0;
            Some(100.0 * most / self.span_us)
        };
        settings.iter().filter_map(most).reduce(f64::max)
    }

    /// True if one of `settings` saves enough, or if the gain of the first has no price, or it closes a window for
    /// little.
    pub(super) fn is_worth(&self, settings: &[Setting]) -> bool {
        let first = settings.first().map(|setting| setting.effect.saving);
        let untold = first.is_some_and(|saving| saving.is_none_or(|saving| saving.pct < 0.0));
        let most = self.most_saved_pct(settings);
        untold || most.is_some_and(|most| most >= WORTH_PCT_OF_LOAD)
    }
}
