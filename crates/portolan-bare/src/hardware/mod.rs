//! The machine itself: memory by address, registers, the CPU's own instructions.
//!
//! The only module of the crate in which `unsafe` is allowed. It relies on the promises to
//! [`DirectMap::new`], [`Heap::init`], [`Machine::from_acpi`] and [`Machine::add_uncached`].
#![allow(unsafe_code)]

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(target_arch = "riscv64", path = "riscv64.rs")]
mod cpu;
mod cpus;
mod direct_map;
mod heap;
#[cfg(target_arch = "riscv64")]
mod imsic_file;
mod machine;
mod pages;
mod pvh;
mod uncached;

pub use direct_map::DirectMap;
pub use heap::{Heap, HeapError};
#[cfg(target_arch = "riscv64")]
pub use imsic_file::OwnFile;
pub use machine::{Machine, StartError};
pub use pages::Pages;
/// A window of registers.
pub use portolan::platform::MappedRegisters as Registers;
pub use pvh::Pvh;

use portolan::platform::{Interrupts, IrqLock};

/// The interrupts of the CPU that calls.
#[derive(Clone, Copy, Debug)]
pub struct CpuInterrupts;

impl Interrupts for CpuInterrupts {
    #[inline]
    fn disable() -> usize {
        cpu::disable_interrupts()
    }

    #[inline]
    fn restore(before: usize) {
        cpu::restore_interrupts(before);
    }
}

/// A lock that keeps the interrupts of its CPU out.
type CpuLock<T> = IrqLock<T, CpuInterrupts>;
