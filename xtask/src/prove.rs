//! The proof of the protocol, by the program `portolan-protocol`.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::built;
use crate::outcome::Outcome;

/// Builds the program with the tests' libraries, and has it prove the protocol.
pub fn run(root: &Path, options: &[&str]) -> Outcome {
    let Some(programs) = built::programs(root, &["--bin", "portolan-protocol"]) else {
        return Outcome::Fail;
    };
    let Some(program) = programs.iter().find(|one| one.name == "portolan-protocol") else {
        eprintln!("cargo built no portolan-protocol");
        return Outcome::Fail;
    };
    let mut command: Command = program.command();
    match command.args(options).stdin(Stdio::null()).status().map(|status| status.code()) {
        Ok(Some(0)) => Outcome::Pass,
        Ok(Some(3)) => Outcome::Skip("Z3 is not installed (Debian's package z3)".to_owned()),
        Ok(_) => Outcome::Fail,
        Err(error) => {
            eprintln!("portolan-protocol: {error}");
            Outcome::Fail
        }
    }
}
