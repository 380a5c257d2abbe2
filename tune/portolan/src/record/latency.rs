//! `portolan record --latency N`: times of the kernel's functions of DMA mapping on this machine, by its
//! `function_graph` tracer.
//!
//! Linux, Documentation/trace/ftrace.rst ("function graph tracer", instances). The tracer runs in an instance
//! of ours where the kernel lets it (`available_tracers` of the instance has it), else in the main one: not if
//! that is in use, and every setting is put back. Its output goes into the recording behind [`LATENCY`], which
//! `portolan calibrate` and a replay read. Where the tracer prints a call's arguments (6.15), these are its size;
//! elsewhere events tell it, and take time within the calls. In the end the tracer measures itself (`probe`). Not
//! supported: machines without CONFIG_FUNCTION_GRAPH_TRACER.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use super::error::RecordError;
use super::instance::{CpuCounts, Instance, counts, write};
use super::settings::{Changed, HOW_TO_RESTORE};
use super::tracefs::Tracefs;
use crate::facts::LATENCY;

const TRACER: &str = "function_graph";
/// KiB of each CPU's buffer, and of all together, in an instance of ours. The main instance's buffers are not
/// changed.
const BUFFER_KB: u32 = 16 << 10;
const BUFFERS_KB: u32 = 64 << 10;
/// Bytes of text that are kept; calls beyond say nothing new.
const MOST: u64 = 32 << 20;

/// Functions to trace, if the kernel has them: those with prices (`calibrate`), their callers, and an empty one that
/// shows the time of tracing itself.
pub const FUNCTIONS: &[&str] = &[
    "iommu_map",
    "iommu_map_sg",
    "iommu_map_nosync",
    "iommu_unmap",
    "iommu_unmap_fast",
    "intel_iommu_tlb_sync",
    "intel_flush_iotlb_all",
    "qi_submit_sync",
    "arm_smmu_cmdq_issue_cmdlist",
    "amd_iommu_domain_flush_pages",
    "swiotlb_tbl_map_single",
    "swiotlb_tbl_unmap_single",
    "__swiotlb_tbl_unmap_single",
    "swiotlb_bounce",
    "iommu_dma_map_page",
    "iommu_dma_unmap_page",
    "iommu_dma_map_phys",
    "iommu_dma_unmap_phys",
    "iommu_dma_map_sg",
    "iommu_dma_unmap_sg",
    "alloc_iova_fast",
    "free_iova_fast",
    "iommu_dma_free_iova",
    "iommu_get_dma_domain",
];
/// A system call that does next to nothing, as kernels and architectures call it, and a function that it calls once.
const SYSTEM_CALLS: [&str; 6] = [
    "__do_sys_getppid",
    "__x64_sys_getppid",
    "__arm64_sys_getppid",
    "__riscv_sys_getppid",
    "__s390x_sys_getppid",
    "sys_getppid",
];
const CALLED_ONCE: &str = "__task_pid_nr_ns";
/// Times that it is called with either filter.
const PROBES: usize = 500;
/// Events that tell the number of pages and commands of a call, where its arguments do not.
const SIZES: [&str; 4] =
    ["iommu/map", "iommu/unmap", "intel_iommu/qi_submit", "swiotlb/swiotlb_bounced"];
/// Files of the main instance, and the beginning of each line of them while it is not in use.
const UNUSED: [(&str, &str); 9] = [
    ("current_tracer", "nop"),
    ("set_event", "#"),
    ("set_event_pid", "#"),
    ("set_ftrace_filter", "#"),
    ("set_ftrace_notrace", "#"),
    ("set_ftrace_pid", "no pid"),
    ("set_graph_function", "#"),
    ("set_graph_notrace", "#"),
    ("trace", "#"),
];

/// Latencies being measured; the settings are put back when this is dropped.
pub(crate) struct Measuring<'t> {
    tracefs: &'t Tracefs,
    /// The folder of the tracing that measures.
    place: PathBuf,
    changed: Changed,
}

