//! Sizes of the smallest kernels, compared with the budget in `proof/size/budget.toml`.
//!
//! A kernel of `proof/size` has the drivers that its features name and opens one device. Its size is that of the
//! section `.text`, built for size with link-time optimisation of all crates.

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use serde::Deserialize;

use crate::cross;
use crate::outcome::Outcome;

/// Folder of the kernels, and their budget in it.
const FOLDER: &str = "proof/size";
const BUDGET: &str = "budget.toml";
/// Part of a budget by which a kernel's size may differ from it, either way: one in so many.
const TOLERANCE: u64 = 20;

/// The file of budgets.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Budget {
    kernel: Vec<KernelBudget>,
}

/// Budget of one kernel.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KernelBudget {
    /// The machine, as the compiler calls it.
    target: String,
    /// Features of the kernel.
    drivers: String,
    /// Bytes of `.text`.
    text: u64,
    /// Tells if only `cargo xtask size` builds it: the gate has no time for it.
    #[serde(default)]
    rarely: bool,
}

/// Function for checkers of runs, of which a kernel without one has no trace (`docs/protocol.md`).
const UNTOLD: &str = "protocol_step";

/// Kernels that are built.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kernels {
    /// All of the budget.
    All,
    /// Those with one driver.
    Few,
}

/// Builds the kernels, prints their sizes, and compares them with the budget.
pub fn check(root: &Path, kernels: Kernels) -> Outcome {
    match compared(root, kernels) {
        Ok(outcome) => outcome,
        Err(error) => {
            eprintln!("{error:#}");
            Outcome::Fail
        }
    }
}

fn compared(root: &Path, kernels: Kernels) -> anyhow::Result<Outcome> {
    let file = root.join(FOLDER).join(BUDGET);
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let budget: Budget = toml::from_str(&text).with_context(|| file.display().to_string())?;
    let mut good = true;
    for kernel in &budget.kernel {
        if kernel.rarely && kernels == Kernels::Few {
            continue;
        }
        if let Err(why) = cross::add_target(&kernel.target) {
            return Ok(Outcome::Skip(why));
        }
        let now = text_bytes(root, kernel)?;
        let (target, drivers, before) = (&kernel.target, &kernel.drivers, kernel.text);
        println!("{target}, {drivers}: {now} bytes of text, {before} in the budget");
        if !is_within(now, before) {
            good = false;
            eprintln!(
                "that is more than 5 % off: mend it, or change {FOLDER}/{BUDGET} and say why"
            );
        }
    }
    Ok(if good { Outcome::Pass } else { Outcome::Fail })
}

fn is_within(now: u64, budget: u64) -> bool {
    now.abs_diff(budget) <= budget / TOLERANCE
}

/// Builds a kernel; returns the bytes of its text.
fn text_bytes(root: &Path, kernel: &KernelBudget) -> anyhow::Result<u64> {
    let target = root.join("target/size");
    let mut build = Command::new("cargo");
    build.args(["build", "--quiet", "--release", "--locked", "--target", &kernel.target]);
    build.args(["--features", &kernel.drivers]).current_dir(root.join(FOLDER));
    let built = build.env("CARGO_TARGET_DIR", &target).status().context("cargo")?;
    anyhow::ensure!(built.success(), "the kernel with {} does not build", kernel.drivers);
    let image = target.join(&kernel.target).join("release/portolan-size");
    let names = std::fs::read(&image).with_context(|| image.display().to_string())?;
    anyhow::ensure!(has(&names, "portolan"), "{} has no symbols", image.display());
    anyhow::ensure!(!has(&names, UNTOLD), "{} tells steps that nothing takes", image.display());
    let sizes = Command::new("size").arg("-A").arg(&image).output().context("size")?;
    let sizes = String::from_utf8_lossy(&sizes.stdout);
    section(&sizes, ".text").with_context(|| format!("{} has no .text", image.display()))
}

/// Tells if bytes have a name in them.
fn has(bytes: &[u8], name: &str) -> bool {
    bytes.windows(name.len()).any(|part| part == name.as_bytes())
}

/// The size of a section, in the output of `size -A`.
fn section(sizes: &str, name: &str) -> Option<u64> {
    let mut lines = sizes.lines().map(str::split_whitespace);
    let mut of = lines.find(|words| words.clone().next() == Some(name))?;
    of.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_s_size_is_read() {
        let sizes = "kernel  :\nsection  size  addr\n.rodata  6528  2097552\n.text  343204  2199168\nTotal  9\n";
        assert_eq!(section(sizes, ".text"), Some(343_204));
        assert_eq!(section(sizes, ".data"), None);
    }

    #[test]
    fn a_name_is_found_in_bytes() {
        assert!(has(b"..core3fmt13protocol_step17h", UNTOLD));
        assert!(!has(b"..protocol_stop", UNTOLD));
    }

    #[test]
    fn a_twentieth_more_or_less_is_within_the_budget() {
        let within = [94, 95, 100, 105, 106].map(|now| is_within(now, 100));
        assert_eq!(within, [false, true, true, true, false]);
    }
}
