//! `record-troubles DISK`: `portolan record` where something is wrong, or goes wrong. Each time it has to name the
//! trouble and the remedy, and the kernel's tracing has to be as before: no instance more, no setting changed.
//!
//! It runs as root in a guest: it unmounts tracefs, and mounts small file systems.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};

const TRACING: &str = "/sys/kernel/tracing";
/// Files and instances of the kernel's tracing that another program may have set.
const SETTINGS: [&str; 5] =
    ["tracing_on", "buffer_size_kb", "current_tracer", "set_event", "trace_clock"];
/// A user without rights.
const NOBODY: u32 = 65534;
const LIMIT: Duration = Duration::from_secs(30);

/// State of the kernel's tracing: settings, and instances.
fn tracing() -> Result<(Vec<String>, Vec<String>)> {
    let root = Path::new(TRACING);
    let settings = SETTINGS.map(|file| fs::read_to_string(root.join(file)));
    let settings: Result<_, _> = settings.into_iter().collect();
    let names = fs::read_dir(root.join("instances"))?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names: Result<_, std::io::Error> = names.collect();
    Ok((settings?, names?))
}

fn recorder(words: &str) -> Command {
    let mut command = Command::new("portolan");
    command.arg("record").args(words.split(' '));
    command.current_dir("/tmp").stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Text that `child` wrote to both outputs, once it has ended with `code`.
fn ended(name: &str, child: Child, code: i32) -> Result<String> {
    let output = child.wait_with_output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    let found = output.status;
    ensure!(found.code() == Some(code), "{name}: {found}: {said}");
    Ok(said)
}

/// Runs `command`, which has to end with `code` and say each of `wanted`; nothing is left of it but `left` in `/tmp`.
fn troubled(name: &str, mut command: Command, code: i32, wanted: &[&str]) -> Result<()> {
    let before = tracing()?;
    let said = ended(name, command.spawn()?, code)?;
    told(name, &said, wanted)?;
    ensure!(tracing()? == before, "{name}: the kernel's tracing is not as before");
    let files = fs::read_dir("/tmp")?.flatten().map(|file| file.file_name());
    let left: Vec<_> = files.filter(|file| file.to_string_lossy().contains("partial")).collect();
    ensure!(left.is_empty(), "{name}: {left:?} is left");
    Ok(())
}

fn told(name: &str, said: &str, wanted: &[&str]) -> Result<()> {
    for part in wanted {
        ensure!(said.contains(part), "{name}: it did not say {part:?}: {said}");
    }
    println!("trouble: {name}: {}", said.lines().last().unwrap_or_default());
    Ok(())
}

/// Waits until the kernel's tracing has `count` instances, and all of them record.
fn until_recording(count: usize) -> Result<()> {
    let begin = Instant::now();
    loop {
        let names = tracing()?.1;
        if names.len() == count && names.iter().all(|name| records(name)) {
            return Ok(());
        }
        ensure!(
            begin.elapsed() < LIMIT,
            "{count} instances that record do not come, but {names:?}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Tells if the instance called `name` records: its events are switched on while it is off, and then it is on.
fn records(name: &str) -> bool {
    let place = Path::new(TRACING).join("instances").join(name);
    let read = |file: &str| fs::read_to_string(place.join(file)).unwrap_or_default();
    !read("set_event").is_empty() && read("tracing_on").trim() == "1"
}

fn send(child: &Child, signal: Signal) -> Result<()> {
    let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    Ok(kill_process(id.context("no process")?, signal)?)
}

fn main() -> Result<()> {
    let disk = std::env::args().nth(1).context("usage: record-troubles DISK")?;
    let whole = format!("-- read-blocks {disk} 4096");
    what_is_asked_for(&whole)?;
    signals(&whole)?;
    others(&whole)?;
    println!("trouble: none was too much");
    Ok(())
}

/// Recordings that cannot be made are refused with a message, and nothing is left of them.
fn what_is_asked_for(whole: &str) -> Result<()> {
    let mut nobody = recorder(&format!("-o /tmp/a.gz {whole}"));
    nobody.uid(NOBODY).gid(NOBODY);
    troubled("not root", nobody, 2, &["run this as root"])?;
    let absent = recorder("-o /tmp/a.gz -- no-such-program");
    troubled("no command", absent, 2, &["no-such-program", "check its name"])?;
    let device = recorder(&format!("--device 0000:00:1e.7 {whole}"));
    troubled("no device", device, 2, &["0000:00:1e.7", "/sys/bus"])?;
    let buffers = recorder(&format!("--buffer-kb 4194304 -o /tmp/a.gz {whole}"));
    troubled("no memory", buffers, 2, &["--buffer-kb"])?;

    fs::create_dir("/tmp/small")?;
    mount("tmpfs", "/tmp/small", "tmpfs", MountFlags::empty(), Some(c"size=16k"))?;
    let full = recorder(&format!("-o /tmp/small/t.gz {whole}"));
    troubled("disk full", full, 2, &["/tmp/small/t.gz", "make room"])?;
    ensure!(fs::read_dir("/tmp/small")?.next().is_none(), "a file is left on the full disk");
    unmount("/tmp/small", UnmountFlags::empty())?;

    let before = tracing()?;
    unmount(TRACING, UnmountFlags::empty())?;
    let none = ended("no tracefs", recorder(whole).spawn()?, 2);
    mount("tracefs", TRACING, "tracefs", MountFlags::empty(), None)?;
    told("no tracefs", &none?, &["mount -t tracefs tracefs /sys/kernel/tracing"])?;
    ensure!(tracing()? == before, "no tracefs: the kernel's tracing is not as before");
    Ok(())
}

/// Signals end a recording, which is whole then; after `kill -9` the next one removes the remains.
fn signals(whole: &str) -> Result<()> {
    for (name, signal) in [("Ctrl-C", Signal::INT), ("hang-up", Signal::HUP)] {
        let before = tracing()?;
        let child = recorder("-o /tmp/s.gz --force").spawn()?;
        until_recording(before.1.len() + 1)?;
        let read = Command::new("read-blocks").args(whole.split(' ').skip(2)).output()?;
        ensure!(read.status.success(), "the disk is not read");
        send(&child, signal)?;
        let said = ended(name, child, 0)?;
        told(name, &said, &["/tmp/s.gz"])?;
        ensure!(tracing()? == before, "{name}: the kernel's tracing is not as before");
    }
    let before = tracing()?;
    let mut child = recorder("-o /tmp/k.gz").spawn()?;
    until_recording(before.1.len() + 1)?;
    child.kill()?;
    child.wait()?;
    ensure!(tracing()?.1.len() == before.1.len() + 1, "kill -9 left no instance");
    let said = ended("kill -9", recorder(&format!("-o /tmp/k.gz {whole}")).spawn()?, 0)?;
    told("kill -9", &said, &["killed", "/tmp/k.gz"])?;
    ensure!(tracing()? == before, "kill -9: the kernel's tracing is not as before");
    ensure!(!Path::new("/tmp/k.gz.partial").exists(), "kill -9: half of a file is left");
    Ok(())
}

/// Tests other programs that trace, and programs that keep an instance open.
fn others(whole: &str) -> Result<()> {
    let before = tracing()?;
    let first = recorder("-o /tmp/1.gz").spawn()?;
    until_recording(before.1.len() + 1)?;
    let said = ended("two at once", recorder(&format!("-o /tmp/2.gz {whole}")).spawn()?, 0)?;
    told("two at once", &said, &["/tmp/2.gz"])?;
    ensure!(tracing()?.1.len() == before.1.len() + 1, "the first one's instance is gone");
    send(&first, Signal::TERM)?;
    told("the first of two", &ended("the first of two", first, 0)?, &["/tmp/1.gz"])?;
    ensure!(tracing()? == before, "two at once: the kernel's tracing is not as before");

    let third = recorder("-o /tmp/3.gz").spawn()?;
    until_recording(before.1.len() + 1)?;
    let (_, names) = tracing()?;
    let name = names.first().context("no instance")?;
    let held = File::open(Path::new(TRACING).join("instances").join(name).join("trace_options"))?;
    send(&third, Signal::TERM)?;
    let said = ended("in use", third, 2)?;
    told("in use", &said, &["stays behind, switched off", "rmdir"])?;
    drop(held);
    let said = ended("no longer in use", recorder(&format!("-o /tmp/3.gz {whole}")).spawn()?, 0)?;
    told("no longer in use", &said, &["/tmp/3.gz"])?;
    ensure!(tracing()? == before, "in use: the kernel's tracing is not as before");
    Ok(())
}
