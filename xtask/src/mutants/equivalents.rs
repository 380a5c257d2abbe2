//! Mutants that change nothing that matters: cargo-mutants leaves them out by its own configuration.
//!
//! This checks what the tool does not: that each pattern still matches a mutant.

use std::path::Path;

use anyhow::Context as _;
use regex_lite::Regex;
use serde::Deserialize;

use super::sample::Mutant;

/// Path of cargo-mutants' configuration, from the root of the workspace.
const FILE: &str = ".cargo/mutants.toml";

/// Patterns of the names of mutants that are left out.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Equivalents {
    #[serde(default)]
    exclude_re: Vec<String>,
}

impl Equivalents {
    /// Reads the configuration.
    pub fn read(root: &Path) -> anyhow::Result<Self> {
        Self::parse(&std::fs::read_to_string(root.join(FILE)).context(FILE)?)
    }

    /// Parses the text of the file.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        toml::from_str(text).context(FILE)
    }

    /// Patterns that match none of `all`, the mutants without exclusions: the source has moved on.
    pub fn stale(&self, all: &[Mutant]) -> anyhow::Result<Vec<String>> {
        let mut stale = Vec::new();
        for pattern in &self.exclude_re {
            let regex = Regex::new(pattern).with_context(|| format!("{FILE}: {pattern}"))?;
            if !all.iter().any(|mutant| regex.is_match(&mutant.name)) {
                stale.push(pattern.clone());
            }
        }
        Ok(stale)
    }
}
