//! Range flush (Tegra SMMU, 2015): `tegra-range-flush.csv` recomputed.
//!
//! Each operation goes through the driver of Tegra's SMMU onto the model of its registers, which
//! counts what is written.
//!
//! *Before*: page by page, each page's caches flushed and waited for, after map and after unmap
//! alike. *After*: page by page, one flush at the end. *Portolan*: one `map_sg` or `unmap`, one
//! gather.
//!
//! Prices are fitted on the medians of the four samples at 128K and 4M, for map and unmap apart,
//! since what a flush costs differs between the two. The size published as 18M is known only to
//! lie between 17 and 19 MiB: both ends are computed, and the interval between them has to meet
//! the spread of the published samples, widened by a tenth at its nearest end.

use anyhow::{Result, anyhow};
use portolan_model::profile::{Event, Profile};

use super::fit;
use super::published::{self, RangeFlushSample};
use super::rows::{Check, FittedPrice, Reproduction, Row, error_pct};
use crate::machines::own_quirks;
use crate::measure::{Direction, Events, Variant, Way};

/// The machine that the published figures come from.
pub const MACHINE: &str = "tegra210";
/// How far outside the published spread a prediction may lie, as a part of its nearest end.
pub const SLACK: f64 = 0.1;

/// The published sizes, the bytes that stand for them, and whether they are fitted on.
const SIZES: [(&str, u64, Use); 4] = [
    ("128K", 128 << 10, Use::Fit),
    ("4M", 4 << 20, Use::Fit),
    ("18M", 17 << 20, Use::Predict),
    ("18M", 19 << 20, Use::Predict),
];
const FITTED_ON: &str = "medians at 128K and 4M, before and after";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Fit,
    Predict,
}

fn sample(variant: Variant, sample: &RangeFlushSample) -> Option<f64> {
    match variant {
        Variant::Before => Some(sample.before),
        Variant::After => Some(sample.after),
        Variant::Portolan => None,
    }
}

/// How often each fitted price is paid: the call, a page mapped alone, a command with its wait.
fn paid(events: &Events) -> Vec<f64> {
    let counts = events.counts;
    let flushes = counts.page + counts.range + counts.context;
    [events.calls, events.single_pages, flushes]
        .map(|n| n as f64)
        .to_vec()
}

fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        return sorted.get(middle).copied();
    }
    Some((sorted.get(middle.checked_sub(1)?)? + sorted.get(middle)?) / 2.0)
}

struct Run {
    size: &'static str,
    bytes: u64,
    usage: Use,
    variant: Variant,
    samples: Vec<f64>,
    events: Events,
}

/// Recomputes the table; `measure` runs one operation and says what it caused.
///
/// # Errors
/// If the published table is malformed, a run fails or the profile lacks a price.
pub fn reproduce(
    profile: &Profile,
    measure: &mut dyn FnMut(Direction, u64, Way) -> Result<Events>,
) -> Result<Reproduction> {
    let table = published::range_flush(published::RANGE_FLUSH)?;
    let own = own_quirks(profile)?;
    let mut rows = Vec::new();
    let mut prices = Vec::new();
    for direction in [Direction::Map, Direction::Unmap] {
        let samples: Vec<_> = table.iter().filter(|s| s.direction == direction).collect();
        let mut runs = Vec::new();
        for (size, bytes, usage) in SIZES {
            for variant in Variant::ALL {
                let at_size = samples.iter().filter(|sample| sample.size == size);
                let mut samples: Vec<f64> = at_size.filter_map(|s| sample(variant, s)).collect();
                samples.sort_by(f64::total_cmp);
                let events = measure(direction, bytes, variant.range_flush(own))?;
                runs.push(Run {
                    size,
                    bytes,
                    usage,
                    variant,
                    samples,
                    events,
                });
            }
        }
        let fitted = runs.iter().filter(|run| run.usage == Use::Fit);
        let (counts, medians): (Vec<_>, Vec<_>) = fitted
            .filter_map(|run| Some((paid(&run.events), median(&run.samples)?)))
            .unzip();
        let us = fit::non_negative(&counts, &medians, 3);
        let events = match direction {
            Direction::Map => ["map_call", "map_page", "flush after map, its sync included"],
            Direction::Unmap => [
                "unmap_call",
                "unmap_page",
                "flush after unmap, its sync included",
            ],
        };
        prices.extend(events.iter().zip(&us).map(|(event, us)| FittedPrice {
            case: direction.name(),
            event,
            ns: us * 1000.0,
            fitted_on: FITTED_ON,
        }));
        for run in &runs {
            rows.push(row(direction, run, &us, profile)?);
        }
    }
    let checks = checks(&rows)?;
    let name = "range-flush".to_owned();
    Ok(Reproduction {
        name,
        machine: profile.name().to_owned(),
        rows,
        prices,
        checks,
    })
}

fn row(direction: Direction, run: &Run, us: &[f64], profile: &Profile) -> Result<Row> {
    let mut computed: f64 = paid(&run.events).iter().zip(us).map(|(n, p)| n * p).sum();
    if run.variant == Variant::Portolan {
        // Entries are written in runs, and the walker does not snoop: their lines are cleaned.
        let price = |event| profile.price(event).map(|ns| ns / 1000.0);
        computed += run.events.run_pages as f64 * price(Event::PteWrite)?;
        computed += run.events.lines as f64 * price(Event::CleanLine)?;
    }
    let published = median(&run.samples);
    let spread = run.samples.first().zip(run.samples.last());
    Ok(Row {
        case: direction.name(),
        variant: run.variant.name(),
        size_bytes: run.bytes,
        size: Some(run.size.to_owned()),
        quantity: "latency_us",
        published,
        published_range: spread.map(|(low, high)| [*low, *high]),
        computed,
        error_pct: published.map(|p| error_pct(computed, p)),
        fitted: published.is_some() && run.usage == Use::Fit,
        counts: run.events.counts,
        registers: run.events.registers,
    })
}

fn checks(rows: &[Row]) -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    for case in [Direction::Map, Direction::Unmap].map(Direction::name) {
        for variant in [Variant::Before, Variant::After].map(Variant::name) {
            let of = |row: &&Row| row.case == case && row.variant == variant && !row.fitted;
            let ends: Vec<f64> = rows.iter().filter(of).map(|row| row.computed).collect();
            let [low, high] = rows
                .iter()
                .find(of)
                .and_then(|row| row.published_range)
                .ok_or_else(|| anyhow!("no sample of 18M is published for {case}, {variant}"))?;
            let first = ends.iter().copied().fold(f64::INFINITY, f64::min);
            let last = ends.iter().copied().fold(0.0, f64::max);
            checks.push(Check {
                what: format!(
                    "{case} of 18M, {variant}: from 17 to 19 MiB meets {low:.0} to {high:.0} µs, \
                     a tenth allowed"
                ),
                found: format!("{first:.0} to {last:.0} µs"),
                holds: first <= high * (1.0 + SLACK) && last >= low * (1.0 - SLACK),
            });
        }
    }
    Ok(checks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), Some(3.0));
    }
}
