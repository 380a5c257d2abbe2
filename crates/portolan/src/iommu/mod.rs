//! Parts that every IOMMU driver offers, for all registers: domains, attachments and faults.
//!
//! * [`Domain`]: one I/O address space. [`PagedDomain`] is the one that most hardware has: page
//!   tables of this library, an identifier and the unit's invalidation queue.
//! * [`WholeMappings`]: rules of domains whose mappings another party keeps.
//! * [`Iommu`]: one IOMMU, with its streams blocked, passed through, or ([`Attach`]) attached.
//! * [`FaultRecord`]: record of an access or an interrupt that it refused.
//! * [`RemapInterrupts`]: control of the interrupts that devices may raise.
//! * [`handover`]: state of a unit, for a kernel that takes it over while devices are at work.
//!
//! Not here: addresses for the mappings, ownership of buffers, and when to pay a debt.

mod bound;
mod claim;
mod error;
mod fault;
mod guest_apic;
pub mod handover;
mod interrupt;
mod interrupt_file;
mod paged;
mod posted;
mod reserved;
mod whole;

pub use bound::BoundDomain;
pub use claim::SpaceClaim;
pub use error::{
    AttachError, Awaited, DomainError, DomainSplitError, DomainUnmapError, IommuError,
    TrackDirtyError, UnmapPartError,
};
pub use fault::{FaultAccess, FaultEvent, FaultReason, FaultRecord, InterruptRefusal};
pub use guest_apic::{GuestApicPage, GuestTag};
pub use interrupt::{
    ApicPosting, Delivery, DescriptorPosting, Destination, FilePosting, GuestCpu, Interrupt,
    InterruptError, InterruptPlace, InterruptSource, InterruptTarget, MsiMessage, Polarity,
    Posting, RedirectionEntry, RemapInterrupts, Trigger, Vector,
};
pub use interrupt_file::{FiledInterrupts, InterruptIdentity, MemoryInterruptFile};
pub use paged::{PagedDomain, TagPool};
pub use posted::{PendingInterrupts, PostedDescriptor};
pub use reserved::{NotDisjoint, ReservedKind, ReservedRegion, disjoint};
pub use whole::{WholeMapping, WholeMappings};

use crate::addr::{Iova, IovaRange, PageSize, Pasid, StreamId, TableId};
use crate::inval::{Flushed, Gather, SyncError, WrongTable};
use crate::platform::{AllMemory, DmaMemory};
use crate::table::format::DirtyTracking;
use crate::table::{Access, DirtyError, SplitError, TableUnmapError, Translation};
use alloc::sync::Arc;
use handover::{AdoptedDomain, DomainTables, UnitHandover};

/// One I/O address space.
///
/// *Locking.* None that the caller sees. Callers on several CPUs work on disjoint ranges.
///
/// *Context.* Interrupt, where a method does not say otherwise: only [`Domain::sync`],
/// [`Domain::split`] and [`Domain::unmap_part`] wait for hardware.
pub trait Domain: Send + Sync {
    /// The name that its debts carry.
    fn id(&self) -> TableId;

    /// The same place at every call, and no other domain's: [`DmaSpace`](crate::dma::DmaSpace) is refused a
    /// domain that another has.
    fn claim(&self) -> &SpaceClaim;

    /// The addresses that can be mapped.
    fn input_range(&self) -> IovaRange;

    /// The smallest page, to which ranges are aligned.
    fn granule(&self) -> PageSize;

    /// The least access that can be granted and includes `access`; `None` if there is none.
    fn grants(&self, access: Access) -> Option<Access>;

    /// Maps a scatter list at contiguous addresses from `iova`. Each piece is rounded outwards to
    /// whole granules.
    ///
    /// # Errors
    /// See [`DomainError`]; nothing is mapped.
    fn map_sg(
        &self,
        iova: Iova,
        pieces: &[DmaMemory],
        access: Access,
        owed: &mut Gather,
    ) -> Result<IovaRange, DomainError>;

    /// Maps the one granule in which `memory` lies at `iova`, if that takes nothing but the write of its entry and
    /// owes nothing: what most buffers of one page need. Tells if it did; otherwise nothing has changed, and
    /// [`Domain::map_sg`] does it or says why not.
    fn map_page(&self, iova: Iova, memory: DmaMemory, access: Access) -> bool {
        let _ = (iova, memory, access);
        false
    }

