//! The bounds on faults and speeds, and the worth of each without its mechanism.

use super::super::bounds::{Bound, Evidence, Parts, worst};
use super::super::published::{IopfKind, IopfPublished};
use super::super::rows::error_pct;
use super::machine::AccessCounts;
use super::rows::IopfRow;
use super::{FaultPrices, kb_s};

/// Faults of a guest that is not fitted on may be off by so many per cent.
const FAULTS_BOUND: f64 = 2.5;
/// Speeds of a process with faults, from 100 messages on.
const SVA_BOUND: f64 = 5.0;
/// Speeds of a guest with faults, from 1000 messages on: less than the loss by faults there.
const VFIO_BOUND: f64 = 1.0;
/// Loss of a guest's speed by faults, from 1000 messages on, in points of a hundred.
const LOSS_BOUND: f64 = 1.5;

/// Figures that a bound is on.
#[derive(Clone, Copy)]
struct FigureSelector {
    what: &'static str,
    kind: IopfKind,
    quantity: &'static str,
    /// Pages of a window, where only rows with one count, or without.
    window: Option<bool>,
    from_times: u64,
}

const GUEST_FAULTS: FigureSelector = FigureSelector {
    what: "a guest's faults, 1 MiB messages",
    kind: IopfKind::Vfio,
    quantity: "faults",
    window: Some(false),
    from_times: 1,
};
const WINDOW_FAULTS: FigureSelector = FigureSelector {
    what: "a guest's faults, windows of 512 pages",
    window: Some(true),
    ..GUEST_FAULTS
};
const PROCESS_FAULTS: FigureSelector = FigureSelector {
    what: "a process's faults",
    kind: IopfKind::Sva,
    window: None,
    ..GUEST_FAULTS
};
const GUEST_SPEEDS: FigureSelector = FigureSelector {
    what: "a guest's speeds with faults, from 1000 messages on",
    quantity: "speed_kb_s",
    window: None,
    from_times: 1000,
    ..GUEST_FAULTS
};
const GUEST_LOSS: FigureSelector = FigureSelector {
    what: "what faults cost a guest, from 1000 messages on, in points",
    quantity: "loss_pct",
    ..GUEST_SPEEDS
};
const PROCESS_SPEEDS: FigureSelector = FigureSelector {
    what: "a process's speeds with faults, from 100 messages on",
    kind: IopfKind::Sva,
    from_times: 100,
    ..GUEST_SPEEDS
};

const ALL: [FigureSelector; 6] =
    [GUEST_FAULTS, WINDOW_FAULTS, PROCESS_FAULTS, GUEST_SPEEDS, GUEST_LOSS, PROCESS_SPEEDS];

impl FigureSelector {
    fn is_of(&self, row: &IopfRow) -> bool {
        let windowed = row.premap_pages.is_some_and(|pages| pages > 1);
        row.kind == self.kind.name()
            && row.variant == "with"
            && row.quantity == self.quantity
            && self.window.is_none_or(|wanted| wanted == windowed)
            && row.times >= self.from_times
            && !row.fitted
    }

    fn is_of_published(&self, row: &IopfPublished, fitted: bool) -> bool {
        let windowed = row.premap_pages.is_some_and(|pages| pages.get() > 1);
        row.kind == self.kind
            && self.window.is_none_or(|wanted| wanted == windowed)
            && row.times >= self.from_times
            && !fitted
    }
}

/// Values of a bound: its limit, the figure without its mechanism, the trivial predictor, the evidence.
type Beside = (f64, (&'static str, f64), (&'static str, f64), Evidence);

/// Published rows with the counts for them.
struct Table<'t>(&'t [(IopfPublished, AccessCounts)]);

