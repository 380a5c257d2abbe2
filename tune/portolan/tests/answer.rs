//! The first screen of a replay: the costs of mapping, the worth of a change, and no answer from a trace that was not
//! understood.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const TRACES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/traces");

fn portolan(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
    command.args(args).output().unwrap()
}

/// Output of `replay` in one line of words, with its exit code.
fn said(args: &[&str]) -> (String, i32) {
    let output = portolan(&[&["replay"], args].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    (words, output.status.code().unwrap())
}

fn json(args: &[&str]) -> Value {
    let output = portolan(&[&["replay", "--json"], args].concat());
    serde_json::from_slice(&output.stdout).unwrap()
}

fn scratch(name: &str, content: &str) -> String {
    let path: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).unwrap();
    path.display().to_string()
}

/// `pairs` maps with their unmaps and strict invalidations, one every `every_us`, and `orphans` unmaps without a map.
fn trace(pairs: u64, every_us: u64, orphans: u64) -> String {
    let mut out = "# tracer: nop\n".to_owned();
    let mut line = |us: u64, event: &str| {
        let (s, us) = (us / 1_000_000, us % 1_000_000);
        writeln!(out, " x-1 [000] d. {s}.{us:06}: {event}").unwrap();
    };
    for n in 0..pairs {
        let (us, at) = (1_000_000 + n * every_us, 0x8000_0000 + n * 0x10_0000);
        let of = format!("0000:00:01.0 dir=FROM_DEVICE dma_addr={at:x} size=4096");
        line(us, &format!("dma_map_page: {of} phys_addr={:x} attrs=", 0x1000_0000 + n * 8192));
        line(us + 1, "qi_submit: iotlb_inv dmar0: 0x300f2 0xbcd00040 0x0 0x0");
        line(us + 1, &format!("dma_unmap_page: {of} attrs="));
    }
    for n in 0..orphans {
        let of = format!("0000:00:01.0 dir=FROM_DEVICE dma_addr={:x} size=4096", 0x1000 * (n + 1));
        line(1_000_000 + pairs * every_us, &format!("dma_unmap_page: {of} attrs="));
    }
    out
}

#[test]
fn half_a_trace_gets_no_answer_and_exit_code_1() {
    let half = scratch("half.trace", &trace(300, 10, 300));
    let (text, code) = said(&[&half]);
    assert_eq!(code, 1, "{text}");
    for word in ["No answer:", "300 unmaps without a map", "Record instead:"] {
        assert!(text.starts_with("No answer:") && text.contains(word), "{word}: {text}");
    }
    for word in ["What to change", "Nothing to change", "Helps a little", "strict-range"] {
        assert!(!text.contains(word), "{word}: {text}");
    }
    let report = json(&[&half]);
    assert_eq!(report["advice"], serde_json::json!([]));
    assert!(report["cost"].is_null());
    let pct = report["trace"]["understood"]["events_pct"].as_f64().unwrap();
    assert!((50.0..95.0).contains(&pct), "{pct}");
    // A few are as good as none, and are said.
    let most = scratch("most.trace", &trace(300, 10, 9));
    let (text, code) = said(&[&most]);
    assert_eq!(code, 0, "{text}");
    assert!(!text.contains("No answer") && !text.contains("all of it understood"), "{text}");
    // With several traces it is left out, and the exit code shows this.
    let output = portolan(&["replay", &half, &most]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("1 trace replayed") && text.contains("1 could not be"), "{text}");
}

#[test]
fn a_gain_that_is_lost_in_noise_is_not_worth_a_change() {
    let (text, code) = said(&[]);
    assert_eq!(code, 0);
    assert!(text.contains("Not worth a change:") && text.contains("Helps a little:"), "{text}");
    assert!(!text.contains("What to change:"), "{text}");
    assert_eq!(json(&[])["cost"]["worth_a_change"], false);
    // The same work in less time is.
    for (every_us, worth) in [(10, true), (1000, false)] {
        let path = scratch(&format!("every-{every_us}.trace"), &trace(400, every_us, 0));
        let cost = json(&[&path])["cost"].clone();
        assert_eq!(cost["worth_a_change"], worth, "{cost}");
        let (text, _) = said(&[&path]);
        assert_eq!(text.contains("What to change: echo DMA-FQ"), worth, "{text}");
        // 687 ns of each strict request are its invalidation; a lazy one goes through a queue.
        let ns = |of: &Value| of["ns_per_request"].as_f64().unwrap();
        let saved = ns(&cost) - ns(&cost["then"]);
        assert!((550.0..690.0).contains(&saved), "{cost}");
        let share = cost["cpu_us_per_s"].as_f64().unwrap() / 1e4;
        assert!((share - cost["pct_of_load"].as_f64().unwrap()).abs() < 1e-9, "one CPU: {cost}");
    }
}

#[test]
fn what_devices_wait_is_no_cpu_time() {
    let profile = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/machines/xeon-vtd.toml");
    let profile = std::fs::read_to_string(profile).unwrap();
    let (before, walk) = profile.split_once("[prices.iotlb_miss_step]").unwrap();
    let after = walk.split_once("source").unwrap().1;
    let slow = format!("{before}[prices.iotlb_miss_step]\nns = 1000.0\nsource{after}");
    assert_ne!(slow, profile);
    let slow = scratch("slow-walks.toml", &slow);
    let (there, here) = (json(&["--machine", &slow]), json(&[]));
    let of = |report: &Value, key: &str| report["cost"][key].as_f64().unwrap();
    assert_eq!(of(&there, "cpu_us"), of(&here, "cpu_us"));
    let ratio = of(&there, "device_wait_us") / of(&here, "device_wait_us");
    assert!((ratio - 10.0).abs() < 1e-6, "{ratio}");
    let pct = |report: &Value| report["advice"][0]["effect"]["saving"]["pct"].clone();
    assert_eq!(pct(&there), pct(&here), "what is gained is no matter of walks");
}

