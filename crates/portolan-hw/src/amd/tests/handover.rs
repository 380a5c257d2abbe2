//! A unit that changes hands while devices are at work.

use portolan::iommu::handover::UnitHandover;
use portolan::platform::TableClaims;
use portolan_chips::amd::AmdMachine;

use super::config;
use super::machine::{Iommu, capability};
use crate::amd::AmdVi;
use crate::chassis::tests::handover::{HandsOver, changes_hands};
use crate::handover::{AdoptError, RecordedKind};

impl HandsOver for AmdMachine {
    const KIND: RecordedKind = RecordedKind::AmdVi;

    fn adopt(
        &self,
        former: &UnitHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<Iommu, AdoptError> {
        let capability = capability(&self.unit().identification());
        let (regs, mem, clock) = (self.clone(), self.clone(), self.clone());
        AmdVi::adopt(regs, mem, clock, capability, config(), former, claims)
    }
}

changes_hands! { portolan_chips::amd::AmdMachine }
