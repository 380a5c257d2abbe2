//! I/O page faults instead of pinning (VFIO passthrough, 2021): `vfio-iopf.csv`.
//!
//! The number of faults comes from the accesses of the accelerator's test ([`pattern`]), through a
//! [`Ioas`](portolan::demand::Ioas) of the library, behind the SMMUv3 driver: each is an access that stalls
//! in the model of the unit, goes through the dispatcher and is resumed by command. Speeds are
//! `bytes / (start + MiB * engine + faults * fault + pages * page)`: without faults, start and
//! engine from the two shortest runs that are not a single message (for a process, a single message
//! and a hundred); a fault from the difference that faults made to one row (process) or two (guest).

mod bounds;
mod machine;
mod pattern;
mod rows;
mod text;
mod windows;

pub use rows::{IopfReproduction, IopfRow, WindowRow};
pub use text::iopf_text;

use anyhow::{Context, Result};
use portolan::addr::Pasid;
use portolan::demand::Window;
use portolan_sim::profile::{Event, Profile};

use self::machine::{AccessCounts, Machine, Whose};
use self::pattern::Queues;
use super::bounds::Evidence;
use super::published::{self, IopfKind, IopfPublished};
use super::rows::{Check, FittedPrice, error_pct};
use portolan_tune::least_squares::non_negative;

/// The machine that the published figures come from.
pub const MACHINE: &str = "kunpeng920";
const MIB: f64 = 1_048_576.0;

/// Prices that the fit found, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct FaultPrices {
    start: f64,
    mib: f64,
    fault: f64,
    page: f64,
}

impl FaultPrices {
    fn without_ns(&self, row: &IopfPublished) -> f64 {
        self.start + self.mib * mib(row)
    }

    fn faults_ns(&self, counted: AccessCounts) -> f64 {
        self.fault * counted.faults as f64 + self.page * counted.mapped as f64
    }
}

fn mib(row: &IopfPublished) -> f64 {
    row.msg_len_bytes as f64 * row.times as f64 / MIB
}

/// Nanoseconds of a row's run at `kb_s`; a KB is 1024 bytes here, as in the test's own output.
fn ns_at(row: &IopfPublished, kb_s: f64) -> f64 {
    mib(row) * 1024.0 / kb_s * 1e9
}

fn kb_s(row: &IopfPublished, ns: f64) -> f64 {
    mib(row) * 1024.0 / ns * 1e9
}

fn count(profile: &Profile, row: &IopfPublished) -> Result<AccessCounts> {
    let window = match row.premap_pages {
        Some(pages) if pages.get() > 1 => Window::Fixed(pages),
        _ => Window::Page,
    };
    let (whose, queues) = match row.kind {
        IopfKind::Vfio => (Whose::Guest, Queues::Inside),
        IopfKind::Sva => (Whose::Process(Pasid::new(1)), Queues::Elsewhere),
    };
    let mut machine = Machine::new(profile, whose, window, pattern::MEMORY)?;
    pattern::encrypt(&mut machine, row.msg_len_bytes, row.times, queues)?;
    machine.counted()
}

/// Tells if the time without faults was fitted on a row.
fn fits_without(row: &IopfPublished) -> bool {
    match row.kind {
        IopfKind::Vfio => row.times == 100,
        IopfKind::Sva => row.times <= 100,
    }
}

/// Tells if the price of a fault was.
fn fits_with(row: &IopfPublished) -> bool {
    match row.kind {
        IopfKind::Vfio => row.times == 100,
        IopfKind::Sva => row.times == 1,
    }
}

/// Tells if the pattern was chosen with this number of faults in view.
fn fits_faults(row: &IopfPublished) -> bool {
    let small = row.kind == IopfKind::Vfio && row.msg_len_bytes == 1 << 20;
    small && (row.times == 1 || row.times == 5000)
}

fn fit(kind: IopfKind, rows: &[(IopfPublished, AccessCounts)]) -> FaultPrices {
    let of_kind = || rows.iter().filter(|(row, _)| row.kind == kind);
    let without: Vec<_> = of_kind().filter(|(row, _)| fits_without(row)).collect();
    let events: Vec<_> = without.iter().map(|(row, _)| vec![1.0, mib(row)]).collect();
    let times = without.iter().map(|(row, _)| ns_at(row, row.without_kb_s));
    let base = non_negative(&events, &times.collect::<Vec<_>>(), 2);
    let with: Vec<_> = of_kind().filter(|(row, _)| fits_with(row)).collect();
    // With one window there is one size of fault: its pages are in its price.
    let unknowns = with.len().min(2);
    let events: Vec<_> = (with.iter())
        .map(|(_, counted)| vec![counted.faults as f64, counted.mapped as f64])
        .map(|mut events| {
            events.truncate(unknowns);
            events
        })
        .collect();
    let times =
        with.iter().map(|(row, _)| ns_at(row, row.with_kb_s) - ns_at(row, row.without_kb_s));
    let faults = non_negative(&events, &times.collect::<Vec<_>>(), unknowns);
    let at = |list: &[f64], index: usize| list.get(index).copied().unwrap_or(0.0);
    FaultPrices {
        start: at(&base, 0),
        mib: at(&base, 1),
        fault: at(&faults, 0),
        page: at(&faults, 1),
    }
}

