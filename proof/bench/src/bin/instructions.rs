//! `instructions [NAME] [--check] [--json]`: instructions per unit of each scenario, under valgrind.
//!
//! The program runs itself under callgrind, which collects only inside [`measured`], once with some
//! passes and once with twice as many: the difference is free of work that is done once. Scenarios
//! with cold caches are left out, since instruction counts do not depend on caches.
//!
//! Exit status: 0; 1 if `--check` found a budget exceeded; 2 for wrong usage; 3 without valgrind.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use portolan_bench::scenarios::Sample;
use portolan_bench::{Cache, Scenario, Workload, all};
use portolan_cli::display;
use serde::Serialize;

/// Passes of the shorter run.
const PASSES: u32 = 4;

/// The most instructions per unit that `--check` accepts.
struct Budget {
    name: &'static str,
    instructions: f64,
    reason: &'static str,
}

const MEASURED: &str = "at most 3 % above the count, so that what grows is seen";

const CHECKED_AREA: &str =
    "14 are for a check of the slots that an area returns, since others may write areas";

const fn budget(name: &'static str, instructions: f64, reason: &'static str) -> Budget {
    Budget { name, instructions, reason }
}

const BUDGETS: &[Budget] = &[
    budget("map_sg", 11.8, MEASURED),
    budget("map_sg_noncoherent", 12.5, MEASURED),
    budget("map_2m_as_pages", 4.6, MEASURED),
    budget("map_32m_as_pages", 3.4, MEASURED),
    budget("map_page", 174.0, MEASURED),
    budget("map_page_reused", 167.0, MEASURED),
    budget("unmap_page", 258.0, MEASURED),
    budget("unmap_page_planned", 291.0, MEASURED),
    budget("unmap_page_alone", 129.0, MEASURED),
    budget("page_cycle", 554.0, MEASURED),
    budget("unmap_2m", 285.0, MEASURED),
    budget("unmap_32m", 990.0, MEASURED),
    budget("unmap_16m_shifted", 4824.0, MEASURED),
    budget("vtd_map_page", 210.0, MEASURED),
    budget("vtd_unmap_page", 301.0, MEASURED),
    budget("vtd_map_256", 1769.0, MEASURED),
    budget("vtd_unmap_256", 1752.0, MEASURED),
    budget("amd_map_page", 221.0, MEASURED),
    budget("amd_unmap_page", 288.0, MEASURED),
    budget("amd_map_256", 1762.0, MEASURED),
    budget("amd_unmap_256", 1737.0, MEASURED),
    budget("amd_marks", 34.8, MEASURED),
    budget("vtd_marks", 34.8, MEASURED),
    budget("x86_map_page", 218.0, MEASURED),
    budget("x86_unmap_page", 301.0, MEASURED),
    budget("x86_map_256", 1786.0, MEASURED),
    budget("x86_unmap_256", 1751.0, MEASURED),
    budget("riscv_map_page", 212.0, MEASURED),
    budget("riscv_unmap_page", 298.0, MEASURED),
    budget("riscv_map_256", 1811.0, MEASURED),
    budget("riscv_unmap_256", 1769.0, MEASURED),
    budget("iova_page", 97.0, MEASURED),
    budget("dma_4k_lazy", 668.0, MEASURED),
    budget("dma_4k_strict", 638.0, MEASURED),
    budget("dma_4k_owned", 775.0, MEASURED),
    budget("dma_4k_deferred", 871.0, MEASURED),
    budget("dma_4k_lazy_noncoherent", 1177.0, MEASURED),
    budget("dma_4k_strict_noncoherent", 1129.0, MEASURED),
    budget("dma_4k_deferred_noncoherent", 1446.0, MEASURED),
    budget("dma_sg_2_strict", 1389.0, MEASURED),
    budget("dma_sg_2_lazy", 1342.0, MEASURED),
    budget("dma_sg_2_deferred", 1377.0, MEASURED),
    budget("dma_sg_16_strict", 1740.0, MEASURED),
    budget("dma_sg_16_lazy", 1697.0, MEASURED),
    budget("dma_sg_16_deferred", 1732.0, MEASURED),
    budget("dma_sg_16_strict_noncoherent", 2045.0, MEASURED),
    budget("dma_sg_16_deferred_noncoherent", 2030.0, MEASURED),
    budget("dma_sg_256_strict", 7656.0, MEASURED),
    budget("dma_sg_256_lazy", 7895.0, MEASURED),
    budget("dma_sg_256_deferred", 7919.0, MEASURED),
    budget("dma_live_256_lazy", 854.0, MEASURED),
    budget("dma_live_256_strict", 728.0, MEASURED),
    budget("dma_live_65536_lazy", 860.0, MEASURED),
    budget("dma_live_65536_strict", 728.0, MEASURED),
    budget("dma_aged_65536_lazy", 860.0, MEASURED),
    budget("dma_aged_65536_strict", 732.0, MEASURED),
    budget("iova_page_32", 119.0, MEASURED),
    budget("iova_page_128", 155.0, MEASURED),
    budget("iova_give_many", 109.0, MEASURED),
    budget("map_sg_contiguous", 10.1, MEASURED),
    // A string instruction counts once a byte.
    budget("bounce_copy_4k", 4700.0, MEASURED),
    budget("bounce_copy_64k", 67000.0, MEASURED),
    budget("dma_4k_copied", 5471.0, MEASURED),
    budget("slot_5", 254.0, CHECKED_AREA),
    budget("slot_90", 254.0, CHECKED_AREA),
];

