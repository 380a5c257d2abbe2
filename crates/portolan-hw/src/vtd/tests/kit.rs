//! The machine of these tests: its unit is one of `portolan-model`.

use alloc::vec::Vec;

use portolan::addr::PhysAddr;
use portolan::iommu::IommuError;
use portolan::platform::Mmio as _;
use portolan_model::inject::RegisterFaults;
use portolan_model::memory::{ModelMemory, Visibility};
use portolan_model::vtd::{VtdFault, VtdIdentification, VtdMachine, VtdSetup};

use crate::vtd::spec::descriptor::{TYPE, Words, kind};
use crate::vtd::spec::reg::{self, fsts};
use crate::vtd::{Config, Vtd};

pub const CAP: u64 = 0x00d2_008c_222f_0606;
pub const ECAP: u64 = 0x00f0_0f4a;
/// All of scalable mode: both stages, nested, PASIDs of 20 bits, device TLBs, page requests.
pub const SCALABLE: u64 =
    ECAP | 1 << 2 | 1 << 26 | 1 << 29 | 19 << 35 | 1 << 40 | 1 << 43 | 1 << 46 | 1 << 47;

pub type Iommu = Vtd<VtdMachine, VtdMachine, VtdMachine>;

pub fn new_machine(cap: u64, ecap: u64) -> VtdMachine {
    of_version(0x40, cap, ecap)
}

pub fn of_version(version: u32, cap: u64, ecap: u64) -> VtdMachine {
    let setup = VtdSetup {
        identification: VtdIdentification { version, cap, ecap },
        ..VtdSetup::default()
    };
    let base = PhysAddr::new(0x10_0000_0000);
    VtdMachine::new(setup, ModelMemory::new(base, 64, Visibility::AtOnce))
}

/// What these tests do with a machine.
pub trait Kit {
    fn enable(&self, config: Config) -> Result<Iommu, IommuError>;
    /// Descriptors carried out since the last time, without waits.
    fn descriptors(&self) -> Vec<Words>;
    /// Has the unit refuse descriptors of a type, so many times.
    fn refuse_kind(&self, kind: u64, times: u32);
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
    fn enable(&self, config: Config) -> Result<Iommu, IommuError> {
        Vtd::enable(self.clone(), self.clone(), self.clone(), config)
    }

    fn descriptors(&self) -> Vec<Words> {
        let all = self.take_commands().map(|words| [words[0], words[1]]);
        all.filter(|words| TYPE.of(words[0]) != kind::WAIT)
            .collect()
    }

    fn refuse_kind(&self, kind: u64, mut times: u32) {
        self.wrong(RegisterFaults::NONE);
        self.refuse(move |words| {
            let refused = TYPE.of(words[0]) == kind && times > 0;
            times -= u32::from(refused);
            refused.then_some(fsts::IQE | 3 << 8)
        });
    }

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
