//! Moving streams: blocked, passed through, or attached to a domain.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 3.4, 6.5.3
//! (what to invalidate after which change, in which order) and 9.3 to 9.6.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::AtomicU64;

use portolan::addr::{InvalTag, Pasid, StreamId};
use portolan::iommu::{
    AttachError, Domain, FaultEvent, FaultReason, Iommu, IommuError, ReservedRegion,
};
use portolan::platform::{Cpus, Mmio, TableMem, poll};
use portolan::table::format::{VtdFirstLevels, VtdLevels};

use super::core::{Remote, split_id};
use super::features::Has;
use super::lists::with_room;
use super::request::{Contexts, DeviceTlb, Ending, Extent, Iotlb, Request};
use super::spec::ADDRESS;
use super::spec::entry::{P, scalable};
use super::structures::{ABSENT, Forget, Mode, Structures, change};
use super::unit::{Device, History, Known, PASS, Vtd};
use crate::chassis::entry::At;

/// A domain that is kept alive.
#[derive(Clone)]
pub(super) struct Kept(pub(super) Arc<dyn Domain + Send + Sync>);

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

/// Where a stream, or one PASID of it, is.
#[derive(Clone, Debug)]
pub(super) struct Home {
    /// Domain identifier in its entry.
    pub(super) id: u16,
    /// What tags its translations; nothing when it passes through.
    pub(super) context: Option<InvalTag>,
    pub(super) remote: Option<Remote>,
    /// Never read: holds the domain. Pass-through has none.
    pub(super) kept: Option<Kept>,
}

/// Where a stream is to go.
#[derive(Clone, Debug)]
pub(super) enum Target {
    Blocked,
    Pass,
    Second {
        context: InvalTag,
        root: u64,
        levels: VtdLevels,
        kept: Kept,
    },
    First {
        context: InvalTag,
        root: u64,
        levels: VtdFirstLevels,
        kept: Kept,
    },
}

/// PASID of requests without one.
pub(super) const RID_PASID: u32 = 0;

/// The device TLB of a stream, as far as it concerns one PASID.
fn remote((stream, pasid): (u16, u32), device: DeviceTlb) -> Remote {
    Remote {
        stream,
        pasid: (pasid != RID_PASID).then_some(pasid),
        device,
    }
}

