//! Reports of the built command: whole in a browser, the same each time, and true to traces that hold next to nothing.

#[path = "../../../portolan-report/tests/browser/mod.rs"]
mod browser;
mod odd;
mod real;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use browser::Browser;

const TRACES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/traces");
/// Bytes of a report at most.
const MOST: usize = 3_000_000;

fn portolan(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_portolan")).args(args).output().unwrap()
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
    // 1: there is no answer, and the report says so.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{args:?}: {said}");
    assert!(said.contains(&format!("the report is in {}", path.display())), "{said}");
    let plain = portolan(args);
    assert!(output.stdout == plain.stdout, "{args:?} prints something else");
    let html = std::fs::read_to_string(&path).unwrap();
    is_whole(name, &html);
    (path, html)
}

/// Each figure has a plot or the reason why not, and its table; nothing is no number.
fn is_whole(name: &str, html: &str) {
    assert!(html.len() <= MOST, "{name}: {} bytes", html.len());
    let figures: Vec<_> = html.split("<figure ").skip(1).collect();
    let nothing = ["No answer", "maps nothing", "They map nothing"];
    let nothing = nothing.iter().any(|words| html.contains(words));
    assert!(nothing || !figures.is_empty(), "{name}: no figure");
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
        assert!(!["nan", "inf", "infinity"].contains(&&*lower), "{name}: {word}");
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

fn is_fine(browser: Option<&mut Browser>, file: &Path) {
    let Some(browser) = browser else {
        return;
    };
    let visit = browser.visit(file);
    assert!(visit.complaints.is_empty(), "{}:\n{}", file.display(), visit.complaints.join("\n"));
}

fn refuses(path: &str, words: &str) {
    let camera = ["replay", "--synthetic", "camera"];
    let latencies = format!("{TRACES}/../latencies/swiotlb.read4k.graph.xz");
    for args in
        [&["replay"][..], &camera, &["scale"], &["reproduce", "all"], &["calibrate", &latencies]]
    {
        let mut args = args.to_vec();
        args.extend(["--report", path]);
        let output = portolan(&args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
        assert!(output.stdout.is_empty(), "{args:?}: found out after the work");
    }
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_the_work() {
    let tmp = env!("CARGO_TARGET_TMPDIR");
    refuses(tmp, "is a directory");
    refuses("-", "goes to a file");
    refuses("/dev/null", "no regular file");
    refuses(&format!("{tmp}/not/there.html"), "no report can be written to");
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
        (&["replay", "--synthetic", "camera", "--machine", machine], machine),
        (&["replay", folder, "--machine", machine], machine),
        (&["scale", "--machine", machine], machine),
        (&["calibrate", own], own),
        (&["calibrate", "never-read", "--from", machine], machine),
        (&["compare", own, own, "--machine", machine], machine),
    ] {
        let before = std::fs::read(path).unwrap();
        let output = portolan(&[args, &["--report", path]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains("is another file of this command"), "{args:?}: {said}");
        assert_eq!(std::fs::read(path).unwrap(), before);
    }
    // A profile that is to be written is not there yet.
    let both = scratch("both");
    let [to, link] = ["both", "./both"].map(|name| format!("{tmp}/{name}"));
    let output = portolan(&["calibrate", "never-read", "-o", &to, "--report", &link]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("is another file of this command"), "{said}");
    assert!(output.status.code() == Some(2) && !both.exists());
    let left = std::fs::read_dir(tmp).unwrap().flatten();
    let left = left.filter(|entry| entry.path().extension().is_some_and(|e| e == "partial"));
    let left: Vec<_> = left.map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{left:?}");
}
