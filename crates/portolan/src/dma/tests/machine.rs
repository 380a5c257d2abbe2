//! A machine of two CPUs, whose time a test moves.
#![allow(unsafe_code)]

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use core::alloc::Layout;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::rig::Hardware;
use crate::addr::{CpuId, PciFunction, PhysAddr, PhysRange};
use crate::dma::{Buffer, Pieces};
use crate::platform::contract::Sharing;
use crate::platform::{
    AliasedMemory, Clearing, Cpus, DataCache, Mmio, Nanos, PhysMemory, Platform, RawMemory,
    SpinLock, Tracer, Transfer,
};

/// The platform of a test.
#[derive(Clone, Debug)]
pub(super) struct Machine(Arc<Hardware>);

impl Machine {
    pub fn new(hardware: Arc<Hardware>) -> Self {
        Self(hardware)
    }

    fn alias(&self, at: PhysAddr) -> Option<AliasedMemory> {
        Some(AliasedMemory { at, virt: self.see(at) })
    }

    /// Address of the byte at `at`, of a block that was handed out.
    fn see(&self, at: PhysAddr) -> NonNull<u8> {
        let frames = self.0.frames.lock();
        let inside = |start: PhysAddr, words: usize| {
            let offset = at.get().checked_sub(start.get())? as usize;
            (offset < words * 8).then_some(offset)
        };
        let mut found = frames.iter().filter_map(|(start, Block(words))| {
            let offset = inside(*start, words.len())?;
            // SAFETY: it is inside the block.
            Some(unsafe { words.cast::<u8>().add(offset) })
        });
        found.next().expect("memory that was handed out")
    }
}

/// No device has registers.
#[derive(Debug)]
pub(super) enum NoRegisters {}

impl Mmio for NoRegisters {
    fn read32(&self, _offset: usize) -> u32 {
        match *self {}
    }

    fn write32(&self, _offset: usize, _value: u32) {
        match *self {}
    }
}

/// Address of the first block of memory.
const MEMORY: u64 = 0x4000_0000;
/// Blocks are so far apart.
const APART: u64 = 0x10_0000;

/// Memory that was handed out. No reference to all of it is made as long as others use it.
#[derive(Debug)]
pub(super) struct Block(NonNull<[u64]>);

impl Block {
    fn new(words: usize) -> Self {
        Self(NonNull::from(Box::leak(vec![0; words].into_boxed_slice())))
    }
}

// SAFETY: it is the only one of its memory.
unsafe impl Send for Block {}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: it was a box, and nothing of it is in use when it is freed.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

// SAFETY: each block is a box of its own, which stays where it is until it is freed.
unsafe impl Platform for Machine {
    type Word = AtomicU64;
    type Lock<T: Send> = SpinLock<T>;
    type Registers = NoRegisters;

    fn now(&self) -> Nanos {
        Nanos::new(self.0.now.load(Ordering::Relaxed))
    }

    fn relax(&self) {
        self.0.now.fetch_add(1_000_000, Ordering::Relaxed);
    }

    fn cpus(&self) -> usize {
        2
    }

    fn cpu(&self) -> CpuId {
        CpuId::new(self.0.cpu.load(Ordering::Relaxed) as u32)
    }

    fn alloc(&self, layout: Layout) -> Option<PhysAddr> {
        let mut frames = self.0.frames.lock();
        let last = frames.last().map_or(MEMORY, |(at, _)| at.get() + APART);
        let at = PhysAddr::new(last);
        frames.push((at, Block::new(layout.size().div_ceil(8))));
        Some(at)
    }

    fn alloc_uncached(&self, layout: Layout) -> Option<AliasedMemory> {
        let uncached = self.0.has_uncached.load(Ordering::Relaxed);
        uncached.then(|| self.alias(Platform::alloc(self, layout)?)).flatten()
    }

    fn alloc_shared(&self, layout: Layout) -> Option<AliasedMemory> {
        let at = Platform::alloc(self, layout)?;
        self.0.shared.lock().push(at);
        self.alias(at)
    }

    unsafe fn free_aliased(&self, memory: AliasedMemory, layout: Layout) {
        assert_eq!(self.alias(memory.at), Some(memory));
        self.0.aliases_freed.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.free(memory.at, layout) }
    }

    unsafe fn free(&self, at: PhysAddr, _layout: Layout) {
        self.0.frames.lock().retain(|(known, _)| *known != at);
        self.0.shared.lock().retain(|known| *known != at);
    }

    unsafe fn virt(&self, at: PhysAddr) -> NonNull<u8> {
        let shared = self.0.shared.lock();
        let is_shared = shared.iter().any(|block| at.get().wrapping_sub(block.get()) < APART);
        assert!(!is_shared, "shared memory has addresses of its own");
        self.see(at)
    }

    unsafe fn registers(&self, _window: PhysRange) -> Option<NoRegisters> {
        None
    }

    fn clean(&self, lines: PhysRange) {
        self.0.cleaned.lock().push(lines);
    }

    fn invalidate(&self, lines: PhysRange) {
        self.0.dropped.lock().push(lines);
    }

    fn tracer(&self) -> Option<&dyn Tracer> {
        self.0.lines.tracer()
    }

    fn flush_wanted(&self) {
        self.0.flushes_wanted.fetch_add(1, Ordering::Relaxed);
    }

    fn clean_barrier(&self) {}

    fn drop_later(&self, left: crate::platform::LeftBehind) {
        drop(left);
    }
}