impl Table<'_> {
    /// Error of the worst row of `which` if `model` predicts it.
    fn worst(&self, which: &FigureSelector, model: impl Fn(&IopfPublished) -> f64) -> f64 {
        let of = self.0.iter().filter(|(row, _)| {
            let fitted = match which.quantity {
                "faults" => super::fits_faults(row),
                _ => super::fits_with(row),
            };
            which.is_of_published(row, fitted)
        });
        worst(of.map(|(row, _)| model(row)))
    }

    /// Values of a bound on faults.
    fn faults(&self, which: &FigureSelector) -> Beside {
        let off = |faults: fn(&IopfPublished) -> f64| {
            self.worst(which, |row| error_pct(faults(row), row.faults))
        };
        let (mechanism, trivial) = match (which.kind, which.window) {
            (IopfKind::Vfio, Some(true)) => (
                ("windows", off(|row| 4.0 * pages(row))),
                ("the buffers' windows alone", off(|row| 2.0 * pages(row) / 512.0)),
            ),
            (IopfKind::Vfio, _) => (
                ("the guest's queues", off(|row| 4.0 * pages(row))),
                ("as many as a process", off(|row| 4.0 * pages(row))),
            ),
            (IopfKind::Sva, _) => (
                ("two pairs in turn", off(|row| 2.0 * pages(row))),
                (
                    "the number the pairs were inferred from",
                    off(|row| 2.0 * pages(row) * row.times.min(2) as f64),
                ),
            ),
        };
        (FAULTS_BOUND, mechanism, trivial, Evidence::Counted)
    }

    /// Values of a bound on the loss by faults.
    fn loss(&self, which: &FigureSelector) -> Beside {
        let none = self.worst(which, |row| 100.0 - row.kept_pct);
        (LOSS_BOUND, ("the price of a fault", none), ("no loss", none), Evidence::Predicted)
    }

    /// Values of a bound on speeds.
    fn speeds(&self, which: &FigureSelector, prices: &FaultPrices) -> Beside {
        let without = |row: &IopfPublished| kb_s(row, prices.without_ns(row));
        let limit = match which.kind {
            IopfKind::Vfio => VFIO_BOUND,
            IopfKind::Sva => SVA_BOUND,
        };
        (
            limit,
            (
                "the price of a fault",
                self.worst(which, |row| error_pct(without(row), row.with_kb_s)),
            ),
            (
                "the published speed without faults",
                self.worst(which, |row| error_pct(row.without_kb_s, row.with_kb_s)),
            ),
            Evidence::Predicted,
        )
    }
}

fn pages(row: &IopfPublished) -> f64 {
    row.msg_len_bytes.div_ceil(4096) as f64
}

/// The bounds; `prices` are a guest's and a process's.
pub(super) fn bounds(
    rows: &[IopfRow],
    counted: &[(IopfPublished, AccessCounts)],
    prices: [&FaultPrices; 2],
) -> Vec<Bound> {
    let table = Table(counted);
    let bound = |which: &FigureSelector| {
        let errors = rows.iter().filter(|row| which.is_of(row));
        let (limit_pct, mechanism, trivial, would_be) = match which.quantity {
            "faults" => table.faults(which),
            "loss_pct" => table.loss(which),
            _ => table.speeds(which, prices[which.kind as usize]),
        };
        Bound::new(Parts {
            what: which.what.to_owned(),
            limit_pct,
            worst_pct: worst(errors.filter_map(|row| row.error_pct)),
            mechanism,
            trivial,
            would_be,
        })
    };
    ALL.iter().map(bound).collect()
}

/// Sets the evidence of each row by its bound; rows without a bound are implied.
pub(super) fn judge(rows: &mut [IopfRow], bounds: &[Bound]) {
    for row in rows.iter_mut().filter(|row| !row.fitted) {
        let which = ALL.iter().find(|which| which.is_of(row));
        let bound = which.and_then(|which| bounds.iter().find(|bound| bound.what == which.what));
        row.evidence = bound.map_or(Evidence::Implied, |bound| bound.evidence);
    }
}
