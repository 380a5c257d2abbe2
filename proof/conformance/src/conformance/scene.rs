//! A machine with a device that asks and a handler that brings in, for scenarios.

use crate::promise::promised;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use portolan::addr::{CpuId, Iova, IovaRange, PageSize, Pasid, PhysAddr};
use portolan::inval::Gather;
use portolan::iommu::{Domain, IommuError};
use portolan::iopf::{
    Bounds, Dispatcher, Flow, Group, GroupId, Handler, Permissions, Place, RawPageRequest, ReplyTo,
    RequestKind, Responder, Response, Taken,
};
use portolan::platform::{Clock, Nanos, SpinCpus};

use super::asking::{Asker, DriverEvent, FaultSource, Faulting, MARK, Wrote};
use super::basic::{Attached, PAGE, RW};
use super::{Host, Machine, Outcome, Verdict, expect, fail, must};

/// Time that the scenario moves.
#[derive(Clone, Default)]
pub(super) struct Still(pub(super) Arc<AtomicU64>);

impl Clock for Still {
    fn now(&self) -> Nanos {
        Nanos::new(self.0.load(Ordering::Relaxed))
    }
}

pub(super) type Cpus = SpinCpus<Still, fn() -> CpuId>;

/// The driver, as the dispatcher sees it.
pub(super) struct Carrier<'m, U> {
    unit: &'m U,
    respond: fn(&U, ReplyTo, Response) -> Result<(), IommuError>,
}

impl<U> Responder for Carrier<'_, U> {
    type Error = IommuError;

    fn respond(&self, to: ReplyTo, response: Response) -> Result<(), IommuError> {
        (self.respond)(self.unit, to, response)
    }
}

/// Maps the pages that are asked for, from a stock; with none left it refuses.
pub(super) struct OnDemand<D> {
    domain: Arc<D>,
    stock: Mutex<Vec<PhysAddr>>,
}

impl<D: Domain> OnDemand<D> {
    /// Into `domain`, the last page first.
    pub(super) fn new(domain: Arc<D>, stock: Vec<PhysAddr>) -> Self {
        let stock = Mutex::new(stock);
        Self { domain, stock }
    }

    /// Puts a page into the stock, to be the next one.
    pub(super) fn give_back(&self, page: PhysAddr) {
        let mut stock = self.stock.lock().unwrap_or_else(PoisonError::into_inner);
        stock.push(page);
    }

    /// Maps a page, if it is not mapped.
    pub(super) fn bring(&self, page: Iova) -> Option<()> {
        if self.domain.translate(page).is_some() {
            return Some(());
        }
        let pa = {
            let mut stock = self.stock.lock().unwrap_or_else(PoisonError::into_inner);
            stock.pop()?
        };
        let mut owed = Gather::new();
        let mapped = self.domain.map(page, promised(pa, PAGE), RW, &mut owed);
        let paid = self.domain.sync(&mut owed);
        mapped.ok().and(paid.ok()).map(drop)
    }
}

impl<D: Domain> Handler for OnDemand<D> {
    fn handle(&self, group: &Group<'_>) -> Response {
        let pages = group.requests().iter();
        let brought = pages.map(|request| self.bring(request.page(PageSize::SIZE_4K)));
        match brought.collect::<Option<Vec<()>>>() {
            Some(_) => Response::Success,
            None => Response::Invalid,
        }
    }
}

/// The first device on a domain, by requests with `pasid`; with a PASID, requests without it go to another domain.
fn attached<M: Machine>(machine: &M, pasid: Option<Pasid>) -> Result<Attached<M>, Outcome> {
    let Some(pasid) = pasid else {
        return Attached::new(machine);
    };
    let none = || Outcome::Skip("requests with a PASID are not here".to_owned());
    let pasids = machine.pasids.as_ref().ok_or_else(none)?;
    let (unit, device) = (&machine.unit, machine.host.devices()[0]);
    must("making room for PASIDs", (pasids.enable)(unit, device))?;
    Attached::new(machine)?;
    let domain: Result<_, IommuError> = machine.domain();
    let domain = must("making a domain", domain)?;
    must("attaching", (pasids.attach)(unit, device, pasid, &domain))?;
    Ok(Attached { domain, device })
}

/// A machine with one device that asks, and a handler that brings in.
pub(super) struct Scene<'m, M: Machine> {
    machine: &'m M,
    faulting: &'m Faulting<M::Iommu>,
    pub(super) asker: &'m dyn Asker,
    pub(super) on: Attached<M>,
    way: FaultSource,
    /// The device's address space, if it names one.
    pasid: Option<Pasid>,
    pub(super) time: Still,
    pub(super) desk: Dispatcher<Cpus, Carrier<'m, M::Iommu>>,
}

const FLOW: Flow = Flow { burst: 400, each: Nanos::new(1_000) };

impl<'m, M: Machine> Scene<'m, M> {
    pub(super) fn new(machine: &'m M, way: FaultSource) -> Result<Self, Outcome> {
        Self::of(machine, way, None)
    }

