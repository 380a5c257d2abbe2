//! The seam before hardware whose commands are register writes: each may be lost, or be another.

use portolan::platform::Mmio;

use super::seam::{Arrives, Sabotage};

/// Registers whose writes are dropped or bent.
#[derive(Debug)]
pub struct Bent<R> {
    registers: R,
    sabotage: Sabotage,
}

impl<R: Mmio> Bent<R> {
    /// Places the sabotage in front of `registers`.
    pub fn new(registers: R, sabotage: Sabotage) -> Self {
        Self { registers, sabotage }
    }
}

impl<R: Mmio> Mmio for Bent<R> {
    fn read32(&self, offset: usize) -> u32 {
        (self.sabotage.read)(offset, self.registers.read32(offset))
    }

    fn write32(&self, offset: usize, value: u32) {
        if (self.sabotage.write)(offset, value) == Arrives::Yes {
            self.registers.write32(offset, value);
        }
    }

    fn read64(&self, offset: usize) -> u64 {
        self.registers.read64(offset)
    }

    fn write64(&self, offset: usize, value: u64) {
        if (self.sabotage.write)(offset, value as u32) == Arrives::Yes {
            let (offset, value) = (self.sabotage.bend)(offset, value);
            self.registers.write64(offset, value);
        }
    }
}