/// A row of the output.
#[derive(Serialize)]
struct InstructionRow {
    name: &'static str,
    unit: String,
    instructions: f64,
    /// Not counted for a check, which does not need it.
    plain_loop: Option<f64>,
    budget: Option<f64>,
    reason: Option<&'static str>,
}

#[derive(Serialize)]
struct Document<'r> {
    instructions: &'r [InstructionRow],
}

/// Task of a run of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Count,
    Check,
}

enum Output {
    Table,
    Json,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, name, which, passes] = args.as_slice()
        && flag == "--child"
    {
        return child(name, which, passes);
    }
    let (mut task, mut output, mut name) = (Task::Count, Output::Table, String::new());
    for arg in args {
        match arg.as_str() {
            "--check" => task = Task::Check,
            "--json" => output = Output::Json,
            other if !other.starts_with('-') && name.is_empty() => name = arg,
            _ => {
                eprintln!("usage: instructions [NAME] [--check] [--json]");
                return ExitCode::from(2);
            }
        }
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("SKIP instructions: no valgrind; install the package valgrind");
        return ExitCode::from(3);
    }
    let rows = match count_all(&name, task) {
        Ok(rows) => rows,
        Err(error) => {
            eprintln!("instructions: {error}");
            return ExitCode::FAILURE;
        }
    };
    let text = match output {
        Output::Table => Ok(tabulate(&rows).trim_end().to_owned()),
        Output::Json => serde_json::to_string_pretty(&Document { instructions: &rows }),
    };
    match text {
        Ok(text) => println!("{text}"),
        Err(error) => {
            eprintln!("instructions: {error}");
            return ExitCode::FAILURE;
        }
    }
    match task {
        Task::Count => ExitCode::SUCCESS,
        Task::Check => check(&rows),
    }
}

/// A field of a report of the tracing hook's, backwards: so this program has it only if the library's
/// code for reports is in it.
const REPORT: [u8; 14] = *b"=ezis_deppamnu";

/// Tells if this program contains the code for reports, which no platform of it wants.
fn reports() -> std::io::Result<bool> {
    let report = std::hint::black_box(REPORT);
    let program = std::fs::read(std::env::current_exe()?)?;
    let mut places = program.windows(report.len());
    Ok(places.any(|bytes| bytes.iter().rev().eq(&report)))
}

fn check(rows: &[InstructionRow]) -> ExitCode {
    let mut status = ExitCode::SUCCESS;
    match reports() {
        Ok(false) => {}
        found => {
            eprintln!("instructions: a tracing hook is compiled that no platform wants: {found:?}");
            status = ExitCode::FAILURE;
        }
    }
    for row in rows {
        let Some(budget) = row.budget else {
            eprintln!("instructions: {} has no budget", row.name);
            status = ExitCode::FAILURE;
            continue;
        };
        if row.instructions > budget {
            let reason = row.reason.unwrap_or_default();
            let (name, count) = (row.name, row.instructions);
            eprintln!("instructions: {name}: {count:.1} is over {budget} ({reason})");
            status = ExitCode::FAILURE;
        }
    }
    status
}

fn tabulate(rows: &[InstructionRow]) -> String {
    let header =
        ["benchmark", "unit", "instructions", "plain loop", "budget"].map(|name| (name, 0));
    let maybe = |x: Option<f64>| x.map_or(String::new(), |x| x.to_string());
    let rows = rows.iter().map(|row| {
        vec![
            row.name.to_owned(),
            row.unit.clone(),
            format!("{:.1}", row.instructions),
            row.plain_loop.map_or(String::new(), |count| format!("{count:.1}")),
            maybe(row.budget),
        ]
    });
    display::table(&header, &[2, 3, 4], rows.collect(), display::width_of_output())
}