    /// Moves the debt `from` into the debt `into`; `from` is empty afterwards.
    ///
    /// # Errors
    /// If one of them is of another domain; both are as they were.
    fn absorb(&self, into: &mut Gather, from: &mut Gather) -> Result<(), WrongTable>;

    /// Maps `memory`, whole granules, at `iova`. The work that has to happen before a device uses
    /// the mapping is added to `owed`.
    ///
    /// # Errors
    /// See [`DomainError`]; nothing is mapped.
    fn map(
        &self,
        iova: Iova,
        memory: DmaMemory,
        access: Access,
        owed: &mut Gather,
    ) -> Result<IovaRange, DomainError>;

    /// Unmaps all of `range`. Devices may go on using the old translations until `owed` is paid.
    /// Takes no memory and cuts no block: a range that was mapped in one call and is unmapped whole
    /// never needs a split.
    ///
    /// # Errors
    /// See [`DomainUnmapError`]; nothing is unmapped.
    fn unmap(&self, range: IovaRange, owed: &mut Gather) -> Result<(), DomainUnmapError>;

    /// Splits the block that holds `at` into smaller pages, so that a part of it can be unmapped.
    /// Where the table format asks for break-before-make, devices that use the block fault
    /// meanwhile.
    ///
    /// *Context.* Atomic: waits for the hardware.
    ///
    /// # Errors
    /// See [`DomainSplitError`]. If the hardware did not complete, the block is between the two states,
    /// and can be split again or unmapped whole; its debt was added to `owed`.
    fn split(&self, at: Iova, owed: &mut Gather) -> Result<(), DomainSplitError> {
        let _ = owed;
        Err(DomainSplitError::Split(SplitError::NoBlock { iova: at }))
    }

    /// As [`Domain::unmap`]; blocks that `range` cuts are split before.
    ///
    /// *Context.* Atomic: waits for the hardware if a block is split.
    ///
    /// # Errors
    /// See [`DomainUnmapError`] and [`DomainSplitError`]; nothing is unmapped.
    fn unmap_part(&self, range: IovaRange, owed: &mut Gather) -> Result<(), UnmapPartError> {
        loop {
            // Each split makes the pages at one end of the range smaller by one level.
            let block = match self.unmap(range, owed) {
                Err(DomainUnmapError::Unmap(
                    TableUnmapError::NeedsSplit { block } | TableUnmapError::Splitting { block },
                )) => block,
                other => return Ok(other?),
            };
            // The end of the range that lies inside the block becomes a page boundary.
            let inside = match block.start() < range.start() {
                true => range.start(),
                false => range.last(),
            };
            self.split(inside, owed)?;
        }
    }

    /// Pays a debt of this domain and takes back the memory that it held; `owed` is empty
    /// afterwards. When this returns the proof, no device reaches anything through unmapped addresses.
    ///
    /// *Context.* Atomic: waits for the hardware.
    ///
    /// # Errors
    /// If the hardware did not complete, or the debt is of another domain. It is still owed and
    /// still in `owed`: nothing of it may be reused.
    fn sync(&self, owed: &mut Gather) -> Result<Flushed, SyncError<IommuError>>;

    /// Tells if anything has to be done to pay `owed`. If not, dropping it loses nothing: a map
    /// mostly owes nothing, and then a debt need not be handed around.
    #[inline]
    fn is_due(&self, owed: &Gather) -> bool {
        !owed.is_empty()
    }

    /// Switches marks of the pages that devices write on, or off, whatever is mapped. On return, the marks from before
    /// are gone, and each page is marked that a device writes from then on; a stream that another caller attaches
    /// meanwhile, once it is attached.
    ///
    /// *Context.* Task: looks at every leaf, and waits for the hardware.
    ///
    /// # Errors
    /// If the domain cannot mark pages, or the hardware did not complete: then nothing is marked for certain.
    fn track_dirty(&self, marks: DirtyTracking) -> Result<(), TrackDirtyError> {
        match marks {
            DirtyTracking::Off => Ok(()),
            DirtyTracking::Hardware => Err(TrackDirtyError::NotTracked),
        }
    }

    /// Hands the mapped pages in `range` to `visit` that a device has written since they were marked clean, and marks
    /// them clean, as [`PageTable::read_and_clear_dirty`](crate::table::PageTable::read_and_clear_dirty) does.
    ///
    /// *Context.* Task: looks at every leaf.
    ///
    /// # Errors
    /// If the domain marks no pages.
    fn read_and_clear_dirty(
        &self,
        range: IovaRange,
        owed: &mut Gather,
        visit: &mut dyn FnMut(IovaRange),
    ) -> Result<(), DirtyError> {
        let _ = (range, owed, visit);
        Err(DirtyError::NotTracked)
    }

