//! Timeline of one policy in virtual time, in bounded memory: some hundred intervals of equal length, which grows
//! with the time.
//!
//! Sums of intervals are the totals of the policy's report, the largest of their maxima the report's maxima.
//! Invalidations, syncs and misses count where the operation began that brought them about; where CPUs meet on the
//! border of two intervals, in either.

use portolan::addr::IovaRange;
use portolan_sim::counters::Counters;
use serde::ser::{Serialize, SerializeStruct, Serializer};

use super::bins::{Bins, parts};
use super::chunk::WINDOW_LG2;
use crate::counts::Invalidations;

/// Size of a region, by which addresses are distinguished: 64 KiB.
const REGION_LG2: u32 = 16;
const REGIONS: usize = 1 << (WINDOW_LG2 - REGION_LG2);

/// A number that holds until it changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Level {
    most: u64,
    /// The last one in the interval; none if it did not change there.
    last: Option<u64>,
}

impl Level {
    fn set(&mut self, now: u64) {
        self.most = self.most.max(now);
        self.last = Some(now);
    }

    /// Combines this interval with the following `next`.
    fn then(self, next: Self) -> Self {
        Self { most: self.most.max(next.most), last: next.last.or(self.last) }
    }
}

/// Counts of one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Bin {
    done: Invalidations,
    syncs: u64,
    misses: u64,
    longest_ns: f64,
    reachable: Level,
    mapped: Level,
    span: Level,
}

impl Bin {
    fn then(self, next: Self) -> Self {
        Self {
            done: self.done.plus(next.done),
            syncs: self.syncs + next.syncs,
            misses: self.misses + next.misses,
            longest_ns: self.longest_ns.max(next.longest_ns),
            reachable: self.reachable.then(next.reachable),
            mapped: self.mapped.then(next.mapped),
            span: self.span.then(next.span),
        }
    }
}

/// An interval, for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    /// Invalidation commands.
    pub invalidations: Invalidations,
    /// Waits for completion.
    pub syncs: u64,
    /// Accesses that the IOTLB did not hold.
    pub iotlb_misses: u64,
    /// Most bytes at once that were unmapped and that a device could still reach.
    pub reachable_bytes: u64,
    /// The longest time that something was reachable whose invalidation ended here, in microseconds.
    pub reachable_us: f64,
    /// Most bytes mapped at once, in whole pages.
    pub mapped_bytes: u64,
    /// Largest distance between the lowest and the highest address in use (mapped, or waiting for an invalidation),
    /// rounded to 64 KiB.
    pub span_bytes: u64,
}

impl Interval {
    /// Combines this interval with the following `next`.
    fn then(self, next: Self) -> Self {
        Self {
            invalidations: self.invalidations.plus(next.invalidations),
            syncs: self.syncs + next.syncs,
            iotlb_misses: self.iotlb_misses + next.iotlb_misses,
            reachable_bytes: self.reachable_bytes.max(next.reachable_bytes),
            reachable_us: self.reachable_us.max(next.reachable_us),
            mapped_bytes: self.mapped_bytes.max(next.mapped_bytes),
            span_bytes: self.span_bytes.max(next.span_bytes),
        }
    }
}

/// Events of one policy over virtual time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Nanoseconds of an interval.
    pub interval_ns: u64,
    /// Intervals from the start of the replay to its end.
    pub intervals: Vec<Interval>,
}

impl Timeline {
    /// Timeline with round intervals of at least `least_ns`.
    #[must_use]
    pub fn in_intervals_of(&self, least_ns: u64) -> Self {
        let mut coarse = self.clone();
        while coarse.interval_ns < least_ns {
            let parts = parts(coarse.interval_ns);
            let chunks = coarse.intervals.chunks(parts as usize);
            let merged = chunks.map(|some| some.iter().copied().reduce(Interval::then));
            coarse.intervals = merged.flatten().collect();
            coarse.interval_ns = coarse.interval_ns.saturating_mul(parts).max(1);
        }
        coarse
    }
}

