//! Marks of written pages, in the formats whose tables Linux keeps by its generic code.

use super::{GENERIC_PT, Sample, Scenario, Target};
use crate::linux::marks as linux;
use crate::marks::{MarkedFormat, Marks, OurMarks, PAGES, PlainMarks};
use crate::rig::PAGE;
use crate::workload::Cache;

/// A scenario of one format. Linux clears a mark by a load and a store, as its callers keep other CPUs out; our tables
/// are changed by other CPUs meanwhile, so a mark takes an atomic exchange.
macro_rules! scenario {
    ($name:literal, $what:literal, $format:ident, $wanted:literal) => {
        Scenario {
            name: $name,
            what: $what,
            size_bytes: PAGES * PAGE,
            unit: "ns per page",
            cache: Cache::Hot,
            threads: 1,
            sample: Sample::Pass,
            peers: &[(GENERIC_PT, || Ok(Box::new(linux::marks(MarkedFormat::$format)?)))],
            targets: &[Target::Linux($wanted)],
            limit: "loads, and atomic stores to what is marked",
            make: || Ok(Box::new(Marks::new(OurMarks::new(MarkedFormat::$format)?)?)),
            make_limit: || Ok(Box::new(PlainMarks::new())),
        }
    };
}

pub(super) fn all() -> Vec<Scenario> {
    vec![
        scenario!(
            "amd_marks",
            "marks of written pages read and cleared, one of four marked, AMD-Vi",
            Amd,
            1.0
        ),
        scenario!(
            "vtd_marks",
            "marks of written pages read and cleared, one of four marked, VT-d's second stage",
            Vtd,
            0.5
        ),
    ]
}
