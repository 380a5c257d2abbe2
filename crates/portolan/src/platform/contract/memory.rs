//! Memory that a platform hands out, dereferenced.

use core::alloc::Layout;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64};

use super::buffer::{Sharing, Unowned};
use super::bytes::copy_shared;
use super::platform::Platform;
use super::shared_data::{AliasedMemory, SharedData};
use crate::addr::{PageSize, PhysAddr, PhysRange, TableId};
use crate::platform::{
    Clearing, DataCache, OutOfTableMemory, PhysMemory, ProtocolStep, StorePairs, TableMem, Transfer,
};

/// A platform's memory by physical address: for page tables, and for the copies of bounce pools.
///
/// *Context.* Interrupt, as [`TableMem`] says.
#[derive(Clone)]
pub struct RawMemory<P> {
    platform: P,
    /// Last physical address of table memory.
    last: PhysAddr,
}

/// No end.
const ANYWHERE: PhysAddr = PhysAddr::new(u64::MAX);

impl<P> fmt::Debug for RawMemory<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RawMemory")
    }
}

impl<P: Platform> RawMemory<P> {
    /// The memory of `platform`.
    ///
    /// *Context.* Interrupt: a value.
    ///
    /// # Safety
    /// The holder of it, or of a copy of it, calls [`TableMem::table`] and [`TableMem::free`] only
    /// with addresses and sizes of pages that [`TableMem::alloc`] of one of them has returned and
    /// that were not freed. So it goes only to [`PageTable`](crate::table::PageTable) and the
    /// drivers of `portolan-hw`, which do so and lend it to no other code. Copies need no promise:
    /// a [`Transfer`] names only memory that lives.
    pub const unsafe fn new(platform: P) -> Self {
        let last = ANYWHERE;
        Self { platform, last }
    }

    /// The same, whose table memory lies below `2^lg2` bytes: for a unit that reaches no higher.
    ///
    /// *Context.* Interrupt: a value.
    #[must_use]
    pub fn below(self, lg2: u32) -> Self {
        let last = match 1u64.checked_shl(lg2) {
            Some(end) => PhysAddr::new(end - 1).min(self.last),
            None => self.last,
        };
        Self { last, ..self }
    }

    /// The same for a pool, which asks it for copies alone and keeps it to itself.
    pub(crate) const fn for_copies(platform: P) -> Self {
        let last = ANYWHERE;
        Self { platform, last }
    }
}

/// Most bytes that are copied or cleared at once, for any width of a CPU's addresses.
const PART: u64 = 1 << 30;

/// The layout of a page; `None` if it is larger than any object of this machine.
fn layout(size: PageSize) -> Option<Layout> {
    let bytes = usize::try_from(size.bytes()).ok()?;
    Layout::from_size_align(bytes, bytes).ok()
}

macro_rules! tables {
    ($word:ty $(, $pairs:item)?) => {
        impl<P: Platform> TableMem<$word> for RawMemory<P> {
            fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
                TableMem::<$word>::alloc_below(self, size, ANYWHERE)
            }

            fn alloc_unfilled(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
                if self.last != ANYWHERE {
                    return TableMem::<$word>::alloc(self, size);
                }
                let page = layout(size).and_then(|layout| self.platform.alloc_unfilled(layout));
                page.ok_or(OutOfTableMemory { size })
            }

            fn alloc_below(
                &self,
                size: PageSize,
                last: PhysAddr,
            ) -> Result<PhysAddr, OutOfTableMemory> {
                let page = layout(size).and_then(|layout| match last.min(self.last) {
                    ANYWHERE => self.platform.alloc(layout),
                    last => self.platform.alloc_below(layout, last),
                });
                page.ok_or(OutOfTableMemory { size })
            }

            fn free(&self, table: PhysAddr, size: PageSize) {
                if let Some(layout) = layout(size) {
                    // SAFETY: `new` has the holder's promise that it is a page of this size, which
                    // is freed once.
                    unsafe { self.platform.free(table, layout) }
                }
            }

            #[inline]
            fn table(&self, table: PhysAddr, size: PageSize) -> &[$word] {
                let words = size.bytes() as usize / size_of::<$word>();
                // SAFETY: `new` has the holder's promise that it is a live page of this size. It is
                // aligned to that, any bits are a valid word, and words are atomic.
                unsafe {
                    let first = self.platform.virt(table).cast::<$word>();
                    core::slice::from_raw_parts(first.as_ptr(), words)
                }
            }

            fn clean(&self, bytes: PhysRange) {
                self.platform.clean(bytes);
            }

            fn clean_barrier(&self) {
                self.platform.clean_barrier();
            }

            fn invalidate(&self, bytes: PhysRange) {
                self.platform.invalidate(bytes);
            }

            $($pairs)?

            #[inline(always)]
            fn protocol_step(&self, of: TableId, step: ProtocolStep) {
                self.platform.protocol_step(of, step);
            }
        }
    };
}

