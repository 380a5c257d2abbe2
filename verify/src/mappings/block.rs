//! The buffers of a world, and the tables of a kernel in a simulated machine.
//!
//! The only module of the crate in which `unsafe` is allowed.
#![allow(unsafe_code)]

use portolan::addr::PhysAddr;
use portolan::dma::{Buffer, Pieces};
use portolan::platform::ForeignTables;

use super::world::Block;

// SAFETY: the range stands for memory of a simulated machine; a world lends it to one block at a
// time.
unsafe impl Buffer for Block {
    fn pieces(&self) -> Pieces<'_> {
        Pieces::One(self.range)
    }

    fn device_may_write(&self) -> bool {
        true
    }
}

/// The tables at `root` in a simulated machine's memory.
pub(crate) fn tables_at(root: PhysAddr) -> ForeignTables {
    // SAFETY: the device is simulated too, and reaches no memory but the machine's. Whether the contract
    // is kept there is what scenarios are about.
    unsafe { ForeignTables::at(root) }
}
