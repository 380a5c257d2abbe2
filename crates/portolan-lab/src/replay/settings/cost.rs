//! What mapping costs: the table work and stalls of a replayed policy, with the invalidations of Linux's rules where
//! those are known, and with the library's elsewhere.

use portolan_cli::display::{grouped, micros};
use portolan_model::profile::{Event, Price, Profile};

use super::{FEWEST, Input};
use crate::counts::Exposed;
use crate::linux::{
    Asked, CachingMode, Counter, Kernel, LinuxReport, Options, Rules, StageName, stage_of,
};
use crate::replay::report::PolicyReport;
use crate::replay::sent::{Predicted, SentRange};
use crate::replay::setting::{Saving, pct};
use crate::replay::situation::Now;
use crate::trace::{At, Op};

/// Linux's rules told to be strict, strict under caching mode, and lazy, beside each other.
pub(in crate::replay) struct LinuxCounters {
    strict: Counter,
    shadowed: Counter,
    lazy: Counter,
}

/// What these came to.
pub(in crate::replay) struct LinuxCounts {
    pub(super) strict: LinuxReport,
    pub(super) shadowed: LinuxReport,
    pub(super) lazy: LinuxReport,
}

impl LinuxCounters {
    /// For `profile` and the traced `kernel`; `None` if Linux's rules for that machine are not known.
    pub(in crate::replay) fn new(profile: &Profile, kernel: Kernel) -> Option<Self> {
        let counter = |asked, caching, stage| {
            let options = Options {
                asked,
                caching: Some(caching),
                stage,
                kernel: Some(kernel),
            };
            let rules = Rules::new(profile, &options).ok()?;
            Counter::new(rules, profile).ok()
        };
        Some(Self {
            strict: counter(Asked::Strict, CachingMode::Off, None)?,
            shadowed: counter(
                Asked::Strict,
                CachingMode::On,
                stage_of(profile).map(|_| StageName::Second),
            )?,
            lazy: counter(Asked::Lazy, CachingMode::Off, None)?,
        })
    }

    /// Adds an operation; `padded` are the bytes of a map's pages, if it can be carried out.
    pub(in crate::replay) fn note(&mut self, op: &Op<'_>, at: At, padded: Option<u64>) {
        for counter in [&mut self.strict, &mut self.shadowed, &mut self.lazy] {
            counter.note(op, at, padded);
        }
    }

    pub(in crate::replay) fn finish(self, devices: &[String]) -> LinuxCounts {
        LinuxCounts {
            strict: self.strict.finish(devices),
            shadowed: self.shadowed.finish(devices),
            lazy: self.lazy.finish(devices),
        }
    }
}

impl LinuxCounts {
    /// The numbers of invalidations alone.
    pub(in crate::replay) fn predicted(&self) -> Predicted {
        let total = |of: &LinuxReport| of.invalidations.total();
        Predicted {
            strict: total(&self.strict),
            shadowed: total(&self.shadowed),
            lazy: total(&self.lazy),
            lazy_range: lazy_range(&self.lazy),
            lazy_unqueued: self.lazy.unqueued,
            lazy_full: self.lazy.flushes_full,
            busy_us: self.lazy.busy_us,
        }
    }
}

/// Between how many invalidations a lazy kernel sends, and why.
fn lazy_range(lazy: &LinuxReport) -> SentRange {
    let [least, most] = lazy.syncs_range;
    let at_once = match lazy.unqueued {
        0 => String::new(),
        unmaps => format!(
            ", and {} unmaps by the two-step API, which Linux waits for at once since 7.3",
            grouped(unmaps)
        ),
    };
    SentRange {
        least,
        most,
        reason: format!(
            "at least one for each full queue ({FEWEST} unmaps of a CPU), at most one more for each 10 ms in which \
             memory is unmapped ({} ms here){at_once}",
            micros(lazy.busy_us / 1000.0),
        ),
    }
}

/// What all of mapping costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    pub(super) us: f64,
    /// The least and the most that may be, as far as prices are known.
    pub(super) range_us: [f64; 2],
    /// Of it, what devices wait for walks.
    pub(super) stall_us: f64,
    pub(super) commands: u64,
    pub(super) exposed: Exposed,
}

impl Cost {
    /// What it costs where the kernel does as in `now`; `None` if that was not replayed.
    pub(super) fn of(input: &Input<'_>, now: Now) -> Option<Self> {
        let linux = |of: fn(&LinuxCounts) -> &LinuxReport| input.linux.map(of);
        let (policies, linux) = match now {
            Now::Strict => (&["strict-range", "strict-page"][..], linux(|l| &l.strict)),
            // Without Linux's rules nothing tells what shadowing adds.
            Now::Shadowed => (&["strict-range"][..], Some(linux(|l| &l.shadowed)?)),
            Now::Lazy => (&["lazy"][..], linux(|l| &l.lazy)),
            Now::Nothing | Now::Untranslated | Now::Bounced => return None,
        };
        let lane = |name: &&str| input.policies.iter().find(|lane| lane.policy == **name);
        let lane = policies.iter().find_map(lane)?;
        Some(match linux {
            Some(linux) => Self::of_linux(lane, linux, input.profile),
            None => Self::of_lane(lane),
        })
    }

    fn of_lane(lane: &PolicyReport) -> Self {
        let us = lane.time_us.total;
        Self {
            us,
            range_us: lane.total_range_us.unwrap_or([us, us]),
            stall_us: lane.time_us.device_stall,
            commands: lane.invalidations.total(),
            exposed: lane.exposed,
        }
    }

    /// The table work of `lane` with the invalidations of `linux`.
    fn of_linux(lane: &PolicyReport, linux: &LinuxReport, profile: &Profile) -> Self {
        let time = &lane.time_us;
        let work = time.map + time.unmap + time.device_stall;
        let us = work + linux.invalidation_us + linux.sync_wait_us;
        let paid = [
            (Event::CmdRange, linux.invalidations.range),
            (Event::CmdContext, linux.invalidations.context),
            (Event::Sync, linux.syncs),
            (Event::Exit, linux.syncs),
        ];
        Self {
            us,
            range_us: [Price::low, Price::high].map(|end| us + spread_us(profile, &paid, end)),
            stall_us: time.device_stall,
            commands: linux.invalidations.total(),
            exposed: linux.exposed,
        }
    }
}

/// By how much more `paid` may come to at one end of the prices' ranges.
pub(in crate::replay) fn spread_us(
    profile: &Profile,
    paid: &[(Event, u64)],
    end: fn(&Price) -> f64,
) -> f64 {
    let more = paid.iter().filter_map(|(event, count)| {
        let price = profile.quote(*event).ok()?;
        Some(*count as f64 * (end(price) - price.ns) / 1000.0)
    });
    more.sum()
}

/// What `after` saves of `before`.
pub(super) fn saving(before: &Cost, after: &Cost) -> Option<Saving> {
    let end = |n: usize| pct(before.range_us[n], after.range_us[n]);
    Saving::of(before.us, after.us, [end(0)?, end(1)?])
}
