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
    found.extend(lost_steps(path, &lines));
    found
}

/// Finds implementations over another's of the same traits that keep the protocol's steps to themselves: runs behind
/// them would be checked without those.
fn lost_steps(path: &str, lines: &[&str]) -> Vec<Finding> {
    let opens = |code: &str| code.trim_start().trim_start_matches("unsafe ").starts_with("impl<");
    let mut found = Vec::new();
    for (start, length) in blocks(lines, opens) {
        let text = lines[start - 1..start - 1 + length].join("\n");
        let lost = text.split_once('{').is_some_and(|(header, body)| {
            wraps_platform(header) && !body.contains("fn protocol_step(")
        });
        if lost {
            let what = format!("line {start} passes calls on, and not the protocol's steps");
            found.push(Finding { path: path.to_owned(), rule: "protocol-step", what });
        }
    }
    found
}

/// Tells if the header of an `impl` is of a trait that is told steps, for a type over another of such a trait.
fn wraps_platform(header: &str) -> bool {
    let Some((left, right)) = header.split_once(" for ") else {
        return false;
    };
    let mut depth = 0i64;
    let generic = left.char_indices().find(|(_, c)| {
        depth += i64::from(*c == '<') - i64::from(*c == '>');
        *c == '>' && depth == 0
    });
    let (bounds, of) = left.split_at(generic.map_or(0, |(end, _)| end));
    let of = of.trim_start_matches(['>', ' ']).split('<').next().unwrap_or("");
    let told = ["TableMem", "Cpus", "Platform"];
    let words = bounds.split(|c: char| !c.is_alphanumeric());
    let words = words.chain(right.split(|c: char| !c.is_alphanumeric()));
    told.contains(&of) && words.into_iter().any(|w| told.contains(&w) || w == "UnitPlatform")
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
