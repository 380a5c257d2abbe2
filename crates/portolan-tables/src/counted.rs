//! Bytes of tables and trees that readers look at, counted on each thread with the feature `counted`: for tests
//! of the work that a description takes.
//!
//! *Context.* Interrupt.

#[cfg(feature = "counted")]
mod on_this_thread {
    extern crate std;

    std::thread_local! {
        static LOOKED: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
    }

    pub(crate) fn add(bytes: usize) {
        LOOKED.set(LOOKED.get() + bytes);
    }

    /// Number of bytes that this thread has looked at so far.
    pub fn looked() -> usize {
        LOOKED.get()
    }
}

#[cfg(feature = "counted")]
pub(crate) use on_this_thread::add;
#[cfg(feature = "counted")]
pub use on_this_thread::looked;

#[cfg(not(feature = "counted"))]
pub(crate) const fn add(_bytes: usize) {}