    /// As [`Domain::read_and_clear_dirty`], and leaves the marks.
    ///
    /// *Context.* Task: looks at every leaf.
    ///
    /// # Errors
    /// If the domain marks no pages.
    fn read_dirty(
        &self,
        range: IovaRange,
        visit: &mut dyn FnMut(IovaRange),
    ) -> Result<(), DirtyError> {
        let _ = (range, visit);
        Err(DirtyError::NotTracked)
    }

    /// As [`Domain::unmap`], and hands the pages to `visit` that a device has written since they were marked clean; all
    /// of `range` where it has no marks to tell. Marks that a read has cleared, and whose debt is not paid yet, may be
    /// missing.
    ///
    /// *Context.* Task: one walk for each leaf.
    ///
    /// # Errors
    /// See [`DomainUnmapError`]; nothing is unmapped, and nothing was handed over.
    fn unmap_and_read_dirty(
        &self,
        range: IovaRange,
        owed: &mut Gather,
        visit: &mut dyn FnMut(IovaRange),
    ) -> Result<(), DomainUnmapError> {
        self.unmap(range, owed)?;
        visit(range);
        Ok(())
    }

    /// Number of pages of its tables, those that wait for quiet included; 0 if it has no tables.
    fn table_pages(&self) -> usize {
        0
    }

    /// The tables, for a kernel that takes them over; `None` if it has no tables of its own.
    ///
    /// *Context.* Task: walks all of them.
    fn tables(&self) -> Option<DomainTables> {
        None
    }

    /// The range of the first table at or after `from` that has no entries: all that it spans. Unmaps
    /// of less than a table spans leave it in place: then the next map there allocates nothing, and
    /// walk caches need not be invalidated.
    ///
    /// *Context.* Task: looks at the entries of all tables on the way.
    fn next_empty_table(&self, from: Iova) -> Option<IovaRange> {
        let _ = from;
        None
    }

    /// Takes out the empty tables that lie in `range` whole, and returns their number. The caller owns
    /// all of `range`: nothing is mapped or unmapped there until `owed`, with which their pages come
    /// back, is paid.
    ///
    /// *Context.* Task: looks at every entry of the tables in `range`.
    ///
    /// # Errors
    /// If `owed` is of another domain.
    fn prune(&self, range: IovaRange, owed: &mut Gather) -> Result<usize, WrongTable> {
        let _ = (range, owed);
        Ok(0)
    }

    /// Way in which a hypervisor follows the mappings of this domain. Where one does, unmaps must
    /// not be put off ([`Policy::Lazy`](crate::dma::Policy::Lazy)).
    fn shadowing(&self) -> Shadowing;

    /// Current translation of an address.
    fn translate(&self, iova: Iova) -> Option<Translation>;
}

/// One IOMMU.
///
/// A stream that was never named is blocked. Methods may be called from any CPU.
///
/// *Context.* Task, where a method does not say otherwise: moving a stream waits for hardware and
/// takes memory.
pub trait Iommu: Send + Sync {
    /// Blocks `stream`: its accesses fault. Returns once none is under way through the domain that
    /// it was attached to before, which may then be dropped.
    ///
    /// # Errors
    /// If the stream is not the unit's, or the hardware did not complete. The stream is then
    /// blocked as far as the hardware looks, and keeps the domain that it was attached to alive.
    fn block(&self, stream: StreamId) -> Result<(), AttachError>;

    /// Passes `stream` through untranslated, as `all` gives leave to. Guarantees as [`Iommu::block`].
    ///
    /// # Errors
    /// As [`Iommu::block`], or if the unit cannot pass through.
    fn pass_through(&self, stream: StreamId, all: AllMemory) -> Result<(), AttachError>;

    /// As [`Iommu::block`], of the requests of `stream` with `pasid`; its others stay where they are.
    ///
    /// # Errors
    /// As [`Iommu::block`]; [`AttachError::NoPasids`], and [`AttachError::Mismatch`] for a PASID that
    /// is too wide, or is that of requests without one (0).
    fn block_pasid(&self, _stream: StreamId, _pasid: Pasid) -> Result<(), AttachError> {
        Err(AttachError::NoPasids)
    }

