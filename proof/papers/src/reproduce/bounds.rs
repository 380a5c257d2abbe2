//! Bounds, each with its worth without its mechanism, and a predictor that needs no model.
//!
//! A figure was at risk only if it could have come out wrong: if the bound on it fails with the mechanism switched
//! off that it speaks for, and if the trivial predictor (the nearest fitted row, the straight line through fitted
//! rows, no effect at all) comes less near. Otherwise the figure says nothing beyond its inputs, and is *implied*.

use serde::Serialize;

use portolan_cli::display::table;

/// Evidence for a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// A price was fitted on it.
    Fitted,
    /// Follows from fitted prices, even without the model.
    Implied,
    /// Commands or faults that the library caused and a model counted.
    Counted,
    /// Predicted: nothing was fitted on it, and it could have come out wrong.
    Predicted,
    /// Computed, without a published figure to compare with.
    Computed,
}

impl Evidence {
    /// The word in reports.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Fitted => "fitted",
            Self::Implied => "implied",
            Self::Counted => "counted",
            Self::Predicted => "predicted",
            Self::Computed => "computed",
        }
    }
}

/// Meaning of the words of [`Evidence`].
pub(super) const EVIDENCE_IN_WORDS: &str = "\
    Evidence, what speaks for a computed figure: fitted (prices were chosen so that it comes near), implied (it \
    follows from what was fitted), counted (by the model), predicted (nothing was fitted on it, and it could have \
    come out wrong), computed (nobody published anything to hold it against).\n";

/// Percentage by which a trivial predictor has to be worse than the model: rounding may cause smaller differences.
const MARGIN_PCT: f64 = 0.25;

/// A bound on figures that nothing was fitted on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bound {
    /// The figures, in words.
    pub what: String,
    /// Largest error that they may have, in per cent of the published figures.
    pub limit_pct: f64,
    /// Error of the worst of them, in per cent.
    pub worst_pct: f64,
    /// Mechanism that they depend on.
    pub mechanism: &'static str,
    /// Error of the worst without that mechanism, in per cent.
    pub mechanism_off_pct: f64,
    /// Trivial predictor of them, which needs no model.
    pub trivial: &'static str,
    /// Error of its worst prediction, in per cent.
    pub trivial_pct: f64,
    /// Kind of the figures: `counted` or `predicted` if the bound speaks for them, else `implied`.
    pub evidence: Evidence,
    /// The bound is kept.
    pub holds: bool,
}

/// Parts of a bound.
pub(super) struct Parts {
    pub what: String,
    pub limit_pct: f64,
    pub worst_pct: f64,
    pub mechanism: (&'static str, f64),
    pub trivial: (&'static str, f64),
    /// Kind of the figures if the bound speaks for them.
    pub would_be: Evidence,
}

impl Bound {
    pub(super) fn new(parts: Parts) -> Self {
        let (mechanism, mechanism_off_pct) = parts.mechanism;
        let (trivial, trivial_pct) = parts.trivial;
        let speaks =
            mechanism_off_pct > parts.limit_pct && trivial_pct > parts.worst_pct + MARGIN_PCT;
        Self {
            what: parts.what,
            limit_pct: parts.limit_pct,
            worst_pct: parts.worst_pct,
            mechanism,
            mechanism_off_pct,
            trivial,
            trivial_pct,
            evidence: if speaks { parts.would_be } else { Evidence::Implied },
            holds: parts.worst_pct <= parts.limit_pct,
        }
    }

    /// Table of `bounds` in lines of `columns`.
    pub(super) fn table(bounds: &[Self], columns: usize) -> String {
        if bounds.is_empty() {
            return String::new();
        }
        let rows = bounds.iter().map(|bound| {
            let pct = |value: f64| format!("{value:.1}");
            vec![
                if bound.holds { "holds" } else { "FAILS" }.to_owned(),
                bound.what.clone(),
                pct(bound.limit_pct),
                pct(bound.worst_pct),
                format!("{}: {}", bound.mechanism, pct(bound.mechanism_off_pct)),
                format!("{}: {}", bound.trivial, pct(bound.trivial_pct)),
                bound.evidence.word().to_owned(),
            ]
        });
        let header = [
            ("bound", 0),
            ("on", 0),
            ("within %", 0),
            ("worst %", 0),
            ("with its mechanism off", 1),
            ("trivial predictor", 2),
            ("so it is", 3),
        ];
        format!(
            "Bounds, in per cent off what was published\n\n{}\n",
            table(&header, &[2, 3], rows.collect(), columns)
        )
    }
}

/// The largest of `errors` by absolute value, in per cent.
pub(super) fn worst(errors: impl IntoIterator<Item = f64>) -> f64 {
    let errors = errors.into_iter().map(f64::abs);
    errors.fold(0.0, f64::max)
}

/// The value at `x` of the straight line that is nearest to the points `(x, y)`.
fn line(points: &[(f64, f64)], x: f64) -> f64 {
    let n = points.len().max(1) as f64;
    let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / n;
    let mean_y = points.iter().map(|(_, y)| y).sum::<f64>() / n;
    let across = points.iter().map(|(x, _)| (x - mean_x).powi(2));
    let along = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y));
    let (across, along) = (across.sum::<f64>(), along.sum::<f64>());
    let slope = if across > 0.0 { along / across } else { 0.0 };
    mean_y + slope * (x - mean_x)
}

