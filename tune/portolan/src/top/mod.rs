//! `portolan top`: what each device has mapped and unmapped lately, its share of the CPUs' time, and the memory that it
//! could still reach.
//!
//! The kernel's events come from an instance of its tracing as for a recording ([`crate::record`]), are paired like a
//! trace's ([`crate::trace`]), and are counted by Linux's rules ([`crate::linux`]) at the prices of a machine profile.
//! Nothing is written to a disk. Memory is bounded by the buffers that are mapped at once; events that come faster
//! than they are read are overwritten by the kernel, which counts them. Not supported: DMA that bypasses the kernel's
//! API (VFIO, a GPU's own mappings).

mod groups;
mod screen;
mod tally;
#[cfg(test)]
mod tests;
mod text;
mod ticker;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use portolan_sim::profile::Profile;
use serde::Serialize;

use crate::facts::Facts;
use crate::record::command::Signals;
use crate::record::instance::{CpuCounts, Instance};
use crate::record::latency::Measuring;
use crate::record::merge::Merge;
use crate::record::names::TaskNames;
use crate::record::restore::Restore;
use crate::record::settings::Changed;
use crate::record::sweep::Sweeper;
use crate::record::tracefs::Tracefs;
use crate::record::{self, RecordError};
use crate::replay::{of_machine, priced_as};
pub use groups::GroupPolicy;
use screen::Screen;
use tally::LiveTally;
use ticker::{Tick, Ticker, WallClock};

/// KiB of a CPU's buffer if nothing is said, and of all buffers together.
const BUFFER_KB: u32 = 1 << 10;
const BUFFERS_KB: u32 = 64 << 10;
/// Bytes of a round, of all CPUs together.
const ROUND: usize = 8 << 20;

/// Choice of devices, and the rhythm.
#[derive(Debug, Args)]
#[command(after_help = text::COLUMNS_IN_WORDS)]
pub struct TopArgs {
    /// Print one JSON object a line for each interval, with the counts of that interval.
    #[arg(long)]
    json: bool,
    /// Print all columns and devices, however small the terminal is.
    #[arg(long)]
    wide: bool,
    /// Seconds between two tables.
    #[arg(long, value_name = "S", default_value = "1", value_parser = ticker::seconds)]
    interval: f64,
    /// End after so many tables; at Ctrl-C if absent.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// First measure for so many seconds the times of the kernel's functions of DMA mapping here, for this machine's
    /// own prices.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3600))]
    latency: Option<u64>,
    /// Machine profile (see `portolan machines`), or a file with one, for the prices. The one for this machine if
    /// absent.
    #[arg(long, value_name = "NAME", conflicts_with = "latency")]
    machine: Option<String>,
    /// Show one device alone, by its name below /sys/bus (0000:00:03.0); may be repeated.
    #[arg(long = "device", value_name = "NAME")]
    devices: Vec<String>,
    /// KiB of the kernel's buffer for each CPU; 1024, and less where CPUs are many, if absent.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(64..=4_194_304))]
    buffer_kb: Option<u32>,
    /// Folder of tracefs, if it is mounted in an unusual place.
    #[arg(long, value_name = "DIR")]
    tracefs: Option<PathBuf>,
}

impl TopArgs {
    /// Name of the machine profile that was asked for.
    pub fn machine(&self) -> Option<&str> {
        self.machine.as_deref()
    }

    /// KiB of a CPU's buffer on a machine with `cpus`.
    fn buffer_kb(&self, cpus: u32) -> u32 {
        self.buffer_kb.unwrap_or_else(|| BUFFER_KB.min(BUFFERS_KB / cpus.max(1)).max(64))
    }
}

/// Counts of one interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopInterval {
    /// Seconds since the beginning, at its end.
    pub t: f64,
    /// Its length in seconds.
    pub seconds: f64,
    /// Devices that did something in it, those first that cost most.
    pub devices: Vec<DeviceRow>,
    /// Events that the kernel lost in it.
    pub lost_events: u64,
    /// Invalidations that the kernel itself says it sent for all devices; nothing where it has no such events.
    pub kernel_invalidations: Option<u64>,
    /// Unmaps of which no event names the device, and whose map came before the beginning.
    pub unmaps_without_device: u64,
    /// Source of the prices, as a sentence.
    pub prices: String,
}

/// Work of a device in an interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DeviceRow {
    /// Its name in events.
    pub device: String,
    /// Its driver.
    pub driver: Option<String>,
    /// Maps, coherent ones included.
    pub maps: u64,
    /// Unmaps, coherent ones included.
    pub unmaps: u64,
    /// Invalidations by Linux's rules; nothing where these are not known for its IOMMU.
    pub invalidations: Option<u64>,
    /// Microseconds of CPU time for all of it; nothing where a price is missing.
    pub cpu_us: Option<f64>,
    /// Most bytes at once that were unmapped and that the device could still reach; nothing where no IOMMU keeps it
    /// from any memory, or the rules are not known.
    pub exposed_bytes: Option<u64>,
    /// Policy of its group.
    pub policy: GroupPolicy,
    /// The group's type in sysfs.
    pub group_type: Option<String>,
}

/// Prices, and their source as a sentence.
struct Prices {
    profile: Profile,
    source: String,
}

