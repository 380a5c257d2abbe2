//! The scenarios. Of tables: Armv8 stage 1, 39-bit input addresses, 4 KiB granule, tables on the heap.
//!
//! Each starts from the state that its description names and comes back to it through the library
//! itself: unmap, plan, sync through a queue that does nothing, reclaim.

use portolan::dma::{CopyWhen, Policy};
use portolan_model::swiotlb::Strategy;

use crate::addresses::{Large, Pairs, TwoThreads, of_cpu, of_nothing, of_peer, of_stack};
use crate::copied::Handed;
use crate::full::{FULL_TABLES, Finish, Full};
use crate::lists::{MapList, MapRun};
use crate::mappings::{Buffers, PoolSlots};
use crate::plain::{StoreList, StoreRun, WalkStore};
use crate::rig::{BLOCK, LIST_PAGES, PAGE, scattered};
use crate::singles::{SINGLES, Single, Singles};
use crate::{Cache, Failure, Workload};

/// Figures from another machine, to be printed apart from what is measured here.
#[derive(Clone, Copy, Debug)]
pub struct Recorded {
    /// What was measured.
    pub peer: &'static str,
    /// Nanoseconds per unit.
    pub ns: f64,
    /// Instructions per unit, where they were counted.
    pub instructions: Option<f64>,
}

/// What a sample is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sample {
    /// The mean of a pass of many calls.
    Pass,
    /// A single call, so that the slowest are seen; with the time that reading the clock takes.
    Call,
}

type Make = fn() -> Result<Box<dyn Workload>, Failure>;

/// One benchmark.
pub struct Scenario {
    /// Name, as given on the command line.
    pub name: &'static str,
    /// What is measured.
    pub what: &'static str,
    /// Bytes that one call maps or unmaps.
    pub size_bytes: u64,
    /// What a figure is per.
    pub unit: &'static str,
    /// State of the caches.
    pub cache: Cache,
    /// Threads at work.
    pub threads: u32,
    /// What is timed.
    pub sample: Sample,
    /// Others, measured in the same run.
    pub peers: &'static [(&'static str, Make)],
    /// Of a comparable operation, recorded on another machine.
    pub recorded: Option<Recorded>,
    /// What the plain loop does.
    pub limit: &'static str,
    /// Makes the operation.
    pub make: Make,
    /// Makes the plain loop.
    pub make_limit: Make,
}

const fn linux(ns: f64, instructions: Option<f64>) -> Option<Recorded> {
    Some(Recorded {
        peer: "linux-6.12 (user space)",
        ns,
        instructions,
    })
}

/// Passes of calls for a page each, by one thread with warm caches, against a stack.
fn passes(name: &'static str, what: &'static str, make: Make) -> Scenario {
    Scenario {
        name,
        what,
        size_bytes: PAGE,
        unit: "ns per pair",
        cache: Cache::Hot,
        threads: 1,
        sample: Sample::Pass,
        peers: &[],
        recorded: None,
        limit: "pop and push of a stack",
        make,
        make_limit: || Ok(Box::new(Pairs::new(of_stack()?))),
    }
}

/// All scenarios.
pub fn all() -> Vec<Scenario> {
    let mut all = lists();
    all.extend(single_pages());
    all.extend(full_tables());
    all.extend(addresses());
    all.extend(mappings());
    all.extend(slots());
    all
}

fn lists() -> Vec<Scenario> {
    let hot = Scenario {
        size_bytes: LIST_PAGES * PAGE,
        unit: "ns per page",
        recorded: linux(48.0, Some(487.0)),
        limit: "stores from the list",
        make_limit: || Ok(Box::new(StoreList::new(scattered(), Cache::Hot))),
        ..passes(
            "map_sg",
            "map_sg of 8192 scattered 4 KiB pages through an erased domain, 16 leaf tables allocated",
            || Ok(Box::new(MapList::new(Cache::Hot)?)),
        )
    };
    let cold = Scenario {
        name: "map_sg_cold",
        what: "map_sg of 8192 scattered 4 KiB pages, list and tables not in the caches",
        cache: Cache::Cold,
        recorded: None,
        make: || Ok(Box::new(MapList::new(Cache::Cold)?)),
        make_limit: || Ok(Box::new(StoreList::new(scattered(), Cache::Cold))),
        ..hot
    };
    let run = Scenario {
        name: "map_2m_as_pages",
        what: "map of contiguous 2 MiB off alignment: 512 pages, leaf table allocated",
        size_bytes: BLOCK,
        recorded: linux(7.4, None),
        limit: "stores in order",
        make: || Ok(Box::new(MapRun::new()?)),
        make_limit: || Ok(Box::new(StoreRun::new((BLOCK / PAGE) as usize))),
        ..hot
    };
    vec![hot, cold, run]
}

/// Passes of operations against the walk that each cannot do without.
fn walks(name: &'static str, what: &'static str, make: Make) -> Scenario {
    Scenario {
        unit: "ns per operation",
        limit: "bare walk and store",
        make_limit: || Ok(Box::new(WalkStore::new(3, SINGLES as usize, 2))),
        ..passes(name, what, make)
    }
}

