//! Submitters of a unit's invalidations: each CPU for itself, or one for all that meet, as the unit's options say.
//!
//! *Context.* Atomic, but for functions that make one (task): [`Submitters::pay`] waits for the
//! hardware, and within a limit for other CPUs.

use portolan::inval::{CombineOptions, Combiner, InvalidationQueue, Ranges, Step, TablesLeft};
use portolan::platform::Cpus;

/// Submitters of a unit's invalidations.
#[derive(Debug)]
pub(crate) struct Submitters<C: Cpus>(Option<Combiner<C>>);

impl<C: Cpus> Submitters<C> {
    /// Each caller its own.
    pub(crate) const fn alone() -> Self {
        Self(None)
    }

    /// Of a unit with the range commands `ranges`: each caller its own without `combining`.
    pub(crate) fn new(cpus: &C, ranges: Ranges, combining: Option<CombineOptions>) -> Self {
        Self(combining.map(|options| Combiner::new(cpus, ranges, options)))
    }

    /// Has `queue`, which is the unit's, carry out `steps`.
    #[inline]
    pub(crate) fn pay<Q: InvalidationQueue>(
        &self,
        cpus: &C,
        queue: &Q,
        steps: &mut dyn Iterator<Item = Step>,
        tables: TablesLeft,
    ) -> Result<(), Q::Error> {
        match &self.0 {
            Some(combiner) => combiner.pay(cpus, queue, steps, tables),
            None => queue.pay(steps, tables),
        }
    }
}
