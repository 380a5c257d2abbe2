//! The machine of these tests: its unit is one of `portolan-model`.

use alloc::vec::Vec;

use portolan::addr::{Iova, PhysAddr, StreamId};
use portolan::iommu::IommuError;
use portolan_model::decode::AccessKind;
use portolan_model::inject::RegisterFaults;
use portolan_model::memory::{ModelMemory, Visibility};
use portolan_model::riscv::{RiscvIdentification, RiscvMachine as Machine, RiscvSetup};

use crate::chassis::Words;
use crate::riscv::spec::PPN;
use crate::riscv::spec::command::{OPCODE, opcode};
use crate::riscv::spec::reg;
use crate::riscv::{Config, RiscvIommu};

pub type Iommu = RiscvIommu<Machine, Machine, Machine>;

/// With a unit that has contexts in base format, and no extension.
pub fn new_machine() -> Machine {
    with(RiscvIdentification::default())
}

pub fn with(identification: RiscvIdentification) -> Machine {
    of(RiscvSetup {
        identification,
        ..RiscvSetup::default()
    })
}

pub fn of(setup: RiscvSetup) -> Machine {
    let base = PhysAddr::new(0x10_0000);
    Machine::new(setup, ModelMemory::new(base, 64, Visibility::AtOnce))
}

/// What these tests do with a machine.
pub trait Riscv {
    fn enable(&self, config: Config) -> Result<Iommu, IommuError>;
    /// Has the unit refuse commands with an opcode, so many times, and set these bits of `cqcsr`.
    fn refuse_kind(&self, opcode: u64, times: u32, bits: u32);
    /// Commands carried out since the last time, without those that only wait.
    fn commands(&self) -> Vec<Words>;
    /// The first four words of the context of `stream`, which the directory's root holds.
    fn context(&self, stream: u64) -> [u64; 4];
    /// Has `stream` read four bytes at `iova`: where they are, if anywhere.
    fn read(&self, stream: StreamId, iova: u64) -> Option<u64>;
    /// The same with a write.
    fn write(&self, stream: StreamId, iova: u64) -> Option<u64>;
}

fn access(machine: &Machine, stream: StreamId, iova: u64, kind: AccessKind) -> Option<u64> {
    let iova = Iova::new(iova);
    let pieces = machine.unit().dma(stream, None, iova, kind, 4).ok()?;
    pieces.first().map(|piece| piece.pa.get())
}

impl Riscv for Machine {
    fn enable(&self, config: Config) -> Result<Iommu, IommuError> {
        RiscvIommu::enable(self.clone(), self.clone(), self.clone(), config)
    }

    fn refuse_kind(&self, opcode: u64, mut times: u32, bits: u32) {
        self.wrong(RegisterFaults::NONE);
        self.refuse(move |words| {
            let refused = OPCODE.of(words[0]) == opcode && times > 0;
            times -= u32::from(refused);
            refused.then_some(bits)
        });
    }

    fn commands(&self) -> Vec<Words> {
        let waits = |words: &Words| OPCODE.of(words[0]) == opcode::FENCE;
        let all = self.take_commands().map(|words| [words[0], words[1]]);
        all.filter(|words| !waits(words)).collect()
    }

    fn context(&self, stream: u64) -> [u64; 4] {
        let root = PPN.of(self.reg(reg::DIRECTORY)) << 12;
        [0, 8, 16, 24].map(|at| self.word(root + stream * 32 + at))
    }

    fn read(&self, stream: StreamId, iova: u64) -> Option<u64> {
        access(self, stream, iova, AccessKind::Read)
    }

    fn write(&self, stream: StreamId, iova: u64) -> Option<u64> {
        access(self, stream, iova, AccessKind::Write)
    }
}
