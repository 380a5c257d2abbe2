//! Streams: where each is, and how it moves.
//!
//! IHI 0070, sections 3.21 (configuration and invalidation order) and 4.3 (CMD_CFGI). A stream that
//! is being moved is taken out of the map, so that no lock is held while the unit is waited for. If
//! the unit does not complete a move, the stream's entry is made invalid in memory and everything
//! that the unit may still use of it is kept until a later move completes.

use super::book::Book;
use super::command;
use super::context::Tag;
use super::context_table::ContextTable;
use super::features::{Has, StallModel};
use super::machine::Machine;
use super::shared::Remote;
use super::spec::command::Words;
use super::spec::{cd, ste};
use super::stream_table::Place;
use super::unit::Smmu;
use super::update::{EntryPlan, EntryStep};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::any::Any;
use core::sync::atomic::AtomicU64;
use portolan::addr::{Pasid, StreamId};
use portolan::platform::{Cpus, Mmio, TableMem};
use portolan::unit::{AttachError, Awaited, UnitError};

/// A domain that is kept alive.
pub(super) type Hold = Arc<dyn Any + Send + Sync>;

/// What a stream, or one of its substreams, is attached to.
#[derive(Default)]
pub(super) struct Attached {
    pub tag: Option<Tag>,
    #[expect(dead_code, reason = "kept for its drop")]
    pub hold: Option<Hold>,
    /// Whether a guest's first stage lies on top.
    pub nested: bool,
}

/// One stream.
#[derive(Default)]
pub(super) struct Stream {
    contexts: Option<ContextTable>,
    /// Exponent of the number of substreams.
    pasid_lg2: u32,
    pub main: Attached,
    pasids: BTreeMap<u32, Attached>,
    ats: Has,
    /// Whether faulting accesses wait.
    stalls: Has,
    /// What failed moves left behind.
    stale: Vec<Attached>,
    /// Descriptors that the unit may still look at.
    stale_contexts: Vec<ContextTable>,
}

impl Stream {
    /// A descriptor as this stream uses it: an invalid one stays as it is.
    fn stalling(&self, descriptor: &cd::Cd) -> cd::Cd {
        let mut descriptor = *descriptor;
        if self.stalls == Has::Yes && cd::V.get(&descriptor) != 0 {
            cd::S.set(&mut descriptor, 1);
        }
        descriptor
    }
}

enum Slot {
    /// Being moved.
    Busy,
    Idle(Box<Stream>),
}

/// All streams that were ever named.
pub(super) struct Streams<C: Cpus>(Book<C, StreamId, Slot>);

impl<C: Cpus> core::fmt::Debug for Streams<C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Streams").finish_non_exhaustive()
    }
}

impl<C: Cpus> Default for Streams<C> {
    fn default() -> Self {
        Self(Book::default())
    }
}

impl<C: Cpus> Streams<C> {
    /// Gives back what the streams hold. The unit must be disabled.
    pub fn release<R: Mmio, M: TableMem<AtomicU64>>(&self, machine: &Machine<R, M, C>) {
        for (_, slot) in self.0.take() {
            if let Slot::Idle(stream) = slot {
                for contexts in stream.contexts.into_iter().chain(stream.stale_contexts) {
                    contexts.release(machine);
                }
            }
        }
    }
}

/// Where a stream is to go.
pub(super) struct Target {
    /// Its entry, but for the descriptors.
    pub entry: ste::Ste,
    /// Its descriptor, for a first stage of ours.
    pub descriptor: Option<cd::Cd>,
    pub attached: Attached,
}

