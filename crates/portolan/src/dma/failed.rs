//! Failures that give back the value that was handed in.
//!
//! *Context.* Interrupt: a value.

use core::error::Error;
use core::fmt;

/// Error of an operation, with the value that was handed in for it.
///
/// ```
/// use portolan::dma::{Failed, MapError};
///
/// fn refused(packet: Vec<u8>) -> Result<(), Failed<Vec<u8>, MapError>> {
///     Err(Failed { error: MapError::Empty, value: packet })
/// }
/// let failed = refused(vec![1, 2]).expect_err("an example of a failure");
/// assert_eq!(failed.value, [1, 2]);
///
/// // With `?`, what comes back goes where it can be found again.
/// fn retried(packet: Vec<u8>, spare: &mut Vec<Vec<u8>>) -> Result<(), MapError> {
///     refused(packet).map_err(|failed| failed.keep(|packet| spare.push(packet)))?;
///     Ok(())
/// }
/// let mut spare = Vec::new();
/// assert_eq!(retried(vec![3], &mut spare), Err(MapError::Empty));
/// assert_eq!(spare, [[3]]);
/// ```
#[must_use = "it holds what was handed in"]
pub struct Failed<T, E> {
    /// The reason for the failure.
    pub error: E,
    /// Value that was handed in, as it is now.
    pub value: T,
}

impl<T, E> Failed<T, E> {
    /// Hands the value to `keep`, and returns the error: for `map_err` before a `?`.
    pub fn keep(self, keep: impl FnOnce(T)) -> E {
        keep(self.value);
        self.error
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dma::MapError;

    #[derive(Debug)]
    struct Outer(MapError);

    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("outside")
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn it_says_what_its_error_says() {
        let error = Outer(MapError::Empty);
        let failed = Failed { error, value: () };
        let [shown, printed] = [alloc::format!("{failed}"), alloc::format!("{failed:?}")];
        assert_eq!(shown, "outside");
        assert!(printed.contains("Outer(Empty)"), "{printed}");
        assert!(failed.source().is_some_and(|source| source.is::<MapError>()));
    }
}
