//! What all handles to a unit share: registers, memory, the way invalidations take, identifiers,
//! and who is reached by what each identifier tags.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, section 6.5.
//! Stages of an invalidation are told apart by waits with a fence: configuration before
//! translations before device TLBs (6.5.3), so that nothing is cached again from what is stale.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use portolan::addr::{ContextId, PageSize};
use portolan::inval::{Command, Depth, InvalidationQueue, Run, Step};
use portolan::platform::{Cpus, Guarded, Mmio, TableMem};
use portolan::unit::{ContextHome, UnitError};

use super::control::Control;
use super::direct::Direct;
use super::features::Has;
use super::request::{Contexts, DeviceTlb, Extent, Hint, Iotlb, Request};
use super::ring::{Batch, Owner, Ring};
use crate::ids::Ids;

/// Device-TLB invalidations of one plan beyond which each device forgets everything instead.
const MAX_DEVICE_EXTENTS: usize = 64;

/// Bit of a context identifier that says first stage; below it the domain identifier.
const FIRST: u32 = 1 << 16;

/// Which stage a context identifier tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    First,
    Second,
}

/// The identifier of the domain `domain` of `stage`.
pub(super) fn context_id(domain: u16, stage: Stage) -> ContextId {
    let flag = match stage {
        Stage::First => FIRST,
        Stage::Second => 0,
    };
    ContextId::new(u32::from(domain) | flag)
}

/// The domain identifier and the stage in a context identifier.
pub(super) fn split_id(context: ContextId) -> (u16, Stage) {
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

/// What an identifier tags.
#[derive(Clone, Debug, Default)]
pub(super) struct Tag {
    /// PASIDs under which a first stage is cached, once for each attachment.
    pub(super) pasids: Vec<u32>,
    /// Device TLBs.
    pub(super) remotes: Vec<Remote>,
    /// First stages nested in a second one.
    pub(super) nested: Vec<u16>,
}

/// The way that invalidations take.
#[derive(Debug)]
pub(super) enum Way<C: Cpus> {
    Ring(Ring<C>),
    Direct(Direct),
}

/// Shared by the unit, its handles and its domains.
#[derive(Debug)]
pub(super) struct Core<R, M, C: Cpus> {
    pub(super) control: Control<R, C>,
    pub(super) mem: M,
    pub(super) way: Way<C>,
    pub(super) ids: Ids<C>,
    pub(super) tags: Guarded<C, BTreeMap<u32, Arc<Tag>>>,
    /// Translation is off for good, and everything was invalidated: nothing is owed any more.
    pub(super) released: AtomicBool,
}

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> Core<R, M, C> {
    /// Changes what `context` tags.
    pub(super) fn tag(&self, context: ContextId, change: impl FnOnce(&mut Tag)) {
        let mut tags = self.tags.lock();
        change(Arc::make_mut(tags.entry(context.get()).or_default()));
    }

    fn tag_of(&self, context: ContextId) -> Arc<Tag> {
        let tags = self.tags.lock();
        tags.get(&context.get()).cloned().unwrap_or_default()
    }

    /// Carries out `stages` one after another, each complete before the next begins, and waits.
    pub(super) fn run(&self, stages: &[&[Request]]) -> Result<(), UnitError> {
        if self.released.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut sending = Sending::new(self);
        let result = sending.all(stages);
        sending.leave(result)
    }
}

/// Requests under way from one caller.
struct Sending<'a, R, M, C: Cpus> {
    core: &'a Core<R, M, C>,
    owner: Owner,
    batch: Batch,
}

impl<'a, R: Mmio, M: TableMem<AtomicU64>, C: Cpus> Sending<'a, R, M, C> {
    fn new(core: &'a Core<R, M, C>) -> Self {
        let owner = match &core.way {
            Way::Ring(ring) => ring.owner(),
            Way::Direct(_) => 0,
        };
        let batch = Batch::new();
        Self { core, owner, batch }
    }

    fn all(&mut self, stages: &[&[Request]]) -> Result<(), UnitError> {
        let mut stages = stages.iter().filter(|stage| !stage.is_empty()).peekable();
        while let Some(stage) = stages.next() {
            for request in *stage {
                self.send(*request)?;
            }
            match stages.peek() {
                Some(_) => self.fence()?,
                None => self.wait()?,
            }
        }
        Ok(())
    }

