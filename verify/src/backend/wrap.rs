//! What can be put between a driver and the hardware: nothing, or a seam of [`crate::mutate`].

use std::sync::atomic::AtomicU64;

use portolan::platform::{Mmio, TableMem, Word};

/// What goes between the driver and the hardware, whose tables have entries of `W`.
pub trait Wrap<R, M, W: Word = AtomicU64> {
    /// Registers and memory as the driver is to have them.
    type Registers: Mmio + Send + Sync + 'static;
    /// See above.
    type Memory: TableMem<W> + Clone + Send + Sync + 'static;

    /// Wraps them.
    fn wrap(&self, registers: R, memory: M) -> (Self::Registers, Self::Memory);
}

/// Nothing.
#[derive(Clone, Copy, Debug)]
pub struct Bare;

impl<R, M, W> Wrap<R, M, W> for Bare
where
    W: Word,
    R: Mmio + Send + Sync + 'static,
    M: TableMem<W> + Clone + Send + Sync + 'static,
{
    type Registers = R;
    type Memory = M;

    fn wrap(&self, registers: R, memory: M) -> (R, M) {
        (registers, memory)
    }
}
