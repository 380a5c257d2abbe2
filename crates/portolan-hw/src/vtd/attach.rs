//! Moving streams: blocked, passed through, or attached to a domain.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 3.4, 6.5.3
//! (what to invalidate after which change, in which order) and 9.3 to 9.6.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::AtomicU64;

use portolan::addr::{ContextId, Iova, IovaRange, PageSize, Pasid, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::platform::{Cpus, Mmio, TableMem};
use portolan::table::Access;
use portolan::table::format::{VtdFirstLevels, VtdFirstStage, VtdLevels, VtdSecondStage};
use portolan::unit::{
    Attach, AttachError, Domain, FaultEvent, FaultReason, PagedDomain, Unit, UnitError,
};

use super::core::{Remote, VtdQueue, split_id};
use super::features::{Has, width_code};
use super::request::{Contexts, DeviceTlb, Extent, Iotlb, Request};
use super::spec::ADDRESS;
use super::spec::entry::{self, P, context, pasid as pasid_entry, scalable};
use super::structures::{At, Forget, Mode, change};
use super::unit::{Known, PASS, Vtd};

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
    pub(super) context: Option<ContextId>,
    pub(super) remote: Option<Remote>,
    /// Never read: holds the domain. Pass-through has none.
    pub(super) kept: Option<Kept>,
}

/// Where a stream is to go.
#[derive(Clone, Debug)]
enum Target {
    Blocked,
    Pass,
    Second {
        context: ContextId,
        root: u64,
        levels: VtdLevels,
        kept: Kept,
    },
    First {
        context: ContextId,
        root: u64,
        levels: VtdFirstLevels,
        kept: Kept,
    },
}

