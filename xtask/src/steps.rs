//! The steps of `cargo xtask test`.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use crate::outcome::{Outcome, outcome};
use crate::{adopter, cross, demo, guest, mutants, packages, qemu, tidy};

/// Extent of a test run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Everything.
    Whole,
    /// Without other compilers and without instruction counts.
    Fast,
    /// Everything, the guests that record each load by each recorder, and mistakes.
    Long,
}

impl Extent {
    /// Options of `cargo xtask test`.
    pub fn of(options: &[&str]) -> Option<Self> {
        let all = [Self::Whole, Self::Fast, Self::Long];
        all.into_iter().find(|extent| extent.options() == options)
    }

    /// The options that ask for it.
    pub fn options(self) -> &'static [&'static str] {
        match self {
            Self::Whole => &[],
            Self::Fast => &["--fast"],
            Self::Long => &["--long"],
        }
    }
}

/// A step: its name, and the function that does it.
pub struct Step<'s> {
    /// Name in the table.
    pub name: &'static str,
    /// Does it.
    pub run: Box<dyn FnOnce() -> Outcome + 's>,
}

/// Steps that others rely on.
pub fn first() -> Vec<Step<'static>> {
    vec![Step { name: "Debian packages", run: Box::new(provide) }]
}

/// Steps that build into `target/debug` and `target/release`.
pub fn steps(root: &Path, extent: Extent) -> Vec<Step<'_>> {
    let cargo = move |arguments: &'static [&'static str]| {
        Box::new(move || outcome(Command::new("cargo").args(arguments).current_dir(root)))
    };
    let mut steps = vec![
        Step { name: "format", run: Box::new(move || format(root)) },
        Step { name: "lints", run: Box::new(|| lints(root)) },
        Step { name: "documentation", run: Box::new(|| documentation(root)) },
        Step {
            name: "tests",
            run: cargo(&["test", "--quiet", "--workspace", "--all-targets", "--no-fail-fast"]),
        },
        Step { name: "drivers on a hostile machine", run: Box::new(|| hostile(root)) },
        Step { name: "tests of machines on QEMU 10", run: Box::new(|| newer_qemu(root)) },
        Step {
            name: "documentation tests",
            run: cargo(&["test", "--quiet", "--workspace", "--doc"]),
        },
    ];
    steps.extend(programs(root, extent));
    steps
}

/// Steps that build into folders of their own: without std, on the oldest compilers, for kernels.
pub fn beside(root: &Path, extent: Extent) -> Vec<Step<'_>> {
    let mut steps = vec![
        Step { name: "library without std", run: Box::new(|| no_std_gate(root)) },
        Step { name: "packages and their adopter", run: Box::new(|| adopter::run(root)) },
        Step { name: "orders of the library's own atomics", run: Box::new(|| orders(root)) },
        Step {
            name: "libraries for AArch64",
            run: Box::new(|| bare(root, "aarch64-unknown-none")),
        },
        Step {
            name: "libraries for RISC-V",
            run: Box::new(|| bare(root, "riscv64gc-unknown-none-elf")),
        },
        Step {
            name: "libraries on their oldest compiler",
            run: Box::new(move || {
                oldest(
                    root,
                    extent,
                    "crates/portolan/Cargo.toml",
                    &[
                        "-p",
                        "portolan",
                        "-p",
                        "portolan-spec",
                        "-p",
                        "portolan-tables",
                        "-p",
                        "portolan-hw",
                    ],
                )
            }),
        },
        Step {
            name: "tools on their oldest compiler",
            run: Box::new(move || oldest(root, extent, "Cargo.toml", &["--workspace"])),
        },
    ];
    steps.extend(machines(root, extent));
    steps
}

/// Steps that run programs, once the tests have passed.
fn programs(root: &Path, extent: Extent) -> Vec<Step<'_>> {
    let mut steps = vec![
        Step { name: "examples", run: Box::new(|| examples(root)) },
        Step { name: "torture", run: Box::new(|| torture(root)) },
        Step { name: "Linux's own code as a peer", run: Box::new(|| peer(root)) },
        Step { name: "instruction counts", run: Box::new(move || instructions(root, extent)) },
        Step { name: "tidy", run: Box::new(|| tidy(root)) },
    ];
    if extent == Extent::Long {
        steps.push(Step {
            name: "torture, ten million operations",
            run: Box::new(|| long_torture(root)),
        });
        steps.push(Step {
            name: "mistakes that tests have to notice",
            run: Box::new(|| mistakes(root)),
        });
    }
    steps
}

