//! A platform whose CPUs have a cache that units and devices do not snoop.
//!
//! QEMU's memory is coherent, so the cache is made here: CPUs see a copy of the memory, and only `clean` and
//! `invalidate` exchange lines between the two. A table entry that is not written back does not exist for the unit.
//!
//! Of VT-d, C in ECAP is about tables alone (VT-d specification, 11.4.3), and the driver looks for the status that a
//! wait descriptor writes without taking its line in. So the copy follows what a unit writes while a driver waits for
//! it.

use alloc::boxed::Box;
use core::alloc::Layout;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use portolan::addr::{CpuId, PageSize, PciFunction, PhysAddr, PhysRange};
use portolan::dma::{Buffer, Pieces};
use portolan::platform::{AliasedMemory, LeftBehind, Lock, Mmio, Nanos, Platform};
use portolan_bare::arena::Arena;
use portolan_bare::{Machine, Registers};

use crate::Outcome;

/// Memory that is cached.
const BYTES: usize = 1 << 20;
pub const LINE: u64 = 64;
const WORDS: usize = LINE as usize / 8;
const PAGE: usize = 4096;

type MachineLock<T> = <Machine as Platform>::Lock<T>;
type Words = &'static [AtomicU64];

/// The cache and the memory behind it.
struct Cache {
    range: PhysRange,
    arena: MachineLock<Arena<'static>>,
    /// Memory as units and devices see it.
    memory: Words,
    /// Memory as CPUs see it.
    copy: Words,
    /// Content of both when they last agreed: words of `copy` that differ are dirty.
    agreed: Words,
    /// The numbers of [`Exchanged`].
    written_back: AtomicU64,
    taken_in: AtomicU64,
    /// Tells if the registers of units show no COHACC.
    hides_coherency: bool,
}

/// Numbers of lines.
#[derive(Clone, Copy)]
pub struct Exchanged {
    /// They were dirty, and are in memory since.
    pub written_back: u64,
    /// They came from memory, because a unit or a device had written them.
    pub taken_in: u64,
}

/// The machine with the cache.
#[derive(Clone, Copy)]
pub struct Unsnooped {
    machine: Machine,
    cache: &'static Cache,
}

/// Words of pages that are never given back.
fn words(machine: Machine) -> Outcome<(PhysRange, Words)> {
    let mut pages = machine.pages(BYTES).ok_or("no memory")?;
    let (range, first) = (pages.memory(), pages.bytes_mut().as_mut_ptr().cast::<AtomicU64>());
    core::mem::forget(pages);
    // SAFETY: the pages are aligned, zeroed and forgotten: no other code knows of them.
    Ok((range, unsafe { core::slice::from_raw_parts(first, BYTES / 8) }))
}

impl Unsnooped {
    /// The machine with an empty cache. `hides_coherency`: an SMMU's IDR0 says that it does not snoop.
    pub fn new(machine: Machine, hides_coherency: bool) -> Outcome<Self> {
        let ((range, memory), (_, copy), (_, agreed)) =
            (words(machine)?, words(machine)?, words(machine)?);
        let records = alloc::vec![0; Arena::records(range)].leak();
        let arena = Arena::new(range, records).ok_or("a cache without memory")?;
        let cache = Cache {
            range,
            arena: Lock::new(arena),
            memory,
            copy,
            agreed,
            written_back: AtomicU64::new(0),
            taken_in: AtomicU64::new(0),
            hides_coherency,
        };
        let cache = Box::leak(Box::new(cache));
        Ok(Self { machine, cache })
    }

    /// The machine without the cache.
    pub fn machine(&self) -> Machine {
        self.machine
    }

    /// Lines so far.
    pub fn exchanged(&self) -> Exchanged {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Cache { written_back, taken_in, .. } = self.cache;
        Exchanged { written_back: of(written_back), taken_in: of(taken_in) }
    }

    /// A buffer of a page.
    pub fn page(&self) -> Option<CachedPage> {
        let at = Platform::alloc(self, CachedPage::LAYOUT?)?;
        Some(CachedPage { platform: *self, at })
    }
}

impl Cache {
    /// Numbers of the lines of `range` that are the cache's.
    fn lines(&self, range: PhysRange) -> core::ops::Range<usize> {
        let Some(part) = self.range.intersection(range) else {
            return 0..0;
        };
        let number = |at: PhysAddr| ((at.get() - self.range.start().get()) / LINE) as usize;
        number(part.start())..number(part.last()) + 1
    }

