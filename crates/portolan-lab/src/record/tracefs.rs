//! The kernel's tracing: an instance of our own, with the events that a replay reads.
//!
//! Linux, Documentation/trace/ftrace.rst (instances, `trace_pipe`, `per_cpu/cpuN/stats`) and events.rst (filters). An
//! instance has buffers and settings of its own, so nothing that others trace changes. It cannot be removed while one
//! of its files is open: `trace_pipe` is open for the length of one [`Instance::drain`] only, so that the instance can
//! go at any other moment, a panic's included. Not supported: events of the main instance, binary pages.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use serde::{Deserialize, Serialize};

use super::error::RecordError;

/// Where tracefs usually is.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// How instances of ours are called; a number follows.
const NAME: &str = "portolan-";
/// Bytes that one read may bring: more than the kernel formats at once, so that it keeps nothing back.
const READ: usize = 64 << 10;
/// Bytes after which a drain returns, even if more is there.
const BATCH: usize = 4 << 20;

/// An event that says something, under the names that releases of Linux gave it.
pub struct Wanted {
    /// What it says.
    pub what: &'static str,
    /// Its system.
    pub system: &'static str,
    /// Its names.
    pub names: &'static [&'static str],
}

const fn wanted(
    what: &'static str,
    system: &'static str,
    names: &'static [&'static str],
) -> Wanted {
    Wanted {
        what,
        system,
        names,
    }
}

/// The events that a replay reads.
pub const WANTED: &[Wanted] = &[
    wanted(
        "maps",
        "dma",
        &["dma_map_page", "dma_map_phys", "dma_map_resource"],
    ),
    wanted(
        "unmaps",
        "dma",
        &["dma_unmap_page", "dma_unmap_phys", "dma_unmap_resource"],
    ),
    wanted("maps of lists", "dma", &["dma_map_sg"]),
    wanted("maps of lists that failed", "dma", &["dma_map_sg_err"]),
    wanted("unmaps of lists", "dma", &["dma_unmap_sg"]),
    wanted(
        "coherent memory",
        "dma",
        &[
            "dma_alloc",
            "dma_alloc_pages",
            "dma_alloc_sgt",
            "dma_alloc_sgt_err",
        ],
    ),
    wanted(
        "coherent memory given back",
        "dma",
        &["dma_free", "dma_free_pages", "dma_free_sgt"],
    ),
    wanted("pieces mapped in tables", "iommu", &["map"]),
    wanted("pieces unmapped", "iommu", &["unmap"]),
    wanted("bounced buffers", "swiotlb", &["swiotlb_bounced"]),
    wanted("commands of VT-d", "intel_iommu", &["qi_submit"]),
];

/// Makes an instance's folder.
pub(super) type Make = Box<dyn Fn(&Path) -> io::Result<()>>;

/// Makes and removes instances' folders; tests have others.
pub(super) struct Folders {
    pub(super) make: Make,
    pub(super) remove: fn(&Path) -> io::Result<()>,
}

impl Default for Folders {
    fn default() -> Self {
        Self {
            make: Box::new(|path| fs::create_dir(path)),
            remove: |path| fs::remove_dir(path),
        }
    }
}

/// A mounted tracefs.
pub(super) struct Tracefs {
    pub(super) root: PathBuf,
    pub(super) folders: Folders,
}

/// What is recorded, and what cannot be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Events {
    /// `system:name` of each event that is recorded.
    pub recorded: Vec<String>,
    /// What no event of this kernel's says.
    pub absent: Vec<&'static str>,
    /// Events that do not name their device, and so are left out where devices were chosen.
    pub without_device: Vec<String>,
    #[serde(skip)]
    chosen: Vec<(String, Option<String>)>,
}

/// What the kernel counted on one CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuCounts {
    /// The CPU whose buffer it is.
    pub cpu: u32,
    /// Events that were read.
    pub read: u64,
    /// Events that were overwritten before they were read.
    pub overrun: u64,
    /// Events that found no room.
    pub dropped: u64,
}

