//! A machine put together from a driver and a host.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan::addr::{Iova, Pasid, PhysAddr, StreamId};
use portolan::iommu::{Attach, AttachError, Domain, IommuError, MsiMessage, RemapInterrupts};

use super::asking::{Asker, Faulting};
use super::disk::Disk;
use super::foreign::Foreign;
use super::guest::GuestStage;
use super::{Abilities, HIGH_BASE, Has, Machine, Raised};

/// What of a machine is no driver's affair: memory and devices.
pub trait Host {
    /// See [`Machine::BASE`].
    const BASE: Iova = HIGH_BASE;

    /// The two devices.
    fn devices(&self) -> [StreamId; 2];

    /// See [`Machine::device_write`].
    fn device_write(&self, device: StreamId, iova: Iova, value: u32);

    /// See [`Machine::device_write_as`]. Called only where the driver has PASIDs.
    fn device_write_as(&self, device: StreamId, pasid: Pasid, iova: Iova, value: u32) {
        let _ = (device, pasid, iova, value);
    }

    /// See [`Machine::asker`].
    fn asker(&self) -> Option<&dyn Asker> {
        None
    }

    /// See [`Machine::raise`].
    fn raise(&self, device: StreamId, message: MsiMessage) -> Option<Raised> {
        let _ = (device, message);
        None
    }

    /// See [`Machine::with_disk`].
    fn with_disk(&self, work: &mut dyn FnMut(Option<&dyn Disk>)) {
        work(None);
    }

    /// See [`Machine::complaints`].
    fn complaints(&self) -> Vec<String> {
        Vec::new()
    }

    /// See [`Machine::device_read`].
    fn device_read(&self, device: StreamId, iova: Iova) -> Option<u32>;

    /// See [`Machine::memory`].
    fn memory(&self, bytes: u64) -> PhysAddr;

    /// See [`Machine::peek`].
    fn peek(&self, pa: PhysAddr) -> u32;

    /// See [`Machine::poke`].
    fn poke(&self, pa: PhysAddr, value: u32);

    /// See [`Machine::refuse`].
    fn refuse(&self, nth: Option<u64>) -> Has {
        let _ = nth;
        Has::No("no command can be refused at will")
    }

    /// See [`Machine::witnessed`].
    fn witnessed(&self) -> Option<BTreeMap<String, u64>>;
}

/// What a unit answered to a bad command, if there is a way to send one.
type Refusal = Option<Result<(), IommuError>>;

/// Makes an address space of a driver's.
pub type MakeDomain<U, D> = fn(&U) -> Result<Arc<D>, IommuError>;

/// How a driver moves the requests of a stream that name a PASID.
#[derive(Clone, Copy, Debug)]
pub struct Pasids<U, D> {
    /// Gives a stream room for PASIDs, 1 to 15 at least. The stream is attached to nothing.
    pub enable: fn(&U, StreamId) -> Result<(), AttachError>,
    /// Attaches.
    pub attach: fn(&U, StreamId, Pasid, &Arc<D>) -> Result<(), AttachError>,
    /// Blocks.
    pub block: fn(&U, StreamId, Pasid) -> Result<(), AttachError>,
}

/// A driver, a host, and what only the two together know.
pub struct Rig<U, D, H> {
    /// The driver.
    pub unit: U,
    /// The machine around it.
    pub host: H,
    /// What can be asked of the two.
    pub abilities: Abilities,
    /// Makes an address space.
    pub domain: MakeDomain<U, D>,
    /// Moves requests with a PASID, where the machine has them.
    pub pasids: Option<Pasids<U, D>>,
    /// See [`Machine::foreign`].
    pub foreign: Option<Foreign<U>>,
    /// See [`Machine::guest`].
    pub guest: Option<GuestStage>,
    /// See [`Machine::faulting`].
    pub faulting: Option<Faulting<U>>,
    /// See [`Machine::interrupts`].
    pub interrupts: Option<fn(&U) -> &dyn RemapInterrupts>,
    /// See [`Machine::queue_entries`].
    pub queue_entries: Option<u64>,
    /// See [`Machine::fault_room`].
    pub fault_room: Option<u64>,
    /// See [`Machine::bad_command`].
    pub bad_command: fn(&U, &H) -> Refusal,
    /// See [`Machine::submitted`].
    pub submitted: fn(&U) -> BTreeMap<String, u64>,
}

impl<U, D, H> Machine for Rig<U, D, H>
where
    U: Attach<D>,
    D: Domain + Send + Sync + 'static,
    H: Host,
{
    type Domain = D;
    type Iommu = U;
    const BASE: Iova = H::BASE;

    fn unit(&self) -> &U {
        &self.unit
    }

    fn domain(&self) -> Result<Arc<D>, IommuError> {
        (self.domain)(&self.unit)
    }

    fn abilities(&self) -> Abilities {
        self.abilities
    }

    fn devices(&self) -> [StreamId; 2] {
        self.host.devices()
    }

    fn device_write(&self, device: StreamId, iova: Iova, value: u32) {
        self.host.device_write(device, iova, value);
    }

    fn device_read(&self, device: StreamId, iova: Iova) -> Option<u32> {
        self.host.device_read(device, iova)
    }

    fn pasids(&self) -> Option<&Pasids<U, D>> {
        self.pasids.as_ref()
    }

    fn foreign(&self) -> Option<&Foreign<U>> {
        self.foreign.as_ref()
    }

    fn guest(&self) -> Option<&GuestStage> {
        self.guest.as_ref()
    }

    fn device_write_as(&self, device: StreamId, pasid: Pasid, iova: Iova, value: u32) {
        self.host.device_write_as(device, pasid, iova, value);
    }

    fn faulting(&self) -> Option<&Faulting<U>> {
        self.faulting.as_ref()
    }

    fn asker(&self) -> Option<&dyn Asker> {
        self.host.asker()
    }

    fn interrupts(&self) -> Option<&dyn RemapInterrupts> {
        self.interrupts.map(|of| of(&self.unit))
    }

    fn raise(&self, device: StreamId, message: MsiMessage) -> Option<Raised> {
        self.host.raise(device, message)
    }

    fn with_disk(&self, work: &mut dyn FnMut(Option<&dyn Disk>)) {
        self.host.with_disk(work);
    }

    fn complaints(&self) -> Vec<String> {
        self.host.complaints()
    }

    fn memory(&self, bytes: u64) -> PhysAddr {
        self.host.memory(bytes)
    }

    fn peek(&self, pa: PhysAddr) -> u32 {
        self.host.peek(pa)
    }

    fn poke(&self, pa: PhysAddr, value: u32) {
        self.host.poke(pa, value);
    }

    fn queue_entries(&self) -> Option<u64> {
        self.queue_entries
    }

    fn fault_room(&self) -> Option<u64> {
        self.fault_room
    }

    fn bad_command(&self) -> Refusal {
        (self.bad_command)(&self.unit, &self.host)
    }

    fn refuse(&self, nth: Option<u64>) -> Has {
        self.host.refuse(nth)
    }

    fn submitted(&self) -> BTreeMap<String, u64> {
        (self.submitted)(&self.unit)
    }

    fn witnessed(&self) -> Option<BTreeMap<String, u64>> {
        self.host.witnessed()
    }
}
