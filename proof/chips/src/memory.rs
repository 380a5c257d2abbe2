//! The memory of one machine, as CPUs and as hardware see it.
//!
//! Queues, tables and buffers share one range of physical addresses. Hardware that snoops sees each write at once;
//! hardware that does not sees the lines that were cleaned, or the writes that left its write buffer. Hardware's own
//! writes are seen by both sides at once: that a CPU has to discard a stale line before it reads them is not
//! modelled. Devices can be at work before, behind and, if they are torn, in the middle of stores of pairs.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use portolan::addr::{PageSize, PhysAddr, PhysRange, TableId};
use portolan::platform::{OutOfTableMemory, ProtocolStep, StorePairs, TableMem, Word};
use portolan_protocol::run::CheckedRun;

use portolan_sim::decode::WalkMemory;
use portolan_sim::tables::{LINE, Lag};

const PAGE: PageSize = PageSize::SIZE_4K;

/// Time at which hardware that does not snoop sees a CPU's writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// Visible at once.
    AtOnce,
    /// Visible later.
    Late(Lag),
}

/// Stores of two words by a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairStores {
    /// The CPU has none.
    Absent,
    /// Both words change at once.
    AtOnce,
    /// One word changes, and then the other: a defect.
    Torn,
}

/// Devices at work around stores of pairs.
#[derive(Default)]
struct Meanwhile(Mutex<Option<Box<dyn FnMut() + Send>>>);

impl std::fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meanwhile")
    }
}

impl Meanwhile {
    fn set(&self, devices: Option<Box<dyn FnMut() + Send>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = devices;
    }

    fn work(&self) {
        if let Some(devices) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            devices();
        }
    }
}

/// A range of physical memory, with an allocator of power-of-two blocks of it. `W` is the width of
/// the entries of the tables in it.
#[derive(Debug)]
pub struct ModelMemory<W = AtomicU64> {
    base: u64,
    words: Box<[W]>,
    /// Words that hardware that does not snoop reads; empty where all writes are visible at once.
    late: Box<[W]>,
    visibility: Visibility,
    /// State of each page: unused, handed out or freed.
    taken: Mutex<Vec<PageState>>,
    reads_of_free: AtomicU64,
    cleaned_lines: AtomicU64,
    /// Number of words, from the first, that contain everything ever handed out or written.
    used: AtomicUsize,
    pairs: PairStores,
    meanwhile: Meanwhile,
    run: Option<CheckedRun>,
    /// Set once steps are those of tables that have changed hands.
    unchecked: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageState {
    /// Never handed out.
    Unused,
    Taken,
    Freed,
}

impl ModelMemory {
    /// `pages` pages of 4 KiB from `base`, which is rounded down to a page, for tables of 64-bit
    /// entries.
    pub fn new(base: PhysAddr, pages: u32, visibility: Visibility) -> Self {
        Self::of_words(base, pages, visibility)
    }
}

impl ModelMemory<AtomicU32> {
    /// Memory like [`ModelMemory::new`], for tables of 32-bit entries.
    pub fn narrow(base: PhysAddr, pages: u32, visibility: Visibility) -> Self {
        Self::of_words(base, pages, visibility)
    }
}

/// Words of a page.
const fn words_of_page<W: Word>() -> usize {
    1 << (PAGE.lg2() - W::LG2_BYTES)
}

impl<W: Word> ModelMemory<W> {
    /// Memory like [`ModelMemory::new`], for tables of entries of any width.
    pub fn of_words(base: PhysAddr, pages: u32, visibility: Visibility) -> Self {
        let zeroed = |words: usize| (0..words).map(|_| W::new(0)).collect();
        let words = pages as usize * words_of_page::<W>();
        let late = match visibility {
            Visibility::AtOnce => 0,
            Visibility::Late(_) => words,
        };
        Self {
            base: base.align_down(PAGE).get(),
            words: zeroed(words),
            late: zeroed(late),
            visibility,
            taken: Mutex::new(vec![PageState::Unused; pages as usize]),
            reads_of_free: AtomicU64::new(0),
            cleaned_lines: AtomicU64::new(0),
            used: AtomicUsize::new(0),
            pairs: PairStores::Absent,
            meanwhile: Meanwhile::default(),
            run: None,
            unchecked: AtomicBool::new(false),
        }
    }

