//! The steps that pay a debt, as data, without any vendor's encoding.
//!
//! A driver turns each [`Step`] into its own commands or register writes; the model and the tests
//! read them as they are.
//!
//! *Context.* Interrupt: everything here is a value.

use crate::addr::{InvalTag, Iova, IovaRange, PageSize};

/// Levels that an invalidation reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Depth {
    /// Leaf translations only: no table left the tree, so walk caches may stay.
    LeafOnly,
    /// Leaf translations and walk caches.
    AllLevels,
}

/// A run of addresses as a range command encodes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Run {
    /// `2^lg2_pages` granules; `start` is aligned to the run's size.
    PowerOfTwo {
        /// First address.
        start: Iova,
        /// Exponent of the number of granules: the address mask.
        lg2_pages: u8,
    },
    /// `num * 2^scale` granules.
    NumScale {
        /// First address.
        start: Iova,
        /// Multiplier, at least 1.
        num: u8,
        /// Exponent of the unit, in granules.
        scale: u8,
    },
}

impl Run {
    /// The addresses that the run covers, given the granule; clipped at the top of the space.
    #[inline]
    pub fn range(self, granule: PageSize) -> IovaRange {
        let (start, pages) = match self {
            Self::PowerOfTwo { start, lg2_pages } => (start, 1u128 << lg2_pages.min(64)),
            Self::NumScale { start, num, scale } => {
                (start, u128::from(num.max(1)) << scale.min(64))
            }
        };
        let last = u128::from(start.get()) + (pages << granule.lg2()) - 1;
        let last = Iova::new(u64::try_from(last).unwrap_or(u64::MAX));
        IovaRange::new(start, last).unwrap_or(IovaRange::page(start, granule))
    }
}

/// One invalidation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Forget the translations of the page of `size` at `iova`.
    Page {
        /// Tag of the translations.
        context: InvalTag,
        /// First address of the page.
        iova: Iova,
        /// Granule of the command.
        size: PageSize,
        /// Levels that it reaches.
        depth: Depth,
    },
    /// Forget the translations of all addresses of a run.
    Range {
        /// Tag of the translations.
        context: InvalTag,
        /// Addresses that it covers.
        run: Run,
        /// The granule that the run counts in.
        granule: PageSize,
        /// Levels that it reaches.
        depth: Depth,
    },
    /// Forget all translations of a context, walk caches included.
    Context {
        /// Tag of the translations.
        context: InvalTag,
    },
    /// Forget all translations of all contexts.
    Global,
    /// Forget the cached configuration of everything that points at a context.
    Configuration {
        /// The context.
        context: InvalTag,
    },
}

/// One step of a plan, to be carried out in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Drain the IOMMU's internal write buffer, so that a walker sees earlier table writes.
    FlushWriteBuffer,
    /// Queue an invalidation.
    Invalidate(Command),
    /// Wait until all queued invalidations have completed.
    Sync,
}
