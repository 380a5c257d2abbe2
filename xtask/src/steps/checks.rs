//! Steps that compile and look: format, lints, documentation, and the libraries on other machines and compilers.

use std::path::Path;
use std::process::{Command, Stdio};

use super::Extent;
use crate::outcome::{Outcome, outcome};
use crate::{cross, demo, packages, tidy};

/// Runs `cargo xtask tidy`.
pub(super) fn tidy(root: &Path) -> Outcome {
    match tidy::run(root) {
        true => Outcome::Pass,
        false => Outcome::Fail,
    }
}

/// Installs Debian's packages that are missing.
pub(super) fn provide() -> Outcome {
    let missing = packages::provide();
    if missing.is_empty() {
        return Outcome::Pass;
    }
    let list: Vec<String> =
        missing.iter().map(|p| format!("{} (for {})", p.name, p.needed_for)).collect();
    Outcome::Skip(format!("not installed: {}; run apt-get install", list.join(", ")))
}

pub(super) fn format(root: &Path) -> Outcome {
    for folder in [".", "proof/demo", "proof/fuzz", "proof/size"] {
        let mut command = Command::new("cargo");
        command.args(["fmt", "--all", "--check"]);
        match outcome(command.current_dir(root.join(folder))) {
            Outcome::Pass => {}
            other => return other,
        }
    }
    Outcome::Pass
}

/// The lints are the manifests'; in the gate a warning fails as well.
const LINTS: [&str; 3] = ["--", "-D", "warnings"];

pub(super) fn lints(root: &Path) -> Outcome {
    let mut command = Command::new("cargo");
    command.args(["clippy", "--quiet", "--workspace", "--all-targets"]).args(LINTS);
    match outcome(command.current_dir(root)) {
        Outcome::Pass => {}
        other => return other,
    }
    outcome(demo::cargo(root, demo::X86, "clippy").args(LINTS))
}

pub(super) fn documentation(root: &Path) -> Outcome {
    let mut command = Command::new("cargo");
    command.args(["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"]);
    outcome(command.current_dir(root).env("RUSTDOCFLAGS", "-D warnings"))
}

/// Links the library into a program with a panic handler of its own: if anything in it pulled in
/// std, the two would collide. Then checks that the gate does close on a library that does.
pub(super) fn no_std_gate(root: &Path) -> Outcome {
    let build = |features: &[&str], errors: Stdio| {
        let mut command = Command::new("cargo");
        command.args(["build", "--quiet"]).args(features).stderr(errors);
        command.current_dir(root.join("xtask/no_std_gate"));
        outcome(command.env("CARGO_TARGET_DIR", root.join("target/no_std_gate")))
    };
    match build(&[], Stdio::inherit()) {
        Outcome::Pass => {}
        other => return other,
    }
    match build(&["--features", "std"], Stdio::null()) {
        Outcome::Fail => Outcome::Pass,
        _ => {
            eprintln!("the gate lets a library with std through");
            Outcome::Fail
        }
    }
}

/// Has the compiler check the libraries for a machine without an operating system.
pub(super) fn bare(root: &Path, target: &str) -> Outcome {
    if let Err(why) = cross::add_target(target) {
        return Outcome::Skip(why);
    }
    let mut command = Command::new("cargo");
    command.args(["check", "--quiet", "-p", "portolan", "-p", "portolan-tables"]);
    command.args(["-p", "portolan-hw"]);
    command.args(["--target", target]).current_dir(root);
    outcome(command.env("CARGO_TARGET_DIR", root.join("target/bare")))
}

/// Has the oldest compiler that `manifest` states check the packages of `what`.
pub(super) fn oldest(root: &Path, extent: Extent, manifest: &str, what: &[&str]) -> Outcome {
    if extent == Extent::Fast {
        return Outcome::Skip("left out by --fast".to_owned());
    }
    let text = std::fs::read_to_string(root.join(manifest)).unwrap_or_default();
    let line = text.lines().find(|line| line.trim_start().starts_with("rust-version = "));
    let Some(version) = line.and_then(|line| line.split('"').nth(1)) else {
        eprintln!("{manifest} states no rust-version");
        return Outcome::Fail;
    };
    let toolchain = format!("{version}.0");
    let mut install = Command::new("rustup");
    install.args(["toolchain", "install", &toolchain, "--profile", "minimal"]);
    install.stdout(Stdio::null()).stderr(Stdio::null());
    if !install.status().is_ok_and(|status| status.success()) {
        return Outcome::Skip(format!("Rust {toolchain} is not here and cannot be installed"));
    }
    let mut command = of_toolchain(root, &toolchain);
    let target = root.join("target").join(format!("rust-{version}"));
    outcome(command.args(["check", "--quiet"]).args(what).env("CARGO_TARGET_DIR", target))
}

/// Cargo of another toolchain than that of `cargo xtask`, which says so to its children.
fn of_toolchain(root: &Path, toolchain: &str) -> Command {
    let mut command = Command::new("cargo");
    command.arg(format!("+{toolchain}")).current_dir(root);
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").env_remove("RUSTC");
    command
}

/// Has Miri run the unit tests of the library's unsafe modules.
pub(super) fn miri(root: &Path) -> Outcome {
    let miri = || {
        let mut command = of_toolchain(root, "nightly");
        command.arg("miri");
        command
    };
    let mut version = miri();
    version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    if !version.status().is_ok_and(|status| status.success()) {
        return Outcome::Skip("no nightly compiler with Miri is here".to_owned());
    }
    let tests = ["test", "--quiet", "--package", "portolan", "--lib", "--", "platform::contract"];
    outcome(miri().args(tests).env("CARGO_TARGET_DIR", root.join("target").join("miri")))
}
