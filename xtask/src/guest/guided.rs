//! Recordings of a guest's kernel before and after the change that `portolan replay` advised.
//!
//! The strict kernel invalidates for each unmap, the lazy one whole domains, each for many. The recording made before
//! predicts their number; both recordings have the number that there were, and QEMU traces each.

use super::GuestRun;
use super::recording::{self, Invalidation};

/// Factor by which the count may differ from the prediction for the time that the load took under the lazy kernel. A
/// timer causes nearly all flushes, and an emulated timer is sometimes late.
const WITHIN: f64 = 2.0;

/// Counts both, and compares them with the prediction.
pub(super) fn check(ran: &GuestRun) -> Result<(), String> {
    let of = |name| recording::invalidations(ran, name);
    let (before, after) = (of("before.gz")?, of("after.gz")?);
    let pages = |all: &[Invalidation]| {
        let pages = all.iter().filter(|one| one.is_of_pages());
        pages.count()
    };
    let compared = ran.portolan(&["compare", "before.gz", "after.gz"])?;
    let predictions = compared["predictions"].as_array();
    let mut lazy = predictions.into_iter().flatten();
    let lazy = lazy
        .find(|one| one["policy"] == "lazy")
        .ok_or("the comparison predicts nothing of a lazy kernel")?;
    let number = |what: &str| {
        let number = lazy[what].as_f64();
        number.ok_or_else(|| format!("the prediction has no {what}"))
    };
    let (predicted, paced, counted) =
        (number("predicted")?, number("at_its_pace")?, number("counted")?);
    println!(
        "{} invalidations recorded, {predicted} predicted for DMA-FQ, {paced:.0} for the time that it took then, \
         {counted} recorded then, each of them in QEMU's trace",
        before.len()
    );
    if pages(&before) < 1024 || pages(&after) > 0 || counted != after.len() as f64 {
        return Err(format!(
            "strict, {} invalidations are of pages; lazy, {} of {}",
            pages(&before),
            pages(&after),
            after.len()
        ));
    }
    let off = counted / paced;
    if (1.0 / WITHIN..=WITHIN).contains(&off) {
        Ok(())
    } else {
        Err(format!("{off:.2} times as many as predicted"))
    }
}
