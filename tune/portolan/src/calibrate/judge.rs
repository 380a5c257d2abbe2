//! A fit, and its error on held-out calls compared with the error of the previous prices.

use portolan_cli::display::grouped;
use portolan_sim::profile::{Event, Profile};
use serde::Serialize;

use super::function::Family;
use super::robust::{FittedLine, Slope, median, own_ns, rounded};
use super::samples::{CallSample, Care, CommandScope, Overhead, Store};
use super::sizes::{Size, sizes};

/// The calls of one family and kind, fitted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// Work of the calls, as the report prints it.
    pub what: String,
    /// Unit that a call has a number of: pages, commands, bytes.
    pub units: &'static str,
    /// Calls of that kind, whole and of a time.
    pub seen: u64,
    /// The fitted line, if there were enough calls.
    pub line: Option<FittedLine>,
    /// Calls that were held out.
    pub held_out: u64,
    /// Median distance of the held-out calls from the fit, in percent.
    pub predicted_off_pct: Option<f64>,
    /// Error of the prices before calibration.
    pub before_off_pct: Option<f64>,
    /// Times of the calls, by size.
    pub sizes: Vec<Size>,
}

impl Judged {
    /// Fits the line to the calls that are not held out, and predicts the held-out ones.
    pub(super) fn of(
        family: Family,
        scope: CommandScope,
        store: &Store,
        overhead: Overhead,
        care: Care,
        seed: u64,
        base: &Profile,
    ) -> Self {
        let line = FittedLine::fit(store.fitted.kept(), overhead, care, seed);
        let off = |says: &dyn Fn(f64) -> f64| {
            let held_out = store.held_out.kept();
            let mut off: Vec<f64> = held_out
                .iter()
                .map(|sample: &CallSample| {
                    let own = own_ns(sample, overhead).max(1.0);
                    100.0 * (says(sample.units.unwrap_or(1.0)) - own).abs() / own
                })
                .collect();
            (!off.is_empty()).then(|| rounded(median(&mut off)))
        };
        let predicted = line.as_ref().map(|line| off(&|units| line.predicts(units)));
        let before = prices_before(family, scope, base);
        let what = match scope {
            CommandScope::Context => format!("{}, whole contexts", family.name()),
            CommandScope::Global => format!("{}, everything", family.name()),
            CommandScope::Pages | CommandScope::Other => family.name().to_owned(),
        };
        Self {
            sizes: sizes(store, overhead, line.as_ref(), before),
            what,
            units: family.units(),
            seen: store.fitted.seen() + store.held_out.seen(),
            predicted_off_pct: predicted.flatten(),
            before_off_pct: line
                .as_ref()
                .and(before)
                .and_then(|(call, each)| off(&|units| call + each * units)),
            held_out: store.held_out.kept().len() as u64,
            line,
        }
    }

    /// Range of units that calls have, for people: `pages: 1 to 16`.
    pub(crate) fn range(&self, line: &FittedLine) -> String {
        let [least, most] = line.range;
        match (line.each, least == most) {
            (Slope::Unsaid, _) => format!("{} not told", self.units),
            (_, true) => format!("{}: {least}", self.units),
            (_, false) => format!("{}: {least} to {most}", self.units),
        }
    }

    /// Source of a price, for its profile.
    pub(super) fn source(&self) -> String {
        let Some(line) = &self.line else {
            return String::new();
        };
        let units = self.range(line);
        let explained = match line.each {
            Slope::Told(_) => format!(", R2 {}", line.r_squared),
            _ => String::new(),
        };
        let predicted = self.predicted_off_pct.map_or(String::new(), |off| {
            format!("; {} held out are predicted within {off} % (median)", grouped(self.held_out))
        });
        format!(
            "measured: {} calls that {} ({units}), {} left out as outliers, median residual {} ns\
             {explained}{predicted}",
            grouped(line.calls),
            self.what,
            line.outliers,
            line.residual_ns,
        )
    }
}

/// A call and a unit, by the prices from before.
fn prices_before(family: Family, kind: CommandScope, base: &Profile) -> Option<(f64, f64)> {
    let ns = |event| base.price(event).ok();
    match (family, kind) {
        (Family::Map, _) => ns(Event::MapCall).zip(ns(Event::PteWrite)),
        (Family::Unmap, _) => ns(Event::UnmapCall).zip(ns(Event::UnmapPage)),
        (Family::Flush | Family::Submit, CommandScope::Pages) => {
            let wait = ns(Event::Sync)? + ns(Event::Exit).unwrap_or(0.0);
            Some((wait, ns(Event::CmdRange).or_else(|| ns(Event::CmdPage))?))
        }
        (Family::Copy, _) => Some((0.0, ns(Event::CopyByte)?)),
        _ => None,
    }
}
