//! `portolan explain`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use portolan::addr::PciFunction;
use portolan_cli::{Outcome, Output};
use portolan_sim::profile::Profile;

use super::profile;
use crate::{explain, firmware};

#[derive(Debug, Args)]
#[command(after_help = explain::COLUMNS_IN_WORDS)]
pub(super) struct ExplainArgs {
    /// Machine profile, or a file with one; may be repeated. All if absent.
    #[arg(long = "machine", value_name = "NAME")]
    machines: Vec<String>,
    /// The whole table of decisions as well.
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
    #[arg(long, value_name = "PORT", requires = "firmware", value_parser = firmware::port)]
    external: Vec<PciFunction>,
    #[command(flatten)]
    output: Output,
}

fn explain_firmware(args: &ExplainArgs) -> Result<Outcome> {
    let tables = firmware::read(&args.firmware)?;
    let config = args.pci.as_deref().map(firmware::Config::read).transpose()?.unwrap_or_default();
    let report = firmware::Report::new(&tables, &config, &args.external)?;
    args.output.show(&report, firmware::text)?;
    Ok(Outcome::of(report.holds()))
}

pub(super) fn run(args: &ExplainArgs) -> Result<Outcome> {
    if !args.firmware.is_empty() {
        return explain_firmware(args);
    }
    let profiles = match args.machines.as_slice() {
        [] => Profile::builtin()?,
        names => names.iter().map(|name| profile(name)).collect::<Result<_>>()?,
    };
    let mut explanation = explain::explain(&profiles);
    if args.all {
        explanation.table = explain::everything();
    }
    args.output.show(&explanation, explain::text)?;
    Ok(Outcome::Good)
}
