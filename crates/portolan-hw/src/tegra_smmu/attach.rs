//! Moving streams: blocked, passed through, or attached to a domain.
//!
//! Tegra X1 Technical Reference Manual, chapter 17.5: a swgroup's register names its address space,
//! and one write moves all its clients. A blocked swgroup is in an address space without tables,
//! since clients that are not translated pass. Translations are tagged by address space, so that
//! moving a stream makes none of them stale.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::AtomicU32;

use portolan::addr::StreamId;
use portolan::platform::{Cpus, Mmio, TableMem};
use portolan::unit::{Attach, AttachError, Domain, FaultEvent, Unit, UnitError};

use super::counts::WriteKind;
use super::domain::TegraDomain;
use super::shared::{BLOCKED, Shared};
use super::spec::reg::{self, asid};
use super::spec::swgroup::{Enables, Swgroup};
use super::unit::{Known, TegraSmmu};

/// A domain that is kept alive.
#[derive(Clone)]
pub(super) struct Kept(#[allow(dead_code)] Arc<dyn Domain + Send + Sync>);

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

/// Where a stream is that is not blocked.
#[derive(Clone, Debug)]
pub(super) enum Home {
    /// Untranslated.
    Passed,
    /// In a domain, which is held.
    Domain {
        /// Its address space.
        id: u32,
        /// Never read.
        _kept: Kept,
    },
}

impl<R: Mmio, M: TableMem<AtomicU32>, C: Cpus> TegraSmmu<R, M, C> {
    /// Blocks all streams that are not.
    ///
    /// # Errors
    /// The first failure; the others are tried all the same.
    pub(super) fn block_all(&self) -> Result<(), UnitError> {
        let all: Vec<StreamId> = {
            let known = self.known.lock();
            known.homes.keys().chain(&known.unsure).copied().collect()
        };
        let mut result = Ok(());
        for stream in all {
            let moved = match self.go(stream, None) {
                Err(AttachError::Unit(error)) => Err(error),
                _ => Ok(()),
            };
            result = result.and(moved);
        }
        result
    }

    fn go(&self, stream: StreamId, new: Option<Home>) -> Result<(), AttachError> {
        let shared = &*self.shared;
        let group = shared.chip.swgroup(stream);
        let group = group.ok_or(AttachError::NoSuchStream { stream })?;
        if matches!(new, Some(Home::Passed)) && group.enables == Enables::ReadOnly {
            return Err(UnitError::Unsupported.into());
        }
        let mut known = self.known.lock();
        let moved = shared.place(&mut known, group, new.as_ref());
        let old = known.homes.remove(&stream);
        if let Err(error) = moved {
            known.unsure.insert(stream);
            // As far as the hardware follows, it reaches nothing any more.
            let _ = shared.place(&mut known, group, None);
            let stuck = old.into_iter().chain(new).map(|home| (stream, home));
            known.limbo.extend(stuck);
            return Err(error.into());
        }
        // What a failure left over is out of reach now.
        known.unsure.remove(&stream);
        let (left, limbo) = core::mem::take(&mut known.limbo)
            .into_iter()
            .partition(|(at, _)| *at == stream);
        known.limbo = limbo;
        let left: Vec<_> = left;
        if let Some(new) = new {
            known.homes.insert(stream, new);
        }
        drop(known);
        // Domains that nobody else holds say good-bye to the hardware here.
        drop((old, left));
        Ok(())
    }
}

impl<R: Mmio, M: TableMem<AtomicU32>, C: Cpus> Shared<R, M, C> {
    /// Writes where `group` is, and checks that the registers took it.
    fn place(
        &self,
        known: &mut Known,
        group: &Swgroup,
        home: Option<&Home>,
    ) -> Result<(), UnitError> {
        let id = match home {
            Some(Home::Domain { id, .. }) => *id,
            Some(Home::Passed) | None => BLOCKED,
        };
        let value = asid::ENABLE | id & asid::VALUE;
        let passed = matches!(home, Some(Home::Passed));
        // A client is never translated by what its swgroup's register held before.
        if !passed {
            self.write(WriteKind::SwgroupAsid, group.register, value);
        }
        if group.enables == Enables::Writable {
            for (n, register) in reg::ENABLES.into_iter().enumerate() {
                let here = |client: &&u8| reg::enables(**client) == register;
                let clients = group.clients.iter().filter(here);
                let bits = clients.fold(0, |bits, client| bits | 1u32 << (client % 32));
                let before = known.enables[n];
                let after = match passed {
                    true => before & !bits,
                    false => before | bits,
                };
                if before != after || (bits != 0 && known.unsure.contains(&group.stream)) {
                    known.enables[n] = after;
                    self.write(WriteKind::Enables, register, after);
                    self.must_hold(register, bits, after & bits)?;
                }
            }
        }
        if passed {
            self.write(WriteKind::SwgroupAsid, group.register, value);
        }
        // Read, it has taken effect; so has everything before it.
        self.must_hold(group.register, asid::ENABLE | asid::VALUE, value)
    }
}

impl<R: Mmio, M: TableMem<AtomicU32>, C: Cpus> Unit for TegraSmmu<R, M, C> {
    fn block(&self, stream: StreamId) -> Result<(), AttachError> {
        self.go(stream, None)
    }

    fn pass_through(&self, stream: StreamId) -> Result<(), AttachError> {
        self.go(stream, Some(Home::Passed))
    }

    fn next_fault(&self) -> Result<Option<FaultEvent>, UnitError> {
        self.fault()
    }
}

impl<R, M, C: Cpus> Attach<TegraDomain<R, M, C>> for TegraSmmu<R, M, C>
where
    R: Mmio + Send + Sync + 'static,
    M: TableMem<AtomicU32> + Send + Sync + 'static,
    C: Cpus,
{
    fn attach(
        &self,
        stream: StreamId,
        domain: &Arc<TegraDomain<R, M, C>>,
    ) -> Result<(), AttachError> {
        if !Arc::ptr_eq(&domain.queue().0, &self.shared) {
            return Err(AttachError::Mismatch);
        }
        let home = Home::Domain {
            id: domain.context().get(),
            _kept: Kept(domain.clone()),
        };
        self.go(stream, Some(home))
    }
}
