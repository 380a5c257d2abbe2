//! What tracing itself takes: a call that does nothing takes that alone.
//!
//! `function_graph` reads the clock when a function is entered and when it is left. What it does between those and the
//! function is in the call's own time, what it does outside of them in the caller's; both are taken to be as long. So a
//! call loses one such time for itself, two for each traced call in it, and one where that call's time is taken out
//! whole. The cheapest function that has no traced call in it and no price tells how long it is.

use serde::Serialize;

use super::function::known;
use super::robust::{FEWEST, median};
use super::samples::Samples;

/// Functions that do more than nothing, by the beginnings of their names.
const WRAPPERS: [&str; 6] = [
    "dma_",
    "iommu_dma_",
    "iommu_map",
    "iommu_unmap",
    "swiotlb_",
    "__iommu_dma_",
];

/// What tracing takes in each call.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tracing {
    /// The function that says so.
    pub function: String,
    /// Nanoseconds of its median call.
    pub ns: f64,
    /// Its calls.
    pub calls: u64,
}

impl Tracing {
    /// By the cheapest function in `samples`; none where that may do something.
    pub(super) fn of(samples: &Samples) -> Option<Self> {
        let medians = samples.functions.iter().map(|(name, function)| {
            let ns = function.ns.kept().iter().map(|ns| *ns as f64);
            (name, function, median(&mut ns.collect::<Vec<_>>()))
        });
        let all: Vec<_> = medians.collect();
        let priced = all
            .iter()
            .filter(|(name, ..)| known(name.as_bytes()).is_some());
        let shortest = priced.map(|(_, _, ns)| *ns).min_by(f64::total_cmp)?;
        let empty = all.iter().filter(|(name, function, ns)| {
            let calls = function.ns.seen();
            let is_wrapper = WRAPPERS.iter().any(|start| name.starts_with(start));
            function.leaves == calls
                && calls >= FEWEST as u64
                && !is_wrapper
                && known(name.as_bytes()).is_none()
                && *ns < shortest
        });
        let (name, function, ns) = empty.min_by(|one, other| one.2.total_cmp(&other.2))?;
        Some(Self {
            function: (*name).clone(),
            ns: *ns,
            calls: function.ns.seen(),
        })
    }
}
