//! Devices that a monitor passes through to a guest that has tables of its own for them.
//!
//! The other side of an emulated unit (`portolan_vmm::emulated::Hardware`), over iommufd as of Linux 7.3: each change
//! of the guest's entry of a device moves the device, or leaves it where it was; invalidations go to the hardware as
//! those of VT-d's first stage, or as commands of an SMMUv3 (Arm IHI 0070 G.a, 4.4 and 4.5).
//!
//! Not supported: AMD-Vi. Linux 7.3 has a structure for its device table entry, and no virtual IOMMU that takes it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan::addr::{IovaRange, PageSize, StreamId};
use portolan::inval::Depth;
use portolan::iommu::{Attach as _, AttachError, Iommu as _};

use super::kinds::{FirstStage, SmmuFirstStage, VirtualKind, VtdFirstStage, VtdInvalidation};
use super::viommu::{GuestStream, VirtualDevice, VirtualIommu};
use super::{InvalidateError, NestedOptions, NestedTables};
use crate::domain::UserDomain;
use crate::vfio::unit::UserUnit;

/// Most pages whose invalidation by an SMMUv3 is one command for each; all others invalidate all.
const EACH_PAGE: u64 = 64;
/// Commands of an SMMUv3.
const TLBI_NH_ALL: u64 = 0x10;
const TLBI_NH_VAA: u64 = 0x13;
const ATC_INV: u64 = 0x40;
/// SSV and Global: requests with a substream, whichever that is.
const ALL_SUBSTREAMS: u64 = 1 << 11 | 1 << 9;
/// Size of a device TLB's invalidation that reaches all addresses.
const ATC_ALL: u32 = 52;

/// Place of a device's requests.
#[derive(Debug)]
pub(super) enum Place<'a, S> {
    Nowhere,
    /// The guest's memory, by its own addresses.
    Memory,
    Tables(&'a NestedTables<S>),
}

/// A device with the calls that move it. One that fails has changed nothing.
pub(super) trait Seat<S>: Send + Sync + fmt::Debug {
    fn tables(&self, stage: &S) -> Result<NestedTables<S>, AttachError>;

    fn enter(&self, place: Place<'_, S>) -> Result<(), AttachError>;

    /// Invalidates `range`, or all addresses, of the tables that it is in.
    fn forget(&self, now: &Followed<S>, range: Option<IovaRange>) -> Result<(), InvalidateError>;
}

/// The guest's tables that a device is in.
#[derive(Debug)]
pub(super) struct Followed<S> {
    pub(super) stage: S,
    pub(super) tables: NestedTables<S>,
}

/// A device that follows its guest's entries. It is where the last call that succeeded has taken it.
///
/// ```no_run
/// use portolan::addr::IovaRange;
/// use portolan_linux::vfio::{PassedDevice, SmmuFirstStage};
/// use portolan_vmm::emulated::{GuestEntry, Hardware};
/// use std::io;
///
/// /// A device behind a monitor's emulated SMMUv3: of [`UserUnit::passed_behind`](portolan_linux::vfio::UserUnit).
/// /// With `VtdFirstStage::of_pasid_entry` and [`UserUnit::passed`](portolan_linux::vfio::UserUnit) it is behind VT-d.
/// #[derive(Debug)]
/// struct Passed(PassedDevice<SmmuFirstStage>);
///
/// impl Hardware for Passed {
///     fn attach(&self, entry: GuestEntry<'_>) -> io::Result<()> {
///         let attached = match entry {
///             GuestEntry::Tables(words) => {
///                 let stage = SmmuFirstStage::of_stream_entry(words);
///                 self.0.attach_tables(stage.ok_or(io::ErrorKind::InvalidData)?)
///             }
///             GuestEntry::PassThrough => self.0.attach_memory(),
///             _ => self.0.block(),
///         };
///         attached.map_err(io::Error::other)
///     }
///
///     fn invalidate(&self, range: Option<IovaRange>) -> io::Result<()> {
///         self.0.invalidate(range).map_err(io::Error::other)
///     }
/// }
/// ```
#[derive(Debug)]
pub struct PassedDevice<S> {
    seat: Box<dyn Seat<S>>,
    now: Mutex<Option<Followed<S>>>,
}

impl<S: FirstStage> PassedDevice<S> {
    pub(super) fn new(seat: Box<dyn Seat<S>>) -> Self {
        Self { seat, now: Mutex::default() }
    }