fn single_pages() -> Vec<Scenario> {
    let map = Scenario {
        recorded: linux(54.0, None),
        ..walks(
            "map_page",
            "map of one page with a new gather, neighbours mapped",
            || Ok(Box::new(Singles::new(Single::Map)?)),
        )
    };
    let reused = walks(
        "map_page_reused",
        "map of one page into a gather that is kept, neighbours mapped",
        || Ok(Box::new(Singles::new(Single::MapIntoOne)?)),
    );
    let alone = walks(
        "unmap_page_alone",
        "unmap of one page with a new gather, not planned",
        || Ok(Box::new(Singles::new(Single::Unmap)?)),
    );
    let unmap = Scenario {
        recorded: linux(58.0, None),
        ..walks(
            "unmap_page",
            "unmap of one page with a new gather, planned, commands counted",
            || Ok(Box::new(Singles::new(Single::UnmapCounted)?)),
        )
    };
    let steps = walks(
        "unmap_page_steps",
        "unmap of one page with a new gather, planned, every step taken",
        || Ok(Box::new(Singles::new(Single::UnmapSteps)?)),
    );
    let cycle = walks(
        "page_cycle",
        "map, plan, unmap, sync through a queue that does nothing, reclaim",
        || Ok(Box::new(Singles::new(Single::Cycle)?)),
    );
    vec![map, reused, alone, unmap, steps, cycle]
}

fn full_tables() -> Vec<Scenario> {
    let unmap = Scenario {
        size_bytes: BLOCK,
        recorded: linux(138.0, None),
        make_limit: || Ok(Box::new(WalkStore::new(2, FULL_TABLES as usize, 1))),
        ..walks(
            "unmap_2m",
            "unmap of 512 pages that fill a leaf table, planned, commands counted",
            || Ok(Box::new(Full::new(Finish::Counted)?)),
        )
    };
    let steps = Scenario {
        name: "unmap_2m_steps",
        what: "unmap of 512 pages that fill a leaf table, planned, every step taken",
        recorded: None,
        make: || Ok(Box::new(Full::new(Finish::Steps)?)),
        ..unmap
    };
    let reclaim = Scenario {
        name: "unmap_2m_reclaim",
        what: "unmap of 512 pages that fill a leaf table, new gather, sync through a queue that does \
               nothing, and reclaim",
        recorded: None,
        make: || Ok(Box::new(Full::new(Finish::Reclaimed)?)),
        ..unmap
    };
    vec![unmap, steps, reclaim]
}

/// Name of the peer of the allocator.
const LINUX_LIKE: &str = "the design of Linux 6.12, rewritten here";

fn addresses() -> Vec<Scenario> {
    let page = Scenario {
        peers: &[(LINUX_LIKE, || Ok(Box::new(Pairs::new(of_peer()?))))],
        ..passes(
            "iova_page",
            "addresses of one page taken and given back, through the CPU's cache",
            || Ok(Box::new(Pairs::new(of_cpu()?))),
        )
    };
    let two = Scenario {
        name: "iova_page_2",
        what: "the same through the caches of two CPUs, by two threads at once",
        threads: 2,
        peers: &[(LINUX_LIKE, || Ok(Box::new(TwoThreads::new(of_peer()?))))],
        make: || Ok(Box::new(TwoThreads::new(of_cpu()?))),
        make_limit: || Ok(Box::new(TwoThreads::new(of_stack()?))),
        ..page
    };
    let large = Scenario {
        name: "iova_large",
        what: "one of 4096 ranges of 64 to 512 pages given back and another taken, CPU's cache",
        size_bytes: 512 * PAGE,
        sample: Sample::Call,
        peers: &[(LINUX_LIKE, || Ok(Box::new(Large::new(of_peer()?)?)))],
        limit: "two readings of the clock",
        make: || Ok(Box::new(Large::new(of_cpu()?)?)),
        make_limit: || Ok(Box::new(Large::new(of_nothing()?)?)),
        ..page
    };
    vec![page, two, large]
}

fn mappings() -> Vec<Scenario> {
    let lazy = passes(
        "dma_4k_lazy",
        "a 4 KiB buffer mapped and unmapped, lazy: addresses, tables, queue; hardware free",
        || Ok(Box::new(Buffers::new(Policy::Lazy)?)),
    );
    let strict = passes(
        "dma_4k_strict",
        "the same, strict: each unmap planned and synced; hardware free",
        || Ok(Box::new(Buffers::new(Policy::Strict)?)),
    );
    let owned = passes(
        "dma_4k_owned",
        "the same, strict, as a mapping that owns its buffer",
        || Ok(Box::new(Handed::new(CopyWhen::Needed)?)),
    );
    let copied = passes(
        "dma_4k_copied",
        "the same, copied to a pool that stays mapped: no invalidation",
        || Ok(Box::new(Handed::new(CopyWhen::UpTo(PAGE))?)),
    );
    vec![lazy, strict, owned, copied]
}

fn slots() -> Vec<Scenario> {
    let few = Scenario {
        size_bytes: PAGE / 2,
        peers: &[
            ("one-lock", || {
                Ok(Box::new(PoolSlots::new(Strategy::OneLock, 5)?))
            }),
            ("area-locks", || {
                Ok(Box::new(PoolSlots::new(Strategy::AreaLocks, 5)?))
            }),
            ("area-bitmaps", || {
                Ok(Box::new(PoolSlots::new(Strategy::AreaBitmaps, 5)?))
            }),
            ("recent-first", || {
                Ok(Box::new(PoolSlots::new(Strategy::RecentFirst, 5)?))
            }),
        ],
        recorded: linux(75.0, None),
        ..passes(
            "slot_5",
            "a bounce slot taken and given back, 5 % of the others in use",
            || Ok(Box::new(PoolSlots::new(Strategy::LockFree, 5)?)),
        )
    };
    let many = Scenario {
        name: "slot_90",
        what: "a bounce slot taken and given back, 90 % of the others in use",
        peers: &[
            ("one-lock", || {
                Ok(Box::new(PoolSlots::new(Strategy::OneLock, 90)?))
            }),
            ("recent-first", || {
                Ok(Box::new(PoolSlots::new(Strategy::RecentFirst, 90)?))
            }),
        ],
        make: || Ok(Box::new(PoolSlots::new(Strategy::LockFree, 90)?)),
        recorded: None,
        ..few
    };
    vec![few, many]
}
