//! Wall time of look-ups in a device's IOTLB: alone, and by two threads while a third invalidates.
//!
//! The translations are pages of 4 KiB that lie side by side in IOVAs and nowhere else, so that none is joined
//! with its neighbour; they are looked up in random order. Peers: `vm_memory`'s own map, bare and behind the lock
//! that its documentation proposes, and `rangemap`, on which that is built.

use std::fmt::Write as _;
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use anyhow::{Context, Result};
use portolan::addr::{Iova, IovaRange, PhysAddr};
use portolan_cli::display;
use portolan_cli::progress::Progress;
use portolan_vmm::{FrontendAddr, IotlbOptions, MemoryRegion, VhostIotlb};
use rangemap::RangeMap;
use serde::Serialize;
use vm_memory::iommu::{Iommu, Iotlb};
use vm_memory::{GuestAddress, Permissions};

use crate::spread::Spread;

/// The name of this benchmark.
pub const NAME: &str = "iotlb";
const PAGE: u64 = 4096;
/// The first page.
const FIRST: u64 = 0x4_0000;
const ENTRIES: [u64; 3] = [64, 4_096, 262_144];
/// Look-ups of a sample, and samples.
const LOOKUPS: usize = 20_000;
const SAMPLES: usize = 101;
const SAMPLES_SHORT: usize = 3;
/// Number of neighbours of which one is invalidated and entered again while the others are looked up.
const CHANGED: u64 = 16;
const READERS: usize = 2;

/// The document that `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct IotlbReport {
    /// One row for each peer, number of translations and number of threads.
    pub benchmarks: Vec<IotlbRow>,
}

/// Look-ups in one map.
#[derive(Clone, Debug, Serialize)]
pub struct IotlbRow {
    /// `iotlb`.
    pub name: &'static str,
    /// Owner of the map: this library, or another crate.
    pub who: &'static str,
    /// Translations in it.
    pub entries: u64,
    /// Threads that look up.
    pub readers: usize,
    /// Unit of the figures.
    pub unit: &'static str,
    /// Time of a look-up.
    pub lookup: Spread,
    /// Invalidations a second during look-ups, each with an update that enters its page again.
    pub invalidations_per_s: Option<f64>,
}

/// A map of translations.
trait Map: Sync {
    /// Address that the page is translated to.
    fn find(&self, page: u64) -> Option<u64>;
    fn forget(&self, page: u64);
    fn put(&self, page: u64);
}

/// Address that the page is translated to: no two neighbours to neighbours.
fn target(page: u64) -> u64 {
    (page ^ 1).wrapping_mul(3) % (1 << 24) * PAGE
}

fn range(page: u64) -> Option<IovaRange> {
    IovaRange::from_len(Iova::new(page * PAGE), PAGE)
}

impl Map for VhostIotlb {
    fn find(&self, page: u64) -> Option<u64> {
        let at = GuestAddress(page * PAGE + 8);
        let mut found = self.translate(at, 8, Permissions::Read).ok()?;
        found.next().map(|piece| piece.base.0)
    }

    fn forget(&self, page: u64) {
        let _ = range(page).map(|range| self.invalidate(range));
    }

    fn put(&self, page: u64) {
        let target = FrontendAddr::new(target(page));
        let _ = range(page).map(|range| self.update(range, target, Permissions::Read));
    }
}

/// `vm_memory`'s, behind a lock.
struct Locked(RwLock<Iotlb>);

impl Map for Locked {
    fn find(&self, page: u64) -> Option<u64> {
        let at = GuestAddress(page * PAGE + 8);
        let guard = self.0.read().ok()?;
        let mut found = Iotlb::lookup(guard, at, 8, Permissions::Read).ok()?;
        found.next().map(|piece| piece.base.0)
    }

    fn forget(&self, page: u64) {
        if let Ok(mut iotlb) = self.0.write() {
            iotlb.invalidate_mapping(GuestAddress(page * PAGE), PAGE as usize);
        }
    }

