//! Registers that all parts share, and invalidation through registers.
//!
//! Registers that all parts share: the global command, the status, protected memory.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 11.4.4 and
//! 11.4.5 (one command at a time, repeating the bits that are on), 6.8 (write buffer), 11.4.7
//! (protected memory).
//!
//! Invalidation through registers, for units without a queue.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, section 6.5.1, and
//! 11.4.8.2 and 11.4.9 for the registers. One command at a time, each awaited. The hardware may do
//! more than was asked, never less. Refused while the queue is on (6.5.1).

use super::features::{Features, VtdFeature};
use super::request::refusal;
use super::request::{CommandKind as Kind, Counters};
use super::request::{Contexts, Iotlb};
use crate::chassis::{Present, wait_for, wait_while_it_works};
use arrayvec::ArrayVec;
use portolan::iommu::{Awaited, IommuError};
use portolan::platform::{Guarded, Mmio, Nanos, UnitPlatform};
use portolan_spec::vtd::reg::{ccmd, command, iotlb, pmen};
use portolan_spec::vtd::{Bits, descriptor, reg};

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
pub(super) struct VtdControl<P: UnitPlatform> {
    pub(super) regs: P::Registers,
    pub(super) clock: P,
    pub(super) limit: Nanos,
    pub(super) features: Features,
    pub(super) counters: Counters,
    /// The last command given, until the unit has followed: the next one may not come before.
    under_way: Guarded<P, Option<UnderWay>>,
}

