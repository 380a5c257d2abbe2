//! Places that a page counts: orders of atomics, and unsafe code, of which each has a row.
//!
//! A row names files, and in its second cell the number of places of each that it is about; rows of
//! one file add up. A row whose second cell is no number names files that have lesser places alone.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::context::product;
use super::rules::code_of;

/// Words of the code that a page counts.
pub(super) struct Words {
    /// The page.
    pub(super) page: &'static str,
    /// Name of the rule.
    rule: &'static str,
    /// Words that are counted.
    counted: &'static [&'static str],
    /// Words of lesser places, whose files have to be named.
    named: &'static [&'static str],
}

/// Counts of the pages.
pub(super) const WORDS: [Words; 2] = [
    Words {
        page: "docs/orderings.md",
        rule: "orders",
        counted: &["Acquire", "Release", "AcqRel", "SeqCst"],
        named: &["Relaxed"],
    },
    Words { page: "docs/unsafe.md", rule: "unsafe", counted: &["unsafe"], named: &[] },
];

/// Places of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Places {
    counted: usize,
    named: usize,
}

/// Compares the libraries' sources with the text of a page.
pub(super) fn check(words: &Words, sources: &[(String, String)], text: &str) -> Vec<Finding> {
    let crates =
        sources.iter().filter_map(|(path, _)| path.strip_prefix("crates/")?.split('/').next());
    let crates: BTreeSet<String> = crates.map(|name| format!("crates/{name}/src/")).collect();
    let files = crates.iter().flat_map(|of| product(of, sources).into_values());
    let used: BTreeMap<&str, Places> = files
        .map(|file| (file.path, places(words, file.text)))
        .filter(|(_, places)| *places != Places::default())
        .collect();
    let mut rows: BTreeMap<String, usize> = BTreeMap::new();
    for (path, number) in text.lines().flat_map(row) {
        *rows.entry(path).or_default() += number;
    }
    let Words { page, rule, counted, .. } = words;
    let finding = |path: &str, what: String| Finding { path: path.to_owned(), rule, what };
    let mut found = Vec::new();
    for (path, places) in &used {
        match rows.get(*path) {
            None => found.push(finding(path, format!("{page} has no row for it"))),
            Some(number) if *number != places.counted => found.push(finding(
                path,
                format!("has {} of {}; {page} has {number}", places.counted, counted.join(", ")),
            )),
            Some(_) => {}
        }
    }
    let stale = rows.keys().filter(|path| !used.contains_key(path.as_str()));
    found.extend(stale.map(|path| finding(page, format!("{path} has none of its words"))));
    found
}

/// Places in a file's code, without its tests and what it uses.
fn places(of: &Words, text: &str) -> Places {
    let mut places = Places::default();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let tests = line.starts_with("#[cfg(test)]");
        if tests && lines.peek().is_some_and(|next| next.starts_with("mod ") && next.ends_with('{'))
        {
            break;
        }
        if line.trim_start().starts_with("use ") {
            continue;
        }
        let code = code_of(line);
        for word in code.split(|sign: char| !sign.is_alphanumeric() && sign != '_') {
            places.counted += usize::from(of.counted.contains(&word));
            places.named += usize::from(of.named.contains(&word));
        }
    }
    places
}

/// Files, and the number beside them, that a row of a table names: `portolan-hw`, `chassis/sets.rs`.
fn row(line: &str) -> Vec<(String, usize)> {
    let cells: Vec<&str> = line.strip_prefix("| ").unwrap_or_default().split(" | ").collect();
    let [first, second, ..] = cells.as_slice() else {
        return Vec::new();
    };
    let number = second.trim().parse().unwrap_or(0);
    let mut package = "portolan";
    let mut files = Vec::new();
    for name in first.split('`').skip(1).step_by(2) {
        if name.starts_with("portolan") {
            package = name;
        } else if name.ends_with(".rs") {
            files.push((format!("crates/{package}/src/{name}"), number));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::{WORDS, check};

    const PAGE: &str = "| where | number |\n|---|---|\n| `a.rs`, `f` | 1 | x |\n\
                        | `a.rs`, `g` | 2 | x |\n| `portolan-hw`, `b/c.rs`, `d.rs` | counters |\n";

    fn found(a: &str, c: &str, d: &str) -> Vec<String> {
        let sources = [
            ("crates/portolan/src/a.rs", a),
            ("crates/portolan-hw/src/b/c.rs", c),
            ("crates/portolan-hw/src/d.rs", d),
            ("crates/portolan-hw/src/lib.rs", "#[cfg(test)]\nmod loomed;\n"),
            ("crates/portolan-hw/src/loomed.rs", "f(Acquire)"),
        ];
        let sources = sources.map(|(path, text)| (path.to_owned(), text.to_owned()));
        let found = check(&WORDS[0], &sources, PAGE);
        found.into_iter().map(|one| format!("{}: {}", one.path, one.what)).collect()
    }

    #[test]
    fn each_place_has_a_row_and_each_row_a_place() {
        let a = "use Ordering::Acquire;\n// Acquire\nf(Acquire, Relaxed);\nf(Release)\nfence(SeqCst);\n\
                 #[cfg(test)]\nmod tests {\nf(Acquire);\n}\n";
        assert!(found(a, "f(Relaxed)", "f(Relaxed)").is_empty());
        let more = found(&format!("f(AcqRel);\n{a}"), "f(Relaxed)", "f(Relaxed)");
        let says = "has 4 of Acquire, Release, AcqRel, SeqCst; docs/orderings.md has 3";
        assert_eq!(more, [format!("crates/portolan/src/a.rs: {says}")]);
        let strong = found(a, "f(Release)", "");
        assert_eq!(strong.len(), 2, "{strong:?}");
        assert!(strong[0].contains("has 1 of Acquire"), "{strong:?}");
        let none = "docs/orderings.md: crates/portolan-hw/src/d.rs has none of its words";
        assert_eq!(strong[1], none);
    }
}
