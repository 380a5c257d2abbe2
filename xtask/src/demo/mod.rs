//! `cargo xtask demo`: kernels of our own on QEMU, and their results, seen from outside.
//!
//! The kernel (`demo`) says on its console the number of commands of each kind that it gave its
//! IOMMUs; QEMU's trace has to say the same. It copies sectors of its disks; their images have to
//! hold them.

mod broken;
mod counts;
mod guests;
mod image;
pub mod sleeps;
mod told;
mod tree;
pub mod updates;
pub mod vhost;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use crate::{cross, packages, qemu};
use broken::Broken;
pub use broken::{ALL as BROKEN, BAD};
pub use counts::traced;
use guests::Firmware;
pub use guests::{Event, GOOD, Guest, Release, SMMU, SOCKET, Table, X86, all};
pub use image::{FLASH, sectors};

/// Seconds after which a kernel is stuck.
const LIMIT: &str = "60";
/// File name of QEMU's trace, in a machine's place.
const TRACE: &str = "trace.txt";

/// Result of a run.
pub enum Ended {
    /// Passed.
    Well,
    /// Failed.
    Failed(String),
    /// Skipped, for this reason.
    Skipped(String),
}

/// Runs those named, or all, at length with `--long`; returns if none failed.
pub fn run(root: &Path, names: &[&str]) -> Result<bool, String> {
    let is_long = names.contains(&"--long");
    let names: Vec<&str> = names.iter().copied().filter(|name| *name != "--long").collect();
    let good = guests::all().map(|guest| (guest.name, guest, None));
    let broken = BROKEN.iter().map(|of| (of.name, of.of, Some(of)));
    let once = good.chain(broken).map(|(name, guest, broken)| {
        let run: Run<'_> = Box::new(move || one(root, guest, broken));
        (name, run)
    });
    let updated = updates::ALL.iter().map(|of| {
        let run: Run<'_> = Box::new(move || updates::one(root, of, is_long));
        (of.name, run)
    });
    let asleep = sleeps::ALL.iter().map(|of| {
        let run: Run<'_> = Box::new(move || sleeps::one(root, of, is_long));
        (of.name, run)
    });
    let all: Vec<_> = once.chain(updated).chain(asleep).collect();
    if let Some(name) = names.iter().find(|name| !all.iter().any(|known| known.0 == **name)) {
        let all: Vec<&str> = all.iter().map(|known| known.0).collect();
        return Err(format!("no demo is called {name}; there are {}", all.join(", ")));
    }
    let wanted = all.into_iter().filter(|(name, _)| names.is_empty() || names.contains(name));
    Ok(each(wanted))
}

/// Run of a machine.
pub type Run<'r> = Box<dyn FnOnce() -> Ended + 'r>;

/// Runs each, and prints the result; returns if none failed.
pub fn each(all: impl Iterator<Item = (&'static str, impl FnOnce() -> Ended)>) -> bool {
    let mut good = true;
    for (name, run) in all {
        println!("==> {name}");
        match run() {
            Ended::Well => println!("PASS  {name}"),
            Ended::Failed(why) => {
                good = false;
                println!("FAIL  {name}: {why}");
            }
            Ended::Skipped(why) => println!("SKIP  {name}: {why}"),
        }
    }
    good
}

/// Exit status and output of a machine.
struct DemoRun {
    place: PathBuf,
    status: ExitStatus,
    console: String,
    /// Process that serves its disk.
    served: Option<vhost::Daemon>,
}

/// Builds and runs one, whole or broken, and checks its results.
pub fn one(root: &Path, guest: &Guest, broken: Option<&Broken>) -> Ended {
    let ready = emulator(root, guest.program, guest.variable, guest.release, LIMIT)
        .and_then(|qemu| Ok((qemu, compiler(root, guest)?)));
    let (qemu, mut cargo) = match ready {
        Ok(ready) => ready,
        Err(why) => return Ended::Skipped(why),
    };
    let (name, features, more) = match broken {
        None => (guest.name, &[][..], &[][..]),
        Some(of) => (of.name, of.features, of.daemon),
    };
    cargo.args(features.iter().flat_map(|of| ["--features", of]));
    let done = build(root, guest, cargo).and_then(|kernel| {
        let place = root.join("target/demo/runs").join(name);
        std::fs::create_dir_all(&place).map_err(|error| error.to_string())?;
        let daemon = if vhost::serves(guest) { Some((vhost::build(root)?, more)) } else { None };
        let beside = BesideMachine { daemon, slowed: [""; 2] };
        let ran = boot(place, guest, qemu, &kernel, beside)?;
        match broken {
            None => check(guest, ran),
            Some(broken) => broken.check(&ran),
        }
    });
    match done {
        Ok(()) => Ended::Well,
        Err(why) => Ended::Failed(why),
    }
}

/// Finds a QEMU of `release`, limited to so many seconds, or the reason why there is none. `variable` names another
/// program.
pub fn emulator(
    root: &Path,
    program: &str,
    variable: &str,
    release: Release,
    limit: &str,
) -> Result<Command, String> {
    let mut command = Command::new("timeout");
    command.arg(limit);
    let named = std::env::var_os(variable).map(PathBuf::from);
    match (release, named) {
        (Release::Ten, None) => qemu::provide(root)?.start(program, &mut command),
        (Release::Eleven, named) => {
            qemu::Newest::provide(root, named)?.start(&mut command);
        }
        (_, named) => {
            let found = named.unwrap_or_else(|| program.into());
            if !found.to_str().is_some_and(packages::present) {
                return Err(format!("{program} is not installed"));
            }
            command.arg(found);
        }
    }
    Ok(command)
}

/// Finds a `cargo` with a compiler for the machine, or the reason why there is none.
pub fn compiler(root: &Path, guest: &Guest) -> Result<Command, String> {
    let mut cargo = cargo(root, guest.target, "build");
    if guest.target != X86 {
        cross::add_target(guest.target)?;
        // Clippy's driver is the compiler with lints, so that nothing is compiled twice.
        cargo.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
        cargo.env("CLIPPY_ARGS", cross::LINTS);
    }
    Ok(cargo)
}

/// A `cargo` that builds for bare metal, by the settings in the folder of the kernel.
pub fn cargo(root: &Path, target: &str, command: &str) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.args([command, "--quiet", "--locked", "--target", target]);
    cargo.current_dir(root.join("proof/demo"));
    cargo.env("CARGO_TARGET_DIR", root.join("target/demo"));
    // They would replace the flags of the kernel's own configuration.
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    cargo
}

