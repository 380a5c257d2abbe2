//! `record-loads LOAD:RECORDER…`: makes each load (`make-load`) while a recorder records it, and prints the kernel's
//! counts of the load.
//!
//! The kernel counts by histograms of its own events (Linux, Documentation/trace/histogram.rst), in an instance of
//! its tracing beside the recorder's: no buffer is between an event and its count. The disks' counts of their
//! requests are beside that. Before and after each load the port `mark` is opened, which QEMU traces.
//!
//! A line for each is `run: ` and JSON. The recordings leave by the port `recordings`, as tar has it.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

const INSTANCE: &str = "/sys/kernel/tracing/instances/counted";
const PORTS: &str = "/dev/virtio-ports";
const PLACE: &str = "/tmp/recordings";
/// The groups of events that tell about mappings.
const GROUPS: [&str; 4] = ["dma", "iommu", "swiotlb", "intel_iommu"];
/// Counted events and their fields: one that distinguishes kinds, and another whose values are added up.
const COUNTED: [(&str, &str, Option<&str>); 13] = [
    ("dma/dma_map_page", "dir", Some("size")),
    ("dma/dma_map_phys", "dir", Some("size")),
    ("dma/dma_unmap_page", "dir", Some("size")),
    ("dma/dma_unmap_phys", "dir", Some("size")),
    ("dma/dma_map_sg", "dir", None),
    ("dma/dma_unmap_sg", "dir", None),
    ("dma/dma_alloc", "size", None),
    ("dma/dma_free", "size", None),
    ("dma/dma_alloc_sgt", "size", None),
    ("dma/dma_free_sgt", "size", None),
    ("iommu/map", "size", None),
    ("iommu/unmap", "size", None),
    ("intel_iommu/qi_submit", "qw0", None),
];

/// The kernel's counts of one load.
#[derive(Serialize)]
struct Run<'a> {
    load: &'a str,
    recorder: &'a str,
    /// Counts of kernel events, by the value of the field that distinguishes them.
    kernel: BTreeMap<&'static str, BTreeMap<u64, Count>>,
    /// Requests and bytes of all disks.
    disks: Count,
}

#[derive(Clone, Copy, Default, Serialize)]
struct Count {
    events: u64,
    bytes: u64,
}

fn main() -> Result<()> {
    fs::create_dir_all(PLACE)?;
    fs::create_dir(INSTANCE).context(INSTANCE)?;
    bring_up_network()?;
    for entry in std::env::args().skip(1) {
        let (load, recorder) = entry.split_once(':').context("LOAD:RECORDER")?;
        let kernel = Counters::set()?;
        let before = disks()?;
        mark()?;
        let file = PathBuf::from(PLACE).join(format!("{load}-{recorder}"));
        record(load, recorder, &file).with_context(|| entry.clone())?;
        mark()?;
        let after = disks()?;
        let run = Run {
            load,
            recorder,
            kernel: kernel.read()?,
            disks: Count {
                events: after.events - before.events,
                bytes: after.bytes - before.bytes,
            },
        };
        println!("run: {}", serde_json::to_string(&run)?);
        print_text(recorder, &file)?;
    }
    let mut tar = Command::new("tar");
    tar.arg("cf").arg(Path::new(PORTS).join("recordings"));
    ended(tar.args(["-C", PLACE, "."]))
}

/// Records a load into `file` with a program.
fn record(load: &str, recorder: &str, file: &Path) -> Result<()> {
    let mut command = Command::new(recorder);
    command.arg("record");
    match recorder {
        "portolan" => command.arg("-o").arg(file.with_extension("gz")).arg("--"),
        "trace-cmd" => {
            command.args(GROUPS.iter().flat_map(|group| ["-e", group]));
            command.arg("-o").arg(file.with_extension("dat"))
        }
        "perf" => {
            let groups = GROUPS.map(|group| format!("{group}:*"));
            command.args(groups.iter().flat_map(|group| ["-e", group]));
            // Its buffers are 512 KiB a CPU otherwise.
            command.args(["-a", "-m", "4096", "-o"]).arg(file.with_extension("data"))
        }
        _ => bail!("no recorder is called {recorder}"),
    };
    ended(command.args(["make-load", load]))
}

