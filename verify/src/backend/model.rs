//! The model's memory, and devices that are nothing but a stream number.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use portolan::addr::{Iova, PageSize, Pasid, PhysAddr, StreamId};
use portolan::inval::{Command, InvalidationQueue, Step};
use portolan::iommu::{IommuError, MsiMessage};
use portolan::platform::{Nanos, TableMem, Word};
use portolan_model::amd::AmdRegisters;
use portolan_model::decode::AccessKind;
use portolan_model::inject::{Piece, RegisterFaults, Violation};
use portolan_model::memory::ModelMemory;
use portolan_model::smmuv2::SmmuV2Registers;
use portolan_model::smmuv3::SmmuRegisters;
use portolan_model::tegra_smmu::TegraRegisters;
use portolan_model::vtd::VtdRegisters;

use super::asks::Asks;
use super::by_name;
use crate::conformance::{Asker, HIGH_BASE, Has, Host, LOW_BASE, Raised};

/// Where the model's memory is, and its pages.
pub(super) const MEMORY: (PhysAddr, u32) = (PhysAddr::new(0x8000_0000), 1 << 12);
/// Virtual nanoseconds between two looks of a waiting driver.
pub(super) const LOOK_NS: u64 = 100;
/// Longest wait of a driver on the model, in virtual time: what comes at all comes at once.
pub(super) const LIMIT: Nanos = Nanos::from_millis(5);

/// An access of a device.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Who.
    pub device: StreamId,
    /// In which of its address spaces, if it names one.
    pub pasid: Option<Pasid>,
    /// To where.
    pub iova: Iova,
    /// Reading or writing.
    pub kind: AccessKind,
}

/// A unit of the model that devices can be behind.
pub trait Behind {
    /// See [`crate::conformance::Machine::BASE`].
    const BASE: Iova = HIGH_BASE;
    /// Width of table entries.
    type Word: Word;

    /// What of an access of 4 bytes goes where, if anywhere.
    fn pieces(&self, of: Access) -> Option<Vec<Piece>>;

    /// What the driver did that it must not do.
    fn violations(&self) -> Vec<Violation>;

    /// See [`Host::raise`].
    fn raise(&self, device: StreamId, message: MsiMessage) -> Option<Raised> {
        let _ = (device, message);
        None
    }

    /// See [`Host::refuse`].
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

/// What was counted of each kind, by its name in the specification.
fn by_kind<K: Debug>(counts: impl IntoIterator<Item = (K, u64)>) -> BTreeMap<String, u64> {
    let counts = counts.into_iter();
    by_name(counts.map(|(kind, count)| (specified(&format!("{kind:?}")), count)))
}

/// Has the `nth` command that comes behind `consumed` others be refused with `code`.
fn refusal(consumed: u64, nth: Option<u64>, code: u32) -> RegisterFaults {
    RegisterFaults {
        refuse: nth.map(|nth| (consumed + nth, code)),
        ..RegisterFaults::default()
    }
}

impl Behind for SmmuRegisters {
    type Word = AtomicU64;

    fn pieces(&self, of: Access) -> Option<Vec<Piece>> {
        self.dma(of.device, of.pasid, of.iova, of.kind, 4).ok()
    }

    fn violations(&self) -> Vec<Violation> {
        self.violations()
    }

    fn refuse(&self, nth: Option<u64>) -> Has {
        const ILLEGAL: u32 = 1;
        self.inject(refusal(self.consumed(), nth, ILLEGAL));
        Has::Yes
    }

    fn asks(&self) -> Option<&dyn Asks> {
        Some(self)
    }

    fn commands(&self) -> BTreeMap<String, u64> {
        by_kind(self.counts().commands)
    }
}

impl Behind for SmmuV2Registers {
    type Word = AtomicU64;

    fn pieces(&self, of: Access) -> Option<Vec<Piece>> {
        match of.pasid {
            None => self.dma(of.device, of.iova, of.kind, 4).ok(),
            Some(_) => None,
        }
    }

    fn violations(&self) -> Vec<Violation> {
        self.violations()
    }

    fn commands(&self) -> BTreeMap<String, u64> {
        by_name(self.counts().writes)
    }
}

impl Behind for VtdRegisters {
    type Word = AtomicU64;

    fn pieces(&self, of: Access) -> Option<Vec<Piece>> {
        self.dma(of.device, of.pasid, of.iova, of.kind, 4).ok()
    }

    fn violations(&self) -> Vec<Violation> {
        self.violations()
    }

    fn refuse(&self, nth: Option<u64>) -> Has {
        const QUEUE_ERROR: u32 = 1 << 4;
        self.inject(refusal(self.consumed(), nth, QUEUE_ERROR));
        Has::Yes
    }

    fn raise(&self, device: StreamId, message: MsiMessage) -> Option<Raised> {
        let arrived = self.message(device, message.address, message.data).ok()?;
        Some(Raised {
            vector: arrived.vector,
            destination: arrived.destination,
        })
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
        for (name, count) in [
            ("CONTEXT_CACHE", contexts),
            ("IOTLB", translations),
            ("DEVICE_TLB", with_pasid),
        ] {
            *all.entry(name.to_owned()).or_default() += count;
        }
        all
    }
}

impl Behind for AmdRegisters {
    type Word = AtomicU64;

