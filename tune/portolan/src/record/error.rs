//! Errors of a recording: each says the cause, and the way out.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::environment::Refusal;

/// Reason why a recording failed. Unless it says otherwise, the machine is left as it was.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The kernel's tracing is not mounted anywhere.
    #[error("the kernel's tracing is mounted nowhere: {}", mount(.0))]
    NoTracefs(Refusal),
    /// The tracefs is mounted, but has no instances.
    #[error("{} is mounted, but has no instances: {}", path.display(), empty(why))]
    Empty {
        /// Its path.
        path: PathBuf,
        /// Reason why it is empty.
        why: Refusal,
    },
    /// The user may not use the tracefs.
    #[error("{} may not be used: {why}", path.display())]
    Denied {
        /// The call that was refused.
        path: PathBuf,
        /// Reason for the refusal.
        why: Refusal,
    },
    /// Mounted so that nothing can be written.
    #[error("{} is mounted read-only: {}", path.display(), read_only(container.as_deref()))]
    ReadOnly {
        /// The file that cannot be written.
        path: PathBuf,
        /// The kind of container, if this is one.
        container: Option<String>,
    },
    /// The kernel lacks all events of maps.
    #[error(
        "this kernel, Linux {release}, has no events of what is mapped for devices in {}{}: the `dma` events need \
         Linux 6.12, the `iommu` events CONFIG_IOMMU_API; a distribution's newest kernel has both",
        root.display(), beside(others)
    )]
    NoEvents {
        /// Its tracefs.
        root: PathBuf,
        /// Its release.
        release: String,
        /// Events that it has.
        others: String,
    },
    /// Events cannot be selected by device.
    #[error("this kernel's events cannot be chosen by device (Linux 6.12 can): leave out --device")]
    NoDeviceEvents,
    /// The device does not exist.
    #[error(
        "no device is called {0}: events have the names in /sys/bus/*/devices, like 0000:00:03.0"
    )]
    UnknownDevice(String),
    /// The file exists already.
    #[error("{} is there already: choose another with -o, or say --force", .0.display())]
    Exists(PathBuf),
    /// The file cannot be written.
    #[error("{} cannot be written: {error}{}", path.display(), advice(error))]
    Output {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The kernel refuses a setting.
    #[error("{} cannot be {doing}: {error}{}", path.display(), advice(error))]
    Tracing {
        /// The file.
        path: PathBuf,
        /// The operation that failed, as a participle: "read", "written".
        doing: &'static str,
        /// Error of the system.
        error: io::Error,
    },
    /// The kernel cannot measure functions.
    #[error(
        "this kernel has no function_graph tracer (CONFIG_FUNCTION_GRAPH_TRACER), so it cannot say how long \
         its functions take: leave out --latency"
    )]
    NoTracer,
    /// The kernel can trace no function that has a price.
    #[error(
        "this kernel has none of the functions that have prices (docs/calibrate.md lists them), or lets none \
         of them be traced: leave out --latency"
    )]
    NoFunctions,
    /// The main tracing is another's.
    #[error(
        "this kernel measures functions in its main tracing alone, which is in use: {what}; end that, or leave out \
         --latency. If a killed recorder left it, as root: {restore}"
    )]
    TracingInUse {
        /// The setting that shows it.
        what: String,
        /// The commands that end it.
        restore: &'static str,
    },
    /// Settings of the kernel's tracing stay changed.
    #[error(
        "settings of the kernel's tracing could not be put back ({failed}): as root, {restore}"
    )]
    NotRestored {
        /// The files, and why.
        failed: String,
        /// The commands that do it.
        restore: &'static str,
    },
    /// The instance is gone.
    #[error(
        "{} was removed while it recorded (`trace-cmd reset -a` removes all instances): nothing was kept; record \
         again",
        .0.display()
    )]
    Removed(PathBuf),
    /// The kernel does not describe the layout of its pages.
    #[error("{} does not say what the kernel's pages are like", .0.display())]
    NoLayout(PathBuf),
    /// Pages in another byte order than the reader's.
    #[error("this machine is big-endian; little-endian ones are recorded")]
    BigEndian,
    /// A page does not have the kernel's format.
    #[error("a page of CPU {0} is not as events/header_page says: nothing was kept")]
    Page(u32),
    /// Pages cannot be put aside.
    #[error(
        "what waits to be written to {} cannot be put aside: {error}{}", path.display(), advice(error)
    )]
    Spool {
        /// The file that it is for.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The writer ended early.
    #[error("the thread that writes the file ended early: nothing was kept")]
    Writer,
    /// The command cannot be run.
    #[error("{program} cannot be started: {error}{}", started(error))]
    Command {
        /// Its name.
        program: String,
        /// Error of the system.
        error: io::Error,
    },
    /// The command's state cannot be told, or the signals' handlers not be set.
    #[error("the system refuses: {0}")]
    System(#[from] io::Error),
    /// The instance was not given back.
    #[error(
        "{} stays behind, switched off: {error}; close what reads it, then `rmdir` it, or record again",
        path.display()
    )]
    LeftBehind {
        /// The instance.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
}

/// Advice on `error`.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; nothing was kept: make room, choose another disk with -o, or record for less time"
        }
        io::ErrorKind::OutOfMemory => "; ask for smaller buffers with --buffer-kb",
        io::ErrorKind::PermissionDenied => "; choose another folder with -o",
        io::ErrorKind::ResourceBusy => "; another process uses it",
        io::ErrorKind::NotFound => "; is the folder there?",
        _ => "",
    }
}

fn started(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; check its name, and PATH (sudo has one of its own)",
        _ => "",
    }
}

/// Command that mounts tracefs, for users that can.
fn mount(why: &Refusal) -> String {
    match why {
        Refusal::LockedDown | Refusal::Container(_) => why.to_string(),
        Refusal::NotRoot | Refusal::SeLinux | Refusal::Unknown => {
            "as root, `mount -t tracefs tracefs \
            /sys/kernel/tracing` (a kernel without CONFIG_FTRACE has none)"
                .to_owned()
        }
    }
}

fn empty(why: &Refusal) -> String {
    match why {
        Refusal::LockedDown | Refusal::Container(_) => why.to_string(),
        Refusal::NotRoot | Refusal::SeLinux | Refusal::Unknown => {
            "the kernel was locked down when it booted, or has no CONFIG_TRACING".to_owned()
        }
    }
}

fn read_only(container: Option<&str>) -> String {
    match container {
        Some(kind) => Refusal::Container(kind.to_owned()).to_string(),
        None => "as root, `mount -o remount,rw /sys/kernel/tracing`".to_owned(),
    }
}

fn beside(others: &str) -> String {
    match others {
        "" => String::new(),
        others => format!(" (it has {others})"),
    }
}
