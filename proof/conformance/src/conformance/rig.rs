//! A machine put together from a driver and a host.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use portolan::addr::{Iova, Pasid, PhysAddr, StreamId};
use portolan::iommu::{Attach, AttachError, Domain, IommuError, MsiMessage, RemapInterrupts};

use super::asking::{Asker, Faulting};
use super::disk::Disk;
use super::foreign::Foreign;
use super::guest::GuestStage;
use super::handover::Next;
use super::{Abilities, HIGH_BASE, Has, Raised};

/// Parts of a machine that do not depend on a driver: memory and devices.
pub trait Host {
    /// First address that scenarios map: 2 GiB from here on are free of interrupts and windows.
    const BASE: Iova = HIGH_BASE;

    /// The two devices.
    fn devices(&self) -> [StreamId; 2];

    /// Lets a device write four bytes. Returns after the write, or its refusal.
    fn device_write(&self, device: StreamId, iova: Iova, value: u32);

    /// Lets a device write like [`Host::device_write`], by a request with a PASID. Called only if the driver has
    /// PASIDs.
    fn device_write_as(&self, device: StreamId, pasid: Pasid, iova: Iova, value: u32) {
        let _ = (device, pasid, iova, value);
    }

    /// The devices that ask, if they can.
    fn asker(&self) -> Option<&dyn Asker> {
        None
    }

    /// Lets a device raise an interrupt by `message`; returns the interrupt that arrives, if any. Called only if
    /// there is remapping.
    fn raise(&self, device: StreamId, message: MsiMessage) -> Option<Raised> {
        let _ = (device, message);
        None
    }

    /// Lets a device raise an interrupt by `message` whenever the driver changes an entry in two words from now on,
    /// after the unit has dropped its copies; no longer with `None`.
    fn raise_throughout(&self, device: StreamId, message: Option<MsiMessage>) {
        let _ = (device, message);
    }

    /// Lets a device write at an address again and again from now on, without data: at each access of the driver to a
    /// register. [`Host::reached`] returns what came of it. Returns if the machine can do this.
    fn let_loose(&self, device: StreamId, iova: Iova) -> Has {
        let _ = (device, iova);
        Has::No("no device writes between two accesses to a register")
    }

    /// Memory that each device which was let loose has reached since the last call, in the order of
    /// [`Host::let_loose`]; an outcome that is the one before it is left out.
    fn reached(&self) -> Vec<Vec<Option<PhysAddr>>> {
        Vec::new()
    }

    /// Notes that tables change hands: the steps that the next kernel's driver takes with them are not those of a table
    /// that it has made.
    fn change_hands(&self) {}

    /// Turns the unit's power off and on. Returns if the machine can do this.
    fn cut_power(&self) -> Has {
        Has::No("the unit's power stays on")
    }

    /// Calls `work` with the disk behind the unit, if there is one.
    fn with_disk(&self, work: &mut dyn FnMut(Option<&dyn Disk>)) {
        work(None);
    }

    /// Rules that the driver has broken, as the hardware reports them, in addition to what scenarios check.
    fn complaints(&self) -> Vec<String> {
        Vec::new()
    }

    /// Lets a device read four bytes; `None` if the read was refused. Called only if devices read.
    fn device_read(&self, device: StreamId, iova: Iova) -> Option<u32>;

    /// A zeroed, aligned block of `bytes` (a power of two) of memory that nothing else uses.
    fn memory(&self, bytes: u64) -> PhysAddr;

    /// Reads four bytes as the CPU does.
    fn peek(&self, pa: PhysAddr) -> u32;

    /// Writes four bytes as the CPU does.
    fn poke(&self, pa: PhysAddr, value: u32);

    /// Makes the unit refuse the command with this number, counted from 1 from now on, or none if `None`. Returns if
    /// the machine can do this; only machines with a queue can.
    fn refuse(&self, nth: Option<u64>) -> Has {
        let _ = nth;
        Has::No("no command can be refused at will")
    }