impl Timeline {
    /// Tells if the timeline was left out. Otherwise intervals have a length, even if there are none.
    pub(super) fn is_left_out(&self) -> bool {
        *self == Self::default()
    }
}

/// A number of each interval.
struct Column<'t, T>(&'t [Interval], fn(&Interval) -> T);

impl<T: Serialize> Serialize for Column<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(self.1))
    }
}

/// Serializes a list for each kind of number, because names in each interval would be most of the text.
impl Serialize for Timeline {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let all = self.intervals.as_slice();
        let mut out = serializer.serialize_struct("Timeline", 11)?;
        out.serialize_field("interval_ns", &self.interval_ns)?;
        out.serialize_field("page", &Column(all, |one| one.invalidations.page))?;
        out.serialize_field("range", &Column(all, |one| one.invalidations.range))?;
        out.serialize_field("context", &Column(all, |one| one.invalidations.context))?;
        out.serialize_field("global", &Column(all, |one| one.invalidations.global))?;
        out.serialize_field("syncs", &Column(all, |one| one.syncs))?;
        out.serialize_field("iotlb_misses", &Column(all, |one| one.iotlb_misses))?;
        out.serialize_field("reachable_bytes", &Column(all, |one| one.reachable_bytes))?;
        out.serialize_field("reachable_us", &Column(all, |one| one.reachable_us))?;
        out.serialize_field("mapped_bytes", &Column(all, |one| one.mapped_bytes))?;
        out.serialize_field("span_bytes", &Column(all, |one| one.span_bytes))?;
        out.end()
    }
}

/// Regions of a mapping's first and last address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EndRegions([u16; 2]);

impl EndRegions {
    /// Regions of a range in the window.
    pub(super) fn of(range: IovaRange) -> Self {
        let region = |at: u64| u16::try_from(at >> REGION_LG2).unwrap_or(u16::MAX);
        Self([range.start(), range.last()].map(|at| region(at.get())))
    }
}

/// Addresses in use.
struct InUse {
    /// Number of ranges that begin or end in each region.
    ends: Box<[u32]>,
    /// Lowest and highest region that is in use.
    outer: Option<[usize; 2]>,
}

impl InUse {
    fn new() -> Self {
        Self { ends: vec![0; REGIONS].into(), outer: None }
    }

    fn add(&mut self, EndRegions(ends): EndRegions) {
        let [first, last] = ends.map(usize::from);
        for region in [first, last] {
            self.ends[region] += 1;
        }
        let [low, high] = self.outer.unwrap_or([first, last]);
        self.outer = Some([low.min(first), high.max(last)]);
    }

    fn remove(&mut self, EndRegions(ends): EndRegions) {
        for region in ends.map(usize::from) {
            self.ends[region] = self.ends[region].saturating_sub(1);
        }
        let Some([low, high]) = self.outer else {
            return;
        };
        if self.ends[low] > 0 && self.ends[high] > 0 {
            return;
        }
        let within = &self.ends[low..=high];
        let first = within.iter().position(|&ends| ends > 0);
        let last = within.iter().rposition(|&ends| ends > 0);
        self.outer = first.zip(last).map(|(first, last)| [low + first, low + last]);
    }

    fn span(&self) -> u64 {
        self.outer.map_or(0, |[low, high]| ((high - low + 1) as u64) << REGION_LG2)
    }
}

/// A timeline that goes on.
pub(super) struct TimelineRecorder {
    bins: Bins<Bin>,
    /// Begin of the last operation, and the model's counts at that time.
    current_ns: u64,
    seen: ModelCounts,
    mapped: u64,
    in_use: InUse,
}

/// Counts of a model so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ModelCounts {
    done: Invalidations,
    syncs: u64,
    misses: u64,
}

