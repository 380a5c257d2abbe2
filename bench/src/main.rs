//! `portolan-bench [NAME]`: wall times of the library's own operations on this machine.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;
use portolan_bench::measure::{self, Report};
use portolan_bench::{all, bounce, fault, text};
use portolan_cli::progress::Progress;
use portolan_cli::{Outcome, Output};

/// Measures the library's operations on this machine.
#[derive(Debug, Parser)]
#[command(name = "portolan-bench", version, about)]
struct Cli {
    /// Measures only what has this in its name; `fault`, and `bounce` (pools on real threads), only if
    /// named.
    #[arg(default_value = "")]
    name: String,
    /// For `bounce`: the most threads; as many as there are CPUs if absent.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    #[command(flatten)]
    output: Output,
}

fn main() -> ExitCode {
    portolan_cli::exit("portolan-bench", run(&Cli::parse()))
}

fn run(args: &Cli) -> Result<Outcome> {
    let (name, output) = (args.name.as_str(), args.output);
    if name != bounce::NAME && args.threads.is_some() {
        bail!("--threads is for `portolan-bench {}`", bounce::NAME);
    }
    match name {
        bounce::NAME => {
            let report = pools(args.threads.map(usize::from))?;
            output.show(&report, text::of_bounce)?;
        }
        fault::NAME => output.show(&fault::measure()?, fault::text)?,
        name => output.show(&scenarios(name)?, text::of_scenarios)?,
    }
    Ok(Outcome::Good)
}

/// Measures the scenarios whose name holds `name`.
fn scenarios(name: &str) -> Result<Report> {
    let all = all();
    let names: Vec<_> = all.iter().map(|scenario| scenario.name).collect();
    let wanted: Vec<_> = all.iter().filter(|s| s.name.contains(name)).collect();
    if wanted.is_empty() {
        bail!(
            "no benchmark's name holds {name:?}; there are {}, {} and {}",
            names.join(", "),
            bounce::NAME,
            fault::NAME
        );
    }
    let progress = Progress::new(wanted.len() as u64);
    let mut benchmarks = Vec::new();
    for scenario in wanted {
        benchmarks.push(measure::run(scenario)?);
        progress.add(1);
    }
    Ok(Report { benchmarks })
}

/// Measures bounce slots on up to `threads` threads; as many as there are CPUs if nothing is asked for.
fn pools(threads: Option<usize>) -> Result<bounce::Report> {
    let here = || std::thread::available_parallelism().map_or(1, usize::from);
    let cases = bounce::cases(threads.unwrap_or_else(here));
    let progress = Progress::new(cases.len() as u64);
    let mut benchmarks = Vec::new();
    for case in &cases {
        benchmarks.push(bounce::run(case)?);
        progress.add(1);
    }
    Ok(bounce::Report { benchmarks })
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
