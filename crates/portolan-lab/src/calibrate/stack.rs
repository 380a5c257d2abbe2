//! Calls put together from lines: a stack for each CPU, and what is in a call without being its own.
//!
//! A call's price is its time less that of the calls in it that have prices of their own: an unmap's less its
//! submission's. Lines of one CPU are told apart from another's by their number. Where lines are missing, depths do
//! not fit together any more: what is not known whole is left out.

use std::collections::HashMap;

use super::function::{Family, Known, known};
use super::line::{Call, Token};
use super::samples::{Care, Kind, Part, Resolution, Sample, Samples};
use crate::trace::{Event, parse_event};

/// Functions within each other beyond which a trace is none.
const DEEPEST: usize = 256;

/// Pages of a machine's tables.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pages {
    /// Exponent of the smallest.
    pub(super) lg2: u32,
}

impl Pages {
    /// Exponent by which an entry's size grows with each level: entries of 8 bytes fill a page.
    fn step(self) -> u32 {
        self.lg2 - 3
    }

    /// Entries for `bytes` from addresses of which `either` is the union of bits, the largest first that fit: as Linux
    /// chooses sizes (`iommu_pgsize`). `None` where that is no whole number of pages.
    fn entries(self, either: u64, bytes: u64) -> Option<u64> {
        let page = 1u64.checked_shl(self.lg2)?;
        if bytes == 0 || !(either | bytes).is_multiple_of(page) {
            return None;
        }
        // A large entry where both begin on its boundary: taken as if the rest did as well.
        let (mut left, mut count) = (bytes, 0u64);
        for level in [2, 1] {
            let large = 1u64.checked_shl(self.lg2 + level * self.step())?;
            if either.is_multiple_of(large) {
                count += left / large;
                left %= large;
            }
        }
        count.checked_add(left / page)
    }

    /// Bytes of a table's worth of pages.
    fn table(self) -> u64 {
        1 << (self.lg2 + self.step())
    }

    /// Pages of `bytes` where addresses are not told: fewer than a table's worth.
    pub(super) fn of(self, bytes: u64) -> Option<u64> {
        (bytes > 0 && bytes < self.table()).then(|| bytes.div_ceil(1 << self.lg2))
    }
}

/// What keeps a call from being fitted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spoiled {
    No,
    Interrupted,
    Incomplete,
    List,
    Other,
}

/// A function that has begun.
#[derive(Debug)]
struct Frame {
    depth: usize,
    name: Vec<u8>,
    known: Option<Known>,
    /// Nanoseconds of other families' calls.
    others_ns: u64,
    /// Times that entering or leaving a traced function is in what is left.
    hooks: u64,
    has_calls: bool,
    spoiled: Spoiled,
    kind: Option<Kind>,
    by_events: Option<u64>,
    by_argument: Option<u64>,
    by_inner: Option<u64>,
}

#[derive(Debug, Default)]
struct Cpu {
    frames: Vec<Frame>,
    /// Bytes of the last mapping that the kernel said it bounces.
    bounced: Option<u64>,
}

/// The stacks of all CPUs.
#[derive(Debug)]
pub(super) struct Stacks {
    cpus: HashMap<u16, Cpu>,
    pages: Pages,
    care: Care,
}

impl Stacks {
    pub(super) fn new(pages: Pages, care: Care) -> Self {
        let cpus = HashMap::new();
        Self { cpus, pages, care }
    }

