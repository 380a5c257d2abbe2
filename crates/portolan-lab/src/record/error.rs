//! Why nothing could be recorded: what is wrong, and what to do.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a recording failed. Nothing of the machine is left changed but where it says so.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The kernel's tracing is not mounted anywhere.
    #[error(
        "the kernel's tracing is mounted nowhere: as root, `mount -t tracefs tracefs /sys/kernel/tracing` \
         (a kernel without CONFIG_FTRACE has none)"
    )]
    NoTracefs,
    /// Not the user's to use.
    #[error("{} may not be used: run this as root (`sudo portolan record ...`)", .0.display())]
    Denied(PathBuf),
    /// The kernel lacks all events that a replay reads.
    #[error(
        "{} has no events of DMA: the `iommu` events need CONFIG_IOMMU_API, the `dma` events Linux 6.12",
        .0.display()
    )]
    NoEvents(PathBuf),
    /// No event can be chosen by device.
    #[error("this kernel's events cannot be chosen by device (Linux 6.12 can): leave out --device")]
    NoDeviceEvents,
    /// No such device.
    #[error(
        "no device is called {0}: events have the names in /sys/bus/*/devices, like 0000:00:03.0"
    )]
    UnknownDevice(String),
    /// The file is there.
    #[error("{} is there already: choose another with -o, or say --force", .0.display())]
    Exists(PathBuf),
    /// The file cannot be written.
    #[error("{} cannot be written: {error}{}", path.display(), advice(error))]
    Output {
        /// Which file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The kernel refuses a setting.
    #[error("{} cannot be {doing}: {error}{}", path.display(), advice(error))]
    Tracing {
        /// Which file.
        path: PathBuf,
        /// What was to be done with it.
        doing: &'static str,
        /// Why not.
        error: io::Error,
    },
    /// The command cannot be run.
    #[error("{program} cannot be started: {error}{}", started(error))]
    Command {
        /// Its name.
        program: String,
        /// Why.
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
        /// Why.
        error: io::Error,
    },
}

/// What to do about `error`.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; nothing was kept: make room, choose another disk with -o, or record for less time"
        }
        io::ErrorKind::OutOfMemory => "; ask for smaller buffers with --buffer-kb",
        io::ErrorKind::PermissionDenied => "; run this as root (`sudo portolan record ...`)",
        io::ErrorKind::ResourceBusy => "; somebody else uses it",
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
