//! Shared virtual addressing with tables that a kernel built itself: the library knows their root alone.
//!
//! The kernel writes entries by plain stores, for its CPUs and when a device asks; where it takes one out, its
//! notifier tells the unit, and only then the memory, or the table, is used again.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use portolan::addr::{Iova, IovaRange, PageSize, Pasid, PhysAddr, StreamId};
use portolan::iommu::{AttachError, IommuError};
use portolan::iopf::{Group, Handler, Response};
use portolan::platform::{ForeignTables, TableMem};

use super::asking::{FaultSource, MARK, Wrote};
use super::basic::PAGE;
use super::scene::Scene;
use super::stores::{Frames, KernelMemory, Layout, Tables};
use super::{Host, Machine, Outcome, Run, Verdict, expect, fail, must};
use crate::promise::tables_at;

/// Function that a kernel calls when it has taken entries out; it keeps the domain.
pub type Notifier = Box<dyn Fn(IovaRange) -> Result<(), IommuError>>;

/// Functions with which a driver gives a device the tables of a process.
pub struct Foreign<U> {
    /// Layout of the tables that the unit walks.
    pub layout: Layout,
    /// The memory that both reach.
    pub memory: Arc<dyn TableMem<AtomicU64>>,
    /// Attaches tables for requests with a PASID.
    pub attach: fn(&U, StreamId, Pasid, ForeignTables) -> Result<Notifier, AttachError>,
}

/// The process, as the device names it.
const PROCESS: Pasid = Pasid::new(3);
/// A page whose leaf table spans nothing else that is mapped.
const FAR: u64 = 512 + 3;

/// The kernel of a process.
struct Kernel {
    tables: Tables<KernelMemory>,
}

impl Kernel {
    /// Brings in the page of a fault, of a device or of the process.
    fn bring(&self, iova: Iova) -> Option<u64> {
        let there = self.tables.leads(iova, &mut |_| {});
        there.or_else(|| {
            let page = self.tables.memory.page()?;
            self.tables.map(iova, page)?;
            Some(page)
        })
    }
}

impl Handler for Kernel {
    fn handle(&self, group: &Group<'_>) -> Response {
        let pages = group.requests().iter();
        let brought = pages.map(|request| self.bring(request.page(PageSize::SIZE_4K)));
        match brought.collect::<Option<Vec<_>>>() {
            Some(_) => Response::Success,
            None => Response::Invalid,
        }
    }
}

/// A device on the tables of a process.
struct ProcessDevice<'m, M: Machine> {
    scene: Scene<'m, M>,
    kernel: Arc<Kernel>,
    notifier: Notifier,
}

fn at<M: Machine>(page: u64) -> Iova {
    Iova::new(M::BASE.get() + page * PAGE)
}

impl<'m, M: Machine> ProcessDevice<'m, M> {
    fn new(machine: &'m M, way: FaultSource) -> Result<Self, Outcome> {
        let none = || Outcome::Skip("a kernel's own tables are not attached here".to_owned());
        let foreign = machine.foreign.as_ref().ok_or_else(none)?;
        let scene = Scene::of(machine, way, Some(PROCESS))?;
        let device = scene.on.device;
        let stock: Vec<_> = (0..16).map(|_| machine.host.memory(PAGE)).collect();
        let memory = KernelMemory::new(foreign.memory.clone(), stock);
        let root = memory.page().ok_or_else(|| fail("no page"))?;
        let tables = Tables::new(foreign.layout, memory, root);
        let kernel = Arc::new(Kernel { tables });
        let given = tables_at(PhysAddr::new(root));
        let attached = (foreign.attach)(&machine.unit, device, PROCESS, given);
        let notifier = must("attaching a kernel's tables", attached)?;
        scene.hand_over(kernel.clone())?;
        Ok(Self { scene, kernel, notifier })
    }

