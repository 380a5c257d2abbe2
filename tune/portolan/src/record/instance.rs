//! An instance of our own: its settings, its pages, its counts.
//!
//! Linux, Documentation/trace/ftrace.rst (`per_cpu/cpuN/trace_pipe_raw`, `per_cpu/cpuN/stats`). An instance
//! cannot be removed while one of its files is open: `trace_pipe_raw` is open for the length of one
//! [`Instance::sweep`] only, so that the instance can go at any other moment, a panic's included.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use serde::{Deserialize, Serialize};

use super::error::RecordError;
use super::events::{Chosen, EventSelection};
use super::tracefs::Tracefs;

/// Beginning of the names of our instances; a number follows.
const NAME: &str = "portolan-";

/// Counts of the kernel on one CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuCounts {
    /// The buffer's CPU.
    pub cpu: u32,
    /// Events that were read.
    pub read: u64,
    /// Events that were overwritten before they were read.
    pub overrun: u64,
    /// Events that found no room.
    pub dropped: u64,
}

/// Removes instances that no recorder has locked any more.
fn remove_dead(tracefs: &Tracefs, instances: &Path) -> usize {
    let listed = fs::read_dir(instances).into_iter().flatten().flatten();
    let ours = listed.filter(|entry| entry.file_name().to_string_lossy().starts_with(NAME));
    let dead = ours.filter(|entry| {
        let opened = File::open(entry.path());
        opened.is_ok_and(|folder| flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok())
    });
    dead.filter(|entry| remove(&entry.path(), tracefs.folders.remove).is_ok()).count()
}

/// Switches an instance off and removes it.
pub(super) fn remove(path: &Path, remove: fn(&Path) -> io::Result<()>) -> io::Result<()> {
    // A remaining instance costs nothing.
    for file in ["tracing_on", "events/enable"] {
        let _ = OpenOptions::new()
            .write(true)
            .open(path.join(file))
            .and_then(|mut f| f.write_all(b"0"));
    }
    remove(path)
}

/// CPUs that have buffers in the tracing at `place`.
fn cpus(place: &Path) -> io::Result<Vec<u32>> {
    let numbers = fs::read_dir(place.join("per_cpu"))?.flatten().filter_map(|entry| {
        let name = entry.file_name();
        name.to_str()?.strip_prefix("cpu")?.parse().ok()
    });
    let mut cpus: Vec<u32> = numbers.collect();
    cpus.sort_unstable();
    Ok(cpus)
}

/// Counts of the tracing at `place`, CPU by CPU.
pub(super) fn counts(place: &Path) -> Vec<CpuCounts> {
    let counts = cpus(place).unwrap_or_default().into_iter().filter_map(|cpu| {
        let stats = fs::read_to_string(place.join(format!("per_cpu/cpu{cpu}/stats"))).ok()?;
        let of = |key: &str| {
            let mut lines = stats.lines().filter_map(|line| line.split_once(':'));
            let value = lines.find(|(name, _)| *name == key);
            value.and_then(|(_, value)| value.trim().parse().ok())
        };
        Some(CpuCounts {
            cpu,
            read: of("read events").unwrap_or(0),
            overrun: of("overrun").unwrap_or(0),
            dropped: of("dropped events").unwrap_or(0),
        })
    });
    counts.collect()
}

impl CpuCounts {
    /// Events that are missing.
    pub(super) fn lost(&self) -> u64 {
        self.overrun.saturating_add(self.dropped)
    }

    /// Events that are missing on all CPUs.
    pub(crate) fn lost_of_all(counts: &[Self]) -> u64 {
        counts.iter().map(Self::lost).fold(0, u64::saturating_add)
    }
}

/// An instance of our own; it goes when this is dropped.
pub(crate) struct Instance<'t> {
    tracefs: &'t Tracefs,
    path: PathBuf,
    /// The folder, locked: a recorder that finds it unlocked may remove it.
    owner: Option<File>,
}

/// Sets a file of the kernel's.
pub(super) fn write(path: &Path, value: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut opened = options.write(true).truncate(true).open(path)?;
    opened.write_all(value.as_bytes())
}

