//! `portolan-bench [NAME]`: wall times of the library's own operations on this machine.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use portolan_bench::linux::{self, Absent, Fetch, Prepared};
use portolan_bench::measure::{self, BenchReport, Extent};
use portolan_bench::{all, bounce, fault, iotlb, memory, no_sse, page, sharing, text};
use portolan_cli::progress::Progress;
use portolan_cli::{Outcome, Output};

/// Measures the library's operations on this machine.
#[derive(Debug, Parser)]
#[command(name = "portolan-bench", version, about)]
struct Cli {
    /// Measures only benchmarks that have this in their name; `fault`, `iotlb`, `memory`, `no-sse`, `sharing`,
    /// and `bounce` (pools on real threads), only if named. `linux` measures nothing: it downloads Linux's sources
    /// if they are not here, compiles them, runs their self-test and their driver of a virtio-iommu, this on
    /// portolan-vmm's device (exit code 3 if something is not installed).
    #[arg(default_value = "")]
    name: String,
    /// A few samples only, which show that everything works and no more.
    #[arg(long)]
    short: bool,
    /// For `bounce`: the most threads; as many as there are CPUs if absent.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Measures everything, and writes this machine's figures to docs/performance.md and the README.
    #[arg(long, conflicts_with_all = ["name", "short", "threads", "json", "wide"])]
    write: bool,
    /// Measures nothing, and writes docs/performance.md from the figures of both machines.
    #[arg(long, conflicts_with_all = ["name", "short", "threads", "json", "wide", "write"])]
    page: bool,
    #[command(flatten)]
    output: Output,
}

fn main() -> ExitCode {
    let args = Cli::parse();
    match args.name.as_str() {
        LINUX => peer(),
        _ => portolan_cli::exit("portolan-bench", run(&args)),
    }
}

/// Name under which Linux's code is prepared.
const LINUX: &str = "linux";

/// Prepares Linux's code.
fn peer() -> ExitCode {
    let (mut missing, mut broken) = (false, false);
    for Prepared { name, outcome } in linux::prepare(Fetch::IfMissing) {
        match outcome {
            Ok(said) => println!("{said}"),
            Err(Absent::Missing(why)) => {
                println!("SKIP {name}: {why}");
                missing = true;
            }
            Err(Absent::Broken(why)) => {
                eprintln!("portolan-bench: {name}: {why}");
                broken = true;
            }
        }
    }
    if !missing && !broken {
        match linux::try_viommu() {
            Ok(said) => println!("its driver of a virtio-iommu on portolan-vmm's device: {said}"),
            Err(why) => {
                eprintln!("portolan-bench: Linux's driver of a virtio-iommu: {why}");
                broken = true;
            }
        }
    }
    match (broken, missing) {
        (true, _) => ExitCode::FAILURE,
        (false, true) => ExitCode::from(3),
        (false, false) => ExitCode::SUCCESS,
    }
}

fn run(args: &Cli) -> Result<Outcome> {
    let (name, output) = (args.name.as_str(), args.output);
    if name != bounce::NAME && args.threads.is_some() {
        bail!("--threads is for `portolan-bench {}`", bounce::NAME);
    }
    if args.page {
        page::write_page()?;
        return Ok(Outcome::Good);
    }
    let extent = if args.short { Extent::Short } else { Extent::Whole };
    match name {
        bounce::NAME => {
            let report = pools(args.threads.map(usize::from))?;
            output.show(&report, text::of_bounce)?;
        }
        fault::NAME => output.show(&fault::measure()?, fault::text)?,
        no_sse::NAME => {
            if let Some(why) = no_sse::missing()? {
                println!("SKIP {}: {why}", no_sse::NAME);
                return Ok(Outcome::Good);
            }
            output.show(&no_sse::measure(extent)?, no_sse::text)?;
        }
        memory::NAME => output.show(&memory::measure()?, memory::text)?,
        iotlb::NAME => output.show(&iotlb::measure(extent)?, iotlb::text)?,
        sharing::NAME => output.show(&sharing::measure(extent)?, sharing::text)?,
        name => {
            let report = scenarios(name, extent)?;
            output.show(&report, text::of_scenarios)?;
            if args.write {
                page::write(&report)?;
            }
        }
    }
    Ok(Outcome::Good)
}

/// Measures the scenarios whose name holds `name`.
fn scenarios(name: &str, extent: Extent) -> Result<BenchReport> {
    let all = all();
    let names: Vec<_> = all.iter().map(|scenario| scenario.name).collect();
    let wanted: Vec<_> = all.iter().filter(|s| s.name.contains(name)).collect();
    if wanted.is_empty() {
        bail!(
            "no benchmark's name holds {name:?}; there are {}, {}, {}, {}, {}, {} and {}",
            names.join(", "),
            bounce::NAME,
            fault::NAME,
            iotlb::NAME,
            memory::NAME,
            no_sse::NAME,
            sharing::NAME
        );
    }
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let progress = Progress::new(wanted.len() as u64);
    let (mut benchmarks, mut skipped) = (Vec::new(), Vec::new());
    for scenario in wanted {
        if let Some(why) = measure::lacks(scenario, cpus) {
            skipped.push((scenario.name, why));
            continue;
        }
        let row = measure::run(scenario, extent);
        benchmarks.push(row.with_context(|| scenario.name)?);
        progress.add(1);
    }
    Ok(BenchReport::of(benchmarks, skipped))
}

/// Measures bounce slots on up to `threads` threads; as many as there are CPUs if nothing is asked for.
fn pools(threads: Option<usize>) -> Result<bounce::BounceReport> {
    let here = || std::thread::available_parallelism().map_or(1, usize::from);
    let cases = bounce::cases(threads.unwrap_or_else(here));
    let progress = Progress::new(cases.len() as u64);
    let mut benchmarks = Vec::new();
    for case in &cases {
        benchmarks.push(bounce::run(case)?);
        progress.add(1);
    }
    Ok(bounce::BounceReport { benchmarks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