    fn line(words: Words, number: usize) -> &'static [AtomicU64] {
        words.get(number * WORDS..(number + 1) * WORDS).unwrap_or_default()
    }

    fn differ(one: Words, other: Words, line: usize) -> bool {
        let mut pairs = Self::line(one, line).iter().zip(Self::line(other, line));
        pairs.any(|(one, other)| one.load(Ordering::Acquire) != other.load(Ordering::Acquire))
    }

    fn exchange(&self, from: Words, to: Words, line: usize) {
        let parts = Self::line(from, line).iter().zip(Self::line(to, line));
        for ((from, to), agreed) in parts.zip(Self::line(self.agreed, line)) {
            let word = from.load(Ordering::Acquire);
            to.store(word, Ordering::Release);
            agreed.store(word, Ordering::Relaxed);
        }
    }

    fn clean(&self, line: usize) {
        if Self::differ(self.copy, self.agreed, line) {
            self.exchange(self.copy, self.memory, line);
            self.written_back.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn invalidate(&self, line: usize) {
        self.clean(line);
        if Self::differ(self.memory, self.agreed, line) {
            self.exchange(self.memory, self.copy, line);
            self.taken_in.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// SAFETY: memory of the cache is handed out once by its arena, and CPUs see the copy, which stays; all else is the
// machine's.
unsafe impl Platform for Unsnooped {
    type Word = AtomicU64;
    type Lock<T: Send> = MachineLock<T>;
    type Registers = UnitRegisters;

    fn now(&self) -> Nanos {
        Platform::now(&self.machine)
    }

    fn relax(&self) {
        let all = 0..BYTES / LINE as usize;
        all.filter(|line| !Cache::differ(self.cache.copy, self.cache.agreed, *line))
            .for_each(|line| self.cache.invalidate(line));
    }

    fn cpus(&self) -> usize {
        self.machine.cpus()
    }

    fn cpu(&self) -> CpuId {
        self.machine.cpu()
    }

    fn alloc(&self, layout: Layout) -> Option<PhysAddr> {
        let at = self.cache.arena.lock().alloc(layout)?;
        let block = PhysRange::from_len(at, layout.size() as u64)?;
        for line in self.cache.lines(block) {
            Cache::line(self.cache.copy, line)
                .iter()
                .for_each(|word| word.store(0, Ordering::Relaxed));
            self.cache.exchange(self.cache.copy, self.cache.memory, line);
        }
        Some(at)
    }

    fn alloc_uncached(&self, layout: Layout) -> Option<AliasedMemory> {
        self.machine.alloc_uncached(layout)
    }

    unsafe fn free(&self, at: PhysAddr, layout: Layout) {
        self.cache.arena.lock().free(at, layout);
    }

    unsafe fn free_aliased(&self, memory: AliasedMemory, layout: Layout) {
        // SAFETY: the caller's promise; it came from there.
        unsafe { self.machine.free_aliased(memory, layout) }
    }

    unsafe fn virt(&self, at: PhysAddr) -> NonNull<u8> {
        let offset = at.get().wrapping_sub(self.cache.range.start().get()) as usize;
        if offset < BYTES {
            // SAFETY: the byte is in the copy.
            return unsafe { NonNull::from(self.cache.copy).cast::<u8>().add(offset) };
        }
        // SAFETY: the caller's promise: it is the machine's.
        unsafe { self.machine.virt(at) }
    }

    fn clean(&self, lines: PhysRange) {
        Platform::clean(&self.machine, lines);
        // With the mistake: what is written stays in the cache.
        if !cfg!(feature = "unclean-tables") {
            self.cache.lines(lines).for_each(|line| self.cache.clean(line));
        }
    }

    fn clean_barrier(&self) {
        self.machine.clean_barrier();
    }

    fn invalidate(&self, lines: PhysRange) {
        Platform::invalidate(&self.machine, lines);
        self.cache.lines(lines).for_each(|line| self.cache.invalidate(line));
    }

    fn cache_line(&self) -> PageSize {
        PageSize::of_lg2(LINE.trailing_zeros())
    }

    unsafe fn registers(&self, window: PhysRange) -> Option<UnitRegisters> {
        // SAFETY: the caller's promise.
        let registers = unsafe { self.machine.registers(window)? };
        Some(UnitRegisters { registers, hides_coherency: self.cache.hides_coherency })
    }

    fn pci_config(&self, function: PciFunction, offset: u16) -> Option<u32> {
        self.machine.pci_config(function, offset)
    }

    fn drop_later(&self, left: LeftBehind) {
        Platform::drop_later(&self.machine, left);
    }

    fn flush_wanted(&self) {
        Platform::flush_wanted(&self.machine);
    }
}

/// Registers of a unit, an SMMU's with COHACC of its IDR0 cleared (Arm SMMUv3, IHI 0070, 6.3.1).
pub struct UnitRegisters {
    registers: Registers,
    hides_coherency: bool,
}

/// IDR0 and its COHACC.
const IDR0: usize = 0;
const COHACC: u32 = 1 << 4;

impl Mmio for UnitRegisters {
    fn read32(&self, offset: usize) -> u32 {
        let value = self.registers.read32(offset);
        if offset == IDR0 && self.hides_coherency { value & !COHACC } else { value }
    }

    fn write32(&self, offset: usize, value: u32) {
        self.registers.write32(offset, value);
    }

    fn read64(&self, offset: usize) -> u64 {
        self.registers.read64(offset)
    }

    fn write64(&self, offset: usize, value: u64) {
        self.registers.write64(offset, value);
    }
}

/// A page that CPUs see through the cache.
pub struct CachedPage {
    platform: Unsnooped,
    at: PhysAddr,
}

impl CachedPage {
    const LAYOUT: Option<Layout> = match Layout::from_size_align(PAGE, PAGE) {
        Ok(layout) => Some(layout),
        Err(_) => None,
    };

    /// The bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the page is the value's, as long as it lives, and it is initialised.
        unsafe {
            let first = self.platform.virt(self.at);
            core::slice::from_raw_parts_mut(first.as_ptr(), PAGE)
        }
    }
}

// SAFETY: the page stays where it is until the value is dropped, and only its methods lead to it.
unsafe impl Buffer for CachedPage {
    fn pieces(&self) -> Pieces<'_> {
        Pieces::One(PhysRange::page(self.at, PageSize::SIZE_4K))
    }

    fn device_may_write(&self) -> bool {
        true
    }

    fn view(&self) -> Option<NonNull<[u8]>> {
        // SAFETY: the page is the value's.
        let first = unsafe { self.platform.virt(self.at) };
        Some(NonNull::slice_from_raw_parts(first, PAGE))
    }
}

impl Drop for CachedPage {
    fn drop(&mut self) {
        if let Some(layout) = Self::LAYOUT {
            // SAFETY: it came from there with this layout.
            unsafe { Platform::free(&self.platform, self.at, layout) }
        }
    }
}
