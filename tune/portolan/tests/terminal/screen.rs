//! A built command (`PROGRAM` of the parent) on terminals of util-linux's `script`; without it SKIP. Tests of other
//! crates include it by `#[path]`.

use std::process::Command;

use super::PROGRAM;
use super::fits::fits;

/// Folder in which commands are run.
const TRACES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/traces");

/// Screen of a terminal of `columns`, as `script` shows it; progress and warnings too.
pub fn terminal(columns: usize, arguments: &str, no_color: &str) -> Option<String> {
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

/// Output and errors of a command without a terminal.
pub fn piped(arguments: &str) -> (String, String) {
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
pub fn bare(text: &str) -> String {
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

/// Runs a command on three terminals, and compares its text with the output of `--wide`.
pub fn fits_terminals(arguments: &str) {
    let of = |flag: &str| {
        if arguments.starts_with("2>") {
            format!("replay {flag} {arguments}")
        } else {
            arguments.replacen(" 2>", &format!(" {flag} 2>"), 1)
        }
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