/// Measured latencies as written to the recording.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LatencySection {
    /// Lines, each behind [`LATENCY`].
    pub(crate) text: Vec<u8>,
    /// Ends of calls among them.
    pub(crate) calls: u64,
    /// Events of the tracer, beginnings and ends of calls among them, that later ones overwrote.
    pub(crate) overwritten: u64,
}

impl<'t> Measuring<'t> {
    /// Starts the tracer in `instance`, if that does not trace yet, or otherwise in the main instance. `changed`
    /// holds the settings that a panic restores.
    pub(crate) fn begin(
        tracefs: &'t Tracefs,
        instance: &Instance<'t>,
        cpus: u32,
        changed: &Changed,
    ) -> Result<Self, RecordError> {
        if !has_tracer(&tracefs.root) {
            return Err(RecordError::NoTracer);
        }
        let at = |place: &Path| Self { tracefs, place: place.to_owned(), changed: changed.clone() };
        let own = at(instance.path());
        if has_tracer(&own.place) {
            let buffer_kb = BUFFER_KB.min(BUFFERS_KB / cpus.max(1)).max(64);
            write(&own.place.join("buffer_size_kb"), &buffer_kb.to_string())
                .map_err(|error| own.failed("buffer_size_kb", error))?;
            // A kernel that lists it may refuse it still.
            if own.switch_on().is_ok() {
                return Ok(own);
            }
        }
        drop(own);
        if let Some(what) = in_use(&tracefs.root) {
            return Err(RecordError::TracingInUse { what, restore: HOW_TO_RESTORE });
        }
        let main = at(&tracefs.root);
        main.switch_on()?;
        Ok(main)
    }

    fn failed(&self, file: &str, error: std::io::Error) -> RecordError {
        self.tracefs.failed(&self.place.join(file), "set", error)
    }

    fn set(&self, file: &str, value: &str) -> Result<(), RecordError> {
        let set = self.changed.set(&self.place.join(file), value);
        set.map_err(|error| self.failed(file, error))
    }

    fn switch_on(&self) -> Result<(), RecordError> {
        self.set("tracing_on", "0")?;
        let filter = self.place.join("set_ftrace_filter");
        self.changed.remember(&filter, "");
        for name in FUNCTIONS {
            // One that this kernel has not.
            let _ = append(&filter, name);
        }
        // Without a filter all of the kernel's functions would be traced.
        if !names_functions(&filter) {
            return Err(RecordError::NoFunctions);
        }
        // Marked interrupts; sizes from arguments, or else from events, whose time is the call's then.
        let option = |name: &str| self.changed.set(&self.place.join("options").join(name), "1");
        let _ = option("funcgraph-irqs");
        if option("funcgraph-args").is_err() {
            for event in SIZES {
                let file = self.place.join("events").join(event).join("enable");
                let _ = self.changed.set(&file, "1");
            }
        }
        self.set("current_tracer", TRACER)?;
        write(&self.place.join("tracing_on"), "1").map_err(|error| self.failed("tracing_on", error))
    }

    /// Stops the tracer, restores the changed settings, and returns its output.
    pub(crate) fn end(self) -> Result<LatencySection, RecordError> {
        write(&self.place.join("tracing_on"), "0")
            .map_err(|error| self.failed("tracing_on", error))?;
        let overwritten = counts(&self.place);
        let mut section = self.printed()?;
        section.overwritten = CpuCounts::lost_of_all(&overwritten);
        for functions in [&[][..], &[CALLED_ONCE]] {
            section.text.extend(self.probe(functions)?);
        }
        match self.changed.restore() {
            failed if failed.is_empty() => Ok(section),
            failed => {
                Err(RecordError::NotRestored { failed: failed.join("; "), restore: HOW_TO_RESTORE })
            }
        }
    }