    /// The same memory, of whose tables a run is checked. Their steps have to come one at a time.
    #[must_use]
    pub fn checked(mut self) -> Self {
        self.run = Some(CheckedRun::default());
        self
    }

    /// The same memory, of a machine whose CPUs store pairs so.
    #[must_use]
    pub fn with_pairs(mut self, pairs: PairStores) -> Self {
        self.pairs = pairs;
        self
    }

    /// Has devices work before, behind and, where they are torn, in the middle of stores of pairs from now on; no
    /// longer with `None`.
    pub fn during_pairs(&self, devices: Option<Box<dyn FnMut() + Send>>) {
        self.meanwhile.set(devices);
    }

    /// Checks no step from now on: tables change hands, of which the protocol has no step.
    pub fn stop_checking(&self) {
        self.unchecked.store(true, Ordering::Relaxed);
    }

    /// Number of steps of the run that is checked; 0 without one.
    pub fn steps(&self) -> u64 {
        self.run.as_ref().map_or(0, |run| run.tally().told)
    }

    /// Number of 4 KiB pages handed out and not yet taken back.
    pub fn live(&self) -> usize {
        let taken = self.pages();
        taken.iter().filter(|page| **page == PageState::Taken).count()
    }

    /// Number of words that hardware has read in pages that were handed out and given back. After the release of a
    /// table it must not change.
    pub fn reads_of_freed_pages(&self) -> u64 {
        self.reads_of_free.load(Ordering::Relaxed)
    }

    /// Cache lines that were cleaned, changed ones and others.
    pub fn cleaned_lines(&self) -> u64 {
        self.cleaned_lines.load(Ordering::Relaxed)
    }

    /// Time at which hardware that does not snoop sees a CPU's writes.
    pub fn visibility(&self) -> Visibility {
        self.visibility
    }

    /// Memory as hardware sees it that snoops.
    pub fn snooped(&self) -> Snooped<'_, W> {
        Snooped { memory: self }
    }

    /// The words of the block of `size` at `at` where hardware that does not snoop reads them: for a CPU that
    /// does not cache the block.
    pub fn uncached(&self, at: PhysAddr, size: PageSize) -> &[W] {
        let words = (size.bytes() >> W::LG2_BYTES) as usize;
        let first = self.index(at);
        let block = first.and_then(|first| self.late_words().get(first..)?.get(..words));
        block.unwrap_or(&[])
    }

    /// Brings every write to where hardware sees it.
    pub fn write_back_all(&self) {
        let used = self.used.load(Ordering::Acquire);
        for (to, from) in self.late.iter().zip(&self.words).take(used) {
            to.store(from.load());
        }
    }

    /// Copies bytes out, as a device or a CPU sees them; `None` if some of them do not exist.
    #[must_use]
    pub fn read(&self, pa: PhysAddr, bytes: &mut [u8]) -> Option<()> {
        for (i, byte) in bytes.iter_mut().enumerate() {
            let at = pa.checked_add(i as u64)?;
            let word = self.words.get(self.index(at)?)?.load();
            *byte = (word >> Self::shift(at)) as u8;
        }
        Some(())
    }

    /// Copies bytes in, seen by all at once; `None` from the first that does not exist.
    #[must_use]
    pub fn write(&self, pa: PhysAddr, bytes: &[u8]) -> Option<()> {
        for (i, byte) in bytes.iter().enumerate() {
            let at = pa.checked_add(i as u64)?;
            self.change(at, 0xff, u64::from(*byte))?;
        }
        Some(())
    }

    /// Writes an aligned four bytes, in one access, seen by all at once.
    #[must_use]
    pub fn write_u32(&self, pa: PhysAddr, value: u32) -> Option<()> {
        self.change(pa.align_down(PageSize::of_lg2(2)), 0xffff_ffff, value.into())
    }

    /// Writes an aligned eight bytes, in one access where words are as wide, seen by all at once.
    #[must_use]
    pub fn write_u64(&self, pa: PhysAddr, value: u64) -> Option<()> {
        let pa = pa.align_down(PageSize::of_lg2(3));
        if W::LG2_BYTES == 3 {
            return self.change(pa, u64::MAX, value);
        }
        self.write_u32(pa, value as u32)?;
        self.write_u32(pa.checked_add(4)?, (value >> 32) as u32)
    }