impl ModelCounts {
    pub(super) fn of(counters: &Counters) -> Self {
        Self {
            done: Invalidations::of(counters),
            syncs: counters.syncs,
            misses: counters.iotlb_misses,
        }
    }
}

impl TimelineRecorder {
    pub(super) fn new() -> Self {
        Self {
            bins: Bins::new(Bin::then),
            current_ns: 0,
            seen: ModelCounts::default(),
            mapped: 0,
            in_use: InUse::new(),
        }
    }

    fn bin(&mut self, at_ns: f64) -> &mut Bin {
        // Negative times become 0, times that do not fit the largest one.
        self.bins.at(at_ns as u64)
    }

    /// Begins an operation. If that is another interval, takes the model's counts from `so_far`.
    pub(super) fn begin(&mut self, at_ns: f64, so_far: impl FnOnce() -> ModelCounts) {
        let at_ns = at_ns as u64;
        if self.bins.index(at_ns) != self.bins.index(self.current_ns) {
            self.count(so_far());
            self.current_ns = at_ns;
        }
    }

    fn count(&mut self, so_far: ModelCounts) {
        let seen = std::mem::replace(&mut self.seen, so_far);
        let bin = self.bins.at(self.current_ns);
        bin.done = bin.done.plus(so_far.done.since(seen.done));
        bin.syncs += so_far.syncs - seen.syncs;
        bin.misses += so_far.misses - seen.misses;
    }

    /// Notes a map of `bytes` bytes, at `ends` unless it was copied.
    pub(super) fn map(&mut self, at_ns: f64, bytes: u64, ends: Option<EndRegions>) {
        self.mapped += bytes;
        if let Some(ends) = ends {
            self.in_use.add(ends);
        }
        let (mapped, span) = (self.mapped, self.in_use.span());
        let bin = self.bin(at_ns);
        bin.mapped.set(mapped);
        bin.span.set(span);
    }

    /// Notes an unmap of `bytes` bytes, after which `reachable` unmapped bytes are reachable.
    pub(super) fn unmap(&mut self, at_ns: f64, bytes: u64, reachable: u64) {
        self.mapped -= bytes;
        let mapped = self.mapped;
        let bin = self.bin(at_ns);
        bin.mapped.set(mapped);
        bin.reachable.set(reachable);
    }

    /// Notes that only `reachable` unmapped bytes are still reachable, and that the others were for up to `for_ns`.
    /// Their addresses may be used again.
    pub(super) fn close(
        &mut self,
        at_ns: f64,
        reachable: u64,
        for_ns: f64,
        ends: impl IntoIterator<Item = EndRegions>,
    ) {
        for ends in ends {
            self.in_use.remove(ends);
        }
        let span = self.in_use.span();
        let bin = self.bin(at_ns);
        bin.reachable.set(reachable);
        bin.longest_ns = bin.longest_ns.max(for_ns);
        bin.span.set(span);
    }

    /// The timeline so far. `so_far` has the model's counts by then.
    pub(super) fn finish(&mut self, so_far: ModelCounts) -> Timeline {
        self.count(so_far);
        let mut held = Bin::default();
        let intervals = self.bins.used().iter().map(|bin| {
            // The level before is the level at the beginning.
            let before = |level: Level| Level { most: level.last.unwrap_or(0), ..level };
            held = Bin {
                reachable: before(held.reachable).then(bin.reachable),
                mapped: before(held.mapped).then(bin.mapped),
                span: before(held.span).then(bin.span),
                ..*bin
            };
            Interval {
                invalidations: bin.done,
                syncs: bin.syncs,
                iotlb_misses: bin.misses,
                reachable_bytes: held.reachable.most,
                reachable_us: bin.longest_ns / 1000.0,
                mapped_bytes: held.mapped.most,
                span_bytes: held.span.most,
            }
        });
        Timeline { intervals: intervals.collect(), interval_ns: self.bins.width_ns() }
    }
}
