//! A platform that implements no more than it has to.

use alloc::boxed::Box;
use alloc::vec;
use core::alloc::Layout;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;

use spin::Mutex;

use super::Platform;
use crate::addr::{CpuId, PageSize, PciFunction, PhysAddr, PhysRange};
use crate::platform::{Cpus, LeftBehind, Mmio, Nanos, SpinLock};

/// Address of the one block of memory.
const AT: PhysAddr = PhysAddr::new(0x5000);

static MEMORY: Mutex<Option<Box<[u64]>>> = Mutex::new(None);

#[derive(Clone)]
struct Plain;

enum NoRegisters {}

impl Mmio for NoRegisters {
    fn read32(&self, _: usize) -> u32 {
        match *self {}
    }

    fn write32(&self, _: usize, _: u32) {
        match *self {}
    }
}

// SAFETY: the block is a box of its own, which stays where it is until it is freed.
unsafe impl Platform for Plain {
    type Word = AtomicU64;
    type Lock<T: Send> = SpinLock<T>;
    type Registers = NoRegisters;

    fn now(&self) -> Nanos {
        Nanos::new(7)
    }

    fn alloc(&self, layout: Layout) -> Option<PhysAddr> {
        let mut memory = MEMORY.lock();
        if memory.is_some() {
            return None;
        }
        *memory = Some(vec![0; layout.size().div_ceil(8)].into());
        Some(AT)
    }

    unsafe fn free(&self, at: PhysAddr, _: Layout) {
        let freed = MEMORY.lock().take();
        assert_eq!((at, freed.is_some()), (AT, true));
    }

    unsafe fn virt(&self, _: PhysAddr) -> NonNull<u8> {
        let mut memory = MEMORY.lock();
        let block = memory.as_deref_mut().expect("memory that was handed out");
        NonNull::from(block).cast()
    }

    unsafe fn registers(&self, _: PhysRange) -> Option<NoRegisters> {
        None
    }

    fn clean(&self, _: PhysRange) {}

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: PhysRange) {}

    fn flush_wanted(&self) {}

    fn drop_later(&self, left: LeftBehind) {
        drop(left);
    }
}

#[test]
fn a_platform_has_one_cpu_and_no_special_memory_unless_it_says_otherwise() {
    let platform = Plain;
    assert_eq!((Cpus::count(&platform), Cpus::current(&platform)), (1, CpuId::new(0)));
    assert_eq!(Cpus::coarse_now(&platform), Nanos::new(7));
    assert_eq!(platform.cache_line(), PageSize::of_lg2(7));
    assert!(Platform::tracer(&platform).is_none());
    let page = Layout::from_size_align(0x1000, 0x1000).unwrap();
    // `alloc` has some: what it hands out is neither uncached nor shared with a host.
    assert_eq!((platform.alloc_uncached(page), platform.alloc_shared(page)), (None, None));
    let window = PhysRange::page(AT, PageSize::SIZE_4K);
    assert!(!platform.power_on(window), "no unit is switched on");
    assert_eq!(platform.pci_config(PciFunction::of(0, 0, 0), 0), None);
}

#[test]
fn a_platform_gives_memory_back_that_a_unit_does_not_reach() {
    let page = Layout::from_size_align(0x1000, 0x1000).unwrap();
    let last = AT.get() + 0xfff;
    for reached in [last, last + 1, u64::MAX] {
        assert_eq!(Plain.alloc_below(page, PhysAddr::new(reached)), Some(AT));
        // SAFETY: it has just come from there, and nothing has used it.
        unsafe { Plain.free(AT, page) }
    }
    for reached in [0, AT.get(), last - 1] {
        assert_eq!(Plain.alloc_below(page, PhysAddr::new(reached)), None);
        assert!(MEMORY.lock().is_none(), "kept, and of no use");
    }
}