    /// Replaces `old` in an aligned eight bytes by `new`, in one access seen by all at once; tells if it was there.
    #[must_use]
    pub(crate) fn exchange_u64(&self, pa: PhysAddr, old: u64, new: u64) -> Option<bool> {
        let index = self.index(pa)?;
        if self.words.get(index)?.compare_exchange(old, new).is_err() {
            return Some(false);
        }
        if let Some(late) = self.late.get(index) {
            late.store(new);
        }
        Some(true)
    }

    /// Bits of a word below the byte at `pa`.
    fn shift(pa: PhysAddr) -> u32 {
        8 * (pa.get() as u32 & ((1 << W::LG2_BYTES) - 1))
    }

    /// Replaces the bits of `mask`, which count from the byte at `pa`, in one word.
    fn change(&self, pa: PhysAddr, mask: u64, bits: u64) -> Option<()> {
        let index = self.index(pa)?;
        let shift = Self::shift(pa);
        let (mask, bits) = (mask << shift, bits << shift);
        self.use_up_to(index + 1);
        for side in [Some(&self.words), (!self.late.is_empty()).then_some(&self.late)] {
            let Some(words) = side else { continue };
            let word = words.get(index)?;
            let mut old = word.load();
            while let Err(now) = word.compare_exchange(old, old & !mask | bits) {
                old = now;
            }
        }
        Some(())
    }

    fn use_up_to(&self, words: usize) {
        self.used.fetch_max(words, Ordering::AcqRel);
    }

    fn index(&self, pa: PhysAddr) -> Option<usize> {
        let offset = pa.get().checked_sub(self.base)?;
        usize::try_from(offset >> W::LG2_BYTES).ok()
    }

    fn pages(&self) -> MutexGuard<'_, Vec<PageState>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hardware_read(&self, words: &[W], pa: PhysAddr) -> Option<u64> {
        let index = self.index(pa)?;
        let word = words.get(index)?.load();
        if self.pages().get(index / words_of_page::<W>()) == Some(&PageState::Freed) {
            self.reads_of_free.fetch_add(1, Ordering::Relaxed);
        }
        Some(word)
    }

    fn late_words(&self) -> &[W] {
        match self.visibility {
            Visibility::AtOnce => &self.words,
            Visibility::Late(_) => &self.late,
        }
    }

    fn write_back(&self, bytes: PhysRange) {
        let first = bytes.start().align_down(LINE).get().max(self.base) - self.base;
        let last = (bytes.last().get() | (LINE.bytes() - 1)).saturating_sub(self.base);
        let lg2 = W::LG2_BYTES;
        for index in first >> lg2..=(last >> lg2).min(self.late.len() as u64) {
            let index = index as usize;
            if let (Some(from), Some(to)) = (self.words.get(index), self.late.get(index)) {
                to.store(from.load());
            }
        }
    }

    /// First page of a free block of `count` pages, aligned in physical addresses.
    fn find(&self, pages: &[PageState], count: usize) -> Option<usize> {
        let base = (self.base / PAGE.bytes()) as usize;
        let mut first = base.next_multiple_of(count) - base;
        while first + count <= pages.len() {
            let block = &pages[first..first + count];
            if block.iter().all(|page| *page != PageState::Taken) {
                return Some(first);
            }
            first += count;
        }
        None
    }
}

