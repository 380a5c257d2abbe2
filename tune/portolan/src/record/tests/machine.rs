//! A machine in a folder: tracefs with pages of events, `/sys`, `/proc`, and somewhere to write.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use clap::Parser;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::record::environment::Environment;
use crate::record::tracefs::{Folders, Tracefs};
use crate::record::{RecordArgs, RecordError, RecordReport, record};

pub(crate) const DEVICE: &str = "0000:00:03.0";
/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;
pub(crate) const HEADER_PAGE: &str = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
    \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
    \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
    \tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;\n";
const COMMON: &str = "format:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
    \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
    \tfield:__data_loc char[] device;\toffset:8;\tsize:4;\tsigned:0;\n";
const WORDS: &str = "__print_symbolic(REC->dir, { 0, \"BIDIRECTIONAL\" }, { 1, \"TO_DEVICE\" }, \
    { 2, \"FROM_DEVICE\" })";
const FLAGS: &str = "__print_flags(REC->attrs, \"|\", { (1UL << 1), \"WEAK_ORDERING\" }, \
    { (1UL << 5), \"SKIP_CPU_SYNC\" })";
pub(crate) const MAP: u16 = 440;
pub(crate) const UNMAP: u16 = 439;
pub(crate) const PIECE: u16 = 430;
pub(crate) const TIMER: u16 = 50;

/// The kernel's events, and their numbers.
const EVENTS: [(&str, u16); 4] = [
    ("dma/dma_map_page", MAP),
    ("dma/dma_unmap_page", UNMAP),
    ("iommu/map", PIECE),
    ("timer/timer_expire_entry", TIMER),
];

/// The kernel's description of an event.
pub(crate) fn format(id: u16) -> String {
    let fields = |name: &str| {
        format!(
            "\tfield:u64 {name};\toffset:16;\tsize:8;\tsigned:0;\n\
             \tfield:u64 dma_addr;\toffset:24;\tsize:8;\tsigned:0;\n\
             \tfield:size_t size;\toffset:32;\tsize:8;\tsigned:0;\n\
             \tfield:enum dma_data_direction dir;\toffset:40;\tsize:4;\tsigned:0;\n\
             \tfield:unsigned long attrs;\toffset:48;\tsize:8;\tsigned:0;\n\n"
        )
    };
    match id {
        MAP => format!(
            "name: dma_map_page\nID: {MAP}\n{COMMON}{}print fmt: \"%s dir=%s dma_addr=%llx \
             size=%zu phys_addr=%llx attrs=%s\", \
             __get_str(device), {WORDS}, REC->dma_addr, REC->size, REC->phys_addr, {FLAGS}\n",
            fields("phys_addr")
        ),
        UNMAP => format!(
            "name: dma_unmap_page\nID: {UNMAP}\n{COMMON}{}print fmt: \"%s dir=%s dma_addr=%llx size=%zu attrs=%s\", \
             __get_str(device), {WORDS}, REC->dma_addr, REC->size, {FLAGS}\n",
            fields("unused")
        ),
        TIMER => format!(
            "name: timer_expire_entry\nID: {TIMER}\nformat:\n\tfield:void * timer;\toffset:8;\tsize:8;\tsigned:0;\n\
             \tfield:unsigned long now;\toffset:16;\tsize:8;\tsigned:0;\n\
             \tfield:void * function;\toffset:24;\tsize:8;\tsigned:0;\n\
             \tfield:unsigned long baseclk;\toffset:32;\tsize:8;\tsigned:0;\n\n\
             print fmt: \"timer=%p function=%ps now=%lu baseclk=%lu\", \
             REC->timer, REC->function, REC->now, REC->baseclk\n"
        ),
        _ => format!(
            "name: map\nID: {PIECE}\nformat:\n\tfield:u64 iova;\toffset:8;\tsize:8;\tsigned:0;\n\
             \tfield:u64 paddr;\toffset:16;\tsize:8;\tsigned:0;\n\
             \tfield:size_t size;\toffset:24;\tsize:8;\tsigned:0;\n\n\
             print fmt: \"IOMMU: iova=0x%016llx - 0x%016llx paddr=0x%016llx size=%zu\", \
             REC->iova, REC->iova + REC->size, REC->paddr, REC->size\n"
        ),
    }
}

