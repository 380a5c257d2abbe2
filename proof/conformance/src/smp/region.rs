//! Devices that fault on memory that its owner takes back at any time.
//!
//! Each CPU has a device that accesses pages and asks for those that are not there; serves groups
//! of any device; takes memory back; detaches its device, whose groups are answered at once; and
//! one removes and adds the whole region now and then. Some memory cannot be populated, and
//! handlers fail at times. In five rounds of six every second device breaks the rules now and then,
//! each round in its own way. Where the hardware fails, owners try again to take back pages that
//! they do not have back, and a region that cannot be removed stays closed until it can.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan::addr::{InvalTag, Iova, IovaRange, PageSize, StreamId};
use portolan::demand::premap::Adaptive;
use portolan::demand::{
    InvalidateError, Ioas, IoasOptions, ReadDirtyError, RegionError, RegionOptions, Residency,
    Window,
};
use portolan::iommu::Domain as _;
use portolan::iopf::{Bounds, Dispatcher, Flow, Group, Handler, Place, Response};
use portolan::platform::Nanos;
use portolan::table::Access;
use portolan::table::format::DirtyTracking;
use portolan_sim::cpus::VirtualCpus;
use portolan_sim::decode::AccessKind;

use super::cpu::SmpCpu;
use super::devices::{AskingDevices, GroupRequest, Manner};
use super::machine::{Domain, Server, SmpMachine};
use super::world::{FrameReached, FrameWorld, LeavingFrames, PAGE};
use crate::promise::simulated;

const CONTEXT: InvalTag = InvalTag::new(2);
/// First stream of the devices, one for each CPU.
const STREAMS: u32 = 0x1000;
/// The first address of the region.
const BASE: u64 = 1 << 30;
/// Pages of the region.
pub(super) const PAGES: u64 = 2048;
/// Longest wait for a group's last request, in virtual time.
const PATIENCE: Nanos = Nanos::new(300_000);
/// A handler fails once in so many groups.
const FLAKY: u64 = 61;
/// Most pages of one invalidation.
const LONGEST: u64 = 600;

type Container = Ioas<Domain<Server>, Arc<FrameWorld>, VirtualCpus>;

/// A container that fails now and then.
struct FlakyHandler {
    container: Arc<Container>,
    groups: AtomicU64,
}

impl Handler for FlakyHandler {
    fn handle(&self, group: &Group<'_>) -> Response {
        let number = self.groups.fetch_add(1, Ordering::Relaxed);
        if number % FLAKY == FLAKY - 1 { Response::Failure } else { self.container.handle(group) }
    }
}

/// Pages that their owner has taken out of its tables, and does not have back yet.
struct NotBack {
    range: IovaRange,
    frames: LeavingFrames,
}

/// A region of memory on demand, and the devices that use it.
pub(super) struct FaultingRegion<'m> {
    pub(super) machine: &'m SmpMachine,
    domain: Arc<Domain<Server>>,
    container: Arc<Container>,
    handler: Arc<FlakyHandler>,
    pub(super) dispatcher: Dispatcher<VirtualCpus, AskingDevices>,
    pub(super) devices: AskingDevices,
    /// Behaviour of every second device.
    pub(super) manner: Manner,
    not_back: Mutex<VecDeque<NotBack>>,
    /// Set if the region could not be removed, and is closed.
    closed: AtomicBool,
}

/// Address of the region's page `page`.
pub(super) fn page_at(page: u64) -> Iova {
    Iova::new(BASE + page * PAGE)
}

fn all_pages() -> IovaRange {
    IovaRange::page(Iova::new(BASE), PageSize::of_lg2((PAGES * PAGE).ilog2()))
}

fn addresses(first: u64, pages: u64) -> IovaRange {
    IovaRange::from_len(page_at(first), pages * PAGE).unwrap_or_else(all_pages)
}

fn stream(cpu: u64) -> StreamId {
    StreamId::new(STREAMS + cpu as u32)
}

fn window(seed: u64) -> Window {
    match seed % 4 {
        0 => Window::Adaptive(Adaptive::default()),
        1 => Window::Block,
        2 => NonZeroU32::new(16).map_or(Window::Page, Window::Fixed),
        _ => Window::Page,
    }
}

