//! Buffers of simulated machines: addresses, with no memory of this process behind them.
//!
//! The only module of the crate in which `unsafe` is allowed.
#![allow(unsafe_code)]

use portolan::addr::PhysRange;
use portolan::dma::{Buffer, Pieces, Unowned};
use portolan::platform::{AllMemory, TrustedBase};

/// Memory that a driver hands over.
#[derive(Debug)]
pub struct Memory(Vec<PhysRange>);

impl Memory {
    /// A buffer of `pieces`.
    ///
    /// # Safety
    /// They are memory of a simulated machine, to which nothing leads but a simulated device.
    pub unsafe fn new(pieces: Vec<PhysRange>) -> Self {
        Self(pieces)
    }
}

/// A buffer of a machine that is replayed.
pub(crate) fn buffer(pieces: Vec<PhysRange>) -> Memory {
    // SAFETY: the fixture's machine is simulated, and has no other devices.
    unsafe { Memory::new(pieces) }
}

// SAFETY: by the contract of `Memory::new`, nothing leads to the pieces but a simulated device.
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
    // SAFETY: it belongs to the simulated machine; copies to it are counted, and no byte is copied.
    unsafe { Unowned::new(memory) }
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
