//! Types of the memory that the CPU and a device share as long as it lives.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use crate::addr::PhysAddr;

/// Data that a device may read and change at any time: an entry of a ring, a block of status words.
///
/// ```
/// use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
/// use portolan::dma::SharedData;
///
/// /// A descriptor of a network card: what it is to do, and what it has done.
/// #[repr(C)]
/// struct Descriptor {
///     address: AtomicU64,
///     bytes: AtomicU32,
///     flags: AtomicU16,
///     status: AtomicU16,
/// }
/// // SAFETY: its fields are atomics.
/// unsafe impl SharedData for Descriptor {}
///
/// fn is_done(entry: &Descriptor) -> bool {
///     entry.status.load(Ordering::Acquire) & 1 != 0
/// }
/// ```
///
/// # Safety
/// All fields are atomics of 8 to 64 bits, types of this kind, or arrays of those: so any bits are a value, zeros are
/// at first, and bytes may change behind a `&Self`. It has nothing to drop, and no code has references of two such
/// types to the same bytes.
pub unsafe trait SharedData: Send + Sync + 'static {}

// SAFETY: it is an atomic.
unsafe impl SharedData for AtomicU8 {}
// SAFETY: as above.
unsafe impl SharedData for AtomicU16 {}
// SAFETY: as above.
unsafe impl SharedData for AtomicU32 {}
// SAFETY: as above.
unsafe impl SharedData for AtomicU64 {}
// SAFETY: its items are of this kind.
unsafe impl<T: SharedData, const N: usize> SharedData for [T; N] {}

/// Memory that the CPU sees at an address of its own: uncached, or shared with a host.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AliasedMemory {
    /// Its first byte.
    pub at: PhysAddr,
    /// Address at which the CPU sees that byte; the others follow there.
    pub virt: NonNull<u8>,
}
