//! Reports of a built command (`PROGRAM` of the parent). Tests of other crates include it by `#[path]`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::PROGRAM;
use super::browser::Browser;

/// Bytes of a report at most.
const MOST: usize = 3_000_000;

/// Output of the command.
pub fn portolan(args: &[&str]) -> Output {
    Command::new(PROGRAM).args(args).output().unwrap()
}

/// File of this test.
pub fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The report that `args` write, under `name`.
pub fn report(name: &str, args: &[&str]) -> (PathBuf, String) {
    let path = scratch(name);
    let mut all = args.to_vec();
    all.extend(["--report", path.to_str().unwrap()]);
    let output = portolan(&all);
    let said = String::from_utf8_lossy(&output.stderr);
    // With exit code 1 there is no answer, and the report says this.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{args:?}: {said}");
    assert!(said.contains(&format!("the report is in {}", path.display())), "{said}");
    let plain = portolan(args);
    assert!(output.stdout == plain.stdout, "{args:?} prints something else");
    let html = std::fs::read_to_string(&path).unwrap();
    is_whole(name, &html);
    (path, html)
}

/// Each figure has a plot or the reason why not, and its table; nothing is no number.
fn is_whole(name: &str, html: &str) {
    assert!(html.len() <= MOST, "{name}: {} bytes", html.len());
    let figures: Vec<_> = html.split("<figure ").skip(1).collect();
    let nothing = ["No answer", "maps nothing", "They map nothing"];
    let nothing = nothing.iter().any(|words| html.contains(words));
    let words = html.contains("<table class=\"words\"");
    assert!(nothing || words || !figures.is_empty(), "{name}: no figure");
    for figure in figures {
        let figure = figure.split("</figure>").next().unwrap();
        let nothing = figure.contains("class=\"nothing\"");
        assert!(figure.contains("<svg") != nothing, "{name}: {figure}");
        assert!(nothing || figure.contains("<table"), "{name}: {figure}");
    }
    // Only words of the page: the script has other names.
    let page = html.split("<script").next().unwrap();
    let words = page.split(|c: char| !c.is_alphanumeric());
    for word in words {
        let lower = word.to_ascii_lowercase();
        assert!(!["nan", "inf", "infinity"].contains(&&*lower), "{name}: {word}");
    }
    assert!(html.contains("portolan"), "{name}: no command");
}

/// Checks a page in a browser, if there is one.
pub fn is_fine(browser: Option<&mut Browser>, file: &Path) {
    let Some(browser) = browser else {
        return;
    };
    let visit = browser.visit(file);
    assert!(visit.complaints.is_empty(), "{}:\n{}", file.display(), visit.complaints.join("\n"));
}

/// Checks that a report at `path` is refused with `words` for each of `commands`, before the work.
pub fn refuses(commands: &[&[&str]], path: &str, words: &str) {
    for args in commands {
        let mut args = args.to_vec();
        args.extend(["--report", path]);
        let output = portolan(&args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
        assert!(output.stdout.is_empty(), "{args:?}: found out after the work");
    }
}
