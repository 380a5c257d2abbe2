//! Fitting the work and the bytes of one operation on throughput by number of cores.
//!
//! For each candidate of the work the model gives operations a second; the bytes that bring them
//! nearest to the published rates, each row weighted by the inverse of its published value, follow
//! by least squares. The candidate with the smallest error wins; it is found by golden-section
//! search on the logarithm of the work.

use anyhow::{Result, bail};
use serde::Serialize;

use super::point::{OperationLoad, RowSettings, simulate};
use super::published::MachineFigures;
use super::{Options, ScalePolicy};
use portolan_sim::profile::Profile;

/// Candidates for the work, in nanoseconds.
const RANGE: (f64, f64) = (1_000.0, 200_000.0);
/// Steps of the search: the interval shrinks to a thousandth.
const STEPS: usize = 15;

/// Fitted values, and their error.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FittedOperation {
    /// Nanoseconds that a CPU computes for one operation.
    pub work_ns: f64,
    /// Bytes of one operation.
    pub bytes: f64,
    /// Cores of the rows.
    pub cores: Vec<usize>,
    /// Root mean square of the rows' relative errors.
    pub error: f64,
}

impl FittedOperation {
    /// Fits on the rows that `published` marks.
    pub(super) fn compute(
        profile: &Profile,
        load: &OperationLoad,
        published: &MachineFigures,
        options: &Options,
    ) -> Result<Self> {
        let golden = (5f64.sqrt() - 1.0) / 2.0;
        let (mut low, mut high) = (RANGE.0.ln(), RANGE.1.ln());
        let at = |log: f64| Self::with_work(profile, load, published, options, log.exp());
        let mut left = at(high - golden * (high - low))?;
        let mut right = at(low + golden * (high - low))?;
        for _ in 0..STEPS {
            if left.error <= right.error {
                high = right.work_ns.ln();
                right = left;
                left = at(high - golden * (high - low))?;
            } else {
                low = left.work_ns.ln();
                left = right;
                right = at(low + golden * (high - low))?;
            }
        }
        Ok(if left.error <= right.error { left } else { right })
    }

    fn with_work(
        profile: &Profile,
        load: &OperationLoad,
        published: &MachineFigures,
        options: &Options,
        work_ns: f64,
    ) -> Result<Self> {
        let load = OperationLoad { work_ns, ..*load };
        let mut cores = Vec::new();
        let mut ratios = Vec::new();
        for figure in published.fitted() {
            let way = RowSettings::of(ScalePolicy::Strict, figure.cpus, options);
            let outcome = simulate(profile, &load, &way)?;
            cores.push(figure.cpus);
            ratios.push(outcome.operations_per_s * 8.0 / 1e9 / figure.value);
        }
        let sum: f64 = ratios.iter().sum();
        let squares: f64 = ratios.iter().map(|ratio| ratio * ratio).sum();
        let bytes = sum / squares;
        if !bytes.is_finite() {
            bail!("nothing was computed");
        }
        let errors = ratios.iter().map(|ratio| (ratio * bytes - 1.0).powi(2));
        let error = (errors.sum::<f64>() / ratios.len() as f64).sqrt();
        Ok(Self { work_ns, bytes, cores, error })
    }
}
