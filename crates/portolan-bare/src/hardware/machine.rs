//! The machine as the library wants it.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::alloc::Layout;
use core::num::NonZeroU64;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use portolan::addr::{CpuId, PageSize, PciFunction, PhysAddr, PhysRange};
use portolan::platform::{
    AliasedMemory, CpuPairs, Leavings, LeftBehind, Lock, Mmio, Nanos, Platform, StorePairs,
};
use portolan_hw::topology::{Topology, TopologyError};
use portolan_tables::TableError;
use portolan_tables::fdt::DeviceTree;
use thiserror::Error;

use super::cpus::Cpus;
use super::{CpuLock, Heap, Registers, cpu};
use crate::acpi::{self, AcpiError, Firmware};
use crate::ecam::{self, Ecam};
use crate::ticks::Ticks;
use crate::{madt, tree};

/// Reason why there is no machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StartError {
    /// The heap has no memory yet.
    #[error("the heap has no memory")]
    NoHeap,
    /// Firmware's tables.
    #[error(transparent)]
    Acpi(#[from] AcpiError),
    /// The table of PCI's configuration space.
    #[error("the MCFG table: {0}")]
    Ecam(TableError),
    /// The bytes at the device tree's address are no device tree.
    #[error("it is no device tree")]
    NoTree,
    /// The frequency of the CPU's counter is not known.
    #[error("the frequency of the CPU's counter is not known")]
    NoClock,
}

#[derive(Clone, Copy)]
struct State {
    heap: &'static Heap,
    ticks: Ticks,
    /// Size of the smallest cache line; `None` where the CPUs have no instructions for lines.
    line: Option<PageSize>,
    cpus: Cpus,
    rest: &'static Rest,
}

/// Parts that exist once, for any number of CPUs.
struct Rest {
    tables: Vec<&'static [u8]>,
    /// In place of tables.
    tree: Option<&'static [u8]>,
    ecam: Ecam,
    left: CpuLock<Leavings>,
    flush_wanted: AtomicBool,
}

/// A machine whose memory is a [`Heap`] and whose firmware left ACPI tables or a device tree: with one CPU,
/// until [`Machine::with_cpus`] says that there are more.
///
/// *Context.* Interrupt, but for [`Machine::from_acpi`], [`Machine::from_tables`],
/// [`Machine::from_device_tree`] and [`Machine::topology`] (task).
#[derive(Clone, Copy)]
pub struct Machine {
    state: &'static State,
}

impl Machine {
    /// The machine whose ACPI root pointer is at `root`. Its records stay allocated for good.
    ///
    /// # Errors
    /// See [`StartError`].
    ///
    /// # Safety
    /// The boot loader says that `root` is the root pointer. No code writes to firmware's tables,
    /// and no memory that the program uses, but that of `heap`, is among the windows that
    /// [`Platform::registers`] is asked for.
    pub unsafe fn from_acpi(heap: &'static Heap, root: PhysAddr) -> Result<Self, StartError> {
        let memory = heap.memory().ok_or(StartError::NoHeap)?;
        let tables = acpi::tables(&Mapped { heap, memory }, root)?;
        // SAFETY: the caller's promise.
        unsafe { Self::from_tables(heap, tables) }
    }

    /// The machine whose loader handed these ACPI tables over.
    ///
    /// # Errors
    /// See [`StartError`].
    ///
    /// # Safety
    /// As of [`Machine::from_acpi`], but for the root pointer.
    pub unsafe fn from_tables(
        heap: &'static Heap,
        tables: Vec<&'static [u8]>,
    ) -> Result<Self, StartError> {
        let of = |signature: [u8; 4]| tables.iter().find(|table| table.starts_with(&signature));
        let ecam = of(ecam::SIGNATURE).map(|table| Ecam::parse(table));
        let ecam = ecam.transpose().map_err(StartError::Ecam)?;
        let timer = of(acpi::FADT).and_then(|table| acpi::power_timer(table));
        let rest = Rest {
            tables,
            tree: None,
            ecam: ecam.unwrap_or_default(),
            left: Lock::new(Leavings::new()),
            flush_wanted: AtomicBool::new(false),
        };
        Self::new(heap, cpu::counter_hertz(timer), cpu::line(), rest)
    }

    /// The machine that a flattened device tree describes. Its records stay allocated for good.
    ///
    /// # Errors
    /// See [`StartError`].
    ///
    /// # Safety
    /// The boot loader handed the tree over, and as of [`Machine::from_acpi`], but for the root pointer.
    pub unsafe fn from_device_tree(
        heap: &'static Heap,
        bytes: &'static [u8],
    ) -> Result<Self, StartError> {
        let of = DeviceTree::parse(bytes).ok_or(StartError::NoTree)?;
        let rest = Rest {
            tables: Vec::new(),
            tree: Some(bytes),
            ecam: Ecam::of_tree(of),
            left: Lock::new(Leavings::new()),
            flush_wanted: AtomicBool::new(false),
        };
        // The CPU knows better, where it knows.
        let hertz = cpu::counter_hertz(None).or_else(|| tree::timebase(of));
        let line = cpu::line().or_else(|| tree::cache_block(of));
        Self::new(heap, hertz, line, rest)
    }

