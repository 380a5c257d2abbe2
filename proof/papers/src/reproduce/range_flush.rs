//! Range flush (Tegra SMMU, 2015): `tegra-range-flush.csv` recomputed.
//!
//! Each operation goes through the driver of Tegra's SMMU onto the model of its registers, which counts the writes.
//!
//! *Before*: page by page, each page's caches flushed and waited for, after map and after unmap
//! alike. *After*: page by page, one flush at the end. *Portolan*: one `map_sg` or `unmap`, one
//! gather.
//!
//! Prices are fitted on the medians of the four samples at 128K and 4M, for map and unmap apart, since the cost of a
//! flush differs between the two. The size published as 18M is known only to lie between 17 and 19 MiB: both ends are
//! computed, and the interval between them has to meet the spread of the published samples, widened by a tenth at its
//! nearest end.
//!
//! The change did two things at once: one flush of the caches in place of one a page, and each line of a
//! table written back once in place of once a page. Rows of their own have one without the other
//! ([`halves`]). An address space that is given up with all it maps has rows as well, and memory in one
//! piece, which *sections* map: directory entries without a table, of 4 MiB each. Linux's driver for
//! this unit has none.

mod halves;

use anyhow::{Result, anyhow};
use portolan_sim::profile::{Event, Profile};

use super::bounds::{Bound, Evidence, Parts, by_size, worst};
use super::published::{self, RangeFlushSample};
use super::rows::{FittedPrice, LatencyRow, Ranged, Reproduction, error_pct, judge};
use crate::measure::{CallPattern, Events, Grouping, MapOrUnmap, Variant};
use halves::Halves;
use portolan_tune::least_squares::non_negative;
use portolan_tune::machines::own_quirks;

/// The machine that the published figures come from.
pub const MACHINE: &str = "tegra210";
/// Distance of a prediction from the published spread that is allowed, as a part of its nearest end.
pub const SLACK: f64 = 0.1;

/// The published sizes, the bytes that they mean, and their use: to fit prices, or to test predictions.
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

/// Number of times that each fitted price is paid: the call, a single mapped page, a command with its wait.
fn paid(events: &Events) -> Vec<f64> {
    let counts = events.counts;
    let flushes = counts.page + counts.range + counts.context;
    [events.calls, events.single_pages, flushes].map(|n| n as f64).to_vec()
}

fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        return sorted.get(middle).copied();
    }
    Some((sorted.get(middle.checked_sub(1)?)? + sorted.get(middle)?) / 2.0)
}

/// Microseconds of `events` by fitted prices.
fn fitted_us(events: &Events, us: &[f64]) -> f64 {
    paid(events).iter().zip(us).map(|(n, p)| n * p).sum()
}

struct Run {
    size: &'static str,
    bytes: u64,
    usage: Use,
    variant: Variant,
    samples: Vec<f64>,
    events: Events,
}

/// Recomputes the table; `measure` runs one operation and returns its counts, `tear_down` gives up an address space
/// with so many bytes in it.
///
/// # Errors
/// If the published table is malformed, a run fails or the profile lacks a price.
pub fn reproduce(
    profile: &Profile,
    measure: &mut dyn FnMut(MapOrUnmap, u64, CallPattern) -> Result<Events>,
    tear_down: &dyn Fn(u64, CallPattern) -> Result<Events>,
) -> Result<Reproduction> {
    let table = published::range_flush(published::RANGE_FLUSH)?;
    let own = own_quirks(profile)?;
    let in_one_piece = CallPattern { grouping: Grouping::OnePiece, quirks: own };
    let mut rows = Vec::new();
    let (mut prices, mut halves) = (Vec::new(), Vec::new());
    for direction in [MapOrUnmap::Map, MapOrUnmap::Unmap] {
        let samples: Vec<_> = table.iter().filter(|s| s.direction == direction).collect();
        let mut runs = Vec::new();
        for (size, bytes, usage) in SIZES {
            for variant in Variant::ALL {
                let at_size = samples.iter().filter(|sample| sample.size == size);
                let mut samples: Vec<f64> = at_size.filter_map(|s| sample(variant, s)).collect();
                samples.sort_by(f64::total_cmp);
                let events = measure(direction, bytes, variant.range_flush(own))?;
                runs.push(Run { size, bytes, usage, variant, samples, events });
            }
        }
        let fitted = runs.iter().filter(|run| run.usage == Use::Fit);
        let (counts, medians): (Vec<_>, Vec<_>) =
            fitted.filter_map(|run| Some((paid(&run.events), median(&run.samples)?))).unzip();
        let us = non_negative(&counts, &medians, 3);
        prices.extend(prices_of(direction, &us));
        for run in &runs {
            rows.push(row(direction, run, &us, profile)?);
        }
        halves.extend(Halves::of(direction, &runs, &us));
        for size in [SIZES[1], SIZES[2]] {
            let events = measure(direction, size.1, in_one_piece)?;
            rows.push(sections(direction, size, events, &us, profile)?);
        }
        if direction == MapOrUnmap::Unmap {
            for (size, bytes, _) in [SIZES[1], SIZES[2]] {
                let events = tear_down(bytes, CallPattern::whole(own))?;
                rows.push(torn_down(size, bytes, &events, &us, profile)?);
            }
        }
    }
    let (split, mut notes) = halves::rows(&halves, profile.price(Event::CleanLine)? / 1000.0);
    rows.extend(split);
    let bounds = bounds(&rows)?;
    notes.extend(beyond(&table, &rows));
    judge(&mut rows, |row| times_of(row.case, row.variant), &bounds);
    let name = "range-flush".to_owned();
    Ok(Reproduction {
        name,
        machine: profile.name().to_owned(),
        rows,
        prices,
        bounds,
        checks: Vec::new(),
        notes,
    })
}