impl<W: Word> TableMem<W> for ModelMemory<W> {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        let full = OutOfTableMemory { size };
        let count = usize::try_from(size.bytes().div_ceil(PAGE.bytes())).map_err(|_| full)?;
        let mut pages = self.pages();
        let first = self.find(&pages, count).ok_or(full)?;
        pages[first..first + count].fill(PageState::Taken);
        drop(pages);
        let range = first * words_of_page::<W>()..(first + count) * words_of_page::<W>();
        self.use_up_to(range.end);
        for words in [&self.words, &self.late] {
            for word in words.get(range.clone()).unwrap_or(&[]) {
                word.store(0);
            }
        }
        Ok(PhysAddr::new(self.base + (first as u64) * PAGE.bytes()))
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        let Some(first) = self.index(table).map(|index| index / words_of_page::<W>()) else {
            return;
        };
        let count = size.bytes().div_ceil(PAGE.bytes()) as usize;
        let mut pages = self.pages();
        if let Some(block) = pages.get_mut(first..first.saturating_add(count)) {
            block.fill(PageState::Freed);
        }
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[W] {
        let Some(first) = self.index(table) else {
            return &[];
        };
        let end = first.checked_add((size.bytes() >> W::LG2_BYTES) as usize);
        // The caller may write.
        self.use_up_to(end.unwrap_or(usize::MAX));
        end.and_then(|end| self.words.get(first..end)).unwrap_or(&[])
    }

    fn clean(&self, bytes: PhysRange) {
        let lines = bytes.pages(LINE);
        self.cleaned_lines.fetch_add(lines, Ordering::Relaxed);
        if self.visibility == Visibility::Late(Lag::CacheLines) {
            self.write_back(bytes);
        }
    }

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: PhysRange) {}

    fn pairs(&self) -> Option<&dyn StorePairs<W>> {
        (self.pairs != PairStores::Absent).then_some(self)
    }

    fn protocol_step(&self, of: TableId, step: ProtocolStep) {
        let checked = !self.unchecked.load(Ordering::Relaxed);
        if let Some(run) = self.run.as_ref().filter(|_| checked) {
            run.tell(of, step);
        }
    }
}

impl<W: Word> StorePairs<W> for ModelMemory<W> {
    fn store_pair(&self, [first, second]: &[W; 2], words: [u64; 2]) {
        self.meanwhile.work();
        first.store(words[0]);
        if self.pairs == PairStores::Torn {
            self.meanwhile.work();
        }
        second.store(words[1]);
        self.meanwhile.work();
    }
}

impl<W: Word> WalkMemory for ModelMemory<W> {
    fn read_u64(&self, pa: PhysAddr) -> Option<u64> {
        let word = |pa| self.hardware_read(self.late_words(), pa);
        portolan_sim::decode::read_u64(W::LG2_BYTES, pa, word)
    }

    fn read_u32(&self, pa: PhysAddr) -> Option<u32> {
        let word = |pa| self.hardware_read(self.late_words(), pa);
        portolan_sim::decode::read_u32(W::LG2_BYTES, pa, word)
    }

    fn drain_write_buffer(&self) {
        if self.visibility == Visibility::Late(Lag::WriteBuffer) {
            self.write_back_all();
        }
    }
}

/// [`ModelMemory`] as hardware that snoops sees it, at any visibility.
#[derive(Debug)]
pub struct Snooped<'a, W = AtomicU64> {
    memory: &'a ModelMemory<W>,
}

impl<W> Clone for Snooped<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Snooped<'_, W> {}

