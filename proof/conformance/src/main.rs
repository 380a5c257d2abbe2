//! `portolan-verify check` and `portolan-verify torture`; see `--help`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    portolan_verify::command::main()
}
