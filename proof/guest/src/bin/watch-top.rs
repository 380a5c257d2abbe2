//! `watch-top DISK`: runs `portolan top` while `portolan record` records a disk that is read by 4 KiB, and ends others
//! of it by signals.
//!
//! The lines of the first are left as `/dev/virtio-ports/top`, the recording as `trace.gz`. It runs as root in a guest.
#![forbid(unsafe_code)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

const INSTANCES: &str = "/sys/kernel/tracing/instances";
/// Longest time for an instance to come.
const LIMIT: Duration = Duration::from_secs(120);
/// Seconds of an interval: three take longer than the load and its recording.
const INTERVAL: &str = "10";

/// Names of the kernel's instances.
fn instances() -> Result<Vec<String>> {
    let listed = fs::read_dir(INSTANCES).context(INSTANCES)?;
    let names: std::io::Result<Vec<_>> =
        listed.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect();
    Ok(names?)
}

fn top(arguments: &[&str]) -> Result<Child> {
    println!("# portolan top {}", arguments.join(" "));
    let mut command = Command::new("portolan");
    let command = command.arg("top").args(arguments).stdout(Stdio::piped());
    command.spawn().context("portolan top")
}

/// Waits until an instance traces.
fn until_it_traces() -> Result<()> {
    let begin = Instant::now();
    loop {
        let on = |name: &String| {
            let place = Path::new(INSTANCES).join(name);
            let read = |file: &str| fs::read_to_string(place.join(file)).unwrap_or_default();
            !read("set_event").is_empty() && read("tracing_on").trim() == "1"
        };
        if instances()?.iter().any(on) {
            return Ok(());
        }
        ensure!(begin.elapsed() < LIMIT, "no instance traces");
        sleep(Duration::from_millis(10));
    }
}

/// Compares with the load.
fn measure(disk: &str) -> Result<()> {
    let mut watching = top(&["--json", "--count", "3", "--interval", INTERVAL])?;
    until_it_traces()?;
    let mut load = Command::new("portolan");
    load.args(["record", "-o", "/tmp/trace.gz", "--", "read-blocks", disk, "4096"]);
    let ended = load.status().context("portolan record")?;
    ensure!(ended.success(), "portolan record: {ended}");
    ensure!(watching.try_wait()?.is_none(), "the load took longer than what watched it");
    let output = watching.wait_with_output()?;
    ensure!(output.status.success(), "portolan top: {}", output.status);
    ensure!(instances()?.is_empty(), "instances are left: {:?}", instances()?);
    fs::write("/dev/virtio-ports/top", output.stdout)?;
    fs::copy("/tmp/trace.gz", "/dev/virtio-ports/trace.gz")?;
    Ok(())
}

/// Ends it by `signal` after its first table; returns the instances that are left.
fn ended_by(signal: Signal) -> Result<usize> {
    let mut watching = top(&["--interval", "0.5"])?;
    let mut lines = BufReader::new(watching.stdout.take().context("no output")?);
    let mut first = String::new();
    lines.read_line(&mut first)?;
    let id = i32::try_from(watching.id()).ok().and_then(Pid::from_raw);
    kill_process(id.context("no process")?, signal)?;
    for line in lines.lines() {
        line?;
    }
    let status = watching.wait()?;
    ensure!(signal == Signal::KILL || status.success(), "signal {signal:?}: {status}");
    Ok(instances()?.len())
}

fn main() -> Result<()> {
    let disk = std::env::args().nth(1).context("usage: watch-top DISK")?;
    measure(&disk)?;
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let left = ended_by(signal)?;
        ensure!(left == 0, "{left} instances are left after {signal:?}");
    }
    let left = ended_by(Signal::KILL)?;
    ensure!(left == 1, "{left} instances are left after a kill");
    let next = top(&["--count", "1", "--interval", "0.5"])?.wait_with_output()?;
    ensure!(next.status.success() && instances()?.is_empty(), "the next one removes it");
    // A reader that goes away ends it, too.
    let mut unread = top(&["--json", "--interval", "0.1"])?;
    drop(unread.stdout.take());
    let ended = unread.wait()?;
    ensure!(ended.success() && instances()?.is_empty(), "without a reader: {ended}");
    println!("top: nothing is left");
    Ok(())
}
