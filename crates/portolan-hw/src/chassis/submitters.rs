//! Submitters of a unit's invalidations: each CPU for itself, or one for all that meet, as the unit's options say.
//!
//! *Context.* Interrupt, but for functions that make one (task).

use portolan::inval::{CombineOptions, Combiner, Ranges};
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

    /// The submitter for all CPUs that meet, if there is one.
    #[inline]
    pub(crate) fn combiner(&self) -> Option<&Combiner<C>> {
        self.0.as_ref()
    }
}
