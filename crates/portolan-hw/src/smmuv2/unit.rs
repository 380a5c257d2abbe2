//! The unit: taken over, and disabled again.
//!
//! IHI 0062, reset and initialisation. Everything is blocked before translation is turned on, but
//! for streams that [`Inherited::PassThrough`] leaves as they are.

use super::counts::{WriteCounts, WriteKind};
use super::domain::{self, DomainOptions, FirstStage, SecondStage};
use super::features::{Features, Selection};
use super::implementation::{Implementation, Inherited, Watched};
use super::machine::{Bank, Machine, Turn};
use super::shared::{Shared, SmmuV2Queue};
use super::spec::bank;
use super::spec::global::{self, cr0, s2cr, smr};
use super::streams::{Group, Home, Kept, Known, Mapping, Streams};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use portolan::platform::{Cpus, Guarded, Mmio, Nanos, TableMem};
use portolan::unit::{AttachError, UnitError};

/// What becomes of accesses after the unit was disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenDisabled {
    /// They fault.
    Abort,
    /// They pass through.
    Bypass,
}

/// How a unit is to be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Longest wait for anything that the unit has to do.
    pub limit: Nanos,
    /// Whose unit it is.
    pub implementation: Implementation,
    /// What becomes of streams that somebody set up before; as the implementation has it if `None`.
    pub inherited: Option<Inherited>,
    /// After [`SmmuV2::disable`].
    pub when_disabled: WhenDisabled,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limit: Nanos::from_millis(1_000),
            implementation: Implementation::Arm,
            inherited: None,
            when_disabled: WhenDisabled::Abort,
        }
    }
}

/// A unit that translates.
///
/// Streams are moved through the traits of `portolan::unit`. When it is dropped it is disabled as
/// by [`SmmuV2::disable`]; if that fails, the domains that the hardware may still use stay
/// allocated for good. The unit itself has no memory.
///
/// *Locking.* No lock is held across a wait. Streams are moved one at a time.
#[derive(Debug)]
pub struct SmmuV2<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> {
    pub(super) shared: Arc<Shared<R, M, C>>,
    pub(super) mapping: Mapping,
    pub(super) moves: Turn,
    pub(super) known: Guarded<C, Known>,
    pub(super) search: Guarded<C, super::faults::Search>,
    pub(super) stopped: AtomicBool,
    config: Config,
}

/// Global faults are recorded, unmatched streams fault, nobody else's invalidations are heard.
const RUNNING: u32 =
    cr0::GFRE | cr0::GFIE | cr0::GCFGFRE | cr0::GCFGFIE | cr0::USFCFG | cr0::VMIDPNE | cr0::PTM;

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> SmmuV2<R, M, C> {
    /// Takes the unit over: all streams are blocked, or pass through if they were inherited so.
    ///
    /// # Errors
    /// See [`Features::read`]; [`UnitError::TimedOut`] if the unit does not forget what it knew:
    /// streams are then blocked, unless it had not been translating before.
    pub fn enable(registers: R, mem: M, clock: C, config: Config) -> Result<Self, UnitError> {
        let features = Features::read(&registers)?;
        let machine = Machine::new(registers, mem, clock, &config, features);
        let bypass_bank = bypass_bank(&machine, config.implementation)?;
        let mut mapping = Mapping {
            selection: features.selection,
            id_bits: 0x7fff,
            mask_bits: 0x7fff,
            bypass_bank,
        };
        if let Some(bank) = bypass_bank {
            let n = usize::from(bank.0);
            let stage1 = global::cbar::TYPE.at(global::cbar::STAGE1);
            machine.configure(machine.space1(global::cbar(n)), stage1);
            machine.configure(machine.bank(bank, bank::SCTLR), 0);
        }
        let inherited = config.inherited;
        let inherited = inherited.unwrap_or(config.implementation.inherited());
        let known = take_streams(&machine, &mapping, inherited)?;
        measure(&machine, &mut mapping, &known)?;
        for n in 0..features.banks {
            let bank = Bank(n as u8);
            machine.configure(machine.bank(bank, bank::SCTLR), 0);
            machine.clear_fault(bank)?;
        }
        let old = machine.read(global::GFSR)?;
        machine.write(WriteKind::Fault, global::GFSR, old);
        machine.forget_everything()?;
        machine.configure(global::CR0, RUNNING);
        let found = machine.read(global::CR0)?;
        if found & (cr0::CLIENTPD | cr0::USFCFG) != cr0::USFCFG {
            let (offset, value) = (global::CR0, found.into());
            return Err(UnitError::Nonsense { offset, value });
        }
        let banks = bypass_bank.map_or(features.banks, |bank| bank.0.into());
        let shared = Shared::new(machine, config.implementation, banks);
        Ok(Self {
            shared: Arc::new(shared),
            mapping,
            moves: Turn::default(),
            known: Guarded::new(known),
            search: Guarded::default(),
            stopped: AtomicBool::new(false),
            config,
        })
    }

    /// What the unit can do.
    pub fn features(&self) -> &Features {
        &self.shared.machine.features
    }

    /// Registers written so far, by kind.
    pub fn counts(&self) -> WriteCounts {
        self.shared.machine.counters.read()
    }

    /// A handle to its invalidations.
    pub fn queue(&self) -> SmmuV2Queue<R, M, C> {
        SmmuV2Queue(Arc::clone(&self.shared))
    }

    /// Blocks all streams and forgets everything; then accesses meet [`Config::when_disabled`].
    /// From then on streams cannot be moved, and domains can be dropped.
    ///
    /// # Errors
    /// If the unit does not follow: what it may still use is then kept until another call succeeds,
    /// or for good.
    pub fn disable(&self) -> Result<(), UnitError> {
        self.stopped.store(true, Ordering::Release);
        let blocked = self.block_all();
        self.shared.forget_everything()?;
        blocked.map_err(|error| match error {
            AttachError::Unit(error) => error,
            AttachError::NoSuchStream { .. } | AttachError::Mismatch => UnitError::Unsupported,
        })?;
        if self.config.when_disabled == WhenDisabled::Bypass {
            let machine = &self.shared.machine;
            machine.configure(global::CR0, RUNNING | cr0::CLIENTPD);
            machine.read(global::CR0)?;
        }
        Ok(())
    }
}

