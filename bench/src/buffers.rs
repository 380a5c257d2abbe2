//! Buffers without an owner.
//!
//! The only module of the crate in which `unsafe` is allowed.
#![allow(unsafe_code)]

use portolan::addr::PhysRange;
use portolan::dma::Unowned;

/// Memory to be mapped.
#[inline]
pub(crate) fn unowned(memory: PhysRange) -> Unowned {
    // SAFETY: there is no device, so nothing reaches the memory.
    unsafe { Unowned::new(memory) }
}
