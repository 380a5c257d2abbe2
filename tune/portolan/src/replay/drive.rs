//! A pass over a trace: while all policies carry out some of its operations, the next are read.

use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Result, bail};
use portolan::addr::PageSize;
use portolan_cli::display;
use portolan_cli::progress::{Pace, Progress};

use super::chunk::Chunk;
use super::lane::Lane;
use super::recorded::{RecordedOverTime, RecordedTimeline};
use super::settings::LinuxCounters;
use super::shape::{Observer, TraceShape};
use crate::linux::Counter;
use crate::trace::{At, Reader};

/// Number of line numbers kept of rejected maps.
const KEPT_LINES: usize = 20;

/// Maps that no policy carried out.
#[derive(Default)]
pub(super) struct Rejected {
    pub(super) maps: u64,
    pub(super) first_lines: Vec<u64>,
}

impl Rejected {
    fn note(&mut self, line: u64) {
        self.maps += 1;
        if self.first_lines.len() < KEPT_LINES {
            self.first_lines.push(line);
        }
    }
}

/// Results of a pass over a trace, except those of the lanes.
pub(super) struct Driven {
    pub(super) rejected: Rejected,
    pub(super) shape: TraceShape,
    pub(super) recorded: RecordedTimeline,
    pub(super) linux: LinuxCounting,
}

/// Counters of Linux's rules: for the kernel that was asked for, and for advice.
pub(super) struct LinuxCounting {
    pub(super) asked: Option<Counter>,
    pub(super) all: Option<LinuxCounters>,
}

/// The reader of a trace, and all that looks at each operation once.
struct Feed<'r> {
    reader: &'r mut Reader,
    granule: PageSize,
    observer: Observer,
    recorded: RecordedOverTime,
    linux: LinuxCounting,
    operations: u64,
    /// Time stamps of different CPUs may step back; policies see time that does not.
    now_ns: u64,
}

impl Feed<'_> {
    /// Reads operations until `chunk` is full; false if the trace has no more.
    fn fill(&mut self, chunk: &mut Chunk) -> bool {
        while !chunk.is_full() {
            self.recorded.queued(&self.reader.summary().recorded);
            let Some(op) = self.reader.next_op() else {
                return false;
            };
            self.now_ns = self.now_ns.max(op.time_ns);
            let at = At {
                now_ns: self.now_ns,
                cpu: op.cpu,
                running: op.running,
                timers_late: op.timers_late,
            };
            self.observer.note(&op, self.now_ns);
            self.recorded.note(&op, self.now_ns);
            let padded = chunk.push(&op, at, self.granule);
            if let Some(linux) = &mut self.linux.asked {
                linux.note(&op, at, padded);
            }
            if let Some(linux) = &mut self.linux.all {
                linux.note(&op, at, padded);
            }
            self.operations += 1;
        }
        true
    }
}

/// Feeds all operations to all lanes; returns the maps that no lane took, and the contents of the trace.
pub(super) fn drive(
    reader: &mut Reader,
    granule: PageSize,
    cpus: usize,
    lanes: &mut [Lane],
    linux: LinuxCounting,
    progress: Option<&Progress>,
) -> Result<Driven> {
    let mut feed = Feed {
        reader,
        granule,
        observer: Observer::default(),
        recorded: RecordedOverTime::new(),
        linux,
        operations: 0,
        now_ns: 0,
    };
    let mut rejected = Rejected::default();
    let mut ready = Chunk::new(cpus);
    let mut has_more = feed.fill(&mut ready);
    let mut next = ready.successor();
    loop {
        let after = run_all(lanes, &ready, || has_more && feed.fill(&mut next))?;
        ready.rejected().for_each(|line| rejected.note(line));
        if !has_more {
            break;
        }
        ready.clear();
        std::mem::swap(&mut ready, &mut next);
        has_more = after;
        if let Some(progress) = progress {
            progress.say(|pace| so_far(feed.operations, feed.reader, pace));
        }
    }
    let summary = feed.reader.summary();
    feed.recorded.queued(&summary.recorded);
    Ok(Driven {
        rejected,
        shape: feed.observer.finish(&summary.devices),
        recorded: feed.recorded.finish(&summary.devices),
        linux: feed.linux,
    })
}

/// Does something else `first`, and has all lanes carry out `chunk`: by other threads from the beginning, where the
/// process has the cores, and by this one afterwards.
fn run_all<T>(lanes: &mut [Lane], chunk: &Chunk, first: impl FnOnce() -> T) -> Result<T> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let others = lanes.len().min(cores - 1);
    let waiting = Mutex::new(lanes.iter_mut());
    let next = || {
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.next()
    };
    let run = || std::iter::from_fn(next).try_for_each(|lane| lane.run(chunk));
    thread::scope(|scope| {
        let threads: Vec<_> = (0..others).map(|_| scope.spawn(run)).collect();
        let done = first();
        run()?;
        for thread in threads {
            match thread.join() {
                Ok(ended) => ended?,
                Err(_) => bail!("a policy's thread ended early"),
            }
        }
        Ok(done)
    })
}

fn so_far(operations: u64, reader: &Reader, pace: Pace) -> String {
    let (done, rate) = (display::grouped(operations), pace.rate(operations));
    match reader.bytes_done() {
        Some((read, size)) => format!(
            "{done} operations, {} of {}, {rate}{}",
            display::bytes(read),
            display::bytes(size),
            pace.left(read, size)
        ),
        None => format!("{done} operations, {} read, {rate}", display::bytes(reader.bytes_read())),
    }
}