    /// Takes what a line says.
    pub(super) fn feed(&mut self, cpu: Option<u16>, token: Token<'_>, samples: &mut Samples) {
        let Some(number) = cpu else {
            if matches!(token, Token::Lost(_)) {
                self.cpus.values_mut().for_each(|cpu| cpu.drop_all(samples));
            }
            return;
        };
        let (pages, care) = (self.pages, self.care);
        let cpu = self.cpus.entry(number).or_default();
        match token {
            Token::Enter { depth, call } => {
                cpu.cut_to(depth, samples);
                cpu.enter(depth, call, pages);
            }
            Token::Leaf { depth, ns, call } => {
                cpu.cut_to(depth, samples);
                cpu.enter(depth, call, pages);
                cpu.leave(ns, care, samples);
            }
            Token::Exit { depth, ns } => {
                cpu.cut_to(depth + 1, samples);
                match cpu.frames.last() {
                    Some(frame) if frame.depth == depth => cpu.leave(ns, care, samples),
                    // Its beginning came before the trace's.
                    _ => samples.left_out.incomplete += 1,
                }
            }
            Token::Event { name, fields } => cpu.event(name, fields, pages),
            Token::Interrupt => cpu.spoil(Spoiled::Interrupted),
            Token::Switch | Token::Lost(_) => cpu.drop_all(samples),
            Token::Nothing => {}
        }
    }

    /// The end of a trace.
    pub(super) fn finish(&mut self, samples: &mut Samples) {
        self.cpus.values_mut().for_each(|cpu| cpu.drop_all(samples));
    }
}

impl Cpu {
    fn drop_all(&mut self, samples: &mut Samples) {
        samples.left_out.incomplete += self.frames.len() as u64;
        self.frames.clear();
        self.bounced = None;
    }

    fn spoil(&mut self, by: Spoiled) {
        for frame in &mut self.frames {
            frame.spoiled = by;
        }
    }

    /// Drops functions at `depth` and below it: where their ends should be, something else is.
    fn cut_to(&mut self, depth: usize, samples: &mut Samples) {
        while self.frames.pop_if(|frame| frame.depth >= depth).is_some() {
            samples.left_out.incomplete += 1;
            self.spoil(Spoiled::Incomplete);
        }
    }

    fn enter(&mut self, depth: usize, call: Call<'_>, pages: Pages) {
        if self.frames.len() >= DEEPEST {
            self.spoil(Spoiled::Incomplete);
            return;
        }
        if let Some(frame) = self.frames.last_mut() {
            frame.has_calls = true;
        }
        let known = known(call.name);
        let argument = known.and_then(|known| call.argument(known.argument));
        let (by_argument, other) = match known.map(|known| known.family) {
            Some(Family::Map) => {
                let addresses = call.argument("iova").zip(call.argument("paddr"));
                let bytes = argument.unwrap_or(0);
                let entries = addresses.and_then(|(iova, pa)| pages.entries(iova | pa, bytes));
                (entries.or_else(|| pages.of(bytes)), false)
            }
            Some(Family::Unmap) => {
                let bytes = argument.unwrap_or(0);
                (pages.of(bytes), bytes >= pages.table())
            }
            // Linux queues without waiting, too.
            Some(Family::Submit) => (argument, call.argument("sync") == Some(0)),
            _ => (argument, false),
        };
        self.frames.push(Frame {
            depth,
            name: call.name.to_owned(),
            known,
            others_ns: 0,
            hooks: 1,
            has_calls: false,
            spoiled: match other {
                true => Spoiled::Other,
                false => Spoiled::No,
            },
            kind: None,
            by_events: None,
            by_argument,
            by_inner: None,
        });
    }

    /// The innermost frame of a family.
    fn within(&mut self, family: Family) -> Option<&mut Frame> {
        let is = |frame: &&mut Frame| frame.known.is_some_and(|known| known.family == family);
        self.frames.iter_mut().rev().find(is)
    }

    fn event(&mut self, name: &[u8], fields: &[u8], pages: Pages) {
        match parse_event(name, fields) {
            Ok(Event::TableMap { iova, pa, bytes }) => {
                if let Some(frame) = self.within(Family::Map) {
                    frame.tell(pages.entries(iova | pa, bytes));
                }
            }
            Ok(Event::TableUnmap { bytes, .. }) => {
                if let Some(frame) = self.within(Family::Unmap) {
                    frame.tell(pages.of(bytes));
                }
            }
            Ok(Event::Queued { first, .. }) => {
                let kind = kind_of(first);
                if let Some(frame) = self.within(Family::Submit) {
                    let same = frame.kind.is_none_or(|before| before == kind);
                    frame.kind = Some(if same { kind } else { Kind::Other });
                    frame.tell(Some(1));
                }
            }
            Ok(Event::Bounced { bytes }) => self.bounced = Some(bytes),
            _ => {}
        }
    }

