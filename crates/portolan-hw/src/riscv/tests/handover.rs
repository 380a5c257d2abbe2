//! A unit that changes hands while devices are at work.

use portolan::iommu::handover::UnitHandover;
use portolan::platform::TableClaims;
use portolan_chips::riscv::RiscvMachine;

use super::config;
use super::machine::Iommu;
use crate::chassis::tests::handover::{HandsOver, changes_hands};
use crate::handover::{AdoptError, RecordedKind};
use crate::riscv::RiscvIommu;

impl HandsOver for RiscvMachine {
    const KIND: RecordedKind = RecordedKind::Riscv;

    fn adopt(
        &self,
        former: &UnitHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<Iommu, AdoptError> {
        RiscvIommu::adopt(self.clone(), self.clone(), self.clone(), config(), former, claims)
    }
}

changes_hands! { portolan_chips::riscv::RiscvMachine }