    /// Addresses that `stream` must not be given as IOVAs, or has to reach untranslated: interrupt
    /// windows, message doorbells, regions that firmware's devices use. Hands each to `each`; a unit
    /// that stands before another one hands on the regions of that.
    ///
    /// *Context.* Task.
    fn reserved(&self, stream: StreamId, each: &mut dyn FnMut(ReservedRegion));

    /// The oldest thing that the unit has to say of refused accesses, if any.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// If the unit is gone or its fault queue is beyond repair.
    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError>;

    /// Prepares the unit for a loss of its power, with the devices behind it quiet. All streams are
    /// blocked, the unit reaches none of its tables and keeps no copy of them, and its queue is empty.
    /// Maps, unmaps and their invalidations go on meanwhile and owe the unit nothing. Streams cannot be
    /// moved nor interrupts changed until [`Iommu::resume`]: that is [`IommuError::Stopped`]. A device
    /// with a TLB of its own loses its translations with its power, or by ATS switched off and on.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] if its driver has no part for it. If the hardware does not follow, it
    /// may still use its tables: invalidations fail as well, and nothing is freed, until this succeeds or
    /// [`Iommu::resume`] does.
    fn suspend(&self) -> Result<(), IommuError> {
        Err(IommuError::Unsupported)
    }

    /// Brings a suspended unit back, with its power lost meanwhile or not: streams are where they were,
    /// and mappings are those of the tables. Devices stay quiet until it returns: many units let
    /// everything pass between the return of their power and this. Does nothing if the unit is not
    /// suspended.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// If the hardware does not follow: the unit is still suspended, and its devices have to stay quiet.
    fn resume(&self) -> Result<(), IommuError> {
        Err(IommuError::Unsupported)
    }
}

/// A unit that streams can be attached to domains of type `D` on.
pub trait Attach<D: Domain>: Iommu {
    /// Lets `stream` reach memory through `domain`, which the unit keeps alive until the stream is
    /// moved away. Moving from one domain to another does not pass through a state in which more
    /// than one of the two is reachable from one access. Guarantees of completion as
    /// [`Iommu::block`].
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`AttachError`]. The stream is then where it was, or blocked if the hardware failed.
    fn attach(&self, stream: StreamId, domain: &Arc<D>) -> Result<(), AttachError>;

    /// As [`Attach::attach`], for the requests of `stream` with `pasid`; its others stay where they
    /// are. Page requests that the device sent while something else was attached are in the unit's
    /// queue by now: its reader has to read it empty before they can be told from those of the new
    /// domain.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// As [`Attach::attach`] and [`Iommu::block_pasid`].
    fn attach_pasid(
        &self,
        _stream: StreamId,
        _pasid: Pasid,
        _domain: &Arc<D>,
    ) -> Result<(), AttachError> {
        Err(AttachError::NoPasids)
    }
}

/// A stream, or its requests with one PASID.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requester {
    /// The device.
    pub stream: StreamId,
    /// Its address space, if it says.
    pub pasid: Option<Pasid>,
}

/// A device with a TLB of its own (PCI Express's address translation services, ATS).
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTlb {
    /// Invalidations that it takes at a time, 1 to 32 (its ATS capability, where 0 stands for 32).
    pub depth: u8,
    /// Requester id of its physical function: its own, unless it is a virtual function.
    pub physical: u16,
    /// It forgets for certain only what it is asked to forget twice.
    pub twice: bool,
}

/// Stage of the tables that translate a device's addresses.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// First-stage tables. Under a virtual IOMMU the hardware walks the guest's own.
    First,
    /// Second-stage tables. Under a virtual IOMMU with caching mode the hypervisor shadows them.
    Second,
}

/// Cost of one invalidation beside the work of the IOMMU.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TrapCost {
    /// Nothing: the queue is the hardware's.
    None,
    /// An exit to the hypervisor.
    Expensive,
}

/// Ability to make a device's access to an address that is not mapped wait until it is: by a stall,
/// or as a page request that the device makes.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecoverableFaults {
    /// The unit can do neither: such an access fails.
    Absent,
    /// The unit can, for devices that can as well ([`iopf`](crate::iopf)).
    Present,
}

/// Way in which a hypervisor learns of a device's mappings, if it has to.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shadowing {
    /// It need not: the hardware walks the tables that the driver writes.
    None,
    /// By invalidations: the virtual unit has caching mode, so that each map and each unmap is told.
    /// First-stage tables are walked by the hardware all the same, and are not shadowed.
    CachingMode,
    /// By the entries: their pages are write-protected, and each write is an exit. No register says
    /// so; an embedder that knows the hypervisor does.
    WriteProtection,
    /// There are no tables: each map and each unmap is a request to the hypervisor (virtio-iommu).
    Requests,
}

