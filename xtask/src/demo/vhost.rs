//! A guest's disk in a separate process: the example `vhost-user-blk` of `portolan-vmm`, and its counts.
//!
//! The daemon keeps every translation until it is invalidated. It counts its misses and invalidations, QEMU traces
//! the messages about them, and the kernel says the number of invalidations that it gave for the disk: the three
//! have to agree.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::guests::{Guest, SOCKET};
use crate::built;

/// The daemon, an example of `portolan-vmm`.
const DAEMON: &str = "vhost-user-blk";
/// QEMU's events of a miss, its own or the daemon's, and of a message to the daemon, by kind.
const TRACED: [&str; 2] = ["vhost_iotlb_miss", "vhost_user_write"];

/// Tells if a separate process serves the disk of `guest`.
pub fn serves(guest: &Guest) -> bool {
    guest.arguments.contains(&SOCKET)
}

/// The kernel's name of the commands that become the disk's invalidations.
pub(super) fn kind(guest: &Guest) -> &'static str {
    let own = guest.kinds.iter().flat_map(|kinds| kinds.ours);
    let device = own.copied().find(|name| *name == DEVICE_TLB);
    device.unwrap_or("iotlb_inv_dsc (pages)")
}

/// Command for a device's TLB.
const DEVICE_TLB: &str = "dev_tlb_inv_dsc";

/// The daemon, which waits for QEMU or serves it.
pub struct Daemon {
    process: Child,
    said: BufReader<ChildStdout>,
}

/// Builds the daemon, as the tests build it.
pub fn build(root: &Path) -> Result<PathBuf, String> {
    let built = built::programs(root, &["--example", DAEMON]);
    let daemon = built.unwrap_or_default().into_iter().find(|program| program.name == DAEMON);
    daemon.map(|daemon| daemon.path).ok_or_else(|| "the disk's daemon is not built".to_owned())
}

impl Daemon {
    /// Starts the process in `place` with `more` words; it serves the image of the disk to `qemu`.
    pub fn start(
        program: &Path,
        more: &[&str],
        place: &Path,
        qemu: &mut Command,
    ) -> Result<Self, String> {
        // The socket is there.
        qemu.current_dir(place);
        qemu.args(TRACED.iter().flat_map(|events| ["-trace", events]));
        let error = |error: std::io::Error| format!("the disk's daemon: {error}");
        let complaints = File::create(place.join("daemon.txt")).map_err(error)?;
        let mut command = Command::new(program);
        command.args(["--socket", "disk.sock", "--disk", "disk.img"]);
        command.args(["--once", "--adversarial"]).args(more);
        command.current_dir(place);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.stderr(complaints).spawn().map_err(error)?;
        let said = process.stdout.take().ok_or("the disk's daemon is mute")?;
        let mut daemon = Self { process, said: BufReader::new(said) };
        // It prints a line once the socket exists.
        let mut line = String::new();
        daemon.said.read_line(&mut line).map_err(error)?;
        if line.starts_with("listening") {
            Ok(daemon)
        } else {
            Err("the disk's daemon does not listen".to_owned())
        }
    }

