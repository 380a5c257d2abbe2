//! `cargo xtask dist`: the command as one static file for each architecture, with manual pages and shell completions.
//!
//! Rust's own libraries for musl are linked, for AArch64 by Rust's own linker, so that no C compiler is needed. The
//! files are looked at: none asks for an interpreter or a shared library (System V ABI, `PT_INTERP`, `DT_NEEDED`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cross;
use crate::outcome::{Outcome, outcome};

/// A build.
struct StaticBuild {
    /// Rust's name.
    target: &'static str,
    /// Name of the file.
    file: &'static str,
    /// Flags of its compilation, and the variable that has them.
    flags: Option<(&'static str, &'static str)>,
}

const MACHINES: [StaticBuild; 2] = [
    StaticBuild { target: "x86_64-unknown-linux-musl", file: "portolan-x86_64-linux", flags: None },
    StaticBuild {
        target: "aarch64-unknown-linux-musl",
        file: "portolan-aarch64-linux",
        flags: Some((
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUSTFLAGS",
            "-Clinker=rust-lld -Clink-self-contained=yes",
        )),
    },
];

/// Builds all into `target/dist`.
pub fn run(root: &Path) -> Outcome {
    let folder = root.join("target/dist");
    if let Err(error) = fs::create_dir_all(&folder) {
        eprintln!("{}: {error}", folder.display());
        return Outcome::Fail;
    }
    for machine in &MACHINES {
        match build(root, machine, &folder) {
            Outcome::Pass => {}
            other => return other,
        }
    }
    let mut manual = Command::new("cargo");
    manual.args(["run", "--quiet", "-p", "portolan-tune", "--example", "manual", "--"]);
    outcome(manual.arg(&folder).current_dir(root))
}

fn build(root: &Path, machine: &StaticBuild, folder: &Path) -> Outcome {
    if let Err(why) = cross::add_target(machine.target) {
        return Outcome::Skip(why);
    }
    let mut command = Command::new("cargo");
    command.args(["build", "--quiet", "--release", "-p", "portolan-tune", "--bin", "portolan"]);
    command.args(["--target", machine.target]).current_dir(root);
    command.env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    if let Some((name, flags)) = machine.flags {
        command.env(name, flags);
    }
    match outcome(&mut command) {
        Outcome::Pass => {}
        other => return other,
    }
    let built: PathBuf = ["target", machine.target, "release", "portolan"].iter().collect();
    let file = folder.join(machine.file);
    let copied = fs::copy(root.join(built), &file).and_then(|_| fs::read(&file));
    match copied {
        Ok(bytes) if is_static(&bytes) == Some(true) => {
            println!("{}: {} KiB, static", file.display(), bytes.len() >> 10);
            Outcome::Pass
        }
        Ok(_) => {
            eprintln!("{}: it asks for an interpreter or a shared library", file.display());
            Outcome::Fail
        }
        Err(error) => {
            eprintln!("{}: {error}", file.display());
            Outcome::Fail
        }
    }
}

/// The number of `size` bytes at `at`, little-endian.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let all = bytes.get(at..at.checked_add(size)?)?;
    Some(all.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// Tells if a program of 64 bits needs no interpreter and no shared library; `None` if it is damaged.
fn is_static(elf: &[u8]) -> Option<bool> {
    const DYNAMIC: u64 = 2;
    const INTERPRETER: u64 = 3;
    const NEEDED: u64 = 1;
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, size) = (number(elf, 0x20, 8)? as usize, number(elf, 0x36, 2)? as usize);
    for header in 0..number(elf, 0x38, 2)? as usize {
        let at = table.checked_add(header.checked_mul(size)?)?;
        let kind = number(elf, at, 4)?;
        if kind == INTERPRETER {
            return Some(false);
        }
        if kind == DYNAMIC {
            let (start, length) =
                (number(elf, at + 8, 8)? as usize, number(elf, at + 32, 8)? as usize);
            let tags =
                (0..length / 16).map(|entry| number(elf, start.saturating_add(entry * 16), 8));
            for tag in tags {
                if tag? == NEEDED {
                    return Some(false);
                }
            }
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_not_static_and_damage_is_told() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(is_static(&own), Some(false));
        assert_eq!(is_static(&own[..0x30]), None);
        assert_eq!(is_static(b"text"), None);
    }
}
