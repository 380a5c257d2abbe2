//! Steps that run tests and programs.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use super::{Extent, runs};
use crate::built::{self, Executable};
use crate::outcome::{Outcome, outcome};
use crate::{mutants, packages, qemu};

/// Tests, examples and documentation tests of everything. Without `--all-targets`: that would build the examples as
/// tests, of which they have none, and again as programs.
pub(super) fn tests(root: &Path) -> Outcome {
    let mut command = Command::new("cargo");
    command.args(["test", "--quiet", "--workspace", "--no-fail-fast"]);
    outcome(runs::noted(root, command.current_dir(root)))
}

/// Tests that the step before has built and `wanted` names, in the environment that `given` makes.
fn built_tests(
    root: &Path,
    wanted: impl Fn(&Executable) -> bool,
    given: impl Fn(&mut Command),
) -> Outcome {
    let Some(tests) = built::tests(root) else {
        return Outcome::Fail;
    };
    let mut any = false;
    for test in tests.iter().filter(|test| wanted(test)) {
        any = true;
        let mut command = test.command();
        command.arg("--quiet");
        given(&mut command);
        match outcome(&mut command) {
            Outcome::Pass => {}
            other => return other,
        }
    }
    if !any {
        eprintln!("there are no such tests");
        return Outcome::Fail;
    }
    Outcome::Pass
}

/// All tests of drivers, and all scenarios, on register models that are not obliging.
pub(super) fn hostile(root: &Path) -> Outcome {
    let machine = ("PORTOLAN_MACHINE", "hostile");
    let of_drivers =
        |test: &Executable| test.kind == "lib" && test.package.ends_with("crates/portolan-hw");
    let tests = built_tests(root, of_drivers, |command| {
        command.env(machine.0, machine.1);
    });
    match tests {
        Outcome::Pass => {}
        other => return other,
    }
    let mut check = program(root, "portolan-verify");
    check.args(["check", "--backend", "model"]).env(machine.0, machine.1);
    match runs::noted(root, &mut check).stderr(Stdio::inherit()).output() {
        Ok(output) if output.status.success() => Outcome::Pass,
        Ok(output) => {
            // Thousands of lines, which matter only if a scenario fails.
            print!("{}", String::from_utf8_lossy(&output.stdout));
            Outcome::Fail
        }
        Err(error) => {
            eprintln!("cannot start {check:?}: {error}");
            Outcome::Fail
        }
    }
}

/// The scenarios and the tests of machines once more, with a QEMU that has first-level VT-d and the
/// SMMUv3's second stage.
pub(super) fn newer_qemu(root: &Path) -> Outcome {
    let newer = match qemu::provide(root) {
        Ok(newer) => newer,
        Err(why) => return Outcome::Skip(why),
    };
    let mut check = program(root, "portolan-verify");
    newer.give(check.args(["check", "--backend", "qemu"]));
    match outcome(&mut check) {
        Outcome::Pass => {}
        other => return other,
    }
    let of_machines = |test: &Executable| test.package.ends_with("proof/qemu");
    built_tests(root, of_machines, |command| newer.give(command))
}

/// The tests of machines whose device is another process, on a QEMU that has such devices.
pub(super) fn passed_through(root: &Path) -> Outcome {
    let newest = qemu::Newest::provide(root, None).and_then(|newest| newest.script());
    let newest = match newest {
        Ok(newest) => newest,
        Err(why) => return Outcome::Skip(why),
    };
    let mut command = Command::new("cargo");
    command.args(["test", "--quiet", "-p", "portolan-monitor", "--test", "qemu"]);
    outcome(command.env("PORTOLAN_QEMU_X86", newest).current_dir(root))
}

/// Program that an earlier step has left at `path`.
fn program(root: &Path, path: &str) -> Command {
    let target = std::env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| root.join("target"), |path| root.join(path));
    let mut command = Command::new(target.join("debug").join(path));
    command.current_dir(root);
    command
}

