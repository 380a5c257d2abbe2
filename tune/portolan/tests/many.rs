//! `portolan replay` of many traces: lines, tables, one object, and traces that cannot be replayed.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const TRACES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/traces");
/// Policies that make these tests short.
const FEW: [&str; 4] = ["--policy", "strict-range", "--policy", "lazy"];

fn portolan(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
    command.arg("replay").args(FEW).args(args).output().unwrap()
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn source(line: &Value) -> String {
    line["trace"]["source"].as_str().unwrap().to_owned()
}

/// Lines in the order of their sources.
fn sorted(output: &Output) -> Vec<Value> {
    let mut lines = lines(output);
    lines.sort_by_key(source);
    lines
}

fn trace(name: &str) -> String {
    format!("{TRACES}/{name}.trace.xz")
}

/// A folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("many-{name}"));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// A folder with two traces, one of them below, one file that is no trace, and others that are not looked at.
fn mixed(name: &str) -> PathBuf {
    let path = folder(name);
    std::fs::create_dir(path.join("below")).unwrap();
    std::fs::copy(trace("vtd-strict.boot"), path.join("boot.trace.xz")).unwrap();
    std::fs::copy(trace("viommu-strict.read4k-1j"), path.join("below/read.trace.xz")).unwrap();
    std::fs::write(path.join("broken.trace"), "no trace at all\n").unwrap();
    std::fs::write(path.join("notes.md"), "no trace either\n").unwrap();
    path
}

#[test]
fn a_line_is_what_a_replay_of_the_trace_alone_prints() {
    let names = ["vtd-strict.boot", "viommu-strict.read4k-1j", "vtd-strict.net-tx"].map(trace);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let many = portolan(&[&["--ndjson"], &names[..]].concat());
    assert_eq!(many.status.code(), Some(0));
    let many = lines(&many);
    assert_eq!(many.len(), 3);
    for name in names {
        let mut alone: Value = serde_json::from_slice(&portolan(&[name, "--json"]).stdout).unwrap();
        // But for each policy's timeline, which would be most of a line.
        for policy in alone["policies"].as_array_mut().unwrap() {
            assert!(policy.as_object_mut().unwrap().remove("timeline").is_some());
        }
        assert!(alone.as_object_mut().unwrap().remove("recorded").is_some());
        let line = many.iter().find(|line| source(line) == name).unwrap();
        let mut same = line.as_object().unwrap().clone();
        let load = same.remove("load").unwrap();
        let devices = same.remove("by_device").unwrap();
        assert_eq!(same.remove("kernel"), Some(Value::Null));
        assert_eq!(Value::Object(same), alone);
        assert!(load.as_str().unwrap().contains("KiB"), "{load}");
        assert_eq!(devices[0]["device"], alone["trace"]["devices"][0]);
        let one = portolan(&[name, "--ndjson"]);
        assert_eq!(lines(&one), std::slice::from_ref(line));
    }
    let bundled = lines(&portolan(&["--ndjson"]));
    assert!(source(&bundled[0]).starts_with("bundled trace"));
}

#[test]
fn a_bad_trace_is_told_and_costs_the_others_nothing() {
    let path = mixed("bad");
    let folder = path.to_str().unwrap();
    let at = |file: &str| path.join(file).display().to_string();
    let output = portolan(&[folder, &at("missing.trace"), "--ndjson"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines = sorted(&output);
    let sources: Vec<_> = lines.iter().map(source).collect();
    let expected =
        [at("below/read.trace.xz"), at("boot.trace.xz"), at("broken.trace"), at("missing.trace")];
    assert_eq!(sources, expected);
    for (line, good) in lines.iter().zip([true, true, false, false]) {
        assert_eq!(line["policies"].is_array(), good, "{line}");
        assert_eq!(line["error"].is_string(), !good, "{line}");
        assert_eq!(said.contains(&format!("portolan: {}: ", source(line))), !good, "{said}");
    }
    assert!(said.contains("2 traces could not be replayed"), "{said}");
    // One alone has its line too.
    let alone = portolan(&[&at("missing.trace"), "--ndjson"]);
    assert_eq!((alone.status.code(), self::lines(&alone).len()), (Some(2), 1));
}

#[test]
fn tables_and_the_one_object_hold_what_could_be_replayed() {
    let path = mixed("forms");
    let folder = path.to_str().unwrap();
    let text = portolan(&[folder]);
    assert_eq!(text.status.code(), Some(2));
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.starts_with("2 traces replayed on machine xeon-vtd: 5,014 maps"), "{text}");
    assert!(text.contains("1 could not be:") && text.contains("broken.trace."), "{text}");
    for head in ["trace", "machine", "device", "load"] {
        assert!(text.lines().any(|line| line.starts_with(&format!("{head} "))), "{head}: {text}");
    }
    assert!(text.lines().skip(4).all(|line| line.chars().count() <= 80), "{text}");
    let wide = portolan(&[folder, "--wide"]).stdout;
    assert!(!String::from_utf8(wide).unwrap().contains("Left out"));
    let object: Value = serde_json::from_slice(&portolan(&[folder, "--json"]).stdout).unwrap();
    let traces: Vec<_> = object["traces"].as_array().unwrap().iter().map(source).collect();
    let at = |file: &str| path.join(file).display().to_string();
    assert_eq!(traces, ["below/read.trace.xz", "boot.trace.xz", "broken.trace"].map(at));
    let sum = &object["aggregate"];
    assert_eq!((&sum["all"]["traces"], &sum["all"]["maps"]), (&2.into(), &5014.into()));
    assert_eq!(sum["failed"].as_array().unwrap().len(), 1);
    for by in ["by_machine", "by_device", "by_load"] {
        assert!(!sum[by].as_array().unwrap().is_empty(), "{by}");
    }
    // Streamed results add up to the same, in any order.
    let streamed = String::from_utf8(portolan(&[folder, "--ndjson"]).stdout).unwrap();
    let mut streamed: Vec<_> = streamed.lines().collect();
    streamed.reverse();
    let results = path.join("results.ndjson");
    std::fs::write(&results, streamed.join("\n")).unwrap();
    let again = portolan(&["--results", results.to_str().unwrap(), "--json"]);
    assert_eq!(again.status.code(), Some(2));
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(again["aggregate"], *sum);
}

#[test]
fn the_order_of_arguments_changes_no_sum() {
    let names = ["vtd-strict.boot", "viommu-strict.read4k-1j", "vtd-strict.net-tx"].map(trace);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let reversed: Vec<&str> = names.iter().rev().copied().collect();
    let sum = |names: &[&str]| -> Value {
        let output = portolan(&[&["--json"], names].concat());
        let whole: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(source(&whole["traces"][0]), names[0]);
        whole["aggregate"].clone()
    };
    assert_eq!(sum(&names), sum(&reversed));
}

#[test]
fn a_trace_that_is_named_twice_counts_once() {
    let path = mixed("twice");
    let (folder, boot) = (path.to_str().unwrap(), path.join("boot.trace.xz"));
    let boot = boot.to_str().unwrap();
    std::fs::remove_file(path.join("broken.trace")).unwrap();
    let output = portolan(&[boot, boot, folder, "--ndjson"]);
    assert_eq!((output.status.code(), lines(&output).len()), (Some(0), 2));
}

#[test]
fn an_empty_folder_and_one_that_cannot_be_read_are_told() {
    let path = folder("empty");
    let empty = path.to_str().unwrap();
    let output = portolan(&[empty, "--ndjson"]);
    assert_eq!(output.status.code(), Some(2));
    let [line] = &lines(&output)[..] else { panic!("one line") };
    assert_eq!(source(line), empty);
    assert!(line["error"].as_str().unwrap().contains("no trace is in the folder"), "{line}");
    // The tables say the same, and the other trace is replayed.
    let boot = trace("vtd-strict.boot");
    let text = portolan(&[empty, &boot]);
    assert_eq!(text.status.code(), Some(2));
    assert!(String::from_utf8(text.stdout).unwrap().starts_with("1 trace replayed"));
}

#[test]
fn a_file_that_cannot_be_read_is_told() {
    use std::os::unix::fs::PermissionsExt;
    let path = mixed("locked");
    let locked = path.join("boot.trace.xz");
    std::fs::set_permissions(&locked, PermissionsExt::from_mode(0o000)).unwrap();
    if std::fs::read(&locked).is_ok() {
        println!("SKIP: root reads files without permissions; a file that is a folder instead");
        std::fs::remove_file(&locked).unwrap();
        std::os::unix::fs::symlink("/nowhere/x", &locked).unwrap();
    }
    let output = portolan(&[locked.to_str().unwrap(), path.to_str().unwrap(), "--ndjson"]);
    assert_eq!(output.status.code(), Some(2));
    let found = lines(&output);
    let bad = found.iter().find(|line| source(line) == locked.display().to_string());
    assert!(bad.unwrap()["error"].as_str().unwrap().contains("cannot read"), "{found:?}");
    assert!(found.iter().any(|line| line["policies"].is_array()));
}

#[test]
fn standard_input_is_one_of_many() {
    let boot = trace("vtd-strict.boot");
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
    command.arg("replay").args(FEW).args(["-", &boot, "-", "--ndjson"]);
    command.stdin(std::fs::File::open(trace("viommu-strict.read4k-1j")).unwrap());
    let output = command.output().unwrap();
    let sources: Vec<_> = sorted(&output).iter().map(source).collect();
    assert_eq!((output.status.code(), sources), (Some(0), vec![boot, "standard input".to_owned()]));
}

#[test]
fn a_pipe_that_is_closed_ends_the_work_early_and_is_no_error() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
    command.arg("replay").args(FEW);
    // The last one would be told; a pipe has no room for the lines before it.
    command.args([TRACES, "/nowhere/last", "--ndjson"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    out.read_line(&mut first).unwrap();
    assert!(serde_json::from_str::<Value>(&first).unwrap()["policies"].is_array());
    assert!(first.len() * 20 > 1 << 16, "{} bytes", first.len());
    drop(out);
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{said}");
    // Traces that were begun are still finished.
    match std::thread::available_parallelism().map_or(1, usize::from) {
        0..20 => assert!(!said.contains("/nowhere/last"), "{said}"),
        cpus => {
            println!("SKIP: {cpus} CPUs begin all traces at once, so none is left to be left alone")
        }
    }
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn warnings_name_their_trace() {
    let odd = trace("vtd-strict-ats.net-rx");
    let output = portolan(&[&odd, &trace("vtd-strict.boot"), "--ndjson"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(&format!("warning: {odd}: unmaps without a map")), "{said}");
}

#[test]
fn each_trace_chooses_its_machine_unless_one_is_named() {
    let path = folder("facts");
    let facts = concat!(
        r##"# portolan-facts: {"release":"6.12","cpus":2,"iommus":[{"name":"smmu3.0","kind":"smmu-v3","devices":1}],"##,
        r##""devices":[{"name":"0000:00:01.0","group":1,"id":"1b36:0010","driver":"nvme"}]}"##
    );
    let event = |name, more: &str| {
        format!(
            " a-1 [000] d.... 1.000000: {name}: 0000:00:01.0 dir=TO_DEVICE dma_addr=1000 size=4096 {more}attrs="
        )
    };
    let events = [event("dma_map_page", "phys_addr=1000 "), event("dma_unmap_page", "")].join("\n");
    std::fs::write(path.join("arm.trace"), format!("{facts}\n{events}\n# portolan-end: {{}}\n"))
        .unwrap();
    std::fs::write(path.join("other.trace"), events).unwrap();
    let of = |more: &[&str]| {
        let output = portolan(&[&[path.to_str().unwrap(), "--json"], more].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let whole = of(&[]);
    let machines = |whole: &Value| -> Vec<String> {
        let groups = whole["aggregate"]["by_machine"].as_array().unwrap();
        groups.iter().map(|g| g["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(machines(&whole), ["grace", "xeon-vtd"]);
    let devices = whole["aggregate"]["by_device"].as_array().unwrap();
    let devices: Vec<_> = devices.iter().map(|group| group["name"].as_str().unwrap()).collect();
    assert_eq!(devices, ["0000:00:01.0", "nvme 1b36:0010"]);
    assert_eq!(whole["aggregate"]["by_load"][0]["name"], "up to 4 KiB, to device");
    assert_eq!(machines(&of(&["--machine", "kunpeng920"])), ["kunpeng920"]);
}

#[test]
fn groups_and_spreadsheets_come_of_traces_and_of_results() {
    let path = mixed("csv");
    let folder = path.to_str().unwrap();
    let csv = |args: &[&str]| {
        let output = portolan(args);
        assert_eq!(output.status.code(), Some(2), "one trace is broken: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let traces = csv(&[folder, "--csv"]);
    let heads: Vec<_> = traces.lines().map(|line| line.split(',').next().unwrap()).collect();
    assert_eq!((heads.len(), heads[0]), (4, "trace"), "{traces}");
    assert!(heads[3].ends_with("broken.trace"), "{traces}");
    let groups = csv(&[folder, "--csv", "--group-by", "kernel"]);
    assert!(groups.lines().nth(1).unwrap().starts_with("unknown,2,2,5014,"), "{groups}");
    let results = path.join("results.ndjson");
    std::fs::write(&results, portolan(&[folder, "--ndjson"]).stdout).unwrap();
    assert_eq!(csv(&["--results", results.to_str().unwrap(), "--csv"]), traces);
    let text = csv(&[folder, "--group-by", "policy"]);
    let table: Vec<_> = text.lines().skip_while(|line| !line.starts_with("policy ")).collect();
    assert!(table[0].contains("median") && table[2].starts_with("strict "), "{text}");
    assert!(!text.lines().any(|line| line.starts_with("load ")), "{text}");
    assert!(text.lines().skip(4).all(|line| line.chars().count() <= 80), "{text}");
    let object: Value =
        serde_json::from_str(&csv(&[folder, "--group-by", "driver", "--json"])).unwrap();
    let grouped = &object["aggregate"]["grouped"];
    assert_eq!(
        (&grouped["by"], &grouped["groups"][0]["name"]),
        (&"driver".into(), &"unknown".into())
    );
}

#[test]
fn options_that_exclude_each_other_are_refused() {
    for wrong in [
        &["--ndjson", "--json"][..],
        &["--csv", "--json"],
        &["--ndjson", "--group-by", "kernel"],
        &["--group-by", "weather"],
        &["--results", "/nowhere/x.ndjson"],
        &["a.trace", "b.trace", "--machine", "pdp11"],
    ] {
        let output = portolan(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
}
