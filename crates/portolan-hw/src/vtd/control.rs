//! Registers that everybody shares: the global command, the status, protected memory.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 11.4.4 and
//! 11.4.5 (one command at a time, repeating what is on), 6.8 (write buffer), 11.4.7 (protected
//! memory).

use core::sync::atomic::{AtomicBool, Ordering};

use portolan::platform::{Clock, Cpus, Mmio, Nanos, poll};
use portolan::unit::{Awaited, UnitError};

use super::counts::{Counters, Kind};
use super::features::{Features, Has};
use super::spec::reg::{self, command, pmen};

/// A right that one caller has at a time. Nobody waits for it for ever.
#[derive(Debug, Default)]
pub(super) struct Turn(AtomicBool);

/// A turn that was taken; it ends when this is dropped.
pub(super) struct Taken<'a>(&'a AtomicBool);

impl Turn {
    pub(super) fn take(&self, clock: &impl Clock, limit: Nanos) -> Result<Taken<'_>, UnitError> {
        let free = || (!self.0.swap(true, Ordering::Acquire)).then_some(());
        let awaited = Awaited::Turn;
        poll(clock, limit, free)
            .map(|()| Taken(&self.0))
            .map_err(|waited| UnitError::TimedOut { awaited, waited })
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// What a control bit is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Switch {
    On,
    Off,
}

/// Registers, clock and identification of a unit.
#[derive(Debug)]
pub(super) struct Control<R, C: Cpus> {
    pub(super) regs: R,
    pub(super) clock: C,
    pub(super) limit: Nanos,
    pub(super) features: Features,
    pub(super) counters: Counters,
    turn: Turn,
}

impl<R: Mmio, C: Cpus> Control<R, C> {
    pub(super) fn new(regs: R, clock: C, limit: Nanos, features: Features) -> Self {
        Self {
            regs,
            clock,
            limit,
            features,
            counters: Counters::default(),
            turn: Turn::default(),
        }
    }

    /// Waits until the bits `mask` of a 32-bit register are `wanted`.
    pub(super) fn wait32(
        &self,
        offset: usize,
        mask: u32,
        wanted: u32,
        awaited: Awaited,
    ) -> Result<(), UnitError> {
        let look = || match self.regs.read32(offset) {
            u32::MAX => Some(Err(UnitError::Gone)),
            value => (value & mask == wanted).then_some(Ok(())),
        };
        poll(&self.clock, self.limit, look)
            .unwrap_or_else(|waited| Err(UnitError::TimedOut { awaited, waited }))
    }

    /// Which control bits are on.
    pub(super) fn status(&self) -> Result<u32, UnitError> {
        match self.regs.read32(reg::GSTS) {
            u32::MAX => Err(UnitError::Gone),
            status => Ok(status),
        }
    }

    /// Turns one control bit on or off, and waits until it is.
    pub(super) fn switch(&self, bit: u32, to: Switch) -> Result<(), UnitError> {
        let _turn = self.turn.take(&self.clock, self.limit)?;
        let sticky = self.status()? & command::STICKY;
        let (value, wanted) = match to {
            Switch::On => (sticky | bit, bit),
            Switch::Off => (sticky & !bit, 0),
        };
        if sticky & bit == wanted {
            return Ok(());
        }
        self.regs.write32(reg::GCMD, value);
        self.wait32(reg::GSTS, bit, wanted, Awaited::Control)
    }

    /// Gives the one-shot command `bit`, and waits until the status shows `wanted` of it.
    fn once(&self, bit: u32, wanted: u32, awaited: Awaited) -> Result<(), UnitError> {
        let _turn = self.turn.take(&self.clock, self.limit)?;
        let sticky = self.status()? & command::STICKY;
        self.regs.write32(reg::GCMD, sticky | bit);
        self.wait32(reg::GSTS, bit, wanted, awaited)
    }

    /// Has the unit take over the root table at `address`, with its mode.
    pub(super) fn set_root(&self, address: u64) -> Result<(), UnitError> {
        self.regs.write64(reg::RTADDR, address);
        self.once(command::SRTP, command::SRTP, Awaited::Control)
    }

    /// Drains the write buffer, if there is one.
    pub(super) fn flush_write_buffer(&self) -> Result<(), UnitError> {
        if !self.features.has.contains(Has::WRITE_BUFFER) {
            return Ok(());
        }
        self.counters.add(Kind::WriteBuffer);
        self.once(command::WBF, 0, Awaited::WriteBuffer)
    }

    /// Turns the protected memory regions off, which firmware may have left on: translation
    /// protects from now on.
    pub(super) fn unprotect_memory(&self) -> Result<(), UnitError> {
        if !self.features.has.contains(Has::PROTECTED_MEMORY) {
            return Ok(());
        }
        let now = match self.regs.read32(reg::PMEN) {
            u32::MAX => return Err(UnitError::Gone),
            now => now,
        };
        if now & (pmen::EPM | pmen::PRS) == 0 {
            return Ok(());
        }
        self.regs.write32(reg::PMEN, now & !pmen::EPM);
        self.wait32(reg::PMEN, pmen::PRS, 0, Awaited::Control)
    }
}
