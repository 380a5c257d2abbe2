//! One CPU's part: a device that faults, a CPU that serves, and an owner that takes memory back.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fastrand::Rng;
use portolan::addr::{Iova, IovaRange, StreamId};
use portolan::fault::{
    Dispatcher, Group, GroupId, Handler, Place, RawPageRequest, ReplyName, ReplyTo, RequestKind,
    Responder, Response, Wants,
};
use portolan::passthrough::{Hold, InvalidateError, Passthrough, RegionError, RegionOptions};
use portolan::platform::Cpus as _;
use portolan::table::Access;
use portolan::unit::{ContextHome, Domain as _};
use portolan_model::cpus::VirtualCpus;
use portolan_model::decode::AccessKind;

use super::world::{BASE, PAGE, PAGES, Reached, World};
use crate::mappings::Model;
use crate::mappings::machine::Domain;

/// Violations that are told.
const TOLD: usize = 5;
/// Groups of a device that may be on their way.
const GROUPS: u16 = 8;
/// A handler fails once in so many groups.
const FLAKY: u64 = 61;
/// Most pages of one invalidation.
const LONGEST: u64 = 600;

pub(super) type Container<Q> = Passthrough<Domain<Q>, Arc<World>, VirtualCpus>;

#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) requests: AtomicU64,
    pub(super) groups: AtomicU64,
    pub(super) accesses: AtomicU64,
    pub(super) leaving: AtomicU64,
    pub(super) invalidations: AtomicU64,
    pub(super) detached: AtomicU64,
    pub(super) removed: AtomicU64,
    pub(super) responses: [AtomicU64; 3],
    pub(super) violations: Mutex<Vec<String>>,
}

pub(super) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Tally {
    pub(super) fn violation(&self, text: String) {
        let mut all = (self.violations.lock()).unwrap_or_else(PoisonError::into_inner);
        if all.len() < TOLD {
            all.push(text);
        }
    }
}

/// The devices' side: groups that wait for their response.
#[derive(Clone, Debug)]
pub(super) struct Devices {
    pub(super) waiting: Arc<Mutex<BTreeMap<(StreamId, ReplyName), u64>>>,
    pub(super) tally: Arc<Tally>,
}

impl Devices {
    fn waiting(&self) -> std::sync::MutexGuard<'_, BTreeMap<(StreamId, ReplyName), u64>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that no group of `stream` has.
    fn free(&self, stream: StreamId) -> Option<GroupId> {
        let waiting = self.waiting();
        let mut numbers = (0..GROUPS).map(GroupId::new);
        numbers.find(|group| !waiting.contains_key(&(stream, ReplyName::Group(*group))))
    }
}

impl Responder for Devices {
    type Error = core::convert::Infallible;

    fn respond(&self, to: ReplyTo, response: Response) -> Result<(), Self::Error> {
        let asked = self.waiting().remove(&(to.stream, to.name));
        let place = Response::ALL.iter().position(|other| *other == response);
        add(&self.tally.responses[place.unwrap_or(0)], 1);
        if asked.is_none() {
            let text = format!("{:?} of {:?} got a response twice", to.name, to.stream);
            self.tally.violation(text);
        }
        Ok(())
    }
}

/// A container that fails now and then.
pub(super) struct Flaky<Q: ContextHome + 'static> {
    pub(super) container: Arc<Container<Q>>,
    pub(super) groups: AtomicU64,
}

impl<Q: ContextHome + Send + Sync> Handler for Flaky<Q> {
    fn handle(&self, group: &Group<'_>) -> Response {
        let number = self.groups.fetch_add(1, Ordering::Relaxed);
        match number % FLAKY == FLAKY - 1 {
            true => Response::Failure,
            false => self.container.handle(group),
        }
    }
}

/// One machine.
pub(super) struct Rig<'r, Q: ContextHome + 'static> {
    pub(super) cpus: &'r VirtualCpus,
    pub(super) model: &'r Model,
    pub(super) domain: &'r Domain<Q>,
    pub(super) container: &'r Arc<Container<Q>>,
    pub(super) handler: &'r Arc<Flaky<Q>>,
    pub(super) dispatcher: &'r Dispatcher<VirtualCpus, Devices>,
    pub(super) devices: &'r Devices,
    pub(super) world: &'r Arc<World>,
    pub(super) tally: &'r Tally,
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

impl<Q: ContextHome + Send + Sync + 'static> Rig<'_, Q> {
    fn error(&self, what: &str, error: &dyn std::fmt::Display) {
        self.tally.violation(format!("{what}: {error}"));
    }