/// Prices that were fitted on operations of `direction`.
fn prices_of(direction: MapOrUnmap, us: &[f64]) -> impl Iterator<Item = FittedPrice> {
    let events = match direction {
        MapOrUnmap::Map => ["map_call", "map_page", "flush after map, its sync included"],
        MapOrUnmap::Unmap => ["unmap_call", "unmap_page", "flush after unmap, its sync included"],
    };
    events.into_iter().zip(us).map(move |(event, us)| FittedPrice {
        case: direction.name(),
        event,
        ns: us * 1000.0,
        fitted_on: FITTED_ON,
    })
}

/// The row of memory in one piece, mapped or unmapped whole.
fn sections(
    direction: MapOrUnmap,
    (size, bytes, usage): (&'static str, u64, Use),
    events: Events,
    us: &[f64],
    profile: &Profile,
) -> Result<LatencyRow> {
    let run = Run { size, bytes, usage, variant: Variant::Portolan, samples: Vec::new(), events };
    let row = row(direction, &run, us, profile)?;
    let variant = "sections";
    Ok(LatencyRow { variant, ..row })
}

/// The row of an address space given up with `bytes` bytes in it; `us` are the prices of unmaps.
fn torn_down(
    size: &str,
    bytes: u64,
    events: &Events,
    us: &[f64],
    profile: &Profile,
) -> Result<LatencyRow> {
    let flushes = fitted_us(events, &[0.0, 0.0, us[2]]);
    let tables = events.tables as f64;
    Ok(LatencyRow {
        case: "tear-down",
        variant: Variant::Portolan.name(),
        size_bytes: bytes,
        size: Some(size.to_owned()),
        quantity: "latency_us",
        published: None,
        published_range: None,
        computed: flushes + tables * profile.price(Event::TableFree)? / 1000.0,
        computed_range: Some(Ranged {
            low: flushes,
            high: flushes + tables * us[0],
            over: "a table is freed for nothing, or for what an unmap call takes",
        }),
        error_pct: None,
        fitted: false,
        evidence: Evidence::Computed,
        counts: events.counts,
        lines: events.lines,
        registers: events.registers,
    })
}

/// Samples that lie further beyond the largest computed time of their size than the bound allows.
fn beyond(table: &[RangeFlushSample], rows: &[LatencyRow]) -> Vec<String> {
    let mut notes = Vec::new();
    for direction in [MapOrUnmap::Map, MapOrUnmap::Unmap] {
        for variant in [Variant::Before, Variant::After] {
            let of = |row: &&LatencyRow| {
                let same = (row.case, row.variant) == (direction.name(), variant.name());
                same && row.size.as_deref() == Some(SIZES[3].0)
            };
            let most = worst(rows.iter().filter(of).map(|row| row.computed));
            let samples = table
                .iter()
                .filter(|sample| sample.direction == direction && sample.size == SIZES[3].0);
            let above = samples.filter_map(|of| {
                let value = sample(variant, of)?;
                let pct = error_pct(value, most);
                (pct > 100.0 * SLACK).then(|| format!("{value:.0} µs ({pct:.0} %)"))
            });
            let above: Vec<_> = above.collect();
            if !above.is_empty() {
                notes.push(format!(
                    "Not explained: of {} of 18M, {}, samples lie above the largest computed, {most:.0} µs at \
                     19 MiB: {}.",
                    direction.name(),
                    variant.name(),
                    above.join(", "),
                ));
            }
        }
    }
    notes
}

fn row(direction: MapOrUnmap, run: &Run, us: &[f64], profile: &Profile) -> Result<LatencyRow> {
    let mut computed = fitted_us(&run.events, us);
    let mut computed_range = None;
    if run.variant == Variant::Portolan {
        // Entries are written in runs, and the walker does not snoop: their lines are cleaned.
        let price = |event| profile.price(event).map(|ns| ns / 1000.0);
        let (known, pages) = (computed, run.events.run_pages as f64);
        let entries = pages * price(Event::PteWrite)?;
        let lines = run.events.lines as f64 * price(Event::CleanLine)?;
        computed += entries + lines;
        computed_range = Some(Ranged {
            low: known + entries,
            // The line is in the fitted price of a page.
            high: known + (pages * us[1]).max(entries + lines),
            over: "a line is cleaned for nothing or for what is assumed, an entry takes what it takes an i7-12700 in a \
                   run, or this CPU for a page alone with its line",
        });
    }
    let published = median(&run.samples);
    let spread = run.samples.first().zip(run.samples.last());
    Ok(LatencyRow {
        case: direction.name(),
        variant: run.variant.name(),
        size_bytes: run.bytes,
        size: Some(run.size.to_owned()),
        quantity: "latency_us",
        published,
        published_range: spread.map(|(low, high)| [*low, *high]),
        computed,
        computed_range,
        error_pct: published.map(|p| error_pct(computed, p)),
        fitted: published.is_some() && run.usage == Use::Fit,
        evidence: Evidence::Computed,
        counts: run.events.counts,
        lines: run.events.lines,
        registers: run.events.registers,
    })
}

/// The name of the bound on one case and variant.
fn times_of(case: &str, variant: &str) -> String {
    format!("{case} of 18M, {variant}: 17 to 19 MiB meets the samples")
}

/// Distance of the interval from `first` to `last` from the interval from `low` to `high`, in per cent of its nearest
/// end.
fn missed_pct([first, last]: [f64; 2], [low, high]: [f64; 2]) -> f64 {
    let below = 100.0 * (1.0 - last / low);
    let above = 100.0 * (first / high - 1.0);
    below.max(above).max(0.0)
}

fn bounds(rows: &[LatencyRow]) -> Result<Vec<Bound>> {
    let mut bounds = Vec::new();
    for case in [MapOrUnmap::Map, MapOrUnmap::Unmap].map(MapOrUnmap::name) {
        for (variant, without, mechanism) in [
            (Variant::Before, Variant::After, "a flush for each page"),
            (Variant::After, Variant::Before, "one flush an operation"),
        ] {
            let (variant, without) = (variant.name(), without.name());
            let of = |variant| move |row: &&LatencyRow| row.case == case && row.variant == variant;
            let left = |variant| rows.iter().filter(of(variant)).filter(|row| !row.fitted);
            let samples = left(variant).find_map(|row| row.published_range);
            let lacks = || anyhow!("no sample of 18M is published for {case}, {variant}");
            let samples = samples.ok_or_else(lacks)?;
            let missed = |values: &mut dyn Iterator<Item = f64>| {
                let values: Vec<f64> = values.collect();
                let first = values.iter().copied().fold(f64::INFINITY, f64::min);
                missed_pct([first, worst(values)], samples)
            };
            let fitted = rows.iter().filter(of(variant)).filter(|row| row.fitted);
            let points: Vec<_> =
                fitted.filter_map(|row| Some((row.size_bytes as f64, row.published?))).collect();
            let sizes = || left(variant).map(|row| row.size_bytes as f64);
            let trivial = by_size(&points, |guess| missed(&mut sizes().map(guess)));
            bounds.push(Bound::new(Parts {
                what: times_of(case, variant),
                limit_pct: 100.0 * SLACK,
                worst_pct: missed(&mut left(variant).map(|row| row.computed)),
                mechanism: (mechanism, missed(&mut left(without).map(|row| row.computed))),
                trivial: ("line through fitted medians, or the largest", trivial),
                would_be: Evidence::Predicted,
            }));
        }
    }
    Ok(bounds)
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
