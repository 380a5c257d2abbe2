//! Atomics that are not a platform's words: counts and lists that the library keeps for itself.
//!
//! With `--cfg portolan_loom` they are the model checker's, so that `tests/walks.rs` explores them.
//!
//! *Context.* Interrupt.

#[cfg(not(portolan_loom))]
pub(crate) use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(portolan_loom)]
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
