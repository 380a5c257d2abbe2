//! A unit that changes hands while devices are at work.

use portolan::addr::{PhysAddr, StreamId};
use portolan::iommu::MsiMessage;
use portolan::iommu::handover::UnitHandover;
use portolan::platform::TableClaims;
use portolan::table::format::RiscvLevels;
use portolan_chips::riscv::{RiscvIdentification, RiscvMachine};

use super::config;
use super::machine::{Iommu, with};
use crate::chassis::tests::handed_interrupts::{
    RaisesInterrupts, interrupts_change_hands, remapping_machine,
};
use crate::chassis::tests::handover::{
    HandsOver, changes_hands, kept_translations_are_the_next_kernels,
};
use crate::chassis::tests::suite::Driven;
use crate::handover::{AdoptError, RecordedKind};
use crate::promise::tests::described;
use crate::riscv::{Config, InterruptFiles, Messages, RiscvIommu, SecondDomain};

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

#[test]
fn translations_that_a_device_keeps_go_on() {
    kept_translations_are_the_next_kernels(&with(RiscvIdentification::able().ats()));
}

/// The file of the first hart.
const FILES: u64 = 0x2800_0000;

/// With four harts; eight entries for each stream.
fn remapping() -> Config {
    let files = InterruptFiles::new(PhysAddr::new(FILES), 4);
    let interrupts = Messages { lg2_entries: 3, ..Messages::new(files, described()) };
    Config { interrupts: Some(interrupts), ..config() }
}

remapping_machine! {
    RiscvMachine, SecondDomain<RiscvMachine>,
    with(RiscvIdentification::able().extended()), remapping(),
    |unit| unit.second_stage(RiscvLevels::Four)
}

impl HandsOver for Remapping {
    const KIND: RecordedKind = RecordedKind::Riscv;

    fn adopt(
        &self,
        former: &UnitHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<Iommu, AdoptError> {
        let [regs, mem, clock] = [(); 3].map(|()| self.0.clone());
        RiscvIommu::adopt(regs, mem, clock, remapping(), former, claims)
    }

    /// The number of an interrupt is the device's own word.
    fn without_unconfirmed(state: &mut UnitHandover, whole: &UnitHandover) {
        state.queues.clone_from(&whole.queues);
        for (of, known) in state.interrupts.iter_mut().zip(&whole.interrupts) {
            of.target.vector = known.target.vector;
        }
    }
}

impl RaisesInterrupts for Remapping {
    fn send(&self, stream: StreamId, message: MsiMessage) -> Option<(u32, u8)> {
        let at = Driven::write(&self.0, stream, message.address)?;
        Some((((at - FILES) / 4096) as u32, message.data as u8))
    }
}

interrupts_change_hands! { crate::riscv::tests::handover::Remapping }
