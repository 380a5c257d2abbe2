//! State of a unit, for a kernel that takes it over while devices are at work.
//!
//! A driver makes a [`UnitHandover`] of its books, and another instance of it, in the next kernel,
//! compares it with the registers and the tables before it goes on with them.
//!
//! *Context.* Interrupt: values.

use super::{BoundDomain, DeviceTlb, InterruptSource, InterruptTarget, Requester};
use crate::addr::{InvalTag, IovaRange, PhysAddr, StreamId};
use crate::table::format::DirtyTracking;
use alloc::vec::Vec;

/// Tables of a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainTables {
    /// Physical address of the root.
    pub root: PhysAddr,
    /// Number of levels.
    pub levels: u32,
    /// Width of the addresses that are translated, in bits.
    pub input_lg2: u32,
    /// Width of the addresses that they lead to, in bits.
    pub output_lg2: u32,
    /// Marks of the pages that devices write, which their entries have room for.
    pub dirty: DirtyTracking,
    /// Number of table pages.
    pub pages: u64,
    /// Addresses that are mapped, in order and as few ranges as possible.
    pub mapped: Vec<IovaRange>,
}

/// Domain of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainHandover {
    /// Identifier of its translations, as its driver has it: the stage is in it.
    pub tag: InvalTag,
    /// Its tables.
    pub tables: DomainTables,
}

/// Target of a stream's accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoverTarget {
    /// All memory, untranslated.
    Everything,
    /// The domain with that identifier.
    Domain(InvalTag),
    /// No memory: its interrupts alone go through.
    Interrupts,
}

/// Attachment of a stream, or of one PASID of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamHandover {
    /// The stream.
    pub requester: Requester,
    /// Target of its accesses.
    pub target: HandoverTarget,
    /// Its TLB, if it has one that is used.
    pub tlb: Option<DeviceTlb>,
}

/// Addresses that a stream is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedHandover {
    /// The stream.
    pub stream: StreamId,
    /// The addresses.
    pub range: IovaRange,
}

/// Interrupt that a source may raise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptHandover {
    /// Its source.
    pub source: InterruptSource,
    /// Index of its entry in the interrupt table of the unit, or of the source's stream.
    pub index: u16,
    /// Interrupt that arrives.
    pub target: InterruptTarget,
}

/// Memory of a unit that the hardware uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryHandover {
    /// Its first address.
    pub at: PhysAddr,
    /// Its length in bytes.
    pub bytes: u64,
}

/// State of a unit.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct UnitHandover {
    /// Registers that say what the unit can do, as its driver chooses them.
    pub features: [u64; 4],
    /// Register that names the table of streams.
    pub root: u64,
    /// Shape of that table, as its driver writes it.
    pub shape: u64,
    /// Register that names the interrupt table; zero without one, or where streams have tables of their own.
    pub interrupt_root: u64,
    /// Command queue, and logs.
    pub queues: Vec<MemoryHandover>,
    /// Domains, in order of their identifiers, which differ.
    pub domains: Vec<DomainHandover>,
    /// Attachments, in order of streams and PASIDs, which differ.
    pub streams: Vec<StreamHandover>,
    /// Reserved addresses of attached streams.
    pub reserved: Vec<ReservedHandover>,
    /// Interrupts, in order of sources and indices, which differ.
    pub interrupts: Vec<InterruptHandover>,
}

impl UnitHandover {
    /// The domain with the identifier `tag`.
    pub fn domain(&self, tag: InvalTag) -> Option<&DomainHandover> {
        let at = self.domains.binary_search_by_key(&tag, |domain| domain.tag).ok()?;
        self.domains.get(at)
    }
}

/// Domain of a former kernel, for an address space.
pub struct AdoptedDomain {
    /// The domain and its unit.
    pub bound: BoundDomain,
    /// Addresses that devices may be using.
    pub in_use: Vec<IovaRange>,
}
