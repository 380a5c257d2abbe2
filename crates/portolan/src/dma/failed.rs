//! Failures that give back what was handed in.
//!
//! *Context.* Interrupt: a value.

use core::error::Error;
use core::fmt;

/// Why something was not done, and what was handed in for it.
#[must_use = "it holds what was handed in"]
pub struct Failed<T, E> {
    /// Why.
    pub error: E,
    /// What was handed in, as it is now.
    pub value: T,
}

impl<T, E: fmt::Debug> fmt::Debug for Failed<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Failed");
        shown.field("error", &self.error).finish_non_exhaustive()
    }
}

impl<T, E: fmt::Display> fmt::Display for Failed<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T, E: Error> Error for Failed<T, E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}
