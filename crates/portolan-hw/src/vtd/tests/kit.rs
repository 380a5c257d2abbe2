//! The machine of these tests: its unit is one of `portolan-chips`.

use crate::promise::tests::all_memory;
use alloc::vec::Vec;

use portolan::addr::{Iova, StreamId};
use portolan::iommu::IommuError;
use portolan::platform::Mmio as _;
use portolan_chips::inject::{DmaFault, Piece, RegisterFaults};
use portolan_chips::vtd::{Vtd as Kind, VtdFault, VtdIdentification, VtdMachine, VtdSetup};
use portolan_sim::decode::AccessKind;

use super::{STREAM, Second, legacy};
use crate::chassis::tests::suite::{Driven, machine_at};
use crate::vtd::{Config, Vtd};
use portolan_spec::vtd::descriptor::{TYPE, kind};
use portolan_spec::vtd::reg::{self, fsts};

pub const CAP: u64 = 0x00d2_008c_222f_0606;
pub const ECAP: u64 = 0x00f0_0f4a;
/// All of scalable mode: both stages, nested, PASIDs of 20 bits, device TLBs, page requests.
pub const SCALABLE: u64 =
    ECAP | 1 << 2 | 1 << 26 | 1 << 29 | 19 << 35 | 1 << 40 | 1 << 43 | 1 << 46 | 1 << 47;

pub type Iommu = Vtd<VtdMachine>;

pub fn new_machine(cap: u64, ecap: u64) -> VtdMachine {
    of_version(0x40, cap, ecap)
}

pub fn of_version(version: u32, cap: u64, ecap: u64) -> VtdMachine {
    let setup = VtdSetup {
        identification: VtdIdentification { version, cap, ecap },
        ..VtdSetup::default()
    };
    machine_at(0x10_0000_0000, setup)
}

/// Code of a stop of the queue at a malformed descriptor.
pub const REFUSED: u32 = fsts::IQE | 3 << 8;

impl Driven for VtdMachine {
    type Kind = Kind;
    type Config = Config;
    type Unit = Iommu;
    type Tables = Second;

    const STREAMS: [StreamId; 2] = [STREAM, StreamId::new(0x0109)];
    const WAIT: u64 = kind::WAIT;
    const REFUSALS: &'static [(u64, u32)] = &[(kind::IOTLB, REFUSED), (kind::WAIT, REFUSED)];

    fn ordinary() -> Self {
        new_machine(CAP, ECAP)
    }

    fn config() -> Config {
        legacy()
    }

    fn enable(&self, config: Config) -> Result<Iommu, IommuError> {
        Vtd::enable(self.clone(), self.clone(), self.clone(), config)
    }

    fn release(unit: Iommu) -> Result<(), IommuError> {
        unit.release(all_memory())
    }

    fn tables(unit: &Iommu) -> Result<Second, IommuError> {
        unit.second_stage()
    }

    fn machine(&self) -> &VtdMachine {
        self
    }

    fn operation(word: u64) -> u64 {
        TYPE.of(word)
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
        let [bus, function] = [stream.get() >> 8, stream.get() & 0xff].map(u64::from);
        let context = self.word(self.reg(reg::RTADDR) + 16 * bus) & !0xfff;
        self.word(context + 16 * function) == 0
    }
}

/// Operations of this driver's tests alone on a machine.
pub trait Kit {
    /// One device never completes an invalidation, and the unit says which it is.
    fn silent(&self, stream: u16);
    /// One device-TLB invalidation times out.
    fn device_times_out(&self);
    /// Gives global commands, each with those before it that last.
    fn command(&self, commands: &[u32]);
    /// Records a fault by the two words of its record.
    fn record(&self, address: u64, word: u64);
}

/// The device whose TLB a descriptor invalidates.
fn asks(words: &[u64; 4]) -> Option<u16> {
    match TYPE.of(words[0]) {
        kind::DEVICE_TLB => Some((words[0] >> 32) as u16),
        kind::PASID_DEVICE_TLB => Some((words[0] >> 16) as u16),
        _ => None,
    }
}

impl Kit for VtdMachine {
    fn silent(&self, stream: u16) {
        self.wrong(RegisterFaults::NONE);
        let refused = fsts::ITE | u32::from(stream) << 16;
        self.refuse(move |words| (asks(words) == Some(stream)).then_some(refused));
    }

    fn device_times_out(&self) {
        self.wrong(RegisterFaults::NONE);
        let mut left = 1;
        self.refuse(move |words| {
            let refused = left > 0 && asks(words).is_some();
            left -= u32::from(refused);
            refused.then_some(fsts::ITE)
        });
    }

    fn command(&self, commands: &[u32]) {
        for command in commands {
            let on = self.reg32(reg::GSTS) & reg::command::STICKY;
            self.write32(reg::GCMD, on | command);
        }
        self.take();
    }

    fn record(&self, address: u64, word: u64) {
        let words = [address, word];
        self.unit().record(VtdFault { words });
    }
}