    /// Waits for the daemon to end, which it does once QEMU has gone, and returns its counts as text.
    pub fn end(mut self) -> Result<String, String> {
        let mut counts = String::new();
        let read = self.said.read_to_string(&mut counts);
        let ended = self.process.wait();
        match (read, ended) {
            (Ok(_), Ok(status)) if status.success() => Ok(counts),
            _ => Err("the disk's daemon failed".to_owned()),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Counts of the daemon.
pub struct DaemonCounts {
    pub hits: u64,
    pub misses: u64,
    pub updates: u64,
    pub invalidations: u64,
    pub failures: u64,
}

impl DaemonCounts {
    /// Parses the daemon's output.
    pub fn of(said: &str) -> Result<Self, String> {
        let of = |what: &str| {
            let mut lines = said.lines().filter_map(|line| line.split_once(' '));
            let found = lines.find(|(_, kind)| *kind == what);
            let number = found.and_then(|(number, _)| number.parse().ok());
            number.ok_or_else(|| format!("the daemon counted no {what}"))
        };
        Ok(Self {
            hits: of("hits")?,
            misses: of("misses")?,
            updates: of("updates")?,
            invalidations: of("invalidations")?,
            failures: of("failures")?,
        })
    }

    /// Compares them with QEMU's trace, and prints both and the count of the kernel, `guest`.
    pub fn check(&self, trace: &str, guest: &str) -> Result<(), String> {
        let lines = |event: &str, with: &str| {
            let lines = trace.lines().filter(|line| line.contains(event));
            lines.filter(|line| line.contains(with)).count() as u64
        };
        let messages = lines("vhost_user_write", "req:22 ");
        let asked = lines("vhost_iotlb_miss", "step 1");
        // Its own questions are for three parts of each ring, when it starts one.
        let its_own = 3 * lines("vhost_user_write", "req:9 ");
        let Self { hits, misses, updates, invalidations, failures } = *self;
        println!(
            "the disk's daemon: {hits} hits, {misses} misses, {invalidations} invalidations; \
             QEMU: {asked} misses, {messages} updates and invalidations; the kernel: {guest}"
        );
        if messages != updates + invalidations {
            return Err(format!("the daemon got {} of QEMU's messages", updates + invalidations));
        }
        if asked < misses || asked > misses + its_own {
            return Err(format!("of {misses} misses QEMU saw {asked}"));
        }
        if failures == 0 && hits > misses {
            Ok(())
        } else {
            Err(format!("{hits} hits, {failures} failures"))
        }
    }
}

/// The kernel's number of `kind`, for the policies under which it used the virtio disk.
fn commands(console: &str, kind: &str) -> u64 {
    let mut disk = false;
    let mut sum = 0;
    for line in console.lines() {
        match line.trim_end().strip_prefix("  ") {
            None => disk = line.trim_end().ends_with(" requests") && !line.starts_with("NVMe"),
            Some(told) if disk => {
                let told = told.strip_prefix("commands: ").and_then(|t| t.split_once(' '));
                let told =
                    told.filter(|(_, rest)| rest.split_once(',').is_some_and(|r| r.0 == kind));
                sum += told.map_or(0, |(number, _)| number.parse().unwrap_or(0));
            }
            Some(_) => {}
        }
    }
    sum
}

/// Compares the three.
pub(super) fn check(counts: &str, console: &str, trace: &str, kind: &str) -> Result<(), String> {
    let counts = DaemonCounts::of(counts)?;
    let guest = commands(console, kind);
    counts.check(trace, &format!("{guest} {kind}"))?;
    if guest > 0 && guest == counts.invalidations {
        Ok(())
    } else {
        Err("the daemon was told of other invalidations than the kernel gave".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONSOLE: &str = "Strict, Untrusted: 192 requests\r\n  Because.\r\n  commands: 5 page, 0.1 a request\r\n\
        \x20 commands: 9 wait, 0.1 a request\r\nLazy, Trusted: 192 requests\r\n  commands: 2 page, 0.1 a request\r\n\
        NVMe on 2 CPUs, Strict, Untrusted: 192 requests\r\n  commands: 50 page, 0.1 a request\r\n";
    const COUNTS: &str = "1 requests\n9 hits\n2 misses\n0 failures\n3 updates\n7 invalidations\n";

    /// QEMU's trace of so many misses and messages, with one start of a ring.
    fn trace(misses: usize, messages: usize) -> String {
        let miss = "1@2.3:vhost_iotlb_miss 0x1 step 1\nvhost_iotlb_miss 0x1 step 2\n";
        let message = "vhost_user_write req:22 flags:0x9\n";
        [
            miss.repeat(misses),
            message.repeat(messages),
            "vhost_user_write req:9 flags:0x1\n".to_owned(),
        ]
        .concat()
    }

    #[test]
    fn the_three_have_to_agree() {
        assert_eq!(commands(CONSOLE, "page"), 7);
        assert_eq!(check(COUNTS, CONSOLE, &trace(2, 10), "page"), Ok(()));
        assert_eq!(check(COUNTS, CONSOLE, &trace(5, 10), "page"), Ok(()));
        assert!(check(COUNTS, CONSOLE, &trace(6, 10), "page").is_err());
        assert!(check(COUNTS, CONSOLE, &trace(1, 10), "page").is_err());
        assert!(check(COUNTS, CONSOLE, &trace(2, 9), "page").is_err());
        assert!(check(COUNTS, CONSOLE, &trace(2, 10), "wait").is_err());
        let failed = COUNTS.replace("0 failures", "1 failures");
        assert!(check(&failed, CONSOLE, &trace(2, 10), "page").is_err());
        assert!(check("", CONSOLE, &trace(2, 10), "page").is_err());
    }
}