#[test]
fn one_quantity_has_one_number_on_the_screen_and_in_json() {
    let report = json(&[]);
    let settings = report["advice"].as_array().unwrap();
    assert!(settings.len() > 1, "{settings:?}");
    let now = report["cost"]["cpu_us"].as_f64().unwrap();
    for setting in settings {
        assert_eq!(setting["effect"]["saving"]["before_us"].as_f64(), Some(now));
    }
    let output = portolan(&["replay", "--wide"]);
    let wide = String::from_utf8(output.stdout).unwrap();
    let row = |name: &str| {
        let mut lines = wide.lines();
        lines.find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {wide}"))
    };
    let (before, after) = wide
        .lines()
        .find_map(|line| line.strip_prefix("What it gains: "))
        .and_then(|gains| gains.split_once(" ("))
        .and_then(|(gains, _)| gains.split_once(" -> "))
        .unwrap();
    assert!(row("Linux now: strict").contains(before), "{before}: {wide}");
    assert!(row("Linux then: lazy").contains(after), "{after}: {wide}");
    // Memory that stays reachable is Linux's in the sentence and in its row.
    let danger = row("What you give up: ");
    let reach = danger.split(" for up to ").nth(1).unwrap().split('.').next().unwrap();
    assert!(row("Linux then: lazy").contains(reach), "{reach}: {wide}");
    assert_eq!(json(&[])["sent"]["invalidations"]["range"], 3755);
    assert!(row("Linux now: strict").contains("3,755"), "{wide}");
    assert!(wide.contains("at most a few hundred invalidations instead of 3,755"), "{wide}");
}

#[test]
fn whose_prices_these_are_is_said_on_every_first_screen() {
    let facts = "# portolan-facts: {\"cpus\":2,\"iommus\":[{\"name\":\"dmar0\",\"kind\":\"vtd\",\"devices\":1}]}\n";
    let facts = scratch("facts.trace", &(facts.to_owned() + &trace(300, 10, 0)));
    for (args, words) in [
        (&[][..], "Priced as xeon-vtd, assumed: the trace says nothing of its machine."),
        (&["--machine", "grace"], "Priced as grace, as asked for."),
        (&[facts.as_str()], "Priced as xeon-vtd, fitted: the nearest machine that is known."),
    ] {
        let (text, _) = said(args);
        assert!(text.contains(words), "{args:?}: {text}");
    }
    // Assumptions stand in the line of the cost.
    let silent = trace(300, 10, 0)
        .lines()
        .filter(|line| !line.contains("qi_submit"))
        .collect::<Vec<_>>()
        .join("\n");
    let (text, _) = said(&[&scratch("silent.trace", &silent)]);
    assert!(
        text.starts_with("What it costs, if Linux is strict, which nothing in the trace says:"),
        "{text}"
    );
}

#[test]
fn bounces_without_maps_are_told_by_device_and_there_is_no_table_of_zeros() {
    let mut text = "# tracer: nop\n".to_owned();
    for (device, bytes) in [("mmc0", 512), ("nic", 64), ("mmc0", 512)] {
        writeln!(
            text,
            " x-1 [000] d. 1.0: swiotlb_bounced: dev_name: {device} dma_mask=ffffffff dev_addr=1000 size={bytes} FORCE"
        )
        .unwrap();
    }
    let (text, code) = said(&[&scratch("bounces.trace", &text)]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("mmc0 1 KiB, nic 64 B"), "{text}");
    assert!(!text.contains("strict-page"), "{text}");
}

#[test]
fn words_are_plain() {
    let net = format!("{TRACES}/vtd-strict.net-rx.trace.xz");
    let one = scratch("one.trace", &trace(1, 10, 0));
    let mut texts = Vec::new();
    for args in [&["--wide"][..], &[&net], &[&net, "--wide"], &[&one], &[&one, &net]] {
        texts.push(said(args).0);
    }
    let two = portolan(&["compare", &net, &one, "--wide"]);
    texts.push(String::from_utf8(two.stdout).unwrap());
    let two = portolan(&["compare", &net, &net, "--machine", "spr-vm", "--wide"]);
    texts.push(String::from_utf8(two.stdout).unwrap());
    for text in &texts {
        for word in [
            "What it takes",
            "is owed",
            "no window",
            "1 maps",
            "1 unmaps",
            "-0.00",
            " 0 % less",
            "NaN",
        ] {
            assert!(!text.contains(word), "`{word}`: {text}");
        }
    }
}

#[test]
fn a_lazy_kernel_that_waits_for_each_two_step_request_is_not_said_to_be_strict() {
    let recording = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/recordings/7.3-lazy-dd128k.gz");
    let (words, code) = said(&[recording]);
    assert_eq!(code, 0);
    assert!(
        words.contains("Linux is lazy already (the recording says groups: 4 DMA-FQ)"),
        "{words}"
    );
    assert!(words.contains("Linux now: lazy"), "{words}");
    assert!(!words.contains("iommu.strict"), "{words}");
}
