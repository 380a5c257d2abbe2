//! The bounce-pool table: 4 KiB blocks through a pool with one lock, through the pool that was
//! published as its successor, and through the library's own.
//!
//! Fitted: a CPU's time for a request, on the one-job throughput of each kernel and direction; the device's time, on
//! the four-job throughput of the optimised kernel, each direction; the price of a contended lock, on the four-job
//! read of the vanilla kernel. The rest, the four-job write of the vanilla kernel and every figure of guest CPU,
//! follows from that, as [`bounds`] shows. Each of the three published steps has rows of its own, for which nothing
//! was published.

mod bounds;
mod guest;
mod text;

pub use text::swiotlb_text;

use anyhow::{Context, Result};
use portolan_sim::cpus::SharingPrices;
use portolan_sim::profile::Profile;
use portolan_sim::swiotlb::Strategy;
use serde::Serialize;

use super::bounds::{Bound, Evidence};
use super::published::{self, Direction4K, Kernel, SwiotlbRow};
use super::rows::{Check, FittedPrice, error_pct};
use guest::{BLOCK, GuestLoad, GuestResult, simulate};

/// The machine.
pub const MACHINE: &str = "fio-vm";
/// Resolution in per cent: smaller differences come from counting whole requests in the computed time.
const GRAIN: f64 = 0.25;
/// Numbers of jobs for which the library's pool is compared with the published one.
const JOBS: [usize; 4] = [1, 4, 16, 64];
/// Seed of all that is random.
const SEED: u64 = 1;
/// Number of steps of each fit; each closes most of the remaining gap.
const STEPS: usize = 6;

/// A reproduction of the bounce-pool table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Swiotlb {
    /// `swiotlb`.
    pub name: String,
    /// Name of the machine profile.
    pub machine: String,
    /// Each figure.
    pub rows: Vec<ThroughputRow>,
    /// Prices that were fitted.
    pub prices: Vec<FittedPrice>,
    /// Published rows that are not modelled.
    pub not_modelled: Vec<NotModelled>,
    /// The bounds on figures that were not fitted, and the worth of each without its mechanism.
    pub bounds: Vec<Bound>,
    /// Checks.
    pub checks: Vec<Check>,
}

impl Swiotlb {
    /// Tells if all bounds and checks hold.
    pub fn holds(&self) -> bool {
        let bounds = self.bounds.iter().all(|bound| bound.holds);
        bounds && self.checks.iter().all(|check| check.holds)
    }
}

/// Published figures that nothing here computes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NotModelled {
    /// Jobs.
    pub jobs: usize,
    /// `vanilla` or `optimized`.
    pub variant: &'static str,
    /// `read` or `write`.
    pub direction: &'static str,
    /// Thousands of requests a second: the throughput in other words.
    pub iops_k: f64,
    /// Host CPU; 100 is one CPU.
    pub host_cpu_pct: f64,
}

/// A figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThroughputRow {
    /// `fio`, or `no-device-limit`: the same with a device that takes no time.
    pub case: &'static str,
    /// `vanilla`, `optimized` or `portolan`.
    pub variant: &'static str,
    /// Strategy of the search for slots.
    pub strategy: &'static str,
    /// Jobs.
    pub jobs: usize,
    /// `read` or `write`.
    pub direction: &'static str,
    /// `throughput_mb_s` or `guest_cpu_pct`.
    pub quantity: &'static str,
    /// Published value.
    pub published: Option<f64>,
    /// Value computed in virtual time.
    pub computed: f64,
    /// `computed` against `published`, in per cent.
    pub error_pct: Option<f64>,
    /// A price was fitted on it.
    pub fitted: bool,
    /// Evidence for `computed`.
    pub evidence: Evidence,
    /// Times that a lock was found held, by request.
    pub lock_waits: f64,
    /// Pages of the pool that were in use at one time or another.
    pub pool_pages: u64,
}

/// Prices that the rows fix.
struct FittedPrices {
    sharing: SharingPrices,
    /// Work in nanoseconds, by kernel and direction.
    work_ns: [[f64; 2]; 2],
    /// Device time in nanoseconds, by direction.
    device_ns: [f64; 2],
}

impl FittedPrices {
    fn load(&self, cpus: usize, strategy: Strategy, row: RowKey) -> GuestLoad {
        let direction = row.direction as usize;
        GuestLoad {
            strategy,
            cpus,
            jobs: row.jobs,
            work_ns: self.work_ns[row.kernel as usize][direction],
            device_ns: Some(self.device_ns[direction]),
            sharing: self.sharing,
            seed: SEED,
        }
    }
}

/// A row of the table.
#[derive(Clone, Copy)]
struct RowKey {
    jobs: usize,
    kernel: Kernel,
    direction: Direction4K,
}

const fn strategy_of(kernel: Kernel) -> Strategy {
    match kernel {
        Kernel::Vanilla => Strategy::OneLock,
        Kernel::Optimized => Strategy::RecentFirst,
    }
}

