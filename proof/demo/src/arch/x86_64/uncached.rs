//! RAM that the CPU does not cache.
//!
//! Intel 64 and IA-32 architectures software developer's manual, volume 3, sections 4.5 (paging with four levels) and
//! 12.12 (memory types by page: PAT).

use core::arch::asm;
use core::ffi::c_void;
use core::ptr::NonNull;

use portolan::addr::PhysRange;

unsafe extern "C" {
    /// Entries of 2 MiB each, one after the other (`boot.s`).
    static directories: c_void;
}

/// Bytes of an entry, as an exponent.
const LARGE_LG2: u64 = 21;
/// Bits of an entry: present, the two that select one of four memory types, large, and its third for large pages.
const PRESENT: u64 = 1;
const WRITE_THROUGH: u64 = 1 << 3;
const UNCACHED: u64 = 1 << 4;
const LARGE: u64 = 1 << 7;
const LARGE_PAT: u64 = 1 << 12;
/// Address of a table in an entry.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// IA32_PAT, and its value for UC.
const PAT: u32 = 0x277;
const UC: u64 = 0;

/// Maps the 2 MiB of `block` as uncached, and returns the address at which the CPU sees them.
///
/// # Safety
/// They are RAM that no code uses, and no other processor runs.
pub unsafe fn map_uncached(block: PhysRange) -> Option<NonNull<u8>> {
    let at = block.start().get() as usize;
    let number = at >> LARGE_LG2;
    // SAFETY: `boot.s` maps 4 GiB by these entries, and all RAM of the kernel lies below.
    unsafe {
        let entry = (&raw const directories).cast::<u64>().cast_mut().add(number);
        entry.write_volatile(entry.read_volatile() | WRITE_THROUGH | UNCACHED);
        asm!("invlpg [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    NonNull::new(core::ptr::with_exposed_provenance_mut(at))
}

/// The memory type of the page at `at`, as the CPU's own tables have it, if CPUs do not cache it.
pub fn uncached_type(at: NonNull<u8>) -> Option<&'static str> {
    let at = at.as_ptr().expose_provenance() as u64;
    let mut table: u64;
    // SAFETY: it is read.
    unsafe { asm!("mov {}, cr3", out(reg) table, options(nomem, nostack, preserves_flags)) };
    for shift in [39, 30, LARGE_LG2, 12] {
        let word = (table & ADDRESS) as usize + ((at >> shift) & 511) as usize * 8;
        // SAFETY: a table of the CPU's, which is mapped one to one.
        let entry = unsafe { core::ptr::with_exposed_provenance::<u64>(word).read_volatile() };
        if entry & PRESENT == 0 {
            return None;
        }
        if shift == LARGE_LG2 && entry & LARGE != 0 {
            let third = if entry & LARGE_PAT == 0 { 0 } else { 4 };
            let index = third | ((entry & UNCACHED) >> 3) | ((entry & WRITE_THROUGH) >> 3);
            return (pat() >> (8 * index) & 0xff == UC).then_some("UC");
        }
        table = entry;
    }
    None
}

/// The memory types that entries select.
fn pat() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: each x86-64 CPU has the register, which is read.
    unsafe {
        asm!("rdmsr", in("ecx") PAT, out("eax") low, out("edx") high, options(nomem, nostack))
    };
    u64::from(high) << 32 | u64::from(low)
}
