//! Names between backticks: types, their items, functions, tests, files and `cargo` commands.
//!
//! Words without a mark of their own (`map`, `unmap_page`) may be of any crate, and are not looked at.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::definitions::Definitions;
use super::foreign::{FOLDERS, FOREIGN};
use super::prose;

/// Ends of names of files that are this repository's.
const ENDS: &[&str] = &[".rs", ".md", ".toml", ".py", ".sh"];
/// Number of underscores from which a word is taken for the name of a test or function.
const LONG: usize = 5;

/// Names that a document may use.
pub(super) struct Known<'a> {
    paths: &'a [String],
    /// The folder of each package, by its name.
    packages: &'a BTreeMap<String, String>,
    definitions: &'a Definitions<'a>,
    /// Names of [`FOREIGN`] that some document has.
    used: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Known<'a> {
    pub(super) fn new(
        paths: &'a [String],
        packages: &'a BTreeMap<String, String>,
        definitions: &'a Definitions<'a>,
    ) -> Self {
        Self { paths, packages, definitions, used: RefCell::default() }
    }

    /// Says which names in a document are nothing's.
    pub(super) fn check(&self, path: &str, text: &str) -> Vec<String> {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let text = prose(text);
        let spans = text.split('`').skip(1).step_by(2);
        let stale = spans.filter_map(|span| self.stale(folder, span.trim()));
        stale.collect()
    }

    /// Names of the list that no document has any more.
    pub(super) fn unused_foreign(&self) -> Vec<String> {
        let used = self.used.borrow();
        let unused = FOREIGN.iter().filter(|name| !used.contains(**name));
        unused.map(|name| format!("foreign.rs lists {name}, which no document names")).collect()
    }

    fn stale(&self, folder: &str, span: &str) -> Option<String> {
        if span.starts_with("cargo ") {
            return self.stale_command(span);
        }
        if let Some((file, test)) = span.split_once(".rs::") {
            return self.stale_test(&format!("{file}.rs"), test);
        }
        let is_path = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
        let is_file = ENDS.iter().any(|end| span.ends_with(end));
        if is_file && span.chars().all(is_path) {
            return (!self.is_file(folder, span)).then(|| format!("{span}: no such file"));
        }
        self.stale_item(span)
    }

    fn is_file(&self, folder: &str, name: &str) -> bool {
        let beside = format!("{folder}/{name}");
        let end = format!("/{name}");
        let fits = |path: &String| *path == name || *path == beside || path.ends_with(&end);
        self.paths.iter().any(fits) || self.is_foreign(name)
    }

    /// Notes that a document has a name of others, and tells if it is one.
    fn is_foreign(&self, name: &str) -> bool {
        let listed = FOREIGN.iter().find(|listed| **listed == name);
        self.used.borrow_mut().extend(listed);
        listed.is_some() || FOLDERS.iter().any(|folder| name.starts_with(folder))
    }

    /// Checks a test's file and name, either with `*` for any words; `*::` is before names that macros write.
    fn stale_test(&self, file: &str, test: &str) -> Option<String> {
        if !self.paths.iter().any(|path| fits(file, path)) {
            return Some(format!("{file}: no such file"));
        }
        let there = match test.rsplit_once("::").map_or(test, |(_, name)| name) {
            _ if file.contains('*') => true,
            name if name == test && !name.contains('*') => {
                self.definitions.is_function_of(file, name)
            }
            name => self.definitions.any_word(|word| fits(name, word)),
        };
        (!there).then(|| format!("{file} has no test {test}"))
    }

    /// Checks a path of names whose last part is an item or a function.
    fn stale_item(&self, span: &str) -> Option<String> {
        let (path, called) = match span.split_once('(') {
            Some((path, _)) => (path, true),
            None => (span, false),
        };
        let path = path.split('<').next()?.trim_end_matches('!');
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let names: Vec<&str> = path.split("::").collect();
        let mut odd = names.iter().filter(|name| {
            !name.starts_with(|c: char| c.is_alphabetic() || c == '_') || !name.chars().all(is_word)
        });
        if odd.next().is_some() || self.is_foreign(path) {
            return None;
        }
        match names[..] {
            [one] => self.stale_word(one, called),
            [first, ..] if self.is_foreign(first) => None,
            [.., of, item] if is_type(of) => {
                let (kind, has) =
                    (self.definitions.is_type(of), self.definitions.has_item(of, item));
                let what = if kind { format!("no {item}") } else { "no such type".to_owned() };
                (!kind || !has).then(|| format!("{path}: {what}"))
            }
            _ => {
                let unknown = names.iter().find(|name| !self.definitions.is_word(name))?;
                Some(format!("{path}: no {unknown}"))
            }
        }
    }

    fn stale_word(&self, name: &str, called: bool) -> Option<String> {
        let long = name.matches('_').count() >= LONG && name.chars().all(|c| !c.is_uppercase());
        let known = match (is_type(name), called || long) {
            (true, _) => self.definitions.is_word(name),
            (false, true) => self.definitions.is_defined(name),
            (false, false) => true,
        };
        (!known).then(|| format!("{name}: defined nowhere"))
    }

    /// Packages, tests and examples that a command names.
    fn stale_command(&self, command: &str) -> Option<String> {
        let words: Vec<&str> = command.split_whitespace().collect();
        let after = |option: &str| {
            let at = words.iter().position(|word| *word == option)?;
            words.get(at + 1).copied()
        };
        let package = after("-p");
        let folder = match package.map(|package| self.packages.get(package)) {
            Some(None) => return Some(format!("{command}: no such package")),
            Some(Some(folder)) => format!("{folder}/"),
            None => String::new(),
        };
        for (option, place) in
            [("--test", "tests"), ("--example", "examples"), ("--bin", "src/bin")]
        {
            let Some(name) = after(option) else { continue };
            let files = ["", "/main"].map(|main| format!("{folder}{place}/{name}{main}.rs"));
            if !files.iter().any(|file| self.paths.contains(file)) {
                return Some(format!("{command}: {} is not there", files[0]));
            }
        }
        None
    }
}

/// Tells if `name` matches `pattern`, in which `*` matches anything.
fn fits(pattern: &str, name: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(rest) = name.strip_prefix(before) else {
        return false;
    };
    let mut ends = (0..=rest.len()).filter_map(|from| rest.get(from..));
    ends.any(|end| fits(after, end))
}

/// Tells if a name is written as types are.
fn is_type(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase()) && name.contains(|c: char| c.is_lowercase())
}
