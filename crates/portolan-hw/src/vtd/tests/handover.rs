//! A unit that changes hands while devices are at work.

use portolan::iommu::handover::UnitHandover;
use portolan::platform::TableClaims;
use portolan_chips::vtd::VtdMachine;

use super::kit::Iommu;
use super::legacy;
use crate::chassis::tests::handover::{HandsOver, changes_hands};
use crate::handover::{AdoptError, RecordedKind};
use crate::vtd::Vtd;

impl HandsOver for VtdMachine {
    const KIND: RecordedKind = RecordedKind::Vtd;

    fn adopt(
        &self,
        former: &UnitHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<Iommu, AdoptError> {
        Vtd::adopt(self.clone(), self.clone(), self.clone(), legacy(), former, claims)
    }
}

changes_hands! { portolan_chips::vtd::VtdMachine }