    pub(super) fn add_region(&self) -> Result<(), RegionError> {
        let options = RegionOptions {
            range: all_pages(),
            access: Access::READ | Access::WRITE,
            hold: Hold::OnDemand,
        };
        self.container.add_region(&options, self.world.clone())
    }

    pub(super) fn register(&self, stream: StreamId) {
        let handler = self.handler.clone();
        if let Err(error) = self.dispatcher.register(stream, None, all_pages(), handler) {
            self.error("registering", &error);
        }
    }

    /// The device accesses a page; whether that went through.
    fn access(&self, stream: StreamId, page: u64) -> bool {
        add(&self.tally.accesses, 1);
        let iova = Iova::new(BASE + page * PAGE);
        let Ok(found) = self.model.translate(stream, iova, AccessKind::Write) else {
            return false;
        };
        match self.world.judge(page, found.pa) {
            Reached::Own => {}
            Reached::Leaving => add(&self.tally.leaving, 1),
            Reached::Wrong => {
                let pa = found.pa;
                (self.tally).violation(format!("{stream:?} reaches {pa} by page {page}"));
            }
        }
        true
    }

    /// Accesses pages from `first` on, and asks for those that fault.
    fn use_pages(&self, stream: StreamId, first: u64, count: u64) {
        let pages = first..(first + count).min(PAGES);
        let missing: Vec<u64> = pages.filter(|page| !self.access(stream, *page)).collect();
        let Some(group) = self.devices.free(stream) else {
            return;
        };
        let Some((last, before)) = missing.split_last() else {
            return;
        };
        let name = ReplyName::Group(group);
        self.devices.waiting().insert((stream, name), *last);
        add(&self.tally.groups, 1);
        let places = before.iter().map(|page| (page, Place::More));
        for (page, place) in places.chain([(last, Place::Last)]) {
            add(&self.tally.requests, 1);
            let raw = RawPageRequest {
                stream,
                pasid: None,
                iova: Iova::new(BASE + page * PAGE),
                wants: Wants::READ | Wants::WRITE,
                kind: RequestKind::Pri { group, place },
            };
            let Ok(_) = self.dispatcher.accept(raw);
        }
    }

    /// The owner takes pages back, and looks for them afterwards.
    fn take_back(&self, first: u64, count: u64) {
        add(&self.tally.invalidations, 1);
        let taken = self.world.take(first, count);
        match self.container.invalidate(addresses(first, count)) {
            Ok(_) => self.world.free(taken),
            Err(InvalidateError::Unit(error)) => return self.error("taking back", &error),
            Err(error) => return self.error("taking back", &error),
        }
        for page in first..first + count {
            let found = self.domain.translate(Iova::new(BASE + page * PAGE));
            if found.is_some_and(|found| self.world.judge(page, found.pa) == Reached::Wrong) {
                let text = format!("page {page} is mapped after it was taken back");
                self.tally.violation(text);
            }
        }
    }

    /// One CPU's part: a device that asks for `requests` pages, and all else in between.
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
                62 if rng.u32(..16) == 0 => {
                    add(&self.tally.detached, 1);
                    self.dispatcher.unregister(stream, None);
                    self.register(stream);
                }
                63 if cpu == 0 && rng.u32(..64) == 0 => self.replace_region(),
                _ => {}
            }
        }
        if self.finished.fetch_add(1, Ordering::Relaxed) + 1 == self.cpus.count() as u64 {
            self.finish();
        }
    }

    /// The last CPU serves what is left, and takes all memory back.
    fn finish(&self) {
        while let Ok(Some(_)) = self.dispatcher.serve() {}
        let taken = self.world.take(0, PAGES);
        match self.container.invalidate(all_pages()) {
            Ok(_) => self.world.free(taken),
            Err(error) => self.error("taking all back", &error),
        }
    }

    /// The region goes, and comes back.
    fn replace_region(&self) {
        add(&self.tally.removed, 1);
        let taken = self.world.take(0, PAGES);
        if let Err(error) = self.container.remove_region(Iova::new(BASE)) {
            return self.error("removing", &error);
        }
        self.world.free(taken);
        if let Err(error) = self.add_region() {
            self.error("adding", &error);
        }
    }
}
