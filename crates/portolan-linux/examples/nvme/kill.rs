//! Traces of a driver that was killed: none, by the kernel's own counts.

use std::fs;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{Arguments, interfaces};

/// Pages that are pinned for devices, on the whole machine.
fn pinned() -> Result<u64> {
    // CPUs count by themselves; reading this has them add up (Documentation/admin-guide/sysctl/vm.rst).
    fs::read("/proc/sys/vm/stat_refresh").context("the kernel's counters: run as root")?;
    let counters = fs::read_to_string("/proc/vmstat")?;
    let of = |name: &str| -> Option<u64> {
        let mut lines = counters.lines();
        lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    let acquired = of("nr_foll_pin_acquired ").context("/proc/vmstat counts no pins")?;
    let released = of("nr_foll_pin_released ").context("/proc/vmstat counts no pins")?;
    Ok(acquired.saturating_sub(released))
}

/// A process that reads without end, until this is dropped.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a driver, kills it while it reads, compares the number of pinned pages, and opens the function again.
pub fn run(arguments: &Arguments) -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let ours = ["--kill", "--bind"];
    let words = words.into_iter().filter(|word| !ours.contains(&word.as_str()));
    let before = pinned()?;
    let mut command = Command::new(std::env::current_exe()?);
    let mut victim = Victim(command.args(words).arg("--endless").spawn()?);
    let begin = Instant::now();
    let meanwhile = loop {
        let now = pinned()?;
        // Queues are pinned first, then as many pages as there are requests in flight.
        if now > before + u64::from(arguments.depth) {
            break now;
        }
        if let Some(status) = victim.0.try_wait()? {
            bail!("the driver ended by itself: {status}");
        }
        ensure!(begin.elapsed() < Duration::from_secs(60), "the driver pins no pages");
        std::thread::yield_now();
    };
    drop(victim);
    let after = pinned()?;
    for opened in interfaces(arguments) {
        opened.context("the function, once its driver was killed")?;
    }
    portolan_cli::print(&format!(
        "pinned pages: {before} before, {meanwhile} while the driver read, {after} after it was killed\n"
    ))?;
    ensure!(after == before, "{} pages stay pinned", after.abs_diff(before));
    Ok(())
}