/// A record of an event; of a timer's, `dma` is the tick.
pub(crate) fn event(id: u16, dma: u64) -> Vec<u8> {
    let mut record = [&id.to_ne_bytes()[..], &[1, 0], &7u32.to_ne_bytes()].concat();
    if id == TIMER {
        let longs = [0x1000, dma, 0x2000, dma];
        record.extend(longs.iter().flat_map(|long| long.to_ne_bytes()));
        return record;
    }
    if id == PIECE {
        record.extend([dma, 0x1000, 4096].iter().flat_map(|long| long.to_ne_bytes()));
        return record;
    }
    let place = (DEVICE.len() as u32 + 1) << 16 | 56;
    record.extend([place, 0].iter().flat_map(|word| word.to_ne_bytes()));
    record.extend([0x1000, dma, 4096].iter().flat_map(|long: &u64| long.to_ne_bytes()));
    record.extend([2u32, 0].iter().flat_map(|word| word.to_ne_bytes()));
    record.extend((1u64 << 5).to_ne_bytes());
    record.extend(DEVICE.as_bytes());
    record.resize(record.len().next_multiple_of(4) + 4, 0);
    record
}

/// A page that begins at `time`, with records so many nanoseconds after one another; `lost` events are missing
/// before it.
pub(crate) fn page(time: u64, records: &[(u32, Vec<u8>)], lost: u64) -> Vec<u8> {
    let mut data = Vec::new();
    for (delta, record) in records {
        let words = record.len() as u32 / 4;
        match words {
            1..=28 => data.extend((delta << 5 | words).to_ne_bytes()),
            _ => {
                data.extend((delta << 5).to_ne_bytes());
                data.extend((record.len() as u32 + 4).to_ne_bytes());
            }
        }
        data.extend(record);
    }
    let (mut commit, mut tail) = (data.len() as u64, Vec::new());
    if lost > 0 {
        commit |= 1 << 31 | 1 << 30;
        tail = lost.to_ne_bytes().to_vec();
    }
    let mut page = [&time.to_ne_bytes()[..], &commit.to_ne_bytes(), &data, &tail].concat();
    page.resize(PAGE, 0);
    page
}

/// A map and its unmap, on one page.
pub(crate) fn two() -> Vec<u8> {
    let records = [(1000, event(MAP, 0xfff_f000)), (1000, event(UNMAP, 0xfff_f000))];
    page(1_000_000_000, &records, 0)
}

/// Files of a tracefs that can measure functions, with their contents while nothing is traced.
pub(crate) const TRACER: &[(&str, &str)] = &[
    ("available_tracers", "function_graph function nop\n"),
    ("current_tracer", "nop\n"),
    ("tracing_on", "1\n"),
    ("set_event", ""),
    ("set_ftrace_filter", ""),
    ("set_ftrace_pid", "no pid\n"),
    ("options/funcgraph-irqs", "0\n"),
    ("options/funcgraph-args", "0\n"),
    ("events/iommu/map/enable", "0*\n"),
    ("trace", "# tracer: nop\n#\n"),
];

/// The machine.
pub(crate) struct Machine {
    pub(crate) root: PathBuf,
    /// The instances that were made, and the ends of their pipes that the "kernel" holds.
    pub(crate) seen: Arc<Mutex<Seen>>,
    /// The tracers that instances have; none of their files where this is empty.
    pub(crate) tracers: &'static str,
}

#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) pipes: Vec<File>,
    pub(crate) made: Vec<PathBuf>,
}

#[derive(Parser)]
struct Words {
    #[command(flatten)]
    args: RecordArgs,
}

