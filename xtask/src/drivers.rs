//! Features of the package of drivers: it has to compile with none, with each driver alone, and with all, and a
//! unit whose driver is left out has to be refused by name.

use std::path::Path;
use std::process::Command;

use crate::outcome::{Outcome, outcome};
use crate::tidy::arrows::metadata;

const PACKAGE: &str = "portolan-hw";
/// The driver of which the test wants one machine's unit, and no other.
const ALONE: &str = "smmuv2";

/// Checks the package with each choice of features.
pub fn check(root: &Path) -> Outcome {
    let drivers = match drivers(root) {
        Ok(drivers) => drivers,
        Err(error) => {
            eprintln!("{error:#}");
            return Outcome::Fail;
        }
    };
    let none = String::new();
    let all = drivers.join(",");
    for features in [&none, &all].into_iter().chain(&drivers) {
        let mut command = cargo(root, "check", features);
        command.env("CARGO_TARGET_DIR", root.join("target/bare"));
        command.env("RUSTFLAGS", "-D warnings");
        match outcome(&mut command) {
            Outcome::Pass => {}
            other => {
                eprintln!("{PACKAGE} with the features [{features}]");
                return other;
            }
        }
    }
    Outcome::Pass
}

/// Tests with one driver what happens to units of the others.
pub fn test(root: &Path) -> Outcome {
    outcome(cargo(root, "test", ALONE).args(["--test", "drivers"]))
}

fn cargo(root: &Path, command: &str, features: &str) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.args([command, "--quiet", "-p", PACKAGE, "--no-default-features"]);
    cargo.args(["--features", features]).current_dir(root);
    cargo
}

/// The drivers: the package's default features.
fn drivers(root: &Path) -> anyhow::Result<Vec<String>> {
    let metadata = metadata(root)?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let package = packages.into_iter().find(|package| package["name"] == PACKAGE);
    let default = package.and_then(|package| package["features"]["default"].as_array());
    let drivers = default.into_iter().flatten().filter_map(|name| name.as_str());
    let drivers: Vec<String> = drivers.map(str::to_owned).collect();
    anyhow::ensure!(!drivers.is_empty(), "{PACKAGE} has no default features");
    Ok(drivers)
}
