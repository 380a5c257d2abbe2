//! Walk flush by context (Qualcomm SMMU, 2021): `qcom-smmu-walk-flush.csv` recomputed.
//!
//! *Before*: Linux maps page by page; unmaps page by page below the span of a leaf table, one
//! command a page and one wait at the end; from there on one leaf table at a time, each with a
//! command for each of its pages and a wait of its own. *After*: the same, but one command for the
//! context for each table. *Portolan*: one `map_sg`, one `unmap`, one plan.
//!
//! The cost of an unmap of whole tables beside its commands is fitted as one price for the table and its wait, since
//! every table published had one; Portolan's several tables with one wait are priced by the profile's two prices.

use anyhow::Result;
use portolan_sim::profile::{Event, Profile};

use super::bounds::{Bound, Evidence, Parts, by_size, worst};
use super::published::{self, WalkFlushRow};
use super::rows::{FittedPrice, LatencyRow, Ranged, Reproduction, error_pct, judge};
use crate::measure::{CallPattern, Events, MapOrUnmap, Variant};
use portolan_tune::least_squares::non_negative;
use portolan_tune::machines::own_quirks;

/// The machine that the published figures come from.
pub const MACHINE: &str = "sm8150";
/// Rows up to this size are fitted, the others are not.
pub const FITTED_UP_TO: u64 = 12 << 20;
/// Largest error of a row that was not fitted, in per cent.
pub const BOUND_PCT: f64 = 5.0;
/// Commands that the published change counts for 32 MiB: TLBIVA before, TLBIASID after.
const COUNTED: (u64, [u64; 2]) = (32 << 20, [8192, 16]);

const FITTED_ON: &str = "sizes up to 12 MiB, before and after";
const MAP_PRICES: [Event; 2] = [Event::MapCall, Event::MapPage];
const UNMAP_PRICES: [Event; 5] =
    [Event::UnmapCall, Event::UnmapPage, Event::CmdPage, Event::TableFree, Event::UnmapCallTables];

/// The names under which the fitted prices are printed.
fn price_name(event: Event) -> &'static str {
    match event {
        Event::CmdPage => "cmd_page = cmd_context",
        Event::TableFree => "table_free + sync",
        Event::UnmapCall => "unmap_call, its sync included",
        other => other.name(),
    }
}

/// Number of times that each fitted price is paid.
fn paid(direction: MapOrUnmap, events: &Events) -> Vec<f64> {
    let whole = events.tables > 0;
    let columns = match direction {
        MapOrUnmap::Map => vec![events.calls, events.single_pages],
        MapOrUnmap::Unmap => vec![
            if whole { 0 } else { events.calls },
            events.single_pages,
            events.counts.page + events.counts.range + events.counts.context,
            events.tables,
            if whole { events.calls } else { 0 },
        ],
    };
    columns.into_iter().map(|n| n as f64).collect()
}

fn dot(counts: &[f64], prices: &[f64]) -> f64 {
    counts.iter().zip(prices).map(|(n, p)| n * p).sum()
}

/// Microseconds of Portolan's way: fitted prices, and the profile's for events that were not published.
fn ours(direction: MapOrUnmap, events: &Events, us: &[f64], profile: &Profile) -> Result<f64> {
    let price = |event| profile.price(event).map(|ns| ns / 1000.0);
    let entries = events.run_pages as f64 * price(Event::PteWrite)?;
    let mut counts = paid(direction, events);
    if direction == MapOrUnmap::Map {
        return Ok(dot(&counts, us) + entries);
    }
    if events.tables == 0 {
        return Ok(dot(&counts, us) + entries);
    }
    // Whole tables leave with one write each; the wait is paid once.
    counts[3] = 0.0;
    let tables = events.tables as f64 * price(Event::TableFree)?;
    let waits = events.counts.sync as f64 * price(Event::Sync)?;
    Ok(dot(&counts, us) + tables + waits)
}

