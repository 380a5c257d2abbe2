//! The driver on the unit of `portolan-chips`, on a machine that is not obliging.

use portolan::addr::{Iova, PhysAddr, StreamId};
use portolan::iommu::IommuError;
use portolan_chips::memory::{ModelMemory, Visibility};
use portolan_chips::tegra_smmu::{TegraChip, TegraMachine, TegraSetup, TegraSmmu as Kind};
use portolan_sim::decode::AccessKind;

use super::super::{Chip, Config, TegraDomain, TegraSmmu};
use crate::chassis::tests::hostile::{Hosted, on_a_hostile_machine};
use crate::chassis::tests::power::LIMIT;
use crate::promise::tests::all_memory;

on_a_hostile_machine! { portolan_chips::tegra_smmu::TegraMachine }

impl Hosted for TegraMachine {
    type Kind = Kind;
    type Unit = TegraSmmu<TegraMachine>;
    type Tables = TegraDomain<TegraMachine>;

    /// Host1x, and PCI Express.
    const STREAMS: [StreamId; 2] = [StreamId::new(6), StreamId::new(3)];

    /// Flushes.
    const UNSEEN: &'static [usize] = &[0x30];

    fn new() -> Self {
        let memory = ModelMemory::narrow(PhysAddr::new(0x8000_0000), 64, Visibility::AtOnce);
        TegraMachine::new(TegraSetup::of(TegraChip::Tegra210), memory)
    }

    fn bring_up(&self) -> Result<Self::Unit, IommuError> {
        let mut config = Config::of(Chip::Tegra210);
        config.limit = LIMIT;
        TegraSmmu::enable(self.clone(), self.clone(), self.clone(), config)
    }

    fn release(unit: Self::Unit) -> Result<(), IommuError> {
        unit.release(all_memory())
    }

    fn tables(unit: &Self::Unit) -> Result<Self::Tables, IommuError> {
        unit.domain()
    }

    fn machine(&self) -> &TegraMachine {
        self
    }

    fn read(&self, stream: StreamId, iova: u64) -> Option<u64> {
        let found = self.unit().dma(stream, Iova::new(iova), AccessKind::Read, 4);
        found.ok()?.first().map(|piece| piece.pa.get())
    }
}