    fn send(&mut self, request: Request) -> Result<(), UnitError> {
        let control = &self.core.control;
        match &self.core.way {
            Way::Ring(_) => {
                let words = request.words(&control.features);
                if self.batch.is_full() {
                    self.flush()?;
                }
                self.batch.push((request.kind(), words));
                Ok(())
            }
            Way::Direct(direct) => match request {
                Request::Contexts(what) => direct.contexts(control, what),
                Request::Iotlb(what) => direct.iotlb(control, what),
                _ => Err(UnitError::Unsupported),
            },
        }
    }

    fn flush(&mut self) -> Result<(), UnitError> {
        if let Way::Ring(ring) = &self.core.way {
            let core = self.core;
            ring.submit(&core.control, &core.mem, self.owner, &self.batch)?;
            self.batch.clear();
        }
        Ok(())
    }

    /// Everything before is complete before anything after begins.
    fn fence(&mut self) -> Result<(), UnitError> {
        self.flush()?;
        if let Way::Ring(ring) = &self.core.way {
            ring.submit_wait(&self.core.control, &self.core.mem, self.owner)?;
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<(), UnitError> {
        self.flush()?;
        if let Way::Ring(ring) = &self.core.way {
            let (control, mem) = (&self.core.control, &self.core.mem);
            let ticket = ring.submit_wait(control, mem, self.owner)?;
            ring.wait(control, mem, self.owner, ticket)?;
        }
        Ok(())
    }

    /// Ends the sending, whatever became of it.
    fn leave(self, result: Result<(), UnitError>) -> Result<(), UnitError> {
        let Way::Ring(ring) = &self.core.way else {
            return result;
        };
        match result {
            Ok(()) => match ring.leave(self.owner) {
                Some(code) => Err(UnitError::Refused { code }),
                None => Ok(()),
            },
            Err(error) => {
                ring.abandon(self.owner);
                Err(error)
            }
        }
    }
}

/// A handle to the unit's invalidations, which its domains hold.
#[derive(Debug)]
pub struct VtdQueue<R, M, C: Cpus>(pub(super) Arc<Core<R, M, C>>);

impl<R, M, C: Cpus> Clone for VtdQueue<R, M, C> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Steps of a plan being turned into requests.
struct Paying<'a, R, M, C: Cpus> {
    sending: Sending<'a, R, M, C>,
    /// What device TLBs have to forget, once the unit itself has.
    remote: Vec<Request>,
}

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> Paying<'_, R, M, C> {
    fn step(&mut self, step: Step) -> Result<(), UnitError> {
        let core = self.sending.core;
        match step {
            Step::Clean(bytes) => core.mem.clean(bytes),
            Step::CleanBarrier => core.mem.clean_barrier(),
            Step::FlushWriteBuffer => core.control.flush_write_buffer()?,
            Step::Invalidate(command) => self.invalidate(command)?,
            Step::Sync => {
                if !self.remote.is_empty() {
                    self.sending.fence()?;
                }
                for request in core::mem::take(&mut self.remote) {
                    self.sending.send(request)?;
                }
                self.sending.wait()?;
            }
        }
        Ok(())
    }

    fn invalidate(&mut self, command: Command) -> Result<(), UnitError> {
        let features = &self.sending.core.control.features;
        let hint = |depth| match depth {
            Depth::LeafOnly => Hint::LeavesOnly,
            Depth::AllLevels => Hint::AllLevels,
        };
        let (context, start, lg2, hint) = match command {
            Command::Page {
                context,
                iova,
                size,
                depth,
            } => (context, iova.get(), size.lg2() - 12, hint(depth)),
            Command::Range {
                context,
                run,
                granule,
                depth,
            } => {
                let (start, lg2) = aligned(run, granule);
                (context, start, lg2, hint(depth))
            }
            Command::Context { context } => return self.extent(context, Extent::All),
            Command::Global => return self.sending.send(Request::Iotlb(Iotlb::All)),
            Command::Configuration { .. } => {
                self.sending.send(Request::Contexts(Contexts::All))?;
                if features.has.contains(Has::SCALABLE) {
                    self.sending.send(Request::PasidCacheAll)?;
                }
                return Ok(());
            }
        };
        let selective = features.has.contains(Has::PAGE_SELECTIVE);
        if !selective || lg2 > u32::from(features.max_mask) {
            return self.extent(context, Extent::All);
        }
        let extent = Extent::Pages {
            start: start >> (12 + lg2) << (12 + lg2),
            lg2_pages: lg2 as u8,
            hint,
        };
        self.extent(context, extent)
    }

