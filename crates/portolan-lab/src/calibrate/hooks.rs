//! What tracing itself takes: a call that does nothing takes that alone.
//!
//! `function_graph` reads the clock when a function is entered and when it is left. What it does between those and the
//! function is in the call's own time, what it does outside of them in the caller's; both are taken to be as long. So a
//! call loses one such time for itself, two for each traced call in it, and one where that call's time is taken out
//! whole. The cheapest function that has no traced call in it and no price tells how long it is.

use serde::Serialize;

use super::FunctionReport;
use super::robust::FEWEST;
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
    /// By the cheapest of `functions`; none where that may do something.
    pub(super) fn of(functions: &[FunctionReport], samples: &Samples) -> Option<Self> {
        let priced = functions.iter().filter(|one| one.priced_as.is_some());
        let shortest = priced.map(|one| one.median_ns).min_by(f64::total_cmp)?;
        let empty = functions.iter().filter(|one| {
            let kept = samples.functions.get(&one.name);
            kept.is_some_and(|kept| kept.leaves == one.calls)
                && one.calls >= FEWEST as u64
                && !WRAPPERS.iter().any(|start| one.name.starts_with(start))
                && one.priced_as.is_none()
                && one.median_ns < shortest
        });
        let least = empty.min_by(|one, other| {
            let by_time = one.median_ns.total_cmp(&other.median_ns);
            by_time.then_with(|| one.name.cmp(&other.name))
        })?;
        Some(Self {
            function: least.name.clone(),
            ns: least.median_ns,
            calls: least.calls,
        })
    }
}