impl<R: Mmio, M: TableMem<AtomicU64> + Clone, C: Cpus> SmmuV2<R, M, C> {
    /// An empty first-stage domain with a granule of `2^G` bytes.
    ///
    /// # Errors
    /// [`UnitError::Unsupported`], [`UnitError::OutOfContexts`] if all banks are in use,
    /// [`UnitError::Memory`].
    pub fn first_stage<const G: u32>(
        &self,
        options: &DomainOptions,
    ) -> Result<FirstStage<G, R, M, C>, UnitError> {
        domain::first_stage(&self.shared, options)
    }

    /// An empty second-stage domain with a granule of `2^G` bytes.
    ///
    /// # Errors
    /// As [`SmmuV2::first_stage`].
    pub fn second_stage<const G: u32>(
        &self,
        options: &DomainOptions,
    ) -> Result<SecondStage<G, R, M, C>, UnitError> {
        domain::second_stage(&self.shared, options)
    }
}

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> Drop for SmmuV2<R, M, C> {
    fn drop(&mut self) {
        // A failure leaves what it concerns in limbo, which is kept.
        if !self.stopped.load(Ordering::Acquire) {
            let _ = self.disable();
        }
    }
}

/// Finds out whether firmware turns pass-through into a fault, as some of Qualcomm's does; the bank
/// that passes through instead.
fn bypass_bank<R: Mmio, M, C: Cpus>(
    machine: &Machine<R, M, C>,
    implementation: Implementation,
) -> Result<Option<Bank>, UnitError> {
    if implementation.watched() == Watched::No {
        return Ok(None);
    }
    let features = &machine.features;
    let last = global::s2cr(features.streams as usize - 1);
    let bypass = s2cr::TYPE.at(s2cr::BYPASS);
    machine.write(WriteKind::StreamToContext, last, bypass);
    let found = machine.read(last)?;
    if s2cr::TYPE.of(found) == s2cr::BYPASS {
        return Ok(None);
    }
    let bank = u8::try_from(features.banks - 1).map(Bank);
    // Domains need a bank as well.
    let bank = bank.ok().filter(|bank| bank.0 > 0);
    bank.map(Some).ok_or(UnitError::Unsupported)
}

/// Blocks all streams, but for those that are to pass through.
fn take_streams<R: Mmio, M, C: Cpus>(
    machine: &Machine<R, M, C>,
    mapping: &Mapping,
    inherited: Inherited,
) -> Result<Known, UnitError> {
    let mut known = Known::default();
    for slot in 0..machine.features.streams as usize {
        let found = match mapping.selection {
            Selection::Matching => machine.read(global::smr(slot))?,
            Selection::Indexing => 0,
        };
        let streams = Streams {
            id: smr::ID.of(found) as u16,
            mask: smr::MASK.of(found) as u16,
        };
        let wanted = smr::VALID.of(found) == 1 && inherited == Inherited::PassThrough;
        // A stream that matches twice is nobody's.
        if wanted && known.conflict(streams).is_none() {
            mapping.point(machine, slot, &Home::Through)?;
            known.groups.push(Group {
                streams,
                slot,
                kept: Kept::Always,
                home: Home::Through,
            });
            continue;
        }
        mapping.point(machine, slot, &Home::Nowhere)?;
        mapping.match_streams(machine, slot, None)?;
    }
    Ok(known)
}

/// Finds out which bits of a stream's number are matched, and can be masked.
fn measure<R: Mmio, M, C: Cpus>(
    machine: &Machine<R, M, C>,
    mapping: &mut Mapping,
    known: &Known,
) -> Result<(), UnitError> {
    if mapping.selection == Selection::Indexing {
        return Ok(());
    }
    let taken: Vec<usize> = known.groups.iter().map(|group| group.slot).collect();
    let free = (0..machine.features.streams as usize).find(|slot| !taken.contains(slot));
    let Some(slot) = free else { return Ok(()) };
    let offset = global::smr(slot);
    let probe = |value| {
        machine.write(WriteKind::StreamMatch, offset, value);
        machine.read(offset)
    };
    mapping.id_bits = smr::ID.of(probe(smr::ID.mask())?) as u16;
    // Some units refuse masks of bits that the number has.
    mapping.mask_bits = smr::MASK.of(probe(smr::MASK.mask())?) as u16;
    probe(0)?;
    Ok(())
}
