//! Runs the steps of `cargo xtask test`; the table they end in.
//!
//! Steps that build into folders of their own (other compilers, kernels) are another process beside the
//! rest: tests often keep one core busy alone.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::outcome::Outcome;
use crate::steps::{self, Extent, LongPart, Step};

/// Outcomes of steps: a line each, and the number of each outcome.
#[derive(Default)]
struct Table {
    lines: Vec<String>,
    passed: u32,
    failed: u32,
    skipped: u32,
}

impl Table {
    /// Runs the steps of `list` one after the other, and notes the outcome of each.
    fn run(&mut self, list: Vec<Step>) {
        for Step { name, run } in list {
            println!("==> {name}");
            let (start, before) = (Instant::now(), cpu_seconds());
            let outcome = run();
            let took = start.elapsed().as_secs_f64();
            let cpu = cpu_seconds().zip(before).map(|(now, before)| now - before);
            let cpu = cpu.map_or_else(String::new, |cpu| format!("{cpu:>7.1} CPU-s"));
            let (number, word, why) = match &outcome {
                Outcome::Pass => (&mut self.passed, "PASS", ""),
                Outcome::Fail => (&mut self.failed, "FAIL", ""),
                Outcome::Skip(why) => (&mut self.skipped, "SKIP", why.as_str()),
            };
            *number += 1;
            let line = format!("{word}  {name:<34} {took:>7.1} s {cpu}  {why}");
            self.lines.push(line.trim_end().to_owned());
        }
    }

    /// Prints it; returns if no step failed.
    fn tell(&self) -> bool {
        let (passed, failed, skipped) = (self.passed, self.failed, self.skipped);
        println!();
        self.lines.iter().for_each(|line| println!("{line}"));
        println!("{passed} passed, {failed} failed, {skipped} skipped");
        failed == 0
    }
}

/// CPU time of all programs that this process has waited for, and of their children (`/proc/self/stat`, fields 16 and
/// 17, in hundredths of a second on every Linux machine); `None` elsewhere.
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field, a name in brackets, may have spaces.
    let after_name = stat.rsplit_once(')')?.1;
    let fields = after_name.split_whitespace().skip(13).take(2);
    let ticks: Option<u64> = fields.map(|field| field.parse::<u64>().ok()).sum();
    ticks.map(|ticks| ticks as f64 / 100.0)
}

/// Runs every step; returns if none failed.
pub fn run(root: &Path, extent: Extent) -> bool {
    let mut table = Table::default();
    table.run(steps::first());
    let beside = Beside::start(root, extent);
    table.run(steps::steps(root));
    let beside = beside.map(Beside::finish).unwrap_or_else(|error| {
        eprintln!("the steps beside cannot be started: {error}");
        false
    });
    table.tell() && beside
}

/// Runs the steps that have `text` in their name, one after the other; returns if there are some and none failed.
pub fn run_only(root: &Path, text: &str) -> bool {
    let mut list = steps::steps(root);
    list.extend(steps::beside(root, Extent::Whole));
    list.extend(LongPart::ALL.into_iter().flat_map(|part| part.steps(root)));
    list.retain(|step| step.name.contains(text));
    let any = !list.is_empty();
    if !any {
        eprintln!("no step has {text:?} in its name (docs/checks.md lists them)");
    }
    let mut table = Table::default();
    table.run(list);
    table.tell() && any
}

/// Runs the steps of each of `parts`; returns if none failed.
pub fn run_long(root: &Path, parts: &[LongPart]) -> bool {
    let mut table = Table::default();
    table.run(steps::first());
    for part in parts {
        println!("==> --long {}", part.name());
        table.run(part.steps(root));
    }
    table.tell()
}

/// Runs the steps that have folders of their own; returns if none failed.
pub fn run_beside(root: &Path, extent: Extent) -> bool {
    let mut table = Table::default();
    table.run(steps::beside(root, extent));
    table.tell()
}

/// The process of the parallel steps. Its output is kept until the others are through.
struct Beside {
    process: Child,
    said: PathBuf,
}

impl Beside {
    fn start(root: &Path, extent: Extent) -> std::io::Result<Self> {
        let folder = root.join("target");
        std::fs::create_dir_all(&folder)?;
        let said = folder.join("steps-beside.txt");
        let file = std::fs::File::create(&said)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["test", "--beside"]);
        command.args(extent.options());
        command.stdin(Stdio::null());
        command.stdout(file.try_clone()?).stderr(file);
        let process = command.spawn()?;
        Ok(Self { process, said })
    }

    /// Waits for it, and prints its output; returns if no step failed.
    fn finish(mut self) -> bool {
        println!("==> meanwhile, in folders of their own");
        let status = self.process.wait();
        let said = std::fs::read(&self.said).unwrap_or_default();
        print!("{}", String::from_utf8_lossy(&said));
        status.is_ok_and(|status| status.success())
    }
}
