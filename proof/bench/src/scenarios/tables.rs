//! Mapping and unmapping in page tables.

use super::{LINUX, Make, Sample, Scenario, Target};
use crate::linux::{LinuxDomainKind, tables as linux};
use crate::lists::MapList;
use crate::plain::{StoreList, StoreRun, WalkStore};
use crate::rig::{
    BLOCK, BY_CONTEXT, LIST_PAGES, PAGE, QUIRKS, SINGLES, Span, Timed, contiguous, scattered,
};
use crate::singles::{Single, Singles, threads};
use crate::spans::OfSpan;
use crate::tables_of_others::{MultiArch, Paging};
use crate::workload::Cache;

pub(super) fn all() -> Vec<Scenario> {
    let mut all = lists();
    all.extend(runs());
    all.extend(single_pages());
    all.extend(unmaps());
    all.extend(by_threads());
    all
}

/// `aarch64-paging` and `page_table_multiarch`, which have no IOMMU.
const PAGING: &str = "aarch64-paging";
const MULTIARCH: &str = "page_table_multiarch";

const MIB_32: u64 = 32 << 20;

fn lists() -> Vec<Scenario> {
    let hot = Scenario {
        name: "map_sg",
        what: "map_sg of 8192 scattered 4 KiB pages through an erased domain, 16 leaf tables allocated",
        size_bytes: LIST_PAGES * PAGE,
        unit: "ns per page",
        cache: Cache::Hot,
        threads: 1,
        sample: Sample::Pass,
        peers: &[
            (LINUX, || {
                Ok(Box::new(linux::LinuxMapList::new(LinuxDomainKind::SNOOPS, Cache::Hot)?))
            }),
            (PAGING, || Ok(Box::new(Paging::list()?))),
            (MULTIARCH, || Ok(Box::new(MultiArch::list()?))),
        ],
        targets: &[Target::Linux(12.0), Target::Limit(2.5)],
        limit: "stores from the list",
        make: || Ok(Box::new(MapList::new(Cache::Hot)?)),
        make_limit: || Ok(Box::new(StoreList::new(scattered(), Cache::Hot))),
    };
    let cold = Scenario {
        name: "map_sg_cold",
        what: "map_sg of 8192 scattered 4 KiB pages, list and tables not in the caches",
        cache: Cache::Cold,
        peers: &[(LINUX, || {
            Ok(Box::new(linux::LinuxMapList::new(LinuxDomainKind::SNOOPS, Cache::Cold)?))
        })],
        targets: &[Target::Limit(2.5)],
        make: || Ok(Box::new(MapList::new(Cache::Cold)?)),
        make_limit: || Ok(Box::new(StoreList::new(scattered(), Cache::Cold))),
        ..hot
    };
    let written = Scenario {
        name: "map_sg_noncoherent",
        what: "map_sg of 8192 scattered 4 KiB pages, cache lines of tables written back",
        peers: &[(LINUX, || {
            Ok(Box::new(linux::LinuxMapList::new(LinuxDomainKind::NON_COHERENT, Cache::Hot)?))
        })],
        targets: &[Target::Linux(10.0)],
        limit: "stores from the list, lines written back",
        make: || Ok(Box::new(MapList::written_back()?)),
        make_limit: || Ok(Box::new(StoreList::written_back(scattered()))),
        ..hot
    };
    let contiguous = Scenario {
        name: "map_sg_contiguous",
        what: "map_sg of 8192 pages of contiguous memory off alignment, in order, 17 leaf tables allocated",
        peers: &[(LINUX, || {
            Ok(Box::new(linux::LinuxMapList::contiguous(LinuxDomainKind::SNOOPS)?))
        })],
        targets: &[Target::Linux(7.0)],
        make: || Ok(Box::new(MapList::contiguous()?)),
        make_limit: || Ok(Box::new(StoreList::new(contiguous(), Cache::Hot))),
        ..hot
    };
    vec![hot, cold, written, contiguous]
}

