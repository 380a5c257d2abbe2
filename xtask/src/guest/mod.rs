//! `cargo xtask guest`: Linux on QEMU with programs of this workspace, and their results, seen from outside.
//!
//! The kernel is Debian's or one of our own; everything else is an initramfs of static programs, of which
//! `portolan-guest` is the first. The guest reports on its console the end of its programs; one that does not
//! report within its limit has failed.

mod architecture;
mod busybox;
mod checks;
mod crashed;
mod crashes;
mod disk;
mod explained;
mod gained;
mod grouped;
mod guided;
mod initramfs;
pub mod kernel;
mod latencies;
mod loads;
mod machines;
mod modules;
mod passed;
mod recorder;
mod recording;
mod served;
mod strayed;
mod tools;
mod watched;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::demo::{self, Ended, Run, vhost};
use crate::{built, cross};
use architecture::{Architecture, BARE};
pub use crashes::{CRASHES, Crash, one as crash};
use initramfs::Archive;
pub use machines::Machine;
use machines::{Program, Target};

/// Bytes of a command line that the kernel takes, with their end.
const COMMAND_LINE: usize = 2048;
/// Boots of a guest whose emulator does not run the code that the kernel's text has.
const BOOTS: usize = 3;
/// A kernel patches its text (static keys, ftrace) by a breakpoint first; QEMU's CPUs, each a thread, may run the
/// breakpoint of an older translation when the kernel is done with it. No processor does.
const STALE_TEXT: &str = "the emulator ran a breakpoint that the kernel had taken back";
/// Machines that are always run.
pub const ALL: &[Machine] = &[
    machines::VFIO,
    machines::VFIO_OWN,
    machines::IOMMUFD,
    checks::CHECK,
    checks::CHECK_OWN,
    machines::DISKS,
    machines::RECORD,
    watched::TOP,
    machines::GUIDE,
    machines::CALIBRATE,
    machines::DISKS_OWN,
    served::STRICT,
    served::LAZY,
    served::STRICT_ATS,
    served::LAZY_ATS,
    loads::NEWEST_STRICT,
    loads::NEWEST_LAZY,
    loads::NEWEST_PASSTHROUGH,
    loads::NEWEST_NONE,
    loads::STABLE_STRICT,
    loads::STABLE_LAZY,
    loads::STABLE_PASSTHROUGH,
    loads::STABLE_NONE,
    loads::AMD,
    gained::GAINED,
    strayed::STRAYED,
    strayed::STRAYED_VIRTIO,
];

/// Machines that only `cargo xtask test --long guests` runs.
pub const LONG: &[Machine] = &[
    loads::NEWEST_STRICT_ALL,
    loads::NEWEST_LAZY_ALL,
    loads::NEWEST_PASSTHROUGH_ALL,
    loads::NEWEST_NONE_ALL,
    loads::STABLE_STRICT_ALL,
    loads::STABLE_LAZY_ALL,
    loads::STABLE_PASSTHROUGH_ALL,
    loads::STABLE_NONE_ALL,
    recorder::CALIBRATE_OLDER,
    recorder::RATES,
    explained::NARROW,
    explained::WIDE,
    explained::NONE,
    explained::OFF,
    explained::PASSED_THROUGH,
    grouped::PORTS,
    grouped::OUTSIDE,
    passed::PASSED,
    strayed::STRAYED_AMD,
    strayed::STRAYED_ARM,
];

/// Files and output of a machine.
pub struct GuestRun {
    /// Folder of its files: disks (`NAME.img`), ports (`NAME`), QEMU's trace.
    pub place: PathBuf,
    /// Text of its console.
    pub console: String,
    trace: String,
    /// Counts of the process that serves a disk, if there is one.
    served: Option<vhost::DaemonCounts>,
    /// Words of the processes that have its device, if there are any.
    passed: String,
    /// Folder of the guest's programs, which run on the host as well.
    programs: PathBuf,
}

impl GuestRun {
    /// Number of times that QEMU traced the event called `name`.
    pub fn traced(&self, name: &'static str) -> u64 {
        demo::traced(&self.trace, &demo::Event { name, word: None })
    }