impl<W: Word> WalkMemory for Snooped<'_, W> {
    fn read_u64(&self, pa: PhysAddr) -> Option<u64> {
        let word = |pa| self.memory.hardware_read(&self.memory.words, pa);
        portolan_sim::decode::read_u64(W::LG2_BYTES, pa, word)
    }

    fn read_u32(&self, pa: PhysAddr) -> Option<u32> {
        let word = |pa| self.memory.hardware_read(&self.memory.words, pa);
        portolan_sim::decode::read_u32(W::LG2_BYTES, pa, word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(visibility: Visibility) -> ModelMemory {
        ModelMemory::new(PhysAddr::new(0x4000_3000), 64, visibility)
    }

    #[test]
    fn blocks_are_aligned_zeroed_and_apart() {
        let mem = memory(Visibility::AtOnce);
        let big = mem.alloc(PageSize::SIZE_64K).unwrap();
        let small = mem.alloc(PageSize::SIZE_4K).unwrap();
        assert!(big.is_aligned(PageSize::SIZE_64K));
        assert_eq!((big.get(), small.get()), (0x4001_0000, 0x4000_3000));
        assert_eq!(mem.live(), 17);
        assert_eq!(mem.table(big, PageSize::SIZE_64K).len(), 8192);
        mem.table(big, PageSize::SIZE_64K)[5].store(7, Ordering::Release);
        mem.free(big, PageSize::SIZE_64K);
        assert_eq!(mem.snooped().read_u64(PhysAddr::new(big.get() + 40)), Some(7));
        assert_eq!(mem.reads_of_freed_pages(), 1);
        let again = mem.alloc(PageSize::SIZE_64K).unwrap();
        assert_eq!(again, big);
        assert_eq!(mem.table(big, PageSize::SIZE_4K)[5].load(Ordering::Acquire), 0);
        let whole = PageSize::SIZE_1G;
        assert_eq!(mem.alloc(whole), Err(OutOfTableMemory { size: whole }));
        assert!(mem.table(PhysAddr::new(0), PageSize::SIZE_4K).is_empty());
        assert!(mem.table(big, PageSize::of_lg2(63)).is_empty());
    }

    #[test]
    fn a_line_is_late_until_cleaned_and_hardware_writes_are_not() {
        let mem = memory(Visibility::Late(Lag::CacheLines));
        let page = mem.alloc(PAGE).unwrap();
        mem.table(page, PAGE)[9].store(3, Ordering::Release);
        let at = PhysAddr::new(page.get() + 72);
        assert_eq!((mem.read_u64(at), mem.snooped().read_u64(at)), (Some(0), Some(3)));
        TableMem::clean(&mem, PhysRange::from_len(at, 8).unwrap());
        assert_eq!(mem.read_u64(at), Some(3));
        assert_eq!(mem.write_u32(PhysAddr::new(at.get() + 4), 0xabcd), Some(()));
        assert_eq!(mem.read_u64(at), Some(0xabcd_0000_0003));
        assert_eq!(mem.write_u64(PhysAddr::new(8), 1), None);
    }

    #[test]
    fn narrow_words_are_the_same_memory() {
        let at = PhysAddr::new(0x4000_3000);
        let mem = ModelMemory::narrow(at, 2, Visibility::Late(Lag::CacheLines));
        let page = TableMem::alloc(&mem, PAGE).unwrap();
        assert_eq!(TableMem::table(&mem, page, PAGE).len(), 1024);
        TableMem::table(&mem, page, PAGE)[17].store(0x1234_5678, Ordering::Release);
        let word = PhysAddr::new(page.get() + 68);
        assert_eq!(mem.read_u32(word), Some(0));
        let entry = PhysRange::from_len(word, 4).unwrap();
        TableMem::clean(&mem, entry);
        assert_eq!((mem.read_u32(word), mem.cleaned_lines()), (Some(0x1234_5678), 1));
        let odd = PhysAddr::new(word.get() + 1);
        assert_eq!(mem.write(odd, &[0xab, 0xcd, 0xef, 0x99]), Some(()));
        let low = PhysAddr::new(page.get() + 64);
        assert_eq!(mem.read_u64(low), Some(0xefcd_ab78_0000_0000));
        assert_eq!(mem.write_u64(low, 0x1_0000_0002), Some(()));
        let mut back = [0; 5];
        assert_eq!(mem.read(low, &mut back), Some(()));
        assert_eq!(back, [2, 0, 0, 0, 1]);
    }

    #[test]
    fn a_write_buffer_is_drained_as_a_whole_and_bytes_go_in_and_out() {
        let mem = memory(Visibility::Late(Lag::WriteBuffer));
        let page = mem.alloc(PAGE).unwrap();
        mem.table(page, PAGE)[0].store(3, Ordering::Release);
        TableMem::clean(&mem, PhysRange::page(page, PAGE));
        assert_eq!(mem.read_u64(page), Some(0));
        mem.drain_write_buffer();
        assert_eq!(mem.read_u64(page), Some(3));
        let odd = PhysAddr::new(page.get() + 6);
        assert_eq!(mem.write(odd, &[1, 2, 3, 4]), Some(()));
        let mut back = [0; 4];
        assert_eq!(mem.read(odd, &mut back), Some(()));
        assert_eq!((back, mem.read_u64(page)), ([1, 2, 3, 4], Some(0x0201_0000_0000_0003)));
        let end = PhysAddr::new(0x4000_3000 + 64 * 4096 - 2);
        assert_eq!(mem.read(end, &mut back), None);
    }
}
