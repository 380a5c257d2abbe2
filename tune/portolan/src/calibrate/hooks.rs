//! Time of tracing itself, which is taken off calls.
//!
//! `function_graph` reads the clock when a function is entered and when it is left. Its work between those and the
//! function is in the call's own time (*inside*), its work before and after them in the caller's (*around*). So a
//! call loses *inside* once for itself, both for each traced call in it, and *around* where that call's time is taken
//! out whole.
//!
//! The cheapest function that has no traced call in it and no price tells *inside*: it does next to nothing. Both
//! together are the time by which a system call takes longer while one function in it is traced: the recorder makes
//! such calls in the end. In traces without them *around* is taken to be as long as *inside*.

use serde::Serialize;

use super::TracedFunctionReport;
use super::robust::{FEWEST, median, rounded};
use super::samples::{Care, Overhead, Part, Probe, Samples};

/// Functions that do more than nothing, by the beginnings of their names.
const WRAPPERS: [&str; 6] =
    ["dma_", "iommu_dma_", "iommu_map", "iommu_unmap", "swiotlb_", "__iommu_dma_"];

/// Time of tracing, for each call.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tracing {
    /// Function that the price comes from.
    pub function: String,
    /// Nanoseconds of its median call.
    pub ns: f64,
    /// Its calls.
    pub calls: u64,
    /// Nanoseconds in the caller of a traced call, if they were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub around_ns: Option<f64>,
}

impl Tracing {
    /// Finds the price from the cheapest of `functions`; `None` if even that one may do work.
    pub(super) fn of(functions: &[TracedFunctionReport], samples: &Samples) -> Option<Self> {
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
            around_ns: samples.probe.around_ns(least.median_ns),
        })
    }

    /// Overhead of tracing that is taken off with `care`.
    pub(super) fn overhead(&self, care: Care) -> Overhead {
        let around_ns = self.around_ns.filter(|_| care.takes(Part::Around));
        Overhead { inside_ns: self.ns, around_ns: around_ns.unwrap_or(self.ns) }
    }
}

impl Probe {
    /// Time that a traced call takes in its caller beside `inside_ns`, the time in the call itself.
    fn around_ns(&self, inside_ns: f64) -> Option<f64> {
        let calls = [&self.alone, &self.with_one];
        if calls.iter().any(|calls| calls.kept().len() < FEWEST) {
            return None;
        }
        let [alone, with_one] = calls.map(|calls| {
            let ns = calls.kept().iter().map(|ns| *ns as f64);
            median(&mut ns.collect::<Vec<_>>())
        });
        Some(rounded((with_one - alone - inside_ns).max(0.0)))
    }
}
