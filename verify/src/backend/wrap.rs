//! What can be put between a driver and the hardware: nothing, or a seam of [`crate::mutate`].

use std::sync::atomic::AtomicU64;

use portolan::platform::{Mmio, TableMem};

/// What goes between the driver and the hardware.
pub trait Wrap<R, M> {
    /// Registers and memory as the driver is to have them.
    type Registers: Mmio + Send + Sync + 'static;
    /// See above.
    type Memory: TableMem<AtomicU64> + Clone + Send + Sync + 'static;

    /// Wraps them.
    fn wrap(&self, registers: R, memory: M) -> (Self::Registers, Self::Memory);
}

/// Nothing.
#[derive(Clone, Copy, Debug)]
pub struct Bare;

impl<R, M> Wrap<R, M> for Bare
where
    R: Mmio + Send + Sync + 'static,
    M: TableMem<AtomicU64> + Clone + Send + Sync + 'static,
{
    type Registers = R;
    type Memory = M;

    fn wrap(&self, registers: R, memory: M) -> (R, M) {
        (registers, memory)
    }
}
