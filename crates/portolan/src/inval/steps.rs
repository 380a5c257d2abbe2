//! The steps of a plan, one after another, without a heap.
//!
//! *Context.* Interrupt.

use core::iter::Chain;
use core::slice;

use super::gather::Cleaned;
use super::plan::{Form, Plan};
use super::runs::Runs;
use super::{Caching, Command, Depth, LeafOnly, Span, Step, Walker, WriteBuffer};
use crate::addr::{Iova, PageSize, PhysRange};

impl<'g> Plan<'g> {
    /// The steps, in the order in which they have to be carried out.
    #[inline]
    pub fn steps(&self) -> Steps<'g> {
        let lines: &[PhysRange] = match self.caps.walker {
            Walker::Coherent => &[],
            Walker::NonCoherent => self.gather.lines(),
        };
        let early = self.gather.cleaned_early() == Cleaned::Some;
        let barrier = !lines.is_empty() || (early && self.caps.walker == Walker::NonCoherent);
        let flush = self.caps.write_buffer == WriteBuffer::MustFlush && !self.gather.is_empty();
        let mapped: &[Span] = match self.caps.caching {
            Caching::PresentOnly => &[],
            Caching::NotPresentToo => self.gather.mapped(),
        };
        let rounds = match self.form {
            Form::Nothing => 0,
            _ => self.repeat,
        };
        Steps {
            plan: *self,
            lines: lines.iter(),
            before: Before {
                barrier: barrier.then_some(Step::CleanBarrier),
                flush: flush.then_some(Step::FlushWriteBuffer),
            },
            mapped,
            rounds,
            spans: self.gather.unmapped().iter().chain(mapped),
            stage: Stage::Before,
        }
    }
}

/// What comes between the cleaning of lines and the first invalidation.
#[derive(Clone, Debug)]
struct Before {
    barrier: Option<Step>,
    flush: Option<Step>,
}

/// Where in a round of invalidations the steps are.
#[derive(Clone, Debug)]
enum Stage {
    /// Before a round.
    Before,
    /// The next span comes, or the sync.
    NextSpan,
    /// In a span by page: the number of the next page, and the pages to come.
    Pages {
        next: u64,
        left: u64,
        size: PageSize,
        depth: Depth,
    },
    /// In a span by range.
    Runs { runs: Runs, depth: Depth },
}

/// The steps of a plan, one after another.
#[derive(Clone, Debug)]
pub struct Steps<'g> {
    plan: Plan<'g>,
    lines: slice::Iter<'g, PhysRange>,
    before: Before,
    mapped: &'g [Span],
    /// Rounds that have not begun.
    rounds: u8,
    /// Spans of this round to come.
    spans: Chain<slice::Iter<'g, Span>, slice::Iter<'g, Span>>,
    stage: Stage,
}

impl Steps<'_> {
    fn enter(&self, span: Span) -> Stage {
        let caps = self.plan.caps;
        let depth = match caps.leaf_only {
            LeafOnly::Absent => Depth::AllLevels,
            LeafOnly::Present => span.depth,
        };
        if self.plan.form == Form::Range {
            let runs = Runs::new(caps, span.range);
            return Stage::Runs { runs, depth };
        }
        let size = self.plan.stride.size(caps, span);
        Stage::Pages {
            next: span.range.start().get() >> size.lg2(),
            left: span.range.pages(size),
            size,
            depth,
        }
    }

    /// What is cleaned and flushed first.
    fn first(&mut self) -> Option<Step> {
        if let Some(&bytes) = self.lines.next() {
            return Some(Step::Clean(bytes));
        }
        let barrier = self.before.barrier.take();
        barrier.or_else(|| self.before.flush.take())
    }

    /// Begins a round; the first step of one by context.
    fn begin(&mut self) -> Option<Step> {
        self.rounds -= 1;
        self.stage = Stage::NextSpan;
        if self.plan.form == Form::Context {
            self.spans = [].iter().chain(&[]);
            let context = self.plan.context;
            return Some(Step::Invalidate(Command::Context { context }));
        }
        self.spans = self.plan.gather.unmapped().iter().chain(self.mapped);
        None
    }
}

impl Iterator for Steps<'_> {
    type Item = Step;

    #[inline]
    fn next(&mut self) -> Option<Step> {
        let context = self.plan.context;
        loop {
            match &mut self.stage {
                Stage::Before => {
                    if let Some(step) = self.first() {
                        return Some(step);
                    }
                    if self.rounds == 0 {
                        return None;
                    }
                    if let Some(step) = self.begin() {
                        return Some(step);
                    }
                }
                Stage::NextSpan => {
                    let Some(&span) = self.spans.next() else {
                        self.stage = Stage::Before;
                        return Some(Step::Sync);
                    };
                    self.stage = self.enter(span);
                }
                Stage::Pages {
                    next,
                    left,
                    size,
                    depth,
                } if *left != 0 => {
                    let iova = Iova::new(*next << size.lg2());
                    *next += 1;
                    *left -= 1;
                    let (size, depth) = (*size, *depth);
                    return Some(Step::Invalidate(Command::Page {
                        context,
                        iova,
                        size,
                        depth,
                    }));
                }
                Stage::Runs { runs, depth } => {
                    let Some(run) = runs.next() else {
                        self.stage = Stage::NextSpan;
                        continue;
                    };
                    return Some(Step::Invalidate(Command::Range {
                        context,
                        run,
                        granule: self.plan.caps.granule,
                        depth: *depth,
                    }));
                }
                Stage::Pages { .. } => self.stage = Stage::NextSpan,
            }
        }
    }
}
