//! A unit that changes hands while devices are at work.

use portolan::addr::StreamId;
use portolan::iommu::MsiMessage;
use portolan::iommu::handover::UnitHandover;
use portolan::platform::TableClaims;
use portolan_chips::amd::AmdMachine;
use portolan_chips::chips::ROME;

use super::config;
use super::machine::{Iommu, capability, new_machine, with};
use crate::amd::{AmdDomain, AmdVi, Config};
use crate::chassis::tests::handed_interrupts::{
    RaisesInterrupts, interrupts_change_hands, remapping_machine,
};
use crate::chassis::tests::handover::{
    HandsOver, changes_hands, kept_translations_are_the_next_kernels,
};
use crate::chassis::tests::suite::Driven;
use crate::handover::{AdoptError, RecordedKind};
use crate::interrupt::{ApicMode, Remapping as Wanted};

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

#[test]
fn translations_that_a_device_keeps_go_on() {
    kept_translations_are_the_next_kernels(&new_machine());
}

/// A machine with interrupt tables of one form, as `$as`.
macro_rules! with_interrupts {
    ($new:expr, $apic:ident, $as:ty) => {
        fn remapping() -> Config {
            let wanted = Wanted { apic: ApicMode::$apic, lg2_entries: 8 };
            Config { interrupts: Some(wanted), ..config() }
        }

        remapping_machine! {
            AmdMachine, AmdDomain<AmdMachine>, $new, remapping(), |unit| unit.domain()
        }

        impl HandsOver for Remapping {
            const KIND: RecordedKind = RecordedKind::AmdVi;

            fn adopt(
                &self,
                former: &UnitHandover,
                claims: &mut TableClaims<'_>,
            ) -> Result<Iommu, AdoptError> {
                let capability = capability(&self.0.unit().identification());
                let [regs, mem, clock] = [(); 3].map(|()| self.0.clone());
                AmdVi::adopt(regs, mem, clock, capability, remapping(), former, claims)
            }

            /// The trigger of an interrupt is in no table.
            fn without_unconfirmed(state: &mut UnitHandover, whole: &UnitHandover) {
                state.queues.clone_from(&whole.queues);
                for (of, known) in state.interrupts.iter_mut().zip(&whole.interrupts) {
                    of.target.trigger = known.target.trigger;
                }
            }
        }

        impl RaisesInterrupts for Remapping {
            fn send(&self, stream: StreamId, message: MsiMessage) -> Option<(u32, u8)> {
                let arrived = self.0.unit().message(stream, message.address, message.data)?;
                Some((arrived.destination, arrived.vector))
            }
        }

        interrupts_change_hands! { $as }
    };
}

/// Entries of one word.
mod narrow {
    use super::*;

    with_interrupts! { new_machine(), XApic, crate::amd::tests::handover::narrow::Remapping }
}

/// Entries of two words.
mod wide {
    use super::*;

    with_interrupts! {
        with(ROME.identification), X2Apic, crate::amd::tests::handover::wide::Remapping
    }
}