    fn new(
        heap: &'static Heap,
        hertz: Option<NonZeroU64>,
        line: Option<PageSize>,
        rest: Rest,
    ) -> Result<Self, StartError> {
        Ok(Self::of(State {
            heap,
            ticks: Ticks::of_hertz(hertz.ok_or(StartError::NoClock)?),
            line,
            cpus: Cpus::one(),
            rest: Box::leak(Box::new(rest)),
        }))
    }

    fn of(state: State) -> Self {
        let state = Box::leak(Box::new(state));
        Self { state }
    }

    /// The same machine with `count` CPUs, of which `current` names the one that calls, from 0 on. For
    /// kernels that use the machine on more CPUs than one: domains, pools and spaces have memory for
    /// each CPU from the start, so this value, and no earlier copy, is handed to them, before the other
    /// CPUs begin.
    ///
    /// Duties of the kernel on each CPU before it calls the library there: `current` returns the CPU's own
    /// number, for which a register of the CPU is read best; the same memory is mapped in the same way as on
    /// the first one; and all CPUs' counters tell the same time (AArch64 and RISC-V have it so; on x86-64
    /// firmware or the kernel sets the time-stamp counters alike). A CPU whose number is another's, or too
    /// high, is slower and no less safe.
    ///
    /// *Context.* Task; `current` is called from any context.
    #[must_use]
    pub fn with_cpus(self, count: usize, current: fn() -> CpuId) -> Self {
        let cpus = Cpus::new(count, current);
        Self::of(State { cpus, ..*self.state })
    }

    /// Firmware's ACPI tables; there are none where there is a device tree.
    pub fn tables(&self) -> impl Iterator<Item = &'static [u8]> {
        self.state.rest.tables.iter().copied()
    }

    /// The device tree; `None` where there are ACPI tables.
    pub fn device_tree(&self) -> Option<DeviceTree<'static>> {
        DeviceTree::parse(self.state.rest.tree?)
    }

    /// The machine's IOMMUs, as firmware's tables or the device tree describe them.
    ///
    /// # Errors
    /// Those of [`Topology::from_acpi`] and [`Topology::from_device_tree`].
    pub fn topology(&self) -> Result<Topology, TopologyError> {
        match self.state.rest.tree {
            Some(tree) => Topology::from_device_tree(tree),
            None => Topology::from_acpi(self.tables()),
        }
    }

    /// The hardware's number of each CPU that can be used: see [`madt::processors`] and [`tree::processors`].
    pub fn processors(&self) -> impl Iterator<Item = u64> {
        let by_table = self.tables().find_map(madt::processors);
        let by_tree = self.device_tree().map(tree::processors);
        let by_table = by_table.into_iter().flatten();
        by_table.chain(by_tree.into_iter().flatten())
    }

    /// The windows of the configuration space of PCI functions.
    pub fn ecam(&self) -> &Ecam {
        &self.state.rest.ecam
    }

    /// The configuration space of a PCI function; `None` if there is no such function.
    pub fn pci(&self, function: PciFunction) -> Option<Registers> {
        let window = self.state.rest.ecam.registers(function)?;
        // SAFETY: it is the function's configuration space, which leads to no memory: what its device reaches, its
        // unit says, or who started it before there was one.
        let registers = unsafe { self.registers(window)? };
        (registers.read32(0) != u32::MAX).then_some(registers)
    }

    /// The registers that a base address register of a function leads to, which is no IOMMU.
    pub(crate) fn window_of_function(&self, window: PhysRange) -> Option<Registers> {
        // SAFETY: a function's window is where firmware or the kernel has put it, beside memory; what its device
        // reaches, its unit says.
        unsafe { self.registers(window) }
    }

    /// Takes the objects that interrupt handlers left behind, for a worker, which drops them.
    #[must_use = "dropping it here may wait"]
    pub fn left(&self) -> Leavings {
        self.state.rest.left.with(Leavings::take)
    }

    /// Tells if a queue of unmaps has reached a limit in a context that cannot wait, since the last call:
    /// then a worker calls [`DmaSpace::tick`](portolan::dma::DmaSpace::tick) of each space.
    pub fn take_flush_wanted(&self) -> bool {
        self.state.rest.flush_wanted.swap(false, Ordering::Relaxed)
    }

    pub(super) fn heap(&self) -> &'static Heap {
        self.state.heap
    }

    /// Writes lines of `memory`, which is mapped from `first` on, back to memory, and drops them.
    pub(super) fn drop_lines(&self, memory: PhysRange, first: NonNull<u8>) {
        each_line_at(self, memory, first, cpu::invalidate_line);
        cpu::barrier();
    }
}

