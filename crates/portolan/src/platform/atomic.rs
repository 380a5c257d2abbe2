//! Atomics that are not a platform's words: counts and lists that the library keeps for itself.
//!
//! [`fence_after_exchange`] orders what is before an atomic addition, or another read and write in one, with
//! what comes after it.
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

/// Fence of order `SeqCst`, right after an atomic operation that reads and writes a word at once.
///
/// On x86 that operation waits for all stores before it and lets no load pass (Intel SDM, volume 3, section
/// 9.2.3.9, "Loads and Stores Are Not Reordered with Locked Instructions"; AMD64 APM, volume 2, section 7.4.2):
/// it is the processor's fence, and a second one would take as long again. The compiler is told separately.
#[inline(always)]
pub(crate) fn fence_after_exchange() {
    #[cfg(all(target_arch = "x86_64", not(any(miri, portolan_loom))))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, portolan_loom)))))]
    fence(Ordering::SeqCst);
}