    /// Takes the tracer's output, and empties its buffers.
    fn printed(&self) -> Result<LatencySection, RecordError> {
        let file = self.place.join("trace");
        let section = LatencySection::read(&file)
            .map_err(|error| self.tracefs.failed(&file, "read", error))?;
        write(&file, "").map_err(|error| self.failed("trace", error))?;
        Ok(section)
    }

    /// Traces a system call and `functions`: where those are in it, it takes longer by the time of tracing them.
    /// Nothing on a kernel that has other names for them.
    fn probe(&self, functions: &[&str]) -> Result<Vec<u8>, RecordError> {
        let failed = |file: &'static str| move |error| self.failed(file, error);
        // Without a filter all of the kernel's functions would be traced.
        write(&self.place.join("current_tracer"), "nop").map_err(failed("current_tracer"))?;
        let filter = self.place.join("set_ftrace_filter");
        write(&filter, "").map_err(failed("set_ftrace_filter"))?;
        let mut calls = SYSTEM_CALLS.iter();
        let is_there = calls.any(|name| append(&filter, name).is_ok() && names_functions(&filter));
        let all = functions.iter().all(|name| append(&filter, name).is_ok());
        if !is_there || !all {
            return Ok(Vec::new());
        }
        write(&self.place.join("current_tracer"), TRACER).map_err(failed("current_tracer"))?;
        write(&self.place.join("tracing_on"), "1").map_err(failed("tracing_on"))?;
        for _ in 0..PROBES {
            let _ = rustix::process::getppid();
        }
        write(&self.place.join("tracing_on"), "0").map_err(failed("tracing_on"))?;
        Ok(self.printed()?.text)
    }
}

impl Drop for Measuring<'_> {
    fn drop(&mut self) {
        let _ = self.changed.restore();
    }
}

fn has_tracer(place: &Path) -> bool {
    let tracers = fs::read_to_string(place.join("available_tracers")).unwrap_or_default();
    tracers.split_whitespace().any(|one| one == TRACER)
}

/// Setting that shows that the tracing at `root` is in use.
fn in_use(root: &Path) -> Option<String> {
    UNUSED.iter().find_map(|(file, unused)| {
        let opened = File::open(root.join(file)).ok()?;
        let mut lines = BufReader::new(opened.take(1 << 16)).lines().map_while(Result::ok);
        let line = lines.find(|line| !line.trim().is_empty() && !line.starts_with(unused))?;
        let line: String = line.chars().take(60).collect();
        Some(format!("{file} has \"{}\"", line.escape_debug()))
    })
}

fn append(filter: &Path, name: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().append(true).open(filter)?;
    file.write_all(format!("{name}\n").as_bytes())
}

fn names_functions(filter: &Path) -> bool {
    let text = fs::read_to_string(filter).unwrap_or_default();
    let mut lines = text.lines();
    lines.any(|line| !line.is_empty() && !line.starts_with('#'))
}

impl LatencySection {
    /// The tracer's own lines.
    pub(crate) fn lines(&self) -> Vec<u8> {
        let lines = self.text.split_inclusive(|byte| *byte == b'\n');
        let lines = lines.filter_map(|line| line.strip_prefix(LATENCY.as_bytes()));
        lines.collect::<Vec<_>>().concat()
    }

    /// Reads the tracer's output, without the lines about lines.
    fn read(file: &Path) -> std::io::Result<Self> {
        let mut input = BufReader::new(File::open(file)?.take(MOST));
        let (mut section, mut line) = (Self::default(), Vec::new());
        loop {
            line.clear();
            input.read_until(b'\n', &mut line)?;
            // The last line may be cut.
            if line.pop() != Some(b'\n') {
                return Ok(section);
            }
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            // A call that ends has its time in this line.
            section.calls += u64::from(memchr::memmem::find(&line, b" us ").is_some());
            section.text.extend_from_slice(LATENCY.as_bytes());
            section.text.append(&mut line);
            section.text.push(b'\n');
        }
    }
}
