//! A unit that changes hands while devices are at work.

use alloc::sync::Arc;

use portolan::addr::{PhysAddr, StreamId};
use portolan::iommu::handover::UnitHandover;
use portolan::iommu::{Attach as _, IommuError, MsiMessage};
use portolan::platform::TableClaims;
use portolan::table::format::RiscvLevels;
use portolan_chips::riscv::{Riscv as Kind, RiscvIdentification, RiscvMachine};

use super::config;
use super::machine::{Iommu, with};
use crate::chassis::tests::handed_interrupts::{RaisesInterrupts, interrupts_change_hands, open};
use crate::chassis::tests::handover::{HandsOver, changes_hands};
use crate::chassis::tests::hostile::Hosted;
use crate::chassis::tests::suite::Driven;
use crate::handover::{AdoptError, RecordedKind};
use crate::promise::tests::{all_memory, described};
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

/// The file of the first hart.
const FILES: u64 = 0x2800_0000;

/// With four harts; eight entries for each stream.
fn remapping() -> Config {
    let files = InterruptFiles::new(PhysAddr::new(FILES), 4);
    let interrupts = Messages { lg2_entries: 3, ..Messages::new(files, described()) };
    Config { interrupts: Some(interrupts), ..config() }
}

/// A machine whose devices raise interrupts through MSI page tables.
#[derive(Clone)]
struct Remapping(RiscvMachine);

impl From<RiscvMachine> for Remapping {
    fn from(machine: RiscvMachine) -> Self {
        Self(machine)
    }
}

impl Hosted for Remapping {
    type Kind = Kind;
    type Unit = Iommu;
    type Tables = SecondDomain<RiscvMachine>;

    const STREAMS: [StreamId; 2] = <RiscvMachine as Driven>::STREAMS;

    fn new() -> Self {
        Self(with(RiscvIdentification::able().extended()))
    }

    fn bring_up(&self) -> Result<Iommu, IommuError> {
        Driven::enable(&self.0, remapping())
    }

    fn release(unit: Iommu) -> Result<(), IommuError> {
        unit.release(all_memory())
    }

    fn tables(unit: &Iommu) -> Result<Self::Tables, IommuError> {
        unit.second_stage(RiscvLevels::Four)
    }

    fn machine(&self) -> &RiscvMachine {
        &self.0
    }

    fn read(&self, stream: StreamId, iova: u64) -> Option<u64> {
        Driven::read(&self.0, stream, iova)
    }

    /// With interrupts of both streams, the second of which reaches nothing else.
    fn attached(&self) -> (Iommu, Arc<Self::Tables>) {
        let unit = self.bring_up().unwrap();
        let domain = Arc::new(Self::tables(&unit).unwrap());
        unit.attach(Self::STREAMS[0], &domain).unwrap();
        open(&unit, Self::STREAMS);
        (unit, domain)
    }
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
