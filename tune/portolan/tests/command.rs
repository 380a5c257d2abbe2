//! The built command: exit codes, JSON keys, determinism, messages.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn portolan(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_portolan")).args(args).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = portolan(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn scratch(name: &str, content: &[u8]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).unwrap();
    path
}

fn fails_with(args: &[&str], words: &[&str]) {
    let output = portolan(args);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
    for word in words {
        assert!(message.contains(word), "{args:?}: `{word}` is not in: {message}");
    }
    assert!(output.stdout.is_empty());
}

#[test]
fn plain_call_replays_the_bundled_trace_the_same_each_time() {
    let first = portolan(&[]);
    assert_eq!(first.status.code(), Some(0));
    let text = String::from_utf8(first.stdout.clone()).unwrap();
    for word in ["vtd-strict.mixed-sg-4j", "strict-page", "strict-range", "strict-context", "lazy"]
    {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert_eq!(portolan(&["replay"]).stdout, first.stdout);
    assert_eq!(portolan(&["replay", "--json"]).stdout, portolan(&["replay", "--json"]).stdout);
}

#[test]
fn the_readme_shows_what_the_first_command_prints() {
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let mut blocks = readme.split("```text\n");
    let shown = blocks
        .find(|block| block.starts_with("What it costs"))
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let printed = String::from_utf8(portolan(&[]).stdout).unwrap();
    // All above the table, which follows after one more line.
    let above = printed.split("\nLinux, now").next().unwrap().to_owned() + "\n";
    assert!(shown == above, "README.md:\n{shown}\nprinted:\n{printed}");
}

/// Output of the first command on a terminal of `columns`; `None` without util-linux's `script`.
fn on_a_terminal(columns: usize) -> Option<String> {
    let program = env!("CARGO_BIN_EXE_portolan");
    // Progress is on the terminal too, while it lasts.
    let run = format!("stty cols {columns} rows 24 && '{program}' 2>/dev/null");
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command", &run, "/dev/null"])
        .env("NO_COLOR", "1")
        .output()
        .ok()?;
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8(output.stdout).unwrap().replace('\r', ""))
}

/// The words above the table of the policies: the answer, and the name of the replay.
fn words_above(text: &str) -> Vec<&str> {
    let paragraphs = text.split("\n\n");
    let sentences = paragraphs.take_while(|paragraph| !paragraph.contains("\n--"));
    sentences.flat_map(str::split_whitespace).collect()
}

/// Cells of the row of `policy` that the table has room for.
fn row(text: &str, policy: &str) -> Vec<String> {
    let mut table = text.lines().skip_while(|line| !line.starts_with("---"));
    // Columns are as wide as their dashes.
    let rule = table.next().unwrap();
    let row = table.find(|line| line.starts_with(policy)).unwrap();
    assert!(row.chars().count() <= rule.len(), "wider than the table: {row}");
    let mut rest = row.chars();
    let cell = |width: usize| {
        let cell: String = rest.by_ref().take(width + 1).collect();
        cell.trim().to_owned()
    };
    rule.split(' ').map(str::len).map(cell).collect()
}

#[test]
fn the_first_command_fits_terminals_and_says_the_same_on_each() {
    let wide = String::from_utf8(portolan(&["replay", "--wide"]).stdout).unwrap();
    let all = wide.lines().find(|line| line.starts_with("---")).unwrap().split(' ').count();
    for columns in [60, 80, 200] {
        let Some(text) = on_a_terminal(columns) else {
            println!("SKIP: no `script` (Debian: bsdutils), so no terminal of {columns} columns");
            continue;
        };
        for line in text.lines() {
            assert!(line.chars().count() <= columns, "{columns}: `{line}`");
        }
        assert_eq!(words_above(&text), words_above(&wide), "{columns}");
        for policy in ["strict-page", "strict-range", "lazy", "deferred"] {
            let (here, there) = (row(&text, policy), row(&wide, policy));
            assert!(here.iter().all(|cell| there.contains(cell)), "{here:?} {there:?}");
            assert_eq!(here.len() < all, columns != 200, "{columns}: {here:?}");
        }
        // Columns that are left out are named.
        assert_eq!(text.contains("Left out"), columns != 200, "{columns}");
        // Little more than a screen.
        assert!(columns != 80 || text.lines().count() < 32, "{text}");
    }
    // Nothing that the narrow ones have said is missing there.
    assert!(wide.contains("The line says: ") && wide.contains("lazy saves"), "{wide}");
    let piped = String::from_utf8(portolan(&[]).stdout).unwrap();
    assert!(piped.lines().all(|line| line.chars().count() <= 80), "{piped}");
}

