//! `measure-older DISK`: `portolan record --latency` on a kernel whose instances cannot trace functions. It measures in
//! the main tracing then, puts all of that back, and refuses if that is in use.
//!
//! The recording leaves by the port `record.gz`. It runs as root in a guest.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

const TRACING: &str = "/sys/kernel/tracing";
const TRACER: &str = "function_graph";
const PORT: &str = "/dev/virtio-ports/record.gz";
/// Files of the main tracing that say how it is set.
const SETTINGS: [&str; 13] = [
    "buffer_size_kb",
    "current_tracer",
    "set_event",
    "set_event_pid",
    "set_ftrace_filter",
    "set_ftrace_notrace",
    "set_ftrace_pid",
    "set_graph_function",
    "set_graph_notrace",
    "trace_clock",
    "tracing_cpumask",
    "tracing_on",
    "tracing_thresh",
];
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let disk = std::env::args().nth(1).context("usage: measure-older DISK")?;
    let root = Path::new(TRACING);
    ensure!(has_tracer(root)?, "the kernel has no {TRACER}");
    let instance = root.join("instances/older");
    fs::create_dir(&instance)?;
    let in_instances = has_tracer(&instance)?;
    fs::remove_dir(&instance)?;
    ensure!(!in_instances, "an instance of this kernel has {TRACER}");
    measures(&disk)?;
    refuses(&disk)?;
    println!("measured in the main tracing, which is as before");
    Ok(())
}

fn has_tracer(place: &Path) -> Result<bool> {
    let tracers = fs::read_to_string(place.join("available_tracers"))?;
    Ok(tracers.split_whitespace().any(|one| one == TRACER))
}

/// All settings of the main tracing, including its options and enabled events, and the number of instances.
fn settings() -> Result<BTreeMap<String, String>> {
    let root = Path::new(TRACING);
    let mut all = BTreeMap::new();
    for file in SETTINGS {
        all.insert(file.to_owned(), fs::read_to_string(root.join(file))?);
    }
    for option in fs::read_dir(root.join("options"))? {
        let option = option?.path();
        let value = fs::read_to_string(&option)?;
        all.insert(option.display().to_string(), value);
    }
    let instances = fs::read_dir(root.join("instances"))?.count();
    all.insert("instances".to_owned(), instances.to_string());
    Ok(all)
}

fn recorder(disk: &str, output: &str) -> Command {
    let mut command = Command::new("portolan");
    command.args(["record", "--latency", "1", "--seconds", "1", "--force", "-o", output]);
    command.args(["--", "read-on", disk, "4096"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn said(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&all).into_owned()
}

/// Records, while the main tracing has the tracer, and has all of its settings back afterwards.
fn measures(disk: &str) -> Result<()> {
    // Whichever tracer is the first, the kernel makes its buffers larger for it, and leaves them so.
    fs::write(Path::new(TRACING).join("current_tracer"), "nop")?;
    let before = settings()?;
    let mut child = recorder(disk, PORT).spawn()?;
    let begin = Instant::now();
    let file = Path::new(TRACING).join("current_tracer");
    let mut measured = false;
    while child.try_wait()?.is_none() && begin.elapsed() < LIMIT {
        measured |= fs::read_to_string(&file)?.trim() == TRACER;
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output()?;
    println!("{}", said(&output));
    ensure!(measured, "it never used the main tracing's {TRACER}");
    ensure!(output.status.success(), "{}", output.status);
    unchanged(&before)
}

/// Checks that it refuses while the main tracing has an enabled event, and leaves the event enabled.
fn refuses(disk: &str) -> Result<()> {
    let event = Path::new(TRACING).join("events/sched/sched_process_exit/enable");
    fs::write(&event, "1")?;
    let before = settings()?;
    let output = recorder(disk, "/tmp/refused.gz").output()?;
    let said = said(&output);
    let wanted = ["set_event", "sched_process_exit"];
    let is_told = wanted.iter().all(|part| said.contains(part));
    ensure!(output.status.code() == Some(2) && is_told, "{}: {said}", output.status);
    unchanged(&before)?;
    fs::write(&event, "0")?;
    Ok(())
}

fn unchanged(before: &BTreeMap<String, String>) -> Result<()> {
    let now = settings()?;
    let changed = before.iter().find(|(name, value)| now.get(*name) != Some(value));
    ensure!(changed.is_none() && now.len() == before.len(), "{changed:?} has changed: {now:?}");
    Ok(())
}
