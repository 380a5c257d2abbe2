//! The part of one CPU: a device that faults, a CPU that serves, and an owner that takes memory back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fastrand::Rng;
use portolan::addr::{Iova, IovaRange, StreamId};
use portolan::demand::{
    InvalidateError, Ioas, ReadDirtyError, RegionError, RegionOptions, Residency,
};
use portolan::iommu::{Domain as _, TagPool};
use portolan::iopf::{Dispatcher, Group, Handler, Place, Response};
use portolan::platform::Cpus as _;
use portolan::table::Access;
use portolan_sim::cpus::VirtualCpus;
use portolan_sim::decode::AccessKind;

use super::devices::{GroupRequest, Manner, PagingDevices, PagingTally, add};
use super::failing::{Failures, NotBack, PendingPages};
use super::world::{BASE, FrameReached, FrameWorld, PAGE, PAGES};
use crate::mappings::Model;
use crate::mappings::machine::Domain;

/// A handler fails once in so many groups.
const FLAKY: u64 = 61;
/// Most pages of one invalidation.
const LONGEST: u64 = 600;

pub(super) type Container<Q> = Ioas<Domain<Q>, Arc<FrameWorld>, VirtualCpus>;

/// A container that fails now and then.
pub(super) struct Flaky<Q: TagPool + 'static> {
    pub(super) container: Arc<Container<Q>>,
    pub(super) groups: AtomicU64,
}

impl<Q: TagPool + Send + Sync> Handler for Flaky<Q> {
    fn handle(&self, group: &Group<'_>) -> Response {
        let number = self.groups.fetch_add(1, Ordering::Relaxed);
        if number % FLAKY == FLAKY - 1 { Response::Failure } else { self.container.handle(group) }
    }
}

/// A machine.
pub(super) struct PagingRig<'r, Q: TagPool + 'static> {
    pub(super) cpus: &'r VirtualCpus,
    pub(super) model: &'r Model,
    pub(super) domain: &'r Domain<Q>,
    pub(super) container: &'r Arc<Container<Q>>,
    pub(super) handler: &'r Arc<Flaky<Q>>,
    pub(super) dispatcher: &'r Dispatcher<VirtualCpus, PagingDevices>,
    pub(super) devices: &'r PagingDevices,
    pub(super) world: &'r Arc<FrameWorld>,
    pub(super) tally: &'r PagingTally,
    /// Behaviour of every second device.
    pub(super) manner: Manner,
    pub(super) failures: &'r Failures,
    pub(super) waiting: PendingPages,
    /// Set if the region could not be removed, and is closed.
    pub(super) closed: AtomicBool,
    /// CPUs that are done.
    pub(super) finished: AtomicU64,
}

pub(super) fn all_pages() -> IovaRange {
    IovaRange::page(Iova::new(BASE), portolan::addr::PageSize::of_lg2(23))
}

fn addresses(first: u64, pages: u64) -> IovaRange {
    let bytes = pages * PAGE;
    IovaRange::from_len(Iova::new(BASE + first * PAGE), bytes).unwrap_or_else(all_pages)
}

impl<Q: TagPool + Send + Sync + 'static> PagingRig<'_, Q> {
    fn error(&self, what: &str, error: &dyn std::fmt::Display) {
        self.tally.violation(format!("{what}: {error}"));
    }

    pub(super) fn add_region(&self) -> Result<(), RegionError> {
        let options = RegionOptions {
            range: all_pages(),
            access: Access::READ | Access::WRITE,
            hold: Residency::OnDemand,
        };
        self.container.add_region(&options, self.world.clone())
    }

    pub(super) fn register(&self, stream: StreamId) {
        let handler = self.handler.clone();
        if let Err(error) = self.dispatcher.register(stream, None, all_pages(), handler) {
            self.error("registering", &error);
        }
    }

    /// The device accesses a page; returns if that went through.
    fn access(&self, stream: StreamId, page: u64) -> bool {
        add(&self.tally.accesses, 1);
        let iova = Iova::new(BASE + page * PAGE);
        let Ok(found) = self.model.translate(stream, iova, AccessKind::Write) else {
            return false;
        };
        match self.world.judge(page, found.pa) {
            FrameReached::Own => {}
            FrameReached::Leaving => add(&self.tally.leaving, 1),
            FrameReached::Wrong => {
                let pa = found.pa;
                (self.tally).violation(format!("{stream:?} reaches {pa} by page {page}"));
            }
        }
        true
    }

    /// Accesses pages from `first` on, and requests those that fault.
    fn use_pages(&self, stream: StreamId, first: u64, count: u64) {
        let pages = first..(first + count).min(PAGES);
        let missing: Vec<u64> = pages.filter(|page| !self.access(stream, *page)).collect();
        let Some(group) = self.devices.free(stream) else {
            return;
        };
        let Some((last, before)) = missing.split_last() else {
            return;
        };
        let asked = GroupRequest { stream, pasid: None, group, page: *last, place: Place::Last };
        for page in before {
            self.send(GroupRequest { page: *page, place: Place::More, ..asked });
        }
        self.send_owed(asked);
    }

    /// The owner takes pages back, and looks for them afterwards.
    fn take_back(&self, first: u64, count: u64) {
        add(&self.tally.invalidations, 1);
        let taken = self.world.take(first, count);
        let not_back = NotBack { first, count, taken };
        if !self.invalidate(not_back) {
            return add(&self.tally.not_quiet, 1);
        }
        for page in first..first + count {
            let found = self.domain.translate(Iova::new(BASE + page * PAGE));
            if found.is_some_and(|found| self.world.judge(page, found.pa) == FrameReached::Wrong) {
                let text = format!("page {page} is mapped after it was taken back");
                self.tally.violation(text);
            }
        }
    }

