//! Figures of two replays: the figures that are compared, their measure, and the difference.

use serde::Serialize;

use crate::replay::{PolicyReport, ReplayReport};

const MIB: f64 = 1_048_576.0;

/// Unit of work for which costs are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Measure {
    /// The whole cost.
    Total,
    /// A map or unmap.
    Operation,
    /// A MiB mapped.
    Mib,
}

impl Measure {
    /// All measures.
    pub const ALL: [Self; 3] = [Self::Total, Self::Operation, Self::Mib];

    /// Number of such units that the costs of `policy` are for, if any.
    pub(crate) fn part(self, report: &ReplayReport, policy: &PolicyReport) -> Option<f64> {
        let parts = match self {
            Self::Total => 1.0,
            Self::Operation => policy.operations as f64,
            Self::Mib => report.trace.bytes_mapped as f64 / MIB,
        };
        (parts > 0.0).then_some(parts)
    }
}

impl Difference {
    /// The better one, where the two differ by a hundredth and more.
    pub(super) fn clearly_better(&self) -> Option<Side> {
        let near = self.ratio.is_some_and(|ratio| (ratio - 1.0).abs() < 0.01);
        self.better.filter(|_| !near)
    }
}

/// Work that a cost by `measure` is for, in words; empty for the total.
pub(super) const fn of_what(measure: Measure) -> &'static str {
    match measure {
        Measure::Total => "",
        Measure::Operation => " an operation",
        Measure::Mib => " a MiB",
    }
}

/// Unit of a cost by `measure`, in words.
pub(crate) const fn unit_of(measure: Measure) -> &'static str {
    match measure {
        Measure::Total => "µs",
        Measure::Operation => "µs an operation",
        Measure::Mib => "µs a MiB",
    }
}

/// A side of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The first.
    A,
    /// The second.
    B,
}

/// A figure of both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Its name, as `replay --json` has it.
    pub figure: &'static str,
    /// Measure of the figure.
    pub by: Measure,
    /// The first's, if it has it.
    pub a: Option<f64>,
    /// The second's.
    pub b: Option<f64>,
    /// The second's less the first's.
    pub difference: Option<f64>,
    /// The second's as a multiple of the first's; nothing where the first's is zero.
    pub ratio: Option<f64>,
    /// The better one, if one is.
    pub better: Option<Side>,
}

/// Meaning of a smaller figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Less {
    /// Better.
    Better,
    /// Neither is better.
    Neither,
}

/// Difference of a figure.
pub(super) fn difference(
    figure: &'static str,
    by: Measure,
    a: Option<f64>,
    b: Option<f64>,
    less_is: Less,
) -> Difference {
    let both = a.zip(b);
    let ratio = both.and_then(|(a, b)| match (a == b, a == 0.0) {
        (true, _) => Some(1.0),
        (false, true) => None,
        (false, false) => Some(b / a),
    });
    let better = both.and_then(|(a, b)| match a.partial_cmp(&b)? {
        std::cmp::Ordering::Less => Some(Side::A),
        std::cmp::Ordering::Equal => None,
        std::cmp::Ordering::Greater => Some(Side::B),
    });
    Difference {
        figure,
        by,
        a,
        b,
        difference: both.map(|(a, b)| b - a),
        ratio,
        better: better.filter(|_| less_is == Less::Better),
    }
}

/// Unit in which a figure is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FigureUnit {
    Count,
    Micros,
    Millis,
    Bytes,
}

/// A figure of a policy that is compared.
pub(super) struct FigureKind {
    /// Its name, as `replay --json` has it.
    pub(super) name: &'static str,
    /// Name above its column.
    pub(super) head: &'static str,
    /// Order in which its column is left out: 0 never, then the highest first.
    pub(super) spare: u8,
    pub(super) unit: FigureUnit,
    /// The figure grows with the work; peaks do not.
    pub(super) is_summed: bool,
    pub(super) less_is: Less,
    pub(super) of: fn(&PolicyReport) -> f64,
}

const fn summed(
    name: &'static str,
    head: &'static str,
    spare: u8,
    unit: FigureUnit,
    of: fn(&PolicyReport) -> f64,
) -> FigureKind {
    FigureKind { name, head, spare, unit, is_summed: true, less_is: Less::Better, of }
}

const fn peak(
    name: &'static str,
    head: &'static str,
    spare: u8,
    unit: FigureUnit,
    of: fn(&PolicyReport) -> f64,
) -> FigureKind {
    FigureKind { is_summed: false, ..summed(name, head, spare, unit, of) }
}

use FigureUnit::{Bytes, Count, Micros};

/// Compared figures, in the order of a replay's columns.
pub(super) const KINDS: [FigureKind; 16] = [
    summed(TOTAL, "CPU time", 0, Micros, |p| p.time_us.cpu),
    summed("invalidations", "commands", 1, Count, |p| p.invalidations.total() as f64),
    summed("syncs", "syncs", 1, Count, |p| p.syncs as f64),
    summed("exits", "exits", 9, Count, |p| p.exits as f64),
    peak("exposed.max_bytes", "exposed", 2, Bytes, |p| p.exposed.max_bytes as f64),
    peak("exposed.max_us", "for", 2, Micros, |p| p.exposed.max_us),
    peak("exposed.reusable_bytes", "reusable", 10, Bytes, |p| p.exposed.reusable_bytes as f64),
    summed("device.iotlb_misses", "misses", 4, Count, |p| p.device.iotlb_misses as f64),
    summed("time_us.device_stall", "stall", 3, Micros, |p| p.time_us.device_stall),
    summed("time_us.sync_wait", "sync", 5, Micros, |p| p.time_us.sync_wait),
    summed("time_us.exits", "exit", 8, Micros, |p| p.time_us.exits),
    summed("time_us.invalidation", "invalidate", 6, Micros, |p| p.time_us.invalidation),
    summed("time_us.map", "map", 7, Micros, |p| p.time_us.map),
    summed("time_us.unmap", "unmap", 7, Micros, |p| p.time_us.unmap),
    FigureKind {
        less_is: Less::Neither,
        ..summed("operations", "operations", 12, Count, |p| p.operations as f64)
    },
    peak("table_pages_peak", "tables", 11, Count, |p| p.table_pages_peak as f64),
];

/// The figure that contains the others.
pub(super) const TOTAL: &str = "time_us.cpu";
/// Parts of the CPU time, and their names in words.
pub(super) const CAUSES: [(&str, &str); 5] = [
    ("time_us.map", "CPU work of maps"),
    ("time_us.unmap", "CPU work of unmaps"),
    ("time_us.invalidation", "commands"),
    ("time_us.sync_wait", "waits for them"),
    ("time_us.exits", "exits to a hypervisor"),
];
