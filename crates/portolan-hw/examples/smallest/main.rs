//! The smallest program: a platform of one's own, firmware's table, and a buffer that a card fills.
mod kernel;

use core::{alloc::Layout, ptr::NonNull};
use kernel::{CARD, Kernel, Packet};
use portolan::addr::{PhysAddr, PhysRange};
use portolan::dma::Direction;
use portolan::platform::{LeftBehind, Nanos, Platform};
use portolan_hw::topology::{Options, Topology};

// SAFETY: the kernel hands out each block once, and `mapped` is where its page tables map it.
unsafe impl Platform for Kernel {
    type Word = core::sync::atomic::AtomicU64;
    type Lock<T: Send> = portolan::platform::SpinLock<T>;
    type Registers = kernel::Registers;
    fn now(&self) -> Nanos {
        self.time()
    }
    fn alloc(&self, layout: Layout) -> Option<PhysAddr> {
        self.frames(layout)
    }
    unsafe fn free(&self, at: PhysAddr, layout: Layout) {
        self.take_back(at, layout);
    }
    unsafe fn virt(&self, at: PhysAddr) -> NonNull<u8> {
        self.mapped(at)
    }
    unsafe fn registers(&self, window: PhysRange) -> Option<kernel::Registers> {
        self.device(window)
    }
    // The card snoops the caches, no timer is to be woken, and a task drops the rest.
    fn clean(&self, _: PhysRange) {}
    fn clean_barrier(&self) {}
    fn invalidate(&self, _: PhysRange) {}
    fn flush_wanted(&self) {}
    fn drop_later(&self, left: LeftBehind) {
        drop(left);
    }
}

fn main() -> Result<(), Box<dyn core::error::Error>> {
    let (kernel, tables, described) = kernel::boot();
    let units = Topology::from_acpi([&tables[..]])?;
    let iommus = units.enable(kernel, Options::default(), described)?;
    let card = iommus.trusted_device(CARD)?;
    let rx = card.map(Packet, Direction::FromDevice)?;
    // ... the card writes to rx.iova(), and interrupts ...
    Ok(rx.unmap().map(drop)?)
}
