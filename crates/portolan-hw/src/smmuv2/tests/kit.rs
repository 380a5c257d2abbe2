//! The machine of these tests: its unit is one of `portolan-chips`, whose caches forget nothing
//! that they are not told to forget.

use crate::promise::tests::promised;
use alloc::sync::Arc;

use portolan::addr::{Iova, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{Domain, IommuError};
use portolan::table::Access;
use portolan_chips::machine::Event;
use portolan_chips::memory::{ModelMemory, Visibility};
use portolan_chips::smmuv2::{SmmuV2Identification, SmmuV2Machine, SmmuV2Setup};
use portolan_sim::decode::AccessKind;

use super::super::{Config, FirstStage, SmmuV2, SmmuV2DomainOptions};
use crate::chassis::tests::hostile::Hosted;

pub type Machine = SmmuV2Machine;
pub type Unit = SmmuV2<Machine>;
pub type First = FirstStage<12, Machine>;

/// Both stages, stream matching, coherent, 8 match registers; 8 pages of 4 KiB in each half, 4
/// banks, none of stage 2 only; all granules, 48 bits everywhere.
pub const FEW: SmmuV2Identification = SmmuV2Identification {
    idr: [
        1 << 30 | 1 << 29 | 1 << 27 | 1 << 14 | 15 << 9 | 8,
        2 << 28 | 4,
        0b111 << 12 | 5 << 8 | 5 << 4 | 5,
    ],
    revision: 0,
    stream_bits: 0x7fff,
};

/// Physical address of the first table.
pub const TABLES: u64 = 0x8000_0000;

/// Offset of a register of a bank of [`FEW`].
pub const fn bank(n: usize, register: usize) -> usize {
    0x8000 + n * 0x1000 + register
}

pub fn machine(setup: SmmuV2Setup) -> Machine {
    let base = PhysAddr::new(TABLES);
    Machine::new(setup, ModelMemory::new(base, 1 << 10, Visibility::AtOnce))
}

/// One of [`FEW`] in which registers hold `values`.
pub fn few(values: &[(usize, u32)]) -> Machine {
    let machine = machine(SmmuV2Setup { identification: FEW, ..SmmuV2Setup::default() });
    for &(offset, value) in values {
        machine.set(offset, value);
    }
    machine
}

/// Operations of these tests on a machine.
pub trait Kit {
    fn enable(&self, config: Config) -> Result<Unit, IommuError>;
    /// Has a register hold a value that it can hold.
    fn set(&self, offset: usize, value: u32);
    /// The registers that the driver wrote since the last time, with the values.
    fn take_writes(&self) -> impl Iterator<Item = (usize, u64)>;
    /// Returns the physical address that a device reaches at `iova`.
    fn reach(&self, n: u32, iova: u64) -> Option<u64>;
}

impl Kit for Machine {
    fn enable(&self, config: Config) -> Result<Unit, IommuError> {
        SmmuV2::enable(self.clone(), self.clone(), self.clone(), config)
    }

    fn set(&self, offset: usize, value: u32) {
        use portolan::platform::Mmio as _;
        self.unit().write32(offset, value);
    }

    fn take_writes(&self) -> impl Iterator<Item = (usize, u64)> {
        self.take().into_iter().filter_map(|event| match event {
            Event::Write(offset, value) => Some((offset, value)),
            _ => None,
        })
    }

    fn reach(&self, n: u32, iova: u64) -> Option<u64> {
        let (iova, write) = (Iova::new(iova), AccessKind::Write);
        let found = self.unit().dma(stream(n), iova, write, 4);
        found.ok()?.first().map(|piece| piece.pa.get())
    }
}

pub fn start(setup: SmmuV2Setup, config: Config) -> (Machine, Result<Unit, IommuError>) {
    let machine = machine(setup);
    let unit = machine.enable(config);
    (machine, unit)
}

pub fn of(identification: SmmuV2Identification) -> (Machine, Unit) {
    let setup = SmmuV2Setup { identification, ..SmmuV2Setup::default() };
    let (machine, unit) = start(setup, Config::default());
    (machine, unit.unwrap())
}

pub fn first(unit: &Unit) -> Arc<First> {
    Arc::new(unit.first_stage(&SmmuV2DomainOptions::default()).unwrap())
}

pub fn map(domain: &impl Domain, iova: u64, pa: u64) {
    let mut owed = Gather::new();
    let (iova, pa) = (Iova::new(iova), PhysAddr::new(pa));
    let access = Access::READ_WRITE;
    domain.map(iova, promised(pa, 4096), access, &mut owed).unwrap();
    domain.sync(&mut owed).map_err(IommuError::from).unwrap();
}

pub const fn stream(n: u32) -> StreamId {
    StreamId::new(n)
}

impl Hosted for Machine {
    type Kind = portolan_chips::smmuv2::SmmuV2;
    type Unit = Unit;
    type Tables = First;

    const STREAMS: [StreamId; 2] = [stream(3), stream(4)];

    fn new() -> Self {
        few(&[])
    }

    fn bring_up(&self) -> Result<Unit, IommuError> {
        let limit = crate::chassis::tests::power::LIMIT;
        let config = Config { limit, ..Config::default() };
        Kit::enable(self, config)
    }

    fn release(unit: Unit) -> Result<(), IommuError> {
        unit.disable()
    }

    fn tables(unit: &Unit) -> Result<First, IommuError> {
        unit.first_stage(&SmmuV2DomainOptions::default())
    }

    fn machine(&self) -> &Machine {
        self
    }

    fn read(&self, stream: StreamId, iova: u64) -> Option<u64> {
        let (iova, read) = (Iova::new(iova), AccessKind::Read);
        let found = self.unit().dma(stream, iova, read, 4).ok()?;
        found.first().map(|piece| piece.pa.get())
    }
}
