//! Reports of the built command: whole in a browser, the same each time, and true to traces that hold next to nothing.

#[path = "../../portolan-report/tests/browser/mod.rs"]
mod browser;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use browser::Browser;

const TRACES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/traces");
/// Bytes of a report at most.
const MOST: usize = 3_000_000;

fn portolan(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_portolan"))
        .args(args)
        .output()
        .unwrap()
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The report that `args` write, under `name`.
fn report(name: &str, args: &[&str]) -> (PathBuf, String) {
    let path = scratch(name);
    let mut all = args.to_vec();
    all.extend(["--report", path.to_str().unwrap()]);
    let output = portolan(&all);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    assert!(
        said.contains(&format!("the report is in {}", path.display())),
        "{said}"
    );
    let plain = portolan(args);
    assert!(
        output.stdout == plain.stdout,
        "{args:?} prints something else"
    );
    let html = std::fs::read_to_string(&path).unwrap();
    is_whole(name, &html);
    (path, html)
}

/// Each figure has a plot or the reason why not, and its table; nothing is no number.
fn is_whole(name: &str, html: &str) {
    assert!(html.len() <= MOST, "{name}: {} bytes", html.len());
    let figures: Vec<_> = html.split("<figure ").skip(1).collect();
    assert!(!figures.is_empty(), "{name}: no figure");
    for figure in figures {
        let figure = figure.split("</figure>").next().unwrap();
        let nothing = figure.contains("class=\"nothing\"");
        assert!(figure.contains("<svg") != nothing, "{name}: {figure}");
        assert!(nothing || figure.contains("<table"), "{name}: {figure}");
    }
    // Words of the page alone: the script has names of its own.
    let page = html.split("<script").next().unwrap();
    let words = page.split(|c: char| !c.is_alphanumeric());
    for word in words {
        let lower = word.to_ascii_lowercase();
        assert!(
            !["nan", "inf", "infinity"].contains(&&*lower),
            "{name}: {word}"
        );
    }
    assert!(html.contains("portolan"), "{name}: no command");
}

fn trace(name: &str, events: &[String]) -> PathBuf {
    let path = scratch(name);
    std::fs::write(&path, format!("# tracer: nop\n#\n{}", events.concat())).unwrap();
    path
}

fn event(at: &str, event: &str, dma: u64, phys: &str) -> String {
    format!(
        " a-1 [000] ..... {at}: {event}: 0000:00:01.0 dir=FROM_DEVICE dma_addr={dma:x} size=4096{phys} attrs=\n"
    )
}

fn map(at: &str, dma: u64) -> String {
    event(at, "dma_map_page", dma, " phys_addr=10000")
}

fn unmap(at: &str, dma: u64) -> String {
    event(at, "dma_unmap_page", dma, "")
}

/// Traces that hold next to nothing: their names, their events, and what their reports say.
fn next_to_nothing() -> [(&'static str, Vec<String>, &'static str); 6] {
    let absurd = "18446744073.709551";
    let alloc = " a-1 [000] ..... 1.000000: dma_alloc: 0000:00:01.0 dir=BIDIRECTIONAL dma_addr=fff00000 size=4096 \
                 flags=GFP_KERNEL attrs=\n";
    [
        (
            "one-event",
            vec![map("1.000000", 0xffff_e000)],
            "nothing stayed reachable",
        ),
        (
            "no-map",
            vec![unmap("1.000000", 0xffff_e000)],
            "The trace maps nothing",
        ),
        (
            "coherent-alone",
            vec![alloc.to_owned()],
            "The trace maps nothing",
        ),
        (
            "absurd-times",
            vec![
                map("0.000000", 0xffff_e000),
                unmap(absurd, 0xffff_e000),
                map("0.000001", 0xffff_d000),
                unmap("0.000000", 0xffff_d000),
            ],
            "earlier than one before them",
        ),
        (
            "bad-lines",
            vec![
                map("1.000000", 0xffff_e000),
                "<b>no event</b>\n".to_owned(),
                "CPU:0 [LOST 7 EVENTS]\n".to_owned(),
                unmap("1.000002", 0xffff_e000),
            ],
            "lost 7 events",
        ),
        (
            "other-events-alone",
            vec![" a-1 [000] ..... 1.000000: sched_switch: nothing=0\n".to_owned()],
            "The trace maps nothing",
        ),
    ]
}

#[test]
fn traces_with_next_to_nothing_are_reported_in_words() {
    let mut browser = Browser::start();
    let mut all = Vec::new();
    for (name, events, words) in &next_to_nothing() {
        let path = trace(&format!("{name}.trace"), events);
        all.push(path.to_str().unwrap().to_owned());
        let path = path.to_str().unwrap();
        for (kind, more) in [
            ("all", &[][..]),
            ("one", &["--policy", "lazy"]),
            ("bounce", &["--policy", "bounce"]),
        ] {
            let mut args = vec!["replay", path];
            args.extend(more);
            let (file, html) = report(&format!("{name}-{kind}.html"), &args);
            if kind == "all" {
                assert!(html.contains(words), "{name}: no `{words}`");
                assert!(!html.contains("<b>no event"), "{name}");
                is_fine(browser.as_mut(), &file);
            } else {
                assert!(
                    html.contains("there is nothing to compare it with"),
                    "{name}"
                );
            }
        }
    }
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let (file, _) = report("next-to-nothing.html", &[&["replay"], &all[..]].concat());
    is_fine(browser.as_mut(), &file);
    for (number, two) in all.windows(2).enumerate() {
        let (file, _) = report(&format!("two-{number}.html"), &["compare", two[0], two[1]]);
        is_fine(browser.as_mut(), &file);
    }
}

fn is_fine(browser: Option<&mut Browser>, file: &Path) {
    let Some(browser) = browser else {
        return;
    };
    let visit = browser.visit(file);
    assert!(
        visit.complaints.is_empty(),
        "{}:\n{}",
        file.display(),
        visit.complaints.join("\n")
    );
}

// Words that reports have to have.
const REPLAY: &[&str] = &[
    "Where the time goes",
    "strict-context",
    "Invalidations under lazy",
    "Bytes reachable after unmap",
    "Span of device addresses",
    "IOTLB misses",
    "Lifetimes",
    "0000:00:01.0",
    "CPU 3",
    "xeon-vtd",
];
const REPRODUCE: &[&str] = &[
    "Walk flush by context",
    "Range flush",
    "Lazy invalidation under a virtual IOMMU",
    "Bounce-buffer pools",
    "I/O page faults",
    "Figures of other machines",
    "fitted",
    "implied",
    "counted",
    "predicted",
    "Bounds, and what they are worth",
];
const SCALE: &[&str] = &[
    "Throughput",
    "strict, measured",
    "Syncs by operation",
    "seed",
    "--horizon 5",
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

#[test]
fn the_real_reports_are_whole_in_a_browser() {
    let mut browser = Browser::start();
    let boot = format!("{TRACES}/vtd-strict.boot.trace.xz");
    let read = format!("{TRACES}/viommu-strict.read4k-1j.trace.xz");
    let lists = format!("{TRACES}/vtd-strict.read1m-sg.trace.xz");
    let commands: [(&str, &[&str], &[&str]); 6] = [
        ("replay.html", &["replay"], REPLAY),
        ("reproduce.html", &["reproduce", "all"], REPRODUCE),
        ("scale.html", &["scale", "--horizon", "5"], SCALE),
        ("many.html", &["replay", &boot, &read, &lists], MANY),
        ("two-traces.html", &["compare", &read, &lists], TWO_TRACES),
        (
            "two-machines.html",
            &[
                "compare",
                &read,
                "--machine",
                "grace",
                "--machine",
                "spr-vm",
            ],
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
    assert!(
        first == again.replace("replay-a.html", "replay.html"),
        "not the same each time"
    );
}

#[test]
fn a_report_of_many_devices_and_a_long_time_is_small() {
    let mut events = Vec::new();
    for n in 0..6000u64 {
        let (device, cpu) = (n % 300, n * 7 % 200);
        let line = |at: f64, event: &str, phys: &str| {
            format!(
                " a-1 [{cpu:03}] ..... {at:.6}: {event}: {device:04x}:00:01.0 dir=FROM_DEVICE dma_addr={:x} \
                 size={}{phys} attrs=\n",
                0x1_0000_0000 + n * 0x40_0000,
                1 + (n * 7919) % (1 << (n % 22)),
            )
        };
        let at = n as f64 * n as f64 / 100.0;
        events.push(line(
            at,
            "dma_map_page",
            &format!(" phys_addr={:x}", n << 12),
        ));
        events.push(line(at + n as f64 / 1e4, "dma_unmap_page", ""));
    }
    let path = trace("many-devices.trace", &events);
    let (file, html) = report("many-devices.html", &["replay", path.to_str().unwrap()]);
    assert!(html.contains("others"));
    is_fine(Browser::start().as_mut(), &file);
}

fn refuses(path: &str, words: &str) {
    for args in [&["replay"][..], &["scale"], &["reproduce", "all"]] {
        let mut args = args.to_vec();
        args.extend(["--report", path]);
        let output = portolan(&args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
        assert!(
            output.stdout.is_empty(),
            "{args:?}: found out after the work"
        );
    }
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_the_work() {
    let tmp = env!("CARGO_TARGET_TMPDIR");
    refuses(tmp, "is a directory");
    refuses("-", "goes to a file");
    refuses("/dev/null", "no regular file");
    refuses(
        &format!("{tmp}/not/there.html"),
        "no report can be written to",
    );
    let path = trace("own.trace", &[map("1.000000", 0xffff_e000)]);
    let path = path.to_str().unwrap();
    let before = std::fs::read(path).unwrap();
    let output = portolan(&["replay", path, "--report", path]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(std::fs::read(path).unwrap(), before);
    let left = std::fs::read_dir(tmp).unwrap().flatten();
    let left = left.filter(|entry| entry.path().extension().is_some_and(|e| e == "partial"));
    let left: Vec<_> = left.map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{left:?}");
}
