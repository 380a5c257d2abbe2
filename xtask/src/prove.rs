//! The proof of the protocol and of the formats of tables, by the program `portolan-protocol`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::built;
use crate::outcome::Outcome;

/// Builds the program with the tests' libraries, and has it prove the protocol and the formats.
pub fn run(root: &Path, options: &[&str]) -> Outcome {
    let Some(programs) = built::programs(root, &["--bin", "portolan-protocol"]) else {
        return Outcome::Fail;
    };
    let Some(program) = programs.iter().find(|one| one.name == "portolan-protocol") else {
        eprintln!("cargo built no portolan-protocol");
        return Outcome::Fail;
    };
    let Some(code) = code_of_formats(root) else {
        eprintln!("cargo wrote no code of portolan-formats");
        return Outcome::Fail;
    };
    let mut command: Command = program.command();
    command.arg("--formats").arg(code);
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

/// Has the compiler write its intermediate code of `portolan-formats`, in one piece.
fn code_of_formats(root: &Path) -> Option<PathBuf> {
    let folder = root.join("target");
    std::fs::create_dir_all(&folder).ok()?;
    let file = folder.join("portolan-formats.ll");
    let mut emit = OsString::from("--emit=llvm-ir=");
    emit.push(&file);
    let mut cargo = Command::new("cargo");
    cargo.args(["rustc", "--locked", "--quiet", "--package", "portolan-formats", "--lib", "--"]);
    cargo.arg("-Ccodegen-units=1").arg(emit).current_dir(root);
    (cargo.status().is_ok_and(|status| status.success()) && file.is_file()).then_some(file)
}
