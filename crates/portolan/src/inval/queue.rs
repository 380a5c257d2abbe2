//! Where a plan goes, and how it is handed over.

use thiserror::Error;

use super::plan::one;
use super::{Capabilities, Command, Gather, Quirks, Step, WrongTable, plan};
use crate::addr::InvalTag;

/// Where steps go.
///
/// *Implementer's duties.* The steps are carried out in order, and the call returns `Ok` only once
/// the last [`Step::Sync`] among them has completed. It returns within a deadline of the
/// implementer's, whatever the hardware does.
///
/// *Context.* Atomic: waits for the hardware.
pub trait InvalidationQueue {
    /// Why the hardware did not complete.
    type Error: Copy;

    /// Carries out `steps` and waits for them.
    ///
    /// # Errors
    /// If the hardware refused a step or did not complete in time.
    fn execute(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), Self::Error>;

    /// As [`InvalidationQueue::execute`], for hardware that wants to know more of the debt than its
    /// `steps` say.
    ///
    /// # Errors
    /// As [`InvalidationQueue::execute`].
    #[inline]
    fn pay(
        &self,
        steps: &mut dyn Iterator<Item = Step>,
        _owed: &Gather,
    ) -> Result<(), Self::Error> {
        self.execute(steps)
    }

    /// As [`InvalidationQueue::pay`] of a debt that `command` and a sync after it pay: for queues that
    /// can do without asking for the next step.
    ///
    /// # Errors
    /// As [`InvalidationQueue::execute`].
    #[inline]
    fn pay_by(&self, command: Command, owed: &Gather) -> Result<(), Self::Error> {
        self.pay(
            &mut [Step::Invalidate(command), Step::Sync].into_iter(),
            owed,
        )
    }
}

impl<Q: InvalidationQueue + ?Sized> InvalidationQueue for alloc::sync::Arc<Q> {
    type Error = Q::Error;

    fn execute(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), Q::Error> {
        (**self).execute(steps)
    }

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, owed: &Gather) -> Result<(), Q::Error> {
        (**self).pay(steps, owed)
    }

    #[inline]
    fn pay_by(&self, command: Command, owed: &Gather) -> Result<(), Q::Error> {
        (**self).pay_by(command, owed)
    }
}

/// Why a debt was not paid. It is still owed: nothing of it may be reused.
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

/// Has `queue` carry out the plan of `owed`, whose lines were written back.
///
/// # Errors
/// If the queue failed.
#[inline]
pub(crate) fn submit<Q: InvalidationQueue + ?Sized>(
    queue: &Q,
    context: InvalTag,
    caps: &Capabilities,
    quirks: &Quirks,
    owed: &Gather,
) -> Result<(), Q::Error> {
    if let Some(command) = one(context, caps, quirks, owed) {
        return queue.pay_by(command, owed);
    }
    let plan = plan(context, caps, quirks, owed);
    match plan.is_empty() {
        true => Ok(()),
        false => queue.pay(&mut plan.steps(), owed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::sync::Arc;
    use core::iter::empty;

    /// Fails, and says what was asked for.
    struct Fails;

    impl InvalidationQueue for Fails {
        type Error = &'static str;

        fn execute(&self, _: &mut dyn Iterator<Item = Step>) -> Result<(), Self::Error> {
            Err("steps")
        }

        fn pay(&self, _: &mut dyn Iterator<Item = Step>, _: &Gather) -> Result<(), Self::Error> {
            Err("a debt")
        }

        fn pay_by(&self, _: Command, _: &Gather) -> Result<(), Self::Error> {
            Err("a command")
        }
    }

    #[test]
    fn a_pointer_to_a_queue_passes_steps_and_debts_on() {
        let queue = Arc::new(Fails);
        assert_eq!(queue.execute(&mut empty()), Err("steps"));
        assert_eq!(queue.pay(&mut empty(), &Gather::new()), Err("a debt"));
        let context = InvalTag::new(1);
        let by = queue.pay_by(Command::Context { context }, &Gather::new());
        assert_eq!(by, Err("a command"));
    }
}
