//! The command line of `portolan-verify`: conformance scenarios and torture.
//!
//! * [`check`]: the conformance scenarios on one backend; [`group`] has those that there are.
//! * `torture`: random operations on one layer of the library.

pub mod check;
pub mod group;
#[cfg(feature = "units")]
mod torture;

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand};
use portolan_cli::display::wrapped;
use portolan_cli::{Form, Outcome, Output, print, print_json};
use serde_json::json;

use group::{Backend, BackendGroup};

/// Referees of the library: the conformance scenarios of drivers, and random operations.
#[derive(Debug, Parser)]
#[command(name = "portolan-verify", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the conformance scenarios: on a model, on QEMU, or on devices of this machine.
    Check(CheckArgs),
    /// Do random operations on table formats, or on the layers above them, against an oracle and the adversarial model.
    #[cfg(feature = "units")]
    Torture(torture::TortureArgs),
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// IOMMUs to check; may be repeated. Those of the model if absent. vfio:FUNCTION[,FUNCTION...] and
    /// iommufd:... have the kernel hand out devices of this machine: one or two of QEMU's edu, and a disk of
    /// QEMU's NVMe, whose data is lost.
    #[arg(long = "backend", value_name = "BACKEND")]
    #[cfg_attr(not(feature = "units"), arg(required = true))]
    backends: Vec<BackendGroup>,
    /// Take the devices from the drivers that they have.
    #[arg(long)]
    bind: bool,
    #[command(flatten)]
    output: Output,
}

/// Runs the command line of the process.
pub fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Check(args) => run_check(&args),
        #[cfg(feature = "units")]
        Command::Torture(args) => torture::run(&args),
    };
    portolan_cli::exit("portolan-verify", ended)
}

fn run_check(args: &CheckArgs) -> Result<Outcome> {
    let backends = match args.backends.as_slice() {
        #[cfg(feature = "units")]
        [] => &[BackendGroup::models()],
        some => some,
    };
    let members = backends.iter().flat_map(|group| &group.members);
    let devices: Vec<_> = members.filter_map(Backend::devices).collect();
    if args.bind {
        ensure!(!devices.is_empty(), "--bind is for devices: no backend names any");
        devices.iter().try_for_each(|devices| devices.bind())?;
    }
    devices.iter().try_for_each(|devices| devices.ready())?;
    let (form, columns) = (args.output.form(), args.output.columns());
    let mut reports = Vec::new();
    for backend in backends {
        let report = check::run(backend, &mut |on, line| {
            if form == Form::Text {
                // A reader that has gone away ends the output and not the check.
                let _ = print(&wrapped(&format!("{on}  {line}\n"), columns));
            }
        });
        if form == Form::Text {
            print(&wrapped(&check::totals(&report), columns))?;
        }
        reports.push(report);
    }
    if form == Form::Json {
        // One backend is one object, as the others' output is.
        match reports.as_slice() {
            [one] => print_json(one)?,
            several => print_json(&json!({ "backends": several }))?,
        }
    }
    Ok(Outcome::of(reports.iter().all(check::CheckReport::holds)))
}