impl Tracefs {
    /// Finds it: at `named`, or where it is mounted.
    pub(super) fn find(named: Option<&Path>) -> Result<Self, RecordError> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let mounted = mounts.lines().filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (at, kind) = (words.next()?, words.next()?);
            (kind == "tracefs").then(|| PathBuf::from(at))
        });
        let places = PLACES.iter().map(PathBuf::from).chain(mounted);
        let places: Vec<PathBuf> = named.map_or_else(|| places.collect(), |at| vec![at.to_owned()]);
        for root in places {
            match fs::read_dir(root.join("instances")) {
                Ok(_) => {
                    let folders = Folders::default();
                    return Ok(Self { root, folders });
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(RecordError::Denied(root));
                }
                Err(_) => {}
            }
        }
        Err(RecordError::NoTracefs)
    }

    /// The events to record: all, or those that name one of `devices`.
    pub(super) fn events(&self, devices: &[String]) -> Result<Events, RecordError> {
        let mut events = Events::default();
        for Wanted {
            what,
            system,
            names,
        } in WANTED
        {
            let folder = self.root.join("events").join(system);
            let there: Vec<_> = names
                .iter()
                .filter(|name| folder.join(name).is_dir())
                .collect();
            if there.is_empty() {
                events.absent.push(what);
            }
            for name in there {
                let event = format!("{system}:{name}");
                let format = fs::read_to_string(folder.join(name).join("format"));
                let filter = filter(&format.unwrap_or_default(), devices);
                if filter.is_none() && !devices.is_empty() {
                    events.without_device.push(event);
                    continue;
                }
                events.chosen.push((format!("{system}/{name}"), filter));
                events.recorded.push(event);
            }
        }
        match (events.recorded.is_empty(), events.without_device.is_empty()) {
            (false, _) => Ok(events),
            (true, true) => Err(RecordError::NoEvents(self.root.clone())),
            (true, false) => Err(RecordError::NoDeviceEvents),
        }
    }

    /// Makes an instance, after removing those whose recorder has died; how many these were.
    pub(super) fn instance(&self) -> Result<(Instance<'_>, usize), RecordError> {
        let instances = self.root.join("instances");
        let failed = |path: &Path, doing, error: io::Error| match error.kind() {
            io::ErrorKind::PermissionDenied => RecordError::Denied(self.root.clone()),
            _ => RecordError::Tracing {
                path: path.to_owned(),
                doing,
                error,
            },
        };
        // Nobody else makes or removes one meanwhile.
        let turn = File::open(&instances).map_err(|e| failed(&instances, "opened", e))?;
        flock(&turn, FlockOperation::LockExclusive)
            .map_err(|e| failed(&instances, "locked", e.into()))?;
        let removed = self.remove_dead(&instances);
        let names =
            (1..=u32::from(u16::MAX)).map(|number| instances.join(format!("{NAME}{number}")));
        let path = names.into_iter().find(|path| !path.exists());
        let path = path.unwrap_or_else(|| instances.join(NAME));
        (self.folders.make)(&path).map_err(|e| failed(&path, "made", e))?;
        let mut instance = Instance {
            tracefs: self,
            path,
            owner: None,
        };
        let owner = File::open(&instance.path).map_err(|e| failed(&instance.path, "opened", e))?;
        flock(&owner, FlockOperation::NonBlockingLockExclusive)
            .map_err(|e| failed(&instance.path, "locked", e.into()))?;
        instance.owner = Some(owner);
        Ok((instance, removed))
    }

    /// Removes instances that no recorder has locked any more.
    fn remove_dead(&self, instances: &Path) -> usize {
        let listed = fs::read_dir(instances).into_iter().flatten().flatten();
        let ours = listed.filter(|entry| entry.file_name().to_string_lossy().starts_with(NAME));
        let dead = ours.filter(|entry| {
            let opened = File::open(entry.path());
            opened.is_ok_and(|folder| {
                flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok()
            })
        });
        dead.filter(|entry| remove(&entry.path(), self.folders.remove).is_ok())
            .count()
    }
}

/// Which events name one of `devices`, in the kernel's words; `None` where they name none.
fn filter(format: &str, devices: &[String]) -> Option<String> {
    let field = ["device", "dev_name"].into_iter().find(|field| {
        let named = format!(" {field};");
        format
            .lines()
            .any(|line| line.contains("field:") && line.contains(&named))
    })?;
    let terms: Vec<String> = devices
        .iter()
        .map(|device| format!("{field} == \"{device}\""))
        .collect();
    (!terms.is_empty()).then(|| terms.join(" || "))
}