/// Firmware's tables, by the direct map.
struct Mapped {
    heap: &'static Heap,
    memory: PhysRange,
}

impl Firmware for Mapped {
    fn bytes(&self, range: PhysRange) -> Option<&'static [u8]> {
        if range.overlaps(self.memory) {
            return None;
        }
        let bytes = usize::try_from(range.len_minus_one()).ok()?.checked_add(1)?;
        let first = self.heap.map().virt(range)?;
        // SAFETY: it is mapped, and `from_acpi` has the caller's promise that no code writes there.
        Some(unsafe { core::slice::from_raw_parts(first.as_ptr(), bytes) })
    }
}

/// The start of each cache line of `lines`, which the direct map shows.
fn each_line(machine: &Machine, lines: PhysRange, each: unsafe fn(*const u8)) {
    if let Some(first) = machine.heap().map().virt(lines) {
        each_line_at(machine, lines, first, each);
    }
}

/// The start of each cache line of `lines`, of which CPUs see the first byte at `first`.
fn each_line_at(
    machine: &Machine,
    lines: PhysRange,
    first: NonNull<u8>,
    each: unsafe fn(*const u8),
) {
    let Some(line) = machine.state.line else {
        return;
    };
    let start = lines.start().align_down(line);
    let first = first.as_ptr().wrapping_sub((lines.start().get() - start.get()) as usize);
    for number in 0..lines.pages(line) as usize {
        // SAFETY: the line holds a byte that is mapped, and CPUs have instructions for lines of this size.
        unsafe { each(first.wrapping_add(number << line.lg2())) }
    }
}

// SAFETY: the arena hands out each block once, aligned, and it is zeroed here; the direct map is where
// the CPU sees it, as long as it is there; `IrqLock` keeps the CPU's interrupts out. All caches of
// CPUs are coherent, so that a device that snoops sees the zeroes; for the others the library cleans
// it.
unsafe impl Platform for Machine {
    type Word = AtomicU64;
    type Lock<T: Send> = CpuLock<T>;
    type Registers = Registers;

    fn now(&self) -> Nanos {
        self.state.ticks.nanos(cpu::counter())
    }

    fn cpus(&self) -> usize {
        self.state.cpus.count()
    }

    fn cpu(&self) -> CpuId {
        self.state.cpus.current()
    }

    fn alloc(&self, layout: Layout) -> Option<PhysAddr> {
        let at = self.state.heap.take_zeroed(layout)?;
        if let Some(memory) = PhysRange::from_len(at, layout.size() as u64) {
            Platform::clean(self, memory);
            Platform::clean_barrier(self);
        }
        Some(at)
    }

    /// From the memory of [`Machine::add_uncached`].
    fn alloc_uncached(&self, layout: Layout) -> Option<AliasedMemory> {
        self.state.heap.uncached.get()?.take_zeroed(layout)
    }

    unsafe fn free(&self, at: PhysAddr, layout: Layout) {
        self.state.heap.give(at, layout);
    }

    unsafe fn free_aliased(&self, memory: AliasedMemory, layout: Layout) {
        if let Some(uncached) = self.state.heap.uncached.get() {
            uncached.give(memory.at, layout);
        }
    }

    unsafe fn virt(&self, at: PhysAddr) -> NonNull<u8> {
        let byte = PhysRange::page(at, PageSize::of_lg2(0));
        // Memory that was allocated, or is a buffer's, is mapped.
        let seen = self.state.heap.map().virt(byte);
        seen.expect("memory is in the direct map")
    }

    fn pairs(&self) -> Option<&dyn StorePairs<AtomicU64>> {
        CpuPairs::detect().map(|pairs| pairs as _)
    }

    fn clean(&self, lines: PhysRange) {
        each_line(self, lines, cpu::clean_line);
    }

    fn clean_barrier(&self) {
        cpu::barrier();
    }

    fn invalidate(&self, lines: PhysRange) {
        each_line(self, lines, cpu::invalidate_line);
        cpu::barrier();
    }

    unsafe fn registers(&self, window: PhysRange) -> Option<Registers> {
        let bytes = usize::try_from(window.len_minus_one()).ok()?.checked_add(1)?;
        let first = self.state.heap.mmio(window)?;
        // SAFETY: it is mapped for good, and `from_acpi` has the caller's promise that it is no memory
        // of the program.
        Some(unsafe { Registers::new(first, bytes) })
    }

    fn pci_config(&self, function: PciFunction, offset: u16) -> Option<u32> {
        Some(self.pci(function)?.read32(offset.into()))
    }

    fn drop_later(&self, left: LeftBehind) {
        self.state.rest.left.with(|all| all.push(left));
    }

    fn flush_wanted(&self) {
        self.state.rest.flush_wanted.store(true, Ordering::Relaxed);
    }
}
