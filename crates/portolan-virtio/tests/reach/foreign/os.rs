//! The other kernel, as it was before it had an IOMMU: its own allocator of pages, guard of interrupts, linear mapping,
//! virtio driver and block layer. Nothing here knows of Portolan.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock};

use virtio_drivers::Hal;
use virtio_drivers::device::blk::VirtIOBlk;
use virtio_drivers::transport::Transport;

pub const PAGE_SIZE: usize = 4096;

/// Memory of the kernel: where it is, where the kernel sees it, and which pages are taken.
struct Memory {
    phys: usize,
    virt: usize,
    taken: Mutex<Vec<bool>>,
}

static MEMORY: OnceLock<Memory> = OnceLock::new();

fn memory() -> &'static Memory {
    MEMORY.get().expect("the kernel has booted")
}

/// Boots with `pages` pages of memory at `phys`.
pub fn boot(phys: usize, virt: NonNull<u8>, pages: usize) {
    let virt = virt.as_ptr().expose_provenance();
    MEMORY.get_or_init(|| Memory { phys, virt, taken: Mutex::new(vec![false; pages]) });
}

pub fn phys_to_virt(phys: usize) -> usize {
    phys - memory().phys + memory().virt
}

pub fn virt_to_phys(virt: usize) -> Option<usize> {
    let inside = virt.checked_sub(memory().virt)?;
    let bytes = memory().taken.lock().unwrap().len() * PAGE_SIZE;
    (inside < bytes).then_some(memory().phys + inside)
}

/// The address of so many pages, aligned, with what is in them.
pub fn alloc_pages(count: usize, align: usize) -> Option<usize> {
    let mut taken = memory().taken.lock().unwrap();
    let step = align.div_ceil(PAGE_SIZE).max(1);
    let last = taken.len().checked_sub(count)?;
    let first = (0..=last).step_by(step).find(|at| !taken[*at..at + count].contains(&true))?;
    taken[first..first + count].fill(true);
    Some(memory().virt + first * PAGE_SIZE)
}

pub fn dealloc_pages(virt: usize, count: usize) {
    let first = (virt - memory().virt) / PAGE_SIZE;
    memory().taken.lock().unwrap()[first..first + count].fill(false);
}

/// Pages that are taken.
pub fn used_pages() -> usize {
    memory().taken.lock().unwrap().iter().filter(|taken| **taken).count()
}

thread_local! {
    static GUARDS: Cell<usize> = const { Cell::new(0) };
}

/// The guard that keeps interrupts and preemption out.
pub struct NoPreemptIrqSave;

impl NoPreemptIrqSave {
    pub fn acquire() -> usize {
        GUARDS.replace(GUARDS.get() + 1)
    }

    pub fn release(before: usize) {
        assert_eq!(GUARDS.get(), before + 1, "guards nest");
        GUARDS.set(before);
    }

    /// Number of guards of this thread.
    pub fn held() -> usize {
        GUARDS.get()
    }
}

/// Drivers of block devices, for file systems.
pub trait BlockDriverOps {
    fn read_block(&mut self, block: usize, to: &mut [u8]) -> Option<()>;
    fn write_block(&mut self, block: usize, from: &[u8]) -> Option<()>;
}

/// The one type of virtio disks.
pub struct VirtIoBlkDev<H: Hal, T: Transport>(VirtIOBlk<H, T>);

impl<H: Hal, T: Transport> VirtIoBlkDev<H, T> {
    pub fn try_new(transport: T) -> Option<Self> {
        VirtIOBlk::new(transport).ok().map(Self)
    }
}

impl<H: Hal, T: Transport> BlockDriverOps for VirtIoBlkDev<H, T> {
    fn read_block(&mut self, block: usize, to: &mut [u8]) -> Option<()> {
        self.0.read_blocks(block, to).ok()
    }

    fn write_block(&mut self, block: usize, from: &[u8]) -> Option<()> {
        self.0.write_blocks(block, from).ok()
    }
}

/// A buffer of the block layer's, in pages of the kernel.
pub struct DmaBuffer(usize);

impl DmaBuffer {
    pub fn new() -> Self {
        Self(alloc_pages(1, PAGE_SIZE).expect("a page"))
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        let first = std::ptr::with_exposed_provenance_mut(self.0);
        // SAFETY: the page is the buffer's alone.
        unsafe { std::slice::from_raw_parts_mut(first, PAGE_SIZE) }
    }
}

impl Drop for DmaBuffer {
    fn drop(&mut self) {
        dealloc_pages(self.0, 1);
    }
}
