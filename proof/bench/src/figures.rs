//! Figures of docs/performance.md, by machine.
//!
//! A file for each make of processor, `proof/bench/figures/MAKE.json`. A session replaces the file of the machine
//! that it meets, as a whole; the other stays with its date and commit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::measure::BenchRow;
use crate::spread::Spread;

/// Make of a machine's processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Make {
    Amd,
    Intel,
}

impl Make {
    /// Both, in the order of the page's columns.
    pub(crate) const ALL: [Self; 2] = [Self::Amd, Self::Intel];

    /// The name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Amd => "AMD",
            Self::Intel => "Intel",
        }
    }

    pub(crate) fn of(cpuinfo: &str) -> Option<Self> {
        match field(cpuinfo, "vendor_id")? {
            "AuthenticAMD" => Some(Self::Amd),
            "GenuineIntel" => Some(Self::Intel),
            _ => None,
        }
    }

    pub(crate) fn file(self) -> PathBuf {
        let name = self.name().to_lowercase();
        root().join(format!("proof/bench/figures/{name}.json"))
    }

    pub(crate) fn figures(self) -> Result<MachineFigures, WriteError> {
        let file = self.file();
        serde_json::from_str(&read(&file)?).map_err(|error| WriteError::Json(file, error))
    }
}

/// Figures of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MachineFigures {
    pub(crate) machine: String,
    pub(crate) date: String,
    pub(crate) commit: String,
    /// Processes that wanted a CPU in the last minute of the run, these benchmarks' own included.
    pub(crate) load_average: Option<f64>,
    pub(crate) rows: Vec<RowFigures>,
}

impl MachineFigures {
    pub(crate) fn row(&self, name: &str) -> Option<&RowFigures> {
        self.rows.iter().find(|row| row.name == name)
    }
}

/// Figures of a benchmark, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RowFigures {
    pub(crate) name: String,
    pub(crate) ours: SpreadFigures,
    pub(crate) peers: BTreeMap<String, SpreadFigures>,
    /// Median of the plain loop.
    pub(crate) limit: f64,
}

/// Distribution, of which old figures have a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SpreadFigures {
    pub(crate) median: f64,
    pub(crate) p10: Option<f64>,
    pub(crate) p90: Option<f64>,
    pub(crate) mean: Option<f64>,
    pub(crate) p99: Option<f64>,
    pub(crate) p99_9: Option<f64>,
    pub(crate) max: Option<f64>,
}

/// Four digits at least, which are more than a run repeats.
fn rounded(ns: f64) -> f64 {
    if ns < 1000.0 { (ns * 100.0).round() / 100.0 } else { ns.round() }
}

impl From<&Spread> for SpreadFigures {
    fn from(spread: &Spread) -> Self {
        let some = |ns| Some(rounded(ns));
        Self {
            median: rounded(spread.median),
            p10: some(spread.p10),
            p90: some(spread.p90),
            mean: some(spread.mean),
            p99: some(spread.p99),
            p99_9: some(spread.p99_9),
            max: some(spread.max),
        }
    }
}

impl From<&BenchRow> for RowFigures {
    fn from(row: &BenchRow) -> Self {
        let peers = row.peers.iter().map(|(name, spread)| ((*name).to_owned(), spread.into()));
        Self {
            name: row.name.to_owned(),
            ours: (&row.ours).into(),
            peers: peers.collect(),
            limit: rounded(row.limit.median),
        }
    }
}

/// The page, or the figures that it is made of, cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A peer or a benchmark is missing, so that a column would have holes.
    #[error("{0} is left out: {1}")]
    Skipped(&'static str, &'static str),
    /// The page has no column for this processor.
    #[error("/proc/cpuinfo names neither AMD nor Intel")]
    OtherMake,
    /// A file cannot be read or written.
    #[error("{0}: {1}")]
    File(PathBuf, std::io::Error),
    /// Figures that are not understood.
    #[error("{0}: {1}")]
    Json(PathBuf, serde_json::Error),
    /// A page without the two lines that its figures stand between.
    #[error("{0} has no lines for figures")]
    NoPlace(PathBuf),
    /// A command that tells the date or the commit.
    #[error("{0} does not run")]
    Command(&'static str),
}

/// Value of the first line `NAME : VALUE`.
fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}

pub(crate) fn machine(cpuinfo: &str) -> String {
    let of = |name| field(cpuinfo, name).unwrap_or("unknown");
    let cpus = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let is_virtual = of("flags").split(' ').any(|flag| flag == "hypervisor");
    format!(
        "{cpus} CPUs of {} (family {}, model {}){}",
        of("model name"),
        of("cpu family"),
        of("model"),
        if is_virtual { ", a virtual machine" } else { "" }
    )
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn read(file: &Path) -> Result<String, WriteError> {
    std::fs::read_to_string(file).map_err(|error| WriteError::File(file.to_owned(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_told_by_their_processors() {
        let text = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\n\
                    model name\t: AMD EPYC\nflags\t\t: fpu hypervisor lm\n\nprocessor\t: 1\n";
        assert_eq!(Make::of(text), Some(Make::Amd));
        let wanted = "2 CPUs of AMD EPYC (family 25, model 1), a virtual machine";
        assert_eq!(machine(text), wanted);
        assert_eq!(Make::of("vendor_id : Other\n"), None);
    }
}
