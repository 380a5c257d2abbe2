//! A user-space driver of an NVMe disk, over VFIO and iommufd: reads and writes with many requests in flight, each
//! manner of mapping beside the others.
//!
//! ```text
//! nvme 0000:03:00.0 --bind                  # take the disk from the kernel, and read
//! nvme 0000:03:00.0 --bind --write SEED     # DESTROYS its data: writes, then reads and compares
//! nvme 0000:03:00.0 --interface type1 --interface iommufd   # one after the other
//! nvme 0000:03:00.0 --can                   # dirty tracking? page requests?
//! nvme 0000:03:00.0 --kill                  # kill such a driver while it reads, and see that nothing is left
//! nvme 0000:03:00.0 --remove                # give it back when the kernel takes it out
//! nvme 0000:03:00.0 --filtered              # under filters of system calls
//! nvme 0000:03:00.0 --parts --interface type1   # by descriptors of another process, by its interrupt pin
//! nvme 0000:03:00.0 --again                 # execute itself anew while the disk reads, and go on with it
//! nvme 0000:03:00.0 --behind                # passed through behind this process's virtio-iommu
//! nvme 0000:03:00.0 --compare SEED          # give it back to the kernel, and compare by its driver
//! ```

mod again;
mod behind;
mod can;
mod controller;
mod filtered;
mod kill;
mod mover;
mod naive;
mod once;
mod parts;
mod remove;
mod shared;
mod window;
mod work;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use portolan::addr::PciFunction;
use portolan_cli::Output;
use portolan_linux::vfio::{self, Interface, OpenError, Opened};
use serde::Serialize;

use controller::{Identity, PAGE};
use mover::Manner;
use work::Row;

/// One of the kernel's interfaces.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Over {
    /// VFIO's containers of type 1.
    Type1,
    /// /dev/iommu.
    Iommufd,
}

impl From<Over> for Interface {
    fn from(over: Over) -> Self {
        match over {
            Over::Type1 => Self::Type1,
            Over::Iommufd => Self::Iommufd,
        }
    }
}

/// Reads and writes an NVMe disk from user space, over VFIO or iommufd.
#[derive(Parser)]
struct Arguments {
    /// The disk's PCI function, as `lspci -D` writes it.
    function: PciFunction,
    /// Bind it to vfio-pci first. Its file systems must not be in use.
    #[arg(long)]
    bind: bool,
    /// Write first, and compare the data that is read: the data of the disk is lost.
    #[arg(long, value_name = "SEED")]
    write: Option<u64>,
    /// Give the disk back to the kernel, and compare the data that its driver reads with the data
    /// that was written.
    #[arg(long, value_name = "SEED", conflicts_with_all = ["bind", "write"])]
    compare: Option<u64>,
    /// Read without end in a process of its own, kill that, and look for memory that it left pinned.
    #[arg(long, conflicts_with_all = ["write", "compare"])]
    kill: bool,
    /// Print the kernel's services beside mapping: dirty tracking and page requests.
    #[arg(long, conflicts_with_all = ["write", "compare", "kill"])]
    can: bool,
    /// Have the kernel take it out while it runs, give it back, and find it again.
    #[arg(long, conflicts_with_all = ["write", "compare", "kill", "can"])]
    remove: bool,
    /// Open it by descriptors as if another process had opened them, combine writes to its memory, and read by its
    /// interrupt pin; over each `--interface` that is named.
    #[arg(long, conflicts_with_all = ["write", "compare", "kill", "can", "remove"])]
    parts: bool,
    /// Make requests under filters of system calls, of which docs/linux.md has a table.
    #[arg(long, conflicts_with_all = ["write", "compare", "kill", "can", "remove", "parts", "row"])]
    filtered: bool,
    /// Make them under the filter of the table's rows up to this one.
    #[arg(long)]
    row: Option<usize>,
    /// Execute itself anew while the disk reads, by iommufd, and go on with all that is mapped.
    #[arg(long, conflicts_with_all = ["write", "compare", "kill", "can", "remove", "parts"])]
    again: bool,
    /// Pass it through, by iommufd, behind a virtio-iommu of this process, whose guest is this process as well; that of
    /// `--with` has no domain there.
    #[arg(long, conflicts_with_all = ["write", "compare", "kill", "can", "remove", "parts", "again"])]
    behind: bool,
    /// Numbers by which the image that was executed goes on.
    #[arg(long, hide = true, value_delimiter = ',', requires = "again")]
    went_on: Vec<u64>,
    /// With `--can`: another disk, that is to be in one domain with the first. With `--again`: one that is bound once
    /// the driver was executed anew.
    #[arg(long, value_name = "FUNCTION")]
    with: Option<PciFunction>,
    /// Read without end.
    #[arg(long, conflicts_with_all = ["write", "compare", "kill"])]
    endless: bool,
    /// The kernel's interface; all that it has if none is named.
    #[arg(long, value_enum)]
    interface: Vec<Over>,
    /// Manner of mapping pages; all manners if none is named.
    #[arg(long, value_enum)]
    manner: Vec<Manner>,
    /// Requests of 4 KiB, each way, in each manner.
    #[arg(long, default_value_t = 1024)]
    requests: u64,
    /// Number of rounds of all that; the least time counts.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Requests in flight.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1023))]
    depth: u16,
    /// Wait for interrupts (MSI-X) instead of polling.
    #[arg(long)]
    interrupts: bool,
    #[command(flatten)]
    output: Output,
}

impl Arguments {
    fn manners(&self) -> &[Manner] {
        match &self.manner[..] {
            [] => &Manner::ALL,
            some => some,
        }
    }
}