impl Known {
    /// The device TLB of a stream, if it may be used once the home at `key` is left: not while
    /// another PASID is attached whose domain does not know of it.
    fn usable_device(&self, (stream, pasid): (u16, u32)) -> Option<Device> {
        let device = self.devices.get(stream).copied()?;
        let mut others = self.homes.range((stream, 0), (stream, u32::MAX));
        let told = others.all(|((_, other), home)| *other == pasid || home.remote.is_some());
        told.then_some(device)
    }
}

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> Vtd<R, M, C> {
    /// Blocks all streams.
    ///
    /// # Errors
    /// The first failure; the others are tried all the same.
    pub fn block_all(&self) -> Result<(), AttachError> {
        let all: Vec<_> = {
            let count = {
                let known = self.known.lock();
                known.homes.len() + known.limbo.len()
            };
            let mut all = Vec::with_capacity(count);
            let known = self.known.lock();
            let homes = known.homes.iter().map(|(key, _)| *key);
            let limbo = known.limbo.iter().map(|(key, _)| *key);
            // What is attached in between is not blocked by this.
            all.extend(homes.chain(limbo).take(count));
            all
        };
        let mut result = Ok(());
        for (stream, pasid) in all {
            let moved = self.go(StreamId::new(stream.into()), pasid, Target::Blocked);
            result = result.and(moved);
        }
        result
    }

    /// A PASID that the tables have room for, other than that of requests without one.
    pub(super) fn checked(&self, pasid: Pasid) -> Result<u32, AttachError> {
        let bits = self.config.pasid_bits.min(self.features().pasid_bits);
        let fits = self.config.mode == Mode::Scalable && pasid.get() >> bits == 0;
        match fits && pasid.get() != RID_PASID {
            true => Ok(pasid.get()),
            false => Err(AttachError::Mismatch),
        }
    }

    pub(super) fn go(
        &self,
        stream: StreamId,
        pasid: u32,
        target: Target,
    ) -> Result<(), AttachError> {
        let sid = u16::try_from(stream.get()).map_err(|_| AttachError::NoSuchStream { stream })?;
        let (clock, limit) = (&self.core.control.clock, self.config.limit);
        let key = (sid, pasid);
        let move_to = |tables: &mut Structures| self.move_to(tables, key, &target);
        let left = self.structures.with(clock, limit, move_to)?;
        self.wait_for_looks();
        // Whoever else was waiting to move a stream need not wait for the end of a domain.
        left.map(drop)
    }

    /// Waits until no reader of a fault looks at a domain that is about to be left: a few steps of
    /// another CPU. One that is held up for longer than the limit may find itself the last to hold
    /// the domain.
    pub(super) fn wait_for_looks(&self) {
        let over = || (self.known.lock().looks == 0).then_some(());
        let _ = poll(&self.core.control.clock, self.config.limit, over);
    }

    /// Moves a stream; returns where it was.
    fn move_to(
        &self,
        tables: &mut Structures,
        key: (u16, u32),
        target: &Target,
    ) -> Result<Option<Home>, AttachError> {
        self.settle(key)?;
        let (old, device) = {
            let known = self.known.lock();
            (known.homes.get(key).cloned(), known.usable_device(key))
        };
        // With a legacy entry that passes through, device TLBs get nothing.
        let legacy = self.config.mode == Mode::Legacy;
        let device = device.filter(|_| !(legacy && matches!(target, Target::Pass)));
        let new = target.home(device.map(|device| remote(key, device.tlb)));
        if old.is_none() && new.is_none() {
            return Ok(None);
        }
        let words = self.words(target, new.as_ref())?;
        if let (Some(home), Some(device)) = (&new, device) {
            self.forget_history(home, device)?;
        }
        if new.is_some() {
            self.room_for_one();
        }
        let at = self.entry(tables, key)?;
        if let Some(home) = &new {
            self.note(home, key.1);
        }
        let forget_old = self.forget(key, old.as_ref());
        let forget_absence = self.forget_absence(key, new.as_ref());
        let forget = Forget {
            old: &forget_old.each_ref().map(Vec::as_slice),
            ending: self.ending(old.as_ref()),
            absence: &forget_absence.each_ref().map(Vec::as_slice),
        };
        let changed = change(&self.core, at, &words, forget);
        if changed.is_err() {
            // Absent, so that whatever comes, no more of it is looked up.
            let _ = change(&self.core, at, &ABSENT, Forget::NOTHING);
        }
        self.settle_in(key, new, changed)?;
        if let Some(old) = &old {
            self.forget_note(old, key.1);
        }
        Ok(old)
    }

    /// What else than invalidations to wait for when a home is left: page requests that the device
    /// sent from it, so that none is taken for one of whoever gets the PASID next (7.10).
    fn ending(&self, home: Option<&Home>) -> Ending {
        let sends = home.is_some_and(|home| home.remote.is_some());
        let drains = self.features().has.contains(Has::PAGE_REQUEST_DRAIN);
        match sends && drains && self.page_requests_are_read() {
            true => Ending::Drained,
            false => Ending::Plain,
        }
    }

    /// Has a device forget what it may hold of before it was this unit's, or was gone.
    fn forget_history(&self, home: &Home, device: Device) -> Result<(), IommuError> {
        match (device.history, home.remote) {
            (History::Unknown, Some(remote)) => self.core.run(&[&[remote.forget(Extent::All)]]),
            _ => Ok(()),
        }
    }

    /// Notes where the stream is now, or what it may still reach. There is room for either.
    fn settle_in(
        &self,
        key: (u16, u32),
        new: Option<Home>,
        changed: Result<(), IommuError>,
    ) -> Result<(), IommuError> {
        let (old, _new) = {
            let mut known = self.known.lock();
            let old = known.homes.remove(key);
            match (&changed, new) {
                (Ok(()), Some(new)) => (old, known.homes.insert(key, new)),
                (Ok(()), None) => (old, None),
                (Err(_), new) => {
                    let stuck = old.into_iter().chain(new).map(|home| (key, home));
                    known.limbo.extend(stuck);
                    (None, None)
                }
            }
        };
        drop(old);
        changed
    }

    /// Once more invalidates what a failure left over at `key`, before anything else happens to it.
    fn settle(&self, key: (u16, u32)) -> Result<(), IommuError> {
        loop {
            let home = {
                let known = self.known.lock();
                let found = known.limbo.iter().find(|(at, _)| *at == key);
                found.map(|(_, home)| home.clone())
            };
            let Some(home) = home else { return Ok(()) };
            let stages = self.forget(key, Some(&home));
            let ending = self.ending(Some(&home));
            self.core
                .run_to(&stages.each_ref().map(Vec::as_slice), ending)?;
            self.forget_note(&home, key.1);
            let settled = {
                let mut known = self.known.lock();
                let at = known.limbo.iter().position(|(at, _)| *at == key);
                at.map(|at| known.limbo.remove(at))
            };
            drop((home, settled));
        }
    }

    /// From now on invalidations of the home's domain reach this stream.
    fn note(&self, home: &Home, pasid: u32) {
        if let Some(context) = home.context {
            self.core.tag(context, |tag| {
                let at = tag.pasids.partition_point(|of| *of < pasid);
                tag.pasids.insert(at, pasid);
                tag.remotes.extend(home.remote);
            });
        }
    }

    pub(super) fn forget_note(&self, home: &Home, pasid: u32) {
        let Some(context) = home.context else { return };
        self.core.untag(context, |tag| {
            if let Some(at) = tag.pasids.iter().position(|of| *of == pasid) {
                tag.pasids.remove(at);
            }
            let remote = home.remote;
            if let Some(at) = tag.remotes.iter().position(|of| Some(*of) == remote) {
                tag.remotes.remove(at);
            }
        });
    }

    /// What hardware has to forget when `home` is left: configuration, translations, device TLB.
    fn forget(&self, (stream, pasid): (u16, u32), home: Option<&Home>) -> [Vec<Request>; 3] {
        let Some(home) = home else {
            return Default::default();
        };
        let domain = home.id;
        let mut stages: [Vec<Request>; 3] = Default::default();
        // Whether or not it was used for `home`: it may be from now on, while `home` is left.
        let device = self.known.lock().devices.get(stream).copied();
        let device = device.map(|device| remote((stream, pasid), device.tlb));
        match self.config.mode {
            Mode::Legacy => {
                let context = Contexts::Device { domain, stream };
                stages[0].push(Request::Contexts(context));
            }
            Mode::Scalable => {
                if home.context.is_none() {
                    // QEMU notices the end of pass-through with the context cache only.
                    let context = Contexts::Device { domain, stream };
                    stages[0].push(Request::Contexts(context));
                }
                stages[0].push(Request::PasidCache { domain, pasid });
                let extent = Extent::All;
                stages[1].push(Request::PasidIotlb {
                    domain,
                    pasid,
                    extent,
                });
            }
        }
        stages[1].push(Request::Iotlb(Iotlb::Domain { domain }));
        let remote = home.remote.or(device);
        stages[2].extend(remote.map(|remote| remote.forget(Extent::All)));
        stages
    }

    /// What caching mode has kept of there being no entry: tagged with domain 0 where the entry
    /// would have named one (6.1).
    fn forget_absence(&self, key: (u16, u32), home: Option<&Home>) -> [Vec<Request>; 3] {
        let mut stages = self.forget(key, home);
        stages[2].clear();
        if home.is_some() {
            let (domain, stream) = (0, key.0);
            let context = Contexts::Device { domain, stream };
            stages[0].insert(0, Request::Contexts(context));
        }
        stages
    }

    /// The entry that decides about a stream and a PASID, made if there is none.
    fn entry(&self, structures: &mut Structures, key: (u16, u32)) -> Result<At, IommuError> {
        let (stream, pasid) = key;
        let context = structures.context(&self.core, stream)?;
        if structures.mode == Mode::Legacy {
            return Ok(context);
        }
        let directory = structures.directory(&self.core, stream)?;
        let at = structures.pasid(&self.core, stream, pasid)?;
        let code = structures.directory_code();
        let has = self.features().has;
        let flag = |condition: bool, bit: u64| if condition { bit } else { 0 };
        let known = self.known.lock();
        let device = known.usable_device(key).is_some();
        let stale = known.stale.get(stream).is_some();
        drop(known);
        let requests = device && self.page_requests_are_read();
        let mut words = ABSENT;
        words[0] = directory.get() & ADDRESS
            | scalable::PDTS.at(code)
            | flag(device, scalable::DTE)
            | flag(has.contains(Has::PASID), scalable::PASIDE)
            | flag(requests, scalable::PRE)
            | P;
        words[1] = scalable::RID_PASID.at(RID_PASID.into());
        let (domain, all) = (0, Request::Iotlb(Iotlb::All));
        let context_cache = [Request::Contexts(Contexts::Device { domain, stream })];
        let forget = Forget {
            old: &[&context_cache, &[Request::PasidCacheAll], &[all]],
            ending: Ending::Plain,
            absence: &[&context_cache],
        };
        if stale {
            self.core.run(forget.old)?;
            self.known.lock().stale.remove(stream);
        }
        if let Err(error) = change(&self.core, context, &words, forget) {
            with_room(
                &self.known,
                |known| known.stale.list(),
                1,
                |known| known.stale.insert(stream, ()),
            );
            return Err(error);
        }
        Ok(at)
    }
}