    /// Values traced between one event called `mark` and the next, or the end.
    pub fn traced_after(&self, mark: &str, name: &'static str) -> Vec<u64> {
        let parts = self.trace.split(mark).skip(1);
        let event = demo::Event { name, word: None };
        parts.map(|part| demo::traced(part, &event)).collect()
    }

    /// Runs the guest's `portolan` on the host, with `--json`; returns its output.
    fn portolan(&self, arguments: &[&str]) -> Result<serde_json::Value, String> {
        let mut command = Command::new(self.programs.join("portolan"));
        command.args(arguments).arg("--json");
        command.current_dir(&self.place).stderr(Stdio::inherit());
        let output = command.output().map_err(|error| error.to_string())?;
        if output.status.success() {
            serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
        } else {
            Err(format!("{arguments:?} ended with {}", output.status))
        }
    }
}

/// Runs those named, or all that are always run; returns if none failed.
pub fn run(root: &Path, names: &[&str]) -> Result<bool, String> {
    let crashes = CRASHES.iter().map(|crash| crash.name);
    let all = || ALL.iter().chain(LONG).map(|machine| machine.name).chain(crashes.clone());
    if let Some(name) = names.iter().find(|name| !all().any(|known| known == **name)) {
        let all: Vec<&str> = all().collect();
        return Err(format!("no guest is called {name}; there are {}", all.join(", ")));
    }
    let named = ALL.iter().chain(LONG).filter(|machine| names.contains(&machine.name));
    let wanted = ALL.iter().filter(|_| names.is_empty()).chain(named);
    let machines = wanted.map(|machine| {
        let run: Run<'_> = Box::new(move || one(root, machine));
        (machine.name, run)
    });
    let wanted = |crash: &&Crash| names.is_empty() || names.contains(&crash.name);
    let crashes = CRASHES.iter().filter(wanted).map(|crash| {
        let run: Run<'_> = Box::new(move || crashes::one(root, crash));
        (crash.name, run)
    });
    Ok(demo::each(machines.chain(crashes)))
}

/// Runs one and checks its results.
pub fn one(root: &Path, machine: &Machine) -> Ended {
    let debian = match Debian::provide(root, machine) {
        Ok(debian) => debian,
        Err(why) => return Ended::Skipped(why),
    };
    let initramfs = match initramfs(root, machine, &debian, &[]) {
        Ok(initramfs) => initramfs,
        Err(why) => return Ended::Failed(why),
    };
    let once = || {
        let [program, variable] = machine.architecture.emulator;
        let qemu = demo::emulator(root, program, variable, machine.release, machine.limit);
        qemu.map(|qemu| boot(root, machine, qemu, &debian.kernel, &initramfs))
    };
    let mut booted = once();
    for _ in 1..BOOTS {
        if !matches!(&booted, Ok(Err(why)) if why == STALE_TEXT) {
            break;
        }
        println!("{STALE_TEXT}: once more");
        booted = once();
    }
    match booted {
        Ok(Ok(())) => Ended::Well,
        Ok(Err(why)) => Ended::Failed(why),
        Err(why) => Ended::Skipped(why),
    }
}

/// Debian's files that a guest has.
struct Debian {
    kernel: kernel::Found,
    busybox: Option<Vec<u8>>,
    tools: Option<tools::Tools>,
}

impl Debian {
    fn provide(root: &Path, machine: &Machine) -> Result<Self, String> {
        cross::add_target(machine.architecture.target)?;
        let kernel = kernel::provide(root, machine.kernel)?;
        let busybox = (!machine.applets.is_empty()).then(|| busybox::provide(root));
        let tools = machine.tools.then(|| tools::provide(root));
        Ok(Self { kernel, busybox: busybox.transpose()?, tools: tools.transpose()? })
    }
}

/// Tells if another process serves the machine's disk.
pub fn is_served(machine: &Machine) -> bool {
    machine.devices.contains(&demo::SOCKET)
}