/// Recomputes the bounce-pool table.
///
/// # Errors
/// If the profile or the published table is wrong, or the library refuses an operation.
pub fn swiotlb() -> Result<Swiotlb> {
    let profile = Profile::by_name(MACHINE)?;
    let table = published::swiotlb(published::SWIOTLB)?;
    let cpus = profile.cpus() as usize;
    let lacks = || format!("`{}` does not say what sharing costs", profile.name());
    let known = profile.sharing().with_context(lacks)?.prices();
    let fit = fit(&table, cpus, known)?;
    let mut rows = Vec::new();
    for row in &table {
        rows.extend(published_rows(row, &fit, cpus)?);
    }
    let own = own_rows(&fit, cpus)?;
    let checks = checks(&rows, &own, &fit, known.handover);
    rows.extend(step_rows(&fit, cpus)?);
    rows.extend(own);
    let bounds = bounds::bounds(&rows, &fit, cpus)?;
    bounds::judge(&mut rows, &bounds);
    Ok(Swiotlb {
        name: "swiotlb".to_owned(),
        machine: profile.name().to_owned(),
        rows,
        prices: prices(&fit),
        not_modelled: table.iter().map(not_modelled).collect(),
        bounds,
        checks,
    })
}

fn not_modelled(row: &SwiotlbRow) -> NotModelled {
    NotModelled {
        jobs: row.jobs,
        variant: row.kernel.name(),
        direction: row.direction.name(),
        iops_k: row.iops_k,
        host_cpu_pct: row.host_cpu_pct,
    }
}

fn find(table: &[SwiotlbRow], which: RowKey) -> Result<&SwiotlbRow> {
    let same = |row: &&SwiotlbRow| {
        (row.jobs, row.kernel, row.direction) == (which.jobs, which.kernel, which.direction)
    };
    table.iter().find(same).context("a published row is missing")
}

/// Nanoseconds from one request to the next.
fn period_ns(row: &SwiotlbRow) -> f64 {
    BLOCK as f64 * 1e3 / row.throughput_mb_s
}

fn fit(table: &[SwiotlbRow], cpus: usize, known: SharingPrices) -> Result<FittedPrices> {
    let mut fit = FittedPrices { sharing: known, work_ns: [[0.0; 2]; 2], device_ns: [0.0; 2] };
    for direction in Direction4K::ALL {
        let kernel = Kernel::Optimized;
        let which = RowKey { jobs: 4, kernel, direction };
        fit.device_ns[direction as usize] = period_ns(find(table, which)?);
    }
    for kernel in Kernel::ALL {
        for direction in Direction4K::ALL {
            let which = RowKey { jobs: 1, kernel, direction };
            let wanted = period_ns(find(table, which)?);
            fit.work_ns[kernel as usize][direction as usize] = wanted;
            for _ in 0..STEPS {
                let load = fit.load(cpus, strategy_of(kernel), which);
                let found = simulate(&load)?.period_ns();
                fit.work_ns[kernel as usize][direction as usize] += wanted - found;
            }
        }
    }
    let kernel = Kernel::Vanilla;
    let which = RowKey { jobs: 4, kernel, direction: Direction4K::Read };
    let wanted = period_ns(find(table, which)?);
    for _ in 0..STEPS {
        let found = simulate(&fit.load(cpus, strategy_of(kernel), which))?.period_ns();
        // A request takes the lock twice.
        let handover = fit.sharing.handover + (wanted - found) / 2.0;
        fit.sharing.handover = handover.max(0.0);
    }
    Ok(fit)
}

/// The two figures of a published row.
fn published_rows(row: &SwiotlbRow, fit: &FittedPrices, cpus: usize) -> Result<[ThroughputRow; 2]> {
    let which = RowKey { jobs: row.jobs, kernel: row.kernel, direction: row.direction };
    let strategy = strategy_of(row.kernel);
    let outcome = simulate(&fit.load(cpus, strategy, which))?;
    let predicted =
        row.jobs != 1 && row.kernel == Kernel::Vanilla && row.direction == Direction4K::Write;
    let [mut throughput, mut cpu] = figures("fio", row.kernel.name(), strategy, which, &outcome);
    throughput.published = Some(row.throughput_mb_s);
    throughput.fitted = !predicted;
    cpu.published = Some(row.guest_cpu_pct);
    for figure in [&mut throughput, &mut cpu] {
        let error = figure.published.map(|value| error_pct(figure.computed, value));
        figure.error_pct = error;
    }
    Ok([throughput, cpu])
}

