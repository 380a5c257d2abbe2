//! The machine of these tests: its unit is one of `portolan-chips`.

use alloc::vec::Vec;
use core::array::from_fn;

use portolan::addr::{Iova, PhysAddr, StreamId};
use portolan::iommu::IommuError;
use portolan_chips::inject::Drain;
use portolan_chips::machine::LOOK_NS;
use portolan_chips::memory::{ModelMemory, Visibility};
use portolan_chips::smmuv3::{EventRecord, SmmuIdentification, SmmuMachine, SmmuSetup, SmmuV3};
use portolan_sim::decode::AccessKind;

use crate::chassis::tests::hostile::Hosted;
use crate::smmuv3::{Config, FirstStage, Smmu, SmmuDomainOptions};
use portolan_spec::smmuv3::{self as spec, cd, command, reg, ste};

pub(in crate::smmuv3) type Driver = Smmu<SmmuMachine>;

/// Of a unit with everything but messages: both stages, stalls, ATS, page requests; streams of 16
/// bits and substreams of 12; 2^8 commands, and 2^4 of each kind of record.
pub(in crate::smmuv3) const FULL: SmmuIdentification = SmmuIdentification {
    idr: [
        1 << 27 | 2 << 21 | 1 << 19 | 1 << 18 | 1 << 16 | 1 << 12 | 1 << 10 | 1 << 4 | 2 << 2 | 3,
        1 << 27 | 8 << 21 | 4 << 16 | 4 << 11 | 12 << 6 | 16,
        0,
        2 << 11 | 1 << 10,
        0,
        7 << 4 | 5,
    ],
    iidr: 0,
    aidr: 0,
};

/// Bit of [`reg::IDR0`]: messages.
pub(in crate::smmuv3) const MSI: u32 = 1 << 13;

/// One command is carried out at each look at the clock.
pub(in crate::smmuv3) const SLOWLY: Drain = Drain::OneEach(LOOK_NS);

pub(in crate::smmuv3) fn machine(identification: SmmuIdentification) -> SmmuMachine {
    of(SmmuSetup { identification, ..SmmuSetup::default() })
}

pub(in crate::smmuv3) fn of(setup: SmmuSetup) -> SmmuMachine {
    let base = PhysAddr::new(0x8_0000_0000);
    SmmuMachine::new(setup, ModelMemory::new(base, 1024, Visibility::AtOnce))
}

/// Operations of these tests on a machine.
pub(in crate::smmuv3) trait Kit {
    fn enable(&self, config: Config) -> Result<Driver, IommuError>;
    /// Has the unit refuse commands with an operation code, with an error, so many times. That
    /// devices did not answer is told only of a sync behind a command to one.
    fn refuse_kind(&self, refused: (u64, u32, u32));
    /// Has the unit refuse the command behind the next so many.
    fn refuse_after(&self, commands: u32);
    /// Commands carried out since the last time.
    fn take_log(&self) -> Vec<command::Words>;
    /// Their operation codes.
    fn take_codes(&self) -> Vec<u64>;
    /// Appends a record to the event queue.
    fn record(&self, words: [u64; 4]);
    /// Address of the stream table entry as the unit finds it; `None` if out of range.
    fn place(&self, stream: u32) -> Option<u64>;
    /// The stream table entry as the unit finds it; `None` if out of range.
    fn entry(&self, stream: u32) -> Option<ste::Ste>;
    /// The context descriptor of a substream as the unit finds it.
    fn descriptor(&self, entry: &ste::Ste, pasid: u32) -> Option<cd::Cd>;
}

impl Kit for SmmuMachine {
    fn enable(&self, config: Config) -> Result<Driver, IommuError> {
        Smmu::enable(self.clone(), self.clone(), self.clone(), config)
    }

    fn refuse_kind(&self, (of, error, mut times): (u64, u32, u32)) {
        let mut asked = false;
        self.refuse(move |words| {
            let code = command::OP.get(words);
            let since = core::mem::replace(&mut asked, false);
            asked = code == command::op::ATC_INV || since && code != command::op::SYNC;
            let applies = error != command::error::ATC_INV_SYNC || since;
            let refused = code == of && times > 0 && applies;
            times -= u32::from(refused);
            refused.then_some(error)
        });
    }

    fn refuse_after(&self, mut commands: u32) {
        self.refuse(move |_| {
            let refused = commands == 0;
            commands = commands.wrapping_sub(1);
            refused.then_some(command::error::ILL)
        });
    }

    fn take_log(&self) -> Vec<command::Words> {
        let all = self.take_commands();
        all.map(|words| [words[0], words[1]]).collect()
    }

    fn take_codes(&self) -> Vec<u64> {
        let all = self.take_commands();
        all.map(|words| command::OP.get(&words)).collect()
    }

    fn record(&self, words: [u64; 4]) {
        self.unit().record(EventRecord { words });
    }

    fn place(&self, stream: u32) -> Option<u64> {
        let config = u64::from(self.reg32(reg::STRTAB_BASE_CFG));
        if u64::from(stream) >> reg::STRTAB_LOG2SIZE.of(config) != 0 {
            return None;
        }
        let mut at = spec::address(self.reg(reg::STRTAB_BASE), 6);
        let mut index = u64::from(stream);
        if reg::STRTAB_FMT.of(config) == 1 {
            let split = reg::STRTAB_SPLIT.of(config);
            let upper = self.word(at + (index >> split) * 8);
            let span = ste::level1::SPAN.get(&[upper]);
            index &= (1 << split) - 1;
            if span == 0 || index >> (span - 1) != 0 {
                return None;
            }
            at = spec::address(upper, 6);
        }
        Some(at + index * 64)
    }

    fn entry(&self, stream: u32) -> Option<ste::Ste> {
        let at = self.place(stream)?;
        Some(from_fn(|word| self.word(at + word as u64 * 8)))
    }

    fn descriptor(&self, entry: &ste::Ste, pasid: u32) -> Option<cd::Cd> {
        if u64::from(pasid) >> ste::S1CDMAX.get(entry) != 0 {
            return None;
        }
        let mut at = ste::S1CONTEXTPTR.get(entry) << 6;
        let mut index = u64::from(pasid);
        if ste::S1FMT.get(entry) == ste::s1fmt::TWO_LEVEL_64K {
            let upper = self.word(at + (index >> 10) * 8);
            at = (upper & 1 != 0).then_some(spec::address(upper, 12))?;
            index &= 0x3ff;
        }
        Some(from_fn(|word| self.word(at + index * 64 + word as u64 * 8)))
    }
}

impl Hosted for SmmuMachine {
    type Kind = SmmuV3;
    type Unit = Driver;
    type Tables = FirstStage<12, SmmuMachine>;

    const STREAMS: [StreamId; 2] = [StreamId::new(0x1234), StreamId::new(0x1235)];

    fn new() -> Self {
        machine(FULL)
    }

    fn bring_up(&self) -> Result<Driver, IommuError> {
        Kit::enable(self, super::config())
    }

    fn release(unit: Driver) -> Result<(), IommuError> {
        unit.disable()
    }

    fn tables(unit: &Driver) -> Result<Self::Tables, IommuError> {
        unit.first_stage(&SmmuDomainOptions::default())
    }

    fn machine(&self) -> &SmmuMachine {
        self
    }

    fn read(&self, stream: StreamId, iova: u64) -> Option<u64> {
        let (iova, read) = (Iova::new(iova), AccessKind::Read);
        let found = self.unit().dma(stream, None, iova, read, 4).ok()?;
        found.first().map(|piece| piece.pa.get())
    }
}
