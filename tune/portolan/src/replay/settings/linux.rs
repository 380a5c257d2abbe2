//! Counts under Linux's rules for a replay: commands of a strict kernel, of one that is strict under caching mode,
//! and of a lazy one.
//!
//! Since 7.3 a lazy kernel waits for mappings of the two-step API. Where nothing says the release, both kinds
//! of kernel are counted: the trace's own invalidations decide, and if they do not, both stand.

use portolan::dma::PolicyPreference;
use portolan_cli::display::{grouped, micros};
use portolan_sim::profile::Profile;

use super::FEWEST;
use crate::linux::{
    CachingMode, Counter, Kernel, LinuxReport, Options, Release, Rules, StageName, stage_of,
};
use crate::replay::sent::{Predicted, SentRange};
use crate::trace::{At, Op, Summary};

/// Counters of the commands that Linux would send under each policy.
pub(in crate::replay) struct LinuxCounters {
    strict: Counter,
    shadowed: Counter,
    /// Counts under the rules of the traced kernel, or of one before 7.3.
    lazy: Counter,
    /// Counts under the rules since 7.3, if the release is unknown.
    newest: Option<Counter>,
}

/// Counts of the commands that Linux would send.
pub(in crate::replay) struct LinuxCounts {
    pub(super) strict: LinuxReport,
    pub(super) shadowed: LinuxReport,
    pub(super) lazy: LinuxReport,
    /// Counts under the rules of another release, if the release is unknown and they differ.
    pub(super) lazy_else: Option<LinuxReport>,
}

impl LinuxCounters {
    /// Makes counters for `profile` and the traced `kernel`; `None` if Linux's rules for that machine are unknown.
    pub(in crate::replay) fn new(profile: &Profile, kernel: Kernel) -> Option<Self> {
        let counter = |asked, caching, stage, kernel| {
            let options = Options { asked, caching: Some(caching), stage, kernel: Some(kernel) };
            let rules = Rules::new(profile, &options).ok()?;
            Counter::new(rules, profile).ok()
        };
        let lazy = |release| {
            let release = Some(release);
            counter(PolicyPreference::Lazy, CachingMode::Off, None, Kernel { release, ..kernel })
        };
        let second = stage_of(profile).map(|_| StageName::Second);
        Some(Self {
            strict: counter(PolicyPreference::Strict, CachingMode::Off, None, kernel)?,
            shadowed: counter(PolicyPreference::Strict, CachingMode::On, second, kernel)?,
            lazy: lazy(kernel.release.unwrap_or(Release::UNLINK_QUEUES))?,
            newest: match kernel.release {
                Some(_) => None,
                None => Some(lazy(Release::NEWEST)?),
            },
        })
    }

    /// Adds an operation; `padded` are the bytes of a map's pages, if it can be carried out.
    pub(in crate::replay) fn note(&mut self, op: &Op<'_>, at: At, padded: Option<u64>) {
        let told = [&mut self.strict, &mut self.shadowed, &mut self.lazy];
        for counter in told.into_iter().chain(&mut self.newest) {
            counter.note(op, at, padded);
        }
    }

    /// Everything gathered, of the whole trace.
    pub(in crate::replay) fn finish(self, summary: &Summary) -> LinuxCounts {
        let report = |counter: Counter| counter.finish(&summary.devices);
        let strict = report(self.strict);
        let older = report(self.lazy);
        let newest = self.newest.map(report).filter(|newest| newest.unqueued > 0);
        let (lazy, lazy_else) = match newest {
            None => (older, None),
            Some(newest) => match release_shown(summary, &strict, [&older, &newest]) {
                Some(LazyRelease::Older) => (older, None),
                Some(LazyRelease::Newest) => (newest, None),
                None if names_dma_calls(summary) => (newest, Some(older)),
                None => (older, Some(newest)),
            },
        };
        LinuxCounts { strict, shadowed: report(self.shadowed), lazy, lazy_else }
    }
}

/// Releases of Linux between which the rules of a lazy kernel differ.
enum LazyRelease {
    /// Before 7.3.
    Older,
    Newest,
}

/// The release of a lazy kernel whose number of invalidations by page is the recorded one; `None` if that may be a
/// strict kernel's, or nothing was recorded.
fn release_shown(
    summary: &Summary,
    strict: &LinuxReport,
    [older, newest]: [&LinuxReport; 2],
) -> Option<LazyRelease> {
    summary.recorded.first_domain.as_ref()?;
    let sent: u64 = summary.recorded.page_masks.values().sum();
    let far = |report: &LinuxReport| report.invalidations.range.abs_diff(sent);
    let (older, newest) = (far(older), far(newest));
    match older.min(newest) < far(strict) {
        false => None,
        true if older < newest => Some(LazyRelease::Older),
        true => Some(LazyRelease::Newest),
    }
}

/// Tells if the trace has events of the DMA API: mappings without one are of the two-step API.
fn names_dma_calls(summary: &Summary) -> bool {
    let mut names = summary.events_by_name.keys();
    names.any(|name| name.starts_with("dma_map_"))
}

impl LinuxCounts {
    /// Numbers of invalidations only.
    pub(in crate::replay) fn predicted(&self) -> Predicted {
        let total = |of: &LinuxReport| of.invalidations.total();
        Predicted {
            strict: total(&self.strict),
            shadowed: total(&self.shadowed),
            lazy: total(&self.lazy),
            lazy_range: self.lazy_range(),
            lazy_unqueued: self.lazy.unqueued,
            lazy_full: self.lazy.flushes_full,
            busy_us: self.lazy.busy_us,
        }
    }

    /// Unmaps that a lazy kernel waits for if it is 7.3 or later, which nothing tells.
    pub(super) fn perhaps_unqueued(&self) -> Option<u64> {
        let other = self.lazy_else.as_ref()?;
        Some(other.unqueued.max(self.lazy.unqueued))
    }

    /// Range of the number of invalidations that a lazy kernel sends, and the reason.
    fn lazy_range(&self) -> SentRange {
        let lazy = &self.lazy;
        let [mut least, mut most] = lazy.syncs_range;
        if let Some(other) = &self.lazy_else {
            least = least.min(other.syncs_range[0]);
            most = most.max(other.syncs_range[1]);
        }
        let at_once = match (self.perhaps_unqueued(), lazy.unqueued) {
            (Some(unmaps), _) => format!(
                ", and perhaps {} unmaps by the two-step API, which Linux waits for at once since 7.3: nothing \
                 tells the release",
                grouped(unmaps)
            ),
            (None, 0) => String::new(),
            (None, unmaps) => format!(
                ", and {} unmaps by the two-step API, which Linux waits for at once since 7.3",
                grouped(unmaps)
            ),
        };
        SentRange {
            least,
            most,
            reason: format!(
                "at least one for each full queue ({FEWEST} unmaps of a CPU), at most one more for each 10 ms \
                 in which memory is unmapped ({} ms here){at_once}",
                micros(lazy.busy_us / 1000.0),
            ),
        }
    }
}