impl Target {
    fn home(&self, remote: Option<Remote>) -> Option<Home> {
        let (context, kept) = match self {
            Self::Blocked => return None,
            Self::Pass => {
                return Some(Home {
                    id: PASS,
                    context: None,
                    remote,
                    kept: None,
                });
            }
            Self::Second { context, kept, .. } => (*context, kept),
            Self::First { context, kept, .. } => (*context, kept),
        };
        Some(Home {
            id: split_id(context).0,
            context: Some(context),
            remote,
            kept: Some(kept.clone()),
        })
    }
}

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> Iommu for Vtd<R, M, C> {
    fn block(&self, stream: StreamId) -> Result<(), AttachError> {
        self.go(stream, RID_PASID, Target::Blocked)
    }

    /// Page requests that the device sent before are in the queue by then, if the unit can drain them
    /// (7.10).
    fn block_pasid(&self, stream: StreamId, pasid: Pasid) -> Result<(), AttachError> {
        self.go(stream, self.checked(pasid)?, Target::Blocked)
    }

    fn pass_through(&self, stream: StreamId) -> Result<(), AttachError> {
        if !self.features().has.contains(Has::PASS_THROUGH) {
            return Err(IommuError::Unsupported.into());
        }
        self.go(stream, RID_PASID, Target::Pass)
    }

    fn reserved(&self, stream: StreamId, each: &mut dyn FnMut(ReservedRegion)) {
        self.config.reserved.of(stream, each);
    }

    /// *Context.* Interrupt.
    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        let mut event = self.faults.next(&self.core.control)?;
        if let Some(FaultEvent::Fault(record)) = &mut event {
            // One code stands for both: what the tables say now tells which.
            if let (FaultReason::Permission, Some(iova)) = (record.reason, record.iova) {
                let pasid = record.pasid.map_or(RID_PASID, Pasid::get);
                let key = (record.stream.get() as u16, pasid);
                let kept = {
                    let mut known = self.known.lock();
                    let home = known.homes.get(key);
                    let kept = home.and_then(|home| home.kept.clone());
                    known.looks += u32::from(kept.is_some());
                    kept
                };
                if let Some(kept) = kept {
                    let mapped = kept.0.translate(iova).is_some();
                    // Whoever moves the stream away meanwhile keeps the domain until the look is
                    // over: it never ends here, where nobody may wait for that.
                    drop(kept);
                    self.known.lock().looks -= 1;
                    if !mapped {
                        record.reason = FaultReason::NotMapped;
                    }
                }
            }
        }
        Ok(event)
    }
}