tables!(AtomicU32);
tables!(
    AtomicU64,
    fn pairs(&self) -> Option<&dyn StorePairs<AtomicU64>> {
        self.platform.pairs()
    }
);

/// Copies the bytes of `transfer`, whose memory the CPU sees where `virt` says.
fn copy_by(transfer: &Transfer, virt: impl Fn(PhysAddr) -> NonNull<u8>) {
    let (mut from, mut to) = (transfer.from().get(), transfer.to().get());
    let mut left = transfer.bytes();
    while left > 0 {
        let part = left.min(PART);
        let (source, target) = (virt(PhysAddr::new(from)), virt(PhysAddr::new(to)));
        // SAFETY: the library makes a transfer of buffers and pools that live, and the two places do not
        // overlap. A device may write there meanwhile; bytes of any value are copied. Where other CPUs may as
        // well, it says so. A part fits `usize`.
        unsafe {
            let part = part as usize;
            match transfer.sharing() {
                Sharing::Exclusive => source.copy_to_nonoverlapping(target, part),
                Sharing::Shared => copy_shared(source, target, part),
            }
        }
        // Only after the last part can they pass the top.
        (from, to) = (from.wrapping_add(part), to.wrapping_add(part));
        left -= part;
    }
}

/// Clears the bytes of `clearing`, which the CPU sees where `virt` says.
fn clear_by(clearing: &Clearing, virt: impl Fn(PhysAddr) -> NonNull<u8>) {
    let (mut at, last) = (clearing.memory().start().get(), clearing.memory().last().get());
    loop {
        let more = (last - at).min(PART - 1);
        let first = virt(PhysAddr::new(at)).as_ptr();
        // SAFETY: the library makes a clearing of a pool that lives. A part fits `usize`.
        unsafe { core::ptr::write_bytes(first, 0, more as usize + 1) }
        if last - at <= more {
            return;
        }
        at += more + 1;
    }
}

impl<P: Platform> PhysMemory for RawMemory<P> {
    fn copy(&self, transfer: &Transfer) {
        // SAFETY: a transfer names memory of buffers and pools that live.
        copy_by(transfer, |at| unsafe { self.platform.virt(at) });
    }

    fn clear(&self, clearing: &Clearing) {
        // SAFETY: a clearing names memory of a pool that lives.
        clear_by(clearing, |at| unsafe { self.platform.virt(at) });
    }
}

impl<P: Platform> DataCache for P {
    fn clean(&self, memory: PhysRange) {
        Platform::clean(self, memory);
        self.clean_barrier();
    }

    fn invalidate(&self, memory: PhysRange) {
        Platform::invalidate(self, memory);
    }

    fn line(&self) -> PageSize {
        Platform::cache_line(self)
    }
}

/// Kind of memory that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Any,
    Uncached,
    Shared,
}

/// Memory of a platform that has an owner, and is freed when that is dropped.
///
/// *Context.* Interrupt, but for [`OwnedMemory::new`] and dropping it (task).
pub(crate) struct OwnedMemory<P: Platform> {
    platform: P,
    memory: AliasedMemory,
    layout: Layout,
    wanted: Wanted,
    when_dropped: WhenDropped,
}