    fn now(&self) -> MutexGuard<'_, Option<Followed<S>>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses all of the device's accesses.
    ///
    /// *Context.* Task: a system call.
    ///
    /// # Errors
    /// The kernel's; the device is where it was.
    pub fn block(&self) -> Result<(), AttachError> {
        let mut now = self.now();
        self.seat.enter(Place::Nowhere)?;
        *now = None;
        Ok(())
    }

    /// Has the device's addresses be the guest's own.
    ///
    /// *Context.* Task: a system call.
    ///
    /// # Errors
    /// The kernel's; the device is where it was.
    pub fn attach_memory(&self) -> Result<(), AttachError> {
        let mut now = self.now();
        self.seat.enter(Place::Memory)?;
        *now = None;
        Ok(())
    }

    /// Has the device's addresses be those of the guest's tables.
    ///
    /// *Context.* Task: system calls.
    ///
    /// # Errors
    /// The kernel's, which refuses an entry that its hardware cannot carry out; the device is where it was.
    pub fn attach_tables(&self, stage: S) -> Result<(), AttachError> {
        let mut now = self.now();
        let tables = self.seat.tables(&stage)?;
        self.seat.enter(Place::Tables(&tables))?;
        // The former tables go once the device has left them.
        *now = Some(Followed { stage, tables });
        Ok(())
    }

    /// Invalidates what the hardware and the device keep of `range`, or of all addresses, of the guest's tables, under
    /// any of their tags. There is nothing to invalidate where the device is in none.
    ///
    /// *Context.* Task: system calls that wait for the hardware.
    ///
    /// # Errors
    /// The hardware may have some of it: the guest is not told that its command is done.
    pub fn invalidate(&self, range: Option<IovaRange>) -> Result<(), InvalidateError> {
        self.now().as_ref().map_or(Ok(()), |now| self.seat.forget(now, range))
    }

    /// Number of the tables that the device is in.
    #[cfg(test)]
    pub(super) fn tables(&self) -> Option<u32> {
        self.now().as_ref().map(|now| now.tables.table().id())
    }
}

/// Moves a unit's device.
fn enter<S: FirstStage>(
    unit: &UserUnit,
    stream: StreamId,
    memory: &Arc<UserDomain>,
    place: Place<'_, S>,
) -> Result<(), AttachError> {
    match place {
        Place::Nowhere => unit.block(stream),
        Place::Memory => unit.attach(stream, memory),
        Place::Tables(tables) => unit.attach_nested(stream, None, tables),
    }
}

/// A device whose guest has an emulated VT-d.
#[derive(Debug)]
struct AboveMemory {
    unit: Arc<UserUnit>,
    stream: StreamId,
    memory: Arc<UserDomain>,
}

impl Seat<VtdFirstStage> for AboveMemory {
    fn tables(&self, stage: &VtdFirstStage) -> Result<NestedTables<VtdFirstStage>, AttachError> {
        self.unit.nested(self.stream, &self.memory, stage, NestedOptions::default())
    }

    fn enter(&self, place: Place<'_, VtdFirstStage>) -> Result<(), AttachError> {
        enter(&self.unit, self.stream, &self.memory, place)
    }

