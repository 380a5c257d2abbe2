//! The mutants that change nothing that matters, each with the reason.

use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;

use super::sample::Mutant;

/// Path of the file that names them, from the root of the workspace.
const FILE: &str = "xtask/equivalent-mutants.toml";

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Equivalents {
    #[serde(default)]
    mutant: Vec<Equivalent>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Equivalent {
    file: String,
    change: String,
    line: String,
    reason: String,
}

impl Equivalent {
    fn is(&self, mutant: &Mutant) -> bool {
        (&self.file, &self.change, &self.line) == (&mutant.file, &mutant.change, &mutant.line)
    }
}

impl Equivalents {
    /// Reads the file; there are none if it is missing.
    pub fn read(root: &Path) -> anyhow::Result<Self> {
        match std::fs::read_to_string(root.join(FILE)) {
            Ok(text) => Self::parse(&text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).context(FILE),
        }
    }

    /// From the text of the file.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let all: Self = toml::from_str(text).context(FILE)?;
        for one in &all.mutant {
            let reason = one.reason.trim();
            anyhow::ensure!(!reason.is_empty(), "{FILE}: no reason for {:?}", one.change);
        }
        Ok(all)
    }

    /// Reason why the mutant is equivalent, if it is.
    pub fn reason(&self, mutant: &Mutant) -> Option<&str> {
        let found = self.mutant.iter().find(|one| one.is(mutant));
        found.map(|one| one.reason.as_str())
    }

    /// Those that name none of `all`: the source has moved on.
    pub fn stale(&self, all: &[Mutant]) -> Vec<String> {
        let gone = |one: &&Equivalent| !all.iter().any(|mutant| one.is(mutant));
        let name = |one: &Equivalent| format!("{}: {} at {:?}", one.file, one.change, one.line);
        self.mutant.iter().filter(gone).map(name).collect()
    }
}
