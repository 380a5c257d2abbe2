//! The machine of these tests: its unit is one of `portolan-model`.

use alloc::vec::Vec;

use portolan::addr::{Iova, PhysAddr, StreamId};
use portolan::iommu::IommuError;
use portolan_model::amd::{AmdIdentification, AmdMachine as Machine, AmdSetup};
use portolan_model::decode::AccessKind;
use portolan_model::inject::RegisterFaults;
use portolan_model::machine::Event;
use portolan_model::memory::{ModelMemory, Visibility};

use crate::amd::spec::command::{OPCODE, Words, opcode};
use crate::amd::spec::reg::{self, control};
use crate::amd::{AmdVi, Capability, Config};

pub type Iommu = AmdVi<Machine, Machine, Machine>;

/// The driver's view of the unit's capability block.
pub fn capability(id: &AmdIdentification) -> Capability {
    Capability::parse(id.capability).unwrap()
}

/// With a unit that can do everything, and caches absence.
pub fn new_machine() -> Machine {
    with(AmdIdentification::default().caching_absence())
}

pub fn with(identification: AmdIdentification) -> Machine {
    of(AmdSetup {
        identification,
        ..AmdSetup::default()
    })
}

pub fn of(setup: AmdSetup) -> Machine {
    let base = PhysAddr::new(0x10_0000);
    Machine::new(setup, ModelMemory::new(base, 64, Visibility::AtOnce))
}

/// What these tests do with a machine.
pub trait Amd {
    fn enable(&self, config: Config) -> Result<Iommu, IommuError>;
    /// Has the unit refuse commands with an opcode, so many times, with an event of this code.
    fn refuse_kind(&self, opcode: u64, times: u32, code: u64);
    /// Commands carried out since the last time, without those that only wait.
    fn commands(&self) -> Vec<Words>;
    /// How often a unit that was on was turned off since the last look at commands.
    fn turned_off(&self) -> usize;
    /// The device table entry of `stream`.
    fn entry(&self, stream: u64) -> [u64; 4];
    /// Has `stream` read four bytes at `iova`: where they are, if anywhere.
    fn read(&self, stream: StreamId, iova: u64) -> Option<u64>;
    /// The same with a write.
    fn write(&self, stream: StreamId, iova: u64) -> Option<u64>;
}

fn access(machine: &Machine, stream: StreamId, iova: u64, kind: AccessKind) -> Option<u64> {
    let pieces = machine.unit().dma(stream, Iova::new(iova), kind, 4).ok()?;
    pieces.first().map(|piece| piece.pa.get())
}

impl Amd for Machine {
    fn enable(&self, config: Config) -> Result<Iommu, IommuError> {
        let capability = capability(&self.unit().identification());
        AmdVi::enable(self.clone(), self.clone(), self.clone(), capability, config)
    }

    fn refuse_kind(&self, opcode: u64, mut times: u32, code: u64) {
        self.wrong(RegisterFaults::NONE);
        self.refuse(move |words| {
            let refused = OPCODE.of(words[0]) == opcode && times > 0;
            times -= u32::from(refused);
            refused.then_some(code as u32)
        });
    }

    fn commands(&self) -> Vec<Words> {
        let waits = |words: &Words| OPCODE.of(words[0]) == opcode::COMPLETION_WAIT;
        let all = self.take_commands().map(|words| [words[0], words[1]]);
        all.filter(|words| !waits(words)).collect()
    }

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

    fn read(&self, stream: StreamId, iova: u64) -> Option<u64> {
        access(self, stream, iova, AccessKind::Read)
    }

    fn write(&self, stream: StreamId, iova: u64) -> Option<u64> {
        access(self, stream, iova, AccessKind::Write)
    }
}
