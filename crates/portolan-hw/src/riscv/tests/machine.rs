//! The machine of these tests: its unit is one of `portolan-chips`.

use crate::promise::tests::all_memory;
use alloc::vec::Vec;

use portolan::addr::{Iova, StreamId};
use portolan::iommu::IommuError;
use portolan::table::format::RiscvLevels;
use portolan_chips::inject::{DmaFault, Piece};
use portolan_chips::riscv::{
    Riscv as Kind, RiscvIdentification, RiscvMachine as Machine, RiscvSetup,
};
use portolan_sim::decode::AccessKind;

use crate::chassis::tests::suite::{Driven, machine_at};
use crate::riscv::{Config, FirstDomain, RiscvIommu};
use portolan_spec::riscv::PPN;
use portolan_spec::riscv::command::{OPCODE, opcode};
use portolan_spec::riscv::reg::{self, queue};

pub type Iommu = RiscvIommu<Machine>;

/// With a unit that has contexts in base format, and no extension.
pub fn new_machine() -> Machine {
    with(RiscvIdentification::able())
}

pub fn with(identification: RiscvIdentification) -> Machine {
    of(RiscvSetup { identification, ..RiscvSetup::default() })
}

pub fn of(setup: RiscvSetup) -> Machine {
    machine_at(0x10_0000, setup)
}

impl Driven for Machine {
    type Kind = Kind;
    type Config = Config;
    type Unit = Iommu;
    type Tables = FirstDomain<Machine>;

    const STREAMS: [StreamId; 2] = [StreamId::new(0x28), StreamId::new(0x29)];
    const WAIT: u64 = opcode::FENCE;
    const REFUSALS: &'static [(u64, u32)] = &[
        (opcode::TRANSLATIONS, queue::ILLEGAL),
        (opcode::TRANSLATIONS, queue::MEMORY_FAULT),
        (opcode::TRANSLATIONS, queue::TIME_OUT),
        (opcode::FENCE, queue::ILLEGAL),
        (opcode::FENCE, queue::MEMORY_FAULT),
        (opcode::FENCE, queue::TIME_OUT),
    ];

    fn ordinary() -> Self {
        new_machine()
    }

    fn config() -> Config {
        super::config()
    }

    fn enable(&self, config: Config) -> Result<Iommu, IommuError> {
        RiscvIommu::enable(self.clone(), self.clone(), self.clone(), config)
    }

    fn release(unit: Iommu) -> Result<(), IommuError> {
        unit.release(all_memory())
    }

    fn tables(unit: &Iommu) -> Result<Self::Tables, IommuError> {
        unit.first_stage(RiscvLevels::Four)
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
        self.unit().dma(stream, None, iova, kind, 4)
    }

    fn is_blocked(&self, stream: StreamId) -> bool {
        self.context(stream.get().into())[0] == 0
    }
}

/// Operations of this driver's tests alone on a machine.
pub trait Riscv {
    /// The first four words of the context of `stream`, which the directory's root holds.
    fn context(&self, stream: u64) -> [u64; 4];
}

impl Riscv for Machine {
    fn context(&self, stream: u64) -> [u64; 4] {
        let root = PPN.of(self.reg(reg::DIRECTORY)) << 12;
        [0, 8, 16, 24].map(|at| self.word(root + stream * 32 + at))
    }
}
