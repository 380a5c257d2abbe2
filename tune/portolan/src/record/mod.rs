//! `portolan record`: a trace of a Linux machine's DMA, with the machine's facts at its head.
//!
//! An instance of the kernel's tracing records the events that a replay reads, while a command runs or until a
//! signal; its lines go into a gzip file as they come. Everything is given back: when it ends, on SIGINT, SIGTERM
//! and SIGHUP, on errors and on panics. After a `kill -9` the instance stays behind without a lock, and the next
//! recording removes it. `docs/record.md` has its costs and its limits.

pub(crate) mod command;
pub(crate) mod environment;
mod error;
pub(crate) mod events;
pub(crate) mod instance;
pub(crate) mod latency;
pub(crate) mod merge;
pub(crate) mod names;
mod output;
pub(crate) mod restore;
pub(crate) mod settings;
mod spool;
pub(crate) mod sweep;
#[cfg(test)]
pub(crate) mod tests;
mod text;
pub(crate) mod tracefs;

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use portolan_cli::display::{bytes, grouped};
use portolan_cli::progress::Progress;
use portolan_cli::{Outcome, Output};
use serde::{Deserialize, Serialize};

use crate::facts::{END, Facts};
use crate::trace::binary::ring::PageLayout;
use command::{AwaitedWork, CommandOutput, Signals};
pub use environment::Refusal;
pub use error::RecordError;
pub use events::{EventSelection, Tells, WANTED};
pub use instance::CpuCounts;
use instance::Instance;
pub use latency::FUNCTIONS;
use latency::Measuring;
use merge::{Merge, Written};
use names::TaskNames;
pub use output::Existing;
use output::RecordingOutput;
use restore::Restore;
use settings::Changed;
use spool::Spool;
use sweep::Sweeper;
pub use text::text;
use tracefs::Tracefs;

/// KiB of a CPU's buffer if nothing is said, and of all buffers together.
const BUFFER_KB: u32 = 8 << 10;
const BUFFERS_KB: u32 = 512 << 10;
/// Bytes of a round, of all CPUs together.
const ROUND: usize = 64 << 20;
/// Time between two reports of the bytes that wait to be written.
const PAUSE: Duration = Duration::from_millis(20);

/// Choice of events, and destination.
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// Record for so long; until the command ends, or Ctrl-C, if absent.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// First measure for so long the times of the kernel's functions of DMA mapping here, so that a replay has this
    /// machine's own prices.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3600))]
    latency: Option<u64>,
    /// Record one device alone, by its name below /sys/bus (0000:00:03.0); may be repeated.
    #[arg(long = "device", value_name = "NAME")]
    devices: Vec<String>,
    /// File to write, gzip; - is standard output.
    #[arg(short, long, value_name = "FILE", default_value = "portolan-trace.gz")]
    output: PathBuf,
    /// Replace FILE if it is there.
    #[arg(long)]
    force: bool,
    /// KiB of the kernel's buffer for each CPU; 8192, and less where CPUs are many, if absent.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(64..=4_194_304))]
    buffer_kb: Option<u32>,
    /// Folder of tracefs, if it is mounted in an unusual place.
    #[arg(long, value_name = "DIR")]
    tracefs: Option<PathBuf>,
    /// Form of the report.
    #[command(flatten)]
    pub form: Output,
    /// Run this, and record until it ends.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl RecordArgs {
    /// KiB of a CPU's buffer on a machine with `cpus`.
    fn buffer_kb(&self, cpus: u32) -> u32 {
        let most = BUFFERS_KB / cpus.max(1);
        self.buffer_kb.unwrap_or_else(|| BUFFER_KB.min(most).max(64))
    }

    /// Tells if the trace goes to standard output.
    pub fn is_to_output(&self) -> bool {
        self.output == Path::new("-")
    }
}