/// Examples that have to end well; and the programs of the steps that follow are built.
pub(super) fn examples(root: &Path) -> Outcome {
    let targets = ["--bin", "portolan-verify", "--bin", "portolan-bench", "--examples"];
    if built::programs(root, &targets).is_none() {
        return Outcome::Fail;
    }
    let examples = ["tables", "acpi", "card", "receive-pool", "smallest"];
    all(examples.map(|name| program(root, &format!("examples/{name}"))))
}

/// Runs them one after the other, as far as they end well.
fn all<const N: usize>(commands: [Command; N]) -> Outcome {
    for mut command in commands {
        match outcome(&mut command) {
            Outcome::Pass => {}
            other => return other,
        }
    }
    Outcome::Pass
}

/// Explores orders of accesses in the code that does not use a platform's words: it is built with
/// the model checker's own for that.
pub(super) fn orders(root: &Path) -> Outcome {
    let mut command = Command::new("cargo");
    let tests = ["--test", "walks", "--test", "interleavings"];
    command.args(["test", "--quiet", "-p", "portolan"]).args(tests);
    command.env("RUSTFLAGS", "--cfg portolan_loom");
    command.env("CARGO_TARGET_DIR", root.join("target/orders"));
    outcome(runs::noted(root, command.current_dir(root)))
}

/// Random operations, side by side: 600,000 on tables of all formats; and by eight CPUs in virtual time 700,000 on
/// buffers, and 300,000 on buffers and on memory that devices fault on.
pub(super) fn torture(root: &Path) -> Outcome {
    let layers: [&[&str]; 3] = [
        &["--layer", "tables", "--operations", "600000"],
        &["--layer", "mappings", "--operations", "700000", "--failures"],
        &["--layer", "both", "--operations", "300000", "--failures"],
    ];
    let torture = |arguments: &[&str]| {
        let mut command = program(root, "portolan-verify");
        outcome(runs::noted(root, command.arg("torture").args(arguments)))
    };
    std::thread::scope(|scope| {
        let running = layers.map(|arguments| scope.spawn(move || torture(arguments)));
        let ended = running.map(|layer| layer.join().unwrap_or(Outcome::Fail));
        let bad = ended.into_iter().find(|ended| !matches!(ended, Outcome::Pass));
        bad.unwrap_or(Outcome::Pass)
    })
}

/// Ten times the work of the tests.
pub(super) fn long_torture(root: &Path) -> Outcome {
    let mut command = Command::new("cargo");
    command.args(["test", "--quiet", "-p", "portolan", "--test", "torture"]);
    command.env("PORTOLAN_TORTURE", "10000000");
    outcome(command.current_dir(root))
}

/// Makes the mistakes of `part` (`K/N`).
pub(super) fn mistakes(root: &Path, part: &str) -> Outcome {
    match mutants::mistakes::run(root, &["--part", part]) == ExitCode::SUCCESS {
        true => Outcome::Pass,
        false => Outcome::Fail,
    }
}

/// Linux's sources, fetched once, compiled with the shim and put to their own tests; then every benchmark
/// beside those that are there, shortly and optimised as the tests are, so that no figure of it means anything.
pub(super) fn peer(root: &Path) -> Outcome {
    let bench = |arguments: &[&str]| {
        let mut command = program(root, "portolan-bench");
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
    if !matches!(prepared.status.code(), Some(0 | 3)) {
        return Outcome::Fail;
    }
    let skipped: Vec<_> = said.lines().filter_map(|line| line.strip_prefix("SKIP ")).collect();
    match outcome(bench(&["--short"]).stdout(Stdio::null())) {
        Outcome::Pass if !skipped.is_empty() => Outcome::Skip(skipped.join("; ")),
        measured => measured,
    }
}

pub(super) fn instructions(root: &Path, extent: Extent) -> Outcome {
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
