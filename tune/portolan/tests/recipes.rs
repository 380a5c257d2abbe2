//! The recipes of `docs/fleet.md`, run on a cluster of this machine: Dask's, with a worker that dies and a trace
//! that kills each, and GNU parallel's. SKIP without Debian's `python3-distributed` and `parallel`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const LAZY: [&str; 2] = ["--policy", "lazy"];

/// Makes a folder with three good traces, one file that is not a trace, and one that crashes portolan.
fn fleet(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fleet-{name}"));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    let trace = |name: &str| format!("{ROOT}/data/traces/{name}.trace.xz");
    let boot = trace("vtd-strict.boot");
    for (from, to) in [
        (&boot, "once.trace.xz"),
        (&boot, "poison.trace.xz"),
        (&trace("viommu-strict.read4k-1j"), "read.trace.xz"),
        (&trace("vtd-strict.net-tx"), "net.trace.xz"),
    ] {
        std::fs::copy(from, path.join(to)).unwrap();
    }
    std::fs::write(path.join("bad.trace"), "no trace at all\n").unwrap();
    path
}

/// A program like portolan that sends a signal to `victim` whenever it gets `poison`, and only once when it gets
/// `once`.
fn deadly(folder: &Path, victim: &str) -> PathBuf {
    let program = folder.join("portolan.sh");
    let lines = [
        "#!/bin/sh",
        "case \"$*\" in",
        &format!("*/poison.*) kill -9 {victim}; exit 9;;"),
        &format!(
            "*/once.*) if mkdir '{0}/died' 2>/dev/null; then kill -9 {victim}; exit 9; fi;;",
            folder.display()
        ),
        "esac",
        &format!("exec '{}' \"$@\"", env!("CARGO_BIN_EXE_portolan")),
    ];
    std::fs::write(&program, lines.join("\n") + "\n").unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    program
}

/// Lines of JSON, in the order of their traces.
fn sorted(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect(line));
    let mut lines: Vec<Value> = lines.collect();
    lines.sort_by_key(|line| line["trace"]["source"].as_str().unwrap().to_owned());
    lines
}

/// Output of portolan for the same traces without the poison.
fn expected(folder: &Path) -> Vec<Value> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
    command.arg("replay").args(LAZY).arg("--ndjson").arg(folder);
    let mut lines = sorted(&command.output().unwrap());
    lines.retain(|line| !is_poison(line));
    assert_eq!(lines.len(), 4);
    lines
}

fn is_poison(line: &Value) -> bool {
    let source = line["trace"]["source"].as_str().unwrap();
    source.ends_with("/poison.trace.xz")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn dask_replays_what_portolan_does_and_a_dead_worker_loses_nothing() {
    // Debian's own Python, which has Debian's packages, before any other in the PATH.
    let python = |program: &&str| {
        let mut command = Command::new(program);
        let found = command.args(["-c", "import distributed"]).output();
        found.is_ok_and(|output| output.status.success())
    };
    let Some(python) = ["/usr/bin/python3", "python3"].into_iter().find(python) else {
        println!("SKIP: no Python with Dask's distributed (Debian: python3-distributed)");
        return;
    };
    let folder = fleet("dask");
    let program = deadly(&folder, "$PPID");
    let traces = ["bad.trace", "once.trace.xz", "poison.trace.xz", "net.trace.xz", "read.trace.xz"];
    let mut command = Command::new(python);
    command.arg(format!("{ROOT}/docs/recipes/fleet.py"));
    // All traces wait on the workers, and are suspected with the one that kills them.
    command.env("DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION", "inf");
    command.arg("--portolan").arg(program).args(traces.map(|trace| folder.join(trace)));
    let output = command.arg("--").args(LAZY).output().unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let mut lines = sorted(&output);
    let poison = lines.iter().position(is_poison).expect("a line for the poison");
    let poison = lines.remove(poison);
    assert!(poison["error"].as_str().unwrap().starts_with("KilledWorker"), "{poison}");
    assert_eq!(lines, expected(&folder), "{said}");
    assert!(folder.join("died").is_dir(), "no worker died of the trace that was to kill one");
}

#[test]
fn gnu_parallel_replays_what_portolan_does_and_a_dead_job_costs_the_others_nothing() {
    let version = Command::new("parallel").arg("--version").output();
    let gnu = version.is_ok_and(|output| output.stdout.starts_with(b"GNU parallel"));
    if !gnu {
        println!("SKIP: no GNU parallel (Debian: parallel)");
        return;
    }
    let folder = fleet("parallel");
    let log = folder.join("jobs.log");
    let mut command = Command::new("sh");
    command.arg(format!("{ROOT}/docs/recipes/fleet.sh")).arg(&folder).args(LAZY);
    command.env("PORTOLAN", deadly(&folder, "$$")).env("JOBLOG", &log).env("HOSTS", "2/:");
    let output = command.output().unwrap();
    // Two jobs failed: the file that is not a trace, and the one that kills its worker.
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert_eq!(sorted(&output), expected(&folder), "{}", said(&output));
    let log = std::fs::read_to_string(log).unwrap();
    let killed = log.lines().find(|line| line.contains("poison")).unwrap();
    // The job's own signal, or the code by which a shell around it tells that.
    let ended: Vec<_> = killed.split('\t').skip(6).take(2).collect();
    assert!(["9", "137"].iter().any(|code| ended.contains(code)), "{log}");
}
