//! The reproduction of the table of I/O page faults, as data.

use serde::Serialize;

use super::super::bounds::{Bound, Evidence};
use super::super::rows::{Check, FittedPrice};

/// A reproduction of the table of I/O page faults.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IopfReproduction {
    /// `iopf`.
    pub name: String,
    /// Name of the machine profile.
    pub machine: String,
    /// Four rows for each published one: speed without faults and with, their number, and the part of the speed that
    /// they cost.
    pub rows: Vec<IopfRow>,
    /// The prices that the fit found, each with the rows that it was fitted on.
    pub prices: Vec<FittedPrice>,
    /// Windows side by side.
    pub windows: Vec<WindowRow>,
    /// The bounds on figures that were not fitted, and the worth of each without its mechanism.
    pub bounds: Vec<Bound>,
    /// Further checks.
    pub checks: Vec<Check>,
}

impl IopfReproduction {
    /// Tells if all bounds and checks hold.
    pub fn holds(&self) -> bool {
        let bounds = self.bounds.iter().all(|bound| bound.holds);
        bounds && self.checks.iter().all(|check| check.holds)
    }
}

/// A figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IopfRow {
    /// `encrypt`.
    pub case: &'static str,
    /// `vfio` or `sva`.
    pub kind: &'static str,
    /// `without` faults (everything pinned) or `with`.
    pub variant: &'static str,
    /// Bytes of a message.
    pub msg_len_bytes: u64,
    /// The window, if there is one.
    pub premap_pages: Option<u32>,
    /// Messages.
    pub times: u64,
    /// `speed_kb_s`, `faults` or `loss_pct`.
    pub quantity: &'static str,
    /// Published value.
    pub published: Option<f64>,
    /// Computed; faults are counted.
    pub computed: f64,
    /// `computed` against `published`, in per cent; for `loss_pct` the difference, in points.
    pub error_pct: Option<f64>,
    /// A price was fitted on it.
    pub fitted: bool,
    /// Evidence for `computed`.
    pub evidence: Evidence,
}

/// A workload under one window.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WindowRow {
    /// Pattern of the device's accesses.
    pub workload: &'static str,
    /// Pages of a fixed window, or `adaptive`.
    pub window: String,
    /// Faults.
    pub faults: u64,
    /// Pages that they mapped.
    pub pages_mapped: u64,
    /// Pages that the device accessed.
    pub pages_used: u64,
    /// Percentage of the mapped pages that it did not access.
    pub wasted_pct: f64,
}
