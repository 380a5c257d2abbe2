//! The kernel's unit with one of its duties left out, as a library with a bug would.

use portolan::platform::{AllMemory, DmaMemory};
use std::fmt;
use std::sync::Arc;

use portolan::addr::{Iova, IovaRange, PageSize, StreamId, TableId};
use portolan::inval::{Flushed, Gather, SyncError, WrongTable};
use portolan::iommu::{
    Attach, AttachError, Domain, DomainError, DomainUnmapError, FaultEvent, Iommu, IommuError,
    ReservedRegion, SpaceClaim,
};
use portolan::table::{Access, TableUnmapError, Translation};
use portolan_linux::vfio::UserUnit;
use portolan_linux::{CallCounts, UserDomain};

/// Part of the work that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOut {
    /// No call is left out.
    Nothing,
    /// Calls that unmap are left out.
    Unmap,
    /// Syncs do nothing: calls that unmap are made late, with the next unmap.
    Sync,
    /// Blocked devices are not moved.
    Block,
    /// Devices may write memory that they may only read.
    Permission,
}

impl LeftOut {
    /// Omissions that scenarios have to notice, with the scenarios that at least do.
    pub const NOTICED: [(Self, &[&str]); 4] = [
        (Self::Unmap, &["unmapped-access-faults", "stale-until-sync", "ranges-are-whole"]),
        (Self::Sync, &["unmapped-access-faults", "stale-until-sync", "long-debts-are-paid"]),
        (Self::Block, &["attach-block-attach"]),
        (Self::Permission, &["read-only-refuses-writes"]),
    ];
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing",
            Self::Unmap => "the unmap",
            Self::Sync => "the sync of an unmap",
            Self::Block => "the blocking of a device",
            Self::Permission => "the refusal of writes",
        })
    }
}

/// The kernel's unit.
pub struct Unit {
    kernel: Arc<UserUnit>,
    left_out: LeftOut,
}

impl Unit {
    pub(super) fn new(kernel: Arc<UserUnit>, left_out: LeftOut) -> Self {
        Self { kernel, left_out }
    }

    pub(super) fn domain(&self) -> Arc<Space> {
        Arc::new(Space { kernel: self.kernel.domain(), left_out: self.left_out })
    }

    pub(super) fn counts(&self) -> CallCounts {
        self.kernel.counts()
    }
}

impl Iommu for Unit {
    fn block(&self, stream: StreamId) -> Result<(), AttachError> {
        match self.left_out {
            LeftOut::Block => Ok(()),
            _ => self.kernel.block(stream),
        }
    }

    fn pass_through(&self, stream: StreamId, all: AllMemory) -> Result<(), AttachError> {
        self.kernel.pass_through(stream, all)
    }

    fn reserved(&self, stream: StreamId, each: &mut dyn FnMut(ReservedRegion)) {
        self.kernel.reserved(stream, each);
    }

    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        self.kernel.next_fault()
    }
}

impl Attach<Space> for Unit {
    fn attach(&self, stream: StreamId, space: &Arc<Space>) -> Result<(), AttachError> {
        self.kernel.attach(stream, &space.kernel)
    }
}

/// An address space of the kernel's.
pub struct Space {
    kernel: Arc<UserDomain>,
    left_out: LeftOut,
}

impl Space {
    fn access(&self, access: Access) -> Access {
        match self.left_out {
            LeftOut::Permission => access.union(Access::WRITE),
            _ => access,
        }
    }
}

impl Domain for Space {
    fn id(&self) -> TableId {
        self.kernel.id()
    }

    fn claim(&self) -> &SpaceClaim {
        self.kernel.claim()
    }

    fn input_range(&self) -> IovaRange {
        self.kernel.input_range()
    }

    fn granule(&self) -> PageSize {
        self.kernel.granule()
    }

    fn grants(&self, access: Access) -> Option<Access> {
        self.kernel.grants(access)
    }

    fn map_sg(
        &self,
        iova: Iova,
        pieces: &[DmaMemory],
        access: Access,
        owed: &mut Gather,
    ) -> Result<IovaRange, DomainError> {
        self.kernel.map_sg(iova, pieces, self.access(access), owed)
    }

    fn absorb(&self, into: &mut Gather, from: &mut Gather) -> Result<(), WrongTable> {
        self.kernel.absorb(into, from)
    }

    fn map(
        &self,
        iova: Iova,
        memory: DmaMemory,
        access: Access,
        owed: &mut Gather,
    ) -> Result<IovaRange, DomainError> {
        self.kernel.map(iova, memory, self.access(access), owed)
    }

    fn unmap(&self, range: IovaRange, owed: &mut Gather) -> Result<(), DomainUnmapError> {
        if self.left_out != LeftOut::Unmap {
            return self.kernel.unmap(range, owed);
        }
        let owes = owed.owe_unmap(self.id(), range, self.granule());
        Ok(owes.map_err(TableUnmapError::from)?)
    }

    fn sync(&self, owed: &mut Gather) -> Result<Flushed, SyncError<IommuError>> {
        if self.left_out != LeftOut::Sync {
            return self.kernel.sync(owed);
        }
        Ok(owed.paid(self.id())?)
    }

    fn is_due(&self, owed: &Gather) -> bool {
        self.kernel.is_due(owed)
    }

    fn translate(&self, iova: Iova) -> Option<Translation> {
        self.kernel.translate(iova)
    }

    fn shadowing(&self) -> portolan::iommu::Shadowing {
        self.kernel.shadowing()
    }
}
