//! The bounds on figures that were not fitted, and the worth of each without its mechanism.

use anyhow::Result;
use portolan_sim::swiotlb::Strategy;

use super::super::bounds::{Bound, Evidence, Parts, worst};
use super::super::published::{Direction4K, Kernel};
use super::super::rows::error_pct;
use super::guest::simulate;
use super::{FittedPrices, RowKey, ThroughputRow};

/// Largest error that a figure may have, in per cent.
const LIMIT_PCT: f64 = 15.0;

/// Figures of four jobs of one kernel.
struct Figures {
    what: &'static str,
    variant: &'static str,
    quantity: &'static str,
    mechanism: &'static str,
    /// Strategy of the search for slots with the mechanism switched off.
    without: Strategy,
    trivial: &'static str,
}

const ALL: [Figures; 3] = [
    Figures {
        what: "throughput of four writing jobs, vanilla",
        variant: "vanilla",
        quantity: "throughput_mb_s",
        mechanism: "one lock for all",
        without: Strategy::AreaLocks,
        trivial: "that of four reading jobs, fitted",
    },
    Figures {
        what: "guest CPU of four jobs, vanilla",
        variant: "vanilla",
        quantity: "guest_cpu_pct",
        mechanism: "one lock for all",
        without: Strategy::AreaLocks,
        trivial: "a CPU for each job",
    },
    Figures {
        what: "guest CPU of four jobs, optimized",
        variant: "optimized",
        quantity: "guest_cpu_pct",
        mechanism: "a lock for each area",
        without: Strategy::OneLock,
        trivial: "a CPU for the throughput of each one-job row",
    },
];

impl Figures {
    fn is_of(&self, row: &ThroughputRow) -> bool {
        let published = row.published.is_some() && !row.fitted && row.jobs == 4;
        published && (row.variant, row.quantity) == (self.variant, self.quantity)
    }

    /// Prediction of `row` without a model.
    fn trivially(&self, rows: &[ThroughputRow], row: &ThroughputRow) -> Option<f64> {
        let throughput = |jobs, direction| {
            let same = |other: &&ThroughputRow| {
                other.case == row.case
                    && (other.variant, other.jobs, other.direction, other.quantity)
                        == (self.variant, jobs, direction, "throughput_mb_s")
            };
            rows.iter().find(same)?.published
        };
        match (self.quantity, self.variant) {
            ("throughput_mb_s", _) => throughput(4, "read"),
            (_, "vanilla") => Some(400.0),
            _ => Some(100.0 * throughput(4, row.direction)? / throughput(1, row.direction)?),
        }
    }

    fn bound(&self, rows: &[ThroughputRow], fit: &FittedPrices, cpus: usize) -> Result<Bound> {
        let (mut off, mut trivial) = (Vec::new(), Vec::new());
        let of: Vec<&ThroughputRow> = rows.iter().filter(|row| self.is_of(row)).collect();
        for row in &of {
            let Some(published) = row.published else {
                continue;
            };
            let which = RowKey {
                jobs: row.jobs,
                kernel: match self.variant {
                    "vanilla" => Kernel::Vanilla,
                    _ => Kernel::Optimized,
                },
                direction: match row.direction {
                    "read" => Direction4K::Read,
                    _ => Direction4K::Write,
                },
            };
            let outcome = simulate(&fit.load(cpus, self.without, which))?;
            let without = match self.quantity {
                "throughput_mb_s" => outcome.mb_s(),
                _ => outcome.busy_pct,
            };
            off.push(error_pct(without, published));
            let guess = self.trivially(rows, row);
            trivial.extend(guess.map(|guess| error_pct(guess, published)));
        }
        Ok(Bound::new(Parts {
            what: self.what.to_owned(),
            limit_pct: LIMIT_PCT,
            worst_pct: worst(of.iter().filter_map(|row| row.error_pct)),
            mechanism: (self.mechanism, worst(off)),
            trivial: (self.trivial, worst(trivial)),
            would_be: Evidence::Predicted,
        }))
    }
}

/// The bounds on `rows`.
pub(super) fn bounds(
    rows: &[ThroughputRow],
    fit: &FittedPrices,
    cpus: usize,
) -> Result<Vec<Bound>> {
    ALL.iter().map(|figures| figures.bound(rows, fit, cpus)).collect()
}

/// Sets the evidence of each row. One busy job is one busy CPU under any model.
pub(super) fn judge(rows: &mut [ThroughputRow], bounds: &[Bound]) {
    for row in rows.iter_mut().filter(|row| row.published.is_some()) {
        let of = ALL.iter().position(|figures| figures.is_of(row));
        row.evidence = match (row.fitted, of.and_then(|at| bounds.get(at))) {
            (true, _) => Evidence::Fitted,
            (false, Some(bound)) => bound.evidence,
            (false, None) => Evidence::Implied,
        };
    }
}
