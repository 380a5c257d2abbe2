//! Commands of docs/guide.md and docs/record.md, run: each `$ portolan …` of their `console` blocks prints the lines
//! below it.
//!
//! `...` stands for any number of lines, and within a line for anything.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The workspace.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

const GUIDE: &str = "docs/guide.md";

/// Blocks of `document` that begin with `fence`.
fn blocks(document: &str, fence: &str) -> Vec<String> {
    let document = std::fs::read_to_string(Path::new(ROOT).join(document)).unwrap();
    let begin = format!("\n```{fence}\n");
    let blocks = document
        .split(begin.as_str())
        .skip(1)
        .map(|block| block.split("\n```").next().unwrap().to_owned());
    blocks.collect()
}

/// Tells if `printed` has the lines of `wanted`; `...` matches anything.
fn matches(wanted: &[&str], printed: &[&str]) -> bool {
    match (wanted, printed) {
        ([], []) => true,
        (["...", rest @ ..], _) => (0..=printed.len()).any(|at| matches(rest, &printed[at..])),
        ([line, rest @ ..], [first, others @ ..]) => is_line(line, first) && matches(rest, others),
        _ => false,
    }
}

fn is_line(wanted: &str, printed: &str) -> bool {
    let mut parts = wanted.split("...");
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = printed.strip_prefix(first) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        match (parts.peek(), rest.find(part)) {
            (None, _) => return rest.ends_with(part),
            (Some(_), Some(at)) => rest = &rest[at + part.len()..],
            (Some(_), None) => return false,
        }
    }
    true
}

/// A folder with the project's recordings, for the guide's files.
fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guide");
    std::fs::create_dir_all(&folder).unwrap();
    let root = Path::new(ROOT).canonicalize().unwrap();
    for name in ["data", "tune"] {
        // It may be there already; a missing link fails the commands.
        let _ = std::os::unix::fs::symlink(root.join(name), folder.join(name));
    }
    folder
}

fn run(command: &str) -> String {
    let rest = command.strip_prefix("portolan").unwrap();
    let output = Command::new("sh")
        .args(["-c", &format!("'{}'{rest}", env!("CARGO_BIN_EXE_portolan"))])
        .current_dir(folder())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the commands of `document`'s `console` blocks; their number.
fn commands_print_what_is_shown(document: &str) -> usize {
    let mut commands = 0;
    for block in blocks(document, "console") {
        for call in block.split("$ ").skip(1) {
            let (command, shown) = call.split_once('\n').unwrap();
            let printed = run(command);
            let printed: Vec<&str> = printed.lines().collect();
            let shown: Vec<&str> = shown.lines().collect();
            assert!(
                matches(&shown, &printed),
                "{command}\n{document}:\n{}\nprinted:\n{}",
                shown.join("\n"),
                printed.join("\n")
            );
            assert!(shown.iter().any(|line| *line != "..."), "{command}");
            commands += 1;
        }
    }
    commands
}

#[test]
fn each_command_prints_what_the_guide_shows() {
    let commands = commands_print_what_is_shown(GUIDE);
    assert!(commands > 5, "{commands}");
    let report = std::fs::read_to_string(folder().join("before.html")).unwrap();
    assert!(report.contains("<svg"), "no plot in the guide's report");
}

#[test]
fn a_recording_s_replay_prints_what_its_document_shows() {
    assert_eq!(commands_print_what_is_shown("docs/record.md"), 1);
}

/// `cargo xtask guest record` runs these commands; here only their options are checked.
#[test]
fn options_of_commands_that_need_root_are_there() {
    let mut options = 0;
    for block in blocks(GUIDE, "sh") {
        for line in block.lines() {
            let Some(call) = line.strip_prefix("# portolan ") else {
                continue;
            };
            let call = call.split(" #").next().unwrap().split(" -- ").next().unwrap();
            let mut words = call.split_whitespace();
            let help = run(&format!("portolan {} --help", words.next().unwrap()));
            for option in words.filter(|word| word.starts_with('-')) {
                assert!(help.contains(option), "{line}: {option} is not in {help}");
                options += 1;
            }
        }
    }
    assert!(options > 3, "{options}");
}

#[test]
fn what_is_left_out_may_be_anything_and_the_rest_may_not() {
    assert!(matches(&["...", "b ... 2", "..."], &["a", "b 1 2", "c"]));
    assert!(matches(&["a", "..."], &["a"]));
    assert!(!matches(&["...", "b ... 3", "..."], &["a", "b 1 2", "c"]));
    assert!(!matches(&["a"], &["a", "b"]));
    assert!(!matches(&["ab"], &["a"]));
}
