//! Registers of a command queue: the unit's own, an enhanced one's, or one of NVIDIA's CMDQV.
//!
//! IHI 0070, sections 3.5.6 and 6.3 (ECMDQ); Linux's `tegra241-cmdqv.c` for the last. All three have the same commands
//! and indices. They differ in the way in which they are enabled, and in which an error is told and acknowledged.
//!
//! *Context.* Interrupt, but for the functions that enable and disable a queue, which wait for the unit: atomic.

use alloc::sync::Arc;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use portolan::iommu::{Awaited, IommuError};
use portolan::platform::{Mmio, UnitPlatform};
use portolan_spec::smmuv3::{cmdqv, reg};

use crate::chassis::{Present, wait_until};
use crate::smmuv3::machine::SmmuHardware;

/// Registers of a queue, and the error that was last acknowledged there. That word changes under the ring's lock.
pub(in crate::smmuv3) enum QueuePlace<R> {
    /// The unit's own: its error is a global one.
    Own,
    /// Enhanced, with its registers at this offset in the unit's window.
    Enhanced { at: usize, seen: AtomicU32 },
    /// CMDQV's of this number in the first virtual interface, with the window's registers.
    Tegra241 { window: Arc<R>, number: usize, seen: AtomicU32 },
}

const EN: u32 = reg::ecmdq::EN.mask() as u32;
const ERR: u32 = reg::ecmdq::ERR.mask() as u32;

impl<R: Mmio> QueuePlace<R> {
    pub fn enhanced(at: usize) -> Self {
        Self::Enhanced { at, seen: AtomicU32::new(0) }
    }

    pub fn tegra241(window: Arc<R>, number: usize) -> Self {
        Self::Tegra241 { window, number, seen: AtomicU32::new(0) }
    }

