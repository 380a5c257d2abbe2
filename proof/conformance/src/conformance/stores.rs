//! Tables that a kernel or a guest builds, by plain stores, in layouts written out by hand.
//!
//! Arm Architecture Reference Manual (DDI 0487), section D8.3; Intel VT-d (D51397), section 9.8. Tables of
//! 512 entries of eight bytes, pages of 4 KiB. Not here: blocks, and tables that leave by themselves.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use portolan::addr::{Iova, PageSize, PhysAddr};
use portolan::platform::TableMem;

const PAGE: PageSize = PageSize::SIZE_4K;
/// Bits of an entry that hold an address.
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;

/// Bits of entries besides the address.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Store of an entry that points at a table.
    pub table: u64,
    /// Store of a page's entry, readable and writable by all.
    pub page: u64,
    /// Number of levels.
    pub levels: u32,
}

impl Layout {
    /// Armv8 stage 1, input addresses of 48 bits: a page has been accessed, is write-back (attribute 0),
    /// shareable, and of its address space.
    pub const ARMV8: Self =
        Self { table: 3, page: 3 | 1 << 6 | 3 << 8 | 1 << 10 | 1 << 11, levels: 4 };
    /// VT-d first stage, as in the tables of an x86 CPU: a page has been accessed and written.
    pub const X86: Self = Self { table: 0x27, page: 0x67, levels: 4 };
}

/// Memory, by the addresses of the kernel or guest that builds tables in it.
pub(super) trait Frames: Send + Sync {
    /// A page that is not in use, zeroed.
    fn page(&self) -> Option<u64>;

    /// The word at `at`.
    fn load(&self, at: u64) -> Option<u64>;

    /// Stores a word.
    fn store(&self, at: u64, value: u64) -> Option<()>;
}

/// A kernel's own memory, by physical address.
pub(super) struct KernelMemory {
    memory: Arc<dyn TableMem<AtomicU64>>,
    stock: Mutex<Vec<PhysAddr>>,
}

impl KernelMemory {
    pub(super) fn new(memory: Arc<dyn TableMem<AtomicU64>>, stock: Vec<PhysAddr>) -> Self {
        let stock = Mutex::new(stock);
        Self { memory, stock }
    }

    /// Puts a page into the stock, to be the next one.
    pub(super) fn give_back(&self, page: u64) {
        for at in (page..page + PAGE.bytes()).step_by(8) {
            self.store(at, 0);
        }
        let mut stock = self.stock.lock().unwrap_or_else(PoisonError::into_inner);
        stock.push(PhysAddr::new(page));
    }

    fn word(&self, at: u64) -> Option<&AtomicU64> {
        let page = PhysAddr::new(at).align_down(PAGE);
        let words = self.memory.table(page, PAGE);
        words.get(((at - page.get()) / 8) as usize)
    }
}

impl Frames for KernelMemory {
    fn page(&self) -> Option<u64> {
        let mut stock = self.stock.lock().unwrap_or_else(PoisonError::into_inner);
        stock.pop().map(PhysAddr::get)
    }

    fn load(&self, at: u64) -> Option<u64> {
        Some(self.word(at)?.load(Ordering::Acquire))
    }

    fn store(&self, at: u64, value: u64) -> Option<()> {
        self.word(at)?.store(value, Ordering::Release);
        Some(())
    }
}

/// Tables in memory `F`.
pub(super) struct Tables<F> {
    pub(super) layout: Layout,
    pub(super) memory: F,
    pub(super) root: u64,
}

impl<F: Frames> Tables<F> {
    pub(super) fn new(layout: Layout, memory: F, root: u64) -> Self {
        Self { layout, memory, root }
    }

    /// Walks to the entry of `level` for `iova` and hands the address of each entry on the way, and of that
    /// one, to `visit`; `None` where the way ends before.
    pub(super) fn walk(&self, iova: Iova, level: u32, visit: &mut dyn FnMut(u64)) -> Option<u64> {
        let mut table = self.root;
        for at in (level..self.layout.levels).rev() {
            let index = iova.get() >> (12 + 9 * at) & 0x1ff;
            let entry = table + index * 8;
            visit(entry);
            if at == level {
                return Some(entry);
            }
            let raw = self.memory.load(entry)?;
            if raw & 1 == 0 {
                return None;
            }
            table = raw & ADDRESS;
        }
        None
    }

    /// Address of the page that `iova` leads to.
    pub(super) fn leads(&self, iova: Iova, visit: &mut dyn FnMut(u64)) -> Option<u64> {
        let raw = self.memory.load(self.walk(iova, 0, visit)?)?;
        (raw & 1 == 1).then_some(raw & ADDRESS)
    }

    /// Maps `page`, with the tables that are missing on the way.
    pub(super) fn map(&self, iova: Iova, page: u64) -> Option<()> {
        for level in (1..self.layout.levels).rev() {
            let entry = self.walk(iova, level, &mut |_| {})?;
            if self.memory.load(entry)? & 1 == 0 {
                let table = self.memory.page()?;
                self.memory.store(entry, table | self.layout.table)?;
            }
        }
        let entry = self.walk(iova, 0, &mut |_| {})?;
        self.memory.store(entry, page | self.layout.page)
    }

    /// Removes the entry of `level` for `iova`; returns its target.
    pub(super) fn take_out(&self, iova: Iova, level: u32) -> Option<u64> {
        let entry = self.walk(iova, level, &mut |_| {})?;
        let raw = self.memory.load(entry)?;
        self.memory.store(entry, 0)?;
        Some(raw & ADDRESS)
    }
}
