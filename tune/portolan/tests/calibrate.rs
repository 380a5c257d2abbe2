//! `portolan calibrate` on latencies that a kernel recorded, and profiles in files.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const TRACES: [&str; 2] = [
    "../../data/latencies/vtd-strict.read4k.graph.xz",
    "../../data/latencies/vtd-strict.read32k.graph.xz",
];
const BOUNCED: &str = "../../data/latencies/swiotlb.read4k.graph.xz";
const RECORDED: &str = "../../data/traces/vtd-strict.read4k-1j.trace.xz";

fn portolan(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command.args(args).output().unwrap()
}

fn said(args: &[&str]) -> String {
    let output = portolan(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&said(args)).unwrap()
}

fn fails_with(args: &[&str], words: &[&str]) {
    let output = portolan(args);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
    for word in words {
        assert!(message.contains(word), "{args:?}: no `{word}` in {message}");
    }
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn scratch_with(name: &str, content: &[u8]) -> String {
    let path = scratch(name);
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Lines of both traces with `word` in them.
fn lines_with(word: &str) -> u64 {
    let texts = TRACES.map(|path| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let file = std::fs::File::open(path).unwrap();
        let mut text = String::new();
        let unpacked = portolan_tune::trace::open_bytes(Box::new(file));
        unpacked.unwrap().read_to_string(&mut text).unwrap();
        text
    });
    let lines = texts.iter().flat_map(|text| text.lines());
    lines.filter(|line| line.contains(word)).count() as u64
}

fn price(machine: &Value, event: &str) -> f64 {
    machine["machines"][0]["prices"][event]["ns"].as_f64().unwrap()
}

#[test]
fn a_recorded_machine_gets_prices_of_its_own_and_every_command_takes_them() {
    let file = scratch("guest.toml");
    let file = file.to_str().unwrap();
    let write = ["--from", "spr-vm", "--force", "-o", file];
    let found = json(&[&["calibrate", "--json"], &TRACES[..], &write].concat());
    // By lines counted apart: each call is there, and each is fitted on, held out or left out.
    let functions = found["functions"].as_array().unwrap();
    for (name, start) in [
        ("iommu_map", "  iommu_map() {"),
        ("iommu_map_sg", "  iommu_map_sg() {"),
        ("iommu_unmap_fast", "  iommu_unmap_fast() {"),
        ("qi_submit_sync", "  qi_submit_sync() {"),
    ] {
        let of = functions.iter().find(|one| one["name"] == name).unwrap();
        let (calls, lines) = (of["calls"].as_u64().unwrap(), lines_with(start));
        // The trace that is cut may end within a call.
        assert!(lines > 100 && (lines - 1..=lines).contains(&calls), "{name}: {calls} {lines}");
    }
    let fits = found["fits"].as_array().unwrap();
    let seen: u64 = fits.iter().map(|fit| fit["seen"].as_u64().unwrap()).sum();
    let left = found["left_out"].as_object().unwrap();
    let left: u64 = left.values().map(|count| count.as_u64().unwrap()).sum();
    let starts = ["  iommu_map", "  iommu_unmap_fast() {", "  qi_submit_sync() {"];
    let calls: u64 = starts.map(lines_with).into_iter().sum();
    assert!(seen <= calls && calls <= seen + left, "{seen} {left} {calls}");
    for fit in fits {
        let off = |key: &str| fit[key].as_f64().unwrap();
        println!(
            "{}: {} %, before {} %",
            fit["what"],
            off("predicted_off_pct"),
            off("before_off_pct")
        );
        assert!(off("predicted_off_pct") < off("before_off_pct"), "{fit}");
    }
    let why = |event: &str| {
        let untold = found["untold"].as_array().unwrap();
        let one = untold.iter().find(|one| one["event"] == event).unwrap();
        one["why"].as_str().unwrap().to_owned()
    };
    assert!(why("copy_byte").contains("no call of swiotlb_bounce"));
    assert!(why("cmd_page").contains("one size"));

    commands_take(file);
}

/// Every command takes the profile in `file`, and means the same by it.
fn commands_take(file: &str) {
    let machine = json(&["machines", file, "--json"]);
    assert_eq!(machine["machines"][0]["name"], "guest");
    let source = &machine["machines"][0]["prices"]["unmap_call"]["source"];
    let source = source.as_str().unwrap();
    assert!(source.starts_with("measured: ") && source.contains("held out"), "{source}");
    let said = said(&["machines", file]);
    let words: Vec<&str> = said.split_whitespace().collect();
    assert!(words.join(" ").contains("held out are predicted within"));
    // The strict unmap that it predicts is the sum of its prices, in each command.
    let parts = ["unmap_call", "unmap_page", "cmd_range", "sync", "exit"];
    let sum: f64 = parts.map(|event| price(&machine, event)).into_iter().sum();
    let replayed = json(&["replay", RECORDED, "--machine", file, "--json"]);
    assert_eq!(replayed["machine"], "guest");
    let explained = json(&["explain", "--machine", file, "--json"]);
    let unmap = &explained["machines"][0]["defaults"]["unmap"];
    let unmap = ["work_ns", "invalidation_ns"].map(|key| unmap[key].as_f64().unwrap());
    assert!((unmap[0] + unmap[1] - sum).abs() < 0.01, "{unmap:?} {sum}");
}

#[test]
fn a_machine_that_bounces_gets_the_price_of_its_slots() {
    let found = json(&["calibrate", BOUNCED, "--json"]);
    let prices = found["prices"].as_array().unwrap();
    let events: Vec<&str> = prices.iter().map(|one| one["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["copy_call"]);
    let copies = found["fits"].as_array().unwrap().iter().filter(|fit| fit["what"] == "copy");
    let lines: Vec<&Value> = copies.map(|fit| &fit["line"]).collect();
    // The kernel says how large those are that it copies as it maps.
    assert_eq!(lines[0]["range"], serde_json::json!([4096.0, 4096.0]));
    let untold = found["untold"].as_array().unwrap().iter();
    let byte = untold.clone().find(|one| one["event"] == "copy_byte").unwrap();
    assert!(byte["why"].as_str().unwrap().contains("one size"), "{byte}");
    let map = untold.clone().find(|one| one["event"] == "map_call").unwrap();
    assert!(map["why"].as_str().unwrap().contains("no call of iommu_map"), "{map}");
}

#[test]
fn calls_of_each_size_are_told_beside_what_is_fitted() {
    let rows = |pages: u64| {
        let row = |more: u64| format!("iommu_map,{},{}\n", pages * 4096, 1000 + 50 * pages + more);
        (0..11).map(|n| row(n * 2)).collect::<String>()
    };
    let text: String = [1, 2, 8, 64].map(rows).concat();
    let found = json(&["calibrate", &scratch_with("sizes.csv", text.as_bytes()), "--json"]);
    let sizes = found["fits"][0]["sizes"].as_array().unwrap();
    let number = |size: &Value, key: &str| size[key].as_f64().unwrap();
    for (size, pages) in sizes.iter().zip([1.0, 2.0, 8.0, 64.0]) {
        assert_eq!(size["units"], serde_json::json!([pages, pages]));
        assert_eq!(size["calls"], 11);
        let least = 1000.0 + 50.0 * pages;
        let tenths = ["p10_ns", "median_ns", "p90_ns"].map(|key| number(size, key));
        assert_eq!(tenths, [2.0, 10.0, 18.0].map(|more| least + more));
        let off = number(size, "fitted_ns") / (least + 10.0) - 1.0;
        assert!(off.abs() < 0.01, "{size}");
        // xeon-vtd's prices, with which it began.
        let before = 53.7 + 1.32 * pages;
        assert!((number(size, "before_ns") / before - 1.0).abs() < 0.01, "{size}");
    }
    assert_eq!(sizes.len(), 4);
    for found in [json(&["calibrate", BOUNCED, "--json"]), found] {
        for fit in found["fits"].as_array().unwrap() {
            let calls = fit["sizes"].as_array().unwrap().iter();
            let calls: u64 = calls.map(|size| size["calls"].as_u64().unwrap()).sum();
            assert_eq!(calls, fit["seen"].as_u64().unwrap());
        }
    }
}

#[test]
fn the_same_traces_and_seed_give_the_same_profile() {
    let of = |name: &str, seed: &str| {
        let file = scratch(name);
        let path = file.to_str().unwrap();
        let options = ["--seed", seed, "--force", "-o", path];
        said(&[&["calibrate"], &TRACES[..1], &options].concat());
        std::fs::read_to_string(file).unwrap().replace(name.trim_end_matches(".toml"), "")
    };
    assert_eq!(of("once.toml", "7"), of("twice.toml", "7"));
    assert_ne!(of("once.toml", "7"), of("other.toml", "8"));
}

#[test]
fn a_file_serves_wherever_a_machine_is_named_and_names_win() {
    let text = include_str!("../../../data/machines/grace.toml");
    let mine = text.replace("name = \"grace\"", "name = \"mine\"");
    let file = scratch_with("mine.toml", mine.as_bytes());
    let policies = |machine: &str| {
        let replay = ["replay", "--machine", machine, "--policy", "lazy", "--json"];
        json(&replay)["policies"].clone()
    };
    assert_eq!(policies(&file), policies("grace"));
    // A file that is called like a profile is no profile, unless it is named as a path.
    let folder = scratch("names");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("xeon-vtd"), mine).unwrap();
    let machine = |name: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
        command.current_dir(&folder).args(["machines", name, "--json"]);
        let output = command.output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        report["machines"][0]["name"].as_str().unwrap().to_owned()
    };
    assert_eq!(machine("xeon-vtd"), "xeon-vtd");
    assert_eq!(machine("./xeon-vtd"), "mine");
}

#[test]
fn profiles_that_are_none_are_refused_with_what_to_do() {
    let replay = |machine: &str, words: &[&str]| {
        fails_with(&["replay", RECORDED, "--machine", machine], words);
    };
    replay("xeon", &["xeon-vtd", "portolan machines", ".toml"]);
    replay("nowhere.toml", &["nowhere.toml", "No such file"]);
    replay("./", &["it is a folder"]);
    let binary = scratch_with("binary.toml", &[0xff, 0xfe, 0, 1]);
    replay(&binary, &["it is not text"]);
    let long = scratch_with("long.toml", &vec![b'#'; (1 << 20) + 1]);
    replay(&long, &["longer than 1 MiB"]);
    let wrong = scratch_with("wrong.toml", b"name = \"x\"\nwhat = 1\n");
    replay(&wrong, &["is no machine profile", "what", "data/machines"]);
    let text = include_str!("../../../data/machines/xeon-vtd.toml");
    let odd = text.replacen("ns = 258.065", "ns = nan", 1);
    assert_ne!(odd, text);
    replay(&scratch_with("odd.toml", odd.as_bytes()), &["`sync`", "not a time"]);
}

#[test]
fn traces_that_are_none_are_refused_and_nothing_is_written() {
    let out = scratch("never.toml");
    let path = out.to_str().unwrap();
    let with = |trace: &str, words: &[&str]| {
        fails_with(&["calibrate", trace, "-o", path], words);
        assert!(!out.exists());
    };
    with("nowhere.txt", &["nowhere.txt"]);
    with(&scratch_with("empty", b""), &["is empty", "docs/calibrate.md"]);
    with(&scratch_with("noise", &[1, 0, 200, 3, 7, 0]), &["binary"]);
    with(&scratch_with("other", b" 0)   1.000 us  |  schedule();\n"), &["schedule", "iommu_map"]);
    // A recording has facts and no latencies.
    with(RECORDED, &["no line of it has the latency"]);
    let kept = scratch_with("kept.toml", b"mine");
    fails_with(&["calibrate", TRACES[0], "-o", &kept], &["is there", "--force"]);
    assert_eq!(std::fs::read(&kept).unwrap(), b"mine");
    // Cut where it may be: calls before the cut count, and the end is said.
    let whole = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(TRACES[1])).unwrap();
    let cut = scratch_with("cut.xz", &whole[..whole.len() / 2]);
    assert!(said(&["calibrate", &cut]).contains("breaks off"));
}
