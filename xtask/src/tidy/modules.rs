//! Uses between the modules of a crate: one way, and as `docs/modules.md` shows them.
//!
//! Looked for are paths that begin with `crate::` or `super::`, without comments and tests. A module of
//! the map is one that the crate's root declares, with everything below it. No files use each other in
//! a circle either, except a module's own file and the files in the module.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::Finding;

/// Crates whose modules are looked at, and where their sources are.
const CRATES: &[(&str, &str)] = &[
    ("portolan", "crates/portolan/src/"),
    ("portolan-tables", "crates/portolan-tables/src/"),
    ("portolan-hw", "crates/portolan-hw/src/"),
    ("portolan-sim", "tune/portolan-sim/src/"),
    ("portolan-chips", "proof/chips/src/"),
    ("portolan-qemu", "proof/qemu/src/"),
    ("portolan-vmm", "crates/portolan-vmm/src/"),
    ("portolan-report", "tune/portolan-report/src/"),
    ("portolan-tune", "tune/portolan/src/"),
    ("portolan-papers", "proof/papers/src/"),
    ("portolan-protocol", "proof/protocol/src/"),
    ("portolan-verify", "proof/conformance/src/"),
    ("portolan-bench", "proof/bench/src/"),
];

/// Folders whose modules are layers, from the ground: each uses those before it.
const LAYERS: &[(&str, &str, &[&str])] = &[(
    "crates/portolan/src/",
    "dma",
    &[
        "policy",
        "error",
        "layout",
        "flush_queue",
        "trace",
        "space",
        "reach",
        "mapping",
        "buffer_pool",
        "device",
        "doorbell",
        "reservation",
        "former",
        "coherent",
    ],
)];

/// File that shows the map.
const SHOWN: &str = "docs/modules.md";

/// Modules that each module uses.
pub(super) type Uses = BTreeMap<String, BTreeSet<String>>;

/// Circles, and a map that is not the one shown in `shown`.
pub(super) fn check(sources: &[(String, String)], shown: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    let roots = sources.iter().filter_map(|(path, _)| {
        let (root, _) = path.split_once("/src/")?;
        Some(format!("{root}/src/"))
    });
    // A kernel's interrupts come in by the architecture's code, which uses the functions that serve them.
    let roots = roots.filter(|root| root != "proof/demo/src/");
    for root in roots.collect::<BTreeSet<String>>() {
        let mut all = circles(&files(&root, sources));
        all.extend(circles(&uses(&root, sources)));
        let all: BTreeSet<Vec<String>> = all.into_iter().collect();
        found.extend(all.into_iter().map(|circle| Finding {
            path: root.clone(),
            rule: "circle",
            what: format!("{} use each other", circle.join(", ")),
        }));
    }
    for (source, folder, layers) in LAYERS {
        let upward = upward(&files(source, sources), folder, layers);
        found.extend(upward.into_iter().map(|what| Finding {
            path: format!("{source}{folder}"),
            rule: "layer",
            what,
        }));
    }
    let map = map(sources);
    if !shown.contains(&map) {
        found.push(Finding {
            path: SHOWN.to_owned(),
            rule: "map",
            what: format!("does not show how modules use each other:\n{map}"),
        });
    }
    found
}

/// Uses of a layer above in `folder`, and modules that are no layer.
pub(super) fn upward(files: &Uses, folder: &str, layers: &[&str]) -> Vec<String> {
    let layer = |file: &str| {
        let inside = file.strip_prefix(folder)?.strip_prefix('/')?;
        inside.split('/').next().map(str::to_owned)
    };
    let height = |name: &str| layers.iter().position(|layer| *layer == name);
    let mut found = Vec::new();
    for (file, used) in files {
        let Some(own) = layer(file) else {
            continue;
        };
        if height(&own).is_none() {
            found.push(format!("{own} is none of its layers"));
        }
        let above =
            used.iter().filter_map(|used| layer(used)).filter(|used| height(used) > height(&own));
        found.extend(above.map(|used| format!("{file} uses {used}, which is above it")));
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
            // In a circle any module will do: circles are reported separately.
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

/// Modules below `source` that each of them uses.
pub(super) fn uses(source: &str, sources: &[(String, String)]) -> Uses {
    let top = |file: &String| file.split('/').next().unwrap_or("").to_owned();
    let mut all = Uses::new();
    for (file, used) in files(source, sources) {
        let module = top(&file);
        let others = used.iter().map(top).filter(|used| *used != module);
        let others: Vec<String> = others.collect();
        all.entry(module).or_default().extend(others);
    }
    all
}

/// Files below `source` that each of them uses, each named by its module.
pub(super) fn files(source: &str, sources: &[(String, String)]) -> Uses {
    let inside = sources.iter().filter_map(|(path, text)| {
        let module = path.strip_prefix(source)?.strip_suffix(".rs")?;
        let module = module.strip_suffix("/mod").unwrap_or(module);
        let tests = module.split('/').any(|part| part.starts_with("tests"));
        let root = ["lib", "main", "bin"].contains(&module.split('/').next()?);
        (!tests && !root).then_some((module, text))
    });
    let inside: BTreeMap<&str, &String> = inside.collect();
    let within = |of: &str, module: &str| of == module || of.starts_with(&format!("{module}/"));
    let used = |(module, text): (&&str, &&String)| {
        let used = paths(text).into_iter().filter_map(|path| {
            let mut at: Vec<&str> = match path.first() {
                Some(&"super") => module.split('/').collect(),
                _ => Vec::new(),
            };
            let mut found = None;
            for part in path {
                match part {
                    "crate" => {}
                    "super" => drop(at.pop()),
                    part => at.push(part),
                }
                let name = at.join("/");
                found = inside.get_key_value(&*name).map(|(name, _)| *name).or(found);
            }
            found
        });
        let others = used.filter(|used| !within(used, module) && !within(module, used));
        ((*module).to_owned(), others.map(str::to_owned).collect())
    };
    inside.iter().map(used).collect()
}

/// The paths from the crate's root or from a module above, with lists written out.
fn paths(text: &str) -> Vec<Vec<&str>> {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or("");
    let mut found = Vec::new();
    for root in ["crate::", "super::"] {
        for (at, _) in text.match_indices(root) {
            let before = text[..at].lines().last().unwrap_or("");
            if !before.ends_with(':') && !before.contains("//") {
                written_out(&text[at..], &[], &mut found);
            }
        }
    }
    found
}

/// Adds the paths at the beginning of `text`; returns the text behind them.
fn written_out<'t>(mut text: &'t str, above: &[&'t str], found: &mut Vec<Vec<&'t str>>) -> &'t str {
    let inside = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut path = above.to_vec();
    while let Some((word, behind)) = text.find(|c| !inside(c)).map(|end| text.split_at(end)) {
        path.push(word);
        text = behind;
        let Some(below) = text.strip_prefix("::") else {
            break;
        };
        text = below;
        if let Some(mut list) = text.strip_prefix('{') {
            while let Some(next) = list.find(|c| inside(c) || c == '}') {
                list = &list[next..];
                if let Some(behind) = list.strip_prefix('}') {
                    return behind;
                }
                list = written_out(list, &path, found);
            }
            return list;
        }
    }
    found.push(path);
    text
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
