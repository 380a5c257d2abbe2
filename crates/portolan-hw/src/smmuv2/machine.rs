//! Registers, table memory and time of a unit, and its banks that stall.
//!
//! IHI 0062, fault handling: a bank may stall an access instead of ending it; it then waits for an
//! answer.
//!
//! *Context.* Interrupt, but for functions that wait for the unit (atomic) and those that take memory
//! (task).

use super::config::Config;
use super::config::{Counters, WriteKind};
use super::features::Features;
use crate::chassis::{Present, wait_until};
use alloc::vec::Vec;
use portolan::iommu::{Awaited, IommuError};
use portolan::platform::{Mmio, Nanos, UnitPlatform};
use portolan_spec::smmuv2::global::cr0;
use portolan_spec::smmuv2::{bank, global};

/// Number of a context bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Bank(pub u8);

/// A set of context banks.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Banks(u128);

impl Banks {
    pub fn add(&mut self, bank: Bank) {
        self.0 |= 1u128.checked_shl(bank.0.into()).unwrap_or(0);
    }

    pub fn remove(&mut self, bank: Bank) {
        self.0 &= !1u128.checked_shl(bank.0.into()).unwrap_or(0);
    }

    pub fn has(self, bank: Bank) -> bool {
        self.0.checked_shr(bank.0.into()).unwrap_or(0) & 1 != 0
    }
}

/// Base of the driver: registers, memory, time.
///
/// *Context.* Interrupt, but for [`SmmuV2Hardware::forget_everything`], which waits for the unit: atomic.
pub(super) struct SmmuV2Hardware<P: UnitPlatform> {
    pub registers: P::Registers,
    pub mem: P::Memory,
    pub clock: P,
    /// Longest wait for anything but a synchronisation.
    pub limit: Nanos,
    /// Longest wait for a synchronisation.
    pub sync_limit: Nanos,
    pub features: Features,
    /// Bits of ASIDs and VMIDs above the number of their bank.
    pub above_bank: u16,
    pub counters: Counters,
}

/// Value for registers in which no value counts. Not zero: compilers store that from the zero
/// register, and hypervisors of some of Qualcomm's firmware get it wrong when they trap that
/// (Linux's `QCOM_DUMMY_VAL`).
pub(super) const ANYTHING: u32 = u32::MAX;

impl<P: UnitPlatform> SmmuV2Hardware<P> {
    pub fn new(
        registers: P::Registers,
        mem: P::Memory,
        clock: P,
        config: &Config,
        features: Features,
    ) -> Self {
        let (limit, timeout) = (config.limit, config.implementation.timeout());
        Self {
            registers,
            mem,
            clock,
            limit,
            sync_limit: Nanos::new(limit.get().saturating_add(timeout.get())),
            features,
            above_bank: config.implementation.above_bank(),
            counters: Counters::default(),
        }
    }

    /// A register that never reads as all ones.
    pub fn read(&self, offset: usize) -> Result<u32, IommuError> {
        self.registers.present32(offset)
    }

    pub fn write(&self, kind: WriteKind, offset: usize, value: u32) {
        self.counters.add(kind);
        self.registers.write32(offset, value);
    }

    pub fn write64(&self, kind: WriteKind, offset: usize, value: u64) {
        self.counters.add(kind);
        self.registers.write64(offset, value);
    }

    /// Writes a register that reads back.
    pub fn configure(&self, offset: usize, value: u32) {
        self.write(WriteKind::Configuration, offset, value);
    }

    /// Offset of a register of global space 1.
    pub fn space1(&self, offset: usize) -> usize {
        (1 << self.features.page_lg2) + offset
    }

    /// Offset of a register of a context bank.
    pub fn bank(&self, bank: Bank, offset: usize) -> usize {
        ((self.features.pages + usize::from(bank.0)) << self.features.page_lg2) + offset
    }

    /// Forgets everything, and waits.
    pub fn forget_everything(&self) -> Result<(), IommuError> {
        self.write(WriteKind::TlbiAllH, global::TLBIALLH, ANYTHING);
        self.write(WriteKind::TlbiAllNsnh, global::TLBIALLNSNH, ANYTHING);
        self.write(WriteKind::TlbGlobalSync, global::TLBGSYNC, ANYTHING);
        let awaited = Awaited::Invalidation;
        wait_until(&self.clock, self.sync_limit, awaited, || {
            Ok(self.read(global::TLBGSTATUS)? & global::GSACTIVE == 0)
        })
    }

    /// Sees that accesses do not bypass the unit, as they do behind one that lost its power and is back.
    pub fn is_on(&self) -> Result<(), IommuError> {
        match self.read(global::CR0)? & cr0::CLIENTPD {
            0 => Ok(()),
            _ => Err(IommuError::Stopped),
        }
    }

    /// Clears the record of a bank, and ends its stalled accesses.
    pub fn clear_fault(&self, bank: Bank) -> Result<(), IommuError> {
        let status = self.read(self.bank(bank, bank::FSR))?;
        if status != 0 {
            self.write(WriteKind::Fault, self.bank(bank, bank::FSR), status);
        }
        if status & bank::fsr::SS != 0 {
            let resume = self.bank(bank, bank::RESUME);
            self.write(WriteKind::Fault, resume, bank::TERMINATE);
        }
        Ok(())
    }
}

/// State of a bank's stalled access: held by a caller, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    No,
    Yes,
}

/// Banks whose accesses stall.
#[derive(Debug)]
pub(super) struct Stalling {
    pub(super) banks: Vec<(Bank, u64, Held)>,
    /// Tells one use of a bank from the next.
    pub(super) serial: u64,
}

impl Stalling {
    /// Room for `banks` banks, which never grows: handlers of interrupts wait for its lock.
    pub fn new(banks: usize) -> Self {
        Self { banks: Vec::with_capacity(banks), serial: 0 }
    }

    pub fn add(&mut self, bank: Bank) {
        self.serial += 1;
        self.banks.push((bank, self.serial, Held::No));
    }

    pub fn remove(&mut self, bank: Bank) {
        self.banks.retain(|(other, ..)| *other != bank);
    }

    pub(super) fn has(&self, bank: Bank) -> bool {
        self.banks.iter().any(|(other, ..)| *other == bank)
    }
}