const TWO_MIB: Span = Span { count: 1, bytes: BLOCK, shift: 0 };
const MANY_MIB: Span = Span { count: 1, bytes: MIB_32, shift: 0 };

fn runs() -> Vec<Scenario> {
    let short = Scenario {
        name: "map_2m_as_pages",
        what: "map of contiguous 2 MiB off alignment: 512 pages, leaf table allocated",
        size_bytes: BLOCK,
        unit: "ns per page",
        cache: Cache::Hot,
        threads: 1,
        sample: Sample::Pass,
        peers: &[
            (LINUX, || {
                Ok(Box::new(linux::LinuxOfSpan::new(TWO_MIB, Timed::Map, LinuxDomainKind::SNOOPS)?))
            }),
            (PAGING, || Ok(Box::new(Paging::run(TWO_MIB)?))),
            (MULTIARCH, || Ok(Box::new(MultiArch::run(TWO_MIB)?))),
        ],
        targets: &[],
        limit: "stores in order",
        make: || Ok(Box::new(OfSpan::new(TWO_MIB, Timed::Map, QUIRKS)?)),
        make_limit: || Ok(Box::new(StoreRun::new((BLOCK / PAGE) as usize))),
    };
    let long = Scenario {
        name: "map_32m_as_pages",
        what: "map of contiguous 32 MiB off alignment: 8192 pages, 16 leaf tables allocated",
        size_bytes: MIB_32,
        peers: &[(LINUX, || {
            Ok(Box::new(linux::LinuxOfSpan::new(MANY_MIB, Timed::Map, LinuxDomainKind::SNOOPS)?))
        })],
        targets: &[Target::Linux(7.0)],
        make: || Ok(Box::new(OfSpan::new(MANY_MIB, Timed::Map, QUIRKS)?)),
        make_limit: || Ok(Box::new(StoreRun::new((MIB_32 / PAGE) as usize))),
        ..short
    };
    vec![short, long]
}

/// Passes of operations on single pages against the walk that each cannot do without.
fn walks(name: &'static str, what: &'static str, make: Make) -> Scenario {
    Scenario {
        name,
        what,
        size_bytes: PAGE,
        unit: "ns per operation",
        cache: Cache::Hot,
        threads: 1,
        sample: Sample::Pass,
        peers: &[],
        targets: &[],
        limit: "bare walk and store",
        make,
        make_limit: || Ok(Box::new(WalkStore::new(3, SINGLES as usize, 2))),
    }
}

fn single_pages() -> Vec<Scenario> {
    use linux::Layer;
    let map = Scenario {
        peers: &[
            (LINUX, || Ok(Box::new(linux::LinuxSingles::new(Layer::Tables, Timed::Map)?))),
            ("linux-6.12 iommu_map", || {
                Ok(Box::new(linux::LinuxSingles::new(Layer::Domain, Timed::Map)?))
            }),
            (PAGING, || Ok(Box::new(Paging::pages()?))),
            (MULTIARCH, || Ok(Box::new(MultiArch::pages()?))),
        ],
        targets: &[Target::Linux(1.5)],
        ..walks("map_page", "map of one page with a new gather, neighbours mapped", || {
            Ok(Box::new(Singles::new(Single::Map)?))
        })
    };
    let reused = walks(
        "map_page_reused",
        "map of one page into a gather that is kept, neighbours mapped",
        || Ok(Box::new(Singles::new(Single::MapIntoOne)?)),
    );
    let alone =
        walks("unmap_page_alone", "unmap of one page with a new gather, not planned", || {
            Ok(Box::new(Singles::new(Single::UnmapAlone)?))
        });
    let planned = walks(
        "unmap_page_planned",
        "unmap of one page with a new gather, planned, commands counted",
        || Ok(Box::new(Singles::new(Single::UnmapPlanned)?)),
    );
    let unmap = Scenario {
        peers: &[
            (LINUX, || Ok(Box::new(linux::LinuxSingles::new(Layer::Tables, Timed::Unmap)?))),
            ("linux-6.12 iommu_unmap", || {
                Ok(Box::new(linux::LinuxSingles::new(Layer::Domain, Timed::Unmap)?))
            }),
        ],
        targets: &[Target::Linux(1.2)],
        ..walks(
            "unmap_page",
            "unmap of one page with a new gather, planned, commands built",
            || Ok(Box::new(Singles::new(Single::Unmap)?)),
        )
    };
    let cycle = walks(
        "page_cycle",
        "map, plan, unmap, sync through a queue that builds commands, reclaim",
        || Ok(Box::new(Singles::new(Single::Cycle)?)),
    );
    vec![map, reused, alone, planned, unmap, cycle]
}