impl<'m> FaultingRegion<'m> {
    pub(super) fn new(machine: &'m SmpMachine) -> Self {
        let SmpMachine { plan, cpus, server, tally, .. } = machine;
        let streams = (0..plan.cpus).map(stream);
        let domain = machine.domain(CONTEXT, DirtyTracking::Hardware, server.clone(), streams);
        let domain = Arc::new(domain);
        let options = IoasOptions { window: window(plan.seed), ..IoasOptions::default() };
        let container = Ioas::new(domain.clone(), cpus.clone(), options, simulated());
        let container = Arc::new(container.expect("a domain without another space"));
        let devices = AskingDevices::new(tally.clone());
        let bounds = Bounds { flow: Flow::UNBOUNDED, timeout: PATIENCE, ..Bounds::default() };
        let dispatcher = Dispatcher::new(cpus.clone(), devices.clone(), bounds);
        let handler = FlakyHandler { container: container.clone(), groups: AtomicU64::new(0) };
        let region = Self {
            machine,
            domain,
            container,
            handler: Arc::new(handler),
            dispatcher: dispatcher.expect("memory for groups"),
            devices,
            manner: Manner::of_round(plan.seed),
            not_back: Mutex::default(),
            closed: AtomicBool::new(false),
        };
        region.add().expect("a region");
        (0..plan.cpus).for_each(|cpu| region.register(stream(cpu)));
        region
    }

    /// Does something at random.
    pub(super) fn step(&self, cpu: &mut SmpCpu) {
        let rng = &mut cpu.rng;
        let stream = stream(cpu.number);
        match rng.u32(..64) {
            0..=15 => self.use_pages(stream, rng.u64(..PAGES), rng.u64(1..4)),
            16..=25 => {
                cpu.next = (cpu.next + 2) % PAGES;
                self.use_pages(stream, cpu.next, 2);
            }
            26..=57 => {
                let Ok(_) = self.dispatcher.serve();
            }
            58..=61 => {
                let count = match rng.u32(..8) {
                    0 => rng.u64(1..LONGEST),
                    _ => rng.u64(1..16),
                };
                self.take_back(addresses(rng.u64(..PAGES - count), count));
            }
            62 if self.machine.failures.excuse() && rng.bool() => self.try_again(),
            63 if rng.u32(..8) == 0 => {
                self.read_and_clear_dirty(addresses(rng.u64(..PAGES - 64), 64));
            }
            62 if rng.u32(..4) == 0 => {
                let Ok(_) = self.dispatcher.expire();
            }
            63 if cpu.number % 2 == 1 && self.manner != Manner::Good => {
                self.machine.tally.count("misbehaved");
                self.misbehave(stream, rng);
            }
            62 if rng.u32(..16) == 0 => {
                self.machine.tally.count("detached");
                self.dispatcher.unregister(stream, None);
                self.register(stream);
            }
            63 if cpu.number == 0
                && (self.closed.load(Ordering::Relaxed) || rng.u32(..24) == 0) =>
            {
                self.replace();
            }
            _ => {}
        }
    }

    /// Serves the groups that are left, and takes all memory back; what could not be taken back before comes back as
    /// well, and then no device reaches anything.
    pub(super) fn finish(&self) {
        while let Ok(Some(_)) = self.dispatcher.serve() {}
        // Groups whose last request never came.
        self.dispatcher.close();
        if let Err(error) = self.container.recover() {
            self.error("recovering", &error);
        }
        loop {
            let Some(not_back) = self.not_back().pop_front() else {
                break;
            };
            if !self.invalidate(not_back) {
                return;
            }
        }
        let frames = self.machine.world.take(all_pages());
        self.invalidate(NotBack { range: all_pages(), frames });
        for cpu in 0..self.machine.plan.cpus {
            for iova in (0..PAGES).map(page_at) {
                if self.access(stream(cpu), iova) {
                    let text = format!("{iova} is reached after all was taken back");
                    self.machine.violation(text);
                }
            }
        }
    }

    /// Checks that every group has its response, and that no memory is left. Returns the table pages in use.
    pub(super) fn take_down(&self) -> usize {
        let SmpMachine { tally, .. } = self.machine;
        let (lost, outstanding) = (self.devices.left(), self.dispatcher.outstanding());
        if lost != 0 || outstanding != 0 {
            tally.violation(format!("{lost} groups without response, {outstanding} not done"));
        }
        let usage = self.container.usage();
        let (mapped, leaving) = (usage.mapped_bytes, usage.leaving_bytes);
        if mapped != 0 || leaving != 0 {
            tally.violation(format!("{mapped} bytes mapped, {leaving} not quiet at the end"));
        }
        for (name, number) in [
            ("faults", usage.faults),
            ("spurious", usage.spurious),
            ("failed", usage.failed),
            ("granules_mapped", usage.granules_mapped),
            ("raced", usage.raced),
            ("granules_taken_back", usage.granules_taken_back),
        ] {
            tally.add(name, number);
        }
        self.domain.table().pages()
    }