fn figures(row: &IopfPublished, counted: AccessCounts, prices: &FaultPrices) -> [IopfRow; 4] {
    let without = prices.without_ns(row);
    let with = without + prices.faults_ns(counted);
    let figure = |variant, quantity, published: f64, computed: f64, fitted: bool| IopfRow {
        case: "encrypt",
        kind: row.kind.name(),
        variant,
        msg_len_bytes: row.msg_len_bytes,
        premap_pages: row.premap_pages.map(|pages| pages.get()),
        times: row.times,
        quantity,
        published: Some(published),
        computed,
        error_pct: Some(error_pct(computed, published)),
        fitted,
        evidence: if fitted { Evidence::Fitted } else { Evidence::Implied },
    };
    let speed = |ns| kb_s(row, ns);
    let faults = counted.faults as f64;
    let with_fitted = fits_with(row);
    [
        figure("without", "speed_kb_s", row.without_kb_s, speed(without), fits_without(row)),
        figure("with", "speed_kb_s", row.with_kb_s, speed(with), with_fitted),
        figure("with", "faults", row.faults, faults, fits_faults(row)),
        {
            let (published, lost) = (100.0 - row.kept_pct, 100.0 * (1.0 - without / with));
            IopfRow {
                error_pct: Some(lost - published),
                ..figure("with", "loss_pct", published, lost, with_fitted)
            }
        },
    ]
}

/// Recomputes the table.
///
/// # Errors
/// If the profile or the published table is wrong, or the library refuses an operation.
pub fn iopf() -> Result<IopfReproduction> {
    let profile = Profile::by_name(MACHINE)?;
    let published = published::iopf(published::IOPF)?;
    let mut counted = Vec::new();
    for row in published {
        let faults = count(&profile, &row).context("a published run")?;
        counted.push((row, faults));
    }
    let vfio = fit(IopfKind::Vfio, &counted);
    let sva = fit(IopfKind::Sva, &counted);
    let rows = counted.iter().flat_map(|(row, counted)| {
        let prices = match row.kind {
            IopfKind::Vfio => &vfio,
            IopfKind::Sva => &sva,
        };
        figures(row, *counted, prices)
    });
    let mut rows: Vec<IopfRow> = rows.collect();
    let windows = windows::compare(&profile)?;
    let bounds = bounds::bounds(&rows, &counted, [&vfio, &sva]);
    bounds::judge(&mut rows, &bounds);
    let mut checks = windows::checks(&windows);
    checks.push(answered(counted.iter().map(|(_, counted)| counted)));
    let own = [(Event::FaultCall, vfio.fault), (Event::FaultPage, vfio.page)];
    for (event, fitted) in own {
        let own = profile.price(event)?;
        checks.push(Check {
            what: format!("the profile has the price of {}, within a thousandth", event.name()),
            found: format!("{own:.3} ns and {fitted:.3} ns"),
            holds: (own / fitted - 1.0).abs() <= 1e-3,
        });
    }
    Ok(IopfReproduction {
        name: "iopf".to_owned(),
        machine: MACHINE.to_owned(),
        rows,
        prices: prices(&vfio, &sva),
        windows,
        bounds,
        checks,
    })
}

/// Each fault is an access that waited, and one command that ended that.
fn answered<'c>(runs: impl Iterator<Item = &'c AccessCounts>) -> Check {
    let mut sums = [0; 3];
    let mut holds = true;
    for &AccessCounts { faults, stalled, .. } in runs {
        let [stalls, resumes] = stalled;
        holds &= faults == stalls && stalls == resumes && faults > 0;
        for (sum, more) in sums.iter_mut().zip([faults, stalls, resumes]) {
            *sum += more;
        }
    }
    let [faults, stalls, resumes] = sums;
    Check {
        what: "each fault of the table is a stall of the unit's, and one CMD_RESUME".to_owned(),
        found: format!("{faults} faults, {stalls} stalls, {resumes} commands"),
        holds,
    }
}

fn prices(vfio: &FaultPrices, sva: &FaultPrices) -> Vec<FittedPrice> {
    const HUNDRED: &str = "rows of 100 messages";
    const ONE: &str = "the row of one message";
    let price = |case, event, ns, fitted_on| FittedPrice { case, event, ns, fitted_on };
    vec![
        price("vfio", "start of a run", vfio.start, HUNDRED),
        price("vfio", "a MiB in the engine", vfio.mib, HUNDRED),
        price("vfio", "a fault", vfio.fault, HUNDRED),
        price("vfio", "a page that a fault maps", vfio.page, HUNDRED),
        price("sva", "start of a run", sva.start, "rows of 1 and 100 messages"),
        price("sva", "a MiB in the engine", sva.mib, "rows of 1 and 100 messages"),
        price("sva", "a fault, its page included", sva.fault, ONE),
    ]
}