    /// The innermost function ends after so many nanoseconds.
    fn leave(&mut self, ns: u64, care: Care, samples: &mut Samples) {
        let Some(mut frame) = self.frames.pop() else {
            return;
        };
        samples.note(&frame.name, ns, !frame.has_calls);
        let outer = self.frames.iter_mut().rev();
        let outer = outer.into_iter().find(|outer| outer.known.is_some());
        let families = |outer: &Frame| outer.known.map(|known| known.family);
        let own = families(&frame);
        if own == Some(Family::Copy) && frame.by_argument.is_none() {
            let taken = outer.as_deref().and_then(families) == Some(Family::Take);
            frame.by_argument = self.bounced.take().filter(|_| taken);
        }
        match (own, outer) {
            (None, Some(outer)) => outer.hooks += 2,
            (Some(family), Some(outer)) if families(outer) == Some(family) => {
                outer.take_in(&frame);
            }
            (Some(family), outer) => {
                if let Some(outer) = outer
                    && care.takes(Part::Children)
                {
                    outer.others_ns = outer.others_ns.saturating_add(ns);
                    outer.hooks += 1;
                }
                frame.sample(family, ns, samples);
            }
            (None, None) => {}
        }
    }
}

impl Frame {
    /// An event says that it is for so many units more.
    fn tell(&mut self, units: Option<u64>) {
        // Each piece of a list is a call and an event of its own within this one.
        let is_table = self
            .known
            .is_some_and(|known| known.family != Family::Submit);
        if is_table && self.by_events.is_some() {
            self.spoiled = Spoiled::List;
        }
        match units {
            Some(units) => {
                self.by_events = Some(self.by_events.unwrap_or(0).saturating_add(units));
            }
            None => self.spoiled = Spoiled::Other,
        }
    }

    /// A call of the same family ended within this one.
    fn take_in(&mut self, inner: &Self) {
        self.others_ns = self.others_ns.saturating_add(inner.others_ns);
        self.hooks += inner.hooks + 1;
        if matches!(inner.spoiled, Spoiled::Other | Spoiled::List) {
            self.spoiled = inner.spoiled;
        }
        if let Some(units) = inner.by_events {
            self.tell(Some(units));
        } else if let Some(units) = inner.by_argument.or(inner.by_inner) {
            self.by_inner = Some(self.by_inner.unwrap_or(0).saturating_add(units));
        }
        self.kind = match (self.kind, inner.kind) {
            (Some(one), Some(other)) if one != other => Some(Kind::Other),
            (one, other) => one.or(other),
        };
    }

    fn sample(&self, family: Family, ns: u64, samples: &mut Samples) {
        let left_out = &mut samples.left_out;
        let kind = self.kind.unwrap_or(Kind::Pages);
        match self.spoiled {
            Spoiled::Interrupted => left_out.interrupted += 1,
            Spoiled::Incomplete => left_out.incomplete += 1,
            Spoiled::List => left_out.lists += 1,
            Spoiled::Other => left_out.other += 1,
            Spoiled::No if kind == Kind::Other => left_out.other += 1,
            Spoiled::No => {
                let units = self.by_events.or(self.by_argument).or(self.by_inner);
                let sample = Sample {
                    ns: ns.saturating_sub(self.others_ns) as f64,
                    hooks: self.hooks as f64,
                    units: units.filter(|units| *units > 0).map(|units| units as f64),
                    resolution: Resolution::Exact,
                };
                samples.add((family, kind), sample);
            }
        }
    }
}

/// What a descriptor of VT-d drops, by its type and granularity (VT-d, 6.5.2: descriptors of invalidation).
fn kind_of(first: u64) -> Kind {
    match (first & 0xf, first >> 4 & 3) {
        // IOTLB; by PASID.
        (2, 3) | (6, 3) => Kind::Pages,
        (2, 2) | (6, 2) | (1, 1..=3) => Kind::Context,
        (2, 1) => Kind::Global,
        _ => Kind::Other,
    }
}
