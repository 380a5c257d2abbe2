//! The rules for one file.

use std::path::Path;

use super::Finding;

/// Lines of a file.
const MAX_FILE: usize = 600;
/// Lines of a test module inside a file.
const MAX_TESTS: usize = 150;
/// Columns, comments included.
const MAX_COLUMN: usize = 120;

/// These three limits, as CONTRIBUTING.md states them.
#[cfg(test)]
pub(super) const LIMITS: [usize; 3] = [MAX_FILE, MAX_TESTS, MAX_COLUMN];

/// Crates whose root must forbid unsafe code, or deny it where one module needs it.
const FORBID: &[&str] = &[
    "crates/portolan/src/lib.rs",
    "proof/chips/src/lib.rs",
    "tune/portolan-report/src/lib.rs",
    "tune/portolan/src/lib.rs",
    "proof/conformance/src/lib.rs",
    "proof/papers/src/lib.rs",
];

/// Names that say nothing.
const EMPTY_NAMES: &[&str] = &["util", "utils", "common", "misc", "helpers", "base"];

/// A word for unfinished work, apart so that this file does not hold it. Clippy finds the macros.
const MARK: &str = concat!("FIX", "ME");

/// Calls that wait for the wall clock or read it.
const CLOCK: [&str; 5] =
    ["Instant::now", "thread::sleep(", "recv_timeout(", "wait_timeout(", ".elapsed()"];

/// Vendors, which the library names in table formats only.
const VENDORS: &[&str] = &["smmu", "intel", "amd", "qualcomm", "qcom", "tegra", "nvidia", "vtd"];

/// Checks one Rust file.
pub(super) fn rust(path: &str, text: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut say = |rule, what: String| found.push(Finding { path: path.to_owned(), rule, what });
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() > MAX_FILE {
        say("file-length", format!("{} lines, more than {MAX_FILE}", lines.len()));
    }
    if !lines.iter().find(|line| !line.trim().is_empty()).is_some_and(|l| l.starts_with("//!")) {
        say("header", "begins without a //! header".to_owned());
    }
    let stem = Path::new(path).file_stem().and_then(|stem| stem.to_str()).unwrap_or("");
    if EMPTY_NAMES.contains(&stem) {
        say("name", format!("a module called {stem} says nothing"));
    }
    let forbids = ["forbid", "deny"].map(|how| format!("#![{how}(unsafe_code)]"));
    if FORBID.contains(&path) && !forbids.iter().any(|line| text.contains(line)) {
        say("forbid-unsafe", "neither forbids nor denies unsafe code".to_owned());
    }
    let mut is_test = path.contains("/tests/") || stem == "tests";
    for (number, line) in (1usize..).zip(&lines) {
        is_test |=
            line.trim_start() == "#[cfg(test)]" && lines.get(number).is_some_and(opens_tests);
        if line.chars().count() > MAX_COLUMN {
            say("column", format!("line {number} is longer than {MAX_COLUMN}"));
        }
        if line.contains(MARK) {
            say("mark", format!("line {number} is unfinished"));
        }
        let code = code_of(line);
        let general = path.starts_with("crates/portolan/src/") && !path.contains("/table/format/");
        if let Some(vendor) = names_vendor(&code).filter(|_| general) {
            say("vendor", format!("line {number} names {vendor}"));
        }
        let is_product = !is_test && !path.starts_with("proof/");
        if is_product && code.contains("Option<()>") {
            say(
                "option",
                format!("line {number} has an Option of (): a bool or a Result says more"),
            );
        }
        let above = &lines[number.saturating_sub(5)..number - 1];
        let asks = is_test && CLOCK.iter().any(|call| code.contains(call));
        if asks && !above.iter().any(|l| l.contains("CLOCK:")) {
            say("clock", format!("line {number} of a test uses the wall clock without a reason"));
        }
    }
    found.extend(long_tests(path, &lines));
    found
}

fn long_tests(path: &str, lines: &[&str]) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut say = |rule, what: String| found.push(Finding { path: path.to_owned(), rule, what });
    for (start, length) in blocks(lines, |code| code.trim_start().starts_with("mod tests {")) {
        if length > MAX_TESTS {
            say("tests-length", format!("line {start}: {length} lines of tests in the file"));
        }
    }
    found
}

fn opens_tests(line: &&str) -> bool {
    line.starts_with("mod ") && line.ends_with('{')
}

fn names_vendor(code: &str) -> Option<&'static str> {
    let lower = code.to_ascii_lowercase();
    let words = || lower.split(|c: char| !c.is_ascii_alphanumeric());
    VENDORS.iter().copied().find(|vendor| words().any(|word| word == *vendor))
}

/// A line without its comment and without the text in quotes.
pub(super) fn code_of(line: &str) -> String {
    let mut code = String::new();
    let mut rest = line.chars().peekable();
    let mut quoted = None;
    while let Some(c) = rest.next() {
        match (quoted, c) {
            (Some(_), '\\') => drop(rest.next()),
            (Some(quote), c) if c == quote => quoted = None,
            (Some(_), _) => {}
            (None, '/') if rest.peek() == Some(&'/') => break,
            (None, '"') => quoted = Some('"'),
            (None, '\'') => {
                // A character, or a lifetime.
                let ahead: String = rest.clone().take(3).collect();
                if ahead.starts_with('\\') || ahead.chars().nth(1) == Some('\'') {
                    quoted = Some('\'');
                }
            }
            (None, c) => code.push(c),
        }
    }
    code.trim_end().to_owned()
}

/// Blocks in braces whose first line `opens`: line number and number of lines.
fn blocks(lines: &[&str], opens: impl Fn(&str) -> bool) -> Vec<(usize, usize)> {
    let codes: Vec<String> = lines.iter().map(|line| code_of(line)).collect();
    let mut found = Vec::new();
    for (start, _) in codes.iter().enumerate().filter(|(_, code)| opens(code)) {
        let (mut depth, mut entered) = (0i64, false);
        for (at, code) in codes.iter().enumerate().skip(start) {
            for c in code.chars() {
                depth += i64::from(c == '{') - i64::from(c == '}');
                entered |= c == '{';
            }
            if (entered && depth <= 0) || (!entered && code.ends_with(';')) {
                found.push((start + 1, at - start + 1));
                break;
            }
        }
    }
    found
}

/// Paths of a developer's machine have no place in the project.
pub(super) fn workplace(path: &str, text: &str) -> Vec<Finding> {
    let paths = [concat!("/wo", "rk/"), concat!("../sha", "red")];
    let named = paths.iter().filter(|p| text.contains(**p));
    let finding = |what| Finding { path: path.to_owned(), rule: "workplace", what };
    named.map(|p| finding(format!("names {p}"))).collect()
}
