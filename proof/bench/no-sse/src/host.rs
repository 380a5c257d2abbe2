//! Memory from the process that the code is linked into, and the two functions that it gives to it.

use alloc::boxed::Box;
use core::alloc::{GlobalAlloc, Layout};
use core::ffi::c_void;
use core::panic::PanicInfo;

use crate::Row;

unsafe extern "C" {
    fn aligned_alloc(align: usize, bytes: usize) -> *mut c_void;
    fn free(block: *mut c_void);
    safe fn abort() -> !;
}

struct Host;

#[global_allocator]
static HOST: Host = Host;

// SAFETY: the C library's blocks are aligned as asked for, and none overlaps another.
unsafe impl GlobalAlloc for Host {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Whole multiples of the alignment, as C11 wants them.
        let bytes = layout.pad_to_align().size();
        // SAFETY: an alignment is a power of two.
        unsafe { aligned_alloc(layout.align().max(16), bytes).cast() }
    }

    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: the block is of `alloc`.
        unsafe { free(block.cast()) }
    }
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    abort()
}

/// Makes the row of a number; null if there is none, or no memory.
#[unsafe(no_mangle)]
extern "C" fn portolan_row(number: u32) -> *mut Row {
    Row::of(number).map_or(core::ptr::null_mut(), |row| Box::into_raw(Box::new(row)))
}

/// Does a row's operation `pairs` times; tells if none failed.
///
/// # Safety
/// `row` is of [`portolan_row`], and no other thread calls this.
#[unsafe(no_mangle)]
unsafe extern "C" fn portolan_run(row: *const Row, pairs: u64) -> bool {
    // SAFETY: the caller's promise.
    let row = unsafe { &*row };
    row.run(pairs)
}

/// Drops a row.
///
/// # Safety
/// `row` is of [`portolan_row`], and not used again.
#[unsafe(no_mangle)]
unsafe extern "C" fn portolan_end(row: *mut Row) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(row) });
}