/// Forgetting a stream: its entry and, if it had any, its descriptors.
type Forget = ArrayVec<Words, 2>;

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> Smmu<R, M, C> {
    /// Takes a stream for the caller alone. Memory is needed only for one that was never named.
    fn claim(&self, id: StreamId) -> Result<Box<Stream>, UnitError> {
        let streams = &self.streams.0;
        self.shared.machine.wait(Awaited::Turn, || {
            let take = |slot: &mut Slot| core::mem::replace(slot, Slot::Busy);
            Ok(match streams.with(id, take) {
                Some(Slot::Idle(stream)) => Some(stream),
                Some(Slot::Busy) => None,
                None => streams.insert(id, Slot::Busy).ok().map(|()| Box::default()),
            })
        })
    }

    /// Works on a stream that nobody else works on meanwhile.
    pub(super) fn with_stream<T>(
        &self,
        id: StreamId,
        work: impl FnOnce(&mut Stream, Place) -> Result<T, AttachError>,
    ) -> Result<T, AttachError> {
        self.shared.queue.running()?;
        let place = self.table.place(&self.shared.machine, id)?;
        let mut stream = self.claim(id)?;
        let result = work(&mut stream, place);
        self.streams.0.with(id, |slot| *slot = Slot::Idle(stream));
        result
    }

    /// Moves a stream.
    pub(super) fn switch(&self, id: StreamId, target: Target) -> Result<(), AttachError> {
        self.with_stream(id, |stream, place| {
            let Target {
                mut entry,
                descriptor,
                attached,
            } = target;
            let second = ste::CONFIG.get(&entry) & 0b10 != 0;
            if second && !stream.pasids.is_empty() {
                return Err(AttachError::Mismatch);
            }
            self.prepare_contexts(stream, descriptor.is_some())?;
            self.point(stream, &mut entry, descriptor.is_some());
            self.enlist(id, stream, None, &attached);
            let moved = self.write_main(id, stream, place, &entry, descriptor.as_ref());
            let old = core::mem::replace(&mut stream.main, attached);
            self.settle(id, stream, None, place, old, moved)
        })
    }

    /// Allocates descriptors if they are needed.
    fn prepare_contexts(&self, stream: &mut Stream, needed: bool) -> Result<(), UnitError> {
        if needed && stream.contexts.is_none() {
            let features = &self.shared.features;
            let table = ContextTable::new(
                &self.shared.machine,
                stream.pasid_lg2,
                features.two_level_cd,
            )?;
            stream.contexts = Some(table);
        }
        if let Some(contexts) = stream.contexts.as_mut().filter(|c| c.lg2() != 0) {
            // The second-level table, if there is one.
            contexts.place(&self.shared.machine, 0)?;
        }
        Ok(())
    }

    /// Completes an entry for a stream with descriptors of ours, as far as it uses them.
    fn point(&self, stream: &Stream, entry: &mut ste::Ste, own: bool) {
        use ste::{config, s1dss};
        if stream.ats == Has::Yes && ste::CONFIG.get(entry) & 0b11 != 0 {
            ste::EATS.set(entry, ste::eats::FULL);
        }
        if stream.stalls == Has::Yes
            && ste::CONFIG.get(entry) & ste::config::STAGE2 == ste::config::STAGE2
        {
            ste::S2S.set(entry, 1);
        }
        let Some(contexts) = stream.contexts.as_ref() else {
            return;
        };
        if !own && stream.pasids.is_empty() {
            return;
        }
        let without = match (own, ste::CONFIG.get(entry)) {
            (true, _) => s1dss::SSID0,
            (false, config::BYPASS) => s1dss::BYPASS,
            (false, _) => s1dss::TERMINATE,
        };
        first_stage_entry(entry, self.shared.features.coherent);
        let may_stall = self.shared.features.stalls == StallModel::Either;
        if may_stall && stream.stalls == Has::No {
            ste::S1STALLD.set(entry, 1);
        }
        if stream.ats == Has::Yes {
            ste::EATS.set(entry, ste::eats::FULL);
        }
        contexts.describe(entry);
        if contexts.lg2() != 0 {
            ste::S1DSS.set(entry, without);
        }
    }

    /// Writes the descriptor of accesses without a substream, and the entry.
    fn write_main(
        &self,
        id: StreamId,
        stream: &mut Stream,
        place: Place,
        entry: &ste::Ste,
        descriptor: Option<&cd::Cd>,
    ) -> Result<(), UnitError> {
        let machine = &*self.shared.machine;
        let mut entry = *entry;
        let descriptor = descriptor.map(|descriptor| stream.stalling(descriptor));
        let descriptor = descriptor.as_ref();
        match (stream.contexts.as_mut(), descriptor) {
            (Some(contexts), Some(descriptor)) if contexts.lg2() == 0 => {
                contexts.flip(machine, descriptor);
                contexts.describe(&mut entry);
            }
            (Some(contexts), descriptor) if contexts.lg2() != 0 => {
                let at = contexts.place(machine, 0)?;
                let none = [0; cd::WORDS];
                self.write_context(id, 0, at, descriptor.unwrap_or(&none))?;
            }
            _ => {}
        }
        let old = self.load(place);
        let mut forget = Forget::new();
        forget.push(command::config_stream(id));
        if ste::V.get(&old) != 0 && ste::CONFIG.get(&old) & 0b101 == ste::config::STAGE1 {
            forget.push(command::config_contexts(id));
        }
        self.carry_out(place, &EntryPlan::stream(&old, &entry), &forget)
    }

    fn write_context(
        &self,
        id: StreamId,
        pasid: u32,
        place: Place,
        descriptor: &cd::Cd,
    ) -> Result<(), UnitError> {
        let plan = EntryPlan::context(&self.load(place), descriptor);
        let forget = [command::config_context(id, Pasid::new(pasid))];
        self.carry_out(place, &plan, &forget)
    }

    fn load(&self, place: Place) -> [u64; 8] {
        core::array::from_fn(|word| self.shared.machine.load(place.block, place.word + word))
    }

    fn carry_out(&self, place: Place, plan: &EntryPlan, forget: &[Words]) -> Result<(), UnitError> {
        for step in plan.steps() {
            match *step {
                EntryStep::Write { word, value } => {
                    let machine = &self.shared.machine;
                    machine.store(place.block, place.word + word, value);
                }
                EntryStep::Forget => self.shared.queue.run(&mut forget.iter().copied())?,
            }
        }
        Ok(())
    }

    /// Before a stream reaches a domain: whom the domain has to tell from now on.
    fn enlist(&self, id: StreamId, stream: &Stream, pasid: Option<Pasid>, new: &Attached) {
        let Some(tag) = new.tag else { return };
        if stream.ats == Has::Yes {
            self.shared.remotes.add(tag, Remote { stream: id, pasid });
        }
        if new.nested {
            self.shared.nested.add(tag, id);
        }
    }

    fn discharge(&self, id: StreamId, pasid: Option<Pasid>, old: &Attached) {
        let Some(tag) = old.tag else { return };
        self.shared
            .remotes
            .remove(tag, Remote { stream: id, pasid });
        if old.nested {
            self.shared.nested.remove(tag, id);
        }
    }

    /// After a move: the device forgets what it knew, and the old domain is let go. If anything
    /// failed, the stream is blocked in memory and nothing is let go.
    fn settle(
        &self,
        id: StreamId,
        stream: &mut Stream,
        pasid: Option<Pasid>,
        place: Place,
        old: Attached,
        moved: Result<(), UnitError>,
    ) -> Result<(), AttachError> {
        let told = moved.and_then(|()| match stream.ats {
            Has::Yes if old.tag.is_some() => {
                let forget = command::invalidate_device(id, pasid, None);
                self.shared.run([forget])
            }
            _ => Ok(()),
        });
        if let Err(error) = told {
            let machine = &self.shared.machine;
            machine.store(place.block, place.word, 0);
            machine.barrier();
            let new = core::mem::take(&mut stream.main);
            stream.stale.extend([old, new]);
            // The places of a single descriptor can no longer take turns.
            let single = stream.contexts.take_if(|contexts| contexts.lg2() == 0);
            stream.stale_contexts.extend(single);
            return Err(error.into());
        }
        self.discharge(id, pasid, &old);
        for stale in core::mem::take(&mut stream.stale) {
            self.discharge(id, None, &stale);
        }
        for contexts in core::mem::take(&mut stream.stale_contexts) {
            contexts.release(&self.shared.machine);
        }
        Ok(())
    }

    /// Gives a stream room for `2^lg2` substreams. The stream must not be attached.
    ///
    /// # Errors
    /// [`UnitError::Unsupported`] if the unit has not as many, [`AttachError::Mismatch`] if the
    /// stream is attached or had another number before.
    pub fn enable_pasids(&self, id: StreamId, lg2: u32) -> Result<(), AttachError> {
        if lg2 == 0 || lg2 > self.shared.features.pasid_lg2 {
            return Err(UnitError::Unsupported.into());
        }
        self.with_stream(id, |stream, _| {
            let other = stream.contexts.is_some() && stream.pasid_lg2 != lg2;
            if stream.main.tag.is_some() || other {
                return Err(AttachError::Mismatch);
            }
            stream.pasid_lg2 = lg2;
            self.prepare_contexts(stream, true)?;
            Ok(())
        })
    }

    /// Lets a device use translations of its own (ATS). To be called before the device is told;
    /// the stream must not be attached.
    ///
    /// # Errors
    /// [`UnitError::Unsupported`] if the unit cannot, [`AttachError::Mismatch`] if the stream is
    /// attached.
    pub fn enable_ats(&self, id: StreamId) -> Result<(), AttachError> {
        if self.shared.features.ats == Has::No {
            return Err(UnitError::Unsupported.into());
        }
        self.with_stream(id, |stream, _| {
            if stream.main.tag.is_some() || !stream.pasids.is_empty() {
                return Err(AttachError::Mismatch);
            }
            stream.ats = Has::Yes;
            Ok(())
        })
    }

    /// Lets faulting accesses of a stream wait until they are answered. To be called before the
    /// device is told; the stream must not be attached. Not for devices of PCI Express, whose
    /// transactions must not be held up.
    ///
    /// # Errors
    /// [`UnitError::Unsupported`] if the unit cannot, [`AttachError::Mismatch`] if the stream is
    /// attached.
    pub fn enable_stalls(&self, id: StreamId) -> Result<(), AttachError> {
        if self.shared.features.stalls != StallModel::Either {
            return Err(UnitError::Unsupported.into());
        }
        self.with_stream(id, |stream, _| {
            if stream.main.tag.is_some() || !stream.pasids.is_empty() {
                return Err(AttachError::Mismatch);
            }
            stream.stalls = Has::Yes;
            Ok(())
        })
    }

    /// Moves a substream.
    pub(super) fn switch_pasid(
        &self,
        id: StreamId,
        pasid: Pasid,
        descriptor: &cd::Cd,
        new: Attached,
    ) -> Result<(), AttachError> {
        let index = pasid.get();
        self.with_stream(id, |stream, place| {
            let second = matches!(stream.main.tag, Some(Tag::Vmid(_)));
            let contexts = stream.contexts.as_mut().filter(|c| c.lg2() != 0 && !second);
            let contexts = contexts.ok_or(AttachError::Mismatch)?;
            if index == 0 || u64::from(index) >> contexts.lg2() != 0 {
                return Err(AttachError::Mismatch);
            }
            let at = contexts.place(&self.shared.machine, index)?;
            self.enlist(id, stream, Some(pasid), &new);
            let descriptor = stream.stalling(descriptor);
            let moved = self
                .write_context(id, index, at, &descriptor)
                .and_then(|()| self.look_at_contexts(id, stream, place));
            let old = match new.tag {
                Some(_) => stream.pasids.insert(index, new),
                None => stream.pasids.remove(&index),
            };
            let old = old.unwrap_or_default();
            self.settle(id, stream, Some(pasid), place, old, moved)
        })
    }

    /// Has the entry of a stream point at its descriptors if it does not yet.
    fn look_at_contexts(
        &self,
        id: StreamId,
        stream: &Stream,
        place: Place,
    ) -> Result<(), UnitError> {
        let old = self.load(place);
        let first = ste::CONFIG.get(&old) == ste::config::STAGE1;
        if ste::V.get(&old) != 0 && first {
            return Ok(());
        }
        let mut entry = old;
        if ste::V.get(&old) == 0 {
            entry = [0; ste::WORDS];
        }
        let without = match ste::CONFIG.get(&entry) {
            ste::config::BYPASS => ste::s1dss::BYPASS,
            _ => ste::s1dss::TERMINATE,
        };
        first_stage_entry(&mut entry, self.shared.features.coherent);
        if let Some(contexts) = stream.contexts.as_ref() {
            contexts.describe(&mut entry);
        }
        ste::S1DSS.set(&mut entry, without);
        if stream.ats == Has::Yes {
            ste::EATS.set(&mut entry, ste::eats::FULL);
        }
        let forget = [command::config_stream(id)];
        self.carry_out(place, &EntryPlan::stream(&old, &entry), &forget)
    }
}

/// What every entry with a first stage has.
pub(super) fn first_stage_entry(entry: &mut ste::Ste, coherent: Has) {
    let (cacheable, shareable) = super::domain::walk_attributes(coherent);
    ste::V.set(entry, 1);
    let second = ste::CONFIG.get(entry) & 0b10;
    let second = if ste::CONFIG.get(entry) & ste::config::BYPASS == 0 {
        0
    } else {
        second
    };
    ste::CONFIG.set(entry, ste::config::STAGE1 | second);
    ste::S1CIR.set(entry, cacheable);
    ste::S1COR.set(entry, cacheable);
    ste::S1CSH.set(entry, shareable);
    ste::SHCFG.set(entry, ste::SHARE_INCOMING);
}
