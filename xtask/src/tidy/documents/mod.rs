//! Documents name only things that exist: names, files, tests, commands and links, and are no
//! longer than allowed.
//!
//! Looked at are the README, CONTRIBUTING, `docs` and the READMEs of packages; links in each Markdown file.
//! The changelog may name things that are gone.

mod definitions;
mod foreign;
mod links;
mod names;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use definitions::Definitions;
pub(super) use links::check as links;

/// Lines and words that a newcomer reads to the end.
pub(super) const MAX_README: (usize, usize) = (130, 1_000);
/// Lines of a package's README.
pub(super) const MAX_PACKAGE_README: usize = 40;
/// Page with the reason for each dependency.
const DEPENDENCIES: &str = "docs/dependencies.md";
/// The page that figures of the README are from.
const FIGURES: &str = "docs/performance.md";

/// Contents of the repository: each path, the text of Rust files and of others.
pub(super) struct Repository<'a> {
    pub(super) paths: &'a [String],
    pub(super) sources: &'a [(String, String)],
    pub(super) documents: &'a [(String, String)],
    /// The folder of each package of the workspace, by its name.
    pub(super) packages: &'a BTreeMap<String, String>,
    /// Names of the crates that packages depend on.
    pub(super) dependencies: &'a BTreeSet<String>,
}

/// Checks each document.
pub(super) fn check(repository: &Repository) -> Vec<Finding> {
    let definitions = Definitions::of(repository.sources);
    let known = names::Known::new(repository.paths, repository.packages, &definitions);
    let mut found = Vec::new();
    for (path, text) in repository.documents.iter().filter(|(path, _)| is_checked(path)) {
        let mut say = |rule, what| found.push(Finding { path: path.clone(), rule, what });
        known.check(path, text).into_iter().for_each(|what| say("stale-name", what));
        if let Some(what) = too_long(path, text) {
            say("readme-length", what);
        }
    }
    let text_of = |wanted: &str| {
        let text = repository.documents.iter().find(|(path, _)| path == wanted);
        text.map_or("", |(_, text)| text)
    };
    let reasons = dependencies(repository.dependencies, text_of(DEPENDENCIES));
    let figures = figures(text_of("README.md"), text_of(FIGURES));
    let unused = known.unused_foreign();
    let lists = [(DEPENDENCIES, "dependency", reasons), ("README.md", "figure", figures)];
    for (path, rule, whats) in lists.into_iter().chain([(file!(), "stale-name", unused)]) {
        let finding = |what| Finding { path: path.to_owned(), rule, what };
        found.extend(whats.into_iter().map(finding));
    }
    found
}

/// Tells if the names in a document have to exist today.
fn is_checked(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        ["README.md" | "CONTRIBUTING.md"]
        | ["docs", _]
        | ["crates" | "tune" | "proof", _, "README.md"] => true,
        [folder, "README.md"] => folder != "data",
        _ => false,
    }
}

/// Number of lines or words by which a README is too long.
fn too_long(path: &str, text: &str) -> Option<String> {
    let (lines, words) = (text.lines().count(), text.split_whitespace().count());
    let (most_lines, most_words) = match path {
        "README.md" => MAX_README,
        _ if path.ends_with("/README.md") => (MAX_PACKAGE_README, usize::MAX),
        _ => return None,
    };
    let fits = lines <= most_lines && words <= most_words;
    (!fits).then(|| format!("{lines} lines of {most_lines}, {words} words of {most_words}"))
}

/// Compares the rows of `page` with the existing dependencies.
fn dependencies(there: &BTreeSet<String>, page: &str) -> Vec<String> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let named: BTreeSet<&str> = rows.filter_map(|row| row.split('`').next()).collect();
    let missing = there
        .iter()
        .filter(|name| !named.contains(name.as_str()))
        .map(|name| format!("does not say why {name} is there"));
    let gone = named
        .iter()
        .filter(|name| !there.contains(**name))
        .map(|name| format!("names {name}, on which nothing depends"));
    missing.chain(gone).collect()
}

/// Compares the README's rows of a benchmark with those of the page that they are from.
fn figures(readme: &str, page: &str) -> Vec<String> {
    let cells = |line: &str| -> Vec<String> {
        let cells = line.trim().trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    let measured = |name: &str| {
        let mut rows = page.lines().filter(|line| line.starts_with('|')).map(cells);
        let row = rows.find(|row| row[0] == name)?;
        let first = |cell: Option<&String>| Some(cell?.split(' ').next()?.to_owned());
        Some([first(row.get(1))?, first(row.get(2))?])
    };
    let mut found = Vec::new();
    for row in readme.lines().filter(|line| line.starts_with('|')).map(cells) {
        let [_, name, ours, others] = &row[..] else {
            continue;
        };
        if name.starts_with('`') && measured(name) != Some([ours.clone(), others.clone()]) {
            found.push(format!("{name}: {ours} and {others} are not in {FIGURES}"));
        }
    }
    found
}

/// A document without the contents of its code blocks; only line ends are kept.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let line = |line: &str| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        if fence || fenced { "\n".to_owned() } else { format!("{line}\n") }
    };
    text.lines().map(line).collect()
}
