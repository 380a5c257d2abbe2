//! Moving streams: blocked, passed through, or attached to a domain.
//!
//! Tegra X1 Technical Reference Manual, chapter 17.5: a swgroup's register names its address space,
//! and one write moves all its clients. A blocked swgroup is in an address space without tables,
//! since clients that are not translated pass. Translations are tagged by address space, so that
//! moving a stream makes none of them stale.

use crate::turn::TurnWait;
use alloc::sync::Arc;
use core::sync::atomic::AtomicU32;

use portolan::addr::StreamId;
use portolan::iommu::{Attach, AttachError, FaultEvent, Iommu, IommuError, ReservedRegion};
use portolan::platform::{AllMemory, UnitPlatform};

use super::config::WriteKind;
use super::shared::{BLOCKED, TegraShared};
use super::unit::{EnableBits, StreamDestination, TegraDomain, TegraSmmu};
use crate::chassis::book::{self, Streams};
use crate::tegra_smmu::swgroup::{Enables, Swgroup};
use portolan_spec::tegra_smmu::reg::{self, asid};

type Attachment = book::Attachment<StreamDestination>;

impl<P: UnitPlatform<AtomicU32>> TegraSmmu<P> {
    /// Blocks all streams that are not.
    ///
    /// # Errors
    /// The first failure; the others are tried all the same.
    pub(super) fn block_all(&self) -> Result<(), IommuError> {
        let groups = self.shared.chip.swgroups();
        self.book.block_all(self.turn(), |n| match groups.get(n) {
            Some(group) => self.go(n, group, None),
            None => Ok(()),
        })
    }

    /// Clock and limit for a turn: a caller that has the turn moves streams; no other waits for it
    /// longer than the limit.
    pub(super) fn turn(&self) -> TurnWait<'_, P> {
        let wait = TurnWait::new(&self.shared.clock, self.shared.limit);
        wait.while_running(&self.shared.operation)
    }

    /// The swgroup of `stream`, and its number among them.
    fn group(&self, stream: StreamId) -> Result<(usize, &'static Swgroup), AttachError> {
        let mut groups = self.shared.chip.swgroups().iter().enumerate();
        let found = groups.find(|(_, group)| group.stream == stream);
        found.ok_or(AttachError::NoSuchStream { stream })
    }

    /// Moves swgroup `n`.
    fn go(&self, n: usize, group: &Swgroup, new: Option<Attachment>) -> Result<(), IommuError> {
        let shared = &*self.shared;
        let passed = new.as_ref().is_some_and(|new| new.to == StreamDestination::Passed);
        if passed && group.enables == Enables::ReadOnly {
            return Err(IommuError::Unsupported);
        }
        // What a failure left over is out of reach before anything new comes into it.
        let settle = |bits: &mut EnableBits, _: &[Attachment]| {
            shared.place(bits, group, None, Written::Unsure)
        };
        let change = |bits: &mut EnableBits, _: Option<&_>, new: Option<&Attachment>| {
            let moved = shared.place(bits, group, new.map(|new| new.to), Written::AsNoted);
            moved.inspect_err(|_| {
                // As far as the hardware follows, it reaches nothing any more.
                let _ = shared.place(bits, group, None, Written::Unsure);
            })
        };
        let go = |all: &mut Streams<usize, StreamDestination, EnableBits>| {
            all.go(n, new, settle, change)
        };
        let left = self.book.with(self.turn(), go)??;
        // Domains without another holder are dropped here and wait for the hardware.
        drop(left);
        Ok(())
    }
}

/// State of the enable bits of a swgroup's clients: as they were last written, or not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    AsNoted,
    Unsure,
}

impl<P: UnitPlatform<AtomicU32>> TegraShared<P> {
    /// Writes where `group` is, and checks that the registers took it.
    pub(super) fn place(
        &self,
        enables: &mut EnableBits,
        group: &Swgroup,
        to: Option<StreamDestination>,
        written: Written,
    ) -> Result<(), IommuError> {
        let id = match to {
            Some(StreamDestination::Space(id)) => id,
            Some(StreamDestination::Passed) | None => BLOCKED,
        };
        let value = asid::ENABLE | id & asid::VALUE;
        let passed = to == Some(StreamDestination::Passed);
        // A client is never translated by what its swgroup's register held before.
        if !passed {
            self.write(WriteKind::SwgroupAsid, group.register, value);
        }
        if group.enables == Enables::Writable {
            for (n, register) in reg::ENABLES.into_iter().enumerate() {
                let bits = reg::enable_bits(group.clients.iter().copied(), register);
                let before = enables[n];
                let after = if passed { before & !bits } else { before | bits };
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
        self.must_hold(group.register, asid::BOTH, value)?;
        self.must_be_on()
    }
}

/// *Context.* Interrupt: `next_fault`. Task: the others, since a domain that a stream leaves may
/// end there.
impl<P: UnitPlatform<AtomicU32>> Iommu for TegraSmmu<P> {
    fn block(&self, stream: StreamId) -> Result<(), AttachError> {
        let (n, group) = self.group(stream)?;
        Ok(self.go(n, group, None)?)
    }

    fn pass_through(&self, stream: StreamId, _all: AllMemory) -> Result<(), AttachError> {
        let (n, group) = self.group(stream)?;
        Ok(self.go(n, group, Some(Attachment::without_domain(StreamDestination::Passed)))?)
    }

    fn reserved(&self, stream: StreamId, each: &mut dyn FnMut(ReservedRegion)) {
        self.reservations().of(stream, each);
    }

    fn suspend(&self) -> Result<(), IommuError> {
        self.power_down()
    }

    fn resume(&self) -> Result<(), IommuError> {
        self.power_up()
    }

    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        self.fault()
    }
}

impl<P: UnitPlatform<AtomicU32>> Attach<TegraDomain<P>> for TegraSmmu<P> {
    fn attach(&self, stream: StreamId, domain: &Arc<TegraDomain<P>>) -> Result<(), AttachError> {
        if !Arc::ptr_eq(&domain.queue().0, &self.shared) {
            return Err(AttachError::Mismatch);
        }
        let new = Attachment::new(StreamDestination::Space(domain.context().get()), domain);
        let (n, group) = self.group(stream)?;
        Ok(self.go(n, group, Some(new))?)
    }
}
