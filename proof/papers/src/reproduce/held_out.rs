//! Figures of machines on which no price was fitted: `held-out.csv`.
//!
//! They are computed with the prices of the profile that comes nearest, and no bound is put on them: the
//! error is printed in any case, beside that of the prediction that nothing happens. A profile is a machine, and
//! these are others, so the errors show the reach of its prices.

use anyhow::{Context, Result};
use portolan::inval::{Preference, Quirks};
use portolan_sim::profile::{Event, Profile};
use serde::Serialize;

use super::bounds::{Evidence, worst};
use super::registers;
use super::rows::error_pct;
use crate::csv;
use crate::measure::{CallPattern, Events, Grouping, MapOrUnmap, Variant};
use crate::smmu_v2_board;
use portolan_cli::display::{table, wrapped};
use portolan_tune::machines::own_quirks;
use portolan_tune::replay::{Policy, Replay};
use portolan_tune::trace;

const TABLE: &str = include_str!("../../../../data/published/held-out.csv");
const RECEIVED: &[u8] = include_bytes!("../../../../data/traces/vtd-strict.net-rx.trace.xz");

/// All held-out rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeldOut {
    /// `held-out`.
    pub name: String,
    /// One row for each published figure.
    pub rows: Vec<HeldOutRow>,
}

impl HeldOut {
    /// Tells if each figure was computed; its error is no condition.
    pub fn holds(&self) -> bool {
        self.rows.iter().all(|row| row.computed.is_finite())
    }
}

/// A figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeldOutRow {
    /// The publication: `fns`, `map-batch` or `map-sync`.
    pub case: String,
    /// `iotlb_misses_a_page`, `before_us`, `after_us` or `times_faster`.
    pub quantity: String,
    /// The profile whose prices and caches are used.
    pub machine: &'static str,
    /// The ends of the published figures.
    pub published: [f64; 2],
    /// Computed.
    pub computed: f64,
    /// Against the nearest published end, in per cent.
    pub error_pct: f64,
    /// Prediction without a model: that nothing is missed twice, or that nothing changes.
    pub trivial: f64,
    /// Error of that, in per cent.
    pub trivial_pct: f64,
    /// Always predicted: nothing was fitted on it.
    pub evidence: Evidence,
}

/// Recomputes them.
///
/// # Errors
/// If a profile, the table or the trace is wrong, or the library refuses an operation.
pub fn held_out() -> Result<HeldOut> {
    let batch = batch()?;
    let sync = sync()?;
    let misses = misses_a_page()?;
    let rows = csv::rows(TABLE)?.into_iter().map(|row| {
        let (case, quantity) = (row.text(0).to_owned(), row.text(1).to_owned());
        let published = [row.number(2)?, row.number(3)?];
        let (machine, computed, trivial) = match (case.as_str(), quantity.as_str()) {
            ("fns", "iotlb_misses_a_page") => ("xeon-vtd", misses, 1.0),
            ("map-batch", "before_us") => ("sm8150", batch[0], batch[0]),
            ("map-batch", "after_us") => ("sm8150", batch[1], batch[0]),
            ("map-batch", "times_faster") => ("sm8150", batch[0] / batch[1], 1.0),
            ("map-sync", "times_faster") => ("tegra210", sync[0] / sync[1], 1.0),
            _ => anyhow::bail!("line {}: nothing computes {case}, {quantity}", row.line),
        };
        Ok(HeldOutRow {
            case,
            quantity,
            machine,
            published,
            computed,
            error_pct: off(computed, published),
            trivial,
            trivial_pct: off(trivial, published),
            evidence: Evidence::Predicted,
        })
    });
    Ok(HeldOut { name: "held-out".to_owned(), rows: rows.collect::<Result<_>>()? })
}

/// Distance of `value` from the nearest end, in per cent; nothing between the ends.
fn off(value: f64, [low, high]: [f64; 2]) -> f64 {
    error_pct(value, value.clamp(low, high))
}