#[test]
fn help_says_what_each_column_is() {
    let wide = String::from_utf8(portolan(&["replay", "--wide"]).stdout).unwrap();
    let help = String::from_utf8(portolan(&["replay", "--help"]).stdout).unwrap();
    let header = wide.lines().find(|line| line.starts_with("policy ")).unwrap();
    let names = header.split_whitespace();
    let count = names.clone().count();
    for name in names {
        assert!(help.contains(name), "{name}: {help}");
    }
    // Two words stand above one of the 17.
    assert_eq!(count, 18, "{header}");
}

#[test]
fn replay_json_has_the_agreed_keys() {
    let report = json(&["replay", "--json", "--policy", "lazy", "--policy", "strict-range"]);
    let trace = &report["trace"];
    let setting = &report["advice"][0];
    for key in ["rule", "where_to_set", "value", "reason"] {
        assert!(setting[key].is_string(), "{key}: {setting}");
    }
    assert!(setting["evidence"]["line"].is_u64() && setting["evidence"]["text"].is_string());
    assert!(setting["effect"]["saving"]["pct"].as_f64().unwrap() > 0.0);
    assert_eq!(report["situation"]["now"], "strict");
    for of in [&report["cost"], &report["cost"]["then"]] {
        for key in ["cpu_us_per_s", "low", "high", "ns_per_request"] {
            assert!(of[key].as_f64().unwrap() > 0.0, "{key}: {of}");
        }
    }
    for key in ["events_pct", "bytes_pct"] {
        assert_eq!(trace["understood"][key], 100.0, "{key}");
    }
    assert!(report["shape"]["streaming"]["sizes"].is_object());
    for key in
        ["events", "maps", "unmaps", "bytes_mapped", "orphan_unmaps", "lost_events", "bad_lines"]
    {
        assert!(trace[key].is_u64(), "{key}: {trace}");
    }
    assert_eq!(report["machine"], "xeon-vtd");
    let policies = report["policies"].as_array().unwrap();
    let names: Vec<_> = policies.iter().map(|p| p["policy"].as_str().unwrap()).collect();
    assert_eq!(names, ["lazy", "strict-range"]);
    for policy in policies {
        for kind in ["page", "range", "context", "global"] {
            assert!(policy["invalidations"][kind].is_u64());
        }
        assert!(policy["syncs"].is_u64());
        let time = |cause: &str| policy["time_us"][cause].as_f64().unwrap();
        assert!(time("cpu") > 0.0);
        assert!((time("cpu") + time("device_stall") - time("total")).abs() < 1e-6);
        assert!(policy["exposed"]["max_bytes"].is_u64());
        assert!(policy["exposed"]["max_us"].as_f64().unwrap() > 0.0);
        assert!(policy["table_pages_peak"].as_u64().unwrap() > 1);
    }
}

#[test]
fn machines_are_listed_with_sources() {
    let report = json(&["machines", "--json"]);
    let machines = report["machines"].as_array().unwrap();
    for name in ["sm8150", "tegra210", "xeon-vtd"] {
        let machine = machines.iter().find(|m| m["name"] == name).unwrap();
        for price in machine["prices"].as_object().unwrap().values() {
            assert!(price["ns"].is_number() && !price["source"].as_str().unwrap().is_empty());
        }
    }
    let text = String::from_utf8(portolan(&["machines"]).stdout).unwrap();
    assert!(text.contains("sm8150") && text.contains("`portolan machines NAME`"));
    let text = String::from_utf8(portolan(&["machines", "sm8150"]).stdout).unwrap();
    assert!(
        text.contains("unmap_call_tables") && text.contains("source") && text.contains("fitted:")
    );
    let report = json(&["machines", "sm8150", "--json"]);
    assert_eq!(report["machines"].as_array().unwrap().len(), 1);
    fails_with(&["machines", "pdp11"], &["pdp11", "xeon-vtd"]);
}

#[test]
fn every_machine_replays() {
    let report = json(&["machines", "--json"]);
    for machine in report["machines"].as_array().unwrap() {
        let name = machine["name"].as_str().unwrap();
        let report = json(&["replay", "--json", "--machine", name]);
        for policy in report["policies"].as_array().unwrap() {
            assert_eq!(policy["device"]["faults"], 0, "{name}");
            assert_eq!(policy["rejected_maps"], 0, "{name}");
        }
    }
}

