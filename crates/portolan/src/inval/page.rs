//! The command that pays for one page, decided once for a unit: most unmaps owe nothing else.
//!
//! *Context.* Interrupt: a value.

use super::plan::one;
use super::{Caching, Capabilities, Command, Depth, Gather, Quirks, Run};
use crate::addr::{InvalTag, Iova, IovaRange, PageSize};

/// What pays for a page of a table where nothing comes before the command but the page's address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageCommand {
    /// For the page at 0; none where a page takes more than one command, or depends on more.
    command: Option<Command>,
    /// Bytes of a page, less one.
    inside: u64,
}

impl PageCommand {
    /// For pages of `granule`, in a table with the tag `context`.
    pub(crate) fn new(
        context: InvalTag,
        caps: &Capabilities,
        quirks: &Quirks,
        granule: PageSize,
    ) -> Self {
        let mut owed = Gather::new();
        let first = IovaRange::page(Iova::new(0), granule);
        owed.add_unmapped(first, granule, Depth::LeafOnly);
        // What was mapped differs from debt to debt.
        let alike = caps.caching == Caching::PresentOnly;
        let alike = alike && caps.granule <= granule;
        let command = one(context, caps, quirks, &owed).filter(|_| alike);
        let inside = granule.bytes() - 1;
        Self { command, inside }
    }

    /// The command that pays all of `owed`, if that is one page whose table stayed in the tree.
    #[inline]
    pub(crate) fn of(&self, owed: &Gather) -> Option<Command> {
        let [span] = owed.unmapped() else {
            return None;
        };
        let page = span.range.len_minus_one() == self.inside;
        let command = self.command?;
        (page && span.depth == Depth::LeafOnly).then(|| at(command, span.range.start()))
    }
}

/// The command for the page at `page` instead of that at 0.
#[inline]
fn at(command: Command, page: Iova) -> Command {
    match command {
        Command::Page {
            context,
            size,
            depth,
            ..
        } => Command::Page {
            context,
            iova: page,
            size,
            depth,
        },
        Command::Range {
            context,
            run,
            granule,
            depth,
        } => {
            let run = match run {
                Run::PowerOfTwo { lg2_pages, .. } => Run::PowerOfTwo {
                    start: page,
                    lg2_pages,
                },
                Run::NumScale { num, scale, .. } => Run::NumScale {
                    start: page,
                    num,
                    scale,
                },
            };
            Command::Range {
                context,
                run,
                granule,
                depth,
            }
        }
        all => all,
    }
}