    /// Everything that holds translations of `context` forgets those of `extent`.
    fn extent(&mut self, context: ContextId, extent: Extent) -> Result<(), UnitError> {
        let (domain, stage) = split_id(context);
        let tag = self.sending.core.tag_of(context);
        match stage {
            Stage::Second => self.sending.send(Request::Iotlb(iotlb(domain, extent)))?,
            Stage::First => {
                let mut pasids = tag.pasids.clone();
                pasids.sort_unstable();
                pasids.dedup();
                for pasid in pasids {
                    let request = Request::PasidIotlb {
                        domain,
                        pasid,
                        extent,
                    };
                    self.sending.send(request)?;
                }
            }
        }
        // What hangs on a second stage is tagged by addresses of the first: all of it goes.
        for &domain in &tag.nested {
            self.sending
                .send(Request::Iotlb(Iotlb::Domain { domain }))?;
            let tag = self.sending.core.tag_of(context_id(domain, Stage::First));
            for &pasid in &tag.pasids {
                let extent = Extent::All;
                let request = Request::PasidIotlb {
                    domain,
                    pasid,
                    extent,
                };
                self.sending.send(request)?;
            }
            self.remotes(&tag.remotes, Extent::All);
        }
        self.remotes(&tag.remotes, extent);
        Ok(())
    }

    fn remotes(&mut self, remotes: &[Remote], extent: Extent) {
        if self.remote.len() + remotes.len() > MAX_DEVICE_EXTENTS.max(remotes.len()) {
            for request in &mut self.remote {
                if let Request::DeviceTlb { extent, .. } = request {
                    *extent = Extent::All;
                }
            }
        }
        for remote in remotes {
            let request = |extent| remote.forget(extent);
            if !self.remote.contains(&request(Extent::All)) {
                self.remote.push(request(extent));
            }
        }
        let mut seen = Vec::new();
        self.remote.retain(|request| {
            let new = !seen.contains(request);
            seen.push(*request);
            new
        });
    }
}

impl Remote {
    pub(super) fn forget(&self, extent: Extent) -> Request {
        Request::DeviceTlb {
            stream: self.stream,
            device: self.device,
            pasid: self.pasid,
            extent,
        }
    }
}

/// The smallest aligned power of two of 4 KiB pages that covers `run`: start and exponent.
fn aligned(run: Run, granule: PageSize) -> (u64, u32) {
    let range = run.range(granule);
    let differ = (range.start().get() ^ range.last().get()) >> 12;
    (range.start().get(), 64 - differ.leading_zeros())
}

fn iotlb(domain: u16, extent: Extent) -> Iotlb {
    match extent {
        Extent::All => Iotlb::Domain { domain },
        Extent::Pages {
            start,
            lg2_pages,
            hint,
        } => Iotlb::Pages {
            domain,
            start,
            lg2_pages,
            hint,
        },
    }
}

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> InvalidationQueue for VtdQueue<R, M, C> {
    type Error = UnitError;

    fn execute(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), UnitError> {
        if self.0.released.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut paying = Paying {
            sending: Sending::new(&self.0),
            remote: Vec::new(),
        };
        let mut result = Ok(());
        for step in steps {
            result = paying.step(step);
            if result.is_err() {
                break;
            }
        }
        paying.sending.leave(result)
    }
}

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> ContextHome for VtdQueue<R, M, C> {
    fn retire(&self, context: ContextId) -> Result<(), UnitError> {
        let (domain, stage) = split_id(context);
        let tag = self.0.tag_of(context);
        let all = Request::Iotlb(Iotlb::Domain { domain });
        let pasids = tag.pasids.iter().map(|&pasid| Request::PasidIotlb {
            domain,
            pasid,
            extent: Extent::All,
        });
        let translations: Vec<_> = pasids.chain([all]).collect();
        let remote: Vec<_> = tag.remotes.iter().map(|r| r.forget(Extent::All)).collect();
        self.0.run(&[&translations, &remote])?;
        let mut tags = self.0.tags.lock();
        tags.remove(&context.get());
        if stage == Stage::First {
            for tag in tags.values_mut() {
                if tag.nested.contains(&domain) {
                    Arc::make_mut(tag).nested.retain(|of| *of != domain);
                }
            }
        }
        drop(tags);
        self.0.ids.give_back(domain.into());
        Ok(())
    }
}

impl<R, M, C: Cpus> Core<R, M, C> {
    /// A free domain identifier.
    pub(super) fn take_id(&self) -> Result<u16, UnitError> {
        let id = self.ids.take().ok_or(UnitError::OutOfContexts)?;
        u16::try_from(id).map_err(|_| UnitError::OutOfContexts)
    }
}