    fn put(&self, page: u64) {
        if let Ok(mut iotlb) = self.0.write() {
            put(&mut iotlb, page);
        }
    }
}

fn put(iotlb: &mut Iotlb, page: u64) {
    let (from, to) = (GuestAddress(page * PAGE), GuestAddress(target(page)));
    // It has no way to fail.
    let _ = iotlb.set_mapping(from, to, PAGE as usize, Permissions::Read);
}

/// Map of `vm_memory`; no thread changes it.
struct VmMemoryMap(Iotlb);

impl Map for VmMemoryMap {
    fn find(&self, page: u64) -> Option<u64> {
        let at = GuestAddress(page * PAGE + 8);
        let mut found = Iotlb::lookup(&self.0, at, 8, Permissions::Read).ok()?;
        found.next().map(|piece| piece.base.0)
    }

    fn forget(&self, _page: u64) {}
    fn put(&self, _page: u64) {}
}

/// Map of `rangemap`; no thread changes it.
struct Ranges(RangeMap<u64, u64>);

impl Map for Ranges {
    fn find(&self, page: u64) -> Option<u64> {
        let at = page * PAGE + 8;
        let (range, target) = self.0.get_key_value(&at)?;
        Some(target + (at - range.start))
    }

    fn forget(&self, _page: u64) {}
    fn put(&self, _page: u64) {}
}

fn pages(entries: u64) -> impl Iterator<Item = u64> {
    FIRST..FIRST + entries
}

fn ours(entries: u64) -> Result<VhostIotlb> {
    let mut options = IotlbOptions::default();
    options.capacity = NonZeroUsize::new(entries as usize).context("no entries")?;
    let iotlb = VhostIotlb::new(options);
    iotlb.set_memory(&[MemoryRegion {
        guest: PhysAddr::new(0),
        frontend: FrontendAddr::new(0),
        bytes: 1 << 40,
    }])?;
    pages(entries).for_each(|page| iotlb.put(page));
    Ok(iotlb)
}

fn bare(entries: u64) -> Iotlb {
    let mut iotlb = Iotlb::new();
    pages(entries).for_each(|page| put(&mut iotlb, page));
    iotlb
}

fn ranges(entries: u64) -> RangeMap<u64, u64> {
    let pages = pages(entries).map(|page| (page * PAGE..page * PAGE + PAGE, target(page)));
    pages.collect()
}

/// Some pages in random order, without those that change during the measurement.
fn order(entries: u64, seed: u64) -> Vec<u64> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let page = |_| FIRST + rng.u64(..entries / CHANGED) * CHANGED;
    let first: Vec<u64> = (0..LOOKUPS).map(page).collect();
    first.iter().map(|page| page + rng.u64(1..CHANGED)).collect()
}

/// Nanoseconds of a look-up.
fn sample(map: &dyn Map, order: &[u64]) -> f64 {
    let start = Instant::now();
    for page in order {
        black_box(map.find(black_box(*page)));
    }
    start.elapsed().as_nanos() as f64 / order.len() as f64
}

fn row(who: &'static str, entries: u64, readers: usize, mut samples: Vec<f64>) -> Result<IotlbRow> {
    Ok(IotlbRow {
        name: NAME,
        who,
        entries,
        readers,
        unit: "ns per look-up",
        lookup: Spread::of(&mut samples).context("no samples")?,
        invalidations_per_s: None,
    })
}

