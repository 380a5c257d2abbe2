//! What an IOMMU can do and what it insists on, as the invalidation plan needs to know it.
//!
//! *Context.* Interrupt: everything here is a value.

use super::{Depth, Span};
use crate::addr::PageSize;

/// How ranges can be invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RangeForm {
    /// Not at all: by page, or by context.
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

/// Whether single pages can be invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageForm {
    /// By context or globally only.
    Absent,
    /// One command a granule, or a larger page, which drops whatever translates its first address.
    Granule,
    /// The same, but a command need not drop the translation of a page that is larger than the one
    /// it names (Intel VT-d, section 6.5.2.3: the address mask covers the page).
    Whole,
}

/// Whether leaf-only invalidation exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeafOnly {
    /// Every invalidation drops walk caches too.
    Absent,
    /// Walk caches can be kept.
    Present,
}

/// Whether the walker snoops CPU caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Walker {
    /// It sees what CPUs wrote.
    Coherent,
    /// It reads memory: lines have to be cleaned.
    NonCoherent,
}

/// Which entries the caches hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caching {
    /// Only entries that translate: a map owes no invalidation.
    PresentOnly,
    /// Also entries that do not (caching mode, page-table line caches): a map owes one.
    NotPresentToo,
}

/// Whether table writes may sit in a buffer of the IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteBuffer {
    /// No.
    Absent,
    /// It must be flushed before a new mapping is used.
    MustFlush,
}

/// What the hardware offers, as discovered.
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
    /// What is cached.
    pub caching: Caching,
    /// Write buffer.
    pub write_buffer: WriteBuffer,
}

impl Capabilities {
    /// Of hardware with pages of `granule` that takes a command a page, with a form for leaves alone, that
    /// walks coherently and keeps what is present only.
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

    /// How deep an invalidation of `span` reaches.
    #[inline]
    pub(super) fn depth(&self, span: Span) -> Depth {
        match self.leaf_only {
            LeafOnly::Absent => Depth::AllLevels,
            LeafOnly::Present => span.depth,
        }
    }
}

/// How walk caches are invalidated when a table has left the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WalkFlush {
    /// The addresses that the table translated, page by page or as a range.
    ByAddress,
    /// The whole context, once.
    ByContext,
}

/// Which form of command is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Preference {
    /// Whichever takes the fewest commands.
    Fewest,
    /// One command a granule.
    ByPage,
    /// By range.
    ByRange,
    /// The whole context.
    ByContext,
}

/// What experience with a given implementation adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quirks {
    /// Walk caches.
    pub walk_flush: WalkFlush,
    /// Form of command.
    pub preference: Preference,
    /// With more page or range commands than this in one plan, one for the context instead.
    pub context_above: u64,
    /// How many times each invalidation with its sync has to be issued (an erratum asks for two).
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
