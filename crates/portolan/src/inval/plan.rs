//! The invalidation plan: from what is owed to the cheapest correct list of steps.
//!
//! A pure function of capabilities, quirks and debt. The plan is lazy: eight thousand commands take
//! no memory. Order of steps: cache lines are cleaned and the cleaning awaited, the write buffer is
//! flushed, then the invalidations, then one sync.
//!
//! *Context.* Interrupt: no memory is touched but the debt.

use super::runs::count_runs;
use super::{
    Caching, Capabilities, Depth, Gather, PageForm, Preference, Quirks, Span, WalkFlush, Walker,
    WriteBuffer,
};
use crate::addr::{InvalTag, PageSize};

/// How many commands of each kind a plan has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanCounts {
    /// By page.
    pub page: u64,
    /// By range.
    pub range: u64,
    /// By context.
    pub context: u64,
    /// Syncs.
    pub syncs: u64,
}

/// The form that a plan's invalidations take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Nothing,
    Page,
    Range,
    Context,
}

/// The steps that pay a debt.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'g> {
    pub(super) context: InvalTag,
    pub(super) caps: &'g Capabilities,
    pub(super) form: Form,
    pub(super) stride: Stride,
    commands: u64,
    pub(super) repeat: u8,
    pub(super) gather: &'g Gather,
}

/// The steps that `gather` needs on hardware with `caps` and `quirks`, for translations tagged
/// `context`.
#[inline]
pub fn plan<'g>(
    context: InvalTag,
    caps: &'g Capabilities,
    quirks: &Quirks,
    gather: &'g Gather,
) -> Plan<'g> {
    let (form, commands) = choose(caps, quirks, gather);
    Plan {
        context,
        caps,
        form,
        stride: Stride::of(caps, quirks),
        commands,
        repeat: quirks.repeat.max(1),
        gather,
    }
}

/// Whether the plan of `gather` has no steps and nothing waits for it: then nothing is lost with it.
#[inline]
pub fn owes_nothing(caps: &Capabilities, gather: &Gather) -> bool {
    let cached = caps.caching == Caching::PresentOnly || gather.mapped().is_empty();
    let written_back = caps.walker == Walker::Coherent || !gather.holds_lines();
    let drained = caps.write_buffer == WriteBuffer::Absent || gather.is_empty();
    let left = gather.holds_tables() || !gather.unmapped().is_empty();
    cached && written_back && drained && !left
}

fn choose(caps: &Capabilities, quirks: &Quirks, gather: &Gather) -> (Form, u64) {
    let spans = || owed(caps, gather);
    if spans().next().is_none() {
        return (Form::Nothing, 0);
    }
    let walks = gather
        .unmapped()
        .iter()
        .any(|span| span.depth == Depth::AllLevels);
    if walks && quirks.walk_flush == WalkFlush::ByContext {
        return (Form::Context, 1);
    }
    let stride = Stride::of(caps, quirks);
    let by_page = || {
        let named = match caps.page {
            PageForm::Absent => false,
            PageForm::Granule => true,
            PageForm::Whole => spans().all(|span| span.leaf == span.largest),
        };
        let pages = || spans().map(|span| span.range.pages(stride.size(caps, span)));
        named.then(|| pages().fold(0u64, u64::saturating_add))
    };
    let by_range = || {
        spans().try_fold(0u64, |sum, span| {
            Some(sum.saturating_add(count_runs(caps, span.range)?))
        })
    };
    let found = match quirks.preference {
        Preference::ByContext => None,
        Preference::ByPage => by_page().map(|n| (Form::Page, n)),
        Preference::ByRange => by_range().map(|n| (Form::Range, n)),
        Preference::Fewest => match (by_range(), by_page()) {
            (Some(range), Some(page)) if page < range => Some((Form::Page, page)),
            (Some(range), _) => Some((Form::Range, range)),
            (None, page) => page.map(|n| (Form::Page, n)),
        },
    };
    match found {
        Some((form, commands)) if commands <= quirks.context_above => (form, commands),
        _ => (Form::Context, 1),
    }
}

/// The spans that need an invalidation: all unmapped ones, and the mapped ones where the hardware
/// may hold that nothing was there.
fn owed<'g>(
    caps: &Capabilities,
    gather: &'g Gather,
) -> impl Iterator<Item = Span> + Clone + use<'g> {
    let mapped = match caps.caching {
        Caching::PresentOnly => &[],
        Caching::NotPresentToo => gather.mapped(),
    };
    gather.unmapped().iter().chain(mapped).copied()
}

/// Distance between two by-page commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stride {
    /// A granule, whatever the leaf.
    Granule,
    /// A leaf: one command drops all of it, however large.
    Leaf,
}

impl Stride {
    fn of(caps: &Capabilities, quirks: &Quirks) -> Self {
        match quirks.preference {
            Preference::ByPage if caps.page != PageForm::Whole => Self::Granule,
            _ => Self::Leaf,
        }
    }

    pub(super) fn size(self, caps: &Capabilities, span: Span) -> PageSize {
        match self {
            Self::Granule => caps.granule,
            Self::Leaf => span.leaf.max(caps.granule),
        }
    }
}

impl<'g> Plan<'g> {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.steps().next().is_none()
    }

    /// The number of commands of each kind.
    #[inline]
    pub fn counts(&self) -> PlanCounts {
        let repeat = u64::from(self.repeat);
        let commands = self.commands.saturating_mul(repeat);
        let mut counts = PlanCounts {
            syncs: repeat,
            ..PlanCounts::default()
        };
        match self.form {
            Form::Nothing => counts.syncs = 0,
            Form::Page => counts.page = commands,
            Form::Range => counts.range = commands,
            Form::Context => counts.context = commands,
        }
        counts
    }
}
