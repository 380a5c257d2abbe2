//! The invalidation plan: from a debt to a correct list of steps.
//!
//! The cheapest plan depends on prices, which are the driver's: [`Quirks`] give the preferred form,
//! and the number of commands above which the whole context is named.
//!
//! A pure function of capabilities, quirks and debt. The plan is lazy: eight thousand commands take
//! no memory. Order of steps: the write buffer is flushed, then the invalidations, then one sync. Where the
//! walker does not snoop, the table's lines were written back before the plan
//! ([`PageTable::sync`](crate::table::PageTable::sync)).
//!
//! *Context.* Interrupt: no memory is touched but the debt.

use super::runs::{Pages, count_runs};
use super::{
    Caching, Capabilities, Command, Depth, Gather, PageForm, Preference, Quirks, RangeForm, Span,
    WalkFlush, Walker, WriteBuffer,
};
use crate::addr::{InvalTag, PageSize};

/// Numbers of commands of each kind in a plan.
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
    /// One command is enough.
    One(Command),
    /// So many commands, each for a page.
    Pages(u64),
    /// So many commands, each for a range.
    Ranges(u64),
}

/// The steps that pay a debt.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'g> {
    pub(super) context: InvalTag,
    pub(super) caps: &'g Capabilities,
    pub(super) quirks: &'g Quirks,
    pub(super) form: Form,
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
    Plan { context, caps, quirks, form: choose(context, caps, quirks, gather), gather }
}

/// Tells if the plan of `gather` has no steps and nothing waits for it: then nothing is lost with
/// it.
#[inline]
pub fn owes_nothing(caps: &Capabilities, gather: &Gather) -> bool {
    let cached = owed_for_maps(caps, gather).is_empty();
    let written_back = caps.walker == Walker::Coherent || !gather.holds_lines();
    let drained = caps.write_buffer == WriteBuffer::Absent || gather.is_empty();
    let left = gather.holds_tables() || !gather.unmapped().is_empty();
    cached && written_back && drained && !left
}

#[inline]
fn choose(context: InvalTag, caps: &Capabilities, quirks: &Quirks, gather: &Gather) -> Form {
    let (unmapped, mapped) = (gather.unmapped(), owed_for_maps(caps, gather));
    match (unmapped, mapped) {
        ([], []) => Form::Nothing,
        ([span], []) => match lone(context, caps, quirks, *span) {
            Some(command) => Form::One(command),
            None => many(context, caps, quirks, unmapped, mapped),
        },
        _ => many(context, caps, quirks, unmapped, mapped),
    }
}

/// The one command for `span`, if there is one.
#[inline]
fn lone(context: InvalTag, caps: &Capabilities, quirks: &Quirks, span: Span) -> Option<Command> {
    let walks = quirks.walk_flush == WalkFlush::ByContext && span.depth == Depth::AllLevels;
    if walks || quirks.context_above == 0 {
        return Some(Command::Context { context });
    }
    let depth = caps.depth(span);
    let (ranges, pages) = match quirks.preference {
        Preference::Fewest => (caps.range, caps.page),
        Preference::ByRange => (caps.range, PageForm::Absent),
        Preference::ByPage => (RangeForm::Absent, caps.page),
        Preference::ByContext => return Some(Command::Context { context }),
    };
    let mut left = Pages::of(span.range, caps.granule);
    if let Some(run) = left.take_run(ranges) {
        let granule = caps.granule;
        return left.is_empty().then_some(Command::Range { context, run, granule, depth });
    }
    if !names(pages, span) {
        return None;
    }
    let mut left = Pages::of(span.range, stride(caps, quirks, span));
    let (iova, size) = left.take_page()?;
    left.is_empty().then_some(Command::Page { context, iova, size, depth })
}

