//! Values that the last user, an interrupt handler, may not drop.
//!
//! Dropping an address space waits for hardware, and frees heap memory. A handler that is the last
//! to use one hands it on by [`Cpus::drop_later`](super::Cpus::drop_later); a worker drops it.

use alloc::boxed::Box;
use core::fmt;

/// Something whose last user was an interrupt handler. Dropping it frees it.
///
/// *Context.* Interrupt, but for dropping it.
///
/// *Drop.* Task.
#[must_use = "dropping it here may wait"]
pub struct LeftBehind(Box<dyn Item>);

/// Value that can be left behind, in a box that it brought.
pub(crate) trait Item: Send + Sync {
    /// The next object in the list.
    fn next(&mut self) -> &mut Option<LeftBehind>;
}

impl LeftBehind {
    pub(crate) fn new(item: Box<dyn Item>) -> Self {
        Self(item)
    }
}

impl fmt::Debug for LeftBehind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeftBehind")
    }
}

/// Things that were left behind, until a task drops them: for the platform, under a lock of its own.
///
/// *Context.* Interrupt, but for dropping one that is not empty: no method takes or frees memory.
///
/// *Drop.* Task. It drops its contents.
#[derive(Debug, Default)]
pub struct Leavings {
    first: Option<LeftBehind>,
}

impl Leavings {
    /// Nothing left behind yet.
    pub const fn new() -> Self {
        Self { first: None }
    }

    /// Tells if there are none.
    pub const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Adds one.
    pub fn push(&mut self, mut left: LeftBehind) {
        *left.0.next() = self.first.take();
        self.first = Some(left);
    }

    /// Takes one out.
    pub fn pop(&mut self) -> Option<LeftBehind> {
        let mut left = self.first.take()?;
        self.first = left.0.next().take();
        Some(left)
    }

    /// Takes all out, for a worker that drops them once it holds the lock no more.
    #[must_use = "dropping them here may wait"]
    pub fn take(&mut self) -> Self {
        core::mem::take(self)
    }
}

impl Drop for Leavings {
    fn drop(&mut self) {
        // One after the other: a list of boxes would be dropped by recursion.
        while let Some(left) = self.pop() {
            drop(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::sync::Arc;
    use alloc::vec::Vec;
    use spin::Mutex;

    type Log = Arc<Mutex<Vec<u32>>>;

    struct Noting(u32, Log, Option<LeftBehind>);

    impl Item for Noting {
        fn next(&mut self) -> &mut Option<LeftBehind> {
            &mut self.2
        }
    }

    impl Drop for Noting {
        fn drop(&mut self) {
            self.1.lock().push(self.0);
        }
    }

    fn list(log: &Log, numbers: core::ops::Range<u32>) -> Leavings {
        let mut list = Leavings::new();
        for number in numbers {
            let item = Noting(number, log.clone(), None);
            list.push(LeftBehind::new(Box::new(item)));
        }
        list
    }

    #[test]
    fn all_that_is_left_is_dropped_once_however_long_the_list() {
        let log = Log::default();
        let mut kept = list(&log, 0..3);
        drop(kept.pop());
        assert_eq!(*log.lock(), [2]);
        let taken = kept.take();
        assert!(kept.is_empty() && !taken.is_empty());
        drop((kept, taken));
        assert_eq!(*log.lock(), [2, 1, 0]);
        // More than a stack would take.
        drop(list(&log, 0..200_000));
        assert_eq!(log.lock().len(), 200_003);
    }
}
