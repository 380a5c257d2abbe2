//! The built command: exit codes, JSON keys, messages.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn papers(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_portolan-papers")).args(args).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = papers(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn scratch(name: &str, content: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).unwrap();
    path
}

fn fails_with(args: &[&str], words: &[&str]) {
    let output = papers(args);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
    for word in words {
        assert!(message.contains(word), "{args:?}: `{word}` is not in: {message}");
    }
    assert!(output.stdout.is_empty());
}

#[test]
fn reproduce_json_has_the_agreed_keys_and_keeps_its_bounds() {
    for (name, machine) in [("walk-flush", "sm8150"), ("range-flush", "tegra210")] {
        let report = json(&["reproduce", name, "--json"]);
        assert_eq!((&report["name"], &report["machine"]), (&name.into(), &machine.into()));
        for row in report["rows"].as_array().unwrap() {
            assert!(row["case"].is_string() && row["variant"].is_string());
            assert!(row["size_bytes"].is_u64() && row["fitted"].is_boolean());
            assert_eq!(row["quantity"], "latency_us");
            let published = row["variant"] == "before" || row["variant"] == "after";
            assert_eq!(row["published"].is_null(), !published);
            assert!(row["computed"].as_f64().unwrap() > 0.0);
            for kind in ["page", "range", "context", "sync"] {
                assert!(row["counts"][kind].is_u64());
            }
        }
        let bounds = report["bounds"].as_array().unwrap();
        assert!(!bounds.is_empty());
        for bound in bounds {
            assert_eq!(bound["holds"], true, "{bound}");
            for key in ["limit_pct", "worst_pct", "mechanism_off_pct", "trivial_pct"] {
                assert!(bound[key].is_number(), "{key}: {bound}");
            }
            for key in ["what", "mechanism", "trivial", "evidence"] {
                assert!(bound[key].is_string(), "{key}: {bound}");
            }
        }
    }
}

#[test]
fn range_flush_says_which_registers_were_written() {
    let report = json(&["reproduce", "range-flush", "--json"]);
    for row in report["rows"].as_array().unwrap() {
        let of = |kind: &str| row["registers"][kind].as_u64().unwrap();
        let kinds = [
            "ptc_flush_all",
            "ptc_flush_hi",
            "ptc_flush_line",
            "tlb_flush_asid",
            "tlb_flush_section",
            "tlb_flush_group",
        ];
        let sum: u64 = kinds.into_iter().map(of).sum();
        // Giving an address space up also takes its device off it.
        let other = if row["case"] == "tear-down" { 3 } else { 0 };
        assert_eq!(of("writes"), sum + other, "{row}");
        let pages = row["size_bytes"].as_u64().unwrap() / 4096;
        match row["variant"].as_str() {
            // Two writes for a line and one for a group, and a line of the directory for each table.
            Some("before" | "lines-batched") => {
                assert_eq!((of("read_backs"), of("tlb_flush_group")), (pages, pages));
                let tables = if row["case"] == "map" { pages.div_ceil(1024) } else { 0 };
                assert_eq!(of("ptc_flush_line"), pages + tables, "{row}");
            }
            _ => {
                assert_eq!(of("read_backs"), 1, "{row}");
                assert!(of("writes") <= 8, "{row}");
            }
        }
    }
    let text = String::from_utf8(papers(&["reproduce", "range-flush"]).stdout).unwrap();
    assert!(text.contains("Registers that the driver wrote"));
}

#[test]
fn a_camera_is_replayed_on_tegra_and_qualcomm_s() {
    let report = json(&["synthetic", "camera", "--json"]);
    assert_eq!(report["machine"], "tegra210");
    let ways = report["ways"].as_array().unwrap();
    let share = |n: usize| ways[n]["unmap"]["worst_frame_pct"].as_f64().unwrap();
    assert!(share(0) > 10.0 && share(1) < 1.0 && share(2) < share(1));
    let text = papers(&["synthetic", "camera", "--machine", "tegra210"]);
    assert_eq!(text.status.code(), Some(0));
    let phone = json(&["synthetic", "camera", "--machine", "sm8150", "--json"]);
    assert_eq!(phone["ways"].as_array().unwrap().len(), 6);
    assert!(phone["waits"]["wait_us"][0].as_f64().unwrap() > 2.0);
    let text = papers(&["synthetic", "camera", "--machine", "sm8150"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("No number of calls") && text.contains("Look-ups go on"), "{text}");
    for wrong in [
        &["synthetic", "camera", "some.trace"][..],
        &["synthetic", "camera", "--policy", "lazy"],
        &["synthetic", "camera", "--machine", "xeon-vtd"],
        &["synthetic", "microphone"],
    ] {
        let refused = papers(wrong);
        assert_eq!(refused.status.code(), Some(2), "{wrong:?}");
        assert!(!refused.stderr.is_empty());
    }
}

#[test]
fn flush_queue_has_the_agreed_keys() {
    let report = json(&["reproduce", "flush-queue", "--json"]);
    assert_eq!((&report["name"], &report["machine"]), (&"flush-queue".into(), &"spr-vm".into()));
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    for row in rows {
        assert_eq!(row["quantity"], "throughput_gbit_s");
        assert!(row["computed"].is_f64() && row["fitted"].is_boolean(), "{row}");
        assert_eq!(row["published"].is_null(), row["stage"] == "second");
        assert!(row["counts"]["sync"].is_u64() && row["exits"].is_u64(), "{row}");
    }
    let text = String::from_utf8(papers(&["reproduce", "flush-queue"]).stdout).unwrap();
    assert!(text.contains("39.3") && text.contains("caching-mode"), "{text}");
}

#[test]
fn wrong_input_exits_with_2_and_says_what_to_do() {
    fails_with(&["reproduce", "cold-fusion"], &["cold-fusion", "walk-flush"]);
    fails_with(&["scale", "--machine", "pdp11"], &["pdp11", "xeon-vtd", "portolan machines"]);
    fails_with(&["frobnicate"], &["frobnicate"]);
    fails_with(&[], &["reproduce", "scale", "synthetic"]);
}

#[test]
fn a_file_serves_wherever_a_machine_is_named() {
    let text = include_str!("../../../data/machines/grace.toml");
    let mine = text.replace("name = \"grace\"", "name = \"mine\"");
    let file = scratch("mine.toml", &mine);
    let rows = |machine: &str| {
        let scale = ["scale", "--machine", machine, "--cpus", "2", "--horizon", "1", "--json"];
        json(&scale)["rows"].clone()
    };
    assert_eq!(rows(file.to_str().unwrap()), rows("grace"));
    let tegra = include_str!("../../../data/machines/tegra210.toml");
    let file = scratch("tegra.toml", tegra);
    let camera = |machine: &str| papers(&["synthetic", "camera", "--machine", machine]).stdout;
    assert_eq!(camera(file.to_str().unwrap()), camera("tegra210"));
}