/// Runs all tests of drivers and all scenarios on hostile register models.
fn hostile(root: &Path) -> Outcome {
    let mut command = Command::new("cargo");
    command.args(["test", "--quiet", "-p", "portolan-hw", "-p", "portolan-verify"]);
    command.args(["--lib", "--test", "conformance"]);
    command.env("PORTOLAN_MACHINE", "hostile");
    outcome(command.current_dir(root))
}

/// Ten times the work of the tests.
fn long_torture(root: &Path) -> Outcome {
    let mut command = Command::new("cargo");
    command.args(["test", "--quiet", "-p", "portolan", "--test", "torture"]);
    command.env("PORTOLAN_TORTURE", "10000000");
    outcome(command.current_dir(root))
}

fn mistakes(root: &Path) -> Outcome {
    if mutants::mistakes::run(root, &[]) == ExitCode::SUCCESS {
        Outcome::Pass
    } else {
        Outcome::Fail
    }
}

/// A kernel on each of the demo's machines, and Linux on each of the guests'.
fn machines(root: &Path, extent: Extent) -> impl Iterator<Item = Step<'_>> {
    let demos = demo::all().map(|guest| (guest.step, guest, None));
    let broken = demo::BROKEN.iter().map(|of| (of.step, of.of, Some(of)));
    let demos = demos
        .chain(broken)
        .map(move |(step, guest, broken)| ended(step, move || demo::one(root, guest, broken)));
    let long = guest::LONG.iter().filter(move |_| extent == Extent::Long);
    let guests = guest::ALL.iter().chain(long);
    demos.chain(guests.map(move |machine| ended(machine.step, move || guest::one(root, machine))))
}

/// A step that runs a machine.
fn ended<'s>(name: &'static str, run: impl FnOnce() -> demo::Ended + 's) -> Step<'s> {
    let run = Box::new(|| match run() {
        demo::Ended::Well => Outcome::Pass,
        demo::Ended::Skipped(why) => Outcome::Skip(why),
        demo::Ended::Failed(why) => {
            eprintln!("{why}");
            Outcome::Fail
        }
    });
    Step { name, run }
}

fn tidy(root: &Path) -> Outcome {
    if tidy::run(root) { Outcome::Pass } else { Outcome::Fail }
}

fn provide() -> Outcome {
    let missing = packages::provide();
    if missing.is_empty() {
        return Outcome::Pass;
    }
    let list: Vec<String> =
        missing.iter().map(|p| format!("{} (for {})", p.name, p.needed_for)).collect();
    Outcome::Skip(format!("not installed: {}; run apt-get install", list.join(", ")))
}

fn format(root: &Path) -> Outcome {
    for folder in [".", "proof/demo", "proof/fuzz"] {
        let mut command = Command::new("cargo");
        command.args(["fmt", "--all", "--check"]);
        match outcome(command.current_dir(root.join(folder))) {
            Outcome::Pass => {}
            other => return other,
        }
    }
    Outcome::Pass
}

fn lints(root: &Path) -> Outcome {
    let arguments = ["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"];
    match outcome(Command::new("cargo").args(arguments).current_dir(root)) {
        Outcome::Pass => {}
        other => return other,
    }
    let mut kernel = demo::cargo(root, demo::X86, "clippy");
    outcome(kernel.args(["--", "-D", "warnings"]))
}

/// Program that the tests' build has left at `path`: to build it once more, alone, would build all below it
/// as well.
fn built(root: &Path, path: &str) -> Command {
    let target = std::env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| root.join("target"), |path| root.join(path));
    let mut command = Command::new(target.join("debug").join(path));
    command.current_dir(root);
    command
}

/// Runs programs that have to succeed, and the programs of the following steps. They are built with the whole
/// workspace, so that no library is built again.
fn examples(root: &Path) -> Outcome {
    let mut build = Command::new("cargo");
    build.args(["build", "--quiet", "--profile", "test", "--workspace"]);
    build.args(["--bin", "portolan-verify", "--bin", "portolan-bench"]);
    build.arg("--examples").current_dir(root);
    match outcome(&mut build) {
        Outcome::Pass => {}
        other => return other,
    }
    all(["tables", "acpi", "card", "smallest"].map(|name| built(root, &format!("examples/{name}"))))
}

/// Runs `commands` one after the other until one fails.
fn all<const N: usize>(commands: [Command; N]) -> Outcome {
    for mut command in commands {
        match outcome(&mut command) {
            Outcome::Pass => {}
            other => return other,
        }
    }
    Outcome::Pass
}

fn documentation(root: &Path) -> Outcome {
    let mut command = Command::new("cargo");
    command.args(["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"]);
    outcome(command.current_dir(root).env("RUSTDOCFLAGS", "-D warnings"))
}

