//! Promises of tests, for memory of simulated machines: included by its path, in other crates too.
#![allow(dead_code, unsafe_code)]

use portolan::addr::{PhysAddr, PhysRange};
use portolan::platform::{AllMemory, DmaMemory, TrustedBase};

/// Memory of a machine that the test made.
pub fn promised(pa: PhysAddr, bytes: u64) -> DmaMemory {
    let memory = PhysRange::from_len(pa, bytes).expect("bytes below 2^64");
    // SAFETY: no device but the machine's gets there, and it reaches no memory of the test's own.
    unsafe { DmaMemory::new(memory) }
}

/// All memory of such a machine.
pub fn all_memory() -> AllMemory {
    // SAFETY: as above.
    unsafe { AllMemory::new() }
}

/// Parts of such a machine.
pub fn simulated() -> TrustedBase {
    // SAFETY: as above.
    unsafe { TrustedBase::new() }
}
