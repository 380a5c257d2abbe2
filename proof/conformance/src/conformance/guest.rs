//! A guest's own tables over a second stage that brings its memory in on demand.
//!
//! The guest maps its device's addresses in tables in its own memory, by plain stores. Of that memory, tables
//! included, the second stage maps the pages that a device has asked for and that were not taken back. The
//! pages that the second stage maps for each fault show its cause: a table that could not be fetched, the
//! page that the tables lead to, or the guest's own tables.

use crate::promise::{promised, simulated};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan::addr::{CpuId, Iova, IovaRange, PageSize, PhysAddr};
use portolan::demand::{
    FirstStage, Frames as Pieces, Guest, Ioas, IoasOptions, Nested, Pager, PopulateError,
    RegionOptions, Residency, Unreached,
};
use portolan::iopf::{Group, PageRequest, Response};
use portolan::platform::TableMem;
use portolan::table::Access;

use super::Host as _;
use super::asking::{FaultSource, Wrote};
use super::basic::{PAGE, RW};
use super::scene::{Cpus, Scene, Still};
use super::stores::{Frames, KernelMemory, Layout, Tables};
use super::{Machine, Outcome, Run, Verdict, expect, fail, must};

/// The first stage that every domain of a machine carries.
pub struct GuestStage {
    /// Its tables.
    pub layout: Layout,
    /// The memory of the machine.
    pub memory: Arc<dyn TableMem<AtomicU64>>,
    /// The root: its address, and its address for the guest. It is never taken back.
    pub root: (PhysAddr, Iova),
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The guest's memory, by its own addresses.
struct Ram {
    machine: KernelMemory,
    /// Its addresses.
    range: IovaRange,
    /// The guest's pages, and their memory.
    pages: Mutex<BTreeMap<u64, u64>>,
    /// Next unused page of the guest.
    next: AtomicU64,
    /// Pages that devices were given since the last look.
    given: Mutex<Vec<u64>>,
}

impl Ram {
    /// Address of the memory behind the guest's address `at`, if that is its memory.
    fn place(&self, at: u64) -> Option<u64> {
        let (page, inside) = (at & !(PAGE - 1), at & (PAGE - 1));
        let mut pages = locked(&self.pages);
        let there = pages.get(&page).copied();
        let mut new = || self.machine.page().filter(|_| self.range.contains(Iova::new(at)));
        let place = there.or_else(&mut new)?;
        pages.insert(page, place);
        Some(place + inside)
    }
}

impl Frames for Arc<Ram> {
    fn page(&self) -> Option<u64> {
        Some(self.next.fetch_add(PAGE, Ordering::Relaxed))
    }

    fn load(&self, at: u64) -> Option<u64> {
        self.machine.load(self.place(at)?)
    }

    fn store(&self, at: u64, value: u64) -> Option<()> {
        self.machine.store(self.place(at)?, value)
    }
}

/// The host, which populates the guest's memory for devices.
struct HostPager(Arc<Ram>);

impl Pager for HostPager {
    fn populate(&self, range: IovaRange, _: Access, out: &mut Pieces) -> Result<(), PopulateError> {
        let iova = range.start();
        let none = PopulateError::OutOfMemory { iova };
        locked(&self.0.given).push(iova.get());
        let place = self.0.place(iova.get()).ok_or(none)?;
        out.push(promised(PhysAddr::new(place), PAGE)).map_err(|_| none)
    }

    /// Does nothing: pages never move here.
    fn pin(&self, range: IovaRange, access: Access, out: &mut Pieces) -> Result<(), PopulateError> {
        self.populate(range, access, out)
    }

    fn unpin(&self, _: &Unreached) {}
}

/// The guest.
struct Os {
    tables: Tables<Arc<Ram>>,
    /// Groups that it was asked about.
    asked: AtomicU64,
}

impl Os {
    /// Maps a page that it does not use yet, or `page`.
    fn map(&self, iova: Iova, page: Option<u64>) -> Option<u64> {
        let page = page.or_else(|| self.tables.memory.page())?;
        self.tables.map(iova, page)?;
        Some(page)
    }

