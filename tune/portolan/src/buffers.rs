//! Buffers of simulated machines: addresses, with no memory of this process behind them.
//!
//! The only module of the crate in which `unsafe` is allowed.
#![allow(unsafe_code)]

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::dma::{Buffer, Pieces, Unowned};
use portolan::platform::{AllMemory, DmaMemory, TrustedBase};

/// Memory that a driver hands over.
#[derive(Debug)]
pub(crate) struct Memory(pub(crate) Vec<PhysRange>);

// SAFETY: the pieces stand for memory of a simulated machine, to which nothing leads but a
// simulated device.
unsafe impl Buffer for Memory {
    fn pieces(&self) -> Pieces<'_> {
        Pieces::List(&self.0)
    }

    fn device_may_write(&self) -> bool {
        true
    }
}

/// Memory of a pool.
pub(crate) fn of_pool(memory: PhysRange) -> Unowned {
    // SAFETY: as above; copies to it are counted, and no byte is copied.
    unsafe { Unowned::new(memory) }
}

/// Memory of a simulated machine.
pub(crate) fn promised(pa: PhysAddr, bytes: u64) -> DmaMemory {
    let memory = PhysRange::from_len(pa, bytes);
    let memory = memory.unwrap_or(PhysRange::page(pa, PageSize::of_lg2(0)));
    // SAFETY: as above.
    unsafe { DmaMemory::new(memory) }
}

/// All memory of a simulated machine.
pub(crate) fn all_memory() -> AllMemory {
    // SAFETY: as above.
    unsafe { AllMemory::new() }
}

/// Parts of a simulated machine.
pub(crate) fn simulated() -> TrustedBase {
    // SAFETY: its devices reach no memory of the process.
    unsafe { TrustedBase::new() }
}
