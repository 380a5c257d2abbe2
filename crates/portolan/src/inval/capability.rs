//! Capabilities and demands of an IOMMU, for the invalidation plan.
//!
//! *Context.* Interrupt: everything here is a value.

use super::{Depth, Span};
use crate::addr::PageSize;

/// Form of the command that invalidates a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RangeForm {
    /// None: by page, or by context.
    Absent,
    /// A power of two of granules, aligned to its size, up to `2^max_lg2_pages`.
    PowerOfTwo {
        /// Largest address mask.
        max_lg2_pages: u8,
    },
    /// `num * 2^scale` granules from any granule, with `num` up to `max_num`.
    NumScale {
        /// Largest multiplier (32 where the field is five bits and counts from one).
        max_num: u8,
        /// Largest exponent.
        max_scale: u8,
    },
}

/// Form of the command that invalidates a single page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageForm {
    /// None: by context or globally only.
    Absent,
    /// One command a granule, or a larger page, which drops all translations of its first address.
    Granule,
    /// The same, but a command need not drop the translation of a page that is larger than the one
    /// it names (Intel VT-d, section 6.5.2.3: the address mask covers the page).
    Whole,
}

/// Presence of leaf-only invalidation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeafOnly {
    /// Every invalidation drops walk caches too.
    Absent,
    /// Walk caches can be kept.
    Present,
}

/// Coherency of the walker with CPU caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Walker {
    /// It sees stores of CPUs.
    Coherent,
    /// It reads memory: lines have to be cleaned.
    NonCoherent,
}

/// Kinds of entries that the caches hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caching {
    /// Only entries that translate: a map owes no invalidation.
    PresentOnly,
    /// Also entries that do not (caching mode, page-table line caches): a map owes one.
    NotPresentToo,
}

/// Presence of a buffer in the IOMMU that holds writes to tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteBuffer {
    /// There is none.
    Absent,
    /// It must be flushed before a new mapping is used.
    MustFlush,
}

/// Capabilities of the hardware, as discovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Capabilities {
    /// Smallest page, which page and range commands count in.
    pub granule: PageSize,
    /// By page.
    pub page: PageForm,
    /// By range.
    pub range: RangeForm,
    /// Leaf-only.
    pub leaf_only: LeafOnly,
    /// Coherency of table walks.
    pub walker: Walker,
    /// Entries that are cached.
    pub caching: Caching,
    /// Write buffer.
    pub write_buffer: WriteBuffer,
}

impl Capabilities {
    /// Of hardware with pages of `granule` that takes a command a page, with a form for leaves
    /// alone, that walks coherently and keeps present entries only.
    pub const fn new(granule: PageSize) -> Self {
        Self {
            granule,
            page: PageForm::Granule,
            range: RangeForm::Absent,
            leaf_only: LeafOnly::Present,
            walker: Walker::Coherent,
            caching: Caching::PresentOnly,
            write_buffer: WriteBuffer::Absent,
        }
    }

    /// Levels that an invalidation of `span` reaches.
    #[inline]
    pub(super) fn depth(&self, span: Span) -> Depth {
        match self.leaf_only {
            LeafOnly::Absent => Depth::AllLevels,
            LeafOnly::Present => span.depth,
        }
    }
}

/// Way in which walk caches are invalidated when a table has left the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WalkFlush {
    /// The addresses that the table translated, page by page or as a range.
    ByAddress,
    /// The whole context, once.
    ByContext,
}

/// Preferred form of command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Preference {
    /// The form that takes the fewest commands.
    Fewest,
    /// One command a granule.
    ByPage,
    /// By range.
    ByRange,
    /// The whole context.
    ByContext,
}

/// Quirks of an implementation, known from experience.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quirks {
    /// Walk caches.
    pub walk_flush: WalkFlush,
    /// Form of command.
    pub preference: Preference,
    /// With more page or range commands than this in one plan, one for the context instead.
    pub context_above: u64,
    /// Number of times that each invalidation with its sync has to be issued (an erratum asks for
    /// two).
    pub repeat: u8,
}

impl Default for Quirks {
    fn default() -> Self {
        Self {
            walk_flush: WalkFlush::ByAddress,
            preference: Preference::Fewest,
            context_above: 1 << 16,
            repeat: 1,
        }
    }
}