/// Counts everything, in as many processes as there are CPUs; callgrind's counts do not depend on other processes.
fn count_all(name: &str, task: Task) -> Result<Vec<InstructionRow>, String> {
    let wanted: Vec<Scenario> =
        all().into_iter().filter(|s| countable(s) && s.name.contains(name)).collect();
    let (next, cpus) = (AtomicUsize::new(0), std::thread::available_parallelism());
    let worker = || {
        let taken = || wanted.get(next.fetch_add(1, Relaxed));
        let counted = std::iter::from_fn(|| taken().map(|one| (one.name, count(one, task))));
        counted.collect::<Vec<_>>()
    };
    let mut counts: HashMap<_, _> = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..cpus.map_or(1, usize::from)).map(|_| scope.spawn(worker)).collect();
        let each = workers.into_iter().filter_map(|worker| worker.join().ok());
        each.flatten().collect()
    });
    let lost = |name| Err(format!("{name}: the thread that counted it is gone"));
    let of = |one: &Scenario| counts.remove(one.name).unwrap_or_else(|| lost(one.name));
    wanted.iter().map(of).collect()
}

/// Tells if a count is meaningful: of one thread, in passes of many calls, with warm caches.
fn countable(scenario: &Scenario) -> bool {
    let passes = scenario.cache == Cache::Hot && scenario.sample == Sample::Pass;
    passes && scenario.threads == 1
}

fn count(scenario: &Scenario, task: Task) -> Result<InstructionRow, String> {
    let units = (scenario.make)().map_err(|e| e.to_string())?.units();
    let budget = BUDGETS.iter().find(|budget| budget.name == scenario.name);
    let plain_loop = match task {
        Task::Count => Some(per_unit(scenario.name, LIMIT, units)?),
        Task::Check => None,
    };
    Ok(InstructionRow {
        name: scenario.name,
        unit: scenario.unit.replace("ns", "instructions"),
        instructions: per_unit(scenario.name, OURS, units)?,
        plain_loop,
        budget: budget.map(|budget| budget.instructions),
        reason: budget.map(|budget| budget.reason),
    })
}

/// Instructions per unit of the operation or the plain loop of the scenario `name`.
fn per_unit(name: &str, which: &str, units: u64) -> Result<f64, String> {
    let short = collected(name, which, PASSES)?;
    let long = collected(name, which, 2 * PASSES)?;
    let difference = long.checked_sub(short).ok_or("the longer run took fewer instructions")?;
    Ok(difference as f64 / (f64::from(PASSES) * units as f64))
}

/// Number of instructions that callgrind counts in `passes` passes.
fn collected(name: &str, which: &str, passes: u32) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*instructions*measured*")
        .arg(program)
        .args(["--child", name, which, &passes.to_string()])
        .output()
        .map_err(|e| e.to_string())?;
    let report = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("valgrind failed:\n{report}"));
    }
    parse(&report).ok_or(format!("no count from valgrind:\n{report}"))
}

/// The number in the line `==1234== Collected : 567`.
fn parse(report: &str) -> Option<u64> {
    let line = report.lines().find(|line| line.contains("Collected :"))?;
    line.rsplit(' ').find(|word| !word.is_empty())?.parse().ok()
}

const OURS: &str = "ours";
const LIMIT: &str = "limit";

/// Runs one scenario, as the process that callgrind looks at.
fn child(name: &str, which: &str, passes: &str) -> ExitCode {
    let scenario = all().into_iter().find(|scenario| scenario.name == name);
    let (Some(scenario), Ok(passes)) = (scenario, passes.parse::<u32>()) else {
        return ExitCode::from(2);
    };
    let make = match which {
        OURS => scenario.make,
        LIMIT => scenario.make_limit,
        _ => return ExitCode::from(2),
    };
    let run = || {
        let mut work = make()?;
        for _ in 0..passes {
            work.prepare()?;
            measured(&mut *work)?;
        }
        Ok::<(), portolan_bench::Failure>(())
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The only function in which callgrind collects.
#[inline(never)]
fn measured(work: &mut dyn Workload) -> Result<(), portolan_bench::Failure> {
    let result = work.run();
    // The line after the call keeps it from being the function's last, and so a jump.
    std::hint::black_box(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_has_a_budget() {
        for scenario in all().iter().filter(|s| countable(s)) {
            let name = scenario.name;
            assert!(BUDGETS.iter().any(|budget| budget.name == name), "{name}");
        }
    }

    #[test]
    fn the_report_is_one_of_the_library() {
        let library = include_bytes!("../../../../crates/portolan/src/dma/trace.rs");
        let mut places = library.windows(REPORT.len());
        assert!(places.any(|bytes| bytes.iter().rev().eq(&REPORT)));
    }

    #[test]
    fn finds_the_count() {
        let report = "==7== Events    : Ir\n==7== Collected : 31415\n==7== \n";
        assert_eq!(parse(report), Some(31415));
        assert_eq!(parse("==7== nothing"), None);
    }
}
