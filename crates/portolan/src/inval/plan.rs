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
use crate::addr::{InvalTag, PageSize, PhysRange};

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
    pub(super) quirks: &'g Quirks,
    pub(super) form: Form,
    commands: u64,
    pub(super) gather: &'g Gather,
}

/// The steps that `gather` needs on hardware with `caps` and `quirks`, for translations tagged
/// `context`.
#[inline]
pub fn plan<'g>(
    context: InvalTag,
    caps: &'g Capabilities,
    quirks: &'g Quirks,
    gather: &'g Gather,
) -> Plan<'g> {
    let (form, commands) = choose(caps, quirks, gather);
    Plan {
        context,
        caps,
        quirks,
        form,
        commands,
        gather,
    }
}

/// Whether the plan of `gather` has no steps and nothing waits for it: then nothing is lost with it.
#[inline]
pub fn owes_nothing(caps: &Capabilities, gather: &Gather) -> bool {
    let cached = owed_for_maps(caps, gather).is_empty();
    let written_back = caps.walker == Walker::Coherent || !gather.holds_lines();
    let drained = caps.write_buffer == WriteBuffer::Absent || gather.is_empty();
    let left = gather.holds_tables() || !gather.unmapped().is_empty();
    cached && written_back && drained && !left
}

#[inline]
fn choose(caps: &Capabilities, quirks: &Quirks, gather: &Gather) -> (Form, u64) {
    let (unmapped, mapped) = (gather.unmapped(), owed_for_maps(caps, gather));
    if unmapped.is_empty() && mapped.is_empty() {
        return (Form::Nothing, 0);
    }
    let leaves = |span: &Span| span.depth == Depth::AllLevels;
    if quirks.walk_flush == WalkFlush::ByContext && unmapped.iter().any(leaves) {
        return (Form::Context, 1);
    }
    let by_page = || sum((unmapped, mapped), |span| pages(caps, quirks, span));
    let by_range = || sum((unmapped, mapped), |span| count_runs(caps, span.range));
    let found = match quirks.preference {
        Preference::ByContext => None,
        Preference::ByPage => by_page().map(|n| (Form::Page, n)),
        Preference::ByRange => by_range().map(|n| (Form::Range, n)),
        Preference::Fewest => match by_range() {
            Some(1) => Some((Form::Range, 1)),
            range => fewest(range, by_page()),
        },
    };
    match found {
        Some((form, commands)) if commands <= quirks.context_above => (form, commands),
        _ => (Form::Context, 1),
    }
}

fn fewest(range: Option<u64>, page: Option<u64>) -> Option<(Form, u64)> {
    match (range, page) {
        (Some(range), Some(page)) if page < range => Some((Form::Page, page)),
        (Some(range), _) => Some((Form::Range, range)),
        (None, page) => page.map(|n| (Form::Page, n)),
    }
}

/// The commands for all spans; `None` if one of them has none.
#[inline]
fn sum(
    (unmapped, mapped): (&[Span], &[Span]),
    commands: impl Fn(&Span) -> Option<u64>,
) -> Option<u64> {
    if let ([span], []) = (unmapped, mapped) {
        return commands(span);
    }
    let mut spans = unmapped.iter().chain(mapped);
    spans.try_fold(0u64, |sum, span| Some(sum.saturating_add(commands(span)?)))
}

/// How many commands by page drop `span`; `None` if they cannot.
#[inline]
fn pages(caps: &Capabilities, quirks: &Quirks, span: &Span) -> Option<u64> {
    let named = match caps.page {
        PageForm::Absent => false,
        PageForm::Granule => true,
        PageForm::Whole => span.leaf == span.largest,
    };
    named.then(|| span.range.pages(stride(caps, quirks, *span)))
}

/// Distance between two by-page commands: a leaf, all of which one command drops, however large; a
/// granule, whatever the leaf, where that is the preference.
#[inline]
pub(super) fn stride(caps: &Capabilities, quirks: &Quirks, span: Span) -> PageSize {
    match quirks.preference {
        Preference::ByPage if caps.page != PageForm::Whole => caps.granule,
        _ => span.leaf.max(caps.granule),
    }
}

/// The mapped spans that need an invalidation: where the hardware may hold that nothing was there.
#[inline]
fn owed_for_maps<'g>(caps: &Capabilities, gather: &'g Gather) -> &'g [Span] {
    match caps.caching {
        Caching::PresentOnly => &[],
        Caching::NotPresentToo => gather.mapped(),
    }
}

impl<'g> Plan<'g> {
    /// Whether there is nothing to do.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.form == Form::Nothing && !self.prepares()
    }

    /// The span of this number, of all that need an invalidation.
    #[inline]
    pub(super) fn span(&self, number: usize) -> Option<Span> {
        let unmapped = self.gather.unmapped();
        let span = unmapped.get(number).or_else(|| {
            let mapped = owed_for_maps(self.caps, self.gather);
            mapped.get(number - unmapped.len())
        });
        span.copied()
    }

    /// The lines of table memory to write back.
    pub(super) fn lines(&self) -> &'g [PhysRange] {
        match self.caps.walker {
            Walker::Coherent => &[],
            Walker::NonCoherent => self.gather.lines(),
        }
    }

    /// Whether lines are written back, or were before, so that a barrier is owed.
    #[inline]
    pub(super) fn cleans(&self) -> bool {
        self.caps.walker == Walker::NonCoherent && self.gather.holds_lines()
    }

    /// Whether the write buffer is flushed.
    #[inline]
    pub(super) fn flushes(&self) -> bool {
        self.caps.write_buffer == WriteBuffer::MustFlush && !self.gather.is_empty()
    }

    /// Whether something comes before the first invalidation.
    #[inline]
    pub(super) fn prepares(&self) -> bool {
        self.cleans() || self.flushes()
    }

    /// How often the invalidations are issued, each time with their sync.
    #[inline]
    pub(super) fn rounds(&self) -> u8 {
        match self.form {
            Form::Nothing => 0,
            _ => self.quirks.repeat.max(1),
        }
    }

    /// The number of commands of each kind.
    #[inline]
    pub fn counts(&self) -> PlanCounts {
        let repeat = u64::from(self.rounds());
        let commands = self.commands.saturating_mul(repeat);
        let mut counts = PlanCounts {
            syncs: repeat,
            ..PlanCounts::default()
        };
        match self.form {
            Form::Nothing => {}
            Form::Page => counts.page = commands,
            Form::Range => counts.range = commands,
            Form::Context => counts.context = commands,
        }
        counts
    }
}
