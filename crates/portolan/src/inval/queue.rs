//! Queues that carry out plans, and the way in which a plan is handed over.

use thiserror::Error;

use super::{
    Capabilities, Command, Gather, OneCommand, PlanInputs, Quirks, Settled, Step, WrongTable, plan,
};
use crate::addr::InvalTag;

/// Table pages of a debt that have left the tree: entries of walk caches for them go before they
/// are used again.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TablesLeft {
    /// None.
    No,
    /// Some.
    Yes,
    /// As the [`Depth`](super::Depth) of the commands says; for a command that has no depth, some.
    ByDepth,
}

impl TablesLeft {
    /// Of a debt that is paid together with another.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        match (self, other) {
            (Self::No, other) | (other, Self::No) => other,
            (Self::ByDepth, Self::ByDepth) => Self::ByDepth,
            _ => Self::Yes,
        }
    }

    #[inline]
    pub(crate) fn of(owed: &Gather) -> Self {
        // No branch, so that it costs a queue nothing that does not ask.
        const OF: [TablesLeft; 2] = [TablesLeft::No, TablesLeft::Yes];
        OF[usize::from(owed.holds_tables())]
    }
}

/// Destination of steps.
///
/// *Implementer's duties.* The steps are carried out in order, and the call returns `Ok` only once
/// the last [`Step::Sync`] among them has completed. It returns within a deadline of the
/// implementer's, also if the hardware does not respond. A queue in front of another one hands
/// `tables` on.
///
/// *Context.* Atomic: waits for the hardware.
pub trait InvalidationQueue {
    /// Reason why the hardware did not complete.
    type Error: Copy;

    /// Carries out `steps`, which pay a debt of which `tables` is true, and waits for them.
    ///
    /// # Errors
    /// If the hardware refused a step or did not complete in time.
    fn pay(
        &self,
        steps: &mut dyn Iterator<Item = Step>,
        tables: TablesLeft,
    ) -> Result<(), Self::Error>;

    /// As [`InvalidationQueue::pay`] of a debt that `command` and a sync after it pay. A queue need not
    /// implement it: it is for one that builds a command in fewer instructions than it takes to ask
    /// for the next step.
    ///
    /// # Errors
    /// As [`InvalidationQueue::pay`].
    #[inline]
    fn pay_by(&self, command: Command, tables: TablesLeft) -> Result<(), Self::Error> {
        let steps = [Step::Invalidate(command), Step::Sync];
        self.pay(&mut steps.into_iter(), tables)
    }
}

impl<Q: InvalidationQueue + ?Sized> InvalidationQueue for alloc::sync::Arc<Q> {
    type Error = Q::Error;

    fn pay(
        &self,
        steps: &mut dyn Iterator<Item = Step>,
        tables: TablesLeft,
    ) -> Result<(), Q::Error> {
        (**self).pay(steps, tables)
    }

    #[inline]
    fn pay_by(&self, command: Command, tables: TablesLeft) -> Result<(), Q::Error> {
        (**self).pay_by(command, tables)
    }
}

/// Reason why a debt was not paid. It is still owed: nothing of it may be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SyncError<E> {
    /// The debt is of another table.
    #[error(transparent)]
    WrongTable(#[from] WrongTable),
    /// The queue did not complete.
    #[error("the invalidation did not complete")]
    Queue(E),
}

/// Has `queue` settle `owed`, whose lines were written back: by one command, if `lone` knows the one
/// that does it alone, and by the plan of `owed` otherwise.
///
/// *Context.* Atomic: waits for the hardware.
///
/// # Errors
/// If the queue failed; `owed` is as it was.
#[inline(always)]
pub(crate) fn settle<'g, Q: InvalidationQueue + ?Sized>(
    queue: &Q,
    inputs: PlanInputs<'_>,
    lone: Option<&OneCommand>,
    owed: &'g mut Gather,
) -> Result<Settled<'g>, Q::Error> {
    match lone.and_then(|one| one.of(owed)) {
        Some(command) => queue.pay_by(command, TablesLeft::of(owed))?,
        None => carry_out(queue, *inputs.context, inputs.caps, inputs.quirks, lone, owed)?,
    }
    Ok(Settled::new(owed))
}

/// Carries out the plan of `owed`: seldom, beside the command of one page or of tables. Its inputs
/// come one by one, in registers: the frequent way stores none of them.
#[inline(never)]
fn carry_out<Q: InvalidationQueue + ?Sized>(
    queue: &Q,
    context: InvalTag,
    caps: &Capabilities,
    quirks: &Quirks,
    lone: Option<&OneCommand>,
    owed: &Gather,
) -> Result<(), Q::Error> {
    if let Some(command) = lone.and_then(|one| one.of_pages(owed)) {
        return queue.pay_by(command, TablesLeft::of(owed));
    }
    let plan = plan(context, caps, quirks, owed);
    match plan.lone() {
        Some(command) => queue.pay_by(command, TablesLeft::of(owed)),
        None if plan.is_empty() => Ok(()),
        None => queue.pay(&mut plan.steps(), TablesLeft::of(owed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails, with the kind of the call as its error.
    struct Fails;

    impl InvalidationQueue for Fails {
        type Error = &'static str;

        fn pay(&self, _: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), Self::Error> {
            Err("steps")
        }

        fn pay_by(&self, _: Command, _: TablesLeft) -> Result<(), Self::Error> {
            Err("a command")
        }
    }

    #[test]
    fn a_pointer_to_a_queue_passes_steps_and_commands_on() {
        let queue = alloc::sync::Arc::new(Fails);
        assert_eq!(queue.pay(&mut core::iter::empty(), TablesLeft::No), Err("steps"));
        let context = crate::addr::InvalTag::new(1);
        let by = queue.pay_by(Command::Context { context }, TablesLeft::Yes);
        assert_eq!(by, Err("a command"));
    }

    #[test]
    fn debts_that_are_paid_together_hold_tables_if_one_of_them_does() {
        use TablesLeft::{ByDepth, No, Yes};
        for (one, other, both) in [
            (No, No, No),
            (No, Yes, Yes),
            (No, ByDepth, ByDepth),
            (Yes, ByDepth, Yes),
            (ByDepth, ByDepth, ByDepth),
            (Yes, Yes, Yes),
        ] {
            assert_eq!((one.with(other), other.with(one)), (both, both));
        }
    }
}