/// Report of a recording.
#[derive(Clone, Debug, Serialize)]
pub struct RecordReport {
    /// The file, or `-`.
    pub output: String,
    /// True if the file was kept. It is removed if nothing in it can be used.
    pub kept: bool,
    /// Number of events that the kernel reported as read.
    pub events: u64,
    /// Events that map something.
    pub maps: u64,
    /// Runs of the kernel's timers.
    pub timers: u64,
    /// Events that the kernel lost.
    pub lost_events: u64,
    /// Bytes of the trace before it was compressed.
    pub bytes: u64,
    /// Seconds from the first event's time at the earliest to the last one's at the latest.
    pub seconds: f64,
    /// The kernel's counts of each CPU that has any.
    pub per_cpu: Vec<CpuCounts>,
    /// Calls of the kernel's functions that were measured, if that was asked for.
    pub latencies: Option<u64>,
    /// Events of that tracer, beginnings and ends of calls among them, that newer ones overwrote.
    pub latencies_overwritten: u64,
    /// Events that were asked of the kernel.
    pub kernel_events: EventSelection,
    /// End of the command, if it ended by itself: its status, in words.
    pub command: Option<String>,
    /// Instances of killed recorders that were removed.
    pub removed_instances: usize,
    /// The machine.
    pub facts: Facts,
    #[serde(skip)]
    outcome: Outcome,
}

impl RecordReport {
    /// Tells if something was recorded and the command ended well.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }
}

/// The last line of a recording, without which its recorder was killed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ending {
    /// Lines of events.
    pub events: u64,
    /// CPU by CPU.
    pub per_cpu: Vec<CpuCounts>,
}

/// Records.
///
/// # Errors
/// [`RecordError`], which says the cause and the way out.
pub fn run(args: &RecordArgs) -> Result<RecordReport, RecordError> {
    let root = Path::new("/");
    let tracefs = Tracefs::find(root, args.tracefs.as_deref())?;
    record(args, &tracefs, root)
}

/// Tells if a bus has a device of this name.
fn is_device(root: &Path, name: &str) -> bool {
    let buses = std::fs::read_dir(root.join("sys/bus")).into_iter().flatten().flatten();
    let plain = !name.contains(['/', '"', '\n']);
    plain && buses.into_iter().any(|bus| bus.path().join("devices").join(name).exists())
}

/// Events of the `devices` of the machine whose root folder is `root`, or of all.
pub(crate) fn selected(
    devices: &[String],
    tracefs: &Tracefs,
    root: &Path,
) -> Result<EventSelection, RecordError> {
    if let Some(device) = devices.iter().find(|device| !is_device(root, device)) {
        return Err(RecordError::UnknownDevice(device.clone()));
    }
    EventSelection::choose(&tracefs.root, devices, &tracefs.environment)
}

fn record(args: &RecordArgs, tracefs: &Tracefs, root: &Path) -> Result<RecordReport, RecordError> {
    // All that can be wrong with the request, before anything is changed.
    let events = selected(&args.devices, tracefs, root)?;
    let layout = tracefs.layout()?;
    let merge = Merge::new(layout, &events, TaskNames::of(tracefs));
    let existing = if args.force { Existing::Replace } else { Existing::Keep };
    let facts = Facts::read(root);
    let mut output = RecordingOutput::open(&args.output, existing)?;
    let head = facts.line().map_err(std::io::Error::from)?;
    output.write(head.as_bytes())?;
    let signals = Signals::take()?;

    let (instance, removed_instances) = Instance::make(tracefs)?;
    let changed = Changed::default();
    let restore = Restore::on_panic(instance.path(), &changed);
    let measuring = match args.latency {
        Some(_) => Some(Measuring::begin(tracefs, &instance, facts.cpus, &changed)?),
        None => None,
    };
    let task = RecordingSession {
        args,
        events: &events,
        buffer_kb: args.buffer_kb(facts.cpus),
        layout,
        merge,
        signals: &signals,
    };
    let recorded = task.run(instance, measuring, &mut output)?;
    drop(restore);

    let kept = recorded.finish(output)?;
    let RecordingResult { written, per_cpu, status, seconds, latencies, latencies_overwritten } =
        recorded;
    let well = kept && status.is_none_or(|status| status.success());
    Ok(RecordReport {
        output: args.output.display().to_string(),
        kept,
        events: written.events,
        maps: written.maps,
        timers: written.timers,
        lost_events: CpuCounts::lost_of_all(&per_cpu),
        bytes: written.bytes,
        seconds,
        latencies,
        latencies_overwritten,
        per_cpu: per_cpu.into_iter().filter(|counts| counts.read + counts.lost() > 0).collect(),
        kernel_events: events,
        command: status.map(|status| status.to_string()),
        removed_instances,
        facts,
        outcome: Outcome::of(well),
    })
}

/// A recording under way.
struct RecordingSession<'a> {
    args: &'a RecordArgs,
    events: &'a EventSelection,
    buffer_kb: u32,
    layout: PageLayout,
    merge: Merge,
    signals: &'a Signals,
}

