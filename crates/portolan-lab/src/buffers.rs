//! Buffers of simulated machines: addresses, with no memory of this process behind them.
//!
//! The only module of the crate in which `unsafe` is allowed.
#![allow(unsafe_code)]

use portolan::addr::PhysRange;
use portolan::dma::{Buffer, Pieces, Unowned};

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
    // SAFETY: as above; what is copied there is counted, and no byte is.
    unsafe { Unowned::new(memory) }
}
