//! Paying a debt: submit the plan, wait, and get the proof.

use super::{Capabilities, Gather, Quiesced, Quirks, Step, plan};
use crate::addr::ContextId;

/// Where steps go.
///
/// *Implementer's duties.* The steps are carried out in order, and the call returns `Ok` only once
/// the last [`Step::Sync`] among them has completed. It returns within a deadline of the
/// implementer's, whatever the hardware does.
pub trait InvalidationQueue {
    /// Why the hardware did not complete.
    type Error: Copy;

    /// Carries out `steps` and waits for them.
    ///
    /// # Errors
    /// If the hardware refused a step or did not complete in time.
    fn execute(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), Self::Error>;
}

impl<Q: InvalidationQueue + ?Sized> InvalidationQueue for alloc::sync::Arc<Q> {
    type Error = Q::Error;

    fn execute(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), Q::Error> {
        (**self).execute(steps)
    }
}

/// A sync that failed: why, and the debt, which is still owed.
#[derive(Debug)]
pub struct SyncFailed<E> {
    /// Why.
    pub error: E,
    /// What is still owed.
    pub gather: Gather,
}

/// Pays what `gather` owes through `queue`, which is left alone if the plan has no steps.
///
/// # Errors
/// [`SyncFailed`] with the debt if the queue failed: nothing may be reused yet.
#[inline]
#[allow(clippy::result_large_err)] // The debt travels back whole, without a heap.
pub fn sync<Q: InvalidationQueue + ?Sized>(
    queue: &Q,
    context: ContextId,
    caps: &Capabilities,
    quirks: &Quirks,
    gather: Gather,
) -> Result<Quiesced, SyncFailed<Q::Error>> {
    let mut steps = plan(context, caps, quirks, &gather).steps().peekable();
    let done = match steps.peek() {
        Some(_) => queue.execute(&mut steps),
        None => Ok(()),
    };
    drop(steps);
    match done {
        Ok(()) => Ok(gather.into_quiesced()),
        Err(error) => Err(SyncFailed { error, gather }),
    }
}
