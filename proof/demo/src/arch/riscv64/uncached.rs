//! RAM that the hart does not cache: none, since addresses stay physical here, and Svpbmt has its bits in page tables.

use core::ptr::NonNull;

use portolan::addr::PhysRange;

/// No address.
///
/// # Safety
/// None.
pub unsafe fn map_uncached(_block: PhysRange) -> Option<NonNull<u8>> {
    None
}

/// No memory is of such a type.
pub fn uncached_type(_at: NonNull<u8>) -> Option<&'static str> {
    None
}
