//! The `portolan` command; see `portolan --help`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    portolan_tune::cli::main()
}