/// Switches an instance off and removes it.
pub(super) fn remove(path: &Path, remove: fn(&Path) -> io::Result<()>) -> io::Result<()> {
    // Where it stays, it costs nothing.
    for file in ["tracing_on", "events/enable"] {
        let _ = OpenOptions::new()
            .write(true)
            .open(path.join(file))
            .and_then(|mut f| f.write_all(b"0"));
    }
    remove(path)
}

/// An instance of our own; it goes when this is dropped.
pub(super) struct Instance<'t> {
    tracefs: &'t Tracefs,
    path: PathBuf,
    /// The folder, locked: whoever finds it unlocked may remove it.
    owner: Option<File>,
}

impl Instance<'_> {
    /// Its folder.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn failed(&self, file: &str, doing: &'static str) -> impl Fn(io::Error) -> RecordError {
        let path = self.path.join(file);
        move |error| RecordError::Tracing {
            path: path.clone(),
            doing,
            error,
        }
    }

    fn set(&self, file: &str, value: &str) -> Result<(), RecordError> {
        let mut options = OpenOptions::new();
        let opened = options
            .write(true)
            .truncate(true)
            .open(self.path.join(file));
        let written = opened.and_then(|mut opened| opened.write_all(value.as_bytes()));
        written.map_err(self.failed(file, "set"))
    }

    /// Gives each CPU a buffer of so many KiB, and starts the events.
    pub(super) fn start(&self, events: &Events, buffer_kb: u32) -> Result<(), RecordError> {
        self.set("tracing_on", "0")?;
        self.set("buffer_size_kb", &buffer_kb.to_string())?;
        // One clock for all CPUs; a kernel without it keeps its own.
        let _ = self.set("trace_clock", "mono");
        for (event, filter) in &events.chosen {
            if let Some(filter) = filter {
                self.set(&format!("events/{event}/filter"), filter)?;
            }
            self.set(&format!("events/{event}/enable"), "1")?;
        }
        self.set("tracing_on", "1")
    }

    /// Stops all events.
    pub(super) fn stop(&self) -> Result<(), RecordError> {
        self.set("tracing_on", "0")
    }

    /// Reads what is there, up to a batch, into `into`, which is emptied before.
    pub(super) fn drain(&self, into: &mut Vec<u8>) -> Result<Drained, RecordError> {
        into.clear();
        let failed = self.failed("trace_pipe", "read");
        let mut options = OpenOptions::new();
        options
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32);
        let mut pipe = options
            .open(self.path.join("trace_pipe"))
            .map_err(&failed)?;
        while into.len() < BATCH {
            let start = into.len();
            into.resize(start + READ, 0);
            let read = pipe.read(&mut into[start..]);
            into.truncate(start + read.as_ref().map_or(0, |count| *count));
            match read {
                Ok(0) => return Ok(Drained::All),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Drained::All),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(Drained::Part)
    }

    /// What the kernel counted, CPU by CPU.
    pub(super) fn counts(&self) -> Vec<CpuCounts> {
        let listed = fs::read_dir(self.path.join("per_cpu"))
            .into_iter()
            .flatten()
            .flatten();
        let mut counts: Vec<CpuCounts> = listed
            .filter_map(|entry| {
                let name = entry.file_name();
                let cpu = name.to_str()?.strip_prefix("cpu")?.parse().ok()?;
                let stats = fs::read_to_string(entry.path().join("stats")).ok()?;
                let of = |key: &str| {
                    let mut lines = stats.lines().filter_map(|line| line.split_once(':'));
                    let value = lines
                        .find(|(name, _)| *name == key)
                        .map(|(_, value)| value.trim());
                    value.and_then(|value| value.parse().ok()).unwrap_or(0)
                };
                let (read, overrun, dropped) =
                    (of("read events"), of("overrun"), of("dropped events"));
                Some(CpuCounts {
                    cpu,
                    read,
                    overrun,
                    dropped,
                })
            })
            .collect();
        counts.sort_by_key(|counts| counts.cpu);
        counts
    }

    /// Gives it back.
    pub(super) fn finish(mut self) -> Result<(), RecordError> {
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

/// Whether more is there to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drained {
    /// Not now.
    All,
    /// Perhaps.
    Part,
}