    /// The page that the kernel's tables have at `page`.
    fn pa(&self, page: u64) -> Result<PhysAddr, Outcome> {
        let found = self.kernel.tables.leads(at::<M>(page), &mut |_| {});
        found.map(PhysAddr::new).ok_or_else(|| fail("the kernel has nothing there"))
    }

    /// The device asks for `page`, the kernel stores an entry, and the device goes on.
    fn must_be_brought(&self, page: u64) -> Verdict {
        self.scene.must_ask(page, page as u16 & 0xff)?;
        self.scene.turn()?;
        self.scene.must_arrive_at(page, self.pa(page)?)
    }

    /// A page leaves, and is another's once the notifier has returned.
    fn page_leaves(&self, machine: &M) -> Verdict {
        let (scene, tables) = (&self.scene, &self.kernel.tables);
        let gone = tables.take_out(at::<M>(1), 0);
        let old = gone.ok_or_else(|| fail("nothing to take out"))?;
        if scene.reach(1, 3) != Wrote::There {
            return Err(fail("nothing was cached: the scenario proves nothing"));
        }
        let range = IovaRange::page(at::<M>(1), PageSize::SIZE_4K);
        must("the notifier", (self.notifier)(range))?;
        tables.memory.give_back(old);
        self.kernel.bring(at::<M>(5));
        expect("the page that is used again", self.pa(5)?.get(), old)?;
        self.must_be_brought(1)?;
        expect("what is in that page", machine.host.peek(PhysAddr::new(old)), 0)
    }

    /// Removes a table with its page, which becomes memory that anything may overwrite.
    fn table_leaves(&self) -> Verdict {
        let (scene, tables) = (&self.scene, &self.kernel.tables);
        let [page, table] = [0, 1].map(|level| tables.take_out(at::<M>(FAR), level));
        let (page, table) = page.zip(table).ok_or_else(|| fail("no table to take out"))?;
        let span = IovaRange::page(at::<M>(FAR), PageSize::SIZE_2M);
        must("the notifier", (self.notifier)(span))?;
        // An entry like the table's, in place of a neighbour that was never requested.
        let entry = table + (FAR + 1) % 512 * 8;
        let forged = tables.memory.store(entry, page | tables.layout.page);
        forged.ok_or_else(|| fail("no such word"))?;
        let wrote = scene.reach(FAR + 1, 6);
        expect("a write through a table that is gone", wrote != Wrote::There, true)?;
        scene.turn()?;
        scene.must_arrive_at(FAR + 1, self.pa(FAR + 1)?)
    }
}

fn shares<M: Machine>(machine: &M, way: FaultSource) -> Verdict {
    let shared = ProcessDevice::new(machine, way)?;
    let (scene, kernel) = (&shared.scene, &shared.kernel);
    // The process touches a page first: the device reaches it, and no request was made.
    kernel.bring(at::<M>(0));
    expect("a write of the device", scene.reach(0, 1), Wrote::There)?;
    expect("memory", machine.host.peek(shared.pa(0)?), MARK)?;
    shared.must_be_brought(1)?;
    shared.must_be_brought(FAR)?;
    shared.page_leaves(machine)?;
    shared.table_leaves()?;
    // The process ends.
    let device = scene.on.device;
    scene.desk.unregister(device, Some(PROCESS));
    if let Some(pasids) = machine.pasids.as_ref() {
        must("blocking", (pasids.block)(&machine.unit, device, PROCESS))?;
    }
    let after = scene.asker.write(way, device, Some(PROCESS), M::BASE);
    if after == Wrote::There {
        return Err(fail("a device reaches a process that has ended"));
    }
    scene.turn()?;
    scene.asker.settled();
    scene.settled()
}

/// All of them.
pub(super) fn all<M: Machine>() -> [(&'static str, Run<M>); 2] {
    [
        ("kernels-tables-by-requests", |machine| shares(machine, FaultSource::Requests)),
        ("kernels-tables-by-stalls", |machine| shares(machine, FaultSource::Stalls)),
    ]
}
