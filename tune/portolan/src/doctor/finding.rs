//! Findings: the form of every answer about a machine, in JSON and as text.

use std::fmt::Write as _;

use portolan_cli::Outcome;
use serde::Serialize;

/// Judgement of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Something is wrong, or keeps the machine from what its user wants.
    Problem,
    /// The files that were read do not tell.
    Unknown,
    /// All is well.
    Good,
}

impl Verdict {
    /// The word in reports.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Problem => "problem",
            Self::Unknown => "unknown",
            Self::Good => "good",
        }
    }
}

/// One answer about a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Subject of the answer in a few words, the same on every machine: `mode`, `kernel options`.
    pub what: String,
    /// The judgement.
    pub verdict: Verdict,
    /// The facts and the reason, as sentences.
    pub why: String,
    /// The thing to do, if there is one.
    #[serde(rename = "do")]
    pub act: Option<String>,
    /// The price of doing it: lost protection, lost speed.
    pub gives_up: Option<String>,
}

impl Finding {
    /// Makes an answer with nothing to do.
    pub fn new(what: &str, verdict: Verdict, why: impl Into<String>) -> Self {
        Self { what: what.to_owned(), verdict, why: why.into(), act: None, gives_up: None }
    }

    /// Makes an answer that all is well.
    pub fn good(what: &str, why: impl Into<String>) -> Self {
        Self::new(what, Verdict::Good, why)
    }

    /// Makes an answer that something is wrong.
    pub fn problem(what: &str, why: impl Into<String>) -> Self {
        Self::new(what, Verdict::Problem, why)
    }

    /// Makes an answer that the files do not give.
    pub fn unknown(what: &str, why: impl Into<String>) -> Self {
        Self::new(what, Verdict::Unknown, why)
    }

    /// Adds the thing to do.
    #[must_use]
    pub fn act(mut self, act: impl Into<String>) -> Self {
        self.act = Some(act.into());
        self
    }

    /// Adds the price of doing it.
    #[must_use]
    pub fn gives_up(mut self, price: impl Into<String>) -> Self {
        self.gives_up = Some(price.into());
        self
    }
}

/// Outcome of a command with these findings: a problem is a failed check.
pub fn outcome(findings: &[Finding]) -> Outcome {
    Outcome::of(findings.iter().all(|one| one.verdict != Verdict::Problem))
}

/// The answer of `findings` in up to four sentences.
pub fn verdict(findings: &[Finding]) -> Vec<String> {
    let is = |verdict| findings.iter().filter(move |one| one.verdict == verdict);
    let problems: Vec<&Finding> = is(Verdict::Problem).collect();
    let mut lines = Vec::new();
    match problems.first() {
        None => lines.push("Good: nothing has to be done.".to_owned()),
        Some(first) => {
            let names: Vec<&str> = problems.iter().map(|one| one.what.as_str()).collect();
            lines.push(format!("Look at: {}.", names.join(", ")));
            match problems.iter().find_map(|one| Some((one.act.as_deref()?, &one.gives_up))) {
                Some((act, gives_up)) => lines.extend(first_step(act, gives_up.as_deref())),
                None => lines.push(sentence(&first.why).to_owned()),
            }
        }
    }
    let unknown: Vec<&str> = is(Verdict::Unknown).map(|one| one.what.as_str()).collect();
    if !unknown.is_empty() {
        lines.push(format!("Not known: {}.", unknown.join(", ")));
    }
    lines
}

/// The thing to do first, and its price.
pub fn first_step(act: &str, gives_up: Option<&str>) -> Vec<String> {
    let act = format!("Do first: {}", sentence(act));
    let price = gives_up.map(|price| format!("It takes: {}", sentence(price)));
    [act].into_iter().chain(price).collect()
}

/// The first sentence of `text`.
fn sentence(text: &str) -> &str {
    text.split_once(". ").map_or(text, |(first, _)| text.get(..=first.len()).unwrap_or(text))
}

/// The findings as text, problems first; [`portolan_cli::display::wrapped`] breaks its lines.
pub fn text(findings: &[Finding]) -> String {
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|one| one.verdict);
    let mut out = String::new();
    for one in sorted {
        let _ = writeln!(out, "{}: {}\n  {}", one.verdict.word(), one.what, one.why);
        for (name, said) in [("Do", &one.act), ("Gives up", &one.gives_up)] {
            if let Some(said) = said {
                let _ = writeln!(out, "  {name}: {said}");
            }
        }
    }
    out
}
