//! The command line: its arguments, and the code that each command runs.
//!
//! Exit codes are those of [`portolan_cli::exit`].

mod reproduce;
mod scale;
mod synthetic;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Computes published results again, from the library's code on models of the hardware.
#[derive(Debug, Parser)]
#[command(name = "portolan-papers", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Recompute a published table row by row.
    Reproduce(reproduce::ReproduceArgs),
    /// Compute throughput by number of CPUs under each policy, in virtual time.
    Scale(scale::ScaleArgs),
    /// Run a load that is made up from a description, not recorded.
    Synthetic(synthetic::SyntheticArgs),
}

/// Runs the command line of the process.
pub fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Reproduce(args) => reproduce::run(&args),
        Command::Scale(args) => scale::run(&args),
        Command::Synthetic(args) => synthetic::run(&args),
    };
    portolan_cli::exit("portolan-papers", ended)
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