/// The form for spans that were unmapped and mapped.
fn many(
    context: InvalTag,
    caps: &Capabilities,
    quirks: &Quirks,
    unmapped: &[Span],
    mapped: &[Span],
) -> Form {
    let all = Form::One(Command::Context { context });
    let leaves = |span: &Span| span.depth == Depth::AllLevels;
    if quirks.walk_flush == WalkFlush::ByContext && unmapped.iter().any(leaves) {
        return all;
    }
    let by_page = || sum(unmapped, mapped, |span| pages(caps, quirks, span));
    let by_range = || sum(unmapped, mapped, |span| count_runs(caps, span.range));
    let found = match quirks.preference {
        Preference::ByContext => None,
        Preference::ByPage => by_page().map(|n| (Form::Pages(n), n)),
        Preference::ByRange => by_range().map(|n| (Form::Ranges(n), n)),
        Preference::Fewest => match (by_range(), by_page()) {
            (Some(range), Some(page)) if page < range => Some((Form::Pages(page), page)),
            (Some(range), _) => Some((Form::Ranges(range), range)),
            (None, page) => page.map(|n| (Form::Pages(n), n)),
        },
    };
    match found {
        Some((form, commands)) if commands <= quirks.context_above => form,
        _ => all,
    }
}

/// The commands for all spans; `None` if one of them has none.
fn sum(unmapped: &[Span], mapped: &[Span], commands: impl Fn(&Span) -> Option<u64>) -> Option<u64> {
    let mut spans = unmapped.iter().chain(mapped);
    spans.try_fold(0u64, |sum, span| Some(sum.saturating_add(commands(span)?)))
}

/// Number of commands by page that drop `span`; `None` if they cannot.
fn pages(caps: &Capabilities, quirks: &Quirks, span: &Span) -> Option<u64> {
    let stride = stride(caps, quirks, *span);
    names(caps.page, *span).then(|| span.range.pages(stride))
}

/// Tells if commands by page of this form drop `span`.
#[inline]
fn names(form: PageForm, span: Span) -> bool {
    match form {
        PageForm::Absent => false,
        PageForm::Granule => true,
        PageForm::Whole => span.leaf == span.largest,
    }
}

/// Distance between two by-page commands: a leaf of any size, all of which one command drops; a
/// granule, for any leaf, where that is the preference.
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

/// Inputs of a plan, but for the debt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanInputs<'t> {
    pub context: &'t InvalTag,
    pub caps: &'t Capabilities,
    pub quirks: &'t Quirks,
}

impl<'t> PlanInputs<'t> {
    /// The plan of `gather`.
    #[inline]
    pub(super) fn plan(self, gather: &'t Gather) -> Plan<'t> {
        plan(*self.context, self.caps, self.quirks, gather)
    }
}

impl Plan<'_> {
    /// The command that is all of it, but for the sync: with nothing before it and nothing repeated.
    #[inline]
    pub(super) fn lone(&self) -> Option<Command> {
        match self.form {
            Form::One(command) if self.rounds() == 1 && !self.flushes() => Some(command),
            _ => None,
        }
    }

    /// Tells if the queue has nothing to do.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.form == Form::Nothing && !self.flushes()
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

    /// Tells if the write buffer is flushed.
    #[inline]
    pub(super) fn flushes(&self) -> bool {
        self.caps.write_buffer == WriteBuffer::MustFlush && !self.gather.is_empty()
    }

    /// Number of times that the invalidations are issued, each time with their sync.
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
        let mut counts = PlanCounts { syncs: repeat, ..PlanCounts::default() };
        match self.form {
            Form::One(Command::Page { .. }) => counts.page = repeat,
            Form::One(Command::Range { .. }) => counts.range = repeat,
            Form::One(_) => counts.context = repeat,
            Form::Pages(commands) => counts.page = commands.saturating_mul(repeat),
            Form::Ranges(commands) => counts.range = commands.saturating_mul(repeat),
            Form::Nothing => {}
        }
        counts
    }
}

#[cfg(test)]
mod tests;