/// Prints a recording with its recorder, as users do.
fn print_text(recorder: &str, file: &Path) -> Result<()> {
    let (verb, recorded, text) = match recorder {
        "trace-cmd" => ("report", "dat", "report"),
        "perf" => ("script", "data", "script"),
        _ => return Ok(()),
    };
    let mut command = Command::new(recorder);
    command.arg(verb).arg("-i").arg(file.with_extension(recorded));
    ended(command.stdout(File::create(file.with_extension(text))?))
}

/// Runs a program whose words are of no interest unless it fails.
fn ended(command: &mut Command) -> Result<()> {
    let said = File::create("/tmp/said")?;
    let status = command
        .stderr(said)
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("{command:?}"))?;
    let said = fs::read_to_string("/tmp/said").unwrap_or_default();
    ensure!(status.success(), "{command:?} ended with {status}: {said}");
    Ok(())
}

/// Marks this point in QEMU's trace.
fn mark() -> Result<()> {
    let port = Path::new(PORTS).join("mark");
    File::open(&port).with_context(|| format!("{}", port.display()))?;
    Ok(())
}

/// Gives the first interface the address that QEMU's user network expects, if there is one.
fn bring_up_network() -> Result<()> {
    if !Path::new("/sys/class/net/eth0").exists() {
        return Ok(());
    }
    ended(Command::new("ip").args(["address", "add", "10.0.2.15/24", "dev", "eth0"]))?;
    ended(Command::new("ip").args(["link", "set", "eth0", "up"]))
}

/// Requests and bytes of all disks so far (Linux, Documentation/block/stat.rst).
fn disks() -> Result<Count> {
    let mut count = Count::default();
    for disk in fs::read_dir("/sys/block")? {
        let disk = disk?.path();
        // A path to a disk that has several counts the same requests as the disk.
        if fs::read_to_string(disk.join("hidden")).is_ok_and(|hidden| hidden.trim() == "1") {
            continue;
        }
        let stat = fs::read_to_string(disk.join("stat"))?;
        let numbers: Vec<u64> = stat.split_whitespace().flat_map(str::parse).collect();
        let [reads, _, read_sectors, _, writes, _, written_sectors, ..] = numbers[..] else {
            bail!("a disk says {stat:?}");
        };
        count.events += reads + writes;
        count.bytes += 512 * (read_sectors + written_sectors);
    }
    Ok(count)
}

/// The kernel's histograms, from when they are set to when they are read.
struct Counters(Vec<(&'static str, String)>);

impl Counters {
    fn set() -> Result<Self> {
        let mut set = Vec::new();
        for (event, field, added) in COUNTED {
            // Not every kernel has every event.
            let trigger = Path::new(INSTANCE).join("events").join(event).join("trigger");
            if !trigger.exists() {
                continue;
            }
            let added = added.map(|field| format!(":vals={field}")).unwrap_or_default();
            let histogram = format!("hist:keys={field}{added}");
            let written = fs::write(&trigger, &histogram);
            written.with_context(|| format!("{event}: {histogram}"))?;
            set.push((event, histogram));
        }
        Ok(Self(set))
    }

    /// Reads and removes them.
    fn read(self) -> Result<BTreeMap<&'static str, BTreeMap<u64, Count>>> {
        let mut all = BTreeMap::new();
        for (event, histogram) in self.0 {
            let place = Path::new(INSTANCE).join("events").join(event);
            let text = fs::read_to_string(place.join("hist"))?;
            ensure!(text.contains("Dropped: 0"), "{event}: not all were counted");
            let entries = text.lines().filter_map(entry).collect();
            all.insert(event, entries);
            fs::write(place.join("trigger"), format!("!{histogram}"))?;
        }
        Ok(all)
    }
}

/// `{ size:       4096 } hitcount:       1000`, and `  size:    4096000` behind it where something was added up.
fn entry(line: &str) -> Option<(u64, Count)> {
    let (key, values) = line.strip_prefix('{')?.split_once('}')?;
    let (field, key) = key.split_once(':')?;
    let key = key.trim().parse().ok()?;
    let mut words = values.split_whitespace().filter_map(|word| word.parse().ok());
    let events: u64 = words.next()?;
    let bytes = match field.trim() {
        "size" => events * key,
        _ => words.next().unwrap_or(0),
    };
    Some((key, Count { events, bytes }))
}
