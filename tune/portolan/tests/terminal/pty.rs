//! The built command on terminals of util-linux's `script`; without it SKIP.

use std::path::{Path, PathBuf};
use std::process::Command;

use portolan_tune::firmware;

use super::fits::fits;
use super::screen::{bare, fits_terminals, piped, terminal};
use super::{PROGRAM, firmware_report};

/// A recording whose machine, device, task and lines would clear the screen, colour it and write backwards;
/// `\u{9b}` is one character for the two that begin an escape sequence.
const HOSTILE: &str = "\
# portolan-facts: {\"release\":\"6.12\\u001b[2J\\u009b31m\",\"cpus\":2,\"iommus\":[{\"name\":\"dmar\\u001b[5m\\u202e\",\
\"kind\":\"vtd\",\"devices\":1}]}
# tracer: nop
#
 a\u{1b}[2J-1 [000] ..... 1.000000: dma_map_page: 0000:00:01.0\u{1b}[31m dir=FROM_DEVICE dma_addr=ffe00840 \
    size=1522 phys_addr=70840 attrs=
 a-1 [000] ..... 1.000100: dma_map_page: \u{9b}31m\u{202e}dev dir=FROM_DEVICE dma_addr=ffd00ff0 \
    size=32 phys_addr=90ff0 attrs=
 a-1 [000] ..... 1.000200: dma_map_page: \u{1b}]0;title\u{7} dir=SIDEWAYS dma_addr=zz\u{9b}31m size=\u{1b}[5m
 a-1 [000] ..... 1.002000: dma_unmap_page: 0000:00:01.0\u{1b}[31m dir=FROM_DEVICE dma_addr=ffe00840 size=1522 attrs=
";

/// Commands that are quick enough to be run on three terminals.
const QUICK: [&str; 4] = [
    "2>/dev/null",
    "machines sm8150 2>/dev/null",
    "explain --all 2>/dev/null",
    "compare vtd-strict.net-tx.trace.xz vtd-strict.boot.trace.xz 2>/dev/null",
];

#[test]
fn the_built_command_fits_terminals_and_colours_them() {
    for arguments in QUICK {
        fits_terminals(arguments);
    }
}

#[test]
fn pipes_are_coloured_only_if_that_is_forced() {
    let (text, _) = piped("explain --all");
    assert!(!text.contains('\u{1b}'), "{text:?}");
    let run = format!("CLICOLOR_FORCE=1 '{PROGRAM}' explain --all");
    let forced = Command::new("sh").args(["-c", &run]).output().unwrap();
    let forced = String::from_utf8(forced.stdout).unwrap();
    assert!(forced != text && bare(&forced) == text);
}

fn scratch(name: &str, content: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).unwrap();
    path
}

/// Tells if text has no control characters except line ends.
fn is_harmless(text: &str) -> bool {
    let obeyed = |one: char| (one.is_control() && one != '\n') || one == '\u{202e}';
    !text.contains(obeyed)
}

#[test]
fn a_hostile_trace_reaches_no_terminal() {
    let path = scratch("hostile\u{1b}[2J.trace", HOSTILE);
    let path = path.to_str().unwrap();
    for form in ["", "--wide", "--json"] {
        let arguments = format!("replay {form} '{path}'");
        let (out, err) = piped(&arguments);
        assert!(is_harmless(&out), "{arguments}: {out:?}");
        assert!(is_harmless(&err), "{arguments}: {err:?}");
        assert!(form == "--json" || out.contains("hostile\\u{1b}[2J.trace"), "{out}");
        assert!(err.contains("\\x1b]0;title"), "the warning cites the line: {err}");
        if let Some(shown) = terminal(60, &arguments, "1") {
            assert!(is_harmless(&shown), "{arguments}: {shown:?}");
        }
        if let Some(shown) = terminal(60, &arguments, "") {
            assert!(is_harmless(&bare(&shown)), "{arguments}: {shown:?}");
        }
    }
    let (text, _) = piped(&format!("replay '{path}'"));
    assert!(text.contains("dmar\\u{1b}[5m\\u{202e}"), "the machine is named: {text}");
    let (json, _) = piped(&format!("replay --json '{path}'"));
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["trace"]["source"], path);
    // A trace that cannot be read is told as harmlessly.
    let run = format!("'{PROGRAM}' replay '{path}.missing'");
    let refused = Command::new("sh").args(["-c", &run]).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(is_harmless(&said) && said.contains("hostile\\u{1b}[2J"), "{said:?}");
}

#[test]
fn hostile_firmware_reaches_no_terminal() {
    let report = firmware_report("\u{1b}[2J\u{9b}31m\u{202e}盘盘盘盘");
    let wide = firmware::text(&report, usize::MAX);
    for columns in [40, 60, 80] {
        let text = firmware::text(&report, columns);
        assert!(is_harmless(&text), "{text:?}");
        assert!(text.contains("\\u{1b}[2J\\u{9b}31m\\u{202e}盘盘"), "{text}");
        fits("hostile firmware", &text, &wide, columns);
    }
}
