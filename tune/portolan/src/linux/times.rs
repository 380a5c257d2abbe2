//! Time of Linux's own path: its tables, addresses, queues, commands and waits.
//!
//! Prices of the profile times the counts. Not counted: waits for a lock that another CPU holds.

use portolan_sim::profile::{Event, MissingPrice, Price, Profile};
use serde::Serialize;

/// Largest number of pages that the caches of addresses serve: sizes are rounded up to a power of two below
/// `IOVA_RANGE_CACHE_MAX_SIZE` of `drivers/iommu/iova.c`, 6.
pub(crate) const MOST_CACHED_PAGES: u64 = 32;

/// Microseconds of the machine, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LinuxTimes {
    /// Time of everything.
    pub total: f64,
    /// The least and the most that it may be, where prices are ranges.
    pub range: [f64; 2],
    /// Tables, mapping; the pieces of a list beyond the first with their unmaps.
    pub map: f64,
    /// Tables, unmapping.
    pub unmap: f64,
    /// Device addresses, from the caches of CPUs or from the tree.
    pub addresses: f64,
    /// Flush queues.
    pub queues: f64,
    /// Commands.
    pub commands: f64,
    /// Waits, exits to a hypervisor included.
    pub waits: f64,
}

/// Numbers of things that are paid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PricedCounts {
    pub(super) maps: u64,
    pub(super) more_pieces: u64,
    pub(super) unmaps: u64,
    pub(super) cached: u64,
    pub(super) tree: u64,
    pub(super) queued: u64,
    pub(super) ranges: u64,
    pub(super) contexts: u64,
    pub(super) syncs: u64,
}

impl PricedCounts {
    /// Notes a map of `pages` pages in `pieces` pieces; its addresses are given back some time.
    pub(super) fn map(&mut self, pages: u64, pieces: u64) {
        self.maps += 1;
        self.more_pieces += pieces.saturating_sub(1);
        if pages <= MOST_CACHED_PAGES { self.cached += 1 } else { self.tree += 1 }
    }

    /// Notes a flush of a whole domain, and the wait for it.
    pub(super) fn flush(&mut self) {
        self.contexts += 1;
        self.syncs += 1;
    }

    /// Number of commands.
    pub(super) fn commands(&self) -> u64 {
        self.ranges + self.contexts
    }

    /// Counts of this and `other`, each pair joined by `join`.
    fn with(self, other: Self, join: fn(u64, u64) -> u64) -> Self {
        Self {
            maps: join(self.maps, other.maps),
            more_pieces: join(self.more_pieces, other.more_pieces),
            unmaps: join(self.unmaps, other.unmaps),
            cached: join(self.cached, other.cached),
            tree: join(self.tree, other.tree),
            queued: join(self.queued, other.queued),
            ranges: join(self.ranges, other.ranges),
            contexts: join(self.contexts, other.contexts),
            syncs: join(self.syncs, other.syncs),
        }
    }

    /// Sum of both.
    pub(super) fn plus(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    /// Counts since they were `before`.
    pub(super) fn since(self, before: Self) -> Self {
        self.with(before, u64::saturating_sub)
    }
}

/// Prices of Linux's path.
#[derive(Clone, Debug)]
pub(super) struct LinuxPrices {
    map: Price,
    unmap: Price,
    piece: Price,
    cached: Price,
    tree: Price,
    queue: Price,
    range: Option<Price>,
    context: Price,
    sync: Price,
    exit: Option<Price>,
}

impl LinuxPrices {
    /// Prices of `profile`.
    ///
    /// # Errors
    /// [`MissingPrice`]: most machines have none for Linux.
    pub(super) fn of(profile: &Profile) -> Result<Self, MissingPrice> {
        let price = |event| profile.quote(event).cloned();
        Ok(Self {
            map: price(Event::LinuxMap)?,
            unmap: price(Event::LinuxUnmap)?,
            piece: price(Event::LinuxPiece)?,
            cached: price(Event::IovaCached)?,
            tree: price(Event::IovaTree)?,
            queue: price(Event::FlushQueueEntry)?,
            range: price(Event::CmdRange).ok(),
            context: price(Event::CmdContext)?,
            sync: price(Event::Sync)?,
            exit: price(Event::Exit).ok(),
        })
    }

    /// Time of `work`, in microseconds.
    pub(super) fn times(&self, work: &PricedCounts) -> LinuxTimes {
        let at = |end: fn(&Price) -> f64| {
            let us = |count: u64, price: &Price| count as f64 * end(price) / 1000.0;
            let maybe = |count, price: &Option<Price>| price.as_ref().map_or(0.0, |p| us(count, p));
            let mut times = LinuxTimes {
                map: us(work.maps, &self.map) + us(work.more_pieces, &self.piece),
                unmap: us(work.unmaps, &self.unmap),
                addresses: us(work.cached, &self.cached) + us(work.tree, &self.tree),
                queues: us(work.queued, &self.queue),
                commands: maybe(work.ranges, &self.range) + us(work.contexts, &self.context),
                waits: us(work.syncs, &self.sync) + maybe(work.syncs, &self.exit),
                ..LinuxTimes::default()
            };
            let tables = times.map + times.unmap + times.addresses + times.queues;
            times.total = tables + times.commands + times.waits;
            times
        };
        LinuxTimes {
            range: [Price::low, Price::high].map(|end| at(end).total),
            ..at(|price| price.ns)
        }
    }
}
