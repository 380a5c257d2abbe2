//! Cache lines written back to memory by the processor's own instruction, as for hardware that does
//! not snoop.
//!
//! x86-64: `clwb`, or else `clflushopt`, or else `clflush` (Intel SDM 2, AMD APM 3). `AArch64`: `dc cvac`.
//! Elsewhere nothing is written back.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::platform::{OutOfTableMemory, TableMem};

use super::process::{Tables, tables};

/// Bytes of a line.
const LINE: usize = 64;

/// Instruction that writes a cache line back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "each machine has some of them")]
enum Instruction {
    /// Keeps the line.
    Clwb,
    /// Drops the line; unordered.
    Clflushopt,
    /// Drops the line; in order.
    Clflush,
    /// Keeps the line.
    DcCvac,
    /// Cache lines are not cleaned: no instruction is known.
    None,
}

impl Instruction {
    /// The best of this processor.
    fn here() -> Self {
        static HERE: OnceLock<Instruction> = OnceLock::new();
        *HERE.get_or_init(Self::find)
    }

    #[cfg(target_arch = "x86_64")]
    fn find() -> Self {
        // SAFETY: every x86-64 processor has `cpuid`, and leaf 0 tells if there is a leaf 7.
        #[allow(unused_unsafe, reason = "safe in newer versions of Rust")]
        let features = unsafe {
            if std::arch::x86_64::__cpuid(0).eax >= 7 {
                std::arch::x86_64::__cpuid_count(7, 0).ebx
            } else {
                0
            }
        };
        match features {
            features if features & 1 << 24 != 0 => Self::Clwb,
            features if features & 1 << 23 != 0 => Self::Clflushopt,
            _ => Self::Clflush,
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn find() -> Self {
        Self::DcCvac
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn find() -> Self {
        Self::None
    }
}

/// Writes the lines that hold `bytes` bytes at `at` back, and waits for nothing.
///
/// # Safety
/// The bytes are mapped memory of this process.
#[inline]
pub(super) unsafe fn write_back(at: usize, bytes: usize) {
    let how = Instruction::here();
    let mut line = at & !(LINE - 1);
    while line < at + bytes {
        // SAFETY: the line is mapped, says the caller; the processor has the instruction; contents
        // stay as they are.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            use std::arch::asm;
            match how {
                Instruction::Clwb => {
                    asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags))
                }
                Instruction::Clflushopt => {
                    asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
                }
                _ => asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags)),
            }
        }
        // SAFETY: as above; user space may clean lines on Linux.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            std::arch::asm!("dc cvac, {}", in(reg) line, options(nostack, preserves_flags));
        }
        line += LINE;
    }
    std::hint::black_box(how);
}

/// Writes the lines of `words` back, and waits for nothing.
pub(crate) fn write_back_words(words: &[AtomicU64]) {
    // SAFETY: they are memory of this process.
    unsafe { write_back(words.as_ptr().addr(), size_of_val(words)) }
}

/// Waits until lines written back are in memory.
#[inline]
pub(crate) fn barrier() {
    // SAFETY: the instruction orders stores and does nothing else.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
}

/// Tables whose lines are written back, and counted: for page tables.
#[derive(Debug)]
pub(crate) struct WrittenBack {
    tables: Tables,
    lines: AtomicU64,
}

impl WrittenBack {
    pub(crate) fn new(pages: u32) -> Self {
        Self { tables: tables(pages), lines: AtomicU64::new(0) }
    }

    /// Lines written back so far.
    pub(crate) fn lines(&self) -> u64 {
        self.lines.load(Ordering::Relaxed)
    }
}

impl TableMem<AtomicU64> for WrittenBack {
    #[inline]
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        TableMem::<AtomicU64>::alloc(&self.tables, size)
    }

    #[inline]
    fn alloc_unfilled(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        TableMem::<AtomicU64>::alloc_unfilled(&self.tables, size)
    }

    #[inline]
    fn free(&self, table: PhysAddr, size: PageSize) {
        TableMem::<AtomicU64>::free(&self.tables, table, size);
    }

    #[inline]
    fn table(&self, table: PhysAddr, size: PageSize) -> &[AtomicU64] {
        self.tables.table(table, size)
    }

    fn clean(&self, bytes: PhysRange) {
        let (first, last) = (bytes.start().get(), bytes.last().get());
        let lines = last / LINE as u64 - first / LINE as u64 + 1;
        self.lines.store(self.lines() + lines, Ordering::Relaxed);
        // SAFETY: page tables alone have this memory, and clean lines of their pages, whose
        // addresses are those of the process.
        unsafe { write_back(first as usize, (last - first + 1) as usize) };
    }

    fn clean_barrier(&self) {
        barrier();
    }

    fn invalidate(&self, _: PhysRange) {}
}
