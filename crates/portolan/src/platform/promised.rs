//! Promises of tests, whose machines have no memory behind their addresses.
#![allow(unsafe_code)]

use super::{AllMemory, DmaMemory, FormerMemory, PreservedMemory, TrustedBase};
use crate::addr::{PhysAddr, PhysRange};

/// Memory of no machine.
pub(crate) fn promised(pa: PhysAddr, bytes: u64) -> DmaMemory {
    let memory = PhysRange::from_len(pa, bytes).expect("bytes below 2^64");
    // SAFETY: the addresses are names: no memory of the test is behind them.
    unsafe { DmaMemory::new(memory) }
}

/// All memory of no machine.
pub(crate) fn all_memory() -> AllMemory {
    // SAFETY: as above.
    unsafe { AllMemory::new() }
}

/// Parts of no machine.
pub(crate) fn simulated() -> TrustedBase {
    // SAFETY: as above.
    unsafe { TrustedBase::new() }
}

/// Memory that a former kernel of no machine left.
pub(crate) fn preserved<'r>(
    tables: &'r [PhysRange],
    buffers: &'r [PhysRange],
) -> PreservedMemory<'r> {
    // SAFETY: as above.
    unsafe { PreservedMemory::new(tables, buffers) }
}

/// Tables of a kernel that crashed, which no device uses.
pub(crate) fn crashed(read: &dyn Fn(PhysAddr) -> Option<u64>) -> FormerMemory<'_> {
    // SAFETY: there is no device.
    unsafe { FormerMemory::new(read) }
}
