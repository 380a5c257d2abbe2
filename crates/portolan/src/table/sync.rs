//! Paying the debt of a table: lines written back, the plan handed over, and the proof.
//!
//! *Context.* Atomic: the queue waits for the hardware.

use super::PageTable;
use super::format::Format;
use crate::addr::InvalTag;
use crate::inval::{
    Capabilities, Gather, InvalidationQueue, OneCommand, PlanInputs, Quiesced, Quirks, Settled,
    SyncError, Walker, settle,
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
        caps: &Capabilities,
        quirks: &Quirks,
        owed: &mut Gather,
    ) -> Result<Quiesced, SyncError<Q::Error>> {
        let settled =
            self.settle(queue, PlanInputs { context: &context, caps, quirks }, None, owed)?;
        Ok(settled.into_quiesced(self.id))
    }

    /// Writes the lines of `owed` back and has `queue` settle it: by one command, if `lone` knows the
    /// one that does it alone, and by its plan otherwise.
    ///
    /// *Context.* Atomic: waits for the hardware.
    #[inline(always)]
    pub(crate) fn settle<'g, Q: InvalidationQueue + ?Sized>(
        &self,
        queue: &Q,
        inputs: PlanInputs<'_>,
        lone: Option<&OneCommand>,
        owed: &'g mut Gather,
    ) -> Result<Settled<'g>, SyncError<Q::Error>> {
        owed.check(self.id)?;
        if inputs.caps.walker != Walker::Coherent && owed.holds_lines() {
            owed.lines().iter().for_each(|&bytes| self.mem.clean(bytes));
            self.mem.clean_barrier();
        }
        settle(queue, inputs, lone, owed).map_err(SyncError::Queue)
    }
}