/// The value at `x` in proportion to the point that is nearest below it.
fn in_proportion(points: &[(f64, f64)], x: f64) -> f64 {
    let below = points.iter().filter(|(at, _)| *at <= x);
    let nearest = below.max_by(|(a, _), (b, _)| a.total_cmp(b));
    nearest.map_or(0.0, |(at, y)| y * x / at)
}

/// Error of the best of three trivial predictors: the straight line through the fitted points, the nearest point in
/// proportion, and all points in proportion. `missed` returns the error of a predictor.
pub(super) fn by_size(points: &[(f64, f64)], missed: impl Fn(&dyn Fn(f64) -> f64) -> f64) -> f64 {
    let straight = missed(&|x| line(points, x));
    let nearest = missed(&|x| in_proportion(points, x));
    // In proportion to all of them, each as far off as the others, as prices are fitted.
    let ratios = || points.iter().map(|(at, y)| at / y);
    let each = ratios().sum::<f64>()
        / ratios().map(|ratio| ratio * ratio).sum::<f64>().max(f64::MIN_POSITIVE);
    straight.min(nearest).min(missed(&|x| each * x))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(worst_pct: f64, off: f64, trivial: f64) -> Bound {
        Bound::new(Parts {
            what: "something".to_owned(),
            limit_pct: 5.0,
            worst_pct,
            mechanism: ("it", off),
            trivial: ("a line", trivial),
            would_be: Evidence::Predicted,
        })
    }

    #[test]
    fn only_a_bound_that_could_have_failed_makes_a_prediction() {
        assert_eq!(bound(1.0, 50.0, 9.0).evidence, Evidence::Predicted);
        // The mechanism does not matter to it; a line does as well, or as well but for rounding.
        assert_eq!(bound(1.0, 4.9, 9.0).evidence, Evidence::Implied);
        assert_eq!(bound(1.0, 50.0, 0.9).evidence, Evidence::Implied);
        assert_eq!(bound(1.0, 50.0, 1.1).evidence, Evidence::Implied);
        assert!(bound(1.0, 0.0, 0.0).holds && !bound(5.1, 50.0, 9.0).holds);
    }

    #[test]
    fn a_line_goes_through_its_points() {
        let points = [(1.0, 3.0), (2.0, 5.0), (4.0, 9.0)];
        assert!((line(&points, 10.0) - 21.0).abs() < 1e-9);
        assert!((line(&points[..1], 10.0) - 3.0).abs() < 1e-9);
        assert_eq!(line(&[], 10.0), 0.0);
        assert!((in_proportion(&points, 8.0) - 18.0).abs() < 1e-9);
        // Of the two the better one counts.
        assert!(by_size(&points, |guess| (guess(8.0) - 18.0).abs()) < 1e-9);
        assert!(by_size(&points, |guess| (guess(8.0) - 17.0).abs()) < 1e-9);
    }

    #[test]
    fn the_worst_error_has_no_sign() {
        assert_eq!(worst([1.0, -3.0, 2.0]), 3.0);
        assert_eq!(worst([]), 0.0);
    }
}