/// Builds the guest's programs, and packs them with the modules, and with `more` files in `/bin`.
fn initramfs(
    root: &Path,
    machine: &Machine,
    debian: &Debian,
    more: &[(&str, Vec<u8>)],
) -> Result<Vec<u8>, String> {
    let mut archive = Archive::default();
    for folder in ["bin", "dev", "modules", "proc", "sys", "tmp"] {
        archive.folder(folder)?;
    }
    let init = Program {
        package: "portolan-guest",
        target: Target::Binary("init"),
        opt_level: "1",
        options: &[],
    };
    let build = |wanted| program(root, machine.architecture, wanted);
    archive.file("init", &build(&init)?.1)?;
    for wanted in machine.programs {
        let (name, body) = build(wanted)?;
        archive.file(&format!("bin/{name}"), &body)?;
    }
    for (name, body) in more {
        archive.file(&format!("bin/{name}"), body)?;
    }
    // Busybox runs as the program whose name it has.
    for (name, busybox) in machine.applets.iter().zip(debian.busybox.iter().cycle()) {
        archive.file(&format!("bin/{name}"), busybox)?;
    }
    if let Some(tools) = &debian.tools {
        tools.add_to(&mut archive)?;
    }
    if let Some(folder) = &debian.kernel.modules {
        let modules = modules::Modules::of(folder)?.with_needed(machine.modules)?;
        for (number, (name, body)) in modules.iter().enumerate() {
            archive.file(&format!("modules/{number:02}-{name}.ko"), body)?;
        }
    }
    archive.finish()
}

/// Builds a static program; returns its name and the contents of its file.
fn program(
    root: &Path,
    architecture: &Architecture,
    program: &Program,
) -> Result<(&'static str, Vec<u8>), String> {
    let (name, goal) = match program.target {
        Target::Binary(name) => (name, ["build", "--bin", name]),
        Target::Example(name) => (name, ["build", "--example", name]),
        Target::Tests(name) => (name, ["test", "--lib", "--no-run"]),
    };
    let mut cargo = Command::new("cargo");
    cargo.args(goal).args(["--locked", "--target", architecture.target, "-p", program.package]);
    cargo.args(program.options);
    cargo.current_dir(root).env("CARGO_TARGET_DIR", root.join("target/guest"));
    cargo.env("RUSTFLAGS", architecture.flags).env_remove("CARGO_ENCODED_RUSTFLAGS");
    // The guest's memory is small.
    cargo.env("CARGO_PROFILE_DEV_OPT_LEVEL", program.opt_level);
    if program.opt_level == "3" {
        cargo.env("CARGO_PROFILE_DEV_DEBUG_ASSERTIONS", "false");
        cargo.env("CARGO_PROFILE_DEV_OVERFLOW_CHECKS", "false");
    }
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
    cargo.env("CARGO_PROFILE_TEST_DEBUG", "0");
    let built = built::by(&mut cargo).ok_or_else(|| format!("{name} is not built"))?;
    let file = built.into_iter().next_back().ok_or_else(|| format!("{name} is no program"))?.path;
    let body = std::fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok((name, body))
}

/// The kernel's command line, which also names the programs for the first process.
fn command_line(machine: &Machine) -> Result<String, String> {
    let (told, runs) = (machine.kernel_arguments, machine.runs.join(" ; "));
    // On a busy host the emulated timer may be too late for the kernel's look at it, which it ends with a panic.
    let quirks = "no_timer_check mitigations=off";
    let console = machine.architecture.console;
    let line = format!("console={console} quiet panic=-1 {quirks} {told} guest.run=\"{runs}\"");
    if line.len() < COMMAND_LINE && !runs.contains('"') {
        Ok(line)
    } else {
        Err(format!("the kernel cannot be told {line}"))
    }
}

