//! The machine of these tests: its unit is one of `portolan-chips`.

use crate::promise::tests::all_memory;
use alloc::vec::Vec;

use portolan::addr::{Iova, StreamId};
use portolan::iommu::IommuError;
use portolan_chips::amd::{AmdIdentification, AmdMachine as Machine, AmdSetup, AmdVi as Kind};
use portolan_chips::chips::RAVEN_RIDGE;
use portolan_chips::inject::{DmaFault, Piece};
use portolan_chips::machine::Event;
use portolan_sim::decode::AccessKind;

use crate::amd::{AmdDomain, AmdVi, Capability, Config};
use crate::chassis::tests::suite::{Driven, machine_at};
use portolan_spec::amd::command::{OPCODE, opcode};
use portolan_spec::amd::event::code;
use portolan_spec::amd::reg::{self, control};

/// The code of a refusal.
pub const ILLEGAL: u32 = code::ILLEGAL_COMMAND as u32;

pub type Iommu = AmdVi<Machine>;

/// The driver's view of the unit's capability block.
pub fn capability(id: &AmdIdentification) -> Capability {
    Capability::parse(id.capability).unwrap()
}

/// With a unit that can do everything, and caches absence.
pub fn new_machine() -> Machine {
    with(RAVEN_RIDGE.identification.caching_absence())
}

pub fn with(identification: AmdIdentification) -> Machine {
    of(AmdSetup { identification, ..AmdSetup::default() })
}

/// A unit that is not virtual.
pub fn real() -> AmdSetup {
    AmdSetup { identification: RAVEN_RIDGE.identification, ..AmdSetup::default() }
}

pub fn of(setup: AmdSetup) -> Machine {
    machine_at(0x10_0000, setup)
}

/// One whose memory begins at `base`.
pub fn at(base: u64) -> Machine {
    machine_at(base, real())
}

impl Driven for Machine {
    type Kind = Kind;
    type Config = Config;
    type Unit = Iommu;
    type Tables = AmdDomain<Machine>;

    const STREAMS: [StreamId; 2] = [StreamId::new(0x28), StreamId::new(0x29)];
    const WAIT: u64 = opcode::COMPLETION_WAIT;
    const REFUSALS: &'static [(u64, u32)] = &[(opcode::COMPLETION_WAIT, ILLEGAL)];

    fn ordinary() -> Self {
        new_machine()
    }

    fn config() -> Config {
        super::config()
    }

    fn enable(&self, config: Config) -> Result<Iommu, IommuError> {
        let capability = capability(&self.unit().identification());
        AmdVi::enable(self.clone(), self.clone(), self.clone(), capability, config)
    }

    fn release(unit: Iommu) -> Result<(), IommuError> {
        unit.release(all_memory())
    }

    fn tables(unit: &Iommu) -> Result<Self::Tables, IommuError> {
        unit.domain()
    }

    fn machine(&self) -> &Machine {
        self
    }

    fn operation(word: u64) -> u64 {
        OPCODE.of(word)
    }

    fn access(
        &self,
        stream: StreamId,
        iova: Iova,
        kind: AccessKind,
    ) -> Result<Vec<Piece>, DmaFault> {
        self.unit().dma(stream, iova, kind, 4)
    }

    fn is_blocked(&self, stream: StreamId) -> bool {
        self.entry(stream.get().into())[0] == 3
    }
}

/// Operations of this driver's tests alone on a machine.
pub trait Amd {
    /// Number of times that a unit that was on was turned off since the last look at commands.
    fn turned_off(&self) -> usize;
    /// The device table entry of `stream`.
    fn entry(&self, stream: u64) -> [u64; 4];
}

impl Amd for Machine {
    fn turned_off(&self) -> usize {
        let on = |event| match event {
            Event::Write(reg::CONTROL, value) => Some(value & control::ENABLE),
            _ => None,
        };
        let states: Vec<u64> = self.done().into_iter().filter_map(on).collect();
        states.windows(2).filter(|pair| pair[0] > pair[1]).count()
    }

    fn entry(&self, stream: u64) -> [u64; 4] {
        let base = self.reg(reg::DEVICE_TABLE) & !0xfff;
        [0, 8, 16, 24].map(|at| self.word(base + stream * 32 + at))
    }
}
