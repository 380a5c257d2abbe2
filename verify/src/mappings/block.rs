//! The buffers of a world.
//!
//! The only module of the crate in which `unsafe` is allowed.
#![allow(unsafe_code)]

use std::sync::Arc;

use portolan::addr::PhysRange;
use portolan::dma::{Buffer, Pieces};

use super::world::World;

/// A buffer: it goes back to the world when it is dropped.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) world: Arc<World>,
    pub(super) number: u64,
    pub(super) range: PhysRange,
}

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

impl Drop for Block {
    fn drop(&mut self) {
        self.world.dropped(self.number);
    }
}
