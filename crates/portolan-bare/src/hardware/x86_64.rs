//! x86-64's own instructions.
//!
//! Intel 64 and IA-32 architectures software developer's manual, volumes 2 (CLFLUSH, CPUID, IN, RDTSC) and
//! 3 (19.7: the time-stamp counter).
//!
//! *Context.* Interrupt, but for [`counter_hertz`], which may wait for some milliseconds (task).

use core::arch::asm;
use core::arch::x86_64::{__cpuid, _mm_clflush, _mm_mfence, _rdtsc};
use core::num::NonZeroU64;

use portolan::addr::PageSize;

use crate::acpi::PowerTimer;
use crate::ticks::measured;

/// The interrupt flag.
const INTERRUPTS: usize = 1 << 9;

pub(super) fn disable_interrupts() -> usize {
    let flags: usize;
    // SAFETY: only the flag changes, and `restore_interrupts` puts it back.
    unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) };
    flags
}

pub(super) fn restore_interrupts(flags: usize) {
    if flags & INTERRUPTS != 0 {
        // SAFETY: they were on before.
        unsafe { asm!("sti", options(nostack)) };
    }
}

/// The time-stamp counter.
pub(super) fn counter() -> u64 {
    // SAFETY: each x86-64 CPU has one.
    unsafe { _rdtsc() }
}

/// Ticks of the power-management timer in 5 ms.
const MEASURED: u32 = PowerTimer::HERTZ / 200;
/// Looks at it: more than a second's, at the speed of a port.
const LOOKS: u32 = 5_000_000;

/// Frequency of the time-stamp counter in hertz: as the CPU or the hypervisor reports it, or else as
/// measured beside the power-management timer.
pub(super) fn counter_hertz(timer: Option<PowerTimer>) -> Option<NonZeroU64> {
    // SAFETY: each x86-64 CPU has the instruction. Newer compilers know that.
    #[allow(unused_unsafe)]
    let leaf = |number| unsafe { __cpuid(number) };
    if leaf(0).eax >= 0x15 {
        let crystal = leaf(0x15);
        if let Some(hertz) = measured(crystal.ecx.into(), crystal.eax, crystal.ebx) {
            return Some(hertz);
        }
    }
    let guest = leaf(1).ecx >> 31 != 0;
    if guest && leaf(0x4000_0000).eax >= 0x4000_0010 {
        let hertz = u64::from(leaf(0x4000_0010).eax) * 1000;
        if let Some(hertz) = NonZeroU64::new(hertz) {
            return Some(hertz);
        }
    }
    beside(timer?)
}

/// As measured beside `timer`; `None` if that stands still.
fn beside(timer: PowerTimer) -> Option<NonZeroU64> {
    let look = || (read_port(timer.port), counter());
    let (first, start) = look();
    for _ in 0..LOOKS {
        let (now, end) = look();
        let counted = now.wrapping_sub(first) & timer.mask;
        if counted >= MEASURED {
            return measured(end.checked_sub(start)?, counted, PowerTimer::HERTZ);
        }
    }
    None
}

fn read_port(port: u16) -> u32 {
    let value;
    // SAFETY: firmware says that the port is that of a timer, which is only read.
    unsafe {
        asm!("in eax, dx", in("dx") port, out("eax") value, options(nomem, nostack, preserves_flags))
    };
    value
}

/// Size of a cache line: of each x86-64 CPU with CLFLUSH that was built.
pub(super) const fn line() -> Option<PageSize> {
    Some(PageSize::of_lg2(6))
}

/// # Safety
/// `at` is mapped.
pub(super) unsafe fn clean_line(at: *const u8) {
    // SAFETY: the caller's promise.
    unsafe { _mm_clflush(at) }
}

/// # Safety
/// `at` is mapped.
pub(super) unsafe fn invalidate_line(at: *const u8) {
    // SAFETY: the caller's promise. It writes the line back before, if it was changed.
    unsafe { _mm_clflush(at) }
}

pub(super) fn barrier() {
    // SAFETY: each x86-64 CPU has the instruction.
    unsafe { _mm_mfence() }
}
