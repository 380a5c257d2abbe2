//! The library compiled as a kernel's code is, without SSE, beside the same with SSE and Linux's code.
//!
//! Cargo compiles `proof/bench/no-sse` for two targets, and the C compiler makes a shared object of each. The target
//! without SSE has no standard library.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use portolan_cli::display;
use serde::Serialize;

use crate::linux::{self, LinuxDomainKind};
use crate::measure::Extent;
use crate::raw::ObjectRow;
use crate::spread::Spread;
use crate::workload::{Failure, Workload};
use crate::{addresses, linux::buffers};

/// Name of this benchmark.
pub const NAME: &str = "no-sse";

/// The target without SSE.
pub const TARGET: &str = "x86_64-unknown-none";
/// The same processor with it.
const HOST_TARGET: &str = "x86_64-unknown-linux-gnu";
/// Operations of a sample.
const PAIRS: u64 = 2048;
const SAMPLES: usize = 301;
const SAMPLES_SHORT: usize = 3;
/// Functions of the objects.
const ENTRIES: [&str; 3] = ["portolan_row", "portolan_run", "portolan_end"];

/// A row.
#[derive(Clone, Debug, Serialize)]
pub struct NoSseRow {
    /// Name of the same row of all benchmarks.
    pub name: &'static str,
    /// Nanoseconds of an operation, by the code: `without`, `with`, and Linux's if that is here.
    pub ns: BTreeMap<&'static str, Spread>,
}

/// The document that `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct NoSseReport {
    /// Rows.
    pub benchmarks: Vec<NoSseRow>,
}

type MakeLinux = fn() -> Result<Box<dyn Workload>, Failure>;

/// A row, and Linux's side of it.
struct NoSseCase {
    name: &'static str,
    make_linux: MakeLinux,
}

/// The rows, by their numbers in `proof/bench/no-sse`.
const CASES: [NoSseCase; 3] = [
    NoSseCase {
        name: "iova_page",
        make_linux: || Ok(Box::new(addresses::Pairs(addresses::of_linux()?(0)))),
    },
    NoSseCase {
        name: "dma_4k_lazy",
        make_linux: || Ok(Box::new(buffers::LinuxBuffers::new(LinuxDomainKind::LAZY)?)),
    },
    NoSseCase {
        name: "dma_4k_strict",
        make_linux: || Ok(Box::new(buffers::LinuxBuffers::new(LinuxDomainKind::STRICT)?)),
    },
];

/// Tells what is missing here, if something is.
///
/// # Errors
/// Without a compiler.
pub fn missing() -> Result<Option<&'static str>> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Ok(Some("it compares two targets of x86-64; run it on Linux there"));
    }
    let mut command = Command::new("rustc");
    command.args(["--print", "target-libdir", "--target", TARGET]);
    let said = command.output().context("rustc")?;
    let place = String::from_utf8_lossy(&said.stdout);
    let installed = said.status.success() && Path::new(place.trim()).exists();
    Ok((!installed)
        .then_some("no standard library for it; `rustup target add x86_64-unknown-none`"))
}

/// Compiles both objects and measures them in turn.
///
/// # Errors
/// If something does not compile, or an operation fails.
pub fn measure(extent: Extent) -> Result<NoSseReport> {
    let objects = [("without", object(TARGET)?), ("with", object(HOST_TARGET)?)];
    let samples = match extent {
        Extent::Whole => SAMPLES,
        Extent::Short => SAMPLES_SHORT,
    };
    let rows = (0..).zip(&CASES).map(|(number, case)| measured(&objects, number, case, samples));
    Ok(NoSseReport { benchmarks: rows.collect::<Result<_>>()? })
}

fn measured(
    objects: &[(&'static str, PathBuf)],
    number: u32,
    case: &NoSseCase,
    samples: usize,
) -> Result<NoSseRow> {
    let mut works: Vec<(&'static str, Box<dyn Workload>)> = Vec::new();
    for (with, path) in objects {
        let row = ObjectRow::load(path, number).map_err(anyhow::Error::msg)?;
        works.push((with, Box::new(ObjectPairs(row))));
    }
    match (case.make_linux)() {
        Ok(work) => works.push((linux::NAME, work)),
        Err(Failure::NoLinux(_)) => {}
        Err(failure) => return Err(failure.into()),
    }
    let mut taken: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    for _ in 0..samples {
        for (with, work) in &mut works {
            work.prepare()?;
            let nanos = work.run_timed()? / work.units().max(1) as f64;
            taken.entry(with).or_default().push(nanos);
        }
    }
    let spread = |(with, mut of): (_, Vec<f64>)| Some((with, Spread::of(&mut of)?));
    Ok(NoSseRow { name: case.name, ns: taken.into_iter().filter_map(spread).collect() })
}

/// A row of an object.
struct ObjectPairs(ObjectRow);

impl Workload for ObjectPairs {
    fn units(&self) -> u64 {
        PAIRS
    }

    fn run(&mut self) -> Result<(), Failure> {
        self.0.run(PAIRS).then_some(()).ok_or(Failure::Addresses)
    }
}

/// The shared object for a target.
fn object(target: &str) -> Result<PathBuf> {
    let bench = Path::new(env!("CARGO_MANIFEST_DIR"));
    let place = bench.join("../../target/no-sse");
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--locked", "--release", "--target", target]);
    // Position-independent, as a shared object is; a kernel's target is not by itself.
    cargo.env("RUSTFLAGS", "-Ccode-model=small -Crelocation-model=pic");
    cargo.arg("--manifest-path").arg(bench.join("no-sse/Cargo.toml"));
    cargo.arg("--target-dir").arg(&place);
    succeed(&mut cargo)?;
    let folder = place.join(target).join("release");
    let linked = folder.join("no-sse.so");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut link = Command::new(compiler);
    // Panics abort: no code unwinds.
    link.args(["-shared", "-Wl,--gc-sections", "-Wl,--defsym=rust_eh_personality=0", "-o"]);
    link.arg(&linked).args(ENTRIES.map(|name| format!("-Wl,-u,{name}")));
    link.arg(folder.join("libportolan_no_sse.a"));
    succeed(&mut link)?;
    Ok(linked)
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{command:?}"))?;
    if !status.success() {
        bail!("{command:?} failed");
    }
    Ok(())
}

/// The report for people.
pub fn text(report: &NoSseReport, width: usize) -> String {
    let header = ["benchmark", "without SSE: ns", "with: ns", "Linux's code: ns"];
    let cell = |row: &NoSseRow, name| {
        row.ns.get(name).map_or(String::new(), |spread| {
            format!("{:.1} ({:.1}-{:.1})", spread.median, spread.p10, spread.p90)
        })
    };
    let rows = report.benchmarks.iter().map(|row| {
        let cells = ["without", "with", linux::NAME].map(|name| cell(row, name));
        core::iter::once(row.name.to_owned()).chain(cells).collect()
    });
    let header = header.map(|name| (name, 0));
    let mut out = display::table(&header, &[1, 2, 3], rows.collect(), width);
    let _ = writeln!(out, "\nMedians of samples in turn (tenth to ninetieth percentile).");
    out
}
