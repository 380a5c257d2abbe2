//! Reports of the built command: whole in a browser, the same each time, and true to traces that hold next to nothing.

#[path = "../../../portolan-report/tests/browser/mod.rs"]
mod browser;
mod explain;
mod odd;
mod real;
mod written;

use std::path::PathBuf;

use written::*;

const PROGRAM: &str = env!("CARGO_BIN_EXE_portolan");

const TRACES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/traces");
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

#[test]
fn a_report_that_cannot_be_written_is_refused_before_the_work() {
    let tmp = env!("CARGO_TARGET_TMPDIR");
    let latencies = format!("{TRACES}/../latencies/swiotlb.read4k.graph.xz");
    let log = ["explain", "--faults", "never-read"];
    let commands: [&[&str]; 3] = [&["replay"], &["calibrate", &latencies], &log];
    refuses(&commands, tmp, "is a directory");
    refuses(&commands, "-", "goes to a file");
    refuses(&commands, "/dev/null", "no regular file");
    refuses(&commands, &format!("{tmp}/not/there.html"), "no report can be written to");
    let own = trace("own.trace", &[map("1.000000", 0xffff_e000)]);
    let folder = scratch("own-traces");
    std::fs::create_dir_all(&folder).unwrap();
    let inside = folder.join("own.trace");
    std::fs::copy(&own, &inside).unwrap();
    let machine = scratch("own.toml");
    let text = include_str!("../../../../data/machines/tegra210.toml");
    std::fs::write(&machine, text).unwrap();
    let [own, inside, folder, machine] =
        [&own, &inside, &folder, &machine].map(|path| path.to_str().unwrap());
    for (args, path) in [
        (&["replay", own][..], own),
        (&["replay", folder], inside),
        (&["replay", own, "--machine", machine], machine),
        (&["replay", folder, "--machine", machine], machine),
        (&["calibrate", own], own),
        (&["calibrate", "never-read", "--from", machine], machine),
        (&["explain", "--from", own], own),
        (&["explain", "--log", own, "--between"], own),
        (&["explain", "--faults", own], own),
        (&["explain", "--faults", "never-read", "--trace", own], own),
        (&["compare", own, own, "--machine", machine], machine),
    ] {
        let before = std::fs::read(path).unwrap();
        let output = portolan(&[args, &["--report", path]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains("is another file of this command"), "{args:?}: {said}");
        assert_eq!(std::fs::read(path).unwrap(), before);
    }
    // The profile to be written does not exist yet.
    let both = scratch("both");
    let [to, link] = ["both", "./both"].map(|name| format!("{tmp}/{name}"));
    let output = portolan(&["calibrate", "never-read", "-o", &to, "--report", &link]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("is another file of this command"), "{said}");
    assert!(output.status.code() == Some(2) && !both.exists());
    let left = std::fs::read_dir(tmp)
        .unwrap()
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|e| e == "partial"));
    let left: Vec<_> = left.map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{left:?}");
}