/// Range of [`ours`]: the prices that it has from elsewhere at their ends.
fn own_range(
    direction: MapOrUnmap,
    events: &Events,
    us: &[f64],
    profile: &Profile,
) -> Result<Ranged> {
    let price = |event| profile.price(event).map(|ns| ns / 1000.0);
    let computed = ours(direction, events, us, profile)?;
    let whole_tables = direction == MapOrUnmap::Unmap && events.tables > 0;
    let (known, most) = if whole_tables {
        let syncs = events.counts.sync as f64;
        (syncs * price(Event::Sync)?, syncs * us[0])
    } else {
        let pages = events.run_pages as f64;
        (pages * price(Event::PteWrite)?, pages * us[1])
    };
    Ok(Ranged {
        low: if whole_tables { computed - known } else { computed },
        high: computed - known + most,
        over: "a wait is from nothing to a whole small unmap, an entry from what it takes an i7-12700 in a run to \
               what this CPU takes for a page alone",
    })
}

/// A size, the way of the operation, its published latency in microseconds, and its counts.
type Run = (u64, Variant, Option<f64>, Events);

fn runs(
    table: &[WalkFlushRow],
    direction: MapOrUnmap,
    measure: &mut dyn FnMut(Variant, u64) -> Result<Events>,
) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for row in table {
        let [before, after] = match direction {
            MapOrUnmap::Map => row.map,
            MapOrUnmap::Unmap => row.unmap,
        };
        let variants = [
            (Variant::Before, Some(before)),
            (Variant::After, Some(after)),
            (Variant::Portolan, None),
        ];
        for (variant, published) in variants {
            let events = measure(variant, row.size_bytes)?;
            runs.push((row.size_bytes, variant, published, events));
        }
    }
    Ok(runs)
}

/// Recomputes the table; `measure` runs one operation and returns its counts.
///
/// # Errors
/// If the published table is malformed, a run fails or the profile lacks a price.
pub fn reproduce(
    profile: &Profile,
    table_span: u64,
    measure: &mut dyn FnMut(MapOrUnmap, u64, CallPattern) -> Result<Events>,
) -> Result<Reproduction> {
    let table = published::walk_flush(published::WALK_FLUSH)?;
    let own = own_quirks(profile)?;
    let mut rows = Vec::new();
    let mut prices = Vec::new();
    for direction in [MapOrUnmap::Map, MapOrUnmap::Unmap] {
        let mut run = |variant: Variant, bytes| {
            let way = variant.walk_flush(direction, bytes, table_span, own);
            measure(direction, bytes, way)
        };
        let runs = runs(&table, direction, &mut run)?;
        let names: &[Event] = match direction {
            MapOrUnmap::Map => &MAP_PRICES,
            MapOrUnmap::Unmap => &UNMAP_PRICES,
        };
        let fitted = runs.iter().filter(|run| run.0 <= FITTED_UP_TO);
        let (counts, values): (Vec<_>, Vec<_>) = fitted
            .filter_map(|(_, _, published, events)| Some((paid(direction, events), (*published)?)))
            .unzip();
        let us = non_negative(&counts, &values, names.len());
        prices.extend(names.iter().zip(&us).map(|(event, us)| FittedPrice {
            case: direction.name(),
            event: price_name(*event),
            ns: us * 1000.0,
            fitted_on: FITTED_ON,
        }));
        for (size_bytes, variant, published, events) in runs {
            let computed = match variant {
                Variant::Portolan => ours(direction, &events, &us, profile)?,
                _ => dot(&paid(direction, &events), &us),
            };
            let computed_range = match variant {
                Variant::Portolan => Some(own_range(direction, &events, &us, profile)?),
                _ => None,
            };
            rows.push(LatencyRow {
                case: direction.name(),
                variant: variant.name(),
                size_bytes,
                size: None,
                quantity: "latency_us",
                published,
                published_range: None,
                computed,
                computed_range,
                error_pct: published.map(|p| error_pct(computed, p)),
                fitted: published.is_some() && size_bytes <= FITTED_UP_TO,
                evidence: Evidence::Computed,
                counts: events.counts,
                lines: events.lines,
                registers: None,
            });
        }
    }
    let bounds = bounds(&rows, table_span);
    judge(&mut rows, |row| times_of(row.case, row.variant), &bounds);
    Ok(Reproduction {
        name: "walk-flush".to_owned(),
        machine: profile.name().to_owned(),
        rows,
        prices,
        bounds,
        checks: Vec::new(),
        notes: vec![dropped_beside(profile, table_span)?],
    })
}