#[test]
fn wrong_input_exits_with_2_and_says_what_to_do() {
    fails_with(&["replay", "--machine", "pdp11"], &["pdp11", "xeon-vtd", "portolan machines"]);
    fails_with(&["replay", "--policy", "loose"], &["loose", "strict-range"]);
    fails_with(&["replay", "--swiotlb", "1024"], &["--policy bounce"]);
    let bounce = ["replay", "--policy", "bounce", "--swiotlb"];
    fails_with(&[&bounce[..], &["1024,often"]].concat(), &["often"]);
    fails_with(&[&bounce[..], &["100"]].concat(), &["areas of 64 slots"]);
    fails_with(&["replay", "/nonexistent/trace"], &["/nonexistent/trace"]);
    fails_with(&["frobnicate"], &["frobnicate"]);
    let empty = scratch("empty.trace", b"");
    fails_with(&["replay", empty.to_str().unwrap()], &["empty"]);
    let binary = scratch("binary.trace", &[0, 1, 2, 3, 255, 254, 7, 7, 7, 0, 0, 0]);
    fails_with(&["replay", binary.to_str().unwrap()], &["binary"]);
}

#[test]
fn commands_that_are_programs_of_their_own_are_named() {
    for (args, words) in [
        (
            &["check", "--backend", "qemu:vtd", "--json"][..],
            "cargo run --release -p portolan-verify -- check --backend qemu:vtd --json`",
        ),
        (&["torture", "--help"], "cargo run --release -p portolan-verify -- torture --help`"),
        (&["bench", "map_sg"], "cargo run --profile bench -p portolan-bench -- map_sg`"),
        (
            &["reproduce", "all", "--json"],
            "cargo run --release -p portolan-papers -- reproduce all --json`",
        ),
        (&["scale", "--help"], "cargo run --release -p portolan-papers -- scale --help`"),
        (
            &["replay", "--synthetic", "camera", "--machine", "sm8150"],
            "cargo run --release -p portolan-papers -- synthetic camera --machine sm8150`",
        ),
    ] {
        fails_with(args, &[words]);
    }
    let help = String::from_utf8(portolan(&["--help"]).stdout).unwrap();
    assert!(help.contains("cargo run --release -p portolan-verify -- check"));
}

#[test]
fn linux_is_counted_beside_the_policies_when_asked_for() {
    let report = json(&["replay", "--json", "--policy", "strict-range", "--as-linux", "strict"]);
    let (ours, linux) = (&report["policies"][0], &report["linux"]);
    assert_eq!(linux["policy"], "strict");
    assert_eq!(linux["invalidations"], ours["invalidations"]);
    assert_eq!(linux["masks"], ours["masks"]);
    assert_eq!(linux["domains"].as_array().unwrap().len(), 1);
    // Lazy if nothing is said, and strict where tables are shadowed.
    let lazy = json(&["replay", "--json", "--policy", "lazy", "--as-linux"]);
    assert_eq!(lazy["linux"]["policy"], "lazy");
    let shadowed = ["replay", "--json", "--policy", "lazy", "--as-linux", "--caching-mode", "on"];
    let shadowed = json(&shadowed);
    assert_eq!(shadowed["linux"]["policy"], "strict");
    assert_eq!(shadowed["linux"]["invalidations"]["range"], 7512);
    let text = portolan(&["replay", "--as-linux", "strict"]).stdout;
    assert!(String::from_utf8(text).unwrap().contains("Linux if strict"));
    assert!(json(&["replay", "--json", "--policy", "lazy"])["linux"].is_null());
}

#[test]
fn linux_is_refused_where_its_rules_are_not_known() {
    fails_with(&["replay", "--machine", "grace", "--as-linux"], &["VT-d", "grace"]);
    fails_with(&["replay", "--as-linux", "loose"], &["loose", "strict", "lazy"]);
    fails_with(&["replay", "--caching-mode", "on"], &["--as-linux"]);
}

#[test]
fn explain_says_the_policy_and_why() {
    let one = json(&["explain", "--machine", "spr-vm", "--json"]);
    let machine = &one["machines"][0];
    assert_eq!(machine["machine"], "spr-vm");
    let decisions = machine["decisions"].as_array().unwrap();
    assert_eq!(decisions.len(), 6);
    for decision in decisions {
        assert!(decision["reason"].as_str().unwrap().ends_with('.'));
    }
    assert!(one["table"].is_null());
    let all = json(&["explain", "--all", "--json"]);
    assert_eq!(all["table"].as_array().unwrap().len(), 384);
    let text = String::from_utf8(portolan(&["explain", "--all"]).stdout).unwrap();
    assert!(
        text.contains("xeon-vtd: strict by default") && text.contains("caching-mode"),
        "{text}"
    );
    fails_with(&["explain", "--machine", "nosuch"], &["nosuch", "spr-vm"]);
}
