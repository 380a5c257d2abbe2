//! Linux 6.12's own code as a peer: its sources, from Debian's package, compiled in the state they are in.
//!
//! * `source`: finding, fetching and unpacking the sources.
//! * `compile`: the headers that they get, and the compiler.
//!
//! No line of Linux is in this repository. Nothing is downloaded unless it is asked for by name
//! (`portolan-bench linux`). Without the package or a compiler the peer is skipped, and the reason
//! names the package to install.

pub(crate) mod buffers;
mod compile;
mod source;
pub(crate) mod tables;
#[cfg(test)]
mod tests;
mod viommu;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::workload::Failure;

pub(crate) use crate::raw::{
    Bounced, Domain, Linux, LinuxDomainKind, List, OnCpu, SharedDomain, Space,
};

/// Name of this peer.
pub const NAME: &str = "linux-6.12";

/// Permission to download sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// Fetch them if they are missing.
    IfMissing,
    /// Never.
    Never,
}

/// Fails if a call of Linux's code did not succeed.
fn succeeded(is_well: bool) -> Result<(), Failure> {
    if is_well { Ok(()) } else { Err(Failure::Linux) }
}

/// Folder of the unpacked sources and the compiled object, below the target folder.
fn place() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map(|target| workspace.join(target));
    target.unwrap_or_else(|| workspace.join("target")).join(NAME)
}

/// Checks that a program can be started.
fn need(program: &str, package: &str) -> Result<(), String> {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        _ => Err(format!("{program} is not here: run `apt-get install {package}`")),
    }
}

/// Runs a command; returns its standard output.
fn run(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("cannot start {program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<&str> = errors.lines().filter(|line| line.contains("rror")).collect();
    Err(format!("{program} failed: {}", errors.first().unwrap_or(&"it does not say why")))
}

/// Reason why there is no such peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absent {
    /// Something is not installed: its name, and the way to install it.
    Missing(String),
    /// The shim does not fit Linux's sources, or their self-test fails on it.
    Broken(String),
}

/// Loads Linux's code, after compiling the parts that are not compiled yet; always the same answer.
///
/// # Errors
/// [`Failure::NoLinux`] or [`Failure::BrokenLinux`].
pub(crate) fn linux() -> Result<&'static Linux, Failure> {
    loaded(Fetch::Never).map_err(|absent| match absent {
        Absent::Missing(why) => Failure::NoLinux(why),
        Absent::Broken(why) => Failure::BrokenLinux(why),
    })
}

fn loaded(fetch: Fetch) -> Result<&'static Linux, &'static Absent> {
    static LINUX: OnceLock<Result<Linux, Absent>> = OnceLock::new();
    let linux = LINUX.get_or_init(|| {
        let place = place();
        let sources = source::provide(&place, fetch).map_err(Absent::Missing)?;
        let compiler = compile::compiler().map_err(Absent::Missing)?;
        let object = compile::provide(&compiler, &place, &sources);
        Linux::load(&object.map_err(Absent::Broken)?).map_err(Absent::Broken)
    });
    linux.as_ref()
}

/// Fetches, compiles and tests Linux's code: the version, and the last words of its self-test.
///
/// # Errors
/// Reason why there is none, and the package to install.
pub fn prepare(fetch: Fetch) -> Result<String, &'static Absent> {
    let linux = loaded(fetch)?;
    let version = source::version(&place()).unwrap_or_default();
    Ok(format!("Linux {version}: {}", linux.said()))
}

/// Runs Linux's driver of a virtio-iommu on the device of `portolan-vmm`, and on devices that each ignore one kind of
/// request, which has to be noticed. Returns the requests that Linux sent to the first.
///
/// # Errors
/// The access of a device behind it that succeeded or failed against the mappings, or the failure
/// that was not noticed.
pub fn try_viommu(seed: u64) -> Result<String, String> {
    viommu::try_all(seed).map_err(|wrong| format!("PORTOLAN_SEED={seed}: {wrong}"))
}

/// Reason why the peer is skipped, or `None` if it is here.
pub fn missing() -> Option<&'static str> {
    match loaded(Fetch::Never) {
        Err(Absent::Missing(why) | Absent::Broken(why)) => Some(why),
        Ok(_) => None,
    }
}