impl Machine {
    /// A machine with a kernel of 6.12, whose user is root.
    pub(crate) fn new(name: &str) -> Self {
        let root =
            std::env::temp_dir().join(format!("portolan-record-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let machine = Self { root, seen: Arc::default(), tracers: "" };
        for (event, id) in EVENTS {
            machine.write(&format!("tracing/events/{event}/format"), &format(id));
        }
        machine.write("tracing/events/header_page", HEADER_PAGE);
        machine.write("tracing/saved_cmdlines", "7 dd\n");
        machine.write("sys/bus/pci/devices/0000:00:03.0/vendor", "0x1b36");
        machine.write("proc/sys/kernel/osrelease", "6.12.0\n");
        machine.write("sys/devices/system/cpu/online", "0-1\n");
        machine.write("proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n");
        machine.write("proc/self/uid_map", "0 0 4294967295\n");
        fs::create_dir_all(machine.root.join("tracing/instances")).unwrap();
        machine
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Gives tracefs a tracer of functions: files, and their contents while nothing is traced.
    pub(crate) fn with_tracer(&self) {
        for (file, value) in TRACER {
            self.write(&format!("tracing/{file}"), value);
        }
    }

    pub(crate) fn remove(&self, path: &str) {
        fs::remove_dir_all(self.root.join(path)).unwrap();
    }

    pub(crate) fn instances(&self) -> usize {
        fs::read_dir(self.root.join("tracing/instances")).unwrap().count()
    }

    /// A tracefs whose instances have all files but `without`, and whose CPUs' buffers have `pages`.
    pub(crate) fn tracefs(&self, without: &'static str, pages: Vec<Vec<u8>>) -> Tracefs {
        let seen = Arc::clone(&self.seen);
        let events = self.root.join("tracing/events");
        let tracers = self.tracers;
        let make = move |path: &Path| {
            fs::create_dir(path)?;
            let settings = ["tracing_on", "buffer_size_kb", "trace_clock", "events/enable"];
            let mut files = settings.map(str::to_owned).to_vec();
            for (event, _) in EVENTS {
                if events.join(event).exists() {
                    files.push(format!("events/{event}/enable"));
                    files.push(format!("events/{event}/filter"));
                }
            }
            let cpus = 0..pages.len().max(1);
            files.extend(cpus.map(|cpu| format!("per_cpu/cpu{cpu}/stats")));
            for file in files.iter().filter(|file| **file != without) {
                fs::create_dir_all(path.join(file).parent().unwrap())?;
                fs::write(path.join(file), "read events: 2\noverrun: 3\ndropped events: 1\n")?;
            }
            if !tracers.is_empty() {
                for (file, value) in TRACER.iter().filter(|(file, _)| *file != "tracing_on") {
                    fs::create_dir_all(path.join(file).parent().unwrap())?;
                    fs::write(path.join(file), value)?;
                }
                fs::write(path.join("available_tracers"), tracers)?;
            }
            let mut seen = seen.lock().unwrap();
            for (cpu, pages) in pages.iter().enumerate() {
                let pipe = path.join(format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
                mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
                let mut end = OpenOptions::new().read(true).write(true).open(&pipe)?;
                end.write_all(pages)?;
                seen.pipes.push(end);
            }
            seen.made.push(path.to_owned());
            Ok(())
        };
        // Tests look at the settings afterwards.
        let remove = |path: &Path| fs::rename(path, path.parent().unwrap().join("../gone"));
        Tracefs {
            root: self.root.join("tracing"),
            folders: Folders { make: Box::new(make), remove },
            environment: Environment::of(&self.root),
        }
    }

    /// Records with `words` for a command line, into `out.gz` if they name no file.
    pub(crate) fn record(
        &self,
        tracefs: &Tracefs,
        words: &[&str],
    ) -> Result<RecordReport, RecordError> {
        let out = self.root.join("out.gz").display().to_string();
        let mut line = vec!["record"];
        if !words.contains(&"-o") {
            line.extend(["-o", &out]);
        }
        line.extend(words);
        record(&Words::parse_from(line).args, tracefs, &self.root)
    }

    /// Contents of `out.gz`.
    pub(crate) fn recorded(&self) -> String {
        let packed = File::open(self.root.join("out.gz")).unwrap();
        let text = std::io::read_to_string(flate2::read::GzDecoder::new(packed));
        text.unwrap()
    }

    pub(crate) fn set(&self, file: &str) -> String {
        fs::read_to_string(self.root.join("tracing/gone").join(file)).unwrap()
    }

    /// Tells if no instance and no file is left.
    pub(crate) fn is_as_before(&self) -> bool {
        let listed = fs::read_dir(&self.root).unwrap().flatten();
        let names = listed.map(|entry| entry.file_name().to_string_lossy().into_owned());
        self.instances() == 0 && !names.into_iter().any(|name| name.starts_with("out.gz"))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}
