//! Registers of context banks: they are written when a domain is made, and once more for a unit that has lost
//! its power.
//!
//! IHI 0062, translation context banks.
//!
//! *Context.* Interrupt, but for [`WrittenBanks::new`], which takes memory (task).

use super::config::WriteKind;
use super::machine::{Bank, SmmuV2Hardware};
use alloc::vec::Vec;
use portolan::iommu::{IommuError, Stage};
use portolan::platform::{Guarded, UnitPlatform};
use portolan_spec::smmuv2::{bank, global};

/// Values of a bank's registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registers {
    pub(super) cbar: u32,
    pub(super) tcr: u32,
    pub(super) tcr2: u32,
    pub(super) ttbr0: u64,
    pub(super) mair: [u32; 2],
    /// Bits beside those that every bank has.
    pub(super) sctlr: u32,
}

/// Bank of a domain, with all that is written to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct DomainBank {
    pub(super) bank: Bank,
    pub(super) stage: Stage,
    /// ASID of a first stage, VMID of a second.
    pub(super) number: u16,
    pub(super) registers: Registers,
}

impl DomainBank {
    /// Writes the registers of the bank, which is off, and turns it on.
    pub(super) fn write<P: UnitPlatform>(
        &self,
        machine: &SmmuV2Hardware<P>,
    ) -> Result<(), IommuError> {
        use bank::sctlr;
        let Self { bank, stage, number, registers } = *self;
        let at = |offset| machine.bank(bank, offset);
        let n = usize::from(bank.0);
        machine.configure(machine.space1(global::cba2r(n)), global::VA64);
        machine.configure(machine.space1(global::cbar(n)), registers.cbar);
        machine.configure(at(bank::TCR), registers.tcr);
        if stage == Stage::First {
            machine.configure(at(bank::TCR2), registers.tcr2);
            machine.write64(WriteKind::Configuration, at(bank::TTBR1), 0);
            machine.configure(at(bank::MAIR0), registers.mair[0]);
            machine.configure(at(bank::MAIR1), registers.mair[1]);
            machine.configure(at(bank::CONTEXTIDR), number.into());
        }
        machine.write64(WriteKind::Configuration, at(bank::TTBR0), registers.ttbr0);
        // One fault does not hold up others.
        let all = sctlr::M | sctlr::TRE | sctlr::AFE | sctlr::CFRE | sctlr::CFIE | sctlr::HUPCF;
        let value = all | registers.sctlr;
        machine.configure(at(bank::SCTLR), value);
        let found = machine.read(at(bank::SCTLR))?;
        match (found ^ value) & (sctlr::M | sctlr::CFCFG) {
            0 => Ok(()),
            _ => Err(IommuError::Nonsense { offset: at(bank::SCTLR), value: found.into() }),
        }
    }
}

/// Banks of all domains.
#[derive(Debug)]
pub(super) struct WrittenBanks<P: UnitPlatform>(Guarded<P, Vec<Option<DomainBank>>>);

impl<P: UnitPlatform> WrittenBanks<P> {
    /// Room for `banks` of them.
    pub(super) fn new(banks: u32) -> Self {
        Self(Guarded::new(alloc::vec![None; banks as usize]))
    }

    /// Notes the registers of a bank, or that no domain has it.
    pub(super) fn note(&self, bank: Bank, registers: Option<DomainBank>) {
        if let Some(of) = self.0.lock().get_mut(usize::from(bank.0)) {
            *of = registers;
        }
    }

    /// Writes all of them.
    pub(super) fn write(&self, machine: &SmmuV2Hardware<P>) -> Result<(), IommuError> {
        let one = |n: u32| self.0.lock().get(n as usize).copied().flatten();
        let mut all = (0..machine.features.banks).filter_map(one);
        all.try_for_each(|bank| bank.write(machine))
    }
}