fn by_threads() -> Vec<Scenario> {
    let far = Scenario {
        name: "pages_2",
        what: "map and unmap of single pages by two threads, commands built, ranges 64 MiB apart",
        threads: 2,
        unit: "ns of a thread's processor time per pair",
        // 1.9 times the work of one.
        targets: &[Target::Limit(2.0 / 1.9)],
        limit: "the same by one thread",
        make: || Ok(Box::new(threads(2, 32 * BLOCK)?)),
        make_limit: || Ok(Box::new(threads(1, 0)?)),
        ..walks("", "", || Err(crate::Failure::NotPrepared))
    };
    let near = Scenario {
        name: "pages_2_near",
        what: "the same, ranges of neighbouring leaf tables, whose counts share a cache line",
        targets: &[],
        make: || Ok(Box::new(threads(2, BLOCK)?)),
        ..far
    };
    vec![far, near]
}

const FULL_TABLES: Span = Span { count: 64, bytes: BLOCK, shift: 0 };
const LONG: Span = Span { count: 4, bytes: MIB_32, shift: 0 };
const SHIFTED: Span = Span { count: 4, bytes: 16 << 20, shift: PAGE };

fn unmaps() -> Vec<Scenario> {
    let full = Scenario {
        size_bytes: BLOCK,
        peers: &[(LINUX, || {
            let kind = LinuxDomainKind::BY_CONTEXT;
            Ok(Box::new(linux::LinuxOfSpan::new(FULL_TABLES, Timed::Unmap, kind)?))
        })],
        targets: &[Target::Linux(2.0)],
        make_limit: || Ok(Box::new(WalkStore::new(2, FULL_TABLES.count as usize, 1))),
        ..walks(
            "unmap_2m",
            "unmap of the 512 pages of a full leaf table by context, commands built, table freed",
            || Ok(Box::new(OfSpan::new(FULL_TABLES, Timed::Unmap, BY_CONTEXT)?)),
        )
    };
    let long = Scenario {
        name: "unmap_32m",
        what: "unmap of the 8192 pages of 16 full leaf tables by context, commands built, tables freed",
        size_bytes: MIB_32,
        peers: &[(LINUX, || {
            Ok(Box::new(linux::LinuxOfSpan::new(LONG, Timed::Unmap, LinuxDomainKind::BY_CONTEXT)?))
        })],
        targets: &[Target::Linux(1.5)],
        make: || Ok(Box::new(OfSpan::new(LONG, Timed::Unmap, BY_CONTEXT)?)),
        make_limit: || Ok(Box::new(WalkStore::new(2, 16 * LONG.count as usize, 1))),
        ..full
    };
    let shifted = Scenario {
        name: "unmap_16m_shifted",
        what: "unmap of 4096 pages from a page after a 2 MiB boundary on, commands built, tables freed",
        size_bytes: SHIFTED.bytes,
        peers: &[(LINUX, || {
            Ok(Box::new(linux::LinuxOfSpan::new(SHIFTED, Timed::Unmap, LinuxDomainKind::SNOOPS)?))
        })],
        targets: &[Target::Linux(4.0)],
        limit: "stores in order",
        make: || Ok(Box::new(OfSpan::new(SHIFTED, Timed::Unmap, QUIRKS)?)),
        make_limit: || Ok(Box::new(StoreRun::of_span(SHIFTED))),
        ..full
    };
    vec![full, long, shifted]
}
