//! Measured figures that were published of machines with many CPUs.

use anyhow::{Result, bail};
use clap::ValueEnum;
use portolan_sim::profile::{Event, Profile};

use super::ScalePolicy;
use crate::csv::{self, CsvRow};

const GRACE: &str = include_str!("../../../../data/published/grace-iops.csv");
const NESTED: &str = include_str!("../../../../data/published/nested-cores.csv");

/// Largest number of cores that the nested guest is fitted on.
const FITTED_CORES: usize = 8;

/// A figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figure {
    pub policy: ScalePolicy,
    pub cpus: usize,
    pub value: f64,
    pub unit: &'static str,
    /// Prices were fitted on it.
    pub fitted: bool,
    /// The mean time of one submission, if known.
    pub submit_us: Option<f64>,
}

/// The figures of one machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct MachineFigures {
    figures: Vec<Figure>,
}

/// The figures of the machine called `machine`; none if nothing was published.
pub(super) fn of(machine: &str) -> Result<MachineFigures> {
    match machine {
        "grace" => grace(GRACE),
        "vtd-nested" => nested(NESTED),
        _ => Ok(MachineFigures::default()),
    }
}

impl MachineFigures {
    /// Tells if it is one policy by number of cores.
    pub(super) fn is_by_cores(&self) -> bool {
        self.fitted().count() > 1
    }

    /// The figures to fit on.
    pub(super) fn fitted(&self) -> impl Iterator<Item = &Figure> {
        let by_cores = |figure: &&Figure| figure.fitted && figure.unit == "Gbit/s";
        self.figures.iter().filter(by_cores)
    }

    /// Numbers of CPUs that have a figure for `policy`.
    pub(super) fn counts(&self, policy: ScalePolicy) -> Vec<usize> {
        let of_policy = |figure: &&Figure| figure.policy == policy;
        let found = self.figures.iter().filter(of_policy);
        found.map(|figure| figure.cpus).collect()
    }

    /// The figure for one row.
    pub(super) fn find(&self, policy: ScalePolicy, cpus: usize) -> Option<&Figure> {
        let same = |figure: &&Figure| figure.policy == policy && figure.cpus == cpus;
        self.figures.iter().find(same)
    }

    /// Rows to compute with the slowest submission that was measured, in place of the profile's:
    /// CPUs, and nanoseconds of an exit.
    pub(super) fn slow_submissions(&self, profile: &Profile) -> Vec<(usize, f64)> {
        let slowest = self.figures.iter().filter_map(|figure| figure.submit_us);
        let slowest = slowest.fold(0.0, f64::max) * 1000.0;
        let other = [Event::CmdRange, Event::Sync].map(|event| profile.price(event).unwrap_or(0.0));
        let other = other.iter().sum::<f64>();
        if slowest <= other {
            return Vec::new();
        }
        let predicted = self.figures.iter().filter(|figure| !figure.fitted);
        predicted.map(|figure| (figure.cpus, slowest - other)).collect()
    }
}

fn grace(text: &str) -> Result<MachineFigures> {
    let figure = |row: CsvRow<'_>| {
        let Ok(policy) = ScalePolicy::from_str(row.text(0), false) else {
            bail!("line {}: `{}` is not a policy", row.line, row.text(0));
        };
        Ok(Figure {
            policy,
            cpus: row.number(1)? as usize,
            value: row.number(2)?,
            unit: "operations/s",
            // The device's price and the queue's.
            fitted: policy != ScalePolicy::Lazy,
            submit_us: None,
        })
    };
    let figures = csv::rows(text)?.into_iter().map(figure).collect::<Result<_>>()?;
    Ok(MachineFigures { figures })
}

fn nested(text: &str) -> Result<MachineFigures> {
    let figure = |row: CsvRow<'_>| {
        let cpus = row.number(0)? as usize;
        let known = !row.text(2).is_empty();
        Ok(Figure {
            policy: ScalePolicy::Strict,
            cpus,
            value: row.number(1)?,
            unit: "Gbit/s",
            fitted: cpus <= FITTED_CORES,
            submit_us: known.then(|| row.number(2)).transpose()?,
        })
    };
    let figures = csv::rows(text)?.into_iter().map(figure).collect::<Result<_>>()?;
    Ok(MachineFigures { figures })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_figures_are_read() {
        let nested = of("vtd-nested").unwrap();
        assert_eq!(nested.fitted().count(), 4);
        assert_eq!(nested.counts(ScalePolicy::Strict), [1, 2, 4, 8, 16, 20]);
        assert_eq!(nested.figures[5].submit_us, Some(69.0));
        assert!(nested.is_by_cores());
        let grace = of("grace").unwrap();
        assert_eq!(grace.find(ScalePolicy::Strict, 144).unwrap().value, 2.8e6);
        assert!(!grace.is_by_cores());
        assert_eq!(of("sm8150").unwrap(), MachineFigures::default());
    }

    #[test]
    fn malformed_figures_are_errors() {
        for line in ["stirct,144,1", "strict,many,1", "strict,144,-1", "strict,144,nan"] {
            let text = format!("policy,cpus,operations_per_s\n{line}\n");
            assert!(grace(&text).is_err(), "{line}");
        }
        assert!(nested("cores,gbit_s,submit_us\n1,2,x\n").is_err());
    }
}