fn boot(
    root: &Path,
    machine: &Machine,
    mut qemu: Command,
    kernel: &kernel::Found,
    initramfs: &[u8],
) -> Result<(), String> {
    let error = |error: std::io::Error| error.to_string();
    let place = root.join("target/guest/runs").join(machine.name);
    std::fs::create_dir_all(&place).map_err(error)?;
    let place = place.canonicalize().map_err(error)?;
    let file = |name: &str| place.join(name);
    std::fs::write(file("initramfs"), initramfs).map_err(error)?;
    qemu.args(machine.architecture.board).args(BARE).args(machine.devices);
    demo::add_tables(machine.tables, &place, &mut qemu)?;
    qemu.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(file("initramfs"));
    qemu.args(["-append", &command_line(machine)?]);
    attach_files(machine, &place, &mut qemu)?;
    qemu.args(machine.traced.iter().flat_map(|events| ["-trace", events]));
    qemu.arg("-D").arg(file("trace.txt")).current_dir(&place);
    let served = is_served(machine)
        .then(|| vhost::build(root))
        .transpose()?
        .map(|daemon| vhost::Daemon::start(&daemon, &[], &place, &mut qemu))
        .transpose()?;
    let passed = passed::Processes::start(root, machine, &place)?;
    let complaints = std::fs::File::create(file("qemu.txt")).map_err(error)?;
    let output = qemu.stdin(Stdio::null()).stderr(complaints).output().map_err(error)?;
    let console = String::from_utf8_lossy(&output.stdout).into_owned();
    std::fs::write(file("console.txt"), &console).map_err(error)?;
    ended(&console, machine.runs.len()).inspect_err(|_| print!("{console}"))?;
    let trace = match machine.traced {
        [] => String::new(),
        _ => std::fs::read_to_string(file("trace.txt")).map_err(error)?,
    };
    let served = served
        .map(vhost::Daemon::end)
        .transpose()?
        .as_deref()
        .map(vhost::DaemonCounts::of)
        .transpose()?;
    let programs = root.join("target/guest").join(machine.architecture.target).join("debug");
    let passed = passed.end()?;
    let ran = GuestRun { place, console, trace, served, passed, programs };
    (machine.check)(&ran).inspect_err(|_| print!("{}", ran.console))
}

/// Fills the disks, and gives QEMU those and the files of the ports; not a disk that another process serves.
fn attach_files(machine: &Machine, place: &Path, qemu: &mut Command) -> Result<(), String> {
    let error = |error: std::io::Error| error.to_string();
    let file = |name: &str| place.join(name);
    for (name, mebibytes) in machine.disks {
        let image = file(name).with_extension("img");
        std::fs::write(&image, disk::before(*mebibytes)).map_err(error)?;
        if is_served(machine) {
            continue;
        }
        let image = image.display();
        qemu.args(["-drive", &format!("if=none,id={name},format=raw,cache=unsafe,file={image}")]);
    }
    for (number, name) in machine.ports.iter().enumerate() {
        if number == 0 {
            qemu.args(["-device", "virtio-serial-pci,disable-legacy=on,iommu_platform=on"]);
        }
        qemu.args(["-chardev", &format!("file,id={name},path={}", file(name).display())]);
        qemu.args(["-device", &format!("virtserialport,chardev={name},name={name}")]);
    }
    Ok(())
}

/// Checks that the guest reports that all of its programs ended well.
fn ended(console: &str, programs: usize) -> Result<(), String> {
    let mut lines = console.lines().filter_map(|line| line.strip_prefix("guest: "));
    match lines.next_back() {
        Some(said) if said == format!("{programs} programs ended well") => Ok(()),
        Some(said) => Err(format!("the guest said {said:?}")),
        None if console.contains("Oops: int3") => Err(STALE_TEXT.to_owned()),
        None => Err("the guest did not say how it ended before its time was up".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_has_to_say_that_all_ended_well() {
        let console = "Linux\r\nguest: 2 programs ended well\r\n";
        assert_eq!(ended(console, 2), Ok(()));
        assert!(ended(console, 3).is_err());
        assert!(ended("guest: failed: a ended with exit status: 1\n", 1).is_err());
        assert!(ended("Linux\n", 0).is_err_and(|why| why.contains("did not say")));
        let stale = "[   15.2] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\n";
        assert_eq!(ended(stale, 1), Err(STALE_TEXT.to_owned()));
    }

    /// A user's first commands are tried each time.
    #[test]
    fn a_guest_runs_the_first_commands_of_the_readme() {
        let readme = include_str!("../../../README.md");
        let record = ALL.iter().find(|machine| machine.name == "record").unwrap();
        for run in &record.runs[..2] {
            let command = format!("target/release/{run}\n");
            assert!(readme.contains(&command), "{command}");
        }
    }

    #[test]
    fn machines_can_be_told_apart_and_started() {
        for machine in ALL {
            let same =
                ALL.iter().filter(|other| other.name == machine.name || other.step == machine.step);
            assert_eq!(same.count(), 1, "{}", machine.name);
            let line = command_line(machine).unwrap();
            let last = machine.runs[machine.runs.len() - 1];
            assert!(line.ends_with(&format!("{last}\"")), "{line}");
        }
    }
}
