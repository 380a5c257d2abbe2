//! Reports of the bundled traces and profiles.

use super::browser::Browser;
use super::*;

// Words that reports have to have.
const REPLAY: &[&str] = &[
    "Where the time goes",
    "strict-context",
    "Linux, recorded",
    "Linux now: strict",
    "Requests",
    "of each CPU-second",
    "How sure",
    "Not worth a change",
    "Bytes reachable after unmap",
    "Span of device addresses",
    "IOTLB misses",
    "Lifetimes",
    "<h1>DMA of vtd-strict.mixed-sg-4j</h1>",
    "0000:00:01.0",
    "CPU 3",
    "xeon-vtd",
];
const MANY: &[&str] = &[
    "3 traces",
    "By machine",
    "By device",
    "By load",
    "0000:00:02.0",
    "up to 4 KiB, from device",
    "read1m-sg",
    "Settings that are advised",
];
const TWO_TRACES: &[&str] = &[
    "What each policy costs",
    "so what a MiB costs is compared",
    "Where the time goes, for a MiB mapped",
    "Sizes of A",
    "Lifetimes of B",
    "machine profile of B",
];

const GUEST: &[&str] = &[
    "7 of 22 prices",
    "Prices that the traces tell",
    "all calls have one size (pages: 1)",
    "How well the fits predict",
    "Calls that submit",
    "8 pages",
    "Traced functions",
    "Sapphire Rapids guest",
    "which chooses the calls",
];
const BOUNCED: &[&str] = &["Calls that take slots", "bytes not told", "no call of iommu_map"];

#[test]
fn the_real_reports_are_whole_in_a_browser() {
    let mut browser = Browser::start();
    let boot = format!("{TRACES}/vtd-strict.boot.trace.xz");
    let read = format!("{TRACES}/viommu-strict.read4k-1j.trace.xz");
    let lists = format!("{TRACES}/vtd-strict.read1m-sg.trace.xz");
    let graphs = ["vtd-strict.read4k", "vtd-strict.read32k", "swiotlb.read4k"];
    let graphs = graphs.map(|name| format!("{TRACES}/../latencies/{name}.graph.xz"));
    let commands: [(&str, &[&str], &[&str]); 6] = [
        ("guest.html", &["calibrate", &graphs[0], &graphs[1], "--from", "spr-vm"], GUEST),
        ("bounced.html", &["calibrate", &graphs[2]], BOUNCED),
        ("replay.html", &["replay"], REPLAY),
        ("many.html", &["replay", &boot, &read, &lists], MANY),
        ("two-traces.html", &["compare", &read, &lists], TWO_TRACES),
        (
            "two-machines.html",
            &["compare", &read, "--machine", "grace", "--machine", "spr-vm"],
            &["their totals are compared", "exits", "grace", "spr-vm"],
        ),
    ];
    for (name, args, words) in commands {
        let (file, html) = report(name, args);
        for word in words {
            assert!(html.contains(word), "{name}: no `{word}`");
        }
        is_fine(browser.as_mut(), &file);
    }
    // But for the name of the file, which is part of the command.
    let again = report("replay-a.html", &["replay"]).1;
    let first = std::fs::read_to_string(scratch("replay.html")).unwrap();
    assert!(first == again.replace("replay-a.html", "replay.html"), "not the same each time");
}
