//! The conformance scenarios on one backend.

use std::fmt::Write as _;

use super::group::{Backend, BackendGroup};
use crate::conformance::{Line, Outcome};
use serde::Serialize;

/// Results of the scenarios on a backend.
#[derive(Debug, Serialize)]
pub struct CheckReport {
    /// Name of the backend.
    pub backend: String,
    /// Each scenario.
    pub scenarios: Vec<ScenarioResult>,
    /// Number of scenarios that passed.
    pub passed: usize,
    /// Number of scenarios that failed.
    pub failed: usize,
    /// Number of scenarios that did not apply; they count as nothing else.
    pub skipped: usize,
}

/// Result of a scenario.
#[derive(Debug, Serialize)]
pub struct ScenarioResult {
    /// Its name.
    pub name: &'static str,
    /// The backend that it ran on, where the report is of several.
    pub on: String,
    /// `pass`, `fail` or `skip`.
    pub result: &'static str,
    /// The reason, if it did not pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl CheckReport {
    /// Tells if no scenario failed.
    pub fn holds(&self) -> bool {
        self.failed == 0
    }
}

/// Runs all scenarios on each backend of `group`, and reports each to `progress`.
pub fn run(group: &BackendGroup, progress: &mut dyn FnMut(&Backend, &Line)) -> CheckReport {
    let mut scenarios = Vec::new();
    for backend in &group.members {
        let lines = backend.run(&mut |line| progress(backend, line));
        scenarios.extend(lines.into_iter().map(|line| scenario(backend, line)));
    }
    let count = |result| scenarios.iter().filter(|s| s.result == result).count();
    CheckReport {
        backend: group.name.clone(),
        passed: count("pass"),
        failed: count("fail"),
        skipped: count("skip"),
        scenarios,
    }
}

fn scenario(backend: &Backend, line: Line) -> ScenarioResult {
    let (result, reason) = match line.outcome {
        Outcome::Pass => ("pass", None),
        Outcome::Fail(why) => ("fail", Some(why)),
        Outcome::Skip(why) => ("skip", Some(why)),
    };
    ScenarioResult { name: line.name, on: backend.to_string(), result, reason }
}

/// The totals for people; the lines were printed during the run.
pub fn totals(report: &CheckReport) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{}: {} passed, {} failed, {} skipped",
        report.backend, report.passed, report.failed, report.skipped
    );
    out
}
