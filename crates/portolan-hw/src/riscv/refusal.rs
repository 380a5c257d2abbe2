//! The codes with which [`portolan::iommu::IommuError::Refused`] says why: the bits of `cqcsr` that the
//! unit set when it stopped.

use portolan_spec::riscv::reg::queue;

/// The command is malformed, or the unit does not have it.
pub const ILLEGAL: u32 = queue::ILLEGAL;
/// The command could not be read, or its value could not be stored.
pub const MEMORY: u32 = queue::MEMORY_FAULT;
/// A device did not answer.
pub const TIME_OUT: u32 = queue::TIME_OUT;
/// Others' commands were refused so often that work which they may have undone was not done in
/// time.
pub const INTERRUPTED: u32 = 0;
