//! A unit that changes hands while devices are at work.

use portolan::addr::StreamId;
use portolan::iommu::MsiMessage;
use portolan::iommu::handover::UnitHandover;
use portolan::platform::TableClaims;
use portolan_chips::vtd::VtdMachine;

use super::kit::{CAP, ECAP, Iommu, new_machine};
use super::{Second, legacy};
use crate::chassis::tests::handed_interrupts::{
    RaisesInterrupts, interrupts_change_hands, remapping_machine,
};
use crate::chassis::tests::handover::{HandsOver, changes_hands};
use crate::chassis::tests::suite::Driven;
use crate::handover::{AdoptError, RecordedKind};
use crate::interrupt::{ApicMode, Remapping as Wanted};
use crate::vtd::{Config, Vtd};

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

fn remapping() -> Config {
    let wanted = Wanted { apic: ApicMode::XApic, lg2_entries: 8 };
    Config { interrupts: Some(wanted), ..legacy() }
}

remapping_machine! {
    VtdMachine, Second, new_machine(CAP, ECAP), remapping(), |unit| unit.second_stage()
}

impl HandsOver for Remapping {
    const KIND: RecordedKind = RecordedKind::Vtd;

    fn adopt(
        &self,
        former: &UnitHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<Iommu, AdoptError> {
        let [regs, mem, clock] = [(); 3].map(|()| self.0.clone());
        Vtd::adopt(regs, mem, clock, remapping(), former, claims)
    }
}

impl RaisesInterrupts for Remapping {
    fn send(&self, stream: StreamId, message: MsiMessage) -> Option<(u32, u8)> {
        let arrived = self.0.unit().message(stream, message.address, message.data).ok()?;
        Some((arrived.destination, arrived.vector))
    }
}

interrupts_change_hands! { crate::vtd::tests::handover::Remapping }
