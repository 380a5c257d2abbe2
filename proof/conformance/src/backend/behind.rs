//! Units of the model as devices and scenarios see them.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, AtomicU64};

use portolan::addr::{Iova, Pasid, PhysAddr, StreamId};
use portolan::iommu::MsiMessage;
use portolan::platform::Word;
use portolan_chips::amd::AmdRegisters;
use portolan_chips::inject::{Piece, RegisterFaults, Violation};
use portolan_chips::riscv::{RiscvDelivered, RiscvRegisters};
use portolan_chips::smmuv2::SmmuV2Registers;
use portolan_chips::smmuv3::SmmuRegisters;
use portolan_chips::tegra_smmu::TegraRegisters;
use portolan_chips::vtd::VtdRegisters;
use portolan_sim::decode::AccessKind;

use super::asks::Asks;
use super::by_name;
use crate::conformance::{HIGH_BASE, Has, LOW_BASE, Raised};

/// An access of a device.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The device that reads or writes.
    pub device: StreamId,
    /// PASID of its address space, if it names one.
    pub pasid: Option<Pasid>,
    /// The address of the access.
    pub iova: Iova,
    /// A read or a write.
    pub kind: AccessKind,
}

/// A unit of the model that devices can be behind.
pub trait UnitModel: Send + Sync + 'static {
    /// See [`crate::conformance::Host::BASE`].
    const BASE: Iova = HIGH_BASE;
    /// Width of table entries.
    type Word: Word;

    /// Pieces of memory that an access of 4 bytes reaches; `None` if it is refused.
    fn pieces(&self, of: Access) -> Option<Vec<Piece>>;

    /// Rules that the driver has broken.
    fn violations(&self) -> Vec<Violation>;

    /// See [`Host::let_loose`](crate::conformance::Host::let_loose).
    fn let_loose(&self, device: StreamId, iova: Iova);

    /// See [`Host::reached`](crate::conformance::Host::reached).
    fn reached(&self) -> Vec<Vec<Option<PhysAddr>>>;

    /// See [`Host::cut_power`](crate::conformance::Host::cut_power).
    fn power_cycle(&self);

    /// See [`Host::raise`](crate::conformance::Host::raise).
    fn raise(&self, device: StreamId, message: MsiMessage) -> Option<Raised> {
        let _ = (device, message);
        None
    }

    /// Drops all copies of interrupts' entries.
    fn evict_interrupts(&self) {}

    /// See [`Host::refuse`](crate::conformance::Host::refuse).
    fn refuse(&self, nth: Option<u64>) -> Has {
        let _ = nth;
        Has::No("the model refuses no command of this unit")
    }

    /// The unit as devices see it that ask, if there can be any.
    fn asks(&self) -> Option<&dyn Asks> {
        None
    }

    /// Commands carried out, by the kinds' names in the specification.
    fn commands(&self) -> BTreeMap<String, u64>;
}

/// `TlbiNhVa` as `TLBI_NH_VA`.
fn specified(name: &str) -> String {
    let mut out = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.extend(letter.to_uppercase());
    }
    out
}

/// Number of events of each kind, by the kind's name in the specification.
fn by_kind<K: Debug>(counts: impl IntoIterator<Item = (K, u64)>) -> BTreeMap<String, u64> {
    let counts = counts.into_iter();
    by_name(counts.map(|(kind, count)| (specified(&format!("{kind:?}")), count)))
}

/// Refuses the `nth` command after `consumed` others with `code`.
fn refusal(consumed: u64, nth: Option<u64>, code: u32) -> RegisterFaults {
    RegisterFaults { refuse: nth.map(|nth| (consumed + nth, code)), ..RegisterFaults::default() }
}

/// Methods that are alike for all units of the model, by methods of the same names.
macro_rules! as_every_unit {
    (pasids) => {
        fn pieces(&self, of: Access) -> Option<Vec<Piece>> {
            self.dma(of.device, of.pasid, of.iova, of.kind, 4).ok()
        }

        as_every_unit!();
    };
    (no pasids) => {
        fn pieces(&self, of: Access) -> Option<Vec<Piece>> {
            match of.pasid {
                None => self.dma(of.device, of.iova, of.kind, 4).ok(),
                Some(_) => None,
            }
        }

        as_every_unit!();
    };
    () => {
        fn violations(&self) -> Vec<Violation> {
            self.violations()
        }

        fn let_loose(&self, device: StreamId, iova: Iova) {
            self.observe(device, None, iova, AccessKind::Write);
        }

        fn reached(&self) -> Vec<Vec<Option<PhysAddr>>> {
            self.observed()
        }

        fn power_cycle(&self) {
            self.cut_power();
        }
    };
}

