//! Which modules of a crate use which: one way, and as `docs/architecture.md` shows it.
//!
//! Looked for are paths that begin with `crate::`, without comments and tests. A module is what the
//! crate's root declares, with everything below it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::Finding;

/// Crates whose modules are looked at, and where their sources are.
const CRATES: &[(&str, &str)] = &[
    ("portolan", "crates/portolan/src/"),
    ("portolan-hw", "crates/portolan-hw/src/"),
    ("portolan-model", "crates/portolan-model/src/"),
    ("portolan-qemu", "crates/portolan-qemu/src/"),
    ("portolan-lab", "crates/portolan-lab/src/"),
    ("portolan-verify", "verify/src/"),
    ("portolan-bench", "bench/src/"),
];

/// Where the map is shown.
const SHOWN: &str = "docs/architecture.md";

/// What each module uses.
pub(super) type Uses = BTreeMap<String, BTreeSet<String>>;

/// Circles, and a map that is not the one shown in `architecture`.
pub(super) fn check(sources: &[(String, String)], architecture: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    for (name, source) in CRATES {
        for circle in circles(&uses(source, sources)) {
            found.push(Finding {
                path: (*name).to_owned(),
                rule: "circle",
                what: format!("{} use each other", circle.join(", ")),
            });
        }
    }
    let map = map(sources);
    if !architecture.contains(&map) {
        found.push(Finding {
            path: SHOWN.to_owned(),
            rule: "map",
            what: format!("does not show how modules use each other:\n{map}"),
        });
    }
    found
}

/// The modules of all crates, those first that use nothing above them.
pub(super) fn map(sources: &[(String, String)]) -> String {
    let mut map = String::new();
    for (name, source) in CRATES {
        let _ = writeln!(map, "{name}");
        let mut left = uses(source, sources);
        let mut placed = BTreeSet::new();
        while !left.is_empty() {
            let ready = |used: &BTreeSet<String>| used.is_subset(&placed);
            let next = left.iter().find(|(_, used)| ready(used));
            // In a circle the first one will do: it is a finding of its own.
            let Some((module, _)) = next.or(left.iter().next()) else {
                break;
            };
            let module = module.clone();
            let used = left.remove(&module).unwrap_or_default();
            let used: Vec<String> = used.into_iter().collect();
            let line = format!("  {module:<12} {}", used.join(" "));
            let _ = writeln!(map, "{}", line.trim_end());
            placed.insert(module);
        }
    }
    map
}

/// What the modules below `source` use of each other.
pub(super) fn uses(source: &str, sources: &[(String, String)]) -> Uses {
    let inside = sources.iter().filter_map(|(path, text)| {
        let below = path.strip_prefix(source)?;
        let module = below.split('/').next()?.trim_end_matches(".rs");
        let tests = below.split('/').any(|part| part.starts_with("tests"));
        (!tests && !["lib", "main", "bin"].contains(&module)).then_some((module, text))
    });
    let inside: Vec<(&str, &String)> = inside.collect();
    let mut all: Uses = inside
        .iter()
        .map(|(module, _)| ((*module).to_owned(), BTreeSet::new()))
        .collect();
    let known: BTreeSet<String> = all.keys().cloned().collect();
    for (module, text) in inside {
        let paths = paths(text).into_iter();
        let others = paths.filter(|path| path != module && known.contains(path));
        if let Some(used) = all.get_mut(module) {
            used.extend(others);
        }
    }
    all
}

/// The first part of each path from the crate's root.
fn paths(text: &str) -> BTreeSet<String> {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or("");
    let code: Vec<&str> = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""))
        .collect();
    let code = code.join("\n");
    let mut found = BTreeSet::new();
    for behind in code.split("crate::").skip(1) {
        match behind.strip_prefix('{') {
            None => found.extend(word(behind)),
            Some(list) => {
                let list = list.split(';').next().unwrap_or("");
                found.extend(list.split([',', '\n']).filter_map(word));
            }
        }
    }
    found
}

fn word(text: &str) -> Option<String> {
    let text = text.trim_start();
    let inside = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let end = text.find(|c| !inside(c)).unwrap_or(text.len());
    text.get(..end)
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
}

/// Modules that reach themselves, each circle once.
pub(super) fn circles(uses: &Uses) -> Vec<Vec<String>> {
    let reach = |from: &String| {
        let mut reached = BTreeSet::new();
        let mut next = vec![from];
        while let Some(module) = next.pop() {
            let used = uses.get(module).into_iter().flatten();
            next.extend(used.filter(|used| reached.insert((*used).clone())));
        }
        reached
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        uses.keys().map(|module| (module, reach(module))).collect();
    let mut found: Vec<Vec<String>> = Vec::new();
    for (module, to) in &reached {
        let back = |other: &&String| reached.get(*other).is_some_and(|to| to.contains(*module));
        let circle: Vec<String> = to.iter().filter(back).cloned().collect();
        if !circle.is_empty() && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}
