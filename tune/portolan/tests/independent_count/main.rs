//! Every counter of a replay of every bundled trace, against a second reader that shares no code but that which
//! unpacks the file, whose checksum vouches for that.
#![allow(missing_docs)]

mod count;

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::count::{Counts, count};
use portolan_tune::trace;
use serde_json::Value;

/// The traces that come with the program.
fn traces() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/traces");
    let files = fs::read_dir(folder).expect("the folder of traces");
    let mut traces: Vec<PathBuf> = files
        .map(|file| file.expect("a file").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "xz"))
        .collect();
    traces.sort();
    traces
}

/// Counts of the naive reader for a trace.
fn expected(path: &Path) -> Counts {
    let file = fs::File::open(path).expect("a bundled trace");
    let mut text = String::new();
    let mut reader = trace::open_bytes(Box::new(file)).expect("a bundled trace");
    reader.read_to_string(&mut text).expect("text in xz");
    count(&text).unwrap_or_else(|error| panic!("{}: {error:?}", path.display()))
}

/// Report of the command on it.
fn replayed(path: &Path) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_portolan"))
        .arg("replay")
        .arg(path)
        .args(["--machine", "xeon-vtd", "--json"])
        .args(["--policy", "strict-page", "--policy", "strict-range"])
        .args(["--policy", "strict-context"])
        .output()
        .expect("the command runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", path.display());
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[track_caller]
fn number(object: &Value, key: &str) -> u64 {
    let found = object[key].as_u64();
    found.unwrap_or_else(|| panic!("no number `{key}` in {object}"))
}

/// Syncs, and invalidations by page, range, context and of everything.
type Cost = [u64; 5];

fn cost(policy: &Value) -> Cost {
    let by = |kind| number(&policy["invalidations"], kind);
    let kinds = [by("page"), by("range"), by("context"), by("global")];
    [number(policy, "syncs"), kinds[0], kinds[1], kinds[2], kinds[3]]
}

fn compare(path: &Path) {
    let (wanted, found) = (expected(path), replayed(path));
    let name = path.display();
    let trace = &found["trace"];
    for (key, value) in [
        ("events", wanted.events),
        ("maps", wanted.maps),
        ("unmaps", wanted.unmaps),
        ("bytes_mapped", wanted.bytes_mapped),
        ("orphan_unmaps", wanted.orphan_unmaps),
        ("coherent_allocs", wanted.coherent_allocs),
        ("coherent_frees", wanted.coherent_frees),
        ("left_mapped", wanted.left_mapped),
        ("lost_events", 0),
        ("bad_lines", 0),
        ("truncated_lists", 0),
        ("rejected_maps", 0),
    ] {
        assert_eq!(number(trace, key), value, "{name}: {key}");
    }
    let ends = wanted.unmaps + wanted.coherent_frees;
    assert_eq!(wanted.syncs, ends);
    let costs: BTreeMap<&str, Cost> = BTreeMap::from([
        ("strict-page", [ends, wanted.page_commands, 0, 0, 0]),
        ("strict-range", [ends, 0, wanted.range_commands(), 0, 0]),
        ("strict-context", [ends, 0, 0, ends, 0]),
    ]);
    let policies = found["policies"].as_array().expect("a list of policies");
    assert_eq!(policies.len(), costs.len(), "{name}");
    for policy in policies {
        let which = policy["policy"].as_str().expect("the name of a policy");
        assert_eq!(Some(&cost(policy)), costs.get(which), "{name}: {which}");
        let operations = wanted.maps + wanted.coherent_allocs + ends;
        assert_eq!(number(policy, "operations"), operations, "{name}: {which}");
        let masks: BTreeMap<u8, u64> =
            serde_json::from_value(policy["masks"].clone()).expect("commands by mask");
        let by_range = match which {
            "strict-range" => wanted.range_masks.clone(),
            _ => BTreeMap::new(),
        };
        assert_eq!(masks, by_range, "{name}: {which}, by mask");
    }
}

/// Compares every second trace from `start`: one test for each of two cores.
fn compare_every(start: usize) {
    let all = traces();
    assert!(all.len() > 20, "the bundled traces are gone");
    for path in all.iter().skip(start).step_by(2) {
        compare(path);
    }
}

#[test]
fn every_second_bundled_trace_from_the_first() {
    compare_every(0);
}

#[test]
fn every_second_bundled_trace_from_the_second() {
    compare_every(1);
}
