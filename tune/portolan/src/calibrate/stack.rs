//! Calls put together from lines: a stack for each CPU, and the time in a call that is not its own.
//!
//! A call's price is its time less that of the calls in it that have prices of their own: an unmap's less its
//! submission's. Lines of one CPU are told apart from another's by their number. Where lines are missing, depths do
//! not fit together any more: calls that are not known whole are left out.

use std::collections::HashMap;

use super::function::{Family, PricedFunction, known};
use super::leaves::{Mapped, Pages};
use super::line::{Call, Token};
use super::samples::{CallSample, Care, CommandScope, Hooks, Part, Resolution, Samples};
use crate::linux::MOST_CACHED_PAGES;
use crate::trace::{Event, parse_event};

/// Deepest nesting of functions that is plausible.
const DEEPEST: usize = 256;

/// Reason that keeps a call from being fitted on.
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
struct CallFrame {
    depth: usize,
    name: Vec<u8>,
    known: Option<PricedFunction>,
    /// Nanoseconds of other families' calls.
    others_ns: u64,
    /// Parts of tracing in the time that is left.
    hooks: Hooks,
    /// Traced calls in it.
    calls: u64,
    spoiled: Spoiled,
    kind: Option<CommandScope>,
    /// Range that it unmaps by its arguments: address and bytes.
    range: Option<(u64, u64)>,
    by_events: Option<u64>,
    by_argument: Option<u64>,
    by_inner: Option<u64>,
}

#[derive(Debug, Default)]
struct CallStack {
    frames: Vec<CallFrame>,
    /// Bytes of the last mapping that the kernel said it bounces.
    bounced: Option<u64>,
}

/// The stacks of all CPUs.
#[derive(Debug)]
pub(super) struct Stacks {
    cpus: HashMap<u16, CallStack>,
    mapped: Mapped,
    care: Care,
}

impl Stacks {
    pub(super) fn new(pages: Pages, care: Care) -> Self {
        let (cpus, mapped) = (HashMap::new(), Mapped::new(pages));
        Self { cpus, mapped, care }
    }

