//! Other processors: started by firmware's interface for that, and numbered.
//!
//! Arm power state coordination interface (DEN 0022), section 5.6 (CPU_ON); SMC calling convention (DEN
//! 0028); Arm architecture reference manual for A-profile, D19 (MPIDR_EL1, TPIDR_EL1).

use core::arch::asm;
use core::ffi::c_void;

use portolan::addr::CpuId;

use crate::Outcome;

/// The bits of MPIDR_EL1 that name a processor.
const AFFINITY: u64 = 0xff_00ff_ffff;
/// CPU_ON, with arguments of 64 bits.
const CPU_ON: u64 = 0xc400_0003;

unsafe extern "C" {
    /// First instruction of another processor (`boot.s`).
    static other: c_void;
}

/// The affinity of the processor that calls.
pub fn processor() -> u64 {
    let name: u64;
    // SAFETY: it is read.
    unsafe { asm!("mrs {}, mpidr_el1", out(reg) name, options(nomem, nostack, preserves_flags)) };
    name & AFFINITY
}

/// Tells the processor that calls its number.
pub fn set_number(number: usize) {
    // SAFETY: nothing but `number` uses the register.
    unsafe { asm!("msr tpidr_el1, {}", in(reg) number, options(nostack, preserves_flags)) };
}

/// The number of the processor that calls.
pub fn number() -> CpuId {
    let number: u64;
    // SAFETY: it is read.
    unsafe { asm!("mrs {}, tpidr_el1", out(reg) number, options(nostack, preserves_flags)) };
    CpuId::new(number as u32)
}

/// Starts the processor with this affinity at `boot.s`; `method` is the device tree's entry about the way to the
/// firmware.
pub fn start(affinity: u64, method: &[u8]) -> Outcome<()> {
    let entry = (&raw const other).expose_provenance();
    let answer: i64;
    match method {
        // SAFETY: the firmware starts another processor, and touches no memory of ours; the convention
        // says which registers it may change.
        b"hvc\0" => unsafe {
            asm!("hvc #0", inout("x0") CPU_ON => answer, in("x1") affinity, in("x2") entry,
                in("x3") 0, clobber_abi("C"));
        },
        // SAFETY: as above.
        b"smc\0" => unsafe {
            asm!("smc #0", inout("x0") CPU_ON => answer, in("x1") affinity, in("x2") entry,
                in("x3") 0, clobber_abi("C"));
        },
        _ => return Err("the device tree names no way to the firmware".into()),
    }
    match answer {
        0 => Ok(()),
        _ => Err("the firmware does not start a processor".into()),
    }
}
