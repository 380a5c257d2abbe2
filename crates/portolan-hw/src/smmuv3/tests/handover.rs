//! A unit that changes hands while devices are at work.

use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::IovaRange;
use portolan::inval::Gather;
use portolan::iommu::handover::UnitHandover;
use portolan::iommu::{Attach as _, Domain as _, IommuDomains as _};
use portolan::platform::TableClaims;
use portolan::table::format::DirtyTracking;
use portolan_chips::smmuv3::SmmuMachine;
use portolan_sim::decode::AccessKind;

use super::config;
use super::kit::{self, Driver, Kit as _};
use crate::chassis::tests::handover::{HandsOver, changes_hands, claims};
use crate::chassis::tests::hostile::Hosted as _;
use crate::chassis::tests::suite::{BASE, PAGE, map};
use crate::handover::{AdoptError, RecordedKind};
use crate::smmuv3::{Smmu, SmmuDomainOptions};

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

/// Marks of written pages are a domain's own here, and no option of the unit.
#[test]
fn a_domain_that_marks_pages_goes_on_with_that() {
    let machine = kit::machine(kit::FULL.marks());
    let unit = machine.enable(config()).unwrap();
    let dirty = DirtyTracking::Hardware;
    let options = SmmuDomainOptions { dirty, ..SmmuDomainOptions::default() };
    let domain = Arc::new(unit.first_stage::<12>(&options).unwrap());
    let stream = SmmuMachine::STREAMS[0];
    unit.attach(stream, &domain).unwrap();
    domain.sync(&mut map(&*domain, 2)).unwrap();
    let state = unit.handover().unwrap();
    unit.leave().unwrap();
    let next = Arc::new(machine.adopt(&state, &mut claims()).unwrap());
    let bound = next.clone().adopted(stream).unwrap().bound;
    bound.domain().track_dirty(dirty).unwrap();
    let (mut owed, mut written) = (Gather::new(), Vec::new());
    assert!(machine.unit().dma(stream, None, BASE, AccessKind::Write, 4).is_ok());
    let all = IovaRange::from_len(BASE, 2 * PAGE).unwrap();
    bound.domain().read_and_clear_dirty(all, &mut owed, &mut |page| written.push(page)).unwrap();
    assert_eq!(written, [IovaRange::from_len(BASE, PAGE).unwrap()]);
    drop((unit, domain));
}

changes_hands! { portolan_chips::smmuv3::SmmuMachine }