    /// Commands that another observer counted, under the same names; `None` without an observer.
    fn witnessed(&self) -> Option<BTreeMap<String, u64>>;
}

/// Response of a unit to a bad command, if there is a way to send one.
type Refusal = Option<Result<(), IommuError>>;

/// Makes an address space of a driver's.
pub type MakeDomain<U, D> = fn(&U) -> Result<Arc<D>, IommuError>;

/// Counts a driver's commands, by kind.
pub type Submitted<U> = fn(&U) -> BTreeMap<String, u64>;

/// Functions with which a driver moves requests of a stream that name a PASID.
#[derive(Clone, Copy, Debug)]
pub struct Pasids<U, D> {
    /// Gives a stream room for PASIDs, 1 to 15 at least. The stream is attached to nothing.
    pub enable: fn(&U, StreamId) -> Result<(), AttachError>,
    /// Attaches.
    pub attach: fn(&U, StreamId, Pasid, &Arc<D>) -> Result<(), AttachError>,
    /// Blocks.
    pub block: fn(&U, StreamId, Pasid) -> Result<(), AttachError>,
}

/// A driver, a host, and the facts that only the two together know.
pub struct Rig<U, D, H> {
    /// The driver.
    pub unit: U,
    /// The machine around it.
    pub host: H,
    /// Abilities of the two.
    pub abilities: Abilities,
    /// Makes an address space.
    pub domain: MakeDomain<U, D>,
    /// Moves requests with a PASID, where the machine has them.
    pub pasids: Option<Pasids<U, D>>,
    /// Functions with which a device gets tables that a kernel built, if it can.
    pub foreign: Option<Foreign<U>>,
    /// The first stage of a guest's that all domains carry, if they do.
    pub guest: Option<GuestStage>,
    /// Functions with which devices may request pages instead of failing, if they can.
    pub faulting: Option<Faulting<U>>,
    /// The unit's remapping of interrupts, if the machine has it.
    pub interrupts: Option<fn(&U) -> &dyn RemapInterrupts>,
    /// Functions with which the next kernel gets the unit, if the machine has another one.
    pub next: Option<Next<U>>,
    /// Entries of the command queue, if it has one.
    pub queue_entries: Option<u64>,
    /// Fault records kept before they are lost, if records are kept.
    pub fault_room: Option<u64>,
    /// Submits something that the unit has to refuse, as a driver with a bug would. `None` if the
    /// machine has no way to; the driver's answer otherwise.
    pub bad_command: fn(&U, &H) -> Refusal,
    /// Commands that the driver has submitted, by kind.
    pub submitted: Submitted<U>,
}

impl<U, D, H> Rig<U, D, H> {
    /// A rig whose driver has no optional functions, on hardware with every ability.
    pub fn new(unit: U, host: H, domain: MakeDomain<U, D>, submitted: Submitted<U>) -> Self {
        Self {
            unit,
            host,
            abilities: Abilities::ALL,
            domain,
            pasids: None,
            foreign: None,
            guest: None,
            faulting: None,
            interrupts: None,
            next: None,
            queue_entries: None,
            fault_room: None,
            bad_command: |_, _| None,
            submitted,
        }
    }

    /// Makes an empty address space of 39 bits, or up to the limit of [`Host::BASE`].
    ///
    /// # Errors
    /// The driver's.
    pub fn domain(&self) -> Result<Arc<D>, IommuError> {
        (self.domain)(&self.unit)
    }
}

/// A machine as scenarios take it: the three types of a [`Rig`].
pub trait Machine: Deref<Target = Rig<Self::Iommu, Self::Domain, Self::Host>> {
    /// An address space of the unit.
    type Domain: Domain + 'static;
    /// The unit's driver.
    type Iommu: Attach<Self::Domain>;
    /// The machine around it.
    type Host: Host;

    /// See [`Host::BASE`].
    const BASE: Iova = Self::Host::BASE;
}

impl<U: Attach<D>, D: Domain + 'static, H: Host> Machine for Box<Rig<U, D, H>> {
    type Domain = D;
    type Iommu = U;
    type Host = H;
}
