//! `cargo xtask`: every check and test of the workspace.
#![forbid(unsafe_code)]

mod adopter;
mod api;
mod backports;
mod built;
mod cross;
mod demo;
mod dist;
mod drivers;
mod guest;
mod mutants;
mod outcome;
mod packages;
mod prove;
mod qemu;
mod runner;
mod size;
mod steps;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

use steps::LongPart;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test [--fast]   every step that has to pass before a change is taken (docs/checks.md lists them);
                  --fast leaves out other compilers and instruction counts
  test --only TEXT
                  the steps with TEXT in their name; some run what the step of tests has built
  test --long [PART]
                  the steps that take longer, all or those of one part: guests, torture, mistakes-1,
                  mistakes-2, mistakes-3, miri; each part takes less than 80 minutes
  {mutants}  {mistakes}  tidy            structure and style only
  api [--write]   compares the public items of the libraries with the lists in crates/*/api.txt, or writes these
  prove [--traces] [--json]
                  proves the protocol of unmap, invalidate and free by Z3, and searches small machines
  dist            builds the command as one static file for x86-64 and AArch64, with manual pages and completions
  packages        packs the libraries, and builds the tutorial in a crate that depends on the packages
  size            builds the smallest kernels by their drivers, and compares them with proof/size/budget.toml
  demo [NAME...]  kernels of our own on QEMU: x86-vtd x86-amd x86-virtio aarch64 riscv ...
  demo x86-vtd-update x86-vtd-sleep [--long]
                  such kernels that hand a machine at work to each other, 4 times or 100
  guest [NAME...] Linux on QEMU, with Debian's kernel (downloaded once, 34 MB) and programs of this workspace
  guest --build-kernel
                  builds a kernel with iommufd for those guests that need it (from Debian's sources, 10 minutes)
  qemu            fetches QEMU 10 if need be, and prints the variables that have tests use it
";

fn usage() -> String {
    USAGE.replace("{mutants}", mutants::USAGE).replace("{mistakes}", mutants::MISTAKES)
}

fn main() -> ExitCode {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let good = match words.as_slice() {
        ["mutants", options @ ..] => return mutants::run(&root, options),
        ["mistakes", options @ ..] => return mutants::mistakes::run(&root, options),
        // For the command itself, which runs this in parallel with its other steps.
        ["test", "--beside", options @ ..] => match steps::Extent::of(options) {
            Some(extent) => runner::run_beside(&root, extent),
            None => return unknown(&words),
        },
        ["test", "--only", text] => runner::run_only(&root, text),
        ["test", "--long"] => runner::run_long(&root, &LongPart::ALL),
        ["test", "--long", name] => {
            match LongPart::ALL.into_iter().find(|part| part.name() == *name) {
                Some(part) => runner::run_long(&root, &[part]),
                None => return unknown(&words),
            }
        }
        ["test", options @ ..] => match steps::Extent::of(options) {
            Some(extent) => runner::run(&root, extent),
            None => return unknown(&words),
        },
        ["tidy"] => tidy::run(&root),
        ["api"] => outcome::say("public API", api::check(&root)),
        ["api", "--write"] => outcome::say("public API", api::write(&root)),
        ["prove", options @ ..] => outcome::say("protocol", prove::run(&root, options)),
        ["size"] => outcome::say("sizes of kernels", size::check(&root, size::Kernels::All)),
        ["dist"] => outcome::say("static files", dist::run(&root)),
        ["packages"] => outcome::say("packages", adopter::run(&root)),
        ["demo", names @ ..] => match demo::run(&root, names) {
            Ok(good) => good,
            Err(why) => return refuse(&why),
        },
        ["guest", "--build-kernel"] => match guest::kernel::build(&root) {
            Ok(image) => {
                println!("{}", image.display());
                true
            }
            Err(why) => return refuse(&why),
        },
        ["guest", names @ ..] => match guest::run(&root, names) {
            Ok(good) => good,
            Err(why) => return refuse(&why),
        },
        ["qemu"] => qemu::tell(&root),
        [] | ["help" | "--help" | "-h"] => {
            print!("{}", usage());
            return ExitCode::SUCCESS;
        }
        other => return unknown(other),
    };
    if good { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

/// Says that no command is called so.
fn unknown(words: &[&str]) -> ExitCode {
    eprint!("unknown command: {}\n\n{}", words.join(" "), usage());
    ExitCode::from(2)
}

/// Says `why` nothing was run.
fn refuse(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::from(2)
}