/// Links the library into a program with a panic handler. If anything in it pulled in std, the two would collide.
/// Then checks that the same gate rejects a library with std.
fn no_std_gate(root: &Path) -> Outcome {
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

/// Explores orders of accesses in the code that does not use a platform's words: it is built with
/// the model checker's own for that.
fn orders(root: &Path) -> Outcome {
    let mut command = Command::new("cargo");
    let tests = ["--test", "walks", "--test", "interleavings"];
    command.args(["test", "--quiet", "-p", "portolan"]).args(tests);
    command.env("RUSTFLAGS", "--cfg portolan_loom");
    command.env("CARGO_TARGET_DIR", root.join("target/orders"));
    outcome(command.current_dir(root))
}

/// Checks the libraries for a machine without an operating system.
fn bare(root: &Path, target: &str) -> Outcome {
    if let Err(why) = cross::add_target(target) {
        return Outcome::Skip(why);
    }
    let mut command = Command::new("cargo");
    command.args(["check", "--quiet", "-p", "portolan", "-p", "portolan-tables"]);
    command.args(["-p", "portolan-hw"]);
    command.args(["--target", target]).current_dir(root);
    outcome(command.env("CARGO_TARGET_DIR", root.join("target/bare")))
}

fn oldest(root: &Path, extent: Extent, manifest: &str, what: &[&str]) -> Outcome {
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
    let mut command = Command::new("cargo");
    command.arg(format!("+{toolchain}")).args(["check", "--quiet"]).args(what);
    let target = root.join("target").join(format!("rust-{version}"));
    // `cargo xtask` itself runs under another toolchain, which passes its settings to children.
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").env_remove("RUSTC");
    outcome(command.current_dir(root).env("CARGO_TARGET_DIR", target))
}

/// The scenarios and the tests of machines once more, with a QEMU that has first-level VT-d and the
/// SMMUv3's second stage.
fn newer_qemu(root: &Path) -> Outcome {
    let newer = match qemu::provide(root) {
        Ok(newer) => newer,
        Err(why) => return Outcome::Skip(why),
    };
    let mut check = built(root, "portolan-verify");
    newer.give(check.args(["check", "--backend", "qemu"]));
    let mut tests = Command::new("cargo");
    tests.args(["test", "--quiet", "-p", "portolan-qemu", "--all-targets"]);
    newer.give(tests.current_dir(root));
    all([check, tests])
}

/// Random operations, side by side: 42,000 on each format, and 1,000,000 buffers through the DMA layer by eight
/// CPUs in virtual time.
fn torture(root: &Path) -> Outcome {
    let torture = |arguments: &[&str]| {
        let mut command = built(root, "portolan-verify");
        command.arg("torture").args(arguments);
        command
    };
    let mut tables = torture(&["--layer", "tables", "--operations", "600000"]);
    let mappings = ["--layer", "mappings", "--operations", "1000000", "--failures"];
    let mut mappings = torture(&mappings);
    std::thread::scope(|scope| {
        let tables = scope.spawn(|| outcome(&mut tables));
        match outcome(&mut mappings) {
            Outcome::Pass => tables.join().unwrap_or(Outcome::Fail),
            other => other,
        }
    })
}

/// Fetches Linux's sources once, compiles them with the shim and runs their self-test. Then runs every benchmark
/// briefly beside them. They are optimised like the tests, so the figures mean nothing.
fn peer(root: &Path) -> Outcome {
    let bench = |arguments: &[&str]| {
        let mut command = built(root, "portolan-bench");
        command.args(arguments);
        command
    };
    let prepared = match bench(&["linux"]).stderr(Stdio::inherit()).output() {
        Ok(prepared) => prepared,
        Err(error) => {
            eprintln!("cannot start portolan-bench: {error}");
            return Outcome::Fail;
        }
    };
    let said = String::from_utf8_lossy(&prepared.stdout);
    print!("{said}");
    match prepared.status.code() {
        Some(0) => outcome(bench(&["--short"]).stdout(Stdio::null())),
        Some(3) => Outcome::Skip(said.trim().trim_start_matches("SKIP ").to_owned()),
        _ => Outcome::Fail,
    }
}

fn instructions(root: &Path, extent: Extent) -> Outcome {
    if extent == Extent::Fast {
        return Outcome::Skip("left out by --fast".to_owned());
    }
    if !packages::present("valgrind") {
        return Outcome::Skip("valgrind is not installed".to_owned());
    }
    let arguments =
        ["run", "--quiet", "--profile", "bench", "-p", "portolan-bench", "--bin", "instructions"];
    outcome(Command::new("cargo").args(arguments).args(["--", "--check"]).current_dir(root))
}
