//! Paying the debt of a table: lines written back, the plan handed over, and the proof.
//!
//! *Context.* Atomic: the queue waits for the hardware.

use super::PageTable;
use super::format::Format;
use crate::addr::InvalTag;
use crate::inval::{
    Capabilities, Command, Flushed, Gather, InvalidationQueue, PlanInputs, Quiesced, Quirks,
    Settled, SyncError, Walker, settle,
};
use crate::platform::TableMem;

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
        (caps, quirks): (&Capabilities, &Quirks),
        owed: &mut Gather,
    ) -> Result<Quiesced, SyncError<Q::Error>> {
        let settled = self.settle(queue, PlanInputs { context, caps, quirks }, None, owed)?;
        Ok(settled.into_quiesced(self.id))
    }

    /// As [`PageTable::sync`], and takes the table pages of the debt back at once. `lone` is the command
    /// that alone pays it, if the caller knows it.
    ///
    /// *Context.* Atomic: waits for the hardware.
    #[inline]
    pub(crate) fn sync_and_reclaim<Q: InvalidationQueue + ?Sized>(
        &self,
        queue: &Q,
        inputs: PlanInputs<'_>,
        lone: Option<Command>,
        owed: &mut Gather,
    ) -> Result<Flushed, SyncError<Q::Error>> {
        let settled = self.settle(queue, inputs, lone, owed)?;
        Ok(settled.reclaim(|tables, unlinked| self.take_in(tables, unlinked)))
    }

    #[inline]
    fn settle<'g, Q: InvalidationQueue + ?Sized>(
        &self,
        queue: &Q,
        inputs: PlanInputs<'_>,
        lone: Option<Command>,
        owed: &'g mut Gather,
    ) -> Result<Settled<'g>, SyncError<Q::Error>> {
        owed.check(self.id)?;
        self.write_back(inputs.caps.walker, owed);
        settle(queue, inputs, lone, owed).map_err(SyncError::Queue)
    }

    /// Writes back the lines that `owed` names, and waits until they are in memory, where `walker` reads
    /// memory.
    #[inline]
    fn write_back(&self, walker: Walker, owed: &Gather) {
        if walker != Walker::Coherent && owed.holds_lines() {
            owed.lines().iter().for_each(|&bytes| self.mem.clean(bytes));
            self.mem.clean_barrier();
        }
    }
}