fn figures(
    case: &'static str,
    variant: &'static str,
    strategy: Strategy,
    which: RowKey,
    outcome: &GuestResult,
) -> [ThroughputRow; 2] {
    let row = |quantity, computed| ThroughputRow {
        case,
        variant,
        strategy: strategy.name(),
        jobs: which.jobs,
        direction: which.direction.name(),
        quantity,
        published: None,
        computed,
        error_pct: None,
        fitted: false,
        evidence: Evidence::Computed,
        lock_waits: outcome.lock_waits,
        pool_pages: outcome.pool_pages,
    };
    [row("throughput_mb_s", outcome.mb_s()), row("guest_cpu_pct", outcome.busy_pct)]
}

/// Each of the published steps, with the optimised kernel's work: four jobs, and one.
fn step_rows(fit: &FittedPrices, cpus: usize) -> Result<Vec<ThroughputRow>> {
    let steps = [
        ("patch-1", Strategy::AreaLocks),
        ("patches-1-2", Strategy::AreaBitmaps),
        ("patches-1-3", Strategy::RecentFirst),
    ];
    let mut rows = Vec::new();
    for jobs in [1, 4] {
        for (variant, strategy) in steps {
            let which = RowKey { jobs, kernel: Kernel::Optimized, direction: Direction4K::Read };
            let outcome = simulate(&fit.load(cpus, strategy, which))?;
            rows.extend(figures("each-patch", variant, strategy, which, &outcome));
        }
    }
    Ok(rows)
}

/// The library's own pool and the published one, with the work of the optimised kernel in both.
fn own_rows(fit: &FittedPrices, cpus: usize) -> Result<Vec<ThroughputRow>> {
    let kernel = Kernel::Optimized;
    let variants = [("optimized", strategy_of(kernel)), ("portolan", Strategy::LockFree)];
    let mut rows = Vec::new();
    for case in ["fio", "no-device-limit"] {
        for jobs in JOBS {
            for direction in Direction4K::ALL {
                for (variant, strategy) in variants {
                    let published = case == "fio" && variant == "optimized";
                    if published && (jobs == 1 || jobs == 4) {
                        continue;
                    }
                    let which = RowKey { jobs, kernel, direction };
                    let mut load = fit.load(cpus, strategy, which);
                    if case != "fio" {
                        load.device_ns = None;
                    }
                    let outcome = simulate(&load)?;
                    rows.extend(figures(case, variant, strategy, which, &outcome));
                }
            }
        }
    }
    Ok(rows)
}

fn prices(fit: &FittedPrices) -> Vec<FittedPrice> {
    let mut prices = Vec::new();
    for kernel in Kernel::ALL {
        for direction in Direction4K::ALL {
            prices.push(FittedPrice {
                case: direction.name(),
                event: match kernel {
                    Kernel::Vanilla => "work of a request, vanilla",
                    Kernel::Optimized => "work of a request, optimized",
                },
                ns: fit.work_ns[kernel as usize][direction as usize],
                fitted_on: "throughput of one job",
            });
        }
    }
    for direction in Direction4K::ALL {
        prices.push(FittedPrice {
            case: direction.name(),
            event: "device, a request",
            ns: fit.device_ns[direction as usize],
            fitted_on: "throughput of four jobs, optimized",
        });
    }
    prices.push(FittedPrice {
        case: "read",
        event: "sharing.handover",
        ns: fit.sharing.handover,
        fitted_on: "throughput of four jobs, vanilla",
    });
    prices
}

fn checks(
    rows: &[ThroughputRow],
    own: &[ThroughputRow],
    fit: &FittedPrices,
    known_handover: f64,
) -> Vec<Check> {
    let fitted = rows.iter().filter(|row| row.fitted);
    let fitted = super::bounds::worst(fitted.filter_map(|row| row.error_pct));
    let off = error_pct(known_handover, fit.sharing.handover);
    let slower = own
        .iter()
        .filter(|row| row.variant == "portolan")
        .filter(|row| {
            let same = |other: &&ThroughputRow| {
                other.variant == "optimized"
                    && (other.case, other.jobs, other.direction, other.quantity)
                        == (row.case, row.jobs, row.direction, "throughput_mb_s")
            };
            let theirs =
                rows.iter().chain(own).find(same).map_or(f64::INFINITY, |other| other.computed);
            row.quantity == "throughput_mb_s" && error_pct(row.computed, theirs) < -GRAIN
        })
        .count();
    vec![
        Check {
            what: "rows that prices were fitted on come out as published, within 1 %".to_owned(),
            found: format!("the largest error is {fitted:.2} %"),
            holds: fitted <= 1.0,
        },
        Check {
            what: "the profile has the hand-over that the rows fix, within 1 %".to_owned(),
            found: format!(
                "{known_handover:.0} ns and {:.0} ns, {off:+.2} %",
                fit.sharing.handover
            ),
            holds: off.abs() <= 1.0,
        },
        Check {
            what: format!(
                "the library's pool is nowhere slower than the published one by more than {GRAIN} %, \
                 which is how finely requests are counted"
            ),
            found: format!("{slower} rows are"),
            holds: slower == 0,
        },
    ]
}