    fn forget(
        &self,
        now: &Followed<VtdFirstStage>,
        range: Option<IovaRange>,
    ) -> Result<(), InvalidateError> {
        now.tables.invalidate(&[vtd(range)])
    }
}

pub(super) fn vtd(range: Option<IovaRange>) -> VtdInvalidation {
    range.map_or(VtdInvalidation::All, |range| VtdInvalidation::Pages {
        start: range.start(),
        count: range.pages(PageSize::SIZE_4K),
        depth: Depth::AllLevels,
    })
}

/// A device whose guest has an emulated SMMUv3.
#[derive(Debug)]
struct BehindSmmu<K> {
    unit: Arc<UserUnit>,
    stream: StreamId,
    viommu: VirtualIommu<K>,
    name: GuestStream,
    _device: VirtualDevice,
}

impl<K: VirtualKind<Stage = SmmuFirstStage>> Seat<SmmuFirstStage> for BehindSmmu<K> {
    fn tables(&self, stage: &SmmuFirstStage) -> Result<NestedTables<SmmuFirstStage>, AttachError> {
        self.unit.nested_behind(self.stream, &self.viommu, stage, NestedOptions::default())
    }

    fn enter(&self, place: Place<'_, SmmuFirstStage>) -> Result<(), AttachError> {
        enter(&self.unit, self.stream, self.viommu.memory(), place)
    }

    fn forget(
        &self,
        now: &Followed<SmmuFirstStage>,
        range: Option<IovaRange>,
    ) -> Result<(), InvalidateError> {
        self.viommu.invalidate(&commands(now.stage, self.name, range))
    }
}

/// Commands that invalidate `range` in the hardware, and in the device named `name` if its entry gives it a TLB. The
/// kernel puts its own number of the guest into them.
pub(super) fn commands(
    stage: SmmuFirstStage,
    name: GuestStream,
    range: Option<IovaRange>,
) -> Vec<[u64; 2]> {
    let few = range.filter(|range| range.pages(PageSize::SIZE_4K) <= EACH_PAGE);
    let mut commands = few.map_or(vec![[TLBI_NH_ALL, 0]], |range| {
        let page = |number: u64| [TLBI_NH_VAA, number << 12];
        (range.start().get() >> 12..=range.last().get() >> 12).map(page).collect()
    });
    if stage.has_device_tlb() {
        let (start, differs) = range.map_or((0, u64::MAX), |range| {
            (range.start().get(), range.start().get() ^ range.last().get())
        });
        // The aligned power of two pages around the range.
        let size = (u64::BITS - differs.leading_zeros()).saturating_sub(12).min(ATC_ALL);
        let page = (start >> 12).checked_shr(size).map_or(0, |block| block << size);
        let substreams = stage.has_substreams().then_some(ALL_SUBSTREAMS);
        for which in [Some(0), substreams].into_iter().flatten() {
            commands.push([ATC_INV | which | name.get() << 32, page << 12 | u64::from(size)]);
        }
    }
    commands
}

impl UserUnit {
    /// The device `stream` for a guest with an emulated VT-d, above the guest's memory, which is a domain with
    /// [`DomainOptions::second_stage`](crate::vfio::DomainOptions). It is where it was until the guest's first entry.
    pub fn passed(
        self: &Arc<Self>,
        stream: StreamId,
        memory: &Arc<UserDomain>,
    ) -> PassedDevice<VtdFirstStage> {
        let (unit, memory) = (self.clone(), memory.clone());
        PassedDevice::new(Box::new(AboveMemory { unit, stream, memory }))
    }

    /// The device `stream` for a guest with an emulated SMMUv3, which names it `name`, above the memory of `viommu`. It
    /// is where it was until the guest's first entry.
    ///
    /// A monitor may hand each command to [`VirtualIommu::invalidate`] as the guest wrote it instead, once for all
    /// devices, and leave [`PassedDevice::invalidate`] alone.
    ///
    /// *Context.* Task: a system call.
    ///
    /// # Errors
    /// See [`UserUnit::virtual_device`].
    pub fn passed_behind<K: VirtualKind<Stage = SmmuFirstStage> + 'static>(
        self: &Arc<Self>,
        stream: StreamId,
        viommu: &VirtualIommu<K>,
        name: GuestStream,
    ) -> Result<PassedDevice<SmmuFirstStage>, AttachError> {
        let _device = self.virtual_device(stream, viommu, name)?;
        let (unit, viommu) = (self.clone(), viommu.clone());
        Ok(PassedDevice::new(Box::new(BehindSmmu { unit, stream, viommu, name, _device })))
    }
}

#[cfg(test)]
mod tests;