/// PASID of requests without one.
const RID_PASID: u32 = 0;

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
    fn usable_device(&self, (stream, pasid): (u16, u32)) -> Option<DeviceTlb> {
        let device = self.devices.get(&stream).copied()?;
        let mut others = self.homes.range((stream, 0)..=(stream, u32::MAX));
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
            let known = self.known.lock();
            let limbo = known.limbo.iter().map(|(key, _)| *key);
            known.homes.keys().copied().chain(limbo).collect()
        };
        let mut result = Ok(());
        for (stream, pasid) in all {
            let moved = self.go(StreamId::new(stream.into()), pasid, Target::Blocked);
            result = result.and(moved);
        }
        result
    }

    /// Blocks the requests of `stream` with `pasid`; see [`Unit::block`].
    ///
    /// # Errors
    /// As [`Unit::block`].
    pub fn block_pasid(&self, stream: StreamId, pasid: Pasid) -> Result<(), AttachError> {
        self.go(stream, self.checked(pasid)?, Target::Blocked)
    }

    /// A PASID that the tables have room for, other than that of requests without one.
    fn checked(&self, pasid: Pasid) -> Result<u32, AttachError> {
        let bits = self.config.pasid_bits.min(self.features().pasid_bits);
        let fits = self.config.mode == Mode::Scalable && pasid.get() >> bits == 0;
        match fits && pasid.get() != RID_PASID {
            true => Ok(pasid.get()),
            false => Err(AttachError::Mismatch),
        }
    }

    fn go(&self, stream: StreamId, pasid: u32, target: Target) -> Result<(), AttachError> {
        let sid = u16::try_from(stream.get()).map_err(|_| AttachError::NoSuchStream { stream })?;
        let turn = {
            let control = &self.core.control;
            self.moves.take(&control.clock, control.limit)?
        };
        let key = (sid, pasid);
        self.settle(key)?;
        let (old, new) = {
            let known = self.known.lock();
            let device = known.usable_device(key);
            // With a legacy entry that passes through, device TLBs get nothing.
            let legacy = self.config.mode == Mode::Legacy;
            let device = device.filter(|_| !(legacy && matches!(target, Target::Pass)));
            let remote = device.map(|device| remote(key, device));
            (known.homes.get(&key).cloned(), target.home(remote))
        };
        if old.is_none() && new.is_none() {
            return Ok(());
        }
        let words = self.words(&target, new.as_ref())?;
        let at = self.entry(key)?;
        if let Some(home) = &new {
            self.note(home, pasid);
        }
        let forget_old = self.forget(key, old.as_ref());
        let forget_absence = self.forget_absence(key, new.as_ref());
        let forget = Forget {
            old: &forget_old.each_ref().map(Vec::as_slice),
            absence: &forget_absence.each_ref().map(Vec::as_slice),
        };
        let changed = change(&self.core, at, &words[..at.words()], forget);
        if changed.is_err() {
            // Absent, so that whatever comes, no more of it is looked up.
            let nothing = Forget {
                old: &[],
                absence: &[],
            };
            let blocked = [0; entry::PASID_WORDS];
            let _ = change(&self.core, at, &blocked[..at.words()], nothing);
        }
        let done = self.settle_in(key, new, changed);
        drop(turn);
        if let (Ok(()), Some(old)) = (&done, &old) {
            self.forget_note(old, pasid);
        }
        drop(old);
        Ok(done?)
    }

    /// Notes where the stream is now, or what it may still reach.
    fn settle_in(
        &self,
        key: (u16, u32),
        new: Option<Home>,
        changed: Result<(), UnitError>,
    ) -> Result<(), UnitError> {
        let mut known = self.known.lock();
        let old = known.homes.remove(&key);
        match (changed, new) {
            (Ok(()), Some(new)) => {
                known.homes.insert(key, new);
            }
            (Ok(()), None) => {}
            (Err(error), new) => {
                let stuck = old.into_iter().chain(new).map(|home| (key, home));
                known.limbo.extend(stuck);
                return Err(error);
            }
        }
        drop(known);
        drop(old);
        Ok(())
    }

    /// Once more invalidates what a failure left over at `key`, before anything else happens to it.
    fn settle(&self, key: (u16, u32)) -> Result<(), UnitError> {
        loop {
            let home = {
                let known = self.known.lock();
                let found = known.limbo.iter().find(|(at, _)| *at == key);
                found.map(|(_, home)| home.clone())
            };
            let Some(home) = home else { return Ok(()) };
            let stages = self.forget(key, Some(&home));
            self.core.run(&stages.each_ref().map(Vec::as_slice))?;
            self.forget_note(&home, key.1);
            let mut known = self.known.lock();
            let at = known.limbo.iter().position(|(at, _)| *at == key);
            let settled = at.map(|at| known.limbo.remove(at));
            drop(known);
            drop((home, settled));
        }
    }

    /// From now on invalidations of the home's domain reach this stream.
    fn note(&self, home: &Home, pasid: u32) {
        if let Some(context) = home.context {
            self.core.tag(context, |tag| {
                tag.pasids.push(pasid);
                tag.remotes.extend(home.remote);
            });
        }
    }

    fn forget_note(&self, home: &Home, pasid: u32) {
        let Some(context) = home.context else { return };
        self.core.tag(context, |tag| {
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
        let device = self.known.lock().devices.get(&stream).copied();
        let device = device.map(|device| remote((stream, pasid), device));
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
    fn entry(&self, key: (u16, u32)) -> Result<At, UnitError> {
        let (stream, pasid) = key;
        let mut structures = self.structures.lock();
        let context = structures.context(&self.core, stream)?;
        if structures.mode == Mode::Legacy {
            return Ok(context);
        }
        let directory = structures.directory(&self.core, stream)?;
        let at = structures.pasid(&self.core, stream, pasid)?;
        let code = structures.directory_code();
        drop(structures);
        let has = self.features().has;
        let flag = |condition: bool, bit: u64| if condition { bit } else { 0 };
        let known = self.known.lock();
        let device = known.usable_device(key).is_some();
        let stale = known.stale.contains(&stream);
        drop(known);
        let requests = device && self.page_requests_are_read();
        let words = [
            directory.get() & ADDRESS
                | scalable::PDTS.at(code)
                | flag(device, scalable::DTE)
                | flag(has.contains(Has::PASID), scalable::PASIDE)
                | flag(requests, scalable::PRE)
                | P,
            scalable::RID_PASID.at(RID_PASID.into()),
            0,
            0,
        ];
        let (domain, all) = (0, Request::Iotlb(Iotlb::All));
        let context_cache = [Request::Contexts(Contexts::Device { domain, stream })];
        let forget = Forget {
            old: &[&context_cache, &[Request::PasidCacheAll], &[all]],
            absence: &[&context_cache],
        };
        if stale {
            self.core.run(forget.old)?;
            self.known.lock().stale.remove(&stream);
        }
        if let Err(error) = change(&self.core, context, &words, forget) {
            self.known.lock().stale.insert(stream);
            return Err(error);
        }
        Ok(at)
    }

    /// The words of the entry for `target`; those of the longest kind, zeros behind.
    fn words(
        &self,
        target: &Target,
        home: Option<&Home>,
    ) -> Result<[u64; entry::PASID_WORDS], AttachError> {
        let mut words = [0; entry::PASID_WORDS];
        let Some(home) = home else { return Ok(words) };
        let device = home.remote.is_some();
        match self.config.mode {
            Mode::Legacy => self.context_words(&mut words, target, home.id, device)?,
            Mode::Scalable => self.pasid_words(&mut words, target, home.id)?,
        }
        words[0] |= P;
        Ok(words)
    }

    /// Width code of entries that pass through: the widest that there is.
    fn widest(&self) -> u64 {
        self.features().second_levels().last().map_or(0, width_code)
    }

    fn context_words(
        &self,
        words: &mut [u64],
        target: &Target,
        id: u16,
        device: bool,
    ) -> Result<(), AttachError> {
        use context::translation as t;
        let (kind, root, width) = match target {
            Target::Second { root, levels, .. } => {
                let kind = if device {
                    t::DEVICE_TLB
                } else {
                    t::UNTRANSLATED
                };
                (kind, *root, width_code(*levels))
            }
            Target::Pass => match self.widest() {
                0 => return Err(UnitError::Unsupported.into()),
                width => (t::PASS, 0, width),
            },
            Target::Blocked | Target::First { .. } => return Err(AttachError::Mismatch),
        };
        words[0] = root & ADDRESS | context::TT.at(kind);
        words[1] = context::AW.at(width) | context::DID.at(id.into());
        Ok(())
    }

    fn pasid_words(&self, words: &mut [u64], target: &Target, id: u16) -> Result<(), AttachError> {
        use pasid_entry::{AW, DID, FSPM, PGTT, PWSNP, translation as t};
        let snoops = self.features().has.contains(Has::SCALABLE_SNOOPS);
        let snoop = if snoops { PWSNP } else { 0 };
        words[1] = DID.at(id.into()) | snoop;
        let second = |root: u64, levels| root & ADDRESS | AW.at(width_code(levels));
        match target {
            Target::Blocked => return Err(AttachError::Mismatch),
            Target::Pass => {
                words[0] = AW.at(self.widest()) | PGTT.at(t::PASS);
                words[1] = DID.at(id.into());
            }
            Target::Second { root, levels, .. } => {
                words[0] = second(*root, *levels) | PGTT.at(t::SECOND);
            }
            Target::First { root, levels, .. } => {
                let (mode, width) = match levels {
                    VtdFirstLevels::Four => (0, width_code(VtdLevels::Four)),
                    VtdFirstLevels::Five => (1, width_code(VtdLevels::Five)),
                };
                words[2] = root & ADDRESS | FSPM.at(mode);
                let known = self.known.lock();
                words[0] = match known.parents.get(&id) {
                    Some(parent) => second(parent.root, parent.levels) | PGTT.at(t::NESTED),
                    // The width is the second stage's, but QEMU limits a first stage by it as well.
                    None => PGTT.at(t::FIRST) | AW.at(width),
                };
            }
        }
        Ok(())
    }

    /// Maps what `stream` reaches at its own addresses into `domain`, unless it is there already.
    fn hold_reserved(&self, stream: StreamId, domain: &impl Domain) -> Result<(), AttachError> {
        let page = PageSize::SIZE_4K;
        for memory in self.reserved(stream) {
            let start = memory.start().align_down(page).get();
            let last = memory.last().get() | (page.bytes() - 1);
            let range = IovaRange::new(Iova::new(start), Iova::new(last));
            let range = range.filter(|range| domain.input_range().covers(*range));
            let range = range.ok_or(AttachError::Mismatch)?;
            let pages = (0..range.pages(page)).map(|n| start + n * page.bytes());
            let there = |at: u64| {
                let found = domain.translate(Iova::new(at));
                found.is_some_and(|found| found.pa == PhysAddr::new(at))
            };
            if pages.clone().all(there) {
                continue;
            }
            let bytes = range.len_minus_one() + 1;
            let access = Access::READ | Access::WRITE;
            let mut owed = Gather::new();
            domain
                .map(
                    range.start(),
                    PhysAddr::new(start),
                    bytes,
                    access,
                    &mut owed,
                )
                .map_err(|_| AttachError::Mismatch)?;
            domain.sync(&mut owed).map_err(UnitError::from)?;
        }
        Ok(())
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

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> Unit for Vtd<R, M, C> {
    fn block(&self, stream: StreamId) -> Result<(), AttachError> {
        self.go(stream, RID_PASID, Target::Blocked)
    }

    fn pass_through(&self, stream: StreamId) -> Result<(), AttachError> {
        if !self.features().has.contains(Has::PASS_THROUGH) {
            return Err(UnitError::Unsupported.into());
        }
        self.go(stream, RID_PASID, Target::Pass)
    }

    fn next_fault(&self) -> Result<Option<FaultEvent>, UnitError> {
        let mut event = self.faults.next(&self.core.control)?;
        if let Some(FaultEvent::Fault(record)) = &mut event {
            // One code stands for both: what the tables say now tells which.
            if let (FaultReason::Permission, Some(iova)) = (record.reason, record.iova) {
                let pasid = record.pasid.map_or(RID_PASID, Pasid::get);
                let kept = {
                    let known = self.known.lock();
                    let key = (record.stream.get() as u16, pasid);
                    known.homes.get(&key).and_then(|home| home.kept.clone())
                };
                if kept.is_some_and(|kept| kept.0.translate(iova).is_none()) {
                    record.reason = FaultReason::NotMapped;
                }
            }
        }
        Ok(event)
    }
}

macro_rules! attach {
    ($format:ident, $stage:ident) => {
        impl<R, M, C: Cpus> Attach<PagedDomain<$format, M, VtdQueue<R, M, C>>> for Vtd<R, M, C>
        where
            R: Mmio + Send + Sync + 'static,
            M: TableMem<AtomicU64> + Send + Sync + 'static,
            C: Cpus,
        {
            fn attach(
                &self,
                stream: StreamId,
                domain: &Arc<PagedDomain<$format, M, VtdQueue<R, M, C>>>,
            ) -> Result<(), AttachError> {
                self.attach_as(stream, RID_PASID, domain)
            }
        }

        impl<R, M, C: Cpus> AttachPasid<PagedDomain<$format, M, VtdQueue<R, M, C>>> for Vtd<R, M, C>
        where
            R: Mmio + Send + Sync + 'static,
            M: TableMem<AtomicU64> + Send + Sync + 'static,
            C: Cpus,
        {
            fn attach_pasid(
                &self,
                stream: StreamId,
                pasid: Pasid,
                domain: &Arc<PagedDomain<$format, M, VtdQueue<R, M, C>>>,
            ) -> Result<(), AttachError> {
                self.attach_as(stream, self.checked(pasid)?, domain)
            }
        }

        impl<R, M, C: Cpus> AttachAs<PagedDomain<$format, M, VtdQueue<R, M, C>>> for Vtd<R, M, C>
        where
            R: Mmio + Send + Sync + 'static,
            M: TableMem<AtomicU64> + Send + Sync + 'static,
            C: Cpus,
        {
            fn attach_as(
                &self,
                stream: StreamId,
                pasid: u32,
                domain: &Arc<PagedDomain<$format, M, VtdQueue<R, M, C>>>,
            ) -> Result<(), AttachError> {
                if !Arc::ptr_eq(&domain.queue().0, &self.core) {
                    return Err(AttachError::Mismatch);
                }
                self.hold_reserved(stream, &**domain)?;
                let target = Target::$stage {
                    context: domain.context(),
                    root: domain.table().root().get(),
                    levels: domain.table().format().levels,
                    kept: Kept(domain.clone()),
                };
                self.go(stream, pasid, target)
            }
        }
    };
}

/// A unit that single PASIDs of a stream can be attached on.
pub trait AttachPasid<D: Domain>: Attach<D> {
    /// As [`Attach::attach`], for the requests of `stream` with `pasid`.
    ///
    /// # Errors
    /// As [`Attach::attach`]; [`AttachError::Mismatch`] outside scalable mode, or for a PASID that
    /// is too wide or is that of requests without one (0).
    fn attach_pasid(
        &self,
        stream: StreamId,
        pasid: Pasid,
        domain: &Arc<D>,
    ) -> Result<(), AttachError>;
}

/// What the two have in common.
trait AttachAs<D> {
    fn attach_as(&self, stream: StreamId, pasid: u32, domain: &Arc<D>) -> Result<(), AttachError>;
}

attach!(VtdSecondStage, Second);
attach!(VtdFirstStage, First);
