//! Two threads in one table, beside two virtual CPUs that do the same: a test of the prices of sharing.
//!
//! Two figures of this machine go into the virtual run: the time of a map and an unmap by one thread, and the time in
//! which a cache line goes from one CPU to another, of two threads that answer each other through one word. The time of
//! two threads is predicted from them, and measured.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Result, bail};
use portolan::addr::{CpuId, Iova, IovaRange, PageSize, PhysAddr};
use portolan::inval::Gather;
use portolan::platform::{SlabTables, TableMem};
use portolan::table::{Format, PageTable};
use portolan_cli::display;
use portolan_sim::cpus::{Schedule, SharedTables, SharingPrices, VirtualCpus, VirtualEntry};
use serde::Serialize;

use crate::measure::Extent;
use crate::rig::{BASE, BLOCK, MEMORY, PAGE, SEED, SINGLES, access, format};
use crate::singles;
use crate::workload::{Failure, Workload};

/// The name of this benchmark.
pub const NAME: &str = "sharing";
/// Times that a line goes to the other CPU and comes back, in one sample: short, so that both run all the while.
const ROUNDS: u64 = 500;
/// Pairs of a map and an unmap of each virtual CPU.
const VIRTUAL_PAIRS: u64 = 2_000;
const SAMPLES: usize = 31;
const SAMPLES_SHORT: usize = 3;
/// Table pages of a run.
const TABLES: u32 = 64;

/// The document that `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct SharingReport {
    /// Nanoseconds in which a line comes from another CPU, measured.
    pub transfer_ns: f64,
    /// Rows.
    pub benchmarks: Vec<SharingRow>,
}

/// Two threads whose addresses have a distance.
#[derive(Clone, Debug, Serialize)]
pub struct SharingRow {
    /// `sharing`.
    pub name: &'static str,
    /// Bytes between the addresses of the two.
    pub apart: u64,
    /// Nanoseconds of a map and an unmap by one thread, measured.
    pub one_ns: f64,
    /// The same for each of two threads at once, measured.
    pub two_ns: f64,
    /// The same, predicted in virtual time.
    pub predicted_ns: f64,
    /// Lines that a pair brings from the other CPU, in virtual time.
    pub transfers_per_pair: f64,
}

/// Measures and predicts.
///
/// # Errors
/// If there is one CPU only, or a run fails.
pub fn measure(extent: Extent) -> Result<SharingReport> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < 2 {
        bail!("`{NAME}` needs two CPUs, and there is one");
    }
    let samples = match extent {
        Extent::Whole => SAMPLES,
        Extent::Short => SAMPLES_SHORT,
    };
    // The least: whatever else the machine does makes it more.
    let transfer_ns = (0..10 * samples).map(|_| transfer()).fold(f64::MAX, f64::min);
    let benchmarks = [BLOCK, 8 * BLOCK].into_iter().map(|apart| row(apart, samples, transfer_ns));
    Ok(SharingReport { transfer_ns, benchmarks: benchmarks.collect::<Result<_>>()? })
}

fn row(apart: u64, samples: usize, transfer_ns: f64) -> Result<SharingRow> {
    let one_ns = pair(1, apart, samples)?;
    let two_ns = pair(2, apart, samples)?;
    let (predicted_ns, transfers_per_pair) = predict(apart, one_ns, transfer_ns)?;
    Ok(SharingRow { name: NAME, apart, one_ns, two_ns, predicted_ns, transfers_per_pair })
}

/// The middle one.
fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or_default()
}

/// Nanoseconds of a pair by each of `threads`.
fn pair(threads: u32, apart: u64, samples: usize) -> Result<f64, Failure> {
    let mut together = singles::threads(threads, apart)?;
    together.run()?;
    let each = together.units() as f64;
    let taken: Result<Vec<f64>, Failure> =
        (0..samples).map(|_| Ok(together.run_timed()? / each)).collect();
    Ok(median(taken?))
}