    fn pieces(&self, of: Access) -> Option<Vec<Piece>> {
        match of.pasid {
            None => self.dma(of.device, of.iova, of.kind, 4).ok(),
            Some(_) => None,
        }
    }

    fn violations(&self) -> Vec<Violation> {
        self.violations()
    }

    fn refuse(&self, nth: Option<u64>) -> Has {
        const ILLEGAL_COMMAND: u32 = 5;
        self.inject(refusal(self.consumed(), nth, ILLEGAL_COMMAND));
        Has::Yes
    }

    fn raise(&self, device: StreamId, message: MsiMessage) -> Option<Raised> {
        let arrived = self.message(device, message.address, message.data)?;
        Some(Raised {
            vector: arrived.vector,
            destination: arrived.destination.into(),
        })
    }

    fn commands(&self) -> BTreeMap<String, u64> {
        by_kind(self.counts().commands)
    }
}

impl Behind for TegraRegisters {
    const BASE: Iova = LOW_BASE;
    type Word = AtomicU32;

    fn pieces(&self, of: Access) -> Option<Vec<Piece>> {
        match of.pasid {
            None => self.dma(of.device, of.iova, of.kind, 4).ok(),
            Some(_) => None,
        }
    }

    fn violations(&self) -> Vec<Violation> {
        self.violations()
    }

    fn commands(&self) -> BTreeMap<String, u64> {
        by_kind(self.counts().registers)
    }
}

/// Memory and devices around a unit of the model.
pub struct ModelHost<B: Behind> {
    pub(super) unit: Arc<B>,
    pub(super) memory: Arc<ModelMemory<B::Word>>,
    devices: [StreamId; 2],
}

impl<B: Behind> ModelHost<B> {
    /// The unit.
    pub fn unit(&self) -> &B {
        &self.unit
    }

    /// The memory.
    pub fn ram(&self) -> &Arc<ModelMemory<B::Word>> {
        &self.memory
    }

    /// Where an access goes, if anywhere.
    fn reach(&self, of: Access) -> Option<PhysAddr> {
        let pieces = self.unit.pieces(of)?;
        pieces.first().map(|piece| piece.pa)
    }

    fn write(&self, device: StreamId, pasid: Option<Pasid>, iova: Iova, value: u32) {
        let of = Access {
            device,
            pasid,
            iova,
            kind: AccessKind::Write,
        };
        if let Some(pa) = self.reach(of) {
            let _ = self.memory.write_u32(pa, value);
        }
    }

    /// Has the unit refuse a command, and sends it: what the driver is told.
    ///
    /// # Errors
    /// The driver's, which has to be one.
    pub fn refuse_one<Q>(&self, queue: &Q) -> Result<(), IommuError>
    where
        Q: InvalidationQueue<Error = IommuError>,
    {
        self.unit.refuse(Some(1));
        let steps = [Step::Invalidate(Command::Global), Step::Sync];
        let answer = queue.execute(&mut steps.into_iter());
        self.unit.refuse(None);
        answer
    }

    /// Two devices behind `unit`.
    pub fn new(unit: Arc<B>, memory: Arc<ModelMemory<B::Word>>, devices: [StreamId; 2]) -> Self {
        Self {
            unit,
            memory,
            devices,
        }
    }
}

impl<B: Behind> Host for ModelHost<B> {
    const BASE: Iova = B::BASE;

    fn devices(&self) -> [StreamId; 2] {
        self.devices
    }

    fn device_write(&self, device: StreamId, iova: Iova, value: u32) {
        self.write(device, None, iova, value);
    }

    fn device_write_as(&self, device: StreamId, pasid: Pasid, iova: Iova, value: u32) {
        self.write(device, Some(pasid), iova, value);
    }

    fn asker(&self) -> Option<&dyn Asker> {
        self.unit.asks().map(|_| self as &dyn Asker)
    }

    fn raise(&self, device: StreamId, message: MsiMessage) -> Option<Raised> {
        self.unit.raise(device, message)
    }

    fn complaints(&self) -> Vec<String> {
        let violations = self.unit.violations().into_iter();
        let mut all: Vec<String> = violations.map(|what| format!("{what:?}")).collect();
        let reads = self.memory.reads_of_freed_pages();
        if reads != 0 {
            all.push(format!("{reads} reads of tables that were given back"));
        }
        all
    }

    fn device_read(&self, device: StreamId, iova: Iova) -> Option<u32> {
        let of = Access {
            device,
            pasid: None,
            iova,
            kind: AccessKind::Read,
        };
        Some(self.peek(self.reach(of)?))
    }

    fn memory(&self, bytes: u64) -> PhysAddr {
        let lg2 = bytes.max(1).next_power_of_two().trailing_zeros();
        let block = TableMem::alloc(&*self.memory, PageSize::of_lg2(lg2));
        block.unwrap_or(PhysAddr::new(0))
    }

    fn peek(&self, pa: PhysAddr) -> u32 {
        let mut bytes = [0xff; 4];
        let _ = self.memory.read(pa, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn poke(&self, pa: PhysAddr, value: u32) {
        let _ = self.memory.write_u32(pa, value);
    }

    fn refuse(&self, nth: Option<u64>) -> Has {
        self.unit.refuse(nth)
    }

    fn witnessed(&self) -> Option<BTreeMap<String, u64>> {
        Some(self.unit.commands())
    }
}
