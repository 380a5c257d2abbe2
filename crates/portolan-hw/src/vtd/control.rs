//! Registers that all parts share: the global command, the status, protected memory.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 11.4.4 and
//! 11.4.5 (one command at a time, repeating the bits that are on), 6.8 (write buffer), 11.4.7
//! (protected memory).

use portolan::iommu::{Awaited, IommuError};
use portolan::platform::{Guarded, Mmio, Nanos, UnitPlatform};

use super::counts::{CommandKind as Kind, Counters};
use super::features::{Features, Has};
use crate::chassis::{Present, wait_for};
use portolan_spec::vtd::reg::{self, command, pmen};

/// New state of a control bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Switch {
    On,
    Off,
}

/// A control bit that was written, and its value in the status once the unit has followed.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    bit: u32,
    wanted: u32,
}

/// Registers, clock and identification of a unit.
pub(super) struct Control<P: UnitPlatform> {
    pub(super) regs: P::Registers,
    pub(super) clock: P,
    pub(super) limit: Nanos,
    pub(super) features: Features,
    pub(super) counters: Counters,
    /// The last command given, until the unit has followed: the next one may not come before.
    under_way: Guarded<P, Option<UnderWay>>,
}

impl<P: UnitPlatform> Control<P> {
    pub(super) fn new(regs: P::Registers, clock: P, limit: Nanos, features: Features) -> Self {
        Self {
            regs,
            clock,
            limit,
            features,
            counters: Counters::default(),
            under_way: Guarded::default(),
        }
    }

    /// Waits until the bits `mask` of a 32-bit register are `wanted`.
    pub(super) fn wait32(
        &self,
        offset: usize,
        mask: u32,
        wanted: u32,
        awaited: Awaited,
    ) -> Result<(), IommuError> {
        let look = || Ok((self.regs.present32(offset)? & mask == wanted).then_some(()));
        wait_for(&self.clock, self.limit, awaited, look)
    }

    /// Control bits that are on.
    pub(super) fn status(&self) -> Result<u32, IommuError> {
        self.regs.present32(reg::GSTS)
    }

    /// Gives the command that `value` makes of the control bits that are on, unless it is `None`,
    /// and waits until the status shows it. Callers that come while the unit follows another
    /// command wait for the unit, not for the caller that gave that: they may have interrupted it.
    fn command(
        &self,
        shown: UnderWay,
        awaited: Awaited,
        value: impl Fn(u32) -> Option<u32>,
    ) -> Result<(), IommuError> {
        let give = || {
            let mut under_way = self.under_way.lock();
            let status = self.status()?;
            if let Some(UnderWay { bit, wanted }) = *under_way {
                if status & bit != wanted {
                    return Ok(None);
                }
                *under_way = None;
            }
            let value = value(status & command::STICKY);
            if let Some(value) = value {
                self.regs.write32(reg::GCMD, value);
                *under_way = Some(shown);
            }
            Ok(Some(value.is_some()))
        };
        let given = wait_for(&self.clock, self.limit, awaited, give)?;
        match given {
            true => self.wait32(reg::GSTS, shown.bit, shown.wanted, awaited),
            false => Ok(()),
        }
    }

    /// Turns one control bit on or off, and waits until it is.
    pub(super) fn switch(&self, bit: u32, to: Switch) -> Result<(), IommuError> {
        let wanted = match to {
            Switch::On => bit,
            Switch::Off => 0,
        };
        let value = |sticky: u32| (sticky & bit != wanted).then_some(sticky & !bit | wanted);
        self.command(UnderWay { bit, wanted }, Awaited::Control, value)
    }

    /// Gives the one-shot command `bit`, and waits until the status shows `wanted` of it.
    fn once(&self, bit: u32, wanted: u32, awaited: Awaited) -> Result<(), IommuError> {
        let value = |sticky| Some(sticky | bit);
        self.command(UnderWay { bit, wanted }, awaited, value)
    }

    /// Has the unit take over the interrupt table at `address`, with its size and mode.
    pub(super) fn set_interrupt_table(&self, address: u64) -> Result<(), IommuError> {
        self.regs.write64(reg::IRTA, address);
        self.once(command::SIRTP, command::SIRTP, Awaited::Control)?;
        self.regs.holds(reg::IRTA, address)
    }

    /// Has the unit take over the root table at `address`, with its mode.
    pub(super) fn set_root(&self, address: u64) -> Result<(), IommuError> {
        self.regs.write64(reg::RTADDR, address);
        self.once(command::SRTP, command::SRTP, Awaited::Control)?;
        self.regs.holds(reg::RTADDR, address)
    }

    /// Drains the write buffer, if there is one.
    pub(super) fn flush_write_buffer(&self) -> Result<(), IommuError> {
        if !self.features.has.contains(Has::WRITE_BUFFER) {
            return Ok(());
        }
        self.counters.add(Kind::WriteBuffer);
        self.once(command::WBF, 0, Awaited::WriteBuffer)
    }

    /// Turns the protected memory regions off, which firmware may have left on: translation
    /// protects from now on.
    pub(super) fn unprotect_memory(&self) -> Result<(), IommuError> {
        if !self.features.has.contains(Has::PROTECTED_MEMORY) {
            return Ok(());
        }
        let now = self.regs.present32(reg::PMEN)?;
        if now & (pmen::EPM | pmen::PRS) == 0 {
            return Ok(());
        }
        self.regs.write32(reg::PMEN, now & !pmen::EPM);
        self.wait32(reg::PMEN, pmen::PRS, 0, Awaited::Control)
    }
}
