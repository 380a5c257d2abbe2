//! Moving streams: blocked, passed through, or attached to a domain.
//!
//! Tegra X1 Technical Reference Manual, chapter 17.5: a swgroup's register names its address space,
//! and one write moves all its clients. A blocked swgroup is in an address space without tables,
//! since clients that are not translated pass. Translations are tagged by address space, so that
//! moving a stream makes none of them stale.

use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::AtomicU32;

use portolan::addr::StreamId;
use portolan::iommu::{Attach, AttachError, Domain, FaultEvent, Iommu, IommuError, ReservedRegion};
use portolan::platform::{Cpus, Mmio, TableMem};

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
    pub(super) fn block_all(&self) -> Result<(), IommuError> {
        let mut result = Ok(());
        for (n, group) in self.shared.chip.swgroups().iter().enumerate() {
            let blocked = {
                let known = self.known.lock();
                let mut place = known.places.get(n).into_iter();
                place.all(|place| place.home.is_none() && !place.unsure)
            };
            if !blocked {
                result = result.and(self.go(n, group, None));
            }
        }
        result
    }

    /// The swgroup of `stream`, and its number among them.
    fn group(&self, stream: StreamId) -> Result<(usize, &'static Swgroup), AttachError> {
        let mut groups = self.shared.chip.swgroups().iter().enumerate();
        let found = groups.find(|(_, group)| group.stream == stream);
        found.ok_or(AttachError::NoSuchStream { stream })
    }

    /// Moves swgroup `n`.
    fn go(&self, n: usize, group: &Swgroup, new: Option<Home>) -> Result<(), IommuError> {
        let shared = &*self.shared;
        if matches!(new, Some(Home::Passed)) && group.enables == Enables::ReadOnly {
            return Err(IommuError::Unsupported);
        }
        let mut known = self.known.lock();
        let Known { places, enables } = &mut *known;
        let Some(place) = places.get_mut(n) else {
            return Err(IommuError::Unsupported);
        };
        if place.unsure {
            // What a failure left over is out of reach before anything new comes into it.
            shared.place(enables, group, None, Written::Unsure)?;
        }
        let left = core::mem::take(&mut place.stuck);
        place.unsure = false;
        let moved = shared.place(enables, group, new.as_ref(), Written::AsNoted);
        let mut old = core::mem::take(&mut place.home);
        if moved.is_ok() {
            place.home = new;
        } else {
            place.unsure = true;
            place.stuck = [old.take(), new];
            // As far as the hardware follows, it reaches nothing any more.
            let _ = shared.place(enables, group, None, Written::Unsure);
        }
        drop(known);
        // Domains that nobody else holds say good-bye to the hardware here.
        drop((old, left));
        moved
    }
}

/// Whether the enable bits of a swgroup's clients are known to be as they were last written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    AsNoted,
    Unsure,
}

impl<R: Mmio, M: TableMem<AtomicU32>, C: Cpus> Shared<R, M, C> {
    /// Writes where `group` is, and checks that the registers took it.
    fn place(
        &self,
        enables: &mut [u32; reg::ENABLES.len()],
        group: &Swgroup,
        home: Option<&Home>,
        written: Written,
    ) -> Result<(), IommuError> {
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
                let before = enables[n];
                let after = match passed {
                    true => before & !bits,
                    false => before | bits,
                };
                if before != after || (bits != 0 && written == Written::Unsure) {
                    enables[n] = after;
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

/// *Context.* Interrupt: `next_fault`. Task: the others, since a domain that a stream leaves may
/// end there.
impl<R: Mmio, M: TableMem<AtomicU32>, C: Cpus> Iommu for TegraSmmu<R, M, C> {
    fn block(&self, stream: StreamId) -> Result<(), AttachError> {
        let (n, group) = self.group(stream)?;
        Ok(self.go(n, group, None)?)
    }

    fn pass_through(&self, stream: StreamId) -> Result<(), AttachError> {
        let (n, group) = self.group(stream)?;
        Ok(self.go(n, group, Some(Home::Passed))?)
    }

    fn reserved(&self, stream: StreamId, each: &mut dyn FnMut(ReservedRegion)) {
        self.reservations().of(stream, each);
    }

    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
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
        let (n, group) = self.group(stream)?;
        Ok(self.go(n, group, Some(home))?)
    }
}
