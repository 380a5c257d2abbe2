//! A unit that changes hands while devices are at work.

use portolan::iommu::handover::UnitHandover;
use portolan::platform::TableClaims;
use portolan_chips::smmuv3::SmmuMachine;

use super::config;
use super::kit::Driver;
use crate::chassis::tests::handover::{HandsOver, changes_hands};
use crate::handover::{AdoptError, RecordedKind};
use crate::smmuv3::Smmu;

impl HandsOver for SmmuMachine {
    const KIND: RecordedKind = RecordedKind::SmmuV3;

    fn adopt(
        &self,
        former: &UnitHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<Driver, AdoptError> {
        Smmu::adopt(self.clone(), self.clone(), self.clone(), config(), former, claims)
    }
}

changes_hands! { portolan_chips::smmuv3::SmmuMachine }
