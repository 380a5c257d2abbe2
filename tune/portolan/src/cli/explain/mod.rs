//! `portolan explain`: its arguments, and the choice of what is explained.
//!
//! Each kind of question has a file: [`machine`] without an option, [`device`], [`between`], [`faults`],
//! [`policies`], [`firmware`].

mod between;
mod device;
mod faults;
mod firmware;
mod machine;
mod policies;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use portolan::addr::PciFunction;
use portolan_cli::{Outcome, Output};

use crate::cli::report::ReportArgs;
use crate::explain;
use crate::firmware::port;

#[derive(Debug, Args)]
#[command(after_help = explain::COLUMNS_IN_WORDS)]
pub(super) struct ExplainArgs {
    /// A PCI device of the machine, by its place or its name (0000:01:00.0, nvme0, eth0, card1): its group, what a
    /// guest has to take along, and what bars it.
    #[arg(conflicts_with_all = ["machines", "all", "firmware", "between"])]
    device: Option<String>,
    /// Peer-to-peer access between PCI devices of the machine: those named, or all GPUs, network cards and disks.
    #[arg(long, value_name = "DEVICE", num_args = 0.., conflicts_with_all = ["machines", "all", "firmware"])]
    between: Option<Vec<String>>,
    /// Another machine than this one: a file of `portolan collect`, what `lspci -xxxx` prints, or a folder that has
    /// the machine's `proc` and `sys`; may be repeated.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["machines", "all", "firmware"])]
    from: Vec<PathBuf>,
    /// The kernel's log of the machine, as `dmesg` or `journalctl -k` prints it.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["machines", "all", "firmware"])]
    log: Option<PathBuf>,
    /// Faults in the kernel's log: of this machine, of the one that --from or --log names, or in FILE, which is what
    /// `dmesg` or `journalctl -k` prints; `-` is standard input.
    #[arg(long, value_name = "FILE", num_args = 0..=1,
        conflicts_with_all = ["machines", "all", "firmware", "device", "between"])]
    faults: Option<Option<PathBuf>>,
    /// A recording of the same machine, as `portolan record` makes it: names the mapping that a fault's address was in,
    /// and its unmap.
    #[arg(long, value_name = "FILE", requires = "faults")]
    trace: Option<PathBuf>,
    /// The library's policy for a machine profile, or a file with one; may be repeated.
    #[arg(long = "machine", value_name = "NAME")]
    machines: Vec<String>,
    /// The library's policies for all profiles, or those of --machine, and the whole table of decisions.
    #[arg(long)]
    all: bool,
    /// Tables of a machine's firmware (DMAR, IVRS, IORT, VIOT or RIMT) as files, in binary or as `acpidump` prints
    /// them, a folder like /sys/firmware/acpi/tables, or a device tree: print its IOMMUs, the devices that they
    /// serve, and addresses that are taken.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["machines", "all"])]
    firmware: Vec<PathBuf>,
    /// The machine's PCI functions: output of `lspci -xxxx` as root, or /sys/bus/pci/devices.
    #[arg(long, value_name = "FILE", requires = "firmware")]
    pci: Option<PathBuf>,
    /// A port that leads out of the machine (`ExternalFacingPort` in ACPI's name space), such as 0000:00:1d.0; may be
    /// repeated. If absent and firmware asks for protection, ports with hot-plug count as such.
    #[arg(long, value_name = "PORT", requires = "firmware", value_parser = port)]
    external: Vec<PciFunction>,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    output: Output,
}

impl ExplainArgs {
    /// Files that are read.
    fn files(&self) -> Vec<&Path> {
        let faults = self.faults.iter().flatten();
        let one = self.log.iter().chain(&self.trace).chain(faults);
        self.from.iter().chain(one).map(PathBuf::as_path).collect()
    }
}

/// Explains what `args` ask for.
pub(super) fn run(args: &ExplainArgs) -> Result<Outcome> {
    let has_no_page = !args.firmware.is_empty() || !args.machines.is_empty() || args.all;
    if has_no_page && args.report.is_asked() {
        bail!(
            "--report is for answers about a machine; what firmware's tables and the library's policies say are tables \
             already: leave it out, or take --json"
        );
    }
    if !args.firmware.is_empty() {
        return firmware::run(args);
    }
    if !args.machines.is_empty() || args.all {
        return policies::run(args);
    }
    let destination = args.report.destination(&args.files())?;
    let to = destination.as_ref();
    if args.faults.is_some() {
        return faults::run(args, to);
    }
    if let Some(names) = &args.between {
        return between::run(args, to, names);
    }
    match &args.device {
        Some(name) => device::run(args, to, name),
        None => machine::run(args, to),
    }
}