    /// The guest's page with the table of `level` for `iova`.
    fn table(&self, iova: Iova, level: u32) -> Option<u64> {
        let entry = self.tables.walk(iova, level, &mut |_| {})?;
        Some(entry & !(PAGE - 1))
    }
}

/// Shared by the handler and the scenario.
struct SharedOs(Arc<Os>);

impl Guest for SharedOs {
    fn walk(&self, request: &PageRequest, visit: &mut dyn FnMut(Iova)) -> FirstStage {
        let tables = &self.0.tables;
        // The root is always there.
        let mut below = |entry: u64| {
            if entry & !(PAGE - 1) != tables.root {
                visit(Iova::new(entry));
            }
        };
        match tables.leads(request.iova(), &mut below) {
            Some(page) => FirstStage::Leads(Iova::new(page)),
            None => FirstStage::Refuses,
        }
    }

    fn forward(&self, group: &Group<'_>) -> Response {
        self.0.asked.fetch_add(1, Ordering::Relaxed);
        let requests = group.requests().iter();
        let mapped = requests.map(|request| self.0.map(request.page(PageSize::SIZE_4K), None));
        match mapped.collect::<Option<Vec<_>>>() {
            Some(_) => Response::Success,
            None => Response::Invalid,
        }
    }
}

/// A device behind both stages.
struct GuestDevice<'m, M: Machine> {
    scene: Scene<'m, M>,
    ram: Arc<Ram>,
    os: Arc<Os>,
    second: Arc<Ioas<M::Domain, HostPager, Cpus>>,
}

fn at<M: Machine>(page: u64) -> Iova {
    Iova::new(M::BASE.get() + page * PAGE)
}

impl<'m, M: Machine> GuestDevice<'m, M> {
    fn new(machine: &'m M, way: FaultSource) -> Result<Self, Outcome> {
        let none = || Outcome::Skip("no guest has a first stage here".to_owned());
        let stage = machine.guest.as_ref().ok_or_else(none)?;
        let scene = Scene::new(machine, way)?;
        let stock = (0..32).map(|_| machine.host.memory(PAGE)).collect();
        let (root, seen) = stage.root;
        let range = IovaRange::from_len(M::BASE, 1 << 22).ok_or_else(|| fail("no range"))?;
        let ram = Arc::new(Ram {
            machine: KernelMemory::new(stage.memory.clone(), stock),
            range,
            pages: Mutex::new(BTreeMap::from([(seen.get(), root.get())])),
            // The guest's addresses begin at the base of the device's.
            next: AtomicU64::new(M::BASE.get() + 256 * PAGE),
            given: Mutex::default(),
        });
        let tables = Tables::new(stage.layout, ram.clone(), seen.get());
        let os = Arc::new(Os { tables, asked: AtomicU64::new(0) });
        // The tables begin empty where the device's addresses are.
        let top = os.tables.take_out(M::BASE, stage.layout.levels - 1);
        top.ok_or_else(|| fail("no root"))?;
        let cpu: fn() -> CpuId = || CpuId::new(0);
        let cpus = Cpus::new(1, Still::default(), cpu);
        let second = Ioas::new(scene.on.domain.clone(), cpus, IoasOptions::default(), simulated());
        let second = must("a space", second)?;
        let region = RegionOptions { range, access: RW, hold: Residency::OnDemand };
        must("a region", second.add_region(&region, HostPager(ram.clone())))?;
        let second = Arc::new(second);
        let handler = Nested::new(second.clone(), SharedOs(os.clone()));
        scene.hand_over(Arc::new(handler))?;
        Ok(Self { scene, ram, os, second })
    }

    /// The guest maps `page`, at `to` if that is given; the unit is not told.
    fn maps(&self, page: u64, to: Option<u64>) -> Result<u64, Outcome> {
        let mapped = self.os.map(at::<M>(page), to);
        mapped.ok_or_else(|| fail("the guest has no memory"))
    }

