//! Context of an endpoint: the tables that it is attached to, by the guest's structures.

use std::sync::atomic::AtomicU64;

use portolan::addr::{InvalTag, Iova, PhysAddr};
use portolan::table::format::{DirtyTracking, Format, span_lg2};
use vm_memory::Permissions;

use super::hardware::GuestEntry;
use super::walk::{FaultKind, Page, Read, walk};
use crate::iotlb::Translation;

/// Reason why a context is not taken: to the guest, its structure is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContextError {
    /// The root is not aligned to its size.
    #[error("a root at {root} is not aligned to its {bytes:#x} bytes")]
    Misaligned {
        /// Address of the root.
        root: PhysAddr,
        /// Its size, in bytes.
        bytes: u64,
    },
    /// The root's address is wider than the format's output addresses.
    #[error("a root at {root} is where no table can be")]
    Root {
        /// Address of the root.
        root: PhysAddr,
    },
    /// The unit would have to set bits in the guest's tables.
    #[error("accessed and dirty bits are not set")]
    Dirty,
}

/// Context that an endpoint's accesses go through.
#[derive(Debug)]
pub struct Context {
    kind: ContextKind,
    /// The guest's own words of it, for the host's IOMMU.
    entry: Vec<u64>,
}

/// Contents of a context.
#[derive(Debug)]
enum ContextKind {
    Blocked,
    PassThrough,
    Tables { tables: Box<dyn Walk>, tag: InvalTag },
}

/// Tables of some format.
trait Walk: std::fmt::Debug + Send {
    fn walk(
        &self,
        iova: Iova,
        access: Permissions,
        read: Read<'_>,
    ) -> Result<Translation, FaultKind>;
}

#[derive(Debug)]
struct Tables<F> {
    format: F,
    root: PhysAddr,
}

impl<F: Format<Word = AtomicU64>> Walk for Tables<F> {
    fn walk(
        &self,
        iova: Iova,
        access: Permissions,
        read: Read<'_>,
    ) -> Result<Translation, FaultKind> {
        let found = walk(&self.format, self.root, iova, access, read);
        found.map(|Page { iova, target, access }| Translation { iova, target, access })
    }
}

impl Context {
    /// Every access is refused.
    pub fn blocked() -> Self {
        Self::of(ContextKind::Blocked)
    }

    /// Addresses are the guest's own.
    pub fn pass_through() -> Self {
        Self::of(ContextKind::PassThrough)
    }

    fn of(kind: ContextKind) -> Self {
        Self { kind, entry: Vec::new() }
    }

    /// The same with the words of the guest's entry, for a device that is passed through
    /// ([`Hardware`](super::Hardware)): VT-d's PASID entry, SMMUv3's stream table entry, AMD-Vi's device table entry.
    #[must_use]
    pub fn with_entry(self, entry: &[u64]) -> Self {
        Self { entry: entry.to_vec(), ..self }
    }

    /// Addresses are translated by the tables at `root`, which is an address of the guest. The guest's invalidations
    /// name them by `tag`: a domain id, an ASID or a VMID.
    ///
    /// # Errors
    /// See [`ContextError`]. A walk finds out if there is memory at `root`.
    pub fn tables<F: Format<Word = AtomicU64>>(
        format: F,
        root: PhysAddr,
        tag: InvalTag,
    ) -> Result<Self, ContextError> {
        if format.dirty_tracking() == DirtyTracking::Hardware {
            return Err(ContextError::Dirty);
        }
        let entries_lg2 = format.input_lg2() - span_lg2::<F>(format.levels() - 1);
        let bytes = 8 << entries_lg2;
        if root.get() & (bytes - 1) != 0 {
            return Err(ContextError::Misaligned { root, bytes });
        }
        if root.get() >> format.output_lg2() != 0 {
            return Err(ContextError::Root { root });
        }
        let tables = Box::new(Tables { format, root });
        Ok(Self::of(ContextKind::Tables { tables, tag }))
    }

    pub(super) fn tag(&self) -> Option<InvalTag> {
        match &self.kind {
            ContextKind::Blocked | ContextKind::PassThrough => None,
            ContextKind::Tables { tag, .. } => Some(*tag),
        }
    }

    /// The guest's entry, unless the context is of tables and has no words of it.
    pub(super) fn entry(&self) -> Option<GuestEntry<'_>> {
        match &self.kind {
            ContextKind::Blocked => Some(GuestEntry::Blocked),
            ContextKind::PassThrough => Some(GuestEntry::PassThrough),
            ContextKind::Tables { .. } if self.entry.is_empty() => None,
            ContextKind::Tables { .. } => Some(GuestEntry::Tables(&self.entry)),
        }
    }

    pub(super) fn find(
        &self,
        iova: Iova,
        access: Permissions,
        read: Read<'_>,
    ) -> Result<Translation, FaultKind> {
        match &self.kind {
            ContextKind::Blocked => Err(FaultKind::Blocked),
            ContextKind::PassThrough => Ok(Translation::SAME),
            ContextKind::Tables { tables, .. } => tables.walk(iova, access, read),
        }
    }
}