/// A unit that refuses a command with this code.
macro_rules! refuses {
    ($name:ident: $code:expr) => {
        fn refuse(&self, nth: Option<u64>) -> Has {
            const $name: u32 = $code;
            self.inject(refusal(self.consumed(), nth, $name));
            Has::Yes
        }
    };
}

impl UnitModel for SmmuRegisters {
    type Word = AtomicU64;

    as_every_unit!(pasids);

    refuses!(ILLEGAL: 1);

    fn asks(&self) -> Option<&dyn Asks> {
        Some(self)
    }

    fn commands(&self) -> BTreeMap<String, u64> {
        by_kind(self.counts().commands)
    }
}

impl UnitModel for SmmuV2Registers {
    type Word = AtomicU64;

    as_every_unit!(no pasids);

    fn commands(&self) -> BTreeMap<String, u64> {
        by_name(self.counts().writes)
    }
}

impl UnitModel for VtdRegisters {
    type Word = AtomicU64;

    as_every_unit!(pasids);

    refuses!(QUEUE_ERROR: 1 << 4);

    fn raise(&self, device: StreamId, message: MsiMessage) -> Option<Raised> {
        let arrived = self.message(device, message.address, message.data).ok()?;
        Some(Raised { vector: arrived.vector, destination: arrived.destination })
    }

    fn evict_interrupts(&self) {
        Self::evict_interrupts(self);
    }

    fn asks(&self) -> Option<&dyn Asks> {
        Some(self)
    }

    fn commands(&self) -> BTreeMap<String, u64> {
        let counts = self.counts();
        let (contexts, translations) = counts.through_registers;
        let mut all = by_kind(counts.descriptors);
        // The driver counts both kinds as one.
        let with_pasid = all.remove("PASID_DEVICE_TLB").unwrap_or(0);
        for (name, count) in
            [("CONTEXT_CACHE", contexts), ("IOTLB", translations), ("DEVICE_TLB", with_pasid)]
        {
            *all.entry(name.to_owned()).or_default() += count;
        }
        all
    }
}

impl UnitModel for AmdRegisters {
    type Word = AtomicU64;

    fn pieces(&self, of: Access) -> Option<Vec<Piece>> {
        self.dma_as(of.device, of.pasid, of.iova, of.kind, 4).ok()
    }

    as_every_unit!();

    refuses!(ILLEGAL_COMMAND: 5);

    fn asks(&self) -> Option<&dyn Asks> {
        Some(self)
    }

    fn raise(&self, device: StreamId, message: MsiMessage) -> Option<Raised> {
        let arrived = self.message(device, message.address, message.data)?;
        Some(Raised { vector: arrived.vector, destination: arrived.destination })
    }

    fn evict_interrupts(&self) {
        Self::evict_interrupts(self);
    }

    fn commands(&self) -> BTreeMap<String, u64> {
        by_kind(self.counts().commands)
    }
}

/// The interrupt file of the first hart behind a RISC-V IOMMU.
pub(super) const INTERRUPT_FILES: PhysAddr = PhysAddr::new(0x2800_0000);

impl UnitModel for RiscvRegisters {
    type Word = AtomicU64;

    as_every_unit!(pasids);

    refuses!(ILLEGAL: 1 << 10);

    /// Raises an interrupt, or stores one and gives notice; the interrupt file that is written to tells which.
    fn raise(&self, device: StreamId, message: MsiMessage) -> Option<Raised> {
        let (at, number) = match self.deliver(device, message.address, message.data).ok()? {
            RiscvDelivered::Written(at, data) => (at, data),
            RiscvDelivered::Stored { page, number } => (page, number),
            RiscvDelivered::Discarded => return None,
        };
        let inside = at.get().checked_sub(INTERRUPT_FILES.get())?;
        Some(Raised {
            vector: u8::try_from(number).ok()?,
            destination: u32::try_from(inside >> 12).ok()?,
        })
    }

    fn asks(&self) -> Option<&dyn Asks> {
        Some(self)
    }

    fn commands(&self) -> BTreeMap<String, u64> {
        by_kind(self.counts().commands)
    }
}

impl UnitModel for TegraRegisters {
    const BASE: Iova = LOW_BASE;
    type Word = AtomicU32;

    as_every_unit!(no pasids);

    fn commands(&self) -> BTreeMap<String, u64> {
        by_kind(self.counts().registers)
    }
}