    fn not_back(&self) -> MutexGuard<'_, VecDeque<NotBack>> {
        self.not_back.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, what: &str, error: &dyn std::fmt::Display) {
        self.machine.violation(format!("{what}: {error}"));
    }

    fn add(&self) -> Result<(), RegionError> {
        let options = RegionOptions {
            range: all_pages(),
            access: Access::READ | Access::WRITE,
            hold: Residency::OnDemand,
        };
        self.container.add_region(&options, self.machine.world.clone())
    }

    fn register(&self, stream: StreamId) {
        let handler = self.handler.clone();
        if let Err(error) = self.dispatcher.register(stream, None, all_pages(), handler) {
            self.error("registering", &error);
        }
    }

    /// The device accesses a page; returns if that went through.
    fn access(&self, stream: StreamId, iova: Iova) -> bool {
        let SmpMachine { tally, model, world, .. } = self.machine;
        tally.count("accesses");
        let Ok(found) = model.translate(stream, iova, AccessKind::Write) else {
            return false;
        };
        match world.judge(iova, found.pa) {
            FrameReached::Own => {}
            FrameReached::Leaving | FrameReached::Superseded => tally.count("reached_leaving"),
            wrong => {
                let pa = found.pa;
                self.machine.violation(format!("{stream:?} reaches {pa} by {iova}: {wrong:?}"));
            }
        }
        true
    }

    /// Accesses pages from `first` on, and requests those that fault.
    fn use_pages(&self, stream: StreamId, first: u64, count: u64) {
        let pages = (first..(first + count).min(PAGES)).map(page_at);
        let missing: Vec<Iova> = pages.filter(|page| !self.access(stream, *page)).collect();
        let Some(group) = self.devices.free(stream) else {
            return;
        };
        let Some((&iova, before)) = missing.split_last() else {
            return;
        };
        let asked = GroupRequest { stream, pasid: None, group, iova, place: Place::Last };
        for &iova in before {
            self.send(GroupRequest { iova, place: Place::More, ..asked });
        }
        self.send_owed(asked);
    }

    /// The owner takes pages back, and looks for them afterwards.
    fn take_back(&self, range: IovaRange) {
        let SmpMachine { tally, world, .. } = self.machine;
        tally.count("invalidations");
        let frames = world.take(range);
        if !self.invalidate(NotBack { range, frames }) {
            return tally.count("ranges_not_quiet");
        }
        for iova in (range.start().get()..range.last().get()).step_by(PAGE as usize) {
            let iova = Iova::new(iova);
            let reached = self.domain.translate(iova).map(|found| world.judge(iova, found.pa));
            if let Some(wrong @ (FrameReached::Wrong | FrameReached::Exposed(_))) = reached {
                let text = format!("{iova} is mapped after it was taken back: {wrong:?}");
                self.machine.violation(text);
            }
        }
    }

    /// Takes memory back that has left the owner's tables; returns if it has come back.
    fn invalidate(&self, not_back: NotBack) -> bool {
        match self.container.invalidate(not_back.range) {
            Ok(_) => {
                self.machine.world.free(not_back.frames);
                return true;
            }
            Err(InvalidateError::Iommu(_) | InvalidateError::Busy { .. })
                if self.machine.failures.excuse() => {}
            Err(error) => self.error("taking back", &error),
        }
        self.not_back().push_back(not_back);
        false
    }

    /// Lets the owner retry pages that it could not take back.
    fn try_again(&self) {
        let oldest = self.not_back().pop_front();
        if oldest.is_some_and(|not_back| self.invalidate(not_back)) {
            self.machine.tally.count("recovered");
        }
    }

    /// Reads and clears the dirty state of pages, as an owner does that looks for written pages.
    fn read_and_clear_dirty(&self, range: IovaRange) {
        self.machine.tally.count("harvests");
        match self.container.read_and_clear_dirty(range, |_| ()) {
            Err(ReadDirtyError::NotPaid(_)) if self.machine.failures.excuse() => {}
            Err(error) => self.error("harvesting", &error),
            Ok(()) => {}
        }
    }

    /// Removes the region and adds it again.
    fn replace(&self) {
        let SmpMachine { tally, world, failures, .. } = self.machine;
        let frames = world.take(all_pages());
        if let Err(error) = self.container.remove_region(Iova::new(BASE)) {
            // It is closed, and its memory can be taken back; it goes another time.
            tally.count("regions_not_removed");
            self.not_back().push_back(NotBack { range: all_pages(), frames });
            self.closed.store(true, Ordering::Relaxed);
            if !failures.excuse() {
                self.error("removing", &error);
            }
            return;
        }
        tally.count("regions_removed");
        self.closed.store(false, Ordering::Relaxed);
        world.free(frames);
        if let Err(error) = self.add() {
            self.error("adding", &error);
        }
    }
}