impl<P: UnitPlatform> VtdControl<P> {
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
        if given { self.wait32(reg::GSTS, shown.bit, shown.wanted, awaited) } else { Ok(()) }
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
        if !self.features.has.contains(VtdFeature::WRITE_BUFFER) {
            return Ok(());
        }
        self.counters.add(Kind::WriteBuffer);
        self.once(command::WBF, 0, Awaited::WriteBuffer)
    }

    /// Turns the protected memory regions off, which firmware may have left on: translation
    /// protects from now on.
    pub(super) fn unprotect_memory(&self) -> Result<(), IommuError> {
        if !self.features.has.contains(VtdFeature::PROTECTED_MEMORY) {
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

/// Refusals that are kept for callers that have yet to ask for them.
const MAX_REFUSALS: usize = 16;

/// A command that was given, counted since the start.
type Number = u64;

/// The command that the unit is at.
#[derive(Clone, Copy, Debug)]
struct Running {
    number: Number,
    offset: usize,
    /// Field of the register that falls when the command is done.
    busy: Bits,
    /// Field with the granularity of the command that was done; 0: refused.
    done: Bits,
}

#[derive(Debug, Default)]
struct RegisterCommands {
    /// The last command given.
    last: Number,
    /// The command whose outcome was not read yet.
    running: Option<Running>,
    /// Commands that were refused.
    refused: ArrayVec<Number, MAX_REFUSALS>,
    /// Up to this one any may have been refused: there was no room to say which.
    unsure: Number,
}

impl RegisterCommands {
    /// Reads the outcome of the running command, if it is done; `None` if it is not.
    fn finish(&mut self, regs: &impl Mmio) -> Result<Option<()>, IommuError> {
        let Some(running) = self.running else {
            return Ok(Some(()));
        };
        let value = regs.present64(running.offset)?;
        if running.busy.of(value) != 0 {
            return Ok(None);
        }
        self.running = None;
        let refused = running.done.of(value) == 0;
        if refused && self.refused.try_push(running.number).is_err() {
            self.refused.clear();
            self.unsure = running.number;
        }
        Ok(Some(()))
    }

    /// Outcome of a command that is done.
    fn outcome(&mut self, number: Number) -> Result<(), IommuError> {
        let at = self.refused.iter().position(|of| *of == number);
        at.map(|at| self.refused.swap_remove(at));
        if at.is_some() || number <= self.unsure {
            Err(IommuError::Refused { code: refusal::REGISTERS })
        } else {
            Ok(())
        }
    }
}

/// Commands through registers. A caller that finds the unit at another's command waits for the
/// unit, and reads the outcome on the other's behalf: it may have interrupted it.
pub(super) struct Direct<P: UnitPlatform> {
    state: Guarded<P, RegisterCommands>,
}

impl<P: UnitPlatform> Default for Direct<P> {
    fn default() -> Self {
        Self { state: Guarded::default() }
    }
}

impl<P: UnitPlatform> Direct<P> {
    /// Invalidates part of the context cache.
    pub(super) fn contexts(
        &self,
        control: &VtdControl<P>,
        what: Contexts,
    ) -> Result<(), IommuError> {
        let (kind, asked, fields) = match what {
            Contexts::All => (Kind::ContextGlobal, 1, 0),
            Contexts::Device { domain, stream } => {
                (Kind::ContextDevice, 3, ccmd::DID.at(domain.into()) | ccmd::SID.at(stream.into()))
            }
        };
        let value = ccmd::ICC.mask() | ccmd::CIRG.at(asked) | fields;
        self.run(control, kind, None, (reg::CCMD, value), (ccmd::ICC, ccmd::CAIG))
    }

    /// Invalidates part of the IOTLB.
    pub(super) fn iotlb(&self, control: &VtdControl<P>, what: Iotlb) -> Result<(), IommuError> {
        let (kind, asked, domain, address) = match what {
            Iotlb::All => (Kind::IotlbGlobal, 1, 0, None),
            Iotlb::Domain { domain } => (Kind::IotlbDomain, 2, domain, None),
            Iotlb::Pages { domain, start, lg2_pages, hint } => {
                let fields = descriptor::AM.at(lg2_pages.into()) | descriptor::IH.at(hint.bit());
                (Kind::IotlbPages, 3, domain, Some(start | fields))
            }
        };
        let has = control.features.has;
        let drain = |flag, bits: Bits| bits.at(has.contains(flag).into());
        let value = iotlb::IVT.mask()
            | iotlb::IIRG.at(asked)
            | iotlb::DID.at(domain.into())
            | drain(VtdFeature::DRAIN_READS, iotlb::DR)
            | drain(VtdFeature::DRAIN_WRITES, iotlb::DW);
        let base = control.features.iotlb;
        let address = address.map(|address| (base, address));
        self.run(control, kind, address, (base + 8, value), (iotlb::IVT, iotlb::IAIG))
    }

    /// Writes an address, if any, then a command, and waits for it to be done.
    fn run(
        &self,
        control: &VtdControl<P>,
        kind: Kind,
        address: Option<(usize, u64)>,
        (offset, value): (usize, u64),
        (busy, done): (Bits, Bits),
    ) -> Result<(), IommuError> {
        let regs = &control.regs;
        let awaited = Awaited::Invalidation;
        let progress = || Ok(self.state.lock().last);
        let (clock, limit) = (&control.clock, control.limit);
        let give = || {
            let mut state = self.state.lock();
            if control.status()? & command::QIE != 0 {
                return Err(IommuError::Unsupported);
            }
            // The previous user of the unit may have left a command under way.
            if state.finish(regs)?.is_none() || busy.of(regs.read64(offset)) != 0 {
                return Ok(None);
            }
            if let Some((offset, address)) = address {
                regs.write64(offset, address);
            }
            control.counters.add(kind);
            regs.write64(offset, value);
            state.last += 1;
            state.running = Some(Running { number: state.last, offset, busy, done });
            Ok(Some(state.last))
        };
        let give = || give().transpose();
        let number = wait_while_it_works(clock, limit, awaited, give, progress)?;
        let look = || {
            let mut state = self.state.lock();
            if state.running.is_some_and(|of| of.number == number) && state.finish(regs)?.is_none()
            {
                return Ok(None);
            }
            state.outcome(number).map(Some)
        };
        let look = || look().transpose();
        wait_while_it_works(clock, limit, awaited, look, progress)
    }
}
