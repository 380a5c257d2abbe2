//! RAM that the CPU does not cache.
//!
//! Arm architecture reference manual for A-profile (DDI 0487), D8.3 (descriptors), D8.6 (memory attributes), D8.16
//! (break-before-make), D19 (MAIR_EL1, PAR_EL1).

use core::arch::asm;
use core::ffi::c_void;
use core::ptr::NonNull;

use portolan::addr::PhysRange;

unsafe extern "C" {
    /// Blocks of 2 MiB from 1 GiB on (`boot.s`).
    static pages: c_void;
}

/// Address that the first block maps.
const FIRST: u64 = 1 << 30;
/// Bytes of a block, as an exponent.
const BLOCK_LG2: u64 = 21;
/// The index of an attribute in a descriptor, and that of Normal memory that is not cached in `boot.s`.
const ATTRIBUTE: u64 = 7 << 2;
const NOT_CACHED: u64 = 2 << 2;
/// Normal memory, Inner and Outer Non-cacheable, as an attribute.
const NORMAL_NC: u64 = 0x44;

/// Maps the 2 MiB of `block` as uncached, and returns the address at which the CPU sees them.
///
/// # Safety
/// They are RAM that no code uses, and no other processor runs.
pub unsafe fn map_uncached(block: PhysRange) -> Option<NonNull<u8>> {
    let at = block.start().get();
    let number =
        usize::try_from(at.checked_sub(FIRST)? >> BLOCK_LG2).ok().filter(|of| *of < 512)?;
    // SAFETY: no code uses the block, so that it may be absent for a while; the entry is one of those of `boot.s`.
    unsafe {
        let entry = (&raw const pages).cast::<u64>().cast_mut().add(number);
        let found = entry.read_volatile();
        entry.write_volatile(0);
        asm!("dsb sy", "tlbi vmalle1", "dsb sy", "isb", options(nostack, preserves_flags));
        entry.write_volatile(found & !ATTRIBUTE | NOT_CACHED);
        asm!("dsb sy", "isb", options(nostack, preserves_flags));
    }
    NonNull::new(core::ptr::with_exposed_provenance_mut(at as usize))
}

/// The memory type of the page at `at`, as the CPU translates it, if CPUs do not cache it.
pub fn uncached_type(at: NonNull<u8>) -> Option<&'static str> {
    let result: u64;
    // SAFETY: a translation changes nothing but the register that it is read from.
    unsafe {
        asm!("at s1e1r, {}", "isb", "mrs {}, par_el1", in(reg) at.as_ptr(), lateout(reg) result,
            options(nostack, preserves_flags));
    }
    let failed = result & 1 != 0;
    (!failed && result >> 56 == NORMAL_NC).then_some("Normal Non-cacheable")
}