/// Result of a recording.
struct RecordingResult {
    written: Written,
    per_cpu: Vec<CpuCounts>,
    status: Option<ExitStatus>,
    seconds: f64,
    latencies: Option<u64>,
    latencies_overwritten: u64,
}

impl RecordingResult {
    /// Tells if something of it can be used.
    fn is_kept(&self) -> bool {
        self.written.maps > 0 || self.latencies.is_some_and(|calls| calls > 0)
    }

    /// Ends the file, if something of it can be used; returns `true` if so.
    fn finish(&self, mut output: RecordingOutput) -> Result<bool, RecordError> {
        if !self.is_kept() {
            return Ok(false);
        }
        let ending = Ending { events: self.written.events, per_cpu: self.per_cpu.clone() };
        let line = serde_json::to_string(&ending).map_err(std::io::Error::from)?;
        output.write(format!("{END}{line}\n").as_bytes())?;
        output.finish()?;
        Ok(true)
    }
}

impl RecordingSession<'_> {
    /// Measures, if that is asked for, and records until the work is over; the instance is given back.
    fn run(
        self,
        instance: Instance<'_>,
        measuring: Option<Measuring<'_>>,
        output: &mut RecordingOutput,
    ) -> Result<RecordingResult, RecordError> {
        let args = self.args;
        let spool = Spool::beside(&args.output)?;
        let to = if args.is_to_output() { CommandOutput::ToErrors } else { CommandOutput::Ours };
        // Events come from the first moment on; where latencies are measured, after them.
        if measuring.is_none() {
            instance.start(self.events, self.buffer_kb)?;
        }
        let mut work = AwaitedWork::start(&args.command, to)?;
        let (mut latencies, mut latencies_overwritten) = (None, 0);
        if let Some(measuring) = measuring {
            work.end_after(args.latency);
            while !work.is_over(self.signals)? {}
            let section = measuring.end()?;
            output.write(&section.text)?;
            latencies = Some(section.calls);
            latencies_overwritten = section.overwritten;
            instance.start(self.events, self.buffer_kb)?;
        }
        work.end_after(args.seconds);
        let recorded = self.record(instance, work, &spool, output)?;
        Ok(RecordingResult { latencies, latencies_overwritten, ..recorded })
    }

    /// Records until `work` is over, while another thread writes to `output`.
    fn record(
        self,
        instance: Instance<'_>,
        mut work: AwaitedWork,
        spool: &Spool,
        output: &mut RecordingOutput,
    ) -> Result<RecordingResult, RecordError> {
        let (merge, layout, signals) = (self.merge, self.layout, self.signals);
        let seen = AtomicU64::new(0);
        let began = Instant::now();
        std::thread::scope(|scope| {
            let parcels = BufReader::with_capacity(1 << 20, spool);
            let writer = scope.spawn(|| merge.run(parcels, output, &seen));
            // However this ends, the writer does not wait for ever.
            let ends = EndOnDrop(spool);
            let mut sweeper = Sweeper::new(&instance, layout, ROUND)?;
            let put = |parcels: &[u8]| spool.put(parcels);
            let progress = Progress::unbounded();
            while !work.is_over(signals)? && !writer.is_finished() {
                sweeper.round(put)?;
                say(&progress, &seen, spool);
            }
            instance.stop()?;
            let seconds = began.elapsed().as_secs_f64();
            while sweeper.round(put)? {}
            let per_cpu = instance.counts();
            let status = work.end()?;
            instance.finish()?;
            drop(ends);
            while !writer.is_finished() {
                say(&progress, &seen, spool);
                std::thread::sleep(PAUSE);
            }
            let written = writer.join().map_err(|_| RecordError::Writer)??;
            Ok(RecordingResult {
                written,
                per_cpu,
                status,
                seconds,
                latencies: None,
                latencies_overwritten: 0,
            })
        })
    }
}

/// Ends the queue when dropped.
struct EndOnDrop<'s>(&'s Spool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Prints the progress of the recording.
fn say(progress: &Progress, seen: &AtomicU64, spool: &Spool) {
    let events = seen.load(Ordering::Relaxed);
    progress.say(|pace| {
        format!(
            "{} events, {}; {} wait to be written; Ctrl-C ends it",
            grouped(events),
            pace.rate(events),
            bytes(spool.waiting()),
        )
    });
}