impl<'t> Instance<'t> {
    /// Makes an instance, after removing instances whose recorder has died; returns it, and how many were removed.
    pub(crate) fn make(tracefs: &'t Tracefs) -> Result<(Self, usize), RecordError> {
        let instances = tracefs.root.join("instances");
        let failed = |path: &Path, doing, error| tracefs.failed(path, doing, error);
        // Keeps other recorders from making or removing instances at the same time.
        let turn = File::open(&instances).map_err(|e| failed(&instances, "opened", e))?;
        flock(&turn, FlockOperation::LockExclusive)
            .map_err(|e| failed(&instances, "locked", e.into()))?;
        let removed = remove_dead(tracefs, &instances);
        let names =
            (1..=u32::from(u16::MAX)).map(|number| instances.join(format!("{NAME}{number}")));
        let path =
            names.into_iter().find(|path| !path.exists()).unwrap_or_else(|| instances.join(NAME));
        (tracefs.folders.make)(&path).map_err(|e| failed(&path, "made", e))?;
        let mut instance = Self::new(tracefs, path.clone());
        instance.own().map_err(|e| failed(&path, "locked", e))?;
        Ok((instance, removed))
    }

    /// Instance whose folder is at `path`, not yet locked.
    fn new(tracefs: &'t Tracefs, path: PathBuf) -> Self {
        Self { tracefs, path, owner: None }
    }

    /// Locks the folder, so that nothing takes it for a killed recorder's.
    fn own(&mut self) -> io::Result<()> {
        let owner = File::open(&self.path)?;
        flock(&owner, FlockOperation::NonBlockingLockExclusive)?;
        self.owner = Some(owner);
        Ok(())
    }

    /// Its folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes an error about one of its files.
    fn failed(&self, file: &str, doing: &'static str) -> impl Fn(io::Error) -> RecordError + '_ {
        let path = self.path.join(file);
        move |error| match error.kind() {
            io::ErrorKind::NotFound if !self.path.exists() => {
                RecordError::Removed(self.path.clone())
            }
            _ => self.tracefs.failed(&path, doing, error),
        }
    }

    fn set(&self, file: &str, value: &str) -> Result<(), RecordError> {
        write(&self.path.join(file), value).map_err(self.failed(file, "set"))
    }

    /// Gives each CPU a buffer of so many KiB, and starts the events.
    pub(crate) fn start(&self, events: &EventSelection, buffer_kb: u32) -> Result<(), RecordError> {
        self.set("tracing_on", "0")?;
        self.set("buffer_size_kb", &buffer_kb.to_string())?;
        // One clock for all CPUs; a kernel without it keeps its own.
        let _ = self.set("trace_clock", "mono");
        for Chosen { path, filter, .. } in &events.chosen {
            if let Some(filter) = filter {
                self.set(&format!("events/{path}/filter"), filter)?;
            }
            self.set(&format!("events/{path}/enable"), "1")?;
        }
        self.set("tracing_on", "1")
    }

    /// Stops all events.
    pub(crate) fn stop(&self) -> Result<(), RecordError> {
        self.set("tracing_on", "0")
    }

    /// The CPUs that have buffers.
    pub(super) fn cpus(&self) -> Result<Vec<u32>, RecordError> {
        cpus(&self.path).map_err(self.failed("per_cpu", "read"))
    }

    /// Hands on the pages that a CPU's buffer has, `most` of them at the most; returns `true` if there may be more.
    pub(super) fn sweep(
        &self,
        cpu: u32,
        page: &mut [u8],
        most: usize,
        mut hand_on: impl FnMut(&[u8]) -> Result<(), RecordError>,
    ) -> Result<bool, RecordError> {
        let file = format!("per_cpu/cpu{cpu}/trace_pipe_raw");
        let failed = self.failed(&file, "read");
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
        let mut pipe = match options.open(self.path.join(&file)) {
            // A CPU that went away.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.path.exists() => {
                return Ok(false);
            }
            opened => opened.map_err(&failed)?,
        };
        for _ in 0..most {
            match pipe.read(page) {
                Ok(0) => return Ok(false),
                Ok(count) => hand_on(&page[..count])?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(true)
    }

    /// Counts of the kernel, CPU by CPU.
    pub(crate) fn counts(&self) -> Vec<CpuCounts> {
        counts(&self.path)
    }

    /// Gives it back.
    pub(crate) fn finish(mut self) -> Result<(), RecordError> {
        let path = self.path.clone();
        let owner = self.owner.take();
        let removed = remove(&path, self.tracefs.folders.remove);
        drop(owner);
        // It was tried.
        std::mem::forget(self);
        removed.map_err(|error| RecordError::LeftBehind { path, error })
    }
}

impl Drop for Instance<'_> {
    fn drop(&mut self) {
        let _ = remove(&self.path, self.tracefs.folders.remove);
    }
}
