//! Steps of the protocol of unmap, invalidate and free, as the library makes them.
//!
//! `docs/protocol.md` describes the protocol; `portolan-protocol` replays the steps of a run against it. Each step is
//! told just after the access that makes it, but for those that give something away ([`ProtocolStep::Send`],
//! [`ProtocolStep::GiveBack`], [`ProtocolStep::Free`]), which are told just before. A receiver that is not there costs
//! nothing: the steps are values of what the library has at hand, and reach an empty function that is in line.
//!
//! *Context.* Interrupt: values.

use crate::addr::{IovaRange, PhysAddr};

/// Name of a debt that is on its way: no two have the same at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DebtName(usize);

impl DebtName {
    /// Of a debt that stays in its place.
    #[inline(always)]
    pub(crate) fn of<D>(owed: &D) -> Self {
        Self(core::ptr::from_ref(owed).addr())
    }
}

/// Part that walk caches have in a debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkCaches {
    /// They may keep what they have.
    Keep,
    /// They forget tables on the way to the addresses.
    Forget,
}

/// A step of one address space.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum ProtocolStep {
    /// A map has found a table for some of its addresses.
    Find {
        /// The table that has their entries.
        table: PhysAddr,
        /// The addresses.
        range: IovaRange,
    },
    /// A table hangs in the tree.
    Link {
        /// The table.
        table: PhysAddr,
        /// All addresses that it spans.
        spans: IovaRange,
    },
    /// Entries of a map can be read.
    Write {
        /// The table that has them.
        table: PhysAddr,
        /// The addresses that they translate.
        range: IovaRange,
    },
    /// A table hangs in place of a leaf that translated all that it spans, with the same translations.
    Split {
        /// The table.
        table: PhysAddr,
        /// All addresses that it spans.
        spans: IovaRange,
    },
    /// Entries are empty, and their addresses owed.
    Clear {
        /// The addresses that they translated.
        range: IovaRange,
    },
    /// All addresses of empty tables are taken, so that no map gets one.
    Take {
        /// The addresses.
        range: IovaRange,
    },
    /// A table is owed: it hangs in the tree no more, or never did.
    TakeOut {
        /// The table.
        table: PhysAddr,
    },
    /// A part of a debt is handed to the unit.
    Send {
        /// The debt's name, until it is settled or has failed.
        debt: DebtName,
        /// Addresses that are owed.
        range: IovaRange,
        /// Part of the walk caches.
        walk_caches: WalkCaches,
    },
    /// The unit, and devices that keep translations, have carried a debt out.
    Settle {
        /// The debt.
        debt: DebtName,
    },
    /// The unit has failed to carry a debt out.
    Fail {
        /// The debt.
        debt: DebtName,
    },
    /// The page of a table that was owed goes back to its memory.
    Free {
        /// The page.
        table: PhysAddr,
    },
    /// Addresses go back to their allocator.
    GiveBack {
        /// The addresses.
        range: IovaRange,
    },
    /// All tables go back to their memory: no unit has the address space.
    End,
}