    /// The device's write to `page` is served once. Returns the addresses in the guest's memory that this
    /// mapped, and the number of times that the guest has been asked by now.
    fn served(&self, page: u64) -> Result<(Vec<u64>, u64), Outcome> {
        self.scene.must_ask(page, page as u16 & 0x1ff)?;
        self.scene.turn()?;
        let leads = self.os.tables.leads(at::<M>(page), &mut |_| {});
        let place = leads
            .and_then(|leads| self.ram.place(leads))
            .ok_or_else(|| fail("the guest has nothing there"))?;
        self.scene.must_arrive_at(page, PhysAddr::new(place))?;
        let given = std::mem::take(&mut *locked(&self.ram.given));
        Ok((given, self.os.asked.load(Ordering::Relaxed)))
    }

    /// The host takes a page of the guest's memory out of the second stage.
    fn taken_back(&self, page: u64) -> Verdict {
        let range = IovaRange::page(Iova::new(page), PageSize::SIZE_4K);
        must("taking back", self.second.invalidate(range)).map(drop)
    }
}

fn walks<M: Machine>(machine: &M, way: FaultSource) -> Verdict {
    let on = GuestDevice::new(machine, way)?;
    // The guest has nothing: it is asked, and then its tables are fetched for the first time.
    let first = on.served(7)?;
    let table = |level| on.os.table(at::<M>(7), level).ok_or_else(|| fail("no table"));
    let (upper, lower) = (table(1)?, table(0)?);
    let lone = |page: u64| vec![page];
    let leads = |page| on.os.tables.leads(at::<M>(page), &mut |_| {});
    let data = leads(7).ok_or_else(|| fail("no page"))?;
    expect("the first fault", first, (vec![upper, lower, data], 1))?;
    // The page that the tables lead to, and no table.
    let data = on.maps(8, None)?;
    expect("a page that is missing", on.served(8)?, (lone(data), 1))?;
    // A table alone: where it leads is there.
    for taken in [lower, upper] {
        on.taken_back(taken)?;
        expect("a table that is missing", on.served(8)?, (lone(taken), 1))?;
    }
    on.taken_back(data)?;
    expect("a page taken back", on.served(8)?, (lone(data), 1))?;
    on.maps(9, Some(data))?;
    on.taken_back(lower)?;
    expect("a table, for another page", on.served(9)?, (lone(lower), 1))?;
    // The guest's own fault, with all tables there.
    let (given, asked) = on.served(10)?;
    let own = leads(10).ok_or_else(|| fail("no page"))?;
    expect("the guest's fault", (given, asked), (lone(own), 2))?;
    leads_astray(&on, way)
}

/// A guest that leads its device out of its memory, by a page and by a table.
fn leads_astray<M: Machine>(on: &GuestDevice<'_, M>, way: FaultSource) -> Verdict {
    let outside = on.ram.range.last().get() + 1;
    on.maps(11, Some(outside))?;
    let far = Iova::new(M::BASE.get() + (1 << 21));
    let entry = on.os.tables.walk(far, 1, &mut |_| {});
    let stored = entry.and_then(|entry| {
        let raw = outside | on.os.tables.layout.table;
        on.ram.store(entry, raw)
    });
    stored.ok_or_else(|| fail("no entry"))?;
    on.scene.told();
    for page in [11, 512] {
        on.scene.must_ask(page, page as u16 & 0x1ff)?;
        on.scene.turn()?;
        let told = on.scene.told();
        expect("told", told, vec![Response::Invalid])?;
        let refused = match way {
            FaultSource::Stalls => vec![Wrote::Refused],
            FaultSource::Requests => Vec::new(),
        };
        expect("the write", on.scene.asker.settled(), refused)?;
    }
    on.scene.settled()
}

/// All of them.
pub(super) fn all<M: Machine>() -> [(&'static str, Run<M>); 2] {
    [
        ("guests-tables-by-requests", |machine| walks(machine, FaultSource::Requests)),
        ("guests-tables-by-stalls", |machine| walks(machine, FaultSource::Stalls)),
    ]
}
