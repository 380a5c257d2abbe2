//! The built command on terminals of util-linux's `script`; without it SKIP.

use std::path::{Path, PathBuf};
use std::process::Command;

use portolan_cli::display::width;
use portolan_tune::firmware;

use super::{firmware_report, fits};

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

/// Folder in which commands are run.
const TRACES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/traces");

const PROGRAM: &str = env!("CARGO_BIN_EXE_portolan");

/// Screen of a terminal of `columns`, as `script` shows it; progress and warnings too.
fn terminal(columns: usize, arguments: &str, no_color: &str) -> Option<String> {
    let run = format!("stty cols {columns} rows 24 && '{PROGRAM}' {arguments}");
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command", &run, "/dev/null"])
        .current_dir(TRACES)
        .env("TERM", "xterm")
        .env("NO_COLOR", no_color)
        .env_remove("CLICOLOR_FORCE")
        .output();
    let Ok(output) = output else {
        println!("SKIP: no `script` (Debian: bsdutils), so no terminal of {columns} columns");
        return None;
    };
    // 1: there is no answer, which is said.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{arguments}: {output:?}");
    let shown = String::from_utf8(output.stdout).unwrap();
    Some(shown.replace("\r\n", "\n"))
}

fn piped(arguments: &str) -> (String, String) {
    let run = format!("'{PROGRAM}' {arguments}");
    let command = Command::new("sh")
        .args(["-c", &run])
        .current_dir(TRACES)
        .env("TERM", "xterm")
        .env_remove("CLICOLOR_FORCE")
        .output()
        .unwrap();
    assert!(matches!(command.status.code(), Some(0 | 1)), "{arguments}: {command:?}");
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(command.stdout), text(command.stderr))
}

/// `text` without the sequences that colour it; others stay.
fn bare(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|one: char| !one.is_ascii_digit() && one != ';');
        match end {
            Some(end) if part[end..].starts_with('m') => out += &part[end + 1..],
            _ => out += &format!("\u{1b}[{part}"),
        }
    }
    out
}

/// Commands that are quick enough to be run on three terminals.
const QUICK: [&str; 6] = [
    "2>/dev/null",
    "replay --synthetic camera 2>/dev/null",
    "scale --cpus 1 --cpus 4 --horizon 1 2>/dev/null",
    "machines sm8150 2>/dev/null",
    "explain 2>/dev/null",
    "compare vtd-strict.net-tx.trace.xz vtd-strict.boot.trace.xz 2>/dev/null",
];

#[test]
fn the_built_command_fits_terminals_and_colours_them() {
    for arguments in QUICK {
        let of = |flag: &str| match arguments.starts_with("2>") {
            true => format!("replay {flag} {arguments}"),
            false => arguments.replacen(" 2>", &format!(" {flag} 2>"), 1),
        };
        let (wide, _) = piped(&of("--wide"));
        let (narrow, _) = piped(arguments);
        fits(arguments, &narrow, &wide, 80);
        for columns in [60, 80, 200] {
            let Some(coloured) = terminal(columns, arguments, "") else {
                return;
            };
            let text = bare(&coloured);
            assert!(text != coloured, "{arguments}: no colour");
            fits(arguments, &text, &wide, columns);
            // The sentences before the first table are the same.
            let words = |text: &str| -> Vec<String> {
                let paragraphs = text.split("\n\n");
                let sentences = paragraphs.take_while(|paragraph| !paragraph.contains("\n--"));
                sentences.flat_map(str::split_whitespace).map(str::to_owned).collect()
            };
            if arguments.starts_with("2>") {
                assert_eq!(words(&text), words(&wide), "{columns}");
            }
            if columns == 80 {
                assert_eq!(text, narrow, "{arguments}: a pipe has 80 columns too");
                let plain = terminal(columns, arguments, "1").unwrap();
                assert_eq!(plain, text, "{arguments}: NO_COLOR");
            }
        }
        let Some(all) = terminal(60, &of("--wide"), "1") else {
            return;
        };
        assert_eq!(all, wide, "{arguments}");
    }
}

/// Goes to the start of a terminal's line and clears it.
const CLEAR: &str = "\r\u{1b}[K";

#[test]
fn all_published_results_fit_a_terminal_and_progress_is_told_before() {
    let Some(shown) = terminal(60, "reproduce all", "1") else {
        return;
    };
    // Progress is cleared before the results come. They take longer than the second in which it is silent.
    let (progress, text) = shown.rsplit_once(CLEAR).expect("progress");
    let lines: Vec<&str> = progress.split(CLEAR).filter(|line| !line.is_empty()).collect();
    for line in &lines {
        let words: Vec<&str> = line.split(", ").collect();
        let [steps, percent, rate, left] = words.as_slice() else {
            panic!("{line:?}");
        };
        let done: u64 = steps.strip_suffix(" of 6").unwrap().parse().unwrap();
        assert_eq!(*percent, format!("{} %", done * 100 / 6));
        assert!(rate.ends_with("/s") && left.ends_with(" left"), "{line:?}");
    }
    assert!(!lines.is_empty(), "{shown}");
    assert!(text.lines().all(|line| width(line) <= 60), "{text}");
    let (first, rest) = text.split_once("\n\n").unwrap();
    assert!(first.contains("6 published results") && !rest.contains("FAIL"), "{first}");
}

#[test]
fn pipes_are_coloured_only_if_that_is_forced() {
    let (text, _) = piped("explain");
    assert!(!text.contains('\u{1b}'), "{text:?}");
    let run = format!("CLICOLOR_FORCE=1 '{PROGRAM}' explain");
    let forced = Command::new("sh").args(["-c", &run]).output().unwrap();
    let forced = String::from_utf8(forced.stdout).unwrap();
    assert!(forced != text && bare(&forced) == text);
}

fn scratch(name: &str, content: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).unwrap();
    path
}

/// Nothing that a terminal obeys but line ends.
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
