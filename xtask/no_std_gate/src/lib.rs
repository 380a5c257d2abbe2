//! Links the library into a static library without std.
//!
//! The panic handler below is the second one if anything brings std in, and the build fails with a
//! duplicate `panic_impl`. With the feature `std` it fails on purpose. Nothing here is ever run.
#![no_std]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

use portolan_hw as _;

use core::alloc::{GlobalAlloc, Layout};
use core::panic::PanicInfo;
use core::sync::atomic::AtomicU64;

use portolan::addr::{InvalTag, Iova, PageSize, PhysAddr};
use portolan::inval::{
    Capabilities, Gather, InvalidationQueue, Quirks, RangeForm, Step, TablesLeft,
};
use portolan::platform::SlabTables;
use portolan::table::format::{VtdLevels, VtdSecondStage};
use portolan::table::{Access, PageTable};

/// An allocator that has nothing to give.
struct NoMemory;

// SAFETY: `alloc` always fails, which is allowed, so `dealloc` is never called.
unsafe impl GlobalAlloc for NoMemory {
    unsafe fn alloc(&self, _layout: Layout) -> *mut u8 {
        core::ptr::null_mut()
    }

    unsafe fn dealloc(&self, _memory: *mut u8, _layout: Layout) {}
}

#[global_allocator]
static MEMORY: NoMemory = NoMemory;

#[panic_handler]
fn panic(_info: &PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

/// A queue that counts steps.
struct Counter(core::cell::Cell<u64>);

impl InvalidationQueue for Counter {
    type Error = ();

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), ()> {
        self.0.set(self.0.get() + steps.count() as u64);
        Ok(())
    }
}

const CAPABILITIES: Capabilities = Capabilities {
    range: RangeForm::PowerOfTwo { max_lg2_pages: 18 },
    ..Capabilities::new(PageSize::SIZE_4K)
};

/// Maps, translates, unmaps, syncs and reclaims; returns the number of steps that took.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_gate(iova: u64, pa: u64, bytes: u64) -> u64 {
    cycle(Iova::new(iova), PhysAddr::new(pa), bytes).unwrap_or(u64::MAX)
}

fn cycle(iova: Iova, pa: PhysAddr, bytes: u64) -> Option<u64> {
    let format = VtdSecondStage::new(VtdLevels::Four, 46);
    let memory = SlabTables::<AtomicU64>::new(PhysAddr::new(0x8000_0000), PageSize::SIZE_4K, 16);
    let table = PageTable::new(format, &memory).ok()?;
    let queue = Counter(core::cell::Cell::new(0));
    let quirks = Quirks::default();
    let context = InvalTag::new(1);

    let mut owed = Gather::new();
    let range = table.map(iova, pa, bytes, Access::READ, &mut owed).ok()?;
    let quiet = table.sync(&queue, context, &CAPABILITIES, &quirks, &mut owed).ok()?;
    table.reclaim(quiet).ok()?;
    table.translate(iova)?;

    let mut owed = Gather::new();
    table.unmap(range, &mut owed).ok()?;
    let quiet = table.sync(&queue, context, &CAPABILITIES, &quirks, &mut owed).ok()?;
    table.reclaim(quiet).ok()?;
    Some(queue.0.get())
}