#[test]
fn what_the_library_asks_of_caches_a_platform_does() {
    let hardware = Arc::new(Hardware::default());
    let machine = Machine::new(hardware.clone());
    let page = |at| PhysRange::from_len(PhysAddr::new(at), 0x1000).unwrap();
    DataCache::clean(&machine, page(0x1000));
    DataCache::invalidate(&machine, page(0x2000));
    assert_eq!(*hardware.cleaned.lock(), [page(0x1000)]);
    assert_eq!(*hardware.dropped.lock(), [page(0x2000)]);
}

#[test]
fn a_platform_s_memory_is_copied_and_cleared_to_the_last_byte() {
    let machine = Machine::new(Arc::new(Hardware::default()));
    let layout = Layout::from_size_align(64, 8).unwrap();
    let at = Platform::alloc(&machine, layout).unwrap();
    // SAFETY: the block is the test's, and is never freed.
    let bytes = unsafe { &*machine.virt(at).cast::<[AtomicU8; 64]>().as_ptr() };
    // SAFETY: only memory of the machine is named below.
    let raw = unsafe { RawMemory::new(machine) };
    let there = |offset| PhysAddr::new(at.get() + offset);
    let read = || bytes.each_ref().map(|byte| byte.load(Ordering::Relaxed));
    for sharing in [Sharing::Exclusive, Sharing::Shared] {
        // Places whose words are alike, and others.
        for (from, to, length) in [(0, 32, 8), (1, 33, 21), (3, 32, 17), (8, 41, 9)] {
            let fill = |(byte, number): (&AtomicU8, u8)| byte.store(number, Ordering::Relaxed);
            bytes.iter().zip(1..).for_each(fill);
            let mut expected = read();
            raw.copy(&Transfer::new(there(from), there(to), length).of(sharing));
            let from = from as usize;
            expected.copy_within(from..from + length as usize, to as usize);
            assert_eq!(read(), expected, "{sharing:?} {from} {to} {length}");
        }
        raw.clear(&Clearing::new(PhysRange::from_len(there(0), 4).unwrap()));
        assert_eq!(read()[..8], [0, 0, 0, 0, 5, 6, 7, 8]);
    }
}

#[test]
fn a_machine_says_which_cpu_calls_and_has_no_configuration_space_unless_it_says_so() {
    let hardware = Arc::new(Hardware::default());
    let machine = Machine::new(hardware.clone());
    hardware.cpu.store(1, Ordering::Relaxed);
    assert_eq!((machine.count(), machine.current()), (2, CpuId::new(1)));
    assert_eq!(machine.pci_config(PciFunction::of(0, 3, 0), 0), None);
    assert_eq!(machine.alloc_uncached(Layout::new::<u64>()), None);
}

/// Memory of the machine, which it owns.
pub(super) struct Frames {
    machine: Machine,
    pub memory: PhysRange,
    layout: Layout,
}

impl Frames {
    /// So many zeroed bytes.
    pub fn new(machine: &Machine, bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes, 0x1000).unwrap();
        let at = Platform::alloc(machine, layout).unwrap();
        let memory = PhysRange::from_len(at, bytes as u64).unwrap();
        Self { machine: machine.clone(), memory, layout }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        // SAFETY: it came from there with this layout.
        unsafe { self.machine.free(self.memory.start(), self.layout) }
    }
}

// SAFETY: the memory is the value's until it is dropped, and it has no method that reads it.
unsafe impl Buffer for Frames {
    fn pieces(&self) -> Pieces<'_> {
        Pieces::One(self.memory)
    }

    fn device_may_write(&self) -> bool {
        true
    }

    fn view(&self) -> Option<NonNull<[u8]>> {
        // SAFETY: the memory is not freed.
        let first = unsafe { self.machine.virt(self.memory.start()) };
        Some(NonNull::slice_from_raw_parts(first, self.layout.size()))
    }
}

/// A device's access to memory of `machine`, byte by byte.
pub(super) fn device_byte(machine: &Machine, at: PhysAddr) -> &AtomicU8 {
    // SAFETY: the memory is not freed before the machine, in the tests that use it.
    unsafe { machine.see(at).cast::<AtomicU8>().as_ref() }
}
