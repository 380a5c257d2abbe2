//! A platform's memory, for drivers.
//!
//! The only module of the crate in which `unsafe` is allowed.
#![allow(unsafe_code)]

use portolan::platform::{Platform, RawMemory};

/// Memory for a driver's queues and tables.
pub(super) fn for_driver<P: Platform>(platform: &P) -> RawMemory<P> {
    // SAFETY: drivers of this crate reach only pages that they have allocated and not freed, and
    // hand the memory to page tables, which do the same.
    unsafe { RawMemory::new(platform.clone()) }
}
