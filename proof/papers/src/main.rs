//! The `portolan-papers` command; see `portolan-papers --help`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    portolan_papers::cli::main()
}