    /// Takes a line: `cpu` is its CPU, `token` its event.
    pub(super) fn feed(&mut self, cpu: Option<u16>, token: Token<'_>, samples: &mut Samples) {
        if matches!(token, Token::Lost(_)) {
            self.mapped.forget();
        }
        let Some(number) = cpu else {
            if matches!(token, Token::Lost(_)) {
                self.finish(samples);
            }
            return;
        };
        let (mapped, care) = (&mut self.mapped, self.care);
        let cpu = self.cpus.entry(number).or_default();
        match token {
            Token::Enter { depth, call } => {
                cpu.cut_to(depth, samples);
                cpu.enter(depth, call, mapped);
            }
            Token::Leaf { depth, ns, call } => {
                cpu.cut_to(depth, samples);
                cpu.enter(depth, call, mapped);
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
            Token::Event { name, fields } => cpu.event(name, fields, mapped),
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

impl CallStack {
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

    fn enter(&mut self, depth: usize, call: Call<'_>, mapped: &mut Mapped) {
        if self.frames.len() >= DEEPEST {
            self.spoil(Spoiled::Incomplete);
            return;
        }
        let known = known(call.name);
        let family = known.map(|known| known.family);
        let argument = known.and_then(|known| call.argument(known.argument));
        let iova = call.argument("iova");
        // A call within one of its family has the units of that one.
        let is_inner = self.frames.iter().any(|frame| frame.family() == family);
        let range = iova.zip(argument).filter(|_| family == Some(Family::Unmap));
        let (by_argument, spoiled) = match (family, argument) {
            (Some(Family::Map), Some(bytes)) => match iova.zip(call.argument("paddr")) {
                Some((iova, pa)) => (mapped.map(iova, pa, bytes), Spoiled::No),
                None => (mapped.pages.of_map(bytes), Spoiled::No),
            },
            (Some(Family::Unmap), Some(_)) if is_inner => (None, Spoiled::No),
            (Some(Family::Unmap), Some(bytes)) => {
                let leaves = match range {
                    Some((iova, bytes)) => mapped.unmap(iova, bytes),
                    None => mapped.pages.of_unmap(bytes),
                };
                (leaves, leaves.map_or(Spoiled::Other, |_| Spoiled::No))
            }
            (Some(Family::TakeAddresses | Family::GiveAddresses), Some(pages))
                if pages > MOST_CACHED_PAGES =>
            {
                (argument, Spoiled::Other)
            }
            // Linux queues without waiting, too.
            (Some(Family::Submit), _) if call.argument("sync") == Some(0) => {
                (argument, Spoiled::Other)
            }
            _ => (argument, Spoiled::No),
        };
        if let Some(frame) = self.frames.last_mut() {
            frame.calls += 1;
        }
        self.frames.push(CallFrame {
            depth,
            name: call.name.to_owned(),
            known,
            others_ns: 0,
            hooks: Hooks::OWN,
            calls: 0,
            spoiled,
            kind: None,
            range,
            by_events: None,
            by_argument,
            by_inner: None,
        });
    }

    /// The innermost frame of a family.
    fn within(&mut self, family: Family) -> Option<&mut CallFrame> {
        let mut frames = self.frames.iter_mut().rev();
        frames.find(|frame| frame.family() == Some(family))
    }

    fn event(&mut self, name: &[u8], fields: &[u8], mapped: &mut Mapped) {
        match parse_event(name, fields) {
            Ok(Event::TableMap { iova, pa, bytes, .. }) => {
                let leaves = mapped.map(iova, pa, bytes);
                if let Some(frame) = self.within(Family::Map) {
                    frame.tell(leaves);
                }
            }
            Ok(Event::TableUnmap { iova, bytes }) => {
                let same = |frame: &&CallFrame| frame.range == Some((iova, bytes));
                let leaves = match self.frames.iter().find(same) {
                    Some(frame) => frame.by_argument,
                    None => mapped.unmap(iova, bytes),
                };
                if let Some(frame) = self.within(Family::Unmap) {
                    frame.tell(leaves);
                }
            }
            Ok(Event::Queued { first, .. }) => {
                let kind = kind_of(first);
                if let Some(frame) = self.within(Family::Submit) {
                    let same = frame.kind.is_none_or(|before| before == kind);
                    frame.kind = Some(if same { kind } else { CommandScope::Other });
                    frame.tell(Some(1));
                }
            }
            Ok(Event::Bounced { bytes, .. }) => self.bounced = Some(bytes),
            _ => {}
        }
    }

    /// The innermost function ends after so many nanoseconds.
    fn leave(&mut self, ns: u64, care: Care, samples: &mut Samples) {
        let Some(mut frame) = self.frames.pop() else {
            return;
        };
        samples.note(&frame.name, ns, frame.calls);
        let mut outer = self.frames.iter_mut().rev();
        let outer = outer.find(|outer| outer.known.is_some());
        let within = outer.as_deref().and_then(CallFrame::family);
        if frame.family() == Some(Family::Copy) && frame.by_argument.is_none() {
            let bounced = self.bounced.take();
            frame.by_argument = bounced.filter(|_| within == Some(Family::Take));
        }
        match (frame.family(), outer) {
            (None, Some(outer)) => outer.hooks.take_in(frame.hooks),
            (Some(_), Some(outer)) if within == frame.family() => outer.take_in(&frame),
            (Some(Family::Submit), Some(outer)) if within == Some(Family::Flush) => {
                outer.take_in(&frame);
            }
            (Some(family), outer) => {
                if let Some(outer) = outer
                    && care.takes(Part::Children)
                {
                    outer.others_ns = outer.others_ns.saturating_add(ns);
                    outer.hooks.around += 1;
                }
                frame.sample(family, ns, samples);
            }
            (None, None) => {}
        }
    }
}

impl CallFrame {
    fn family(&self) -> Option<Family> {
        self.known.map(|known| known.family)
    }

    /// Tells if a second report of units means another piece of a list, which is a call and an event of its own.
    fn is_one_piece(&self) -> bool {
        !matches!(self.family(), Some(Family::Flush | Family::Submit))
    }

    /// Notes that an event is for so many more units.
    fn tell(&mut self, units: Option<u64>) {
        if self.by_events.is_some() && self.is_one_piece() {
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
        self.hooks.take_in(inner.hooks);
        if matches!(inner.spoiled, Spoiled::Other | Spoiled::List) {
            self.spoiled = inner.spoiled;
        }
        if let Some(units) = inner.by_events {
            self.tell(Some(units));
        } else if let Some(units) = inner.by_argument.or(inner.by_inner) {
            if self.by_inner.is_some() && self.is_one_piece() {
                self.spoiled = Spoiled::List;
            }
            self.by_inner = Some(self.by_inner.unwrap_or(0).saturating_add(units));
        }
        self.kind = match (self.kind, inner.kind) {
            (Some(one), Some(other)) if one != other => Some(CommandScope::Other),
            (one, other) => one.or(other),
        };
    }

    fn sample(&self, family: Family, ns: u64, samples: &mut Samples) {
        let left_out = &mut samples.left_out;
        let by_name = match self.name.as_slice() {
            b"intel_flush_iotlb_all" => CommandScope::Context,
            _ => CommandScope::Pages,
        };
        let kind = self.kind.unwrap_or(by_name);
        match self.spoiled {
            Spoiled::Interrupted => left_out.interrupted += 1,
            Spoiled::Incomplete => left_out.incomplete += 1,
            Spoiled::List => left_out.lists += 1,
            Spoiled::Other => left_out.other += 1,
            Spoiled::No if kind == CommandScope::Other => left_out.other += 1,
            // Addresses that were given back at once, or a queue that was full.
            Spoiled::No if family == Family::Queue && self.calls > 0 => {}
            Spoiled::No => {
                let units = self.by_events.or(self.by_argument).or(self.by_inner);
                let sample = CallSample {
                    ns: ns.saturating_sub(self.others_ns) as f64,
                    hooks: self.hooks,
                    units: units.filter(|units| *units > 0).map(|units| units as f64),
                    resolution: Resolution::Exact,
                };
                samples.add(family, kind, sample);
            }
        }
    }
}

/// Scope of a descriptor of VT-d, by its type and granularity (VT-d, 6.5.2: descriptors of invalidation).
fn kind_of(first: u64) -> CommandScope {
    match (first & 0xf, first >> 4 & 3) {
        // IOTLB; by PASID.
        (2, 3) | (6, 3) => CommandScope::Pages,
        (2, 2) | (6, 2) | (1, 1..=3) => CommandScope::Context,
        (2, 1) => CommandScope::Global,
        _ => CommandScope::Other,
    }
}