/// Measures all maps alternately, so that disturbances affect them equally.
fn alone(entries: u64, samples: usize) -> Result<Vec<IotlbRow>> {
    let maps: [(&str, Box<dyn Map>); 4] = [
        ("portolan-vmm", Box::new(ours(entries)?)),
        ("vm-memory in an RwLock", Box::new(Locked(RwLock::new(bare(entries))))),
        ("vm-memory, no lock", Box::new(VmMemoryMap(bare(entries)))),
        ("rangemap, no lock", Box::new(Ranges(ranges(entries)))),
    ];
    let mut found = maps.each_ref().map(|_| Vec::new());
    for number in 0..=samples {
        let order = order(entries, number as u64);
        for ((_, map), found) in maps.iter().zip(&mut found) {
            let ns = sample(&**map, &order);
            // The first one warms up.
            if number != 0 {
                found.push(ns);
            }
        }
    }
    let rows = maps.iter().zip(found);
    rows.map(|((who, _), found)| row(who, entries, 1, found)).collect()
}

/// Measures look-ups by two threads while this one changes the neighbouring pages.
fn beside_changes(
    who: &'static str,
    map: &dyn Map,
    entries: u64,
    samples: usize,
) -> Result<IotlbRow> {
    let running = AtomicU64::new(READERS as u64);
    let start = Instant::now();
    let (found, changes) = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS as u64)
            .map(|reader| {
                let running = &running;
                scope.spawn(move || {
                    let numbers = 0..samples as u64;
                    let seeds = numbers.map(|number| number * 2 + reader);
                    let found: Vec<f64> =
                        seeds.map(|seed| sample(map, &order(entries, seed))).collect();
                    running.fetch_sub(1, Relaxed);
                    found
                })
            })
            .collect();
        let mut changes = 0u64;
        while running.load(Relaxed) != 0 {
            let page = FIRST + changes * CHANGED % entries;
            map.forget(page);
            map.put(page);
            changes += 1;
        }
        let found = readers.into_iter().filter_map(|reader| reader.join().ok());
        (found.flatten().collect::<Vec<f64>>(), changes)
    });
    let mut row = row(who, entries, READERS, found)?;
    row.invalidations_per_s = Some(changes as f64 / start.elapsed().as_secs_f64());
    Ok(row)
}

/// Measures; a few samples only if `short`.
///
/// # Errors
/// If there is no sample, which cannot be.
pub fn measure(extent: crate::measure::Extent) -> Result<IotlbReport> {
    let samples = match extent {
        crate::measure::Extent::Short => SAMPLES_SHORT,
        crate::measure::Extent::Whole => SAMPLES,
    };
    let bar = Progress::new(ENTRIES.len() as u64 * 2);
    let mut benchmarks = Vec::new();
    for entries in ENTRIES {
        benchmarks.extend(alone(entries, samples)?);
        bar.add(1);
    }
    for entries in ENTRIES {
        let locked = Locked(RwLock::new(bare(entries)));
        let ours = ours(entries)?;
        benchmarks.push(beside_changes("portolan-vmm", &ours, entries, samples)?);
        let who = "vm-memory in an RwLock";
        benchmarks.push(beside_changes(who, &locked, entries, samples)?);
        bar.add(1);
    }
    Ok(IotlbReport { benchmarks })
}

/// The report for people, in lines of `columns`.
pub fn text(report: &IotlbReport, columns: usize) -> String {
    let header = [
        ("map", 0),
        ("entries", 0),
        ("readers", 0),
        ("median ns", 0),
        ("p10 ns", 1),
        ("p90 ns", 2),
        ("changes/s", 0),
    ];
    let ns = |ns: f64| format!("{ns:.1}");
    let rows = report.benchmarks.iter().map(|row| {
        let numbers = [row.lookup.median, row.lookup.p10, row.lookup.p90].map(ns);
        let changes = row
            .invalidations_per_s
            .map_or_else(String::new, |per_s| display::grouped(per_s as u64));
        let first = [row.who.to_owned(), display::grouped(row.entries), row.readers.to_string()];
        [first.to_vec(), numbers.to_vec(), vec![changes]].concat()
    });
    let mut out = display::table(&header, &[1, 2, 3, 4, 5, 6], rows.collect(), columns);
    let _ = writeln!(
        out,
        "\nwall time of one look-up; changes: invalidations by a third thread, each with an update."
    );
    display::wrapped(&out, columns)
}