// SAFETY: the memory is the value's, all CPUs see it at that address, and safe code reaches it by atomics alone.
unsafe impl<P: Platform> Send for OwnedMemory<P> {}
// SAFETY: as above.
unsafe impl<P: Platform> Sync for OwnedMemory<P> {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WhenDropped {
    Free,
    Keep,
}

impl<P: Platform> OwnedMemory<P> {
    /// Zeroed memory of `pages` pages of size `page`; `None` if there is none.
    pub(crate) fn new(platform: P, pages: u64, page: PageSize, wanted: Wanted) -> Option<Self> {
        let bytes = usize::try_from(pages.checked_mul(page.bytes())?).ok()?;
        let align = usize::try_from(page.bytes()).ok()?;
        let layout = Layout::from_size_align(bytes, align).ok()?;
        if bytes == 0 {
            return None;
        }
        let memory = match wanted {
            Wanted::Any => {
                let at = platform.alloc(layout)?;
                // SAFETY: it has just come from there.
                let virt = unsafe { platform.virt(at) };
                AliasedMemory { at, virt }
            }
            Wanted::Uncached => platform.alloc_uncached(layout)?,
            Wanted::Shared => platform.alloc_shared(layout)?,
        };
        Some(Self { platform, memory, layout, wanted, when_dropped: WhenDropped::Free })
    }

    /// The memory, for a pool that keeps the value as long as a slot is taken.
    pub(crate) fn promise(&self) -> Unowned {
        // SAFETY: no other code has the memory, and the pool that gets it reaches it through the value.
        let memory = unsafe { Unowned::new(self.range()) };
        match self.wanted {
            Wanted::Shared => memory.host_visible(),
            Wanted::Any | Wanted::Uncached => memory,
        }
    }

    /// Address at which the CPU sees the byte at `at`: of this memory, or of a buffer that lives.
    fn virt(&self, at: PhysAddr) -> NonNull<u8> {
        let inside = at.get().checked_sub(self.memory.at.get());
        let inside = inside.and_then(|inside| usize::try_from(inside).ok());
        match inside.filter(|inside| *inside < self.layout.size()) {
            // SAFETY: the byte is inside the memory.
            Some(inside) => unsafe { self.memory.virt.add(inside) },
            // SAFETY: it is of a buffer that lives, which is all that is copied to this memory and from it.
            None => unsafe { self.platform.virt(at) },
        }
    }

    /// Leaves it allocated for good: a device may reach it.
    pub(crate) fn keep(&mut self) {
        self.when_dropped = WhenDropped::Keep;
    }

    /// Range of the memory.
    pub(crate) fn range(&self) -> PhysRange {
        let at = self.memory.at;
        let range = PhysRange::from_len(at, self.layout.size() as u64);
        // It has bytes, and memory does not reach past the top.
        range.unwrap_or(PhysRange::page(at, PageSize::of_lg2(0)))
    }

    /// All of it as the CPU sees it.
    pub(crate) fn view(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.memory.virt, self.layout.size())
    }

    /// As many items as it holds, which a device may change at any time. The caller asks for one type alone.
    pub(crate) fn items<T: SharedData>(&self) -> &[T] {
        let count = self.layout.size().checked_div(size_of::<T>()).unwrap_or(0);
        let first = self.memory.virt.cast::<T>();
        if !first.is_aligned() {
            return &[];
        }
        // SAFETY: the memory is the value's, as long as it lives; it is aligned, zeroed at first, and any bits
        // are a value of the type.
        unsafe { core::slice::from_raw_parts(first.as_ptr(), count) }
    }
}

impl<P: Platform> PhysMemory for OwnedMemory<P> {
    fn copy(&self, transfer: &Transfer) {
        copy_by(transfer, |at| self.virt(at));
    }

    fn clear(&self, clearing: &Clearing) {
        clear_by(clearing, |at| self.virt(at));
    }
}

impl<P: Platform> Drop for OwnedMemory<P> {
    fn drop(&mut self) {
        if self.when_dropped == WhenDropped::Keep {
            return;
        }
        // SAFETY: it came from there with this layout, and is freed here alone.
        unsafe {
            match self.wanted {
                Wanted::Any => self.platform.free(self.memory.at, self.layout),
                Wanted::Uncached | Wanted::Shared => {
                    self.platform.free_aliased(self.memory, self.layout);
                }
            }
        }
    }
}
