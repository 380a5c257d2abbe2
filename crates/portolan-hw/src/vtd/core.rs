//! State that all handles to a unit share: registers, memory, the way of invalidations,
//! identifiers, and the PASIDs and devices under each identifier.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, section 6.5. Stages of
//! an invalidation are told apart by waits with a fence: configuration before translations before
//! device TLBs (6.5.3), so that nothing is cached again from stale entries.

use alloc::sync::Arc;
use alloc::vec::Vec;

use arrayvec::ArrayVec;
use portolan::addr::InvalTag;
use portolan::iommu::{Awaited, DeviceTlb, IommuError, Stage, TagPool};
use portolan::platform::{Guarded, Nanos, UnitPlatform};

use super::control::Direct;
use super::control::VtdControl;
use super::features::VtdFeature;
use super::request::CommandKind as Kind;
use super::request::refusal;
use super::request::{Counted, Drain, Extent, InterruptEntries, Iotlb, Request, fence};
use crate::chassis::{
    BatchEnd, Outcome, Present, Published, Ring, Sorted, Submitters, Ticket, wait_for, with_room,
};
use crate::ids::Ids;
use portolan_spec::vtd::reg::{self, command, prs};

/// Number of times that a request is submitted which another device's time-out interrupts, each a
/// different one.
pub(super) const ATTEMPTS: u32 = 16;

/// Bit of a context identifier that says first stage; below it the domain identifier.
const FIRST: u32 = 1 << 16;

/// The identifier of the domain `domain` of `stage`.
pub(super) fn context_id(domain: u16, stage: Stage) -> InvalTag {
    let flag = match stage {
        Stage::First => FIRST,
        Stage::Second => 0,
    };
    InvalTag::new(u32::from(domain) | flag)
}

/// The domain identifier and the stage in a context identifier.
pub(super) fn split_id(context: InvalTag) -> (u16, Stage) {
    let stage = match context.get() & FIRST {
        0 => Stage::Second,
        _ => Stage::First,
    };
    (context.get() as u16, stage)
}

/// A device TLB that may hold translations of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remote {
    pub(super) stream: u16,
    pub(super) pasid: Option<u32>,
    pub(super) device: DeviceTlb,
}

/// PASIDs, devices and nested domains under an identifier.
#[derive(Clone, Debug, Default)]
pub(super) struct TagUsers {
    /// PASIDs under which a first stage is cached, once for each attachment, in order.
    pub(super) pasids: Vec<u32>,
    /// Device TLBs.
    pub(super) remotes: Vec<Remote>,
    /// First stages nested in a second one.
    pub(super) nested: Vec<u16>,
}

/// The way that invalidations take.
pub(super) enum Way<P: UnitPlatform> {
    Ring(Ring<P>),
    Direct(Direct<P>),
}

/// Shared by the unit, its handles and its domains.
pub(super) struct Core<P: UnitPlatform> {
    pub(super) control: VtdControl<P>,
    pub(super) mem: P::Memory,
    pub(super) way: Way<P>,
    pub(super) ids: Ids<P>,
    pub(super) tags: Guarded<P, Sorted<u32, Arc<TagUsers>>>,
    /// Translation is off for good, and everything was invalidated: nothing is owed any more.
    pub(super) released: Published,
    pub(super) submitters: Submitters<P>,
}

impl<P: UnitPlatform> Core<P> {
    /// The CPUs that submit.
    pub(super) fn cpus(&self) -> &P {
        &self.control.clock
    }

    /// Changes the data under `context`. Memory is taken and given back outside the lock, so
    /// another change may come in between, and this one is made again.
    pub(super) fn tag(&self, context: InvalTag, change: impl Fn(&mut TagUsers)) {
        loop {
            let old = self.tag_of(context);
            let mut new = old.as_deref().cloned().unwrap_or_default();
            change(&mut new);
            let new = Arc::new(new);
            let made = with_room(&self.tags, Sorted::list, |tags| {
                let same = match (tags.get(context.get()), &old) {
                    (Some(now), Some(old)) => Arc::ptr_eq(now, old),
                    (now, old) => now.is_none() && old.is_none(),
                };
                if same { Ok(tags.insert(context.get(), new)) } else { Err(new) }
            });
            if made.is_ok() {
                return;
            }
        }
    }

    pub(super) fn tag_of(&self, context: InvalTag) -> Option<Arc<TagUsers>> {
        self.tags.lock().get(context.get()).cloned()
    }

    /// The first context from `first` with data, and its data.
    pub(super) fn next_tag(&self, first: u32) -> Option<(InvalTag, Arc<TagUsers>)> {
        let tags = self.tags.lock();
        let (id, tag) = tags.behind(|id| id < first).next()?;
        Some((InvalTag::new(*id), Arc::clone(tag)))
    }

