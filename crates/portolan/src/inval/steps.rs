//! The steps of a plan, one after another, without a heap.
//!
//! *Context.* Interrupt.

use super::plan::{Form, Plan, stride};
use super::runs::Pages;
use super::{Command, Depth, Span, Step};

impl<'g> Plan<'g> {
    /// The steps, in the order in which they have to be carried out.
    #[inline]
    pub fn steps(&self) -> Steps<'g> {
        let stage = match self.flushes() {
            true => StepStage::Flush,
            false => StepStage::Round,
        };
        Steps {
            plan: *self,
            stage,
            rounds: self.rounds(),
            next: 0,
            pages: Pages::none(self.caps.granule),
            depth: Depth::AllLevels,
        }
    }
}

/// Position in the steps.
#[derive(Clone, Copy, Debug)]
enum StepStage {
    /// The write buffer is flushed.
    Flush,
    /// A round of invalidations begins, or none is left.
    Round,
    /// In a round of many commands, whose sync comes after its last span.
    Spans,
    /// The sync of a round of one command.
    Sync,
}

/// The steps of a plan, one after another.
#[derive(Clone, Debug)]
pub struct Steps<'g> {
    plan: Plan<'g>,
    stage: StepStage,
    /// Rounds that have not begun.
    rounds: u8,
    /// Index of the next span.
    next: usize,
    /// Pages of the span before that which no command names yet.
    pages: Pages,
    /// The depth of its commands.
    depth: Depth,
}

impl Steps<'_> {
    /// The first step of a round, if there is one more.
    #[inline]
    fn round(&mut self) -> Option<Step> {
        self.rounds -= 1;
        self.next = 0;
        if let Form::One(command) = self.plan.form {
            self.stage = StepStage::Sync;
            return Some(Step::Invalidate(command));
        }
        self.stage = StepStage::Spans;
        self.invalidate()
    }

    /// The next command of a round, or its sync.
    fn invalidate(&mut self) -> Option<Step> {
        loop {
            if let Some(command) = self.command() {
                return Some(Step::Invalidate(command));
            }
            let Some(span) = self.plan.span(self.next) else {
                self.stage = StepStage::Round;
                return Some(Step::Sync);
            };
            self.enter(span);
        }
    }

    fn enter(&mut self, span: Span) {
        let (caps, quirks) = (self.plan.caps, self.plan.quirks);
        self.next += 1;
        self.depth = caps.depth(span);
        let size = match self.plan.form {
            Form::Ranges(_) => caps.granule,
            _ => stride(caps, quirks, span),
        };
        self.pages = Pages::of(span.range, size);
    }

    /// The next command for the span that was entered.
    fn command(&mut self) -> Option<Command> {
        let (context, depth) = (self.plan.context, self.depth);
        if let Form::Ranges(_) = self.plan.form {
            let granule = self.plan.caps.granule;
            let run = self.pages.take_run(self.plan.caps.range)?;
            return Some(Command::Range { context, run, granule, depth });
        }
        let (iova, size) = self.pages.take_page()?;
        Some(Command::Page { context, iova, size, depth })
    }
}

impl Iterator for Steps<'_> {
    type Item = Step;

    #[inline]
    fn next(&mut self) -> Option<Step> {
        match self.stage {
            StepStage::Sync => {
                self.stage = StepStage::Round;
                Some(Step::Sync)
            }
            StepStage::Round if self.rounds == 0 => None,
            StepStage::Round => self.round(),
            StepStage::Spans => self.invalidate(),
            StepStage::Flush => {
                self.stage = StepStage::Round;
                Some(Step::FlushWriteBuffer)
            }
        }
    }
}