impl Shadowing {
    /// The part of it that holds for tables of `stage`.
    pub const fn of(self, stage: Stage) -> Self {
        match (self, stage) {
            (Self::CachingMode, Stage::First) => Self::None,
            (other, _) => other,
        }
    }
}

/// Conditions of a unit that decide on the best way to invalidate its unmaps.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conditions {
    /// Stage of the tables of its new domains.
    pub stage: Stage,
    /// Way in which a hypervisor follows the tables of such units, at any stage.
    pub shadowing: Shadowing,
    /// Cost of one invalidation beside the work of the unit.
    pub exits: TrapCost,
}

/// A unit of any driver: common parts of a machine's units, for code that opens devices.
pub trait IommuDomains: Iommu {
    /// An empty domain of the kind that suits the unit best.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// If there is no memory or no identifier for it, or no kind that the unit can do.
    fn new_domain(self: Arc<Self>) -> Result<BoundDomain, IommuError>;

    /// The unit without the parts that only this trait has.
    ///
    /// *Context.* Interrupt.
    fn as_iommu(self: Arc<Self>) -> Arc<dyn Iommu>;

    /// Conditions that decide on the best way to invalidate its unmaps.
    ///
    /// *Context.* Interrupt.
    fn conditions(&self) -> Conditions;

    /// Stalls or page requests, if the unit's driver offers them here.
    ///
    /// *Context.* Interrupt.
    fn recoverable_faults(&self) -> RecoverableFaults {
        RecoverableFaults::Absent
    }

    /// Its remapping of interrupts, if that is on.
    ///
    /// *Context.* Interrupt.
    fn interrupts(&self) -> Option<&dyn RemapInterrupts> {
        None
    }

    /// Has the unit raise an interrupt whenever there is something for [`Iommu::next_fault`], or no
    /// longer with `None`. The handler that serves it reads until there is nothing left, and so does the
    /// code that has switched it on: earlier faults may raise none. The unit's own message is not
    /// remapped. Where it is that of an MSI capability (AMD-Vi with destinations of 8 bits), the caller has
    /// written `target` there before. Units that have lines for it (SMMUv3) raise them from the start;
    /// errors of theirs are dealt with by the same call.
    ///
    /// *Context.* Atomic.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] if it has no such message, or cannot send it there.
    fn signal_faults(&self, _target: Option<InterruptTarget>) -> Result<(), IommuError> {
        Err(IommuError::Unsupported)
    }

    /// Says that `stream` has a TLB of its own, to be used from its next attachment on: each invalidation
    /// is sent to it as well. ATS has to be on at the device by then, and to stay on while it is attached.
    /// No unit checks where accesses go that the device has translated: so `all` gives leave.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] if the unit or its driver has no part for them.
    fn use_device_tlb(
        &self,
        _stream: StreamId,
        _tlb: DeviceTlb,
        _all: AllMemory,
    ) -> Result<(), IommuError> {
        Err(IommuError::Unsupported)
    }

    /// State of the unit, for a kernel that takes it over while devices are at work. No stream is moved, and
    /// nothing is mapped or unmapped behind it, from this call on.
    ///
    /// *Context.* Task: walks the tables of all domains.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] if the driver hands nothing over, or not what is attached.
    fn handover(&self) -> Result<UnitHandover, IommuError> {
        Err(IommuError::Unsupported)
    }

    /// Waits for all commands, and takes none from then on ([`IommuError::Stopped`]): the unit goes on as it
    /// is, also when this value is dropped, and is the next kernel's.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// If the hardware does not complete: it is this kernel's as before.
    fn leave(&self) -> Result<(), IommuError> {
        Err(IommuError::Unsupported)
    }

    /// The domain of a former kernel to which `stream` is attached: once, for the caller that opens it.
    ///
    /// *Context.* Task.
    fn adopted(self: Arc<Self>, _stream: StreamId) -> Option<AdoptedDomain> {
        None
    }

    /// Number of commands of each kind that the unit was given since it was taken over: hands the
    /// kind's name in the specification, and the number, to `each`.
    ///
    /// *Context.* Interrupt.
    fn commands(&self, each: &mut dyn FnMut(&'static str, u64));
}

#[cfg(test)]
mod tests;
