//! `portolan compare`: two traces, two machines, and refusals.

use std::process::{Command, Output};

use serde_json::Value;

const TRACES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/traces");
const FEW: [&str; 4] = ["--policy", "strict-range", "--policy", "lazy"];

fn compare(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
    command.arg("compare").args(FEW).args(args).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = compare(&[args, &["--json"]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn trace(name: &str) -> String {
    format!("{TRACES}/{name}.trace.xz")
}

#[test]
fn two_machines_for_one_trace() {
    let read = trace("viommu-strict.read4k-1j");
    let machines = ["--machine", "grace", "--machine", "xeon-vtd"];
    let two = json(&[&[read.as_str()], &machines[..]].concat());
    assert_eq!((&two["a"]["machine"], &two["b"]["machine"]), (&"grace".into(), &"xeon-vtd".into()));
    assert_eq!(two["measure"], "total");
    // Each half is the output of a replay alone.
    for (half, machine) in [("a", "grace"), ("b", "xeon-vtd")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
        command.arg("replay").args(FEW).args([&read, "--json", "--machine", machine]);
        let alone: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
        assert_eq!(two[half], alone);
    }
    let text = compare(&[&[read.as_str()], &machines[..]].concat());
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("Both did the same amount of work, 5,000 maps of 19.5 MiB"), "{text}");
    for row in ["strict-range A *", "strict-range B ", "  B - A", "  B / A"] {
        assert!(text.lines().any(|line| line.starts_with(row)), "{row}: {text}");
    }
    // Below the two names, which are as long as paths are.
    let (_, below) = text
        .split_once(
            "

",
        )
        .unwrap();
    assert!(below.lines().all(|line| line.chars().count() <= 80), "{text}");
    let bundled = json(&machines);
    assert!(bundled["a"]["trace"]["source"].as_str().unwrap().starts_with("bundled"));
}

#[test]
fn two_traces_are_measured_alike_and_one_is_equal_to_itself() {
    let (read, lists) = (trace("viommu-strict.read4k-1j"), trace("vtd-strict.read1m-sg"));
    let two = json(&[&read, &lists]);
    assert_eq!(two["measure"], "mib");
    let back = json(&[&lists, &read]);
    let figures = |two: &Value| two["policies"][0]["figures"].as_array().unwrap().clone();
    for (there, back) in figures(&two).iter().zip(&figures(&back)) {
        assert_eq!((&there["a"], &there["b"]), (&back["b"], &back["a"]));
        let difference = |one: &Value| one["difference"].as_f64().unwrap();
        assert_eq!(difference(there), -difference(back));
    }
    let text = String::from_utf8(compare(&[&read, &lists]).stdout)
        .unwrap()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert!(text.contains("so what a MiB costs is compared"), "{text}");
    let same = compare(&[&read, &read]);
    let text = String::from_utf8(same.stdout).unwrap();
    assert!(text.contains("They cost the same under each policy, to the last figure."), "{text}");
}

#[test]
fn what_is_nothing_to_compare_is_refused() {
    let read = trace("viommu-strict.read4k-1j");
    for (wrong, word) in [
        (&[][..], "name a second trace"),
        (&[read.as_str()], "name a second trace"),
        (&[&read, "--machine", "grace"], "name a second trace"),
        (&["-", "-"], "standard input"),
        (&["-", "--machine", "grace", "--machine", "xeon-vtd"], "standard input"),
        (
            &[&read, &read, "--machine", "grace", "--machine", "grace", "--machine", "grace"],
            "two machines",
        ),
        (&[&read, &read, &read], "no more were expected"),
        (&[&read, "/nowhere/x.trace"], "/nowhere/x.trace"),
        (&[&read, "--machine", "grace", "--machine", "pdp11"], "pdp11"),
    ] {
        let output = compare(wrong);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {said}");
        assert!(output.stdout.is_empty() && said.contains(word), "{wrong:?}: {said}");
    }
}