/// Nanoseconds in which a line comes from another CPU: a CPU that waits for a word reads it, and then writes it.
fn transfer() -> f64 {
    let word = Arc::new(AtomicU64::new(0));
    let begun = Arc::new(AtomicBool::new(false));
    let answer = |word: &AtomicU64, parity: u64| {
        for round in 0..ROUNDS {
            while word.load(Ordering::Acquire) != 2 * round + parity {
                std::hint::spin_loop();
            }
            word.store(2 * round + parity + 1, Ordering::Release);
        }
    };
    let other = {
        let (word, begun) = (Arc::clone(&word), Arc::clone(&begun));
        std::thread::spawn(move || {
            begun.store(true, Ordering::Release);
            answer(&word, 1);
        })
    };
    while !begun.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    let start = Instant::now();
    answer(&word, 0);
    let taken = start.elapsed().as_nanos() as f64;
    let _ = other.join();
    // Two answers a round, of two transfers each.
    taken / (4 * ROUNDS) as f64
}

/// Nanoseconds of a pair by each of two virtual CPUs, and the lines that it brings from the other one.
fn predict(apart: u64, one_ns: f64, transfer_ns: f64) -> Result<(f64, f64)> {
    let prices = SharingPrices {
        transfer: transfer_ns,
        share: transfer_ns,
        relax: transfer_ns,
        ..SharingPrices::default()
    };
    let cpus = VirtualCpus::new(2, prices);
    let format = SharedTables(format()?);
    let at = PhysAddr::new(MEMORY.get() / 2);
    let memory = SlabTables::<VirtualEntry>::new(at, PageSize::SIZE_4K, TABLES);
    let table = PageTable::new(format, memory)?;
    let first = |cpu: CpuId| BASE.get() + u64::from(cpu.get()) * apart;
    for cpu in [0, 1].map(CpuId::new) {
        // As for the threads: a page that stays mapped keeps the leaf table in place.
        let kept = Iova::new(first(cpu) + BLOCK - PAGE);
        table.map(kept, MEMORY, PAGE, access(), &mut Gather::new())?;
    }
    let refused = AtomicBool::new(false);
    let run = cpus.run(&Schedule::of_seed(SEED), |cpu| {
        if pairs(&table, first(cpu), || cpus.work(one_ns / 2.0)).is_err() {
            refused.store(true, Ordering::Relaxed);
        }
    })?;
    if refused.into_inner() {
        bail!("the table refused a page that was free");
    }
    let transfers = run.counters.transfers as f64 / (2 * VIRTUAL_PAIRS) as f64;
    Ok((run.end_ns() / VIRTUAL_PAIRS as f64, transfers))
}

/// Maps and unmaps pages of a range from `first`, each call after `work`.
fn pairs<F: Format, M: TableMem<F::Word>>(
    table: &PageTable<F, M>,
    first: u64,
    work: impl Fn(),
) -> Result<(), Failure> {
    for i in 0..VIRTUAL_PAIRS {
        let iova = Iova::new(first + i % SINGLES * PAGE);
        work();
        table.map(iova, MEMORY, PAGE, access(), &mut Gather::new())?;
        work();
        table.unmap(IovaRange::page(iova, PageSize::SIZE_4K), &mut Gather::new())?;
    }
    Ok(())
}

/// The report for people, in lines of `columns`.
pub fn text(report: &SharingReport, columns: usize) -> String {
    let header = [
        ("apart", 0),
        ("one thread ns", 0),
        ("two threads ns", 0),
        ("times", 0),
        ("predicted ns", 0),
        ("times", 0),
        ("lines a pair", 1),
    ];
    let rows = report.benchmarks.iter().map(|row| {
        let mib = format!("{} MiB", row.apart >> 20);
        let ns = |ns: f64| format!("{ns:.1}");
        let times = |ns: f64| format!("{:.2}", ns / row.one_ns);
        let lines = format!("{:.2}", row.transfers_per_pair);
        let (two, predicted) = (row.two_ns, row.predicted_ns);
        vec![mib, ns(row.one_ns), ns(two), times(two), ns(predicted), times(predicted), lines]
    });
    let mut out = display::table(&header, &[1, 2, 3, 4, 5, 6], rows.collect(), columns);
    let _ = writeln!(
        out,
        "\nA page mapped and unmapped in one table, by one thread and by each of two at once: measured, and predicted \
         in virtual time from the first figure and {:.1} ns in which a line comes from the other CPU, measured too.",
        report.transfer_ns
    );
    display::wrapped(&out, columns)
}