    /// Removes from the data under `context`, which takes no memory if no other caller is looking.
    pub(super) fn untag(&self, context: InvalTag, change: impl Fn(&mut TagUsers)) {
        let here = {
            let mut tags = self.tags.lock();
            let tag = tags.get_mut(context.get()).and_then(Arc::get_mut);
            tag.map(&change)
        };
        if here.is_none() {
            self.tag(context, change);
        }
    }

    /// Carries out `stages` one after another, each complete before the next begins, and waits.
    pub(super) fn run(&self, stages: &[&[Request]]) -> Result<(), IommuError> {
        self.run_to(stages, Drain::Nothing)
    }

    /// As [`Core::run`], to another ending. After [`Drain::PageRequests`] no page request that a device
    /// sent before is still on its way to the queue in memory (7.10): if the queue had no room for
    /// one, it has to be emptied, and everything is done once more.
    pub(super) fn run_to(&self, stages: &[&[Request]], drain: Drain) -> Result<(), IommuError> {
        for _ in 0..ATTEMPTS {
            self.run_once(stages, drain)?;
            if drain == Drain::Nothing || self.overflown()?.is_none() {
                return Ok(());
            }
            self.poll(|| Ok(self.overflown()?.is_none().then_some(())))?;
        }
        let (awaited, waited) = (Awaited::Turn, Nanos::default());
        Err(IommuError::TimedOut { awaited, waited })
    }

    /// Returns `Some` if page requests were lost since they were last all read.
    fn overflown(&self) -> Result<Option<()>, IommuError> {
        let status = self.control.regs.present32(reg::PRS)?;
        Ok((status & prs::PRO != 0).then_some(()))
    }

    /// Waits for the reader of the page requests.
    fn poll(&self, look: impl FnMut() -> Result<Option<()>, IommuError>) -> Result<(), IommuError> {
        let awaited = Awaited::Turn;
        wait_for(&self.control.clock, self.control.limit, awaited, look)
    }

    fn run_once(&self, stages: &[&[Request]], drain: Drain) -> Result<(), IommuError> {
        if self.released.get() != 0 {
            return Ok(());
        }
        for attempt in 0..ATTEMPTS {
            let mut sending = Sending::new(self);
            // An abort takes waits. A second answer to the same request would be one too many.
            let again =
                |request: &Request| attempt == 0 || !matches!(request, Request::Response { .. });
            if sending.all(stages, drain, again)? == Outcome::Done {
                return Ok(());
            }
        }
        Err(INTERRUPTED)
    }
}

/// Devices that time out one after another leave no time for anything else.
pub(super) const INTERRUPTED: IommuError = IommuError::Refused { code: refusal::DEVICE_TLB };

/// Commands handed over at a time.
const BATCH: usize = 16;

/// Requests under way from one caller.
pub(super) struct Sending<'a, P: UnitPlatform> {
    pub(super) core: &'a Core<P>,
    ticket: Option<Ticket>,
    batch: ArrayVec<Counted, BATCH>,
}

impl<'a, P: UnitPlatform> Sending<'a, P> {
    pub(super) fn new(core: &'a Core<P>) -> Self {
        Self { core, ticket: None, batch: ArrayVec::new() }
    }

    /// Everything from here on is a new attempt.
    pub(super) fn begin_again(&mut self) {
        self.ticket = None;
        self.batch.clear();
    }

    fn all(
        &mut self,
        stages: &[&[Request]],
        drain: Drain,
        wanted: impl Fn(&Request) -> bool,
    ) -> Result<Outcome, IommuError> {
        let asks = |request: &Request, stream: Option<u16>| {
            let of = request.asks();
            of.is_some() && (stream.is_none() || stream == of)
        };
        let asked = |stream| {
            let mut all = stages.iter().flat_map(|stage| stage.iter());
            all.any(|request| asks(request, stream))
        };
        let mut first = true;
        for stage in stages.iter().filter(|stage| !stage.is_empty()) {
            if !core::mem::take(&mut first) {
                self.fence(Drain::Nothing)?;
            }
            for request in stage.iter().filter(|request| wanted(request)) {
                self.send(*request)?;
            }
        }
        if first {
            return Ok(Outcome::Done);
        }
        if drain == Drain::PageRequests {
            self.fence(drain)?;
        }
        self.wait(&asked)
    }

    pub(super) fn send(&mut self, request: Request) -> Result<(), IommuError> {
        let control = &self.core.control;
        match &self.core.way {
            Way::Ring(ring) => {
                let words = request.words(&control.features);
                self.push(ring, (request.kind(), words))
            }
            Way::Direct(direct) => match request {
                Request::Contexts(what) => direct.contexts(control, what),
                Request::Iotlb(what) => direct.iotlb(control, what),
                _ => Err(IommuError::Unsupported),
            },
        }
    }

