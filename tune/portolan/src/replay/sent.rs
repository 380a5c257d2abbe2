//! Commands that the recorded kernel sent itself, and those that it would send by Linux's rules.

use serde::Serialize;

use super::situation::Now;
use crate::counts::Invalidations;
use crate::trace::Summary;

/// Commands that the recorded kernel queued to its units, counted from `intel_iommu:qi_submit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sent {
    /// Commands by kind; a page-selective one is a range with any mask, a domain-selective one a context.
    pub invalidations: Invalidations,
    /// Flushes of device TLBs.
    pub device: u64,
}

impl Sent {
    /// Commands that the kernel sent; `None` if the trace has no such events.
    pub(super) fn of(summary: &Summary) -> Option<Self> {
        summary.events_by_name.get("qi_submit")?;
        let recorded = &summary.recorded;
        Some(Self {
            invalidations: Invalidations {
                page: 0,
                range: recorded.page_masks.values().sum(),
                context: recorded.domain,
                global: recorded.global,
            },
            device: recorded.device,
        })
    }
}

/// Range of a number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SentRange {
    /// Lower limit.
    pub least: u64,
    /// Upper limit.
    pub most: u64,
    /// Reason, as a sentence.
    pub reason: String,
}

/// Numbers of invalidations by Linux's rules for the trace's operations at their times.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Predicted {
    /// Number where the kernel is strict.
    pub strict: u64,
    /// Number for a strict kernel under caching mode, with second-stage tables.
    pub shadowed: u64,
    /// Number for a lazy kernel.
    pub lazy: u64,
    /// Range of the number of lazy, as the load becomes faster.
    pub lazy_range: SentRange,
    /// Unmaps of a lazy kernel that the kernel waits for at once: those of the two-step API, since Linux 7.3.
    pub lazy_unqueued: u64,
    /// Flushes of a lazy kernel because a CPU's queue was full; the others are by the timer.
    pub lazy_full: u64,
    /// Time in which a lazy kernel's timer runs because unmaps follow each other: see `LinuxReport::busy_us`.
    pub busy_us: f64,
}

impl Predicted {
    /// Flushes of a lazy kernel by the timer. Their number depends on time, not on unmaps.
    pub(crate) fn lazy_timer(&self) -> u64 {
        self.lazy.saturating_sub(self.lazy_full).saturating_sub(self.lazy_unqueued)
    }

    /// Invalidations of a kernel in the situation `now`; `None` if nothing is translated.
    pub(crate) fn under(&self, now: Now) -> Option<u64> {
        match now {
            Now::Strict => Some(self.strict),
            Now::Shadowed => Some(self.shadowed),
            Now::Lazy => Some(self.lazy),
            Now::Nothing | Now::Untranslated | Now::Bounced => None,
        }
    }
}
