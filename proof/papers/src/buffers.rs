//! Memory of simulated machines: addresses, with no memory of this process behind them.
//!
//! The only module of the crate in which `unsafe` is allowed.
#![allow(unsafe_code)]

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::dma::Unowned;
use portolan::platform::{DmaMemory, TrustedBase};
use portolan_tune::buffers::Memory;

/// A buffer that a driver hands over.
pub(crate) fn buffer(memory: PhysRange) -> Memory {
    // SAFETY: it stands for memory of a simulated machine, to which nothing leads but a simulated
    // device.
    unsafe { Memory::new(vec![memory]) }
}

/// Memory of a pool.
pub(crate) fn of_pool(memory: PhysRange) -> Unowned {
    // SAFETY: as above; copies to it are counted, and no byte is copied.
    unsafe { Unowned::new(memory) }
}

/// Memory that devices may reach.
pub(crate) fn promised(pa: PhysAddr, bytes: u64) -> DmaMemory {
    let memory = PhysRange::from_len(pa, bytes).unwrap_or(PhysRange::page(pa, PageSize::of_lg2(0)));
    // SAFETY: as above.
    unsafe { DmaMemory::new(memory) }
}

/// Parts of a simulated machine.
pub(crate) fn simulated() -> TrustedBase {
    // SAFETY: its devices reach no memory of the process.
    unsafe { TrustedBase::new() }
}
