//! Time, and waits that end.
//!
//! *Context.* Interrupt, but for [`poll`], which waits.

/// Nanoseconds: a point in time since an arbitrary start, or a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(u64);

impl Nanos {
    /// So many nanoseconds.
    pub const fn new(ns: u64) -> Self {
        Self(ns)
    }

    /// So many milliseconds; the longest span there is if they are too many.
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// The number of nanoseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The span since an earlier point; zero if it is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

/// A monotonic clock.
///
/// *Implementer's duties.* `now` never goes back, and goes on while a caller polls.
pub trait Clock {
    /// The time.
    fn now(&self) -> Nanos;

    /// Called between two looks at a value that another CPU or a device has to change.
    fn relax(&self) {
        core::hint::spin_loop();
    }
}

impl<C: Clock + ?Sized> Clock for alloc::sync::Arc<C> {
    fn now(&self) -> Nanos {
        (**self).now()
    }

    fn relax(&self) {
        (**self).relax();
    }
}

/// Looks until `look` finds something, at least twice, and not longer than `limit`.
///
/// *Context.* Atomic: waits.
///
/// # Errors
/// The time waited, if it never did.
pub fn poll<T>(
    clock: &(impl Clock + ?Sized),
    limit: Nanos,
    mut look: impl FnMut() -> Option<T>,
) -> Result<T, Nanos> {
    let begin = clock.now();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        let waited = clock.now().since(begin);
        if waited >= limit {
            // A CPU that was held up between the two may have missed a value that came in time.
            return look().ok_or(waited);
        }
        clock.relax();
    }
}