    /// Takes memory back that has left the owner's tables; returns if it has come back.
    fn invalidate(&self, not_back: NotBack) -> bool {
        let range = addresses(not_back.first, not_back.count);
        match self.container.invalidate(range) {
            Ok(_) => {
                self.world.free(not_back.taken);
                return true;
            }
            Err(InvalidateError::Iommu(_) | InvalidateError::Busy { .. })
                if self.failures.excuses() => {}
            Err(error) => self.error("taking back", &error),
        }
        self.waiting.put(not_back);
        false
    }

    /// Lets the owner retry pages that it could not take back.
    fn try_again(&self) {
        if let Some(not_back) = self.waiting.next() {
            add(&self.tally.back, u64::from(self.invalidate(not_back)));
        }
    }

    /// Reads and clears the dirty state of pages, as an owner does that looks for written pages.
    fn read_and_clear_dirty(&self, first: u64, count: u64) {
        add(&self.tally.cleared, 1);
        match self.container.read_and_clear_dirty(addresses(first, count), |_| ()) {
            Err(ReadDirtyError::NotPaid(_)) if self.failures.excuses() => {}
            Err(error) => self.error("harvesting", &error),
            Ok(()) => {}
        }
    }

    /// Runs one CPU's part: a device that requests `requests` pages, and other work in between.
    pub(super) fn work(&self, cpu: u64, seed: u64, requests: u64) {
        let mut rng = Rng::with_seed(seed ^ (cpu << 40));
        let stream = StreamId::new(cpu as u32 + 1);
        let mut next = rng.u64(..PAGES);
        let end = self.tally.requests.load(Ordering::Relaxed) + requests;
        while self.tally.requests.load(Ordering::Relaxed) < end {
            self.cpus.work(rng.f64() * 300.0);
            match rng.u32(..64) {
                0..=15 => self.use_pages(stream, rng.u64(..PAGES), rng.u64(1..4)),
                16..=25 => {
                    self.use_pages(stream, next, 2);
                    next = (next + 2) % PAGES;
                }
                26..=57 => {
                    let Ok(_) = self.dispatcher.serve();
                }
                58..=61 => {
                    let count = match rng.u32(..8) {
                        0 => rng.u64(1..LONGEST),
                        _ => rng.u64(1..16),
                    };
                    let first = rng.u64(..PAGES - count);
                    self.take_back(first, count);
                }
                62 if self.failures.excuses() && rng.u32(..2) == 0 => self.try_again(),
                63 if rng.u32(..8) == 0 => self.read_and_clear_dirty(rng.u64(..PAGES - 64), 64),
                62 if rng.u32(..4) == 0 => {
                    let Ok(_) = self.dispatcher.expire();
                }
                63 if cpu % 2 == 1 && self.manner != Manner::Good => {
                    add(&self.tally.misbehaved, 1);
                    self.misbehave(stream, &mut rng);
                }
                62 if rng.u32(..16) == 0 => {
                    add(&self.tally.detached, 1);
                    self.dispatcher.unregister(stream, None);
                    self.register(stream);
                }
                63 if cpu == 0 && (self.closed.load(Ordering::Relaxed) || rng.u32(..24) == 0) => {
                    self.replace_region();
                }
                _ => {}
            }
        }
        if self.finished.fetch_add(1, Ordering::Relaxed) + 1 == self.cpus.count() as u64 {
            self.finish();
        }
    }

    /// Serves the groups that are left, and takes all memory back, on the last CPU. The hardware works again: memory
    /// that could not be taken back before comes back as well, and then no device reaches anything.
    fn finish(&self) {
        while let Ok(Some(_)) = self.dispatcher.serve() {}
        // Groups whose last request never came.
        self.dispatcher.close();
        self.failures.heal();
        if let Err(error) = self.container.recover() {
            self.error("recovering", &error);
        }
        while let Some(not_back) = self.waiting.next() {
            if !self.invalidate(not_back) {
                return;
            }
        }
        let not_back = NotBack { first: 0, count: PAGES, taken: self.world.take(0, PAGES) };
        self.invalidate(not_back);
        for cpu in 0..self.cpus.count() as u32 {
            for page in 0..PAGES {
                if self.access(StreamId::new(cpu + 1), page) {
                    let text = format!("page {page} is reached after all was taken back");
                    self.tally.violation(text);
                }
            }
        }
    }

    /// Removes the region and adds it again.
    fn replace_region(&self) {
        let not_back = NotBack { first: 0, count: PAGES, taken: self.world.take(0, PAGES) };
        if let Err(error) = self.container.remove_region(Iova::new(BASE)) {
            // It is closed, and its memory can be taken back; it goes another time.
            add(&self.tally.removed_in_vain, 1);
            self.waiting.put(not_back);
            self.closed.store(true, Ordering::Relaxed);
            if !self.failures.excuses() {
                self.error("removing", &error);
            }
            return;
        }
        add(&self.tally.removed, 1);
        self.closed.store(false, Ordering::Relaxed);
        self.world.free(not_back.taken);
        if let Err(error) = self.add_region() {
            self.error("adding", &error);
        }
    }
}
