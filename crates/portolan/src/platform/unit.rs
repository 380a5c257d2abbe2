//! Machine as the driver of one IOMMU needs it.
//!
//! *Context.* Interrupt: types, and a value that forwards to CPUs.

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::AtomicU64;

use super::{
    Clock, Cpus, LeftBehind, Mmio, Nanos, Platform, ProtocolStep, RawMemory, TableMem, Tracer, Word,
};
use crate::addr::{CpuId, TableId};

/// Machine of an IOMMU's driver: the CPUs, with the types of the unit's registers and of memory for
/// tables of words `W`.
///
/// Each [`Platform`] is one. [`UnitParts`] makes one of parts that have different sources, as in
/// tests.
pub trait UnitPlatform<W: Word = AtomicU64>: Cpus {
    /// Registers of the unit.
    type Registers: Mmio + 'static;
    /// Memory for its tables and queues.
    type Memory: TableMem<W> + Clone + 'static;
}

impl<W: Word, P: Platform> UnitPlatform<W> for P
where
    RawMemory<P>: TableMem<W>,
{
    type Registers = P::Registers;
    type Memory = RawMemory<P>;
}

/// Machine with registers `R`, table memory `M` and the CPUs `C`.
pub struct UnitParts<R, M, C> {
    cpus: C,
    others: PhantomData<fn() -> (R, M)>,
}

impl<R, M, C> UnitParts<R, M, C> {
    /// The machine with these CPUs.
    pub const fn new(cpus: C) -> Self {
        Self { cpus, others: PhantomData }
    }
}

impl<R, M, C: Clone> Clone for UnitParts<R, M, C> {
    fn clone(&self) -> Self {
        Self::new(self.cpus.clone())
    }
}

impl<R, M, C: fmt::Debug> fmt::Debug for UnitParts<R, M, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UnitParts").field(&self.cpus).finish()
    }
}

impl<W, R, M, C> UnitPlatform<W> for UnitParts<R, M, C>
where
    W: Word,
    R: Mmio + 'static,
    M: TableMem<W> + Clone + 'static,
    C: Cpus,
{
    type Registers = R;
    type Memory = M;
}

impl<R, M, C: Clock> Clock for UnitParts<R, M, C> {
    #[inline]
    fn now(&self) -> Nanos {
        self.cpus.now()
    }

    #[inline]
    fn relax(&self) {
        self.cpus.relax();
    }
}

impl<R: 'static, M: 'static, C: Cpus> Cpus for UnitParts<R, M, C> {
    type Word = C::Word;
    type Lock<T: Send> = C::Lock<T>;

    #[inline]
    fn count(&self) -> usize {
        self.cpus.count()
    }

    #[inline]
    fn current(&self) -> CpuId {
        self.cpus.current()
    }

    #[inline]
    fn coarse_now(&self) -> Nanos {
        self.cpus.coarse_now()
    }

    #[inline]
    fn flush_wanted(&self) {
        self.cpus.flush_wanted();
    }

    fn drop_later(&self, left: LeftBehind) {
        self.cpus.drop_later(left);
    }

    #[inline]
    fn tracer(&self) -> Option<&dyn Tracer> {
        self.cpus.tracer()
    }

    #[inline(always)]
    fn protocol_step(&self, of: TableId, step: ProtocolStep) {
        self.cpus.protocol_step(of, step);
    }
}
