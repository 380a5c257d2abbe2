//! The interrupt file of the hart that calls.
//!
//! RISC-V Advanced Interrupt Architecture, version 1.0, sections 2.1 (`siselect`, `sireg`) and 3.10 (`stopei`).
//!
//! *Context.* Interrupt, but for [`File::read`] and [`File::write`]: their register is selected first, so a
//! handler that called them too would change it in between (task).

use core::arch::asm;

use crate::imsic::File;

/// The registers of the file for supervisor mode; the hart has such a file.
#[derive(Clone, Copy, Debug)]
pub struct OwnFile;

impl File for OwnFile {
    fn read(&self, register: u16) -> u64 {
        let value;
        // SAFETY: registers of interrupts alone are read and written.
        unsafe {
            asm!("csrw 0x150, {}", "csrr {}, 0x151", in(reg) register, out(reg) value, options(nostack));
        }
        value
    }

    fn write(&self, register: u16, value: u64) {
        // SAFETY: as above.
        unsafe {
            asm!("csrw 0x150, {}", "csrw 0x151, {}", in(reg) register, in(reg) value, options(nostack));
        }
    }

    fn claim(&self) -> u64 {
        let top;
        // SAFETY: as above.
        unsafe { asm!("csrrw {}, 0x15c, zero", out(reg) top, options(nostack)) };
        top
    }
}
