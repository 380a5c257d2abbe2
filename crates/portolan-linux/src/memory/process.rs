//! A process as the machine that the library runs on, and memory of it that is handed to devices.
//!
//! A physical address is an address of the process, as VFIO and iommufd map it. Memory is whole pages of
//! its own, aligned to huge pages where it is as large as one. A map pins it, so it need not be locked.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use portolan::addr::{CpuId, PageSize, PhysAddr, PhysRange};
use portolan::dma::{Buffer, Pieces};
use portolan::platform::{Nanos, Platform, SpinLock};
use rustix::mm::{Advice, madvise};

use crate::vfio::Bar;

const PAGE: usize = PageSize::SIZE_4K.bytes() as usize;
const HUGE: usize = PageSize::SIZE_2M.bytes() as usize;

/// This process: the [`Platform`] of user-space drivers. Its registers are those of
/// [`VfioDevice::bar`](crate::vfio::VfioDevice::bar), not found by physical address.
#[derive(Clone, Copy, Debug, Default)]
pub struct Process;

/// `layout` with whole pages, so that nothing else lies in them, and huge ones where there is room.
fn paged(layout: Layout) -> Option<Layout> {
    let page = if layout.size() >= HUGE { HUGE } else { PAGE };
    let layout = layout.align_to(page).ok()?.pad_to_align();
    (layout.size() != 0).then_some(layout)
}

/// Zeroed pages; `None` if there are none.
fn take(layout: Layout) -> Option<NonNull<u8>> {
    let layout = paged(layout)?;
    // SAFETY: the layout has bytes.
    let at = NonNull::new(unsafe { alloc_zeroed(layout) })?;
    if layout.align() >= HUGE {
        // SAFETY: the advice changes no byte of the memory. Without huge pages it has small ones.
        let _ = unsafe { madvise(at.as_ptr().cast(), layout.size(), Advice::LinuxHugepage) };
    }
    Some(at)
}

/// # Safety
/// As [`Platform::free`], of memory from [`take`].
unsafe fn give_back(at: NonNull<u8>, layout: Layout) {
    if let Some(layout) = paged(layout) {
        // SAFETY: the caller's promise; the layout is the one that `take` made of this.
        unsafe { dealloc(at.as_ptr(), layout) }
    }
}

// SAFETY: memory is the allocator's, each block handed out once, at the address that `virt` returns. A
// process has no interrupt handlers, and `SpinLock` lets one in.
unsafe impl Platform for Process {
    type Word = AtomicU64;
    type Lock<T: Send> = SpinLock<T>;
    type Registers = Bar;

    fn now(&self) -> Nanos {
        static START: OnceLock<Instant> = OnceLock::new();
        let since = START.get_or_init(Instant::now).elapsed();
        Nanos::new(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    fn relax(&self) {
        // This thread may wait for another one that runs on this very CPU.
        std::thread::yield_now();
    }

    fn cpus(&self) -> usize {
        static CPUS: OnceLock<usize> = OnceLock::new();
        *CPUS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
    }

    fn cpu(&self) -> CpuId {
        let cpus = u32::try_from(self.cpus()).unwrap_or(1).max(1);
        CpuId::new(rustix::thread::sched_getcpu() as u32 % cpus)
    }

    fn alloc(&self, layout: Layout) -> Option<PhysAddr> {
        take(layout).map(|at| PhysAddr::new(at.as_ptr().expose_provenance() as u64))
    }

    unsafe fn free(&self, at: PhysAddr, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { give_back(self.virt(at), layout) }
    }

    unsafe fn virt(&self, at: PhysAddr) -> NonNull<u8> {
        let at = std::ptr::with_exposed_provenance_mut(at.get() as usize);
        NonNull::new(at).unwrap_or(NonNull::dangling())
    }

    /// None: a process finds registers by device.
    unsafe fn registers(&self, _: PhysRange) -> Option<Bar> {
        None
    }

    fn clean(&self, _: PhysRange) {}

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: PhysRange) {}

    fn flush_wanted(&self) {}

    fn drop_later(&self, left: portolan::platform::LeftBehind) {
        drop(left);
    }
}

/// Whole pages of this process: a buffer for devices.
///
/// ```
/// use portolan_linux::memory::Pages;
///
/// let mut packet = Pages::new(1500).expect("memory");
/// packet[..4].copy_from_slice(b"ping");
/// assert_eq!(packet.len(), 4096);
/// // device.map(packet, ToDevice) hands it over, and gives it back when the device is done.
/// ```
#[derive(Debug)]
pub struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory is the value's alone.
unsafe impl Send for Pages {}
// SAFETY: a shared value can only be read.
unsafe impl Sync for Pages {}

impl Pages {
    /// At least `bytes` zeroed bytes, rounded up to whole pages of 4 KiB; `None` if there is no memory, or
    /// no byte was asked for.
    ///
    /// *Context.* Task.
    pub fn new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes, PAGE).ok()?.pad_to_align();
        let start = take(layout)?;
        // Devices' drivers find it by its address.
        let _ = start.as_ptr().expose_provenance();
        Some(Self { start, layout })
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is the value's, of this length, and initialised. While a device may reach it
        // the value is with the library, which does not come here.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: it came from `take` with this layout, and no code reaches it any more.
        unsafe { give_back(self.start, self.layout) }
    }
}

// SAFETY: the memory stays at its place as long as the value lives, no other code has it, and the view is
// that memory.
unsafe impl Buffer for Pages {
    fn pieces(&self) -> Pieces<'_> {
        let at = PhysAddr::new(self.start.addr().get() as u64);
        let memory = PhysRange::from_len(at, self.layout.size() as u64);
        // Not empty, and memory ends below 2^64.
        Pieces::One(memory.unwrap_or(PhysRange::page(at, PageSize::SIZE_4K)))
    }

    fn device_may_write(&self) -> bool {
        true
    }

    fn view(&self) -> Option<NonNull<[u8]>> {
        Some(NonNull::slice_from_raw_parts(self.start, self.layout.size()))
    }
}
