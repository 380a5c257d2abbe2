//! Moving streams: blocked, passed through, or attached to a domain.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.2.2
//! and 2.4 (what to invalidate after which change).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::AtomicU64;

use portolan::addr::StreamId;
use portolan::platform::{Cpus, Mmio, TableMem};
use portolan::unit::{Attach, AttachError, Domain, FaultEvent, FaultReason, Unit, UnitError};

use super::command::{self, Counted};
use super::device_table::Forget;
use super::shared::Shared;
use super::spec::ADDRESS;
use super::spec::entry::{DOMAIN, IR, IW, MODE, WORDS};
use super::unit::{AmdDomain, AmdVi, PASS};
use super::update::BLOCKED;

/// A domain that is kept alive.
#[derive(Clone)]
pub(super) struct Kept(#[allow(dead_code)] Arc<dyn Domain + Send + Sync>);

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

/// Where a stream is.
#[derive(Clone, Debug)]
pub(super) struct Home {
    /// Domain identifier in its entry.
    id: u16,
    /// Never read: holds the domain. Pass-through has none.
    _kept: Option<Kept>,
}

/// The entry of a stream that is nowhere.
const NOWHERE: [u64; WORDS] = [BLOCKED, 0, 0, 0];

/// What hardware has to forget when `stream` leaves the domain `id`: the entry, and then, so that
/// nothing is cached again from what is stale, the translations.
fn forget(stream: u16, id: u16) -> [Counted; 3] {
    [
        command::device_entry(stream),
        command::fence(),
        command::domain(id),
    ]
}

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> AmdVi<R, M, C> {
    /// Blocks all streams.
    ///
    /// # Errors
    /// The first failure; the others are tried all the same.
    pub fn block_all(&self) -> Result<(), AttachError> {
        let all: Vec<u16> = {
            let known = self.known.lock();
            let limbo = known.limbo.iter().map(|(stream, _)| *stream);
            known.homes.keys().copied().chain(limbo).collect()
        };
        let mut result = Ok(());
        for stream in all {
            let moved = self.go(StreamId::new(stream.into()), NOWHERE, None);
            result = result.and(moved);
        }
        result
    }

    /// Makes the entries of `streams` block, and everything forgotten.
    pub(super) fn block_table<'s>(
        &self,
        streams: impl Iterator<Item = &'s u16>,
    ) -> Result<(), UnitError> {
        let nothing = Forget {
            old: &[],
            blocked: &[],
        };
        for stream in streams {
            self.table
                .change(&self.shared, *stream, NOWHERE, &nothing)?;
        }
        self.shared.forget_everything()
    }

    fn go(
        &self,
        stream: StreamId,
        words: [u64; WORDS],
        new: Option<Home>,
    ) -> Result<(), AttachError> {
        let has = |sid: &u16| u32::from(*sid) < self.table.streams();
        let sid = u16::try_from(stream.get()).ok().filter(has);
        let sid = sid.ok_or(AttachError::NoSuchStream { stream })?;
        let turn = {
            let control = &self.shared.control;
            self.moves.take(&control.clock, control.limit)?
        };
        self.settle(sid)?;
        let old = self.known.lock().homes.get(&sid).cloned();
        let forget_old = old.as_ref().map(|home| forget(sid, home.id));
        let arrive = match (&new, self.caches_absence()) {
            (Some(home), true) => forget(sid, home.id).to_vec(),
            _ => Vec::from([command::device_entry(sid)]),
        };
        let forget = Forget {
            old: forget_old.as_ref().map_or(&[], |all| all.as_slice()),
            blocked: &arrive,
        };
        let changed = self.table.change(&self.shared, sid, words, &forget);
        let left = self.settle_in(sid, new, changed)?;
        drop(turn);
        drop((old, left));
        Ok(())
    }

    fn caches_absence(&self) -> bool {
        use super::capability::Offers;
        let offers = self.features().capability.offers;
        offers.contains(Offers::CACHES_ABSENCE)
    }

    /// Notes where the stream is now, or what it may still reach; returns where it was.
    fn settle_in(
        &self,
        stream: u16,
        new: Option<Home>,
        changed: Result<(), UnitError>,
    ) -> Result<Option<Home>, UnitError> {
        let mut known = self.known.lock();
        let old = known.homes.remove(&stream);
        if let Err(error) = changed {
            let stuck = old.into_iter().chain(new).map(|home| (stream, home));
            known.limbo.extend(stuck);
            return Err(error);
        }
        if let Some(new) = new {
            known.homes.insert(stream, new);
        }
        Ok(old)
    }

    /// Once more invalidates what a failure left over of `stream`, whose entry blocks, before
    /// anything else happens to it.
    fn settle(&self, stream: u16) -> Result<(), UnitError> {
        loop {
            let found = {
                let known = self.known.lock();
                let found = known.limbo.iter().find(|(at, _)| *at == stream);
                found.map(|(_, home)| home.id)
            };
            let Some(id) = found else { return Ok(()) };
            self.shared.run(&mut forget(stream, id).into_iter())?;
            let mut known = self.known.lock();
            let here = |(at, home): &(u16, Home)| *at == stream && home.id == id;
            let at = known.limbo.iter().position(here);
            let settled = at.map(|at| known.limbo.remove(at));
            drop(known);
            drop(settled);
        }
    }
}

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> Unit for AmdVi<R, M, C> {
    fn block(&self, stream: StreamId) -> Result<(), AttachError> {
        self.go(stream, NOWHERE, None)
    }

    fn pass_through(&self, stream: StreamId) -> Result<(), AttachError> {
        let words = [BLOCKED | IR | IW, DOMAIN.at(PASS.into()), 0, 0];
        let home = Home {
            id: PASS,
            _kept: None,
        };
        self.go(stream, words, Some(home))
    }

    fn next_fault(&self) -> Result<Option<FaultEvent>, UnitError> {
        let Shared {
            control, events, ..
        } = &*self.shared;
        let mut event = events.next(control)?;
        if let Some(FaultEvent::Fault(record)) = &mut event {
            let is_fault = matches!(
                record.reason,
                FaultReason::Permission | FaultReason::NotMapped
            );
            let stream = record.stream.get() as u16;
            // An entry that blocks has no tables in which anything could be missing.
            if is_fault && !self.known.lock().homes.contains_key(&stream) {
                record.reason = FaultReason::Blocked;
            }
        }
        Ok(event)
    }
}

impl<R, M, C: Cpus> Attach<AmdDomain<R, M, C>> for AmdVi<R, M, C>
where
    R: Mmio + Send + Sync + 'static,
    M: TableMem<AtomicU64> + Send + Sync + 'static,
    C: Cpus,
{
    fn attach(
        &self,
        stream: StreamId,
        domain: &Arc<AmdDomain<R, M, C>>,
    ) -> Result<(), AttachError> {
        if !Arc::ptr_eq(&domain.queue().0, &self.shared) {
            return Err(AttachError::Mismatch);
        }
        let id = command::domain_of(domain.context());
        let root = domain.table().root().get() & ADDRESS;
        let levels = domain.table().format().levels.count();
        let word = BLOCKED | IR | IW | MODE.at(levels.into()) | root;
        let home = Home {
            id,
            _kept: Some(Kept(domain.clone())),
        };
        self.go(stream, [word, DOMAIN.at(id.into()), 0, 0], Some(home))
    }
}
