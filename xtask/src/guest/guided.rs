//! What a guest's kernel did before and after the change that `portolan replay` advised.
//!
//! The strict kernel invalidates for each unmap, the lazy one whole domains, each for many. The advice predicts how
//! many; both recordings say how many there were, and QEMU traces each.

use serde_json::Value;

use super::Ran;
use super::recording::{self, Invalidation};

/// How many times more or fewer than predicted there may be: how fast the disk is under the lazy kernel, and so for
/// how many unmaps its flush queue's timer of 10 ms waits, is not known before.
const WITHIN: f64 = 4.0;

/// Counts both, and holds them against what was predicted.
pub(super) fn check(ran: &Ran) -> Result<(), String> {
    let of = |name| recording::invalidations(ran, name);
    let (before, after) = (of("before.gz")?, of("after.gz")?);
    let pages = |all: &[Invalidation]| {
        let pages = all.iter().filter(|one| one.is_of_pages());
        pages.count()
    };
    let replayed = recording::replay(ran, "before.gz")?;
    let (predicted, instead) = predicted(&replayed)?;
    println!(
        "{instead} invalidations recorded, {predicted} predicted for DMA-FQ, {} recorded then, \
         each of them in QEMU's trace",
        after.len()
    );
    if pages(&before) as u64 != instead || pages(&after) > 0 {
        return Err(format!(
            "strict, {} invalidations are of pages; lazy, {}",
            pages(&before),
            pages(&after)
        ));
    }
    let off = after.len() as f64 / predicted as f64;
    match (1.0 / WITHIN..=WITHIN).contains(&off) {
        true => Ok(()),
        false => Err(format!("{off:.1} times as many as predicted")),
    }
}

/// The first advice's `N invalidations instead of M`.
fn predicted(replayed: &Value) -> Result<(u64, u64), String> {
    let says = replayed["advice"][0]["effect"]["says"].as_str();
    let numbers = says.and_then(|says| {
        let (then, now) = says.split_once(" invalidations instead of ")?;
        let number = |text: &str| text.replace(',', "").parse().ok();
        Some((number(then)?, number(now)?))
    });
    numbers.ok_or_else(|| format!("the advice says {says:?}"))
}
