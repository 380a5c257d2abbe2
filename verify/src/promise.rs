//! What the rest of the crate relies on: buffers of simulated machines, and tables of a kernel in one.
//!
//! The only module of the crate in which `unsafe` is allowed.
#![allow(unsafe_code)]

use portolan::addr::PhysAddr;
use portolan::platform::ForeignTables;

#[cfg(feature = "units")]
use crate::mappings::Block;

// SAFETY: the range stands for memory of a simulated machine; a world lends it to one block at a
// time.
#[cfg(feature = "units")]
unsafe impl portolan::dma::Buffer for Block {
    fn pieces(&self) -> portolan::dma::Pieces<'_> {
        portolan::dma::Pieces::One(self.range)
    }

    fn device_may_write(&self) -> bool {
        true
    }
}

/// The tables at `root` in a simulated machine's memory.
pub(crate) fn tables_at(root: PhysAddr) -> ForeignTables {
    // SAFETY: the device is simulated too (real ones are given no such tables), and reaches no memory but
    // the machine's. Whether the contract is kept there is what scenarios are about.
    unsafe { ForeignTables::at(root) }
}
