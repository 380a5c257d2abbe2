//! Checks that no two types or traits of a package have the same name.
//!
//! Looked for are declarations in product code, as the rule on contexts reads them. Aliases and the
//! types that a macro names are not looked at.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::context::product;

/// File with the names that are still to be made unique.
pub(super) const FILE: &str = "xtask/repeated-names.toml";

/// Names that each driver, unit or architecture has: the module tells them apart, and a user sees one module at a
/// time.
const OF_EACH_DRIVER: &[&str] =
    &["CommandKind", "Config", "Features", "Implementation", "Interrupts", "Loader", "Registers"];

/// Numbers of types with one name, by package folder and name.
pub(super) type Repeated = BTreeMap<String, BTreeMap<String, usize>>;

/// Names of several types that are not in `known`, and entries of `known` that are out of date.
pub(super) fn check(sources: &[(String, String)], known: &Repeated) -> Vec<Finding> {
    let repeated = repeated(sources);
    let mut found = Vec::new();
    for (package, names) in &repeated {
        for (name, paths) in names {
            if paths.len() > known.get(package).and_then(|of| of.get(name)).copied().unwrap_or(1) {
                let what = format!("{} types are called {name}: {}", paths.len(), paths.join(", "));
                found.push(Finding { path: package.clone(), rule: "type-name", what });
            }
        }
    }
    for (package, name, count) in known
        .iter()
        .flat_map(|(of, names)| names.iter().map(move |(name, count)| (of, name, count)))
    {
        let left = repeated.get(package).and_then(|names| names.get(name)).map_or(1, Vec::len);
        if left < *count {
            let what = match left {
                1 => format!("{package}: remove {name}, which is unique"),
                _ => format!("{package}: {name} = {left} is enough"),
            };
            found.push(Finding { path: FILE.to_owned(), rule: "stale-type-name", what });
        }
    }
    found
}

/// Names that several files declare, with their paths, by package.
fn repeated(sources: &[(String, String)]) -> BTreeMap<String, BTreeMap<String, Vec<&str>>> {
    let package = |path: &String| Some(path.split_once("/src/")?.0.to_owned());
    let packages: BTreeSet<String> = sources.iter().filter_map(|(path, _)| package(path)).collect();
    let mut all = BTreeMap::new();
    for package in packages {
        let mut names: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for file in product(&format!("{package}/src/"), sources).into_values() {
            let types = file.declared.types.into_iter().map(|of| of.name);
            for name in types.chain(file.declared.traits) {
                names.entry(name).or_default().push(file.path);
            }
        }
        let of_macro = |name: &str| name.contains('$') || name.is_empty();
        names.retain(|name, paths| {
            paths.len() > 1 && !of_macro(name) && !OF_EACH_DRIVER.contains(&name.as_str())
        });
        if !names.is_empty() {
            all.insert(package, names);
        }
    }
    all
}