fn mapped_us(profile: &Profile, events: &Events, flush: Option<Event>) -> Result<f64> {
    let price = |event| profile.price(event).map(|ns| ns / 1000.0);
    let mut us = events.calls as f64 * price(Event::MapCall)?
        + events.single_pages as f64 * price(Event::MapPage)?
        + events.run_pages as f64 * price(Event::PteWrite)?;
    if let Some(flush) = flush {
        let counts = events.counts;
        us += (counts.page + counts.range + counts.context) as f64 * price(flush)?;
    }
    Ok(us)
}

/// Microseconds of mapping 32 MiB page by page, and as one list.
fn batch() -> Result<[f64; 2]> {
    let profile = Profile::by_name("sm8150")?;
    let measured = |grouping| {
        let quirks = Quirks { preference: Preference::ByPage, ..Quirks::default() };
        let events = smmu_v2_board::measure(
            &profile,
            MapOrUnmap::Map,
            32 << 20,
            CallPattern { grouping, quirks },
        )?;
        mapped_us(&profile, &events, None)
    };
    Ok([measured(Grouping::PagesTogether)?, measured(Grouping::Whole)?])
}

/// Microseconds of mapping 20 MiB with a flush for each page, and with one.
fn sync() -> Result<[f64; 2]> {
    let profile = Profile::by_name("tegra210")?;
    let own = own_quirks(&profile)?;
    let measured = |variant: Variant| {
        let way = variant.range_flush(own);
        let events = registers::measure(&profile, MapOrUnmap::Map, 20 << 20, way)?;
        mapped_us(&profile, &events, Some(Event::CmdPageAfterMap))
    };
    Ok([measured(Variant::Before)?, measured(Variant::After)?])
}

/// IOTLB misses by page of a guest that receives, strict.
fn misses_a_page() -> Result<f64> {
    let profile = Profile::by_name("xeon-vtd")?;
    let mut reader = trace::from_bytes(RECEIVED)?;
    let report = Replay::new(&profile, &[Policy::StrictRange]).run(&mut reader)?;
    let device = report.policies.first().context("no policy")?.device;
    Ok(device.iotlb_misses as f64 / device.accesses.max(1) as f64)
}

impl HeldOutRow {
    /// Cells of a table behind its name: the profile, published, computed, error, error of no effect, evidence.
    pub(crate) fn cells(&self) -> [String; 6] {
        let [low, high] = self.published;
        [
            self.machine.to_owned(),
            if low < high { format!("{low} to {high}") } else { low.to_string() },
            format!("{:.2}", self.computed),
            format!("{:+.1}", self.error_pct),
            format!("{:+.1}", self.trivial_pct),
            self.evidence.word().to_owned(),
        ]
    }
}

/// The figures for people, in lines of `columns`.
pub fn held_out_text(result: &HeldOut, columns: usize) -> String {
    let rows = result.rows.iter().map(|row| {
        let names = [row.case.clone(), row.quantity.clone()];
        names.into_iter().chain(row.cells()).collect()
    });
    let header = [
        ("publication", 0),
        ("quantity", 0),
        ("prices of", 2),
        ("published", 0),
        ("computed", 0),
        ("error %", 0),
        ("error % of no effect", 1),
        ("evidence", 3),
    ];
    let errors = result.rows.iter().map(|row| row.error_pct);
    let said = format!(
        "{}: {} figures published of machines on which no price was fitted, computed with the prices of the \
         machine that comes nearest. The worst is {:.0} % off, and no bound is put on them. Where the error is \
         large, the profile does not carry over: an entry written in a run has the price of an i7-12700, a \
         device of the model touches each page once, and MediaTek's flush costs more than Tegra's.\n\n",
        result.name,
        result.rows.len(),
        worst(errors),
    );
    wrapped(&said, columns) + &table(&header, &[3, 4, 5, 6], rows.collect(), columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_that_nothing_was_fitted_on_are_printed_with_their_error_whatever_it_is() {
        let result = held_out().unwrap();
        assert!(result.holds() && result.rows.len() == 5);
        let cases: std::collections::BTreeSet<_> =
            result.rows.iter().map(|row| &row.case).collect();
        assert_eq!(cases.len(), 3);
        let text = held_out_text(&result, 80);
        println!("{text}");
        for row in &result.rows {
            assert!(text.contains(&format!("{:+.1}", row.error_pct)), "{row:?}");
            assert_eq!(row.evidence, Evidence::Predicted);
        }
    }
}