    /// Makes a scene with a device that names `pasid`.
    pub(super) fn of(
        machine: &'m M,
        way: FaultSource,
        pasid: Option<Pasid>,
    ) -> Result<Self, Outcome> {
        let none = || Outcome::Skip("no device asks here".to_owned());
        let faulting = machine.faulting.as_ref().ok_or_else(none)?;
        let asker = machine.host.asker().ok_or_else(none)?;
        if !faulting.ways.contains(&way) {
            return Err(Outcome::Skip(format!("no device asks by {way:?}")));
        }
        let unit = &machine.unit;
        for device in machine.host.devices() {
            must("letting a device ask", (faulting.enable)(unit, device, way))?;
        }
        let time = Still::default();
        let cpu: fn() -> CpuId = || CpuId::new(0);
        let carrier = Carrier { unit, respond: faulting.respond };
        let bounds = Bounds { groups: 512, groups_of_device: 512, flow: FLOW, ..Bounds::default() };
        let cpus = SpinCpus::new(1, time.clone(), cpu);
        let desk = must("room for groups", Dispatcher::new(cpus, carrier, bounds))?;
        let scene = Self {
            on: attached(machine, pasid)?,
            pasid,
            machine,
            faulting,
            asker,
            way,
            time,
            desk,
        };
        scene.register(64)?;
        Ok(scene)
    }

    /// A handler with so many pages.
    pub(super) fn register(&self, pages: u64) -> Result<Arc<OnDemand<M::Domain>>, Outcome> {
        let stock = (0..pages).map(|_| self.machine.host.memory(PAGE)).collect();
        let handler = Arc::new(OnDemand::new(self.on.domain.clone(), stock));
        self.serve_by(handler.clone())?;
        Ok(handler)
    }

    /// Registers `handler` for the device's faults.
    fn serve_by(&self, handler: Arc<dyn Handler>) -> Verdict {
        let reach = IovaRange::from_len(M::BASE, 1 << 24).ok_or_else(|| fail("no range"))?;
        let (device, pasid) = (self.on.device, self.pasid);
        let done = (self.desk).register(device, pasid, reach, handler);
        must("registering", done)
    }

    /// Replaces the handler of faults by `handler`.
    pub(super) fn hand_over(&self, handler: Arc<dyn Handler>) -> Verdict {
        self.desk.unregister(self.on.device, self.pasid);
        self.serve_by(handler)
    }

    pub(super) fn raw(&self, group: u16, place: Place, page: u64) -> RawPageRequest {
        let group = GroupId::new(group);
        RawPageRequest {
            stream: self.on.device,
            pasid: self.pasid,
            iova: Iova::new(M::BASE.get() + page * PAGE),
            wants: Permissions::READ | Permissions::WRITE,
            kind: RequestKind::Pri { group, place },
        }
    }

    /// Reaches for a page; asks for a missing one, as `group`.
    pub(super) fn reach(&self, page: u64, group: u16) -> Wrote {
        let iova = Iova::new(M::BASE.get() + page * PAGE);
        let wrote = self.asker.write(self.way, self.on.device, self.pasid, iova);
        if wrote == Wrote::Missing {
            self.asker.ask(self.raw(group, Place::Last, page));
        }
        wrote
    }

    pub(super) fn must_ask(&self, page: u64, group: u16) -> Verdict {
        let wanted = match self.way {
            FaultSource::Requests => Wrote::Missing,
            FaultSource::Stalls => Wrote::Waits,
        };
        expect("a write to what is not there", self.reach(page, group), wanted)
    }

    /// Everything that the unit has is taken in.
    pub(super) fn read(&self) -> Result<Vec<Taken>, Outcome> {
        let mut taken = Vec::new();
        for _ in 0..100_000 {
            match must("reading", (self.faulting.next)(&self.machine.unit))? {
                Some(DriverEvent::Request(raw)) => {
                    taken.push(must("taking in", self.desk.accept(raw))?)
                }
                Some(DriverEvent::Lost) => self.desk.lost(),
                Some(DriverEvent::Other) => {}
                None => return Ok(taken),
            }
        }
        Err(fail("requests without end"))
    }

    pub(super) fn serve(&self) -> Verdict {
        while must("serving", self.desk.serve())?.is_some() {}
        Ok(())
    }

    pub(super) fn turn(&self) -> Result<Vec<Taken>, Outcome> {
        let taken = self.read()?;
        self.serve()?;
        Ok(taken)
    }

    pub(super) fn told(&self) -> Vec<Response> {
        self.asker.told().into_iter().map(|(_, response)| response).collect()
    }

    /// Checks that no group waits, and that none had two responses.
    pub(super) fn settled(&self) -> Verdict {
        expect("groups without a response", self.asker.unanswered(), 0)?;
        expect("groups that the library keeps", self.desk.outstanding(), 0)?;
        expect("responses to nobody", self.asker.strays(), 0)
    }

    pub(super) fn pa(&self, page: u64) -> Result<PhysAddr, Outcome> {
        let iova = Iova::new(M::BASE.get() + page * PAGE);
        let found = self.on.domain.translate(iova);
        found.map(|found| found.pa).ok_or_else(|| fail("nothing was mapped"))
    }

    /// The write to `page` arrives, at once or because it had waited.
    pub(super) fn must_arrive(&self, page: u64) -> Verdict {
        self.must_arrive_at(page, self.pa(page)?)
    }

    /// Checks that an access to the page arrives at `pa`.
    pub(super) fn must_arrive_at(&self, page: u64, pa: PhysAddr) -> Verdict {
        let wrote = match self.way {
            FaultSource::Stalls => self.asker.settled(),
            FaultSource::Requests => vec![self.reach(page, 0)],
        };
        expect("the write", wrote, vec![Wrote::There])?;
        expect("memory", self.machine.host.peek(pa), MARK)
    }
}
