//! The one trait that an embedder implements.

use alloc::sync::Arc;
use core::alloc::Layout;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;

use super::shared_data::AliasedMemory;
use crate::addr::{CpuId, PageSize, PciFunction, PhysAddr, PhysRange, TableId};
use crate::platform::{
    Clock, Cpus, DataCache, LeftBehind, Lock, Mmio, Nanos, ProtocolStep, SharedWord, StorePairs,
    Tracer,
};

/// The machine that the library runs on: memory, time, CPUs, locks and registers.
///
/// A value, zero-sized in most kernels, so that two machines can live in one process. It implements
/// [`Cpus`], [`Clock`] and [`DataCache`] by itself, and [`RawMemory`](super::RawMemory) makes memory
/// for page tables and pools of it.
///
/// *Context.* Interrupt, all methods but [`power_on`](Self::power_on); where handlers call the
/// library, [`alloc`](Self::alloc) has to come from a reserve, and may find none.
///
/// ```
/// use core::alloc::Layout;
/// use core::ptr::NonNull;
/// use core::sync::atomic::AtomicU64;
/// use portolan::addr::{PhysAddr, PhysRange};
/// use portolan::platform::{LeftBehind, Mmio, Nanos, Platform};
///
/// /// A process whose devices reach memory at the process's own addresses.
/// #[derive(Clone)]
/// struct Process;
///
/// /// It has no devices.
/// enum NoRegisters {}
///
/// impl Mmio for NoRegisters {
///     fn read32(&self, _offset: usize) -> u32 { match *self {} }
///     fn write32(&self, _offset: usize, _value: u32) { match *self {} }
/// }
///
/// // SAFETY: the allocator hands out each block once, at the address that `virt` returns.
/// unsafe impl Platform for Process {
///     type Word = AtomicU64;
///     type Lock<T: Send> = spin::Mutex<T>;
///     type Registers = NoRegisters;
///
///     fn now(&self) -> Nanos { Nanos::new(0) }
///
///     fn alloc(&self, layout: Layout) -> Option<PhysAddr> {
///         let at = unsafe { std::alloc::alloc_zeroed(layout) };
///         NonNull::new(at).map(|at| PhysAddr::new(at.addr().get() as u64))
///     }
///
///     unsafe fn free(&self, at: PhysAddr, layout: Layout) {
///         unsafe { std::alloc::dealloc(self.virt(at).as_ptr(), layout) }
///     }
///
///     unsafe fn virt(&self, at: PhysAddr) -> NonNull<u8> {
///         NonNull::new(at.get() as *mut u8).expect("memory is not at 0")
///     }
///
///     unsafe fn registers(&self, _window: PhysRange) -> Option<NoRegisters> { None }
///
///     // Its devices snoop, no unmap is lazy, and no handler calls the library.
///     fn clean(&self, _lines: PhysRange) {}
///     fn clean_barrier(&self) {}
///     fn invalidate(&self, _lines: PhysRange) {}
///     fn flush_wanted(&self) {}
///     fn drop_later(&self, left: LeftBehind) { drop(left) }
/// }
/// ```
///
/// # Safety
/// * [`alloc`](Self::alloc) returns memory that is aligned as asked for, zeroed, physically
///   contiguous, written back to memory, and the caller's alone until it is freed.
/// * [`virt`](Self::virt) returns where the CPU sees that byte, valid for reads and writes as long
///   as the memory is allocated; bytes of one block that follow each other in physical memory follow
///   each other there.
/// * [`alloc_uncached`](Self::alloc_uncached) and [`alloc_shared`](Self::alloc_shared) do the same, and
///   the address that they add is valid for reads and writes of all of it as long as it is allocated.
/// * A [`Lock`](Self::Lock) lets one holder in at a time, and while a CPU holds one, no interrupt
///   handler that calls the library runs on it ([`IrqLock`](crate::platform::IrqLock) does that).
/// * [`clean`](Self::clean), [`clean_barrier`](Self::clean_barrier), [`invalidate`](Self::invalidate) and
///   [`cache_line`](Self::cache_line) do and say what they are documented to.
pub unsafe trait Platform: Clone + Send + Sync + 'static {
    /// Words that CPUs share; mostly [`AtomicU64`].
    type Word: SharedWord;
    /// Locks that CPUs share.
    type Lock<T: Send>: Lock<T>;
    /// The registers of a device.
    type Registers: Mmio;

    /// The time: never goes back, and goes on while a caller polls.
    fn now(&self) -> Nanos;

    /// The time, where a cheap one that is late by up to a millisecond will do.
    fn coarse_now(&self) -> Nanos {
        self.now()
    }

    /// Called between two looks at something that another CPU or a device has to change.
    fn relax(&self) {
        core::hint::spin_loop();
    }

    /// Number of CPUs; at least 1.
    fn cpus(&self) -> usize {
        1
    }

    /// The CPU that calls, below [`cpus`](Self::cpus). It may be out of date as soon as it is
    /// returned.
    fn cpu(&self) -> CpuId {
        CpuId::new(0)
    }

    /// Memory that devices can reach; none if there is none.
    fn alloc(&self, layout: Layout) -> Option<PhysAddr>;

    /// Memory as from [`alloc`](Self::alloc) with any contents, which need not be in memory: the library
    /// writes all of it before a device can find it. The default is memory from `alloc`.
    fn alloc_unfilled(&self, layout: Layout) -> Option<PhysAddr> {
        self.alloc(layout)
    }

    /// Memory as from [`alloc`](Self::alloc) of which no byte lies above `last`, for a unit that reaches no
    /// higher; none if there is none. The default is for machines whose memory lies below 4 GiB, or whose
    /// `alloc` gives low memory: a higher block goes back.
    fn alloc_below(&self, layout: Layout, last: PhysAddr) -> Option<PhysAddr> {
        let at = self.alloc(layout)?;
        let bytes = layout.size() as u64;
        if at.get().saturating_add(bytes.saturating_sub(1)) <= last.get() {
            return Some(at);
        }
        // SAFETY: it has just come from there with this layout, and no other code knows of it.
        unsafe { self.free(at, layout) }
        None
    }

    /// Memory as from [`alloc`](Self::alloc) that CPUs do not cache, to share with a device that does
    /// not snoop; none if there is none. No line of it is in a cache.
    fn alloc_uncached(&self, _layout: Layout) -> Option<AliasedMemory> {
        None
    }

    /// Memory as from [`alloc`](Self::alloc) that a confidential guest has shared with its host, to share
    /// with a device that reaches no other; none if there is none. Freeing it makes it private again.
    fn alloc_shared(&self, _layout: Layout) -> Option<AliasedMemory> {
        None
    }

    /// Takes memory back.
    ///
    /// # Safety
    /// It came from [`alloc`](Self::alloc) or [`alloc_below`](Self::alloc_below) with this layout, is freed once,
    /// and no code reaches it.
    unsafe fn free(&self, at: PhysAddr, layout: Layout);

    /// Takes memory back that the CPU saw at an address of its own. By default it goes to
    /// [`free`](Self::free).
    ///
    /// # Safety
    /// It came from [`alloc_uncached`](Self::alloc_uncached) or [`alloc_shared`](Self::alloc_shared) with this
    /// layout, is freed once, and no code reaches it.
    unsafe fn free_aliased(&self, memory: AliasedMemory, layout: Layout) {
        // SAFETY: the caller's promise; a platform for which that is another way says so here.
        unsafe { self.free(memory.at, layout) }
    }

    /// Address at which the CPU sees the byte at `at`.
    ///
    /// # Safety
    /// It is memory from [`alloc`](Self::alloc) or [`alloc_below`](Self::alloc_below) that is not freed, or of a
    /// [`Buffer`](super::Buffer) or a pool that lives.
    unsafe fn virt(&self, at: PhysAddr) -> NonNull<u8>;

    /// Writes cache lines back to memory, for devices and walkers that do not snoop. It need not wait:
    /// [`clean_barrier`](Self::clean_barrier) does. Nothing has to be done where they all snoop; so for the next
    /// two.
    fn clean(&self, lines: PhysRange);

    /// Stores of two words at once ([`TableMem::pairs`](crate::platform::TableMem::pairs)), mostly those of
    /// [`CpuPairs::detect`](crate::platform::CpuPairs::detect). The default has none.
    fn pairs(&self) -> Option<&dyn StorePairs<AtomicU64>> {
        None
    }

    /// Waits until everything that was cleaned before is in memory.
    fn clean_barrier(&self);

    /// Drops cache lines, so that the next read comes from memory. Lines that a CPU has changed are
    /// written back before, so that nothing is lost.
    fn invalidate(&self, lines: PhysRange);

    /// The longest line of any cache between a CPU and memory: bytes that CPUs write and bytes that a
    /// device without snooping writes must not share one. The default, 128 bytes, is that of the
    /// processors on which devices do not snoop; one with longer lines has to say so.
    fn cache_line(&self) -> PageSize {
        PageSize::of_lg2(7)
    }

    /// The registers at `window`; none if they cannot be mapped.
    ///
    /// # Safety
    /// They are registers of a device, and the caller answers for every access to them: no memory
    /// of the program is there, and the device comes to reach only memory that is as
    /// [`DmaMemory::new`](super::DmaMemory::new) asks. Those of an IOMMU are handed to its driver,
    /// with memory and CPUs that do what their traits say, and to nothing else.
    unsafe fn registers(&self, window: PhysRange) -> Option<Self::Registers>;

    /// Switches the power and the clocks of the IOMMU with the registers at `window` on, for as long as the
    /// platform lives, and tells if they are on. Called before the first access to its registers, and only where
    /// firmware says that it needs them (a device tree's `power-domains` or `clocks`): a register without power
    /// may end the program. The default, for platforms that switch nothing, tells that they are off: such a unit
    /// is refused. *Context.* Task.
    fn power_on(&self, _window: PhysRange) -> bool {
        false
    }

    /// Four bytes of a PCI function's configuration space, at `offset`, a multiple of 4: to find the
    /// buses behind a bridge, and the capabilities of an IOMMU that is a function. None if there is
    /// no such function.
    fn pci_config(&self, _function: PciFunction, _offset: u16) -> Option<u32> {
        None
    }

    /// Called when a queue of deferred unmaps has reached one of its limits in a context that may not wait,
    /// and when a space has broken: a worker should call [`DmaSpace::tick`](crate::dma::DmaSpace::tick) soon.
    /// Until then devices reach memory that was unmapped lazily.
    fn flush_wanted(&self);

    /// Called when the last user of a device that is gone was an interrupt handler, or may have been:
    /// its remains, an address space often, have to be dropped by a task, since that waits for
    /// hardware and frees heap memory. Where handlers call the library, put it into a list
    /// ([`Leavings`](crate::platform::Leavings)) and wake a worker. Where none does, drop it.
    fn drop_later(&self, left: LeftBehind);

    /// Receiver of reports of maps, unmaps, flushes and faults: see [`Tracer`]. With none, as by
    /// default, the reports are not compiled.
    #[inline]
    fn tracer(&self) -> Option<&dyn Tracer> {
        None
    }

    /// Called at each step of the protocol of unmap, invalidate and free that the address space `of` makes, for
    /// checkers of runs. By default nothing, which costs nothing.
    #[inline(always)]
    fn protocol_step(&self, of: TableId, step: ProtocolStep) {
        let _ = (of, step);
    }
}

impl<P: Platform> Clock for P {
    #[inline]
    fn now(&self) -> Nanos {
        Platform::now(self)
    }

    #[inline]
    fn relax(&self) {
        Platform::relax(self);
    }
}

impl<P: Platform> Cpus for P {
    type Word = P::Word;
    type Lock<T: Send> = P::Lock<T>;

    #[inline]
    fn count(&self) -> usize {
        self.cpus()
    }

    #[inline]
    fn current(&self) -> CpuId {
        self.cpu()
    }

    #[inline]
    fn coarse_now(&self) -> Nanos {
        Platform::coarse_now(self)
    }

    #[inline]
    fn flush_wanted(&self) {
        Platform::flush_wanted(self);
    }

    fn drop_later(&self, left: LeftBehind) {
        Platform::drop_later(self, left);
    }

    fn data_cache(&self) -> Option<Arc<dyn DataCache>> {
        Some(Arc::new(self.clone()))
    }

    #[inline]
    fn tracer(&self) -> Option<&dyn Tracer> {
        Platform::tracer(self)
    }

    #[inline(always)]
    fn protocol_step(&self, of: TableId, step: ProtocolStep) {
        Platform::protocol_step(self, of, step);
    }
}
