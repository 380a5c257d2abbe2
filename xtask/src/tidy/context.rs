//! Every public function of the library and of its drivers says where it may be called.
//!
//! A line `*Context.*` in the documentation says it: on the function, on the `impl` block or the
//! trait that it is in, on the type that the block is for, or in the header of the file or of a
//! module above, the front page of the crate apart. The line names one of the three contexts. A
//! function is public if it is written as `pub`, also in a module that is not.

mod scan;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::Finding;
use scan::{Balance, Declared};

/// Folders of the crates that the rule is for.
const SOURCES: &[&str] = &[
    "crates/portolan/src/",
    "crates/portolan-tables/src/",
    "crates/portolan-hw/src/",
    "crates/portolan-bare/src/",
    "crates/portolan-virtio/src/",
];

/// Start of the line.
const MARK: &str = "*Context.*";

/// The contexts; a line names at least one.
const CONTEXTS: &[&str] = &["interrupt", "atomic", "task"];

/// A file of a crate.
pub(super) struct File<'a> {
    pub(super) path: &'a str,
    pub(super) text: &'a str,
    pub(super) declared: Declared,
}

impl File<'_> {
    fn finding(&self, what: String) -> Finding {
        Finding { path: self.path.to_owned(), rule: "context", what }
    }
}

/// Files by their module, as `["dma", "copies"]`.
pub(super) type Modules<'a> = BTreeMap<Vec<&'a str>, File<'a>>;

/// Checks the files, path and text, that are of the crates in question.
pub(super) fn check(files: &[(String, String)]) -> Vec<Finding> {
    let mut found = Vec::new();
    for source in SOURCES {
        let modules = product(source, files);
        for (module, file) in &modules {
            found.extend(nameless(file));
            found.extend(silent(&modules, module, file));
        }
    }
    found
}

/// The files of the crate whose sources are below `source`, without those for tests.
pub(super) fn product<'a>(source: &str, files: &'a [(String, String)]) -> Modules<'a> {
    let mut modules: Modules =
        files.iter().filter_map(|(path, text)| read(source, path, text)).collect();
    let tests = tests_of(&modules);
    let is_of = |module: &[&str], test: &Vec<String>| {
        module.len() >= test.len() && module.iter().zip(test).all(|(a, b)| a == b)
    };
    modules.retain(|module, _| !tests.iter().any(|test| is_of(module, test)));
    modules
}

/// Module of a file of the crate whose sources are below `source`, and the file's declarations.
fn read<'a>(source: &str, path: &'a str, text: &'a str) -> Option<(Vec<&'a str>, File<'a>)> {
    let module = module(path.strip_prefix(source)?)?;
    let declared = scan::scan(text);
    let file = File { path, text, declared };
    Some((module, file))
}

/// The module of a file below `src`.
fn module(path: &str) -> Option<Vec<&str>> {
    let mut names: Vec<&str> = path.strip_suffix(".rs")?.split('/').collect();
    if matches!(names[..], ["lib"] | [.., "mod"]) {
        names.pop();
    }
    Some(names)
}

/// Modules that are for tests, as their own files or those above declare; so are those below.
fn tests_of(modules: &Modules) -> Vec<Vec<String>> {
    let mut tests = Vec::new();
    for (module, File { declared, .. }) in modules {
        let names = module.iter().map(|name| (*name).to_owned());
        for test in &declared.test_modules {
            tests.push(names.clone().chain([test.clone()]).collect());
        }
        if declared.test {
            tests.push(names.collect());
        }
    }
    tests
}

/// The public functions that do not say it.
fn silent(modules: &Modules, module: &[&str], file: &File) -> Vec<Finding> {
    let declared = &file.declared;
    let mut found = Vec::new();
    if declared.balance == Balance::Lost {
        let what = "braces do not balance as this rule reads them";
        found.push(file.finding(what.to_owned()));
    }
    let mut above = (1..module.len()).filter_map(|n| modules.get(&module[..n]));
    if declared.said || above.any(|above| above.declared.said) {
        return found;
    }
    for function in &declared.functions {
        let of = function.of.as_ref();
        let of_type = of.is_some_and(|name| type_says(modules, module, name));
        if !function.said && !of_type {
            let (line, name) = (function.line, &function.name);
            found.push(file.finding(format!("line {line}: {name} has no line {MARK}")));
        }
    }
    found
}

/// Tells if a type has the line: the one of this name that is declared nearest. Of several as near, all must.
fn type_says(modules: &Modules, module: &[&str], name: &str) -> bool {
    let nearness = |of: &[&str]| {
        let shared = of.iter().zip(module).take_while(|(a, b)| a == b).count();
        (shared, Reverse(of.len()))
    };
    let types = modules.iter().flat_map(|(of, file)| {
        let types = file.declared.types.iter().filter(|t| t.name == name);
        types.map(|t| (nearness(of), t.said))
    });
    let types: Vec<_> = types.collect();
    let nearest = types.iter().map(|(near, _)| near).max();
    let mut as_near = types.iter().filter(|(near, _)| Some(near) == nearest);
    nearest.is_some() && as_near.all(|(_, said)| *said)
}

/// The lines that name no context, in the paragraph that they begin.
fn nameless(file: &File) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut lines = file.text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let Some((_, first)) = documentation(line).and_then(|doc| doc.split_once(MARK)) else {
            continue;
        };
        let rest = lines
            .clone()
            .map_while(|(_, line)| documentation(line))
            .take_while(|doc| !doc.is_empty() && !doc.contains(MARK));
        let words = [first].into_iter().chain(rest);
        let words = words.collect::<Vec<_>>().join(" ").to_lowercase();
        if !CONTEXTS.iter().any(|context| words.contains(context)) {
            let named = CONTEXTS.join(", ");
            found.push(file.finding(format!("line {}: names none of {named}", at + 1)));
        }
    }
    found
}

/// Text of a line, if it is documentation.
fn documentation(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let says = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
    Some(says.trim())
}
