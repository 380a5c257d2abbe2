//! What one policy did over virtual time, in bounded memory: some hundred intervals of one length, which doubles
//! as time goes on.
//!
//! Sums of intervals are the totals of the policy's report, the largest of their maxima the report's maxima. An
//! operation's invalidations and misses count where it ends.

use portolan::addr::IovaRange;
use portolan_model::counters::Counters;

use super::chunk::WINDOW_LG2;
use crate::counts::Invalidations;

/// Intervals at most; at least half of them are in use once time has gone on for so many of the shortest.
const BINS: usize = 256;
/// The shortest interval: 2^10 ns.
const SHORTEST_LG2: u32 = 10;
/// Addresses are told apart by 64 KiB.
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

    /// This one, and then `next`.
    fn then(self, next: Self) -> Self {
        Self {
            most: self.most.max(next.most),
            last: next.last.or(self.last),
        }
    }
}

/// What happened in one interval.
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
    /// The longest that something was reachable whose invalidation ended here, in microseconds.
    pub reachable_us: f64,
    /// Most bytes mapped at once, in whole pages.
    pub mapped_bytes: u64,
    /// From the lowest to the highest address in use: mapped, or waiting for its invalidation. At most, in bytes, to
    /// 64 KiB.
    pub span_bytes: u64,
}

impl Interval {
    /// This one, and then `next`.
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

/// What one policy did over virtual time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Nanoseconds of an interval.
    pub interval_ns: u64,
    /// From the start of the replay to its end.
    pub intervals: Vec<Interval>,
}

impl Timeline {
    /// The same in `most` intervals or fewer, each as long as the others.
    #[must_use]
    pub fn in_at_most(&self, most: usize) -> Self {
        let mut coarse = self.clone();
        while coarse.intervals.len() > most.max(1) {
            let pairs = coarse.intervals.chunks(2);
            let merged = pairs.map(|pair| pair.iter().copied().reduce(Interval::then));
            coarse.intervals = merged.flatten().collect();
            coarse.interval_ns = coarse.interval_ns.saturating_mul(2);
        }
        coarse
    }
}

/// Where a mapping begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends([u16; 2]);

impl Ends {
    /// Those of a range in the window.
    pub(super) fn of(range: IovaRange) -> Self {
        let region = |at: u64| u16::try_from(at >> REGION_LG2).unwrap_or(u16::MAX);
        Self([range.start(), range.last()].map(|at| region(at.get())))
    }
}

/// Addresses in use.
struct InUse {
    /// By region, how many ranges begin or end there.
    ends: Box<[u32]>,
    /// The lowest and the highest region with such, if there is one.
    outer: Option<[usize; 2]>,
}

impl InUse {
    fn new() -> Self {
        Self {
            ends: vec![0; REGIONS].into(),
            outer: None,
        }
    }

    fn add(&mut self, Ends(ends): Ends) {
        let [first, last] = ends.map(usize::from);
        for region in [first, last] {
            self.ends[region] += 1;
        }
        let [low, high] = self.outer.unwrap_or([first, last]);
        self.outer = Some([low.min(first), high.max(last)]);
    }

    fn remove(&mut self, Ends(ends): Ends) {
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
        self.outer = first
            .zip(last)
            .map(|(first, last)| [low + first, low + last]);
    }

    fn span(&self) -> u64 {
        self.outer
            .map_or(0, |[low, high]| ((high - low + 1) as u64) << REGION_LG2)
    }
}

/// A timeline that goes on.
pub(super) struct Recorder {
    bins: Vec<Bin>,
    width_lg2: u32,
    /// What the model had counted when it was last looked at.
    seen: Seen,
    mapped: u64,
    in_use: InUse,
}

/// What a model has counted so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    done: Invalidations,
    syncs: u64,
    misses: u64,
}

impl Seen {
    pub(super) fn of(counters: &Counters) -> Self {
        Self {
            done: Invalidations::of(counters),
            syncs: counters.syncs,
            misses: counters.iotlb_misses,
        }
    }
}

impl Recorder {
    pub(super) fn new() -> Self {
        Self {
            bins: Vec::with_capacity(BINS),
            width_lg2: SHORTEST_LG2,
            seen: Seen::default(),
            mapped: 0,
            in_use: InUse::new(),
        }
    }

    fn bin(&mut self, at_ns: f64) -> Option<&mut Bin> {
        // What is less than nothing becomes nothing, what is more than fits the most that fits.
        let at_ns = at_ns as u64;
        while (at_ns >> self.width_lg2) as usize >= BINS {
            let pairs = self.bins.chunks(2);
            let merged = pairs.map(|pair| pair.iter().copied().reduce(Bin::then));
            self.bins = merged.flatten().collect();
            self.width_lg2 += 1;
        }
        let index = (at_ns >> self.width_lg2) as usize;
        if self.bins.len() <= index {
            self.bins.resize(index + 1, Bin::default());
        }
        self.bins.get_mut(index)
    }

    /// The model has counted `so_far`.
    pub(super) fn count(&mut self, at_ns: f64, so_far: Seen) {
        let seen = std::mem::replace(&mut self.seen, so_far);
        if let Some(bin) = self.bin(at_ns) {
            bin.done = bin.done.plus(so_far.done.since(seen.done));
            bin.syncs += so_far.syncs - seen.syncs;
            bin.misses += so_far.misses - seen.misses;
        }
    }

    /// So many bytes are reachable that are not mapped.
    pub(super) fn reachable(&mut self, at_ns: f64, bytes: u64) {
        if let Some(bin) = self.bin(at_ns) {
            bin.reachable.set(bytes);
        }
    }

    /// Something was reachable for so long.
    pub(super) fn closed(&mut self, at_ns: f64, for_ns: f64) {
        if let Some(bin) = self.bin(at_ns) {
            bin.longest_ns = bin.longest_ns.max(for_ns);
        }
    }

    /// So many bytes were mapped, at `ends` unless they were copied.
    pub(super) fn map(&mut self, at_ns: f64, bytes: u64, ends: Option<Ends>) {
        self.mapped += bytes;
        if let Some(ends) = ends {
            self.in_use.add(ends);
        }
        self.occupy(at_ns);
    }

    /// So many bytes are mapped no more. Their addresses are given back separately.
    pub(super) fn unmap(&mut self, at_ns: f64, bytes: u64) {
        self.mapped -= bytes;
        self.occupy(at_ns);
    }

    /// Addresses may be used for something else.
    pub(super) fn give_back(&mut self, at_ns: f64, ends: impl IntoIterator<Item = Ends>) {
        for ends in ends {
            self.in_use.remove(ends);
        }
        self.occupy(at_ns);
    }

    fn occupy(&mut self, at_ns: f64) {
        let (mapped, span) = (self.mapped, self.in_use.span());
        if let Some(bin) = self.bin(at_ns) {
            bin.mapped.set(mapped);
            bin.span.set(span);
        }
    }

    /// The timeline so far. `so_far` is what the model has counted by then.
    pub(super) fn finish(&mut self, so_far: Seen) -> Timeline {
        let end = self.bins.len().saturating_sub(1) as u64;
        self.count((end << self.width_lg2) as f64, so_far);
        let mut held = Bin::default();
        let intervals = self.bins.iter().map(|bin| {
            // What was so before is so at the beginning.
            let before = |level: Level| Level {
                most: level.last.unwrap_or(0),
                ..level
            };
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
        Timeline {
            intervals: intervals.collect(),
            interval_ns: 1 << self.width_lg2,
        }
    }
}
