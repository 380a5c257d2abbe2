//! The recorded system over time: requests by device, and the invalidations that its kernel sent.

use serde::Serialize;

use super::bins::{Bins, parts};
use crate::trace::{KernelInvalidations as Queued, Op, OpKind};

/// Limit of devices that are counted separately; the others are summed.
const DEVICES: usize = 7;
/// Counts of invalidations, of each of these devices, and of the others.
type Bin = [u64; DEVICES + 2];

/// The recorded system over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecordedTimeline {
    /// Nanoseconds of an interval.
    pub interval_ns: u64,
    /// Invalidations that the kernel sent, in each.
    pub invalidations: Vec<u64>,
    /// Requests by device.
    pub devices: Vec<DeviceTimeline>,
}

/// Maps for one device over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceTimeline {
    /// Its name.
    pub device: String,
    /// Maps, coherent memory included, in each interval.
    pub requests: Vec<u64>,
}

impl RecordedTimeline {
    /// True if it was left out.
    pub(super) fn is_left_out(&self) -> bool {
        *self == Self::default()
    }

    /// Timeline with intervals of at least `least_ns`.
    #[must_use]
    pub(crate) fn in_intervals_of(&self, least_ns: u64) -> Self {
        let mut coarse = self.clone();
        while coarse.interval_ns < least_ns && coarse.interval_ns > 0 {
            let parts = parts(coarse.interval_ns);
            let merge = |numbers: &mut Vec<u64>| {
                let chunks = numbers.chunks(parts as usize);
                *numbers = chunks.map(|some| some.iter().sum()).collect();
            };
            merge(&mut coarse.invalidations);
            coarse.devices.iter_mut().for_each(|device| merge(&mut device.requests));
            coarse.interval_ns = coarse.interval_ns.saturating_mul(parts);
        }
        coarse
    }
}

/// A recorded timeline under construction.
pub(super) struct RecordedOverTime {
    bins: Bins<Bin>,
    begin_ns: Option<u64>,
    last_ns: u64,
    seen: u64,
}

fn plus(one: Bin, other: Bin) -> Bin {
    std::array::from_fn(|at| one[at].saturating_add(other[at]))
}

impl RecordedOverTime {
    pub(super) fn new() -> Self {
        Self { bins: Bins::new(plus), begin_ns: None, last_ns: 0, seen: 0 }
    }

    /// Adds the commands that the kernel has queued since the last operation, at that one's time.
    pub(super) fn queued(&mut self, queued: &Queued) {
        let all = queued.total();
        let new = all.saturating_sub(std::mem::replace(&mut self.seen, all));
        if new > 0 {
            self.bins.at(self.last_ns)[0] += new;
        }
    }

    /// Adds an operation, at `now_ns` of a time that does not step back.
    pub(super) fn note(&mut self, op: &Op<'_>, now_ns: u64) {
        let begin_ns = *self.begin_ns.get_or_insert(now_ns);
        self.last_ns = now_ns.saturating_sub(begin_ns);
        if matches!(op.kind, OpKind::Map { .. }) {
            let device = (op.device.0 as usize).min(DEVICES);
            self.bins.at(self.last_ns)[1 + device] += 1;
        }
    }

    /// Everything gathered; `devices` are the trace's names.
    pub(super) fn finish(&self, devices: &[String]) -> RecordedTimeline {
        let used = self.bins.used();
        let column = |at: usize| used.iter().map(|bin| bin[at]).collect::<Vec<_>>();
        let names = devices
            .iter()
            .take(DEVICES)
            .map(String::as_str)
            .chain((devices.len() > DEVICES).then_some("others"));
        let of = |(at, name): (usize, &str)| DeviceTimeline {
            device: name.to_owned(),
            requests: column(1 + at),
        };
        let devices = names.enumerate().map(of);
        RecordedTimeline {
            interval_ns: self.bins.width_ns(),
            invalidations: column(0),
            devices: devices
                .filter(|device| device.requests.iter().any(|count| *count > 0))
                .collect(),
        }
    }
}
