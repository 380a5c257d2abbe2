//! `record-rates RATE…`: has `portolan record` record so many events a second, and says how many it lost.
//!
//! The events are a probe's on `getppid` (Linux, Documentation/trace/kprobetrace.rst), as large as a map's, under a
//! name that the recorder looks for and this kernel has no event for. A task for each CPU calls it: so many calls each
//! millisecond, and rest. Counts of what was lost are the kernel's. A line for each rate is `rate: ` and JSON.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

const TRACING: &str = "/sys/kernel/tracing";
/// Events of maps; each kernel has only some.
const NAMES: [&str; 2] = ["dma_map_page", "dma_map_phys"];
const FIELDS: &str = "dma=%di:x64 size=%si:u64 phys=%dx:x64 dir=%cx:u32 attrs=%r8:x64";
const SENT: &str = "/tmp/sent";
const SECONDS: u32 = 1;
const BURST: Duration = Duration::from_millis(1);

/// Result of one rate.
#[derive(Serialize)]
struct Rate {
    asked: u32,
    /// Events that were sent, a second.
    sent: u64,
    recorded: u64,
    lost: u64,
}

/// Counts of the recorder.
#[derive(Deserialize)]
struct Report {
    events: u64,
    lost_events: u64,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rates = |words: &[String]| -> Result<Vec<u32>> {
        let rates = words.iter().map(|word| Ok(word.parse()?));
        rates.collect()
    };
    if let [first, rest @ ..] = &arguments[..]
        && first == "send"
    {
        let rate = rates(rest)?;
        return send(*rate.first().context("usage: record-rates send RATE")?);
    }
    let events = Path::new(TRACING).join("events/dma");
    let name = NAMES
        .into_iter()
        .find(|name| !events.join(name).exists())
        .context("this kernel has all events of maps")?;
    let probes = Path::new(TRACING).join("kprobe_events");
    let probe = format!("p:dma/{name} __x64_sys_getppid {FIELDS}");
    fs::write(&probes, &probe).with_context(|| probe.clone())?;
    for asked in rates(&arguments)? {
        println!("rate: {}", serde_json::to_string(&record(asked)?)?);
    }
    // A file that is opened anew has no probes.
    fs::write(&probes, "").context("the probe stays")
}

fn record(asked: u32) -> Result<Rate> {
    let mut command = Command::new("portolan");
    command.args(["record", "--json", "--force", "-o", "/tmp/rate.gz", "--"]);
    command.args(["record-rates", "send", &asked.to_string()]);
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", output.status);
    let report: Report = serde_json::from_slice(&output.stdout)?;
    let sent: u64 = fs::read_to_string(SENT)?.parse()?;
    ensure!(
        report.events + report.lost_events >= sent,
        "{sent} sent, {} recorded, {} lost",
        report.events,
        report.lost_events
    );
    Ok(Rate {
        asked,
        sent: sent / u64::from(SECONDS),
        recorded: report.events,
        lost: report.lost_events,
    })
}

/// Sends `rate` events a second, or as many as can be.
fn send(rate: u32) -> Result<()> {
    let tasks = thread::available_parallelism().map_or(1, usize::from) as u32;
    let each = rate / tasks / 1000;
    let begin = Instant::now();
    let until = Duration::from_secs(u64::from(SECONDS));
    let task = move || {
        let (mut sent, mut bursts) = (0u64, 0);
        while begin.elapsed() < until {
            for _ in 0..each {
                let _ = rustix::process::getppid();
            }
            sent += u64::from(each);
            bursts += 1;
            thread::sleep((BURST * bursts).saturating_sub(begin.elapsed()));
        }
        sent
    };
    let tasks: Vec<_> = (0..tasks).map(|_| thread::spawn(task)).collect();
    let mut sent = 0;
    for task in tasks {
        sent += task.join().map_err(|_| anyhow::anyhow!("a task panicked"))?;
    }
    Ok(fs::write(SENT, sent.to_string())?)
}