/// Builds the kernel of the machine by this `cargo`; returns its file.
pub fn build(root: &Path, guest: &Guest, mut cargo: Command) -> Result<PathBuf, String> {
    let built = cargo.status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("the kernel is not built".to_owned());
    }
    let target = root.join("target/demo").join(guest.target);
    Ok(target.join("debug/portolan-demo"))
}

/// What a machine has beside its own arguments.
struct BesideMachine<'a> {
    /// Process that serves the virtio disk, with more words for it.
    daemon: Option<(PathBuf, &'a [&'a str])>,
    /// Further settings of each disk.
    slowed: [&'a str; 2],
}

fn boot(
    place: PathBuf,
    guest: &Guest,
    mut command: Command,
    kernel: &Path,
    BesideMachine { daemon, slowed }: BesideMachine<'_>,
) -> Result<DemoRun, String> {
    let error = |error: std::io::Error| error.to_string();
    let complaints = std::fs::File::create(place.join("qemu.txt")).map_err(error)?;

    command.args(guest.arguments).args(guests::CARDS);
    for (disk, slowed) in image::DISKS.iter().zip(slowed) {
        let (name, file) = (disk.name, disk.image(&place));
        std::fs::write(&file, disk.before()).map_err(error)?;
        if daemon.is_some() && disk.is_virtio() {
            continue;
        }
        let file = file.display();
        let drive = format!("if=none,id={name},format=raw,cache=unsafe,file={file}{slowed}");
        command.args(["-drive", &drive]);
    }
    match guest.firmware {
        Firmware::Own => {}
        Firmware::Tables(tables) => add_tables(tables, &place, &mut command)?,
        Firmware::Tree(says, instead) => {
            let file = place.join("tree.dtb");
            tree::write(&command, &file, says, instead)?;
            command.arg("-dtb").arg(file);
        }
    }
    command.arg("-kernel").arg(kernel);
    command.args(guest.traced.iter().flat_map(|events| ["-trace", events]));
    let served =
        daemon.map(|(program, more)| vhost::Daemon::start(&program, more, &place, &mut command));
    let served = served.transpose()?;
    command.arg("-D").arg(place.join(TRACE));
    command.stdin(Stdio::null()).stderr(complaints);
    let output = command.output().map_err(error)?;

    let console = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{console}");
    Ok(DemoRun { place, status: output.status, console, served })
}

/// Gives QEMU more tables of ACPI, by files in `place`.
pub fn add_tables(tables: &[Table], place: &Path, command: &mut Command) -> Result<(), String> {
    for (number, (signature, body)) in tables.iter().enumerate() {
        let file = place.join(format!("table{number}"));
        std::fs::write(&file, body).map_err(|error| error.to_string())?;
        let table = format!("sig={signature},rev=1,data={}", file.display());
        command.args(["-acpitable", &table]);
    }
    Ok(())
}

/// Checks the machine's exit code, console, counts and disks, as seen from outside.
fn check(guest: &Guest, ran: DemoRun) -> Result<(), String> {
    let error = |error: std::io::Error| error.to_string();
    if ran.status.code() != Some(guest.code) {
        let (status, complaints) = (ran.status, ran.place.join("qemu.txt"));
        return Err(format!(
            "the machine ended with {status}; QEMU's complaints are in {}",
            complaints.display()
        ));
    }
    let console = &ran.console;
    said(console, &guest.said)?;
    let without_dma = guest.code == guests::WITHOUT_DMA;
    for disk in &image::DISKS {
        let found = std::fs::read(disk.image(&ran.place)).map_err(error)?;
        match without_dma {
            true if found != disk.before() => return Err(format!("{} has changed", disk.name)),
            true => {}
            false => disk.check(&found)?,
        }
    }
    if guest.kinds.is_empty() {
        return Ok(());
    }
    let trace = std::fs::read_to_string(ran.place.join(TRACE)).map_err(error)?;
    if let Some(daemon) = ran.served {
        vhost::check(&daemon.end()?, console, &trace, vhost::kind(guest))?;
    }
    counts::check(console, &trace, guest.kinds)
}

/// Checks that the console has lines with these starts, in this order.
pub fn said(console: &str, wanted: &[&[&str]]) -> Result<(), String> {
    let mut lines = console.lines();
    let mut wanted = wanted.iter().copied().flatten();
    let missing = wanted.find(|start| !lines.any(|line| line.starts_with(**start)));
    match missing {
        None => Ok(()),
        Some(start) => Err(format!("the kernel did not say {start:?}, or too late")),
    }
}

#[cfg(test)]
mod tests {
    use super::said;

    #[test]
    fn lines_have_to_come_in_their_order() {
        let console = "RAM\none: a\ntwo: b\n";
        assert_eq!(said(console, &[&["one"], &["two: b"]]), Ok(()));
        assert!(said(console, &[&["two"], &["one"]]).is_err());
        assert!(said(console, &[&["three"]]).is_err());
    }
}
