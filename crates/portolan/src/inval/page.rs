//! The command that pays for one page, for pages that one range command names, or for tables that left the tree,
//! decided once for a unit: most unmaps owe nothing else.
//!
//! *Context.* Interrupt: a value.

use super::plan::PlanInputs;
use super::runs::Pages;
use super::{Caching, Command, Depth, Gather, RangeForm, Run, Span, WalkFlush};
use crate::addr::{InvalTag, Iova, IovaRange, PageSize};

/// Command that pays a debt of one span, where that does not depend on more than its address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OneCommand {
    /// For the page at 0; none where a page takes more than one command, or depends on more.
    page: Option<Command>,
    /// Range commands of the hardware.
    form: RangeForm,
    /// The context that is dropped when tables have left the tree, where that is the way, with any
    /// span of theirs.
    tables: Option<InvalTag>,
    /// Bytes of a page, less one.
    inside: u64,
}

impl OneCommand {
    /// For pages of `granule`, in a table whose debts have the plans of `inputs`.
    pub(crate) fn new(inputs: PlanInputs<'_>, granule: PageSize) -> Self {
        let PlanInputs { context, caps, quirks } = inputs;
        let context = *context;
        let mut owed = Gather::new();
        let first = IovaRange::page(Iova::new(0), granule);
        owed.add_unmapped(first, granule, Depth::LeafOnly);
        // Mapped spans differ from debt to debt.
        let alike = caps.caching == Caching::PresentOnly;
        let alike = alike && caps.granule <= granule;
        let page = inputs.plan(&owed).lone().filter(|_| alike);
        let by_context = alike && quirks.walk_flush == WalkFlush::ByContext;
        let mut owed = Gather::new();
        owed.add_unmapped(first, granule, Depth::AllLevels);
        let tables = inputs.plan(&owed).lone().and(by_context.then_some(context));
        let inside = granule.bytes() - 1;
        Self { page, form: caps.range, tables, inside }
    }

    /// The command that pays all of `owed`, if that is one page whose table stayed in the tree, or tables.
    #[inline]
    pub(crate) fn of(&self, owed: &Gather) -> Option<Command> {
        let [span] = owed.unmapped() else {
            return None;
        };
        if span.depth == Depth::AllLevels {
            return self.tables.map(|context| Command::Context { context });
        }
        let mut command = self.page?;
        if span.range.len_minus_one() != self.inside {
            return None;
        }
        move_to(&mut command, span.range.start());
        Some(command)
    }

    /// The command that pays all of `owed`, if that is pages side by side whose table stayed in the tree.
    #[inline]
    pub(super) fn of_pages(&self, owed: &Gather) -> Option<Command> {
        let [Span { range, depth: Depth::LeafOnly, .. }] = *owed.unmapped() else {
            return None;
        };
        let mut command = self.page?;
        match &mut command {
            Command::Range { run, granule, .. } => {
                let mut left = Pages::of(range, *granule);
                *run = left.take_run(self.form).filter(|_| left.is_empty())?;
                Some(command)
            }
            // It is that of any pages.
            Command::Context { .. } => Some(command),
            _ => None,
        }
    }
}

/// Makes a command for the page at 0 one for that at `page`. In its place: a copy of all but the
/// address would be stored in bytes and loaded in words, for which a CPU waits.
#[inline]
fn move_to(command: &mut Command, page: Iova) {
    match command {
        Command::Page { iova: start, .. }
        | Command::Range {
            run: Run::PowerOfTwo { start, .. } | Run::NumScale { start, .. }, ..
        } => *start = page,
        _ => {}
    }
}