#[derive(Serialize)]
struct Report {
    function: String,
    disk: Identity,
    requests: u64,
    rounds: u32,
    depth: u16,
    rows: Vec<Row>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ended = run(&arguments);
    portolan_cli::exit("nvme", ended.map(|()| portolan_cli::Outcome::Good))
}

fn run(arguments: &Arguments) -> Result<()> {
    if arguments.bind {
        for function in functions(arguments) {
            vfio::bind(function)?;
        }
    }
    match arguments.compare {
        Some(seed) => compare(arguments, seed),
        None if arguments.kill => kill::run(arguments),
        None if arguments.can => can::run(arguments),
        None if arguments.remove => remove::run(arguments),
        None if arguments.filtered => filtered::run(arguments),
        None if arguments.parts => parts::run(arguments),
        None if arguments.again => again::run(arguments),
        None if arguments.behind => behind::run(arguments),
        None => drive(arguments),
    }
}

fn functions(arguments: &Arguments) -> Vec<PciFunction> {
    std::iter::once(arguments.function).chain(arguments.with).collect()
}

/// The function, and the one beside it, opened by each interface in turn.
fn interfaces(arguments: &Arguments) -> impl Iterator<Item = Result<Opened, OpenError>> {
    let functions = functions(arguments);
    let chosen = arguments.interface.is_empty().then(|| functions.clone());
    let by = arguments.interface.iter().copied().map(Interface::from);
    let named = by.map(move |by| vfio::open_by(by, &functions));
    named.chain(chosen.map(|functions| vfio::open(&functions)))
}

fn drive(arguments: &Arguments) -> Result<()> {
    let mut report = Report {
        function: arguments.function.to_string(),
        disk: Identity::default(),
        requests: arguments.requests,
        rounds: arguments.rounds,
        depth: arguments.depth,
        rows: Vec::new(),
    };
    for opened in interfaces(arguments) {
        let opened = opened?;
        let over = opened.unit.interface();
        for &manner in arguments.manners() {
            let (identity, rows) = work::run(&opened, manner, arguments)
                .with_context(|| format!("{manner}, over {over}"))?;
            report.disk = identity;
            report.rows.extend(rows);
        }
    }
    arguments.output.show(&report, text)
}

fn text(report: &Report, columns: usize) -> String {
    let Report { disk, requests, rounds, depth, .. } = report;
    let mut out = format!(
        "{}: {} ({}), {} blocks of {} bytes\n\
         {requests} requests of 4 KiB, {depth} in flight; {rounds} rounds, the least time\n",
        report.function, disk.model, disk.serial, disk.blocks, disk.block,
    );
    let header = [
        ("over", 0),
        ("manner", 0),
        ("", 0),
        ("µs each", 0),
        ("IOPS", 0),
        ("maps", 0),
        ("unmaps", 0),
        ("ioctls each", 0),
        ("copies each", 0),
    ];
    let row = |row: &Row| {
        vec![
            row.over.clone(),
            row.manner.to_string(),
            row.way.to_owned(),
            format!("{:.1}", row.microseconds),
            format!("{:.0}", row.iops),
            row.maps.to_string(),
            row.unmaps.to_string(),
            format!("{:.3}", row.calls_each),
            format!("{:.0}", row.copies_each),
        ]
    };
    let rows = report.rows.iter().map(row).collect();
    let numbers = [3, 4, 5, 6, 7, 8];
    out += &portolan_cli::display::table(&header, &numbers, rows, columns);
    if let Some(page) = report.rows.iter().find_map(|row| row.slot_page) {
        out += &format!("slots lie in pages of {} KiB\n", page >> 10);
    }
    out
}

/// The disk's name below /dev, by that of a namespace in /sys: with several paths to a disk (`nvme0c1n1`) the
/// path is left out.
fn disk_of(namespace: &str) -> Option<String> {
    let (controller, number) = namespace.strip_prefix("nvme")?.split_once('n')?;
    let (subsystem, _) = controller.split_once('c').unwrap_or((controller, ""));
    Some(format!("/dev/nvme{subsystem}n{number}"))
}

/// The node of the disk once the kernel's driver has it.
fn node(function: PciFunction) -> Result<String> {
    let begin = Instant::now();
    let controllers = PathBuf::from(format!("/sys/bus/pci/devices/{function}/nvme"));
    let below = |path: &PathBuf| -> Vec<PathBuf> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    // The kernel looks at the disk by and by.
    while begin.elapsed() < Duration::from_secs(60) {
        for path in below(&controllers).iter().flat_map(below) {
            let name = path.file_name().and_then(|name| name.to_str());
            let Some(node) = name.and_then(disk_of) else {
                continue;
            };
            let kind = fs::metadata(&node).map(|node| node.file_type());
            if kind.is_ok_and(|kind| kind.is_block_device()) {
                return Ok(node);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let found = below(&controllers);
    bail!("no driver of the kernel's has found a disk at {function} (there is {found:?})")
}

fn compare(arguments: &Arguments, seed: u64) -> Result<()> {
    vfio::unbind(arguments.function)?;
    let last = arguments.manners().last().context("no manner")?;
    let node = node(arguments.function)?;
    let disk = File::open(&node).with_context(|| node.clone())?;
    let mut page = vec![0; PAGE];
    for at in 0..arguments.requests {
        disk.read_exact_at(&mut page, at * PAGE as u64)?;
        let wanted = work::content(last.seed(seed), at);
        ensure!(page == wanted, "page {at} is not what was written");
    }
    portolan_cli::print(&format!(
        "{} pages read by the kernel's driver from {node} are those that were written\n",
        arguments.requests,
    ))
}
