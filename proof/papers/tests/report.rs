//! Reports of the built command: whole in a browser, and true to machines that charge nothing.

#[path = "../../../tune/portolan-report/tests/browser/mod.rs"]
mod browser;
#[path = "../../../tune/portolan/tests/report/written.rs"]
mod written;

use browser::Browser;
use written::*;

const PROGRAM: &str = env!("CARGO_BIN_EXE_portolan-papers");

// Words that reports have to have.
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
const SCALE: &[&str] =
    &["Throughput", "strict, measured", "Syncs by operation", "seed", "--horizon</span> 5"];
const TEGRA: &[&str] = &[
    "Time for a buffer",
    "Part of a frame that it takes",
    "before: unmap",
    "PTC upper bits",
    "NVIDIA Tegra210 SMMU",
    "nothing in it is left to chance",
    "synthetic camera",
];
const QUALCOMM: &[&str] = &[
    "portolan, wait-for-safe",
    "What keeps the camera waiting",
    "Unmapping 100 MB, computed and told",
];

#[test]
fn the_real_reports_are_whole_in_a_browser() {
    let mut browser = Browser::start();
    let camera = ["synthetic", "camera", "--machine"];
    let commands: [(&str, &[&str], &[&str]); 4] = [
        ("tegra.html", &[&camera[..], &["tegra210"]].concat(), TEGRA),
        ("phone.html", &[&camera[..], &["sm8150"]].concat(), QUALCOMM),
        ("reproduce.html", &["reproduce", "all"], REPRODUCE),
        ("scale.html", &["scale", "--horizon", "5"], SCALE),
    ];
    for (name, args, words) in commands {
        let (file, html) = report(name, args);
        for word in words {
            assert!(html.contains(word), "{name}: no `{word}`");
        }
        is_fine(browser.as_mut(), &file);
    }
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_the_work() {
    let tmp = env!("CARGO_TARGET_TMPDIR");
    let commands: [&[&str]; 3] = [&["synthetic", "camera"], &["scale"], &["reproduce", "all"]];
    refuses(&commands, tmp, "is a directory");
    refuses(&commands, "-", "goes to a file");
    refuses(&commands, "/dev/null", "no regular file");
    refuses(&commands, &format!("{tmp}/not/there.html"), "no report can be written to");
    let machine = scratch("own.toml");
    std::fs::write(&machine, include_str!("../../../data/machines/tegra210.toml")).unwrap();
    let machine = machine.to_str().unwrap();
    let commands: [&[&str]; 2] =
        [&["synthetic", "camera", "--machine", machine], &["scale", "--machine", machine]];
    refuses(&commands, machine, "is another file of this command");
}

/// The profile of `machine` with `ns` for each price, as a file.
fn priced(machine: &str, ns: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/machines");
    let text = std::fs::read_to_string(format!("{folder}/{machine}.toml")).unwrap();
    let lines = text.lines().filter_map(|line| match line.split_once(" = ") {
        Some(("ns", _)) => Some(format!("ns = {ns}\n")),
        Some(("low_ns" | "high_ns", _)) => None,
        _ => Some(format!("{line}\n")),
    });
    let path = scratch(&format!("{machine}-{ns}.toml"));
    std::fs::write(&path, lines.collect::<String>()).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_camera_is_reported_whatever_its_machine_charges() {
    let mut browser = Browser::start();
    let camera = ["synthetic", "camera", "--machine"];
    for (machine, ns) in [("tegra210", "0.0"), ("tegra210", "1e9"), ("sm8150", "0.0")] {
        let file = priced(machine, ns);
        let name = format!("camera-{machine}-{ns}.html");
        let (file, html) = report(&name, &[&camera[..], &[&file]].concat());
        let free = html.contains("nothing takes any time");
        assert_eq!(free, ns == "0.0" && machine == "tegra210", "{name}");
        is_fine(browser.as_mut(), &file);
    }
}