/// Cost of a command for the context to a device, which no latency of an unmap holds, in sentences.
fn dropped_beside(profile: &Profile, table_span: u64) -> Result<String> {
    let entries = f64::from(profile.caches().iotlb.entries);
    let step_us = profile.price(Event::IotlbMissStep)? / 1000.0;
    let pages = table_span >> profile.granule().lg2();
    Ok(format!(
        "By context what is cached beside the buffer is dropped too, which these latencies do not hold: at most \
         {entries:.0} translations, {:.0} to {:.0} µs of walks if each is used\nagain and a read takes {:.0} ns \
         (assumed), where {pages} page commands of a table are {:.0} µs. `portolan-papers synthetic camera \
         --machine {}` runs that,\nand wait-for-safe, which is off here.",
        entries * step_us,
        entries * f64::from(profile.format().levels()) * step_us,
        step_us * 1000.0,
        pages as f64 * profile.price(Event::CmdPage)? / 1000.0,
        profile.name(),
    ))
}

/// The name of the bound on the times of one case and variant.
fn times_of(case: &str, variant: &str) -> String {
    format!("{case} times of 16 to 32 MiB, {variant}")
}

/// A bound on the times of each case and variant, and one on the commands.
fn bounds(rows: &[LatencyRow], table_span: u64) -> Vec<Bound> {
    let mut bounds = Vec::new();
    for (case, variant, mechanism, without) in [
        ("map", "before", "mapping page by page", "portolan"),
        ("map", "after", "mapping page by page", "portolan"),
        ("unmap", "before", "a command for each page", "after"),
        ("unmap", "after", "walk flush by context", "before"),
    ] {
        let of = |variant| move |row: &&LatencyRow| row.case == case && row.variant == variant;
        let here = || rows.iter().filter(of(variant)).filter(|row| row.published.is_some());
        // Smaller unmaps take no tables, and are on another line.
        let at_least = if case == "unmap" { table_span } else { 0 };
        let fitted = here().filter(|row| row.fitted && row.size_bytes >= at_least);
        let points: Vec<_> =
            fitted.filter_map(|row| Some((row.size_bytes as f64, row.published?))).collect();
        let left = || here().filter(|row| !row.fitted);
        let off = left().filter_map(|row| {
            let same = |other: &&LatencyRow| other.size_bytes == row.size_bytes;
            let other = rows.iter().filter(of(without)).find(same)?;
            Some(error_pct(other.computed, row.published?))
        });
        let trivial = by_size(&points, |guess| {
            let errors = left()
                .filter_map(|row| Some(error_pct(guess(row.size_bytes as f64), row.published?)));
            worst(errors)
        });
        bounds.push(Bound::new(Parts {
            what: times_of(case, variant),
            limit_pct: BOUND_PCT,
            worst_pct: worst(left().filter_map(|row| row.error_pct)),
            mechanism: (mechanism, worst(off)),
            trivial: ("line through fitted rows, or the largest", trivial),
            would_be: Evidence::Predicted,
        }));
    }
    bounds.push(counted(rows));
    bounds
}

/// The commands of the largest unmap, as the published change counts them.
fn counted(rows: &[LatencyRow]) -> Bound {
    let (bytes, published) = COUNTED;
    let seen = |variant: &str| {
        let same = |row: &&LatencyRow| {
            (row.case, row.variant, row.size_bytes) == ("unmap", variant, bytes)
        };
        let row = rows.iter().find(same);
        row.map_or(0, |row| row.counts.page + row.counts.context) as f64
    };
    let off = |counts: [f64; 2]| {
        let each = counts.iter().zip(published);
        worst(each.map(|(count, published)| error_pct(*count, published as f64)))
    };
    Bound::new(Parts {
        what: "commands of unmapping 32 MiB, before and after".to_owned(),
        limit_pct: 0.0,
        worst_pct: off([seen("before"), seen("after")]),
        mechanism: ("walk flush by context", off([seen("before"); 2])),
        trivial: ("one command a call", off([1.0; 2])),
        would_be: Evidence::Counted,
    })
}
