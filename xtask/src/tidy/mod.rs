//! Structure and style, checked: rules that a reader of this workspace may rely on.
//!
//! Exceptions are written down with a reason in `tidy.toml`; one that is no longer needed fails.

pub mod arrows;
mod context;
mod counted;
mod documents;
mod modules;
mod rules;
#[cfg(test)]
mod tests;
mod type_names;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use crate::mutants::mistakes;
use crate::steps;

/// A finding: its place and a description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    path: String,
    rule: &'static str,
    what: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exceptions {
    #[serde(default)]
    exception: Vec<Exception>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exception {
    path: String,
    rule: String,
    reason: String,
}

/// Checks everything; returns if nothing was found.
pub fn run(root: &Path) -> bool {
    match check(root) {
        Ok(findings) => {
            for finding in &findings {
                eprintln!("{}: {}: {}", finding.path, finding.rule, finding.what);
            }
            findings.is_empty()
        }
        Err(error) => {
            eprintln!("tidy cannot run: {error:#}");
            false
        }
    }
}

fn check(root: &Path) -> anyhow::Result<Vec<Finding>> {
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output()?;
    anyhow::ensure!(listed.status.success(), "git does not list the files");
    let listed = String::from_utf8(listed.stdout)?;
    let metadata = arrows::metadata(root)?;
    let mut found = arrows::check(root, &metadata)?;
    let (mut sources, mut documents) = (Vec::new(), Vec::new());
    let paths: Vec<String> = listed.split('\0').map(str::to_owned).collect();
    for path in paths.iter().filter(|path| !path.is_empty()) {
        let Ok(text) = std::fs::read_to_string(root.join(path)) else {
            continue;
        };
        if path.ends_with(".rs") {
            found.extend(rules::rust(path, &text));
        }
        if path.ends_with(".md") {
            found.extend(documents::links(root, path, &text));
        }
        if [".rs", ".md", ".toml"].iter().any(|end| path.ends_with(end)) {
            found.extend(rules::workplace(path, &text));
        }
        if path.ends_with(".rs") {
            sources.push((path.to_owned(), text));
        } else if path.ends_with(".md") {
            documents.push((path.to_owned(), text));
        }
    }
    found.extend(context::check(&sources));
    found.extend(documents::check(&documents::Repository {
        paths: &paths,
        sources: &sources,
        documents: &documents,
        packages: &arrows::packages(root, &metadata),
        dependencies: &arrows::external(&metadata),
    }));
    let repeated = std::fs::read_to_string(root.join(type_names::FILE))?;
    found.extend(type_names::check(&sources, &toml::from_str(&repeated)?));
    found.extend(mistakes(root)?);
    let listed = std::fs::read_to_string(root.join(steps::PAGE))?;
    found.extend(steps::findings(root, &listed).into_iter().map(|what| Finding {
        path: steps::PAGE.to_owned(),
        rule: "steps",
        what,
    }));
    for words in &counted::WORDS {
        let shown = std::fs::read_to_string(root.join(words.page))?;
        found.extend(counted::check(words, &sources, &shown));
    }
    let shown = std::fs::read_to_string(root.join("docs/modules.md"))?;
    found.extend(modules::check(&sources, &shown));
    let exceptions: Exceptions = match std::fs::read_to_string(root.join("tidy.toml")) {
        Ok(text) => toml::from_str(&text)?,
        Err(_) => Exceptions::default(),
    };
    Ok(except(found, &exceptions))
}

/// Mistakes whose text is no longer in the source, so that they would not be made.
fn mistakes(root: &Path) -> anyhow::Result<Vec<Finding>> {
    let text = std::fs::read_to_string(root.join(mistakes::FILE))?;
    let list = mistakes::parse(&text)?;
    let stale = mistakes::stale(&list, |file| std::fs::read_to_string(root.join(file)).ok());
    let found = stale.into_iter().map(|what| Finding {
        path: mistakes::FILE.to_owned(),
        rule: "stale-mistake",
        what,
    });
    Ok(found.collect())
}

/// Drops findings that are excepted, and adds the exceptions that nothing needs.
fn except(found: Vec<Finding>, exceptions: &Exceptions) -> Vec<Finding> {
    let mut used = BTreeSet::new();
    let mut kept = Vec::new();
    for finding in found {
        let fits = |e: &&Exception| e.path == finding.path && e.rule == finding.rule;
        match exceptions.exception.iter().find(fits) {
            Some(exception) if !exception.reason.trim().is_empty() => {
                used.insert((exception.path.clone(), exception.rule.clone()));
            }
            _ => kept.push(finding),
        }
    }
    for exception in &exceptions.exception {
        if !used.contains(&(exception.path.clone(), exception.rule.clone())) {
            kept.push(Finding {
                path: exception.path.clone(),
                rule: "stale-exception",
                what: format!("nothing needs the exception from {}", exception.rule),
            });
        }
    }
    kept
}