    /// The window, and the offsets of the base and of the two indices.
    fn offsets<'r>(&'r self, unit: &'r R) -> (&'r R, [usize; 3]) {
        match self {
            Self::Own => (unit, [reg::CMDQ_BASE, reg::CMDQ_PROD, reg::CMDQ_CONS]),
            Self::Enhanced { at, .. } => {
                (unit, [reg::ECMDQ_BASE, reg::ECMDQ_PROD, reg::ECMDQ_CONS].map(|one| at + one))
            }
            Self::Tegra241 { window, number, .. } => {
                let [page0, page1] = [cmdqv::VINTF_PAGE0, cmdqv::VINTF_PAGE1]
                    .map(|page| page + number * cmdqv::QUEUE_APART);
                (window, [page1 + cmdqv::BASE, page0 + cmdqv::PROD, page0 + cmdqv::CONS])
            }
        }
    }

    /// Offset of another register of CMDQV's queue.
    const fn at(number: usize, register: usize) -> usize {
        cmdqv::VINTF_PAGE0 + number * cmdqv::QUEUE_APART + register
    }

    /// Sets the queue, which is disabled, to the memory of `base`, at its beginning.
    pub fn set<P: UnitPlatform<Registers = R>>(&self, machine: &SmmuHardware<P>, base: u64) {
        let (registers, [at, prod, cons]) = self.offsets(&machine.registers);
        registers.write64(at, base);
        registers.write32(prod, 0);
        registers.write32(cons, 0);
    }

    /// Enables the queue. The unit's own is one of its enables.
    pub fn enable<P: UnitPlatform<Registers = R>>(
        &self,
        machine: &SmmuHardware<P>,
    ) -> Result<(), IommuError> {
        let (registers, [_, prod, cons]) = self.offsets(&machine.registers);
        let wait = |look: &dyn Fn() -> Result<bool, IommuError>| {
            wait_until(&machine.clock, machine.limit, Awaited::Control, look)
        };
        match self {
            Self::Own => Ok(()),
            Self::Enhanced { seen, .. } => {
                let error = registers.present32(cons)? & ERR;
                seen.store(error, Relaxed);
                registers.write32(prod, EN | error);
                wait(&|| Ok(registers.present32(cons)? & EN != 0))
            }
            Self::Tegra241 { number, seen, .. } => {
                let errors = registers.present32(Self::at(*number, cmdqv::GERROR))?;
                seen.store(errors, Relaxed);
                registers.write32(Self::at(*number, cmdqv::GERRORN), errors);
                registers.write32(Self::at(*number, cmdqv::QUEUE_CONFIG), cmdqv::ENABLE);
                let status = Self::at(*number, cmdqv::QUEUE_STATUS);
                wait(&|| Ok(registers.present32(status)? & cmdqv::ENABLE != 0))
            }
        }
    }

    /// Disables the queue. The unit's own is one of its enables.
    pub fn disable<P: UnitPlatform<Registers = R>>(
        &self,
        machine: &SmmuHardware<P>,
    ) -> Result<(), IommuError> {
        let (registers, [_, prod, cons]) = self.offsets(&machine.registers);
        let (status, bit) = match self {
            Self::Own => return Ok(()),
            Self::Enhanced { .. } => {
                let value = registers.present32(prod)?;
                registers.write32(prod, value & !EN);
                (cons, EN)
            }
            Self::Tegra241 { number, .. } => {
                // A queue that is no interface's has no registers.
                let interface = registers.present32(cmdqv::VINTF_STATUS)? & cmdqv::ENABLE;
                let own = registers.present32(cmdqv::ALLOC + number * 4)? & cmdqv::ALLOCATED;
                if interface == 0 || own == 0 {
                    return Ok(());
                }
                registers.write32(Self::at(*number, cmdqv::QUEUE_CONFIG), 0);
                (Self::at(*number, cmdqv::QUEUE_STATUS), cmdqv::ENABLE)
            }
        };
        let off = || Ok(registers.present32(status)? & bit == 0);
        wait_until(&machine.clock, machine.limit, Awaited::Control, off)
    }

    /// The consumer index, with the code of an error.
    pub fn head(&self, unit: &R) -> Result<u32, IommuError> {
        let (registers, [_, _, cons]) = self.offsets(unit);
        registers.present32(cons)
    }

    /// Tells the unit that commands before `index` are written. Under the ring's lock.
    pub fn set_tail(&self, unit: &R, index: u32) {
        let (registers, [_, prod, _]) = self.offsets(unit);
        let more = match self {
            Self::Own | Self::Tegra241 { .. } => 0,
            Self::Enhanced { seen, .. } => EN | seen.load(Relaxed),
        };
        registers.write32(prod, index | more);
    }

    /// Tells if the queue has stopped with the consumer register `head`. Under the ring's lock.
    pub fn is_stopped<P: UnitPlatform<Registers = R>>(
        &self,
        machine: &SmmuHardware<P>,
        head: u32,
    ) -> Result<bool, IommuError> {
        Ok(match self {
            Self::Own => machine.errors()? & reg::gerror::CMDQ != 0,
            Self::Enhanced { seen, .. } => (head ^ seen.load(Relaxed)) & ERR != 0,
            Self::Tegra241 { window, number, seen } => {
                let errors = window.present32(Self::at(*number, cmdqv::GERROR))?;
                (errors ^ seen.load(Relaxed)) & reg::gerror::CMDQ != 0
            }
        })
    }

    /// Puts a queue back to work that has stopped, with commands up to `tail`. Under the ring's lock.
    pub fn resume<P: UnitPlatform<Registers = R>>(
        &self,
        machine: &SmmuHardware<P>,
        tail: u32,
    ) -> Result<(), IommuError> {
        match self {
            Self::Own => machine.acknowledge(reg::gerror::CMDQ),
            Self::Enhanced { seen, .. } => {
                seen.store(self.head(&machine.registers)? & ERR, Relaxed);
                self.set_tail(&machine.registers, tail);
                Ok(())
            }
            Self::Tegra241 { window, number, seen } => {
                let errors = window.present32(Self::at(*number, cmdqv::GERROR))?;
                seen.store(errors, Relaxed);
                window.write32(Self::at(*number, cmdqv::GERRORN), errors);
                Ok(())
            }
        }
    }
}
