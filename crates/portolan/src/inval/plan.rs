//! The invalidation plan: from what is owed to the cheapest correct list of steps.
//!
//! A pure function of capabilities, quirks and debt. The plan is lazy: eight thousand commands take
//! no memory. Order of steps: cache lines are cleaned and the cleaning awaited, the write buffer is
//! flushed, then the invalidations, then one sync.

use super::gather::Cleaned;
use super::{
    Caching, Capabilities, Command, Depth, Gather, LeafOnly, PageForm, Preference, Quirks,
    RangeForm, Run, Span, Step, WalkFlush, Walker, WriteBuffer,
};
use crate::addr::{ContextId, Iova, IovaRange, PageSize};

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
enum Form {
    Nothing,
    Page,
    Range,
    Context,
}

/// The steps that pay a debt.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'g> {
    context: ContextId,
    caps: Capabilities,
    form: Form,
    commands: u64,
    repeat: u8,
    gather: &'g Gather,
}

/// The steps that `gather` needs on hardware with `caps` and `quirks`, for translations tagged
/// `context`.
#[inline]
pub fn plan<'g>(
    context: ContextId,
    caps: &Capabilities,
    quirks: &Quirks,
    gather: &'g Gather,
) -> Plan<'g> {
    let (form, commands) = choose(caps, quirks, gather);
    Plan {
        context,
        caps: *caps,
        form,
        commands,
        repeat: quirks.repeat.max(1),
        gather,
    }
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
    let by_page = || match caps.page {
        PageForm::Absent => None,
        PageForm::Granule => {
            let pages = spans().map(|span| span.range.pages(stride(caps, span)));
            Some(pages.fold(0u64, u64::saturating_add))
        }
    };
    let by_range = || spans().try_fold(0u64, |sum, span| Some(sum + count_runs(caps, span.range)?));
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

/// Distance between two by-page commands: one drops a whole leaf, however large.
fn stride(caps: &Capabilities, span: Span) -> PageSize {
    span.leaf.max(caps.granule)
}

fn count_runs(caps: &Capabilities, range: IovaRange) -> Option<u64> {
    match caps.range {
        RangeForm::Absent => None,
        RangeForm::PowerOfTwo { max_lg2_pages } => {
            (mask(caps.granule, range) <= u32::from(max_lg2_pages)).then_some(1)
        }
        RangeForm::NumScale { .. } => Some(Runs::new(caps, range).count() as u64),
    }
}

/// Exponent of the smallest aligned power of two of granules that covers `range`.
fn mask(granule: PageSize, range: IovaRange) -> u32 {
    let differ = (range.start().get() ^ range.last().get()) >> granule.lg2();
    64 - differ.leading_zeros()
}

/// The runs that cover one range.
#[derive(Clone, Debug)]
struct Runs {
    granule: PageSize,
    form: RangeForm,
    at: u64,
    pages: u64,
}

impl Runs {
    fn new(caps: &Capabilities, range: IovaRange) -> Self {
        let at = range.start().get() >> caps.granule.lg2();
        Self {
            granule: caps.granule,
            form: caps.range,
            at,
            pages: range.pages(caps.granule),
        }
    }

    fn address(&self, page: u64) -> Iova {
        Iova::new(page << self.granule.lg2())
    }
}

impl Iterator for Runs {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        if self.pages == 0 {
            return None;
        }
        match self.form {
            RangeForm::Absent => None,
            RangeForm::PowerOfTwo { .. } => {
                let lg2 = 64 - (self.at ^ (self.at + (self.pages - 1))).leading_zeros();
                self.pages = 0;
                let start = if lg2 >= 64 { 0 } else { self.at >> lg2 << lg2 };
                Some(Run::PowerOfTwo {
                    start: self.address(start),
                    lg2_pages: lg2 as u8,
                })
            }
            RangeForm::NumScale { max_num, max_scale } => {
                let max_num = u64::from(max_num.clamp(1, 32));
                let scale = self.pages.trailing_zeros().min(u32::from(max_scale));
                let units = self.pages >> scale;
                let num = if units <= max_num {
                    units
                } else {
                    (units & 31).clamp(1, max_num)
                };
                let start = self.address(self.at);
                self.at += num << scale;
                self.pages -= num << scale;
                Some(Run::NumScale {
                    start,
                    num: num as u8,
                    scale: scale as u8,
                })
            }
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

    /// The steps, in the order in which they have to be carried out.
    pub fn steps(&self) -> impl Iterator<Item = Step> + use<'g> {
        let lines = match self.caps.walker {
            Walker::Coherent => &[],
            Walker::NonCoherent => self.gather.lines(),
        };
        let early = self.gather.cleaned_early() == Cleaned::Some;
        let barrier = !lines.is_empty() || (early && self.caps.walker == Walker::NonCoherent);
        let flush = self.caps.write_buffer == WriteBuffer::MustFlush && !self.gather.is_empty();
        let plan = *self;
        let round = move |_| {
            let sync = (plan.form != Form::Nothing).then_some(Step::Sync);
            plan.commands().map(Step::Invalidate).chain(sync)
        };
        lines
            .iter()
            .map(|&bytes| Step::Clean(bytes))
            .chain(barrier.then_some(Step::CleanBarrier))
            .chain(flush.then_some(Step::FlushWriteBuffer))
            .chain((0..self.repeat).flat_map(round))
    }

    fn commands(self) -> impl Iterator<Item = Command> + use<'g> {
        let Self {
            context,
            caps,
            form,
            gather,
            ..
        } = self;
        let depth = move |span: Span| match caps.leaf_only {
            LeafOnly::Absent => Depth::AllLevels,
            LeafOnly::Present => span.depth,
        };
        let whole = (form == Form::Context).then_some(Command::Context { context });
        let spans = move |wanted| owed(&caps, gather).filter(move |_| form == wanted);
        let pages = spans(Form::Page).flat_map(move |span| {
            let size = stride(&caps, span);
            let first = span.range.start().get() >> size.lg2();
            let count = span.range.pages(size);
            (first..first + count).map(move |page| Command::Page {
                context,
                iova: Iova::new(page << size.lg2()),
                size,
                depth: depth(span),
            })
        });
        let runs = spans(Form::Range).flat_map(move |span| {
            Runs::new(&caps, span.range).map(move |run| Command::Range {
                context,
                run,
                granule: caps.granule,
                depth: depth(span),
            })
        });
        whole.into_iter().chain(pages).chain(runs)
    }
}
