//! The kernel's tracing: where it is mounted, and instances of our own in it.
//!
//! Linux, Documentation/trace/ftrace.rst (instances). An instance has buffers and settings of its own, so nothing that
//! others trace changes. Not supported: events of the main instance.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::environment::Environment;
use super::error::RecordError;
use crate::trace::binary::ring::PageLayout;

/// Usual places of tracefs.
const PLACES: [&str; 2] = ["sys/kernel/tracing", "sys/kernel/debug/tracing"];

/// Makes an instance's folder.
pub(crate) type Make = Box<dyn Fn(&Path) -> io::Result<()>>;

/// Makes and removes instances' folders; tests have others.
pub(crate) struct Folders {
    pub(crate) make: Make,
    pub(crate) remove: fn(&Path) -> io::Result<()>,
}

impl Default for Folders {
    fn default() -> Self {
        Self { make: Box::new(|path| fs::create_dir(path)), remove: |path| fs::remove_dir(path) }
    }
}

/// A mounted tracefs.
pub(crate) struct Tracefs {
    pub(crate) root: PathBuf,
    pub(crate) folders: Folders,
    /// Environment of the machine, for the reason of a refusal.
    pub(crate) environment: Environment,
}

impl Tracefs {
    /// Finds the tracefs of the machine whose root folder is `machine`: at `named`, or where it is mounted.
    pub(crate) fn find(machine: &Path, named: Option<&Path>) -> Result<Self, RecordError> {
        let environment = Environment::of(machine);
        let mounts = fs::read_to_string(environment.at("proc/self/mounts")).unwrap_or_default();
        let mounted = mounts.lines().filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (at, kind) = (words.next()?, words.next()?);
            (kind == "tracefs").then(|| environment.at(at.trim_start_matches('/')))
        });
        let mounted: Vec<PathBuf> = mounted.collect();
        let usual = PLACES.iter().map(|place| environment.at(place));
        let places = usual.chain(mounted.iter().cloned());
        let places: Vec<PathBuf> = named.map_or_else(|| places.collect(), |at| vec![at.to_owned()]);
        for root in places {
            match fs::read_dir(root.join("instances")) {
                Ok(_) => {
                    let folders = Folders::default();
                    return Ok(Self { root, folders, environment });
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(RecordError::Denied { path: root, why: environment.refusal() });
                }
                Err(_) => {}
            }
        }
        // Without a mount a user without the right to mount is told so; with one, the reason for its being empty.
        Err(match mounted.into_iter().next() {
            Some(path) => RecordError::Empty { path, why: environment.refusal() },
            None => RecordError::NoTracefs(environment.refusal()),
        })
    }

    /// Layout of the kernel's pages.
    pub(crate) fn layout(&self) -> Result<PageLayout, RecordError> {
        if cfg!(target_endian = "big") {
            return Err(RecordError::BigEndian);
        }
        let file = self.root.join("events/header_page");
        // The kernel answers the first read of this file, and no other.
        let mut bytes = [0; 4096];
        let read = File::open(&file).and_then(|mut opened| opened.read(&mut bytes));
        let count = read.map_err(|error| self.failed(&file, "read", error))?;
        PageLayout::parse(&bytes[..count]).map_err(|_| RecordError::NoLayout(file))
    }

    /// Error of a `path` that cannot be used.
    pub(crate) fn failed(&self, path: &Path, doing: &'static str, error: io::Error) -> RecordError {
        let path = path.to_owned();
        match error.kind() {
            io::ErrorKind::PermissionDenied => {
                RecordError::Denied { path, why: self.environment.refusal() }
            }
            io::ErrorKind::ReadOnlyFilesystem => {
                RecordError::ReadOnly { path, container: self.environment.container() }
            }
            _ => RecordError::Tracing { path, doing, error },
        }
    }
}