    fn push(&mut self, ring: &Ring<P>, command: Counted) -> Result<(), IommuError> {
        if self.batch.is_full() {
            ring.place(self.core, &mut self.ticket, &self.batch, BatchEnd::More)?;
            self.batch.clear();
        }
        self.batch.push(command);
        Ok(())
    }

    /// Everything before is complete before anything after begins; with [`Drain::PageRequests`], page
    /// requests on their way are as well.
    pub(super) fn fence(&mut self, drain: Drain) -> Result<(), IommuError> {
        match &self.core.way {
            Way::Ring(ring) => self.push(ring, (Kind::Wait, fence(ring.spare(), drain))),
            Way::Direct(_) => Ok(()),
        }
    }

    /// Waits for everything that was sent. `asked` tells if a device was asked; any, if it is
    /// `None`.
    pub(super) fn wait(
        &mut self,
        asked: &dyn Fn(Option<u16>) -> bool,
    ) -> Result<Outcome, IommuError> {
        let Way::Ring(ring) = &self.core.way else {
            return Ok(Outcome::Done);
        };
        let batch = core::mem::take(&mut self.batch);
        match ring.finish(self.core, &mut self.ticket, &batch, asked) {
            // A unit that was reset in between has forgotten its queue.
            Err(IommuError::TimedOut { .. } | IommuError::Nonsense { .. })
                if self.core.control.status()? & command::QIE == 0 =>
            {
                Err(IommuError::Stopped)
            }
            outcome => outcome,
        }
    }
}

crate::chassis::handle!(VtdQueue of Core, AtomicU64);

impl Remote {
    /// Requests that make the device forget `extent`.
    pub(super) fn forget(&self, extent: Extent) -> impl Iterator<Item = Request> + use<> {
        let request = Request::DeviceTlb {
            stream: self.stream,
            device: self.device,
            pasid: self.pasid,
            extent,
        };
        let times = if self.device.twice { 2 } else { 1 };
        core::iter::repeat_n(request, times)
    }
}

impl<P: UnitPlatform> VtdQueue<P> {
    /// Has the unit forget cached entries of the interrupt remapping table (6.5.2.7), and waits: for an
    /// embedder with a table of its own, which the driver neither reads nor sets. A mask that is wider
    /// than the unit takes means all entries.
    ///
    /// *Context.* Atomic.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] without interrupt remapping, or without the queue, beside which
    /// there is no other way; else if the unit did not complete.
    pub fn invalidate_interrupt_entries(&self, which: InterruptEntries) -> Result<(), IommuError> {
        let remaps = self.0.control.features.has.contains(VtdFeature::INTERRUPT_REMAPPING);
        match &self.0.way {
            Way::Ring(_) if remaps => self.0.run(&[&[Request::InterruptEntries(which)]]),
            Way::Ring(_) | Way::Direct(_) => Err(IommuError::Unsupported),
        }
    }
}

impl<P: UnitPlatform> TagPool for VtdQueue<P> {
    /// *Context.* Task.
    fn release(&self, context: InvalTag) -> Result<(), IommuError> {
        let (domain, stage) = split_id(context);
        let tag = self.0.tag_of(context).unwrap_or_default();
        let all = Request::Iotlb(Iotlb::Domain { domain });
        let pasids = tag.pasids.iter().map(|&pasid| Request::PasidIotlb {
            domain,
            pasid,
            extent: Extent::All,
        });
        let translations: Vec<_> = pasids.chain([all]).collect();
        let remotes = tag.remotes.iter();
        let remote: Vec<_> = remotes.flat_map(|r| r.forget(Extent::All)).collect();
        self.0.run(&[&translations, &remote])?;
        let gone = self.0.tags.lock().remove(context.get());
        drop(gone);
        let mut first = match stage {
            Stage::First => Some(0),
            Stage::Second => None,
        };
        while let Some((parent, tag)) = first.and_then(|first| self.0.next_tag(first)) {
            if tag.nested.contains(&domain) {
                let other = |of: &u16| *of != domain;
                self.0.tag(parent, |tag| tag.nested.retain(other));
            }
            first = parent.get().checked_add(1);
        }
        self.0.ids.give_back(domain.into());
        Ok(())
    }
}

impl<P: UnitPlatform> Core<P> {
    /// A free domain identifier.
    pub(super) fn take_id(&self) -> Result<u16, IommuError> {
        let id = self.ids.take().ok_or(IommuError::OutOfContexts)?;
        u16::try_from(id).map_err(|_| IommuError::OutOfContexts)
    }
}