impl Prices {
    /// Those of `named`, or else of the machine that `facts` are about.
    fn of(named: Option<&Profile>, facts: &Facts, latencies: &[u8]) -> Result<Self> {
        if let Some(profile) = named {
            let source = priced_as(None, profile.name());
            return Ok(Self { profile: profile.clone(), source });
        }
        let (profile, choice, warning) = of_machine(facts, latencies)?;
        if let Some(warning) = warning {
            portolan_cli::warn("portolan", &warning);
        }
        Ok(Self { source: priced_as(Some(&choice), profile.name()), profile })
    }
}

/// Shows what devices do, until it is told to end; at the prices of `profile`, or those for this machine.
///
/// # Errors
/// [`RecordError`], or standard output that cannot be written. The kernel's tracing is left as it was.
pub fn run(args: &TopArgs, profile: Option<&Profile>) -> Result<()> {
    let root = Path::new("/");
    let tracefs = Tracefs::find(root, args.tracefs.as_deref())?;
    let signals = Signals::take()?;
    let mut clock = WallClock::new(&signals, args.interval, args.count);
    let mut screen = Screen::new(args.json, args.wide);
    let watch = Watch { args, profile, tracefs: &tracefs, root };
    watch.run(&mut clock, |interval| screen.show(interval))
}

/// A watch over a machine.
struct Watch<'a> {
    args: &'a TopArgs,
    profile: Option<&'a Profile>,
    tracefs: &'a Tracefs,
    /// The machine's root folder.
    root: &'a Path,
}

impl Watch<'_> {
    /// Shows each interval of `ticker` by `show`, until either ends it.
    fn run(
        &self,
        ticker: &mut impl Ticker,
        mut show: impl FnMut(&TopInterval) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let Self { args, profile, tracefs, root } = *self;
        // All that can be wrong with the request, before anything is changed.
        let events = record::selected(&args.devices, tracefs, root)?;
        let layout = tracefs.layout()?;
        let facts = Facts::read(root);
        let mut prices = Prices::of(profile, &facts, &[])?;

        let (instance, _) = Instance::make(tracefs)?;
        let changed = Changed::default();
        let _restore = Restore::on_panic(instance.path(), &changed);
        if let Some(seconds) = args.latency {
            let measuring = Measuring::begin(tracefs, &instance, facts.cpus, &changed)?;
            ticker.rest(seconds);
            prices = Prices::of(profile, &facts, &measuring.end()?.lines())?;
        }
        let says_invalidations = events.has("intel_iommu");
        let merge = Merge::new(layout, &events, TaskNames::of(tracefs));
        let tally = LiveTally::new(root, &facts, prices.profile)?;
        instance.start(&events, args.buffer_kb(facts.cpus))?;
        let sweeper = Sweeper::new(&instance, layout, ROUND)?;
        let mut counting = Counting { sweeper, merge, tally };
        let mut told = ToldSoFar { instance: &instance, lost: 0, until: 0.0, says_invalidations };
        ticker.begin();
        loop {
            let tick = ticker.next();
            if tick == Tick::Over {
                break;
            }
            counting.round()?;
            if tick == Tick::Interval {
                let interval = told.interval(&mut counting.tally, ticker.seconds(), &prices.source);
                if show(&interval)?.is_break() {
                    drop(counting);
                    return Ok(instance.finish()?);
                }
            }
        }
        let seconds = ticker.seconds();
        instance.stop()?;
        let mut tally = counting.end()?;
        let last = told.interval(&mut tally, seconds, &prices.source);
        instance.finish()?;
        show(&last).map(drop)
    }
}

/// Events on their way from the kernel's buffers to counts.
struct Counting<'i> {
    sweeper: Sweeper<'i>,
    merge: Merge,
    tally: LiveTally,
}

impl Counting<'_> {
    /// Counts what the buffers have; returns `true` if they may have more.
    fn round(&mut self) -> Result<bool, RecordError> {
        let Self { sweeper, merge, tally } = self;
        sweeper.round(|parcels| {
            merge.feed(parcels, |text| {
                tally.take(text);
                Ok(())
            })
        })
    }

    /// Counts what the buffers of a stopped instance have left.
    fn end(mut self) -> Result<LiveTally, RecordError> {
        while self.round()? {}
        let Self { mut merge, mut tally, .. } = self;
        merge.end(|text| {
            tally.take(text);
            Ok(())
        })?;
        tally.finish();
        Ok(tally)
    }
}

/// Parts of intervals that were told.
struct ToldSoFar<'i> {
    instance: &'i Instance<'i>,
    /// Events lost by then.
    lost: u64,
    /// Seconds of the beginning until then.
    until: f64,
    says_invalidations: bool,
}

impl ToldSoFar<'_> {
    /// Ends an interval at `t`.
    fn interval(&mut self, tally: &mut LiveTally, t: f64, prices: &str) -> TopInterval {
        let lost = CpuCounts::lost_of_all(&self.instance.counts());
        let lost_events = lost.saturating_sub(std::mem::replace(&mut self.lost, lost));
        let seconds = t - std::mem::replace(&mut self.until, t);
        let counts = tally.interval(lost_events);
        TopInterval {
            t,
            seconds,
            devices: counts.devices,
            lost_events,
            kernel_invalidations: Some(counts.sent).filter(|_| self.says_invalidations),
            unmaps_without_device: counts.unmaps_without_device,
            prices: prices.to_owned(),
        }
    }
}
