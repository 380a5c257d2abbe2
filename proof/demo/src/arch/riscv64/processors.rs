//! Other harts: started by firmware, and numbered.
//!
//! RISC-V Instruction Set Manual, volume II (`sscratch`).

use core::arch::asm;
use core::ffi::c_void;

use portolan::addr::CpuId;

use super::sbi;
use crate::Outcome;

unsafe extern "C" {
    /// First instruction of another hart (`boot.s`).
    static other: c_void;
}

/// The hart that calls, as `boot.s` left it.
pub fn processor() -> u64 {
    let name;
    // SAFETY: it is read.
    unsafe { asm!("csrr {}, sscratch", out(reg) name, options(nomem, nostack, preserves_flags)) };
    name
}

/// Tells the hart that calls its number.
pub fn set_number(number: usize) {
    // SAFETY: nothing but `number` uses the register: there are no variables of threads.
    unsafe { asm!("mv tp, {}", in(reg) number, options(nostack, preserves_flags)) };
}

/// The number of the hart that calls.
pub fn number() -> CpuId {
    let number: usize;
    // SAFETY: it is read.
    unsafe { asm!("mv {}, tp", out(reg) number, options(nomem, nostack, preserves_flags)) };
    CpuId::new(number as u32)
}

/// Starts this hart at `boot.s`.
pub fn start(hart: u64) -> Outcome<()> {
    sbi::start(hart as usize, (&raw const other).expose_provenance())
}
