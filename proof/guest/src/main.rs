//! The first process of a Linux guest: it runs programs, reports the end of each, and switches the machine off.
//!
//! `guest.run="..."` on the kernel's command line has programs with their arguments, ` ; ` between two of them; each is
//! looked for in `/bin`. They run one after the other until one fails. Before that the usual file
//! systems are mounted, the modules in `/modules` are loaded in the order of their names, and each named port
//! of virtio's serial device gets a link below `/dev/virtio-ports`.
//!
//! Lines for the program that started the guest begin with `guest: `; the last is `guest: N programs ended
//! well` or `guest: failed: ...`. There is no shell, and processes that a program leaves behind are not
//! waited for.
#![forbid(unsafe_code)]

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, finit_module, reboot};

/// File systems, and their mount points.
const MOUNTS: [(&str, &str); 5] = [
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("tracefs", "/sys/kernel/tracing"),
    ("tmpfs", "/tmp"),
];

fn main() -> ExitCode {
    if std::process::id() != 1 {
        eprintln!("this is the first process of a guest: `cargo xtask guest` starts one");
        return ExitCode::from(2);
    }
    match run() {
        Ok(count) => println!("guest: {count} programs ended well"),
        Err(error) => println!("guest: failed: {error:#}"),
    }
    rustix::fs::sync();
    // If this returns, the kernel panics, and the machine ends as well.
    let _ = reboot(RebootCommand::PowerOff);
    ExitCode::FAILURE
}

/// Prepares the machine and runs the programs; returns their number.
fn run() -> Result<usize> {
    for (kind, at) in MOUNTS {
        let mounted = mount(kind, at, kind, MountFlags::empty(), None);
        mounted.with_context(|| format!("{kind} cannot be mounted at {at}"))?;
    }
    let mut both = OpenOptions::new();
    let console = both.read(true).write(true).open("/dev/console");
    let console = console.context("there is no console")?;
    rustix::stdio::dup2_stdin(&console)?;
    rustix::stdio::dup2_stdout(&console)?;
    rustix::stdio::dup2_stderr(&console)?;
    // Words behind `--` come as arguments, but not another `--`.
    let told = fs::read_to_string("/proc/cmdline")?;
    load_modules(Path::new("/modules"), &told)?;
    link_ports()?;
    let runs = told.split_once("guest.run=\"").and_then(|(_, rest)| rest.split_once('"'));
    let (runs, _) = runs.context("the kernel was not told guest.run")?;
    let runs: Vec<&str> = runs.split(" ; ").collect();
    for run in &runs {
        let mut arguments = run.split_whitespace();
        let program = arguments.next().context("a program without a name")?;
        let mut command = Command::new(format!("/bin/{program}"));
        command.args(arguments).env("PATH", "/bin");
        let status = command.status().with_context(|| format!("{program} cannot be started"))?;
        ensure!(status.success(), "{program} ended with {status}");
    }
    Ok(runs.len())
}

/// Loads each module like modprobe(8), with its parameters, the words `MODULE.PARAMETER` of the kernel's command
/// line.
fn load_modules(folder: &Path, told: &str) -> Result<()> {
    let mut files: Vec<_> = fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    files.sort_by_key(|file| file.file_name());
    for file in files {
        let path = file.path();
        let file = path.file_stem().and_then(|stem| stem.to_str());
        let name = file.and_then(|file| file.split_once('-'));
        let (_, name) = name.context("a module without its number")?;
        let name = format!("{name}.");
        let parameters = told.split_whitespace().filter_map(|word| word.strip_prefix(&name));
        let parameters = CString::new(parameters.collect::<Vec<_>>().join(" "))?;
        let loaded = finit_module(File::open(&path)?, &parameters, 0);
        loaded.with_context(|| format!("{} cannot be loaded", path.display()))?;
    }
    Ok(())
}

/// Links ports like udev.
fn link_ports() -> Result<()> {
    let Ok(ports) = fs::read_dir("/sys/class/virtio-ports") else {
        return Ok(());
    };
    fs::create_dir_all("/dev/virtio-ports")?;
    for port in ports {
        let port = port?;
        // A console's port has no name.
        let name = fs::read_to_string(port.path().join("name")).unwrap_or_default();
        if !name.trim().is_empty() {
            let link = Path::new("/dev/virtio-ports").join(name.trim());
            symlink(Path::new("/dev").join(port.file_name()), link)?;
        }
    }
    Ok(())
}
