//! Linux's own code as a peer: its sources, from Debian's packages, compiled in the state they are in.
//!
//! * `parts`: sources of 6.12 and 7.3 (Arm's tables, addresses, the DMA layer, bounce pools) and of 7.3 (generic page
//!   tables).
//! * `source`: finding, fetching and unpacking the sources.
//! * `compile`: the headers that they get, and the compiler.
//!
//! No line of Linux is in this repository. Nothing is downloaded unless it is asked for by name
//! (`portolan-bench linux`). Without the package or a compiler the peer is skipped, and the reason
//! names the package to install.

pub(crate) mod buffers;
mod compile;
pub(crate) mod formats;
pub(crate) mod marks;
mod parts;
mod source;
pub(crate) mod tables;
#[cfg(test)]
mod tests;
mod viommu;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::workload::Failure;

use parts::Parts;

pub(crate) use crate::raw::{
    Bounced, Domain, GenericPt, Linux, LinuxDomainKind, LinuxTables, List, OnCpu, SharedDomain,
    Space,
};

/// Name of the peer with Arm's tables and everything above them.
pub const NAME: &str = "linux-6.12";
/// Name of the peer with the generic page tables.
pub const GENERIC_PT_NAME: &str = "linux-7.3";
/// Name of the peer with 7.3's DMA layer on Arm's tables.
pub const NEWER_NAME: &str = "linux-7.3 dma-iommu";

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
fn place(parts: &Parts) -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map(|target| workspace.join(target));
    target.unwrap_or_else(|| workspace.join("target")).join(parts.name)
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
    let is_error = |line: &&str| line.contains("rror") || line.starts_with("E: ");
    let errors: Vec<&str> = errors.lines().filter(is_error).collect();
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

impl From<&'static Absent> for Failure {
    fn from(absent: &'static Absent) -> Self {
        match absent {
            Absent::Missing(why) => Self::NoLinux(why),
            Absent::Broken(why) => Self::BrokenLinux(why),
        }
    }
}

/// Loads Linux's code, after compiling the parts that are not compiled yet; always the same answer.
///
/// # Errors
/// [`Failure::NoLinux`] or [`Failure::BrokenLinux`].
pub(crate) fn linux() -> Result<&'static Linux, Failure> {
    Ok(arm(Fetch::Never)?)
}

/// Loads the same parts of the newer version, like [`linux`].
///
/// # Errors
/// [`Failure::NoLinux`] or [`Failure::BrokenLinux`].
pub(crate) fn newer_linux() -> Result<&'static Linux, Failure> {
    Ok(newer_arm(Fetch::Never)?)
}

/// Loads Linux's generic page tables, like [`linux`].
///
/// # Errors
/// [`Failure::NoLinux`] or [`Failure::BrokenLinux`].
pub(crate) fn generic_pt() -> Result<&'static GenericPt, Failure> {
    Ok(generic(Fetch::Never)?)
}

fn arm(fetch: Fetch) -> Result<&'static Linux, &'static Absent> {
    static LINUX: OnceLock<Result<Linux, Absent>> = OnceLock::new();
    LINUX.get_or_init(|| load(&parts::ARM, fetch)).as_ref()
}

fn newer_arm(fetch: Fetch) -> Result<&'static Linux, &'static Absent> {
    static LINUX: OnceLock<Result<Linux, Absent>> = OnceLock::new();
    let load = || {
        let _alone = alone();
        load(&parts::NEWER_ARM, fetch)
    };
    LINUX.get_or_init(load).as_ref()
}

/// Lock of the folder that both parts of 7.3 are unpacked to and compiled in.
fn alone() -> MutexGuard<'static, ()> {
    static FOLDER: Mutex<()> = Mutex::new(());
    FOLDER.lock().unwrap_or_else(PoisonError::into_inner)
}

fn load(parts: &Parts, fetch: Fetch) -> Result<Linux, Absent> {
    Linux::load(&object(parts, fetch, |_| Ok(()))?).map_err(Absent::Broken)
}

fn generic(fetch: Fetch) -> Result<&'static GenericPt, &'static Absent> {
    static GENERIC_PT: OnceLock<Result<GenericPt, Absent>> = OnceLock::new();
    let load = || {
        let _alone = alone();
        // Its tests take some twenty seconds, so they run once, when it is compiled.
        let test = |path: &Path| GenericPt::load(path)?.test(seed());
        GenericPt::load(&object(&parts::GENERIC_PT, fetch, test)?).map_err(Absent::Broken)
    };
    GENERIC_PT.get_or_init(load).as_ref()
}

/// The seed that `PORTOLAN_SEED` gives, or a new one.
fn seed() -> u64 {
    let given = std::env::var("PORTOLAN_SEED").ok();
    given.and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..))
}

/// The shared object, compiled from sources that are fetched, and tested, if it is not there.
fn object(
    parts: &Parts,
    fetch: Fetch,
    test: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<PathBuf, Absent> {
    let place = place(parts);
    source::provide(parts, &place, fetch).map_err(Absent::Missing)?;
    let compiler = compile::compiler().map_err(Absent::Missing)?;
    compile::provide(parts, &compiler, &place, test).map_err(Absent::Broken)
}

/// Peer that was prepared: what it says of itself, or why it is absent.
pub struct Prepared {
    /// Name of the peer.
    pub name: &'static str,
    /// Version and tests, in words.
    pub outcome: Result<String, &'static Absent>,
}

/// Fetches, compiles and tests both versions of Linux's code, at the same time.
pub fn prepare(fetch: Fetch) -> [Prepared; 3] {
    let version = |parts: &Parts| source::version(&place(parts)).unwrap_or_default();
    let old =
        || arm(fetch).map(|linux| format!("Linux {}: {}", version(&parts::ARM), linux.said()));
    let new = || {
        let tables = generic(fetch).map(|_| {
            let version = version(&parts::GENERIC_PT);
            format!("Linux {version}: generic page tables passed their own tests")
        });
        let newer = newer_arm(fetch)
            .map(|linux| format!("Linux {}: {}", version(&parts::NEWER_ARM), linux.said()));
        [
            Prepared { name: GENERIC_PT_NAME, outcome: tables },
            Prepared { name: NEWER_NAME, outcome: newer },
        ]
    };
    std::thread::scope(|scope| {
        let new = scope.spawn(new);
        let old = old();
        let [tables, newer] = new.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        [Prepared { name: NAME, outcome: old }, tables, newer]
    })
}

/// Runs Linux's driver of a virtio-iommu on the device of `portolan-vmm`, and on devices that each ignore one kind of
/// request, which has to be noticed. Returns the requests that Linux sent to the first.
///
/// # Errors
/// The access of a device behind it that succeeded or failed against the mappings, or the failure
/// that was not noticed.
pub fn try_viommu() -> Result<String, String> {
    let seed = seed();
    viommu::try_all(seed).map_err(|wrong| format!("PORTOLAN_SEED={seed}: {wrong}"))
}

/// The peers that are skipped, and the reason for each.
pub fn missing() -> impl Iterator<Item = (&'static str, &'static str)> {
    let old = arm(Fetch::Never).err().map(|absent| (NAME, absent));
    let new = generic(Fetch::Never).err().map(|absent| (GENERIC_PT_NAME, absent));
    let newer = newer_arm(Fetch::Never).err().map(|absent| (NEWER_NAME, absent));
    old.into_iter().chain(new).chain(newer).map(|(name, absent)| match absent {
        Absent::Missing(why) | Absent::Broken(why) => (name, why.as_str()),
    })
}
