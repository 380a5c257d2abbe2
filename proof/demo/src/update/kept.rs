//! Memory that one kernel leaves to the next, at a fixed place, and the way to the next kernel.
//!
//! The next kernel is this one as it was loaded: its data is restored, its other statics, stack and page tables are
//! zeroed and made anew, and so is its heap. Memory that units and devices use lies apart, and its pages are noted.

use alloc::format;
use alloc::vec::Vec;
use core::alloc::Layout;
use core::ffi::c_void;

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, PhysRange};
use portolan::dma::Device;
use portolan::platform::Platform;
use portolan_bare::{DirectMap, Heap, Machine};

use crate::flash::POLICIES;
use crate::{Outcome, arch};

const PAGE: PageSize = PageSize::SIZE_4K;
/// Bytes for these notes, for memory of units and devices behind them, and for the kernel's own heap behind that.
const NOTES: u64 = 2 << 20;
const DEVICES: u64 = 32 << 20;
const HEAP: u64 = 32 << 20;
/// Words of a map with a bit for each page of units and devices.
const WORDS: usize = (DEVICES >> 12) as usize / 64;
/// Most bytes of the kernel's data, and of the record.
const MOST_DATA: usize = 256 << 10;
const MOST_RECORD: usize = 1 << 20;

/// Memory of units and devices.
// SAFETY: as of `HEAP` in `heap`.
pub static LENT: Heap = Heap::new(unsafe { DirectMap::new(0, arch::LAST_MAPPED) });

unsafe extern "C" {
    /// Start and end of the kernel's data (`kernel.ld`).
    static data_start: u8;
    static data_end: u8;
    /// Enters the kernel with the loader's pointer, once its data is as the copy has it (`boot.s`).
    fn again(left: *const c_void, data: *const u8) -> !;
}

/// Place of a device's memory: the device's address, and the physical one.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct KeptPage {
    pub iova: u64,
    pub at: u64,
}

impl KeptPage {
    /// The bytes.
    ///
    /// # Safety
    /// It was filled in, and the device does not write there.
    pub unsafe fn bytes(&self) -> &'static mut [u8] {
        let at = core::ptr::with_exposed_provenance_mut(self.at as usize);
        // SAFETY: all memory is mapped one to one; the caller's promise.
        unsafe { core::slice::from_raw_parts_mut(at, PAGE.bytes() as usize) }
    }
}

/// Queue of an NVMe disk.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct KeptRing {
    pub commands: KeptPage,
    pub completions: KeptPage,
    pub number: u16,
    pub tail: u16,
    pub head: u16,
    pub phase: u16,
}

/// Requests of a batch: half of them read, half of them write.
pub const BATCH: usize = 32;

/// The same of the virtio disk.
pub const VIRTIO_BATCH: usize = 4;

/// Notes for the next kernel. Zeros, but for the first word, which QEMU fills in, have a meaning of their own.
#[repr(C)]
pub struct Kept {
    /// Updates to be made, or sleeps; bit 32: the last record is damaged; bit 33: sleeps; bit 34: units stay asleep.
    asked: u64,
    /// Updates so far.
    pub done: u64,
    pub ring: KeptRing,
    pub batch: [KeptPage; BATCH],
    pub edu: KeptPage,
    /// Queue of the virtio disk, with its requests, and their data.
    pub virtio: KeptPage,
    pub virtio_batch: [KeptPage; VIRTIO_BATCH],
    /// Requests of the batch that are not completed.
    pub under_way: u64,
    /// Pages that units and devices used once a kernel had run under each policy.
    settled: u64,
    used: [u64; WORDS],
    lent: [u64; WORDS],
    record_bytes: u64,
    record: [u8; MOST_RECORD],
    data: [u8; MOST_DATA],
}

const _: () = assert!(size_of::<Kept>() as u64 <= NOTES);

/// Numbers of the pages in a map.
fn numbers(of: impl Fn(usize) -> u64) -> impl Iterator<Item = u64> {
    (0..WORDS as u64 * 64).filter(move |page| of(*page as usize / 64) >> (page % 64) & 1 != 0)
}

/// The pages of a map, as ranges.
fn ranges(of: impl Fn(usize) -> u64) -> Vec<PhysRange> {
    let mut all: Vec<PhysRange> = Vec::new();
    for page in numbers(of) {
        let page = PhysRange::page(page_at(page), PAGE);
        match all.last_mut() {
            Some(last) if last.last().checked_add(1) == Some(page.start()) => {
                *last = PhysRange::new(last.start(), page.last()).unwrap_or(*last);
            }
            _ => all.push(page),
        }
    }
    all
}

fn page_at(number: u64) -> PhysAddr {
    PhysAddr::new(arch::KEPT.get() + NOTES + (number << PAGE.lg2()))
}

fn number_of(page: PhysAddr) -> Option<usize> {
    let above = page.get().checked_sub(page_at(0).get())?;
    (above < DEVICES).then_some((above >> PAGE.lg2()) as usize)
}

