//! The buffers of a world.
//!
//! The only module of the crate in which `unsafe` is allowed.
#![allow(unsafe_code)]

use portolan::dma::{Buffer, Pieces};

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
