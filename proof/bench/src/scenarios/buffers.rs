//! Addresses and bounce slots.

use portolan_sim::swiotlb::Strategy;

use super::{LINUX, Make, Sample, Scenario, Target};
use crate::addresses::{
    Batches, GiveMany, Large, Nothing, Pairs, of_cpu, of_free_list, of_linux, of_tree, two,
};
use crate::bounce::{Copies, Memcpy};
use crate::linux::buffers as linux;
use crate::mappings::PoolSlots;
use crate::plain::{Atomic, contended};
use crate::rig::PAGE;
use crate::workload::Cache;

pub(super) fn all() -> Vec<Scenario> {
    let mut all = addresses();
    all.extend(slots());
    all.extend(copies());
    all
}

/// Crates for intervals, which have no CPUs.
const TREE: &str = "vm-allocator";
const FREE_LIST: &str = "range-alloc";

/// Passes of pairs of calls for a page each, by one thread with warm caches.
pub(super) fn passes(name: &'static str, what: &'static str, make: Make) -> Scenario {
    Scenario {
        name,
        what,
        size_bytes: PAGE,
        unit: "ns per pair",
        cache: Cache::Hot,
        threads: 1,
        sample: Sample::Pass,
        peers: &[],
        targets: &[],
        limit: "an uncontended atomic addition",
        make,
        make_limit: || Ok(Box::new(Atomic::new())),
    }
}

/// Scenario with two threads.
pub(super) fn by_two(name: &'static str, what: &'static str, make: Make) -> Scenario {
    Scenario {
        threads: 2,
        unit: "ns of a thread's processor time per pair",
        limit: "a contended atomic addition",
        make_limit: || Ok(Box::new(contended())),
        ..passes(name, what, make)
    }
}

fn addresses() -> Vec<Scenario> {
    let page = Scenario {
        peers: &[
            (LINUX, || Ok(Box::new(Pairs(of_linux()?(0))))),
            (TREE, || Ok(Box::new(Pairs(of_tree()?)))),
            (FREE_LIST, || Ok(Box::new(Pairs(of_free_list())))),
        ],
        targets: &[Target::Linux(1.6)],
        ..passes(
            "iova_page",
            "addresses of one page taken and given back, through the CPU's cache",
            || Ok(Box::new(Pairs(of_cpu()?(0)))),
        )
    };
    let both = Scenario {
        peers: &[(LINUX, || Ok(Box::new(two(of_linux()?))))],
        targets: &[Target::Linux(1.5)],
        ..by_two(
            "iova_page_2",
            "the same through the caches of two CPUs, by two threads at once",
            || Ok(Box::new(two(of_cpu()?))),
        )
    };
    let few = Scenario {
        peers: &[(LINUX, || Ok(Box::new(Batches::new(of_linux()?(0), 32))))],
        targets: &[Target::Linux(1.0)],
        ..passes(
            "iova_page_32",
            "32 addresses of one page taken, and given back in that order",
            || Ok(Box::new(Batches::new(of_cpu()?(0), 32))),
        )
    };
    let batches = Scenario {
        peers: &[(LINUX, || Ok(Box::new(Batches::new(of_linux()?(0), 128))))],
        ..passes(
            "iova_page_128",
            "128 addresses of one page taken, and given back in that order",
            || Ok(Box::new(Batches::new(of_cpu()?(0), 128))),
        )
    };
    let many = Scenario {
        peers: &[(LINUX, || Ok(Box::new(GiveMany::new(of_linux()?(0), 100_000))))],
        ..passes(
            "iova_give_many",
            "100,000 addresses of one page given back in random order",
            || Ok(Box::new(GiveMany::new(of_cpu()?(0), 100_000))),
        )
    };
    let large = Scenario {
        name: "iova_large",
        what: "one of 4096 ranges of 64 to 512 pages given back and another taken, CPU's cache",
        size_bytes: 512 * PAGE,
        sample: Sample::Call,
        peers: &[
            (LINUX, || Ok(Box::new(Large::new(of_linux()?(0))?))),
            (TREE, || Ok(Box::new(Large::new(of_tree()?)?))),
            (FREE_LIST, || Ok(Box::new(Large::new(of_free_list())?))),
        ],
        targets: &[Target::LinuxMean(5.0), Target::LinuxP99(50.0)],
        limit: "two readings of the clock",
        make: || Ok(Box::new(Large::new(of_cpu()?(0))?)),
        make_limit: || Ok(Box::new(Large::new(Nothing)?)),
        ..page
    };
    vec![page, both, few, batches, many, given_by_the_million(), large]
}

/// Addresses given back that caches hold many times over.
fn given_by_the_million() -> Scenario {
    Scenario {
        peers: &[(LINUX, || Ok(Box::new(GiveMany::new(of_linux()?(0), 1_000_000))))],
        cache: Cache::Cold,
        ..passes(
            "iova_give_million",
            "a million addresses of one page given back in random order",
            || Ok(Box::new(GiveMany::new(of_cpu()?(0), 1_000_000))),
        )
    }
}

fn slots() -> Vec<Scenario> {
    let few = Scenario {
        size_bytes: PAGE / 2,
        peers: &[(LINUX, || Ok(Box::new(linux::Slots::new(5)?)))],
        targets: &[Target::Linux(2.0)],
        ..passes("slot_5", "a bounce slot taken and given back, 5 % of the others in use", || {
            Ok(Box::new(PoolSlots::new(Strategy::LockFree, 5)?))
        })
    };
    let many = Scenario {
        name: "slot_90",
        what: "a bounce slot taken and given back, 90 % of the others in use",
        peers: &[(LINUX, || Ok(Box::new(linux::Slots::new(90)?)))],
        make: || Ok(Box::new(PoolSlots::new(Strategy::LockFree, 90)?)),
        ..few
    };
    let both = Scenario {
        size_bytes: PAGE / 2,
        peers: &[(LINUX, || Ok(Box::new(linux::two(5)?)))],
        targets: &[Target::Linux(5.0)],
        ..by_two(
            "slot_5_2",
            "a bounce slot taken and given back, 5 % of the others in use, by two threads at once",
            || Ok(Box::new(PoolSlots::two(5)?)),
        )
    };
    vec![few, many, both]
}

fn copies() -> Vec<Scenario> {
    let page = Scenario {
        unit: "ns per buffer",
        peers: &[(LINUX, || Ok(Box::new(linux::LinuxCopies::new(4 << 10, 5)?)))],
        targets: &[Target::Linux(3.0), Target::Limit(1.6)],
        limit: "a hot memcpy",
        make_limit: || Ok(Box::new(Memcpy::new(4 << 10))),
        ..passes(
            "bounce_copy_4k",
            "4 KiB copied to bounce slots for a device that reads them, 5 % of the others in use",
            || Ok(Box::new(Copies::new(4 << 10, 5)?)),
        )
    };
    let many = Scenario {
        name: "bounce_copy_64k",
        what: "64 KiB copied to bounce slots for a device that reads them, 5 % of the others in use",
        size_bytes: 64 << 10,
        peers: &[(LINUX, || Ok(Box::new(linux::LinuxCopies::new(64 << 10, 5)?)))],
        make: || Ok(Box::new(Copies::new(64 << 10, 5)?)),
        make_limit: || Ok(Box::new(Memcpy::new(64 << 10))),
        ..page
    };
    vec![page, many]
}