impl Kept {
    /// The notes, if updates are asked for. The first kernel keeps a copy of its data in them.
    ///
    /// # Safety
    /// RAM is mapped there, no other code uses it, and the kernel's data was not written yet.
    pub unsafe fn asked() -> Option<&'static mut Self> {
        let at = core::ptr::with_exposed_provenance_mut::<Self>(arch::KEPT.get() as usize);
        // SAFETY: the caller's promise; any bits are such notes.
        let kept = unsafe { &mut *at };
        if kept.asked == 0 {
            return None;
        }
        if kept.done == 0 {
            let first = &raw const data_start;
            let bytes = (&raw const data_end).addr() - first.addr();
            // SAFETY: it is the kernel's data, which nothing changes meanwhile.
            let data = unsafe { core::slice::from_raw_parts(first, bytes) };
            kept.data.get_mut(..bytes)?.copy_from_slice(data);
        }
        Some(kept)
    }

    /// Sleeps that are to be shown in place of updates.
    #[cfg(target_arch = "x86_64")]
    pub fn sleeps(&self) -> Option<crate::sleep::Sleeps> {
        let is_left_out = self.asked >> 34 & 1 != 0;
        let sleeps = crate::sleep::Sleeps { count: self.wanted(), is_left_out };
        (self.asked >> 33 & 1 != 0).then_some(sleeps)
    }

    /// Updates to be made.
    pub fn wanted(&self) -> u64 {
        self.asked & u64::from(u32::MAX)
    }

    /// Tells if the record of the last update is damaged.
    pub fn is_damaged(&self) -> bool {
        self.asked >> 32 & 1 != 0
    }

    /// Memory of units and devices, and that of the kernel's own heap.
    pub fn memory() -> Option<[PhysRange; 2]> {
        let devices = PhysRange::from_len(page_at(0), DEVICES)?;
        let heap = PhysRange::from_len(devices.last().checked_add(1)?, HEAP)?;
        Some([devices, heap])
    }

    /// Sets the pages aside that the former kernel's units and devices use.
    pub fn set_aside(&self) -> Outcome<()> {
        let mut pages = numbers(|word| self.used[word]);
        match pages.all(|number| LENT.keep(page_at(number))) {
            true => Ok(()),
            false => Err("a page of the former kernel is not free in this one".into()),
        }
    }

    /// Memory that may be a table's: all that was in use and was not lent to a device.
    pub fn tables(&self) -> Vec<PhysRange> {
        ranges(|word| self.used[word] & !self.lent[word])
    }

    /// Memory that was lent to devices.
    pub fn buffers(&self) -> Vec<PhysRange> {
        ranges(|word| self.lent[word])
    }

    /// The record.
    pub fn record(&self) -> &[u8] {
        self.record.get(..self.record_bytes as usize).unwrap_or_default()
    }

    /// Place of the record.
    pub fn record_mut(&mut self) -> &mut [u8] {
        &mut self.record
    }

    /// Notes `memory`, which is lent to a device at `iova`.
    pub fn lend(&mut self, iova: u64, memory: PhysRange) -> KeptPage {
        let mut page = memory.start().align_down(PAGE);
        while page <= memory.last() {
            if let Some(number) = number_of(page) {
                self.lent[number / 64] |= 1 << (number % 64);
            }
            page = PhysAddr::new(page.get() + PAGE.bytes());
        }
        KeptPage { iova, at: memory.start().get() }
    }

    /// Ends the former kernel's mapping of a page, which `device` has used, and frees the page.
    pub fn take_back(
        &mut self,
        machine: Machine,
        device: &Device<Machine>,
        page: KeptPage,
    ) -> Outcome<()> {
        let former = device.former_mapping(IovaRange::page(Iova::new(page.iova), PAGE))?;
        let memory = former.unmap().map_err(|failed| failed.error)?;
        let [memory] = memory[..] else {
            return Err("a page of the former kernel is no page".into());
        };
        let number = number_of(memory.start()).ok_or("a device reached memory elsewhere")?;
        self.lent[number / 64] &= !(1 << (number % 64));
        let layout = Layout::from_size_align(PAGE.bytes() as usize, PAGE.bytes() as usize)?;
        // SAFETY: the page was set aside for this device alone, which reaches it no more.
        unsafe { machine.free(memory.start(), layout) };
        Ok(())
    }

    /// Checks that updates take no more and more memory, and returns the number of pages that units and devices of the
    /// former kernel used.
    pub fn check_use(&mut self) -> Outcome<u64> {
        let used = self.used.iter().map(|word| u64::from(word.count_ones())).sum();
        if self.done <= POLICIES.len() as u64 {
            self.settled = self.settled.max(used);
        }
        match used <= self.settled {
            true => Ok(used),
            false => Err(format!("{used} pages are in use, after {}", self.settled).into()),
        }
    }

    /// Goes to the next kernel, with a record of so many bytes.
    pub fn jump(&mut self, left: *const c_void, record_bytes: usize) -> ! {
        let memory = LENT.memory();
        self.used = [0; WORDS];
        // What can be taken is free. The blocks before them are the heap's own records.
        for number in 0..WORDS * 64 {
            let page = page_at(number as u64);
            let lent = memory.is_some_and(|all| all.covers(PhysRange::page(page, PAGE)));
            if lent && !LENT.keep(page) {
                self.used[number / 64] |= 1 << (number % 64);
            }
        }
        self.done += 1;
        self.record_bytes = record_bytes as u64;
        if self.done == self.wanted() && self.is_damaged() {
            self.record[record_bytes - 1] ^= 1;
        }
        // SAFETY: this kernel ends here, and the loader's data and the copy are as they were.
        unsafe { again(left, self.data.as_ptr()) }
    }
}
