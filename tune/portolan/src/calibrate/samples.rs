//! Calls of which prices are sought, in bounded memory: those that are fitted on, and those that are held out.
//!
//! One call in five is held out, by the seed. Beyond 32,768 of a kind each further call takes the place of a random
//! one (Vitter's algorithm R), so the calls that are kept stand for all of them.

use std::collections::BTreeMap;

use super::function::Family;

/// Calls of a kind that are kept.
const MOST: usize = 1 << 15;
/// One call of this many is held out.
const HELD_OUT: u64 = 5;
/// Nanoseconds beyond which a call is no latency but a stopped machine: a second.
const LONGEST_NS: u64 = 1_000_000_000;
/// Largest plausible number of pages, commands or bytes of a call.
const MOST_UNITS: f64 = 4_294_967_296.0;
/// Limit of functions whose calls are kept; further names are not listed.
const MOST_NAMES: usize = 256;
/// The system call with which the recorder measures tracing, after its architecture's prefix.
const PROBE: &[u8] = b"sys_getppid";

/// A correction of calls, so that the rest is a price.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Calls that are far from the others are left out.
    Outliers,
    /// Time of tracing is taken off.
    Tracing,
    /// Time of tracing in a call's caller is measured, and not taken to be as much as in the call.
    Around,
    /// Calls in them that are other prices' are taken off.
    Children,
}

/// Corrections that are made: all of them, but in tests that leave one out to show its effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Care {
    pub(super) without: Option<Part>,
}

impl Care {
    pub(super) fn takes(self, part: Part) -> bool {
        self.without != Some(part)
    }
}

/// Scope of a submission's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CommandScope {
    /// Pages; also calls that are no submission.
    Pages,
    /// A context, or its configuration.
    Context,
    /// Everything.
    Global,
    /// Something else, or several of these.
    Other,
}

/// Resolution of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resolution {
    /// Exact to the nanosecond.
    Exact,
    /// Exact to a power of two.
    Bucket,
}

/// Parts of tracing: each traced call has one inside of its time, and one around it, in its caller's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hooks {
    pub(super) inside: u64,
    pub(super) around: u64,
}

impl Hooks {
    /// Time of a traced call without nested calls.
    pub(super) const OWN: Self = Self { inside: 1, around: 0 };

    /// Adds the parts of a call within, whose own time stays in this one's.
    pub(super) fn take_in(&mut self, inner: Self) {
        self.inside += inner.inside;
        self.around += inner.around + 1;
    }
}

/// Nanoseconds of tracing that are taken off.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Overhead {
    pub(super) inside_ns: f64,
    pub(super) around_ns: f64,
}

impl Overhead {
    pub(super) fn of(self, hooks: Hooks) -> f64 {
        hooks.inside as f64 * self.inside_ns + hooks.around as f64 * self.around_ns
    }
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CallSample {
    /// Nanoseconds, without the calls in it that are other prices'.
    pub(super) ns: f64,
    /// Parts of tracing in that time.
    pub(super) hooks: Hooks,
    /// Pages, commands or bytes, if known.
    pub(super) units: Option<f64>,
    pub(super) resolution: Resolution,
}

/// A random part of the values that were put in, once they are more than fit.
#[derive(Clone, Debug)]
pub(super) struct Reservoir<T> {
    kept: Vec<T>,
    seen: u64,
}

impl<T> Default for Reservoir<T> {
    fn default() -> Self {
        Self { kept: Vec::new(), seen: 0 }
    }
}

impl<T> Reservoir<T> {
    fn add(&mut self, one: T, random: &mut fastrand::Rng) {
        self.seen += 1;
        if self.kept.len() < MOST {
            self.kept.push(one);
        } else if let Some(place) = self.kept.get_mut(random.u64(..self.seen) as usize) {
            *place = one;
        }
    }

    pub(super) fn kept(&self) -> &[T] {
        &self.kept
    }

    pub(super) fn seen(&self) -> u64 {
        self.seen
    }
}

/// Calls of one family and kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Store {
    pub(super) fitted: Reservoir<CallSample>,
    pub(super) held_out: Reservoir<CallSample>,
}

/// Samples of one function.
#[derive(Clone, Debug, Default)]
pub(super) struct Function {
    pub(super) ns: Reservoir<u64>,
    /// Calls among them without a traced call in them.
    pub(super) leaves: u64,
    pub(super) total_ns: u64,
}

/// Nanoseconds of a system call that the recorder makes to measure tracing.
#[derive(Clone, Debug, Default)]
pub(super) struct Probe {
    /// Calls without a nested traced call.
    pub(super) alone: Reservoir<u64>,
    /// Calls with one nested traced call.
    pub(super) with_one: Reservoir<u64>,
}

/// Numbers of calls that are not fitted on, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LeftOut {
    /// An interrupt came in them.
    pub interrupted: u64,
    /// Lines of them are missing.
    pub incomplete: u64,
    /// Calls of no time, of more than a second, or of more units than any call has.
    pub absurd: u64,
    /// Calls that map or unmap lists of several pieces.
    pub lists: u64,
    /// Calls that unmap whole tables, allocate or free addresses without a cache, or submit other commands than
    /// invalidations of one kind.
    pub other: u64,
    /// Calls that contain others, whose time is unknown without nesting.
    pub mixed: u64,
}

/// Calls that were read, by function and scope.
#[derive(Debug)]
pub(super) struct Samples {
    pub(super) stores: BTreeMap<(Family, CommandScope), Store>,
    pub(super) functions: BTreeMap<String, Function>,
    pub(super) probe: Probe,
    pub(super) left_out: LeftOut,
    random: fastrand::Rng,
}

impl Samples {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            stores: BTreeMap::new(),
            functions: BTreeMap::new(),
            probe: Probe::default(),
            left_out: LeftOut::default(),
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// A call of `function`, of so many nanoseconds with all that is in it: `calls` traced ones among that.
    pub(super) fn note(&mut self, function: &[u8], ns: u64, calls: u64) {
        if function.ends_with(PROBE) {
            match calls {
                0 => self.probe.alone.add(ns, &mut self.random),
                1 => self.probe.with_one.add(ns, &mut self.random),
                _ => {}
            }
            return;
        }
        let name = String::from_utf8_lossy(function);
        if !self.functions.contains_key(name.as_ref()) && self.functions.len() >= MOST_NAMES {
            return;
        }
        let function = self.functions.entry(name.into_owned()).or_default();
        function.ns.add(ns, &mut self.random);
        function.leaves += u64::from(calls == 0);
        function.total_ns = function.total_ns.saturating_add(ns);
    }

    /// Adds a call if its time and size are plausible. It is used for the fit, or held out to judge the fit.
    pub(super) fn add(&mut self, family: Family, scope: CommandScope, sample: CallSample) {
        let is_time = sample.ns > 0.0 && sample.ns <= LONGEST_NS as f64;
        if !is_time || sample.units.is_some_and(|units| units > MOST_UNITS) {
            self.left_out.absurd += 1;
            return;
        }
        let store = self.stores.entry((family, scope)).or_default();
        let part = match self.random.u64(..HELD_OUT) {
            0 => &mut store.held_out,
            _ => &mut store.fitted,
        };
        part.add(sample, &mut self.random);
    }
}
