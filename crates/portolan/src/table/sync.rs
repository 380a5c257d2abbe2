//! Paying the debt of a table: lines written back, the plan handed over, and the proof.
//!
//! *Context.* Atomic: the queue waits for the hardware.

use super::PageTable;
use super::format::Format;
use crate::addr::InvalTag;
use crate::inval::{
    Capabilities, Depth, Gather, InvalidationQueue, OneCommand, PlanInputs, Quiesced, Quirks,
    Settled, SyncError, Walker, settle,
};
use crate::platform::{DebtName, ProtocolStep, TableMem, WalkCaches};

impl<F: Format, M: TableMem<F::Word>> PageTable<F, M> {
    /// Pays the debt `owed`: writes cache lines back where the walker of `caps` does not snoop, and
    /// makes `queue` carry out the plan, unless that has no steps. `owed` is empty afterwards.
    ///
    /// *Caller's duties.* `context` is the tag under which the hardware keeps this table's translations,
    /// in every entry that points at it: a sync of another tag proves nothing.
    ///
    /// *Context.* Atomic: waits for the hardware.
    ///
    /// # Errors
    /// [`SyncError`] if the queue failed or the debt is of another table; `owed` is then as it was.
    #[inline]
    pub fn sync<Q: InvalidationQueue + ?Sized>(
        &self,
        queue: &Q,
        context: InvalTag,
        caps: &Capabilities,
        quirks: &Quirks,
        owed: &mut Gather,
    ) -> Result<Quiesced, SyncError<Q::Error>> {
        owed.check(self.id)?;
        self.write_back(caps.walker, owed);
        let inputs = PlanInputs { context: &context, caps, quirks };
        let settled = self.settle(queue, inputs, None, owed);
        Ok(settled.map_err(SyncError::Queue)?.into_quiesced(self.id))
    }

    /// Has `queue` settle `owed`, as [`settle`] does, and tells a checker of runs.
    #[inline(always)]
    pub(crate) fn settle<'g, Q: InvalidationQueue + ?Sized>(
        &self,
        queue: &Q,
        inputs: PlanInputs<'_>,
        lone: Option<&OneCommand>,
        owed: &'g mut Gather,
    ) -> Result<Settled<'g>, Q::Error> {
        let debt = DebtName::of(owed);
        for span in owed.unmapped() {
            let walk_caches = match span.depth {
                Depth::AllLevels => WalkCaches::Forget,
                Depth::LeafOnly => WalkCaches::Keep,
            };
            self.tell(ProtocolStep::Send { debt, range: span.range, walk_caches });
        }
        let settled = settle(queue, inputs, lone, owed);
        self.tell(match settled {
            Ok(_) => ProtocolStep::Settle { debt },
            Err(_) => ProtocolStep::Fail { debt },
        });
        settled
    }

    /// Writes the lines of `owed` back, where `walker` does not snoop.
    #[inline]
    pub(crate) fn write_back(&self, walker: Walker, owed: &Gather) {
        if walker != Walker::Coherent && owed.holds_lines() {
            owed.lines().iter().for_each(|&bytes| self.mem.clean(bytes));
            self.mem.clean_barrier();
        }
    }
}
