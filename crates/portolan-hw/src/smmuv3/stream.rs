//! Streams: where each is.
//!
//! IHI 0070, sections 3.3 (stream table) and 3.9 (ATS).

use super::context::Tag;
use super::context_table::ContextTable;
use super::machine::Machine;
use crate::chassis::arm::Has;
use crate::chassis::book;
use crate::chassis::turn::Turn;
use crate::chassis::{Sorted, with_room};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound;
use portolan::addr::{Pasid, StreamId};
use portolan::platform::{Guarded, UnitPlatform};
use portolan_spec::smmuv3::cd;

/// Attachment of a stream, or of one of its substreams.
#[derive(Clone, Copy, Debug)]
pub(super) struct To {
    pub tag: Tag,
    /// Set if a guest's first stage lies on top.
    pub nested: bool,
}

pub(super) type Attachment = book::Attachment<To>;

/// One stream.
///
/// *Context.* Interrupt, its own methods: they look at it.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pub contexts: Option<ContextTable>,
    /// Exponent of the number of substreams.
    pub pasid_lg2: u32,
    /// Of its substreams, and of accesses without one. The unsettled attachment of any has entries
    /// and descriptors that are no longer in memory.
    pub attachments: book::Streams<Option<Pasid>, To, ()>,
    /// Permission for the device to get translations.
    pub ats: Has,
    /// Set if it may have some that it was not asked to forget since.
    pub filled: Has,
    /// Set if faulting accesses wait.
    pub stalls: Has,
    /// Descriptors that the unit may still look at.
    pub(super) stale_contexts: Vec<ContextTable>,
}

impl Stream {
    /// Tells if nothing reaches memory through it.
    pub fn is_free(&self) -> bool {
        self.attachments.attached(..).next().is_none()
    }

    /// Attachment of accesses without a substream.
    pub fn main(&self) -> Option<To> {
        self.attachments.attachment(None).map(|main| main.to)
    }

    pub(super) fn has_substreams(&self) -> bool {
        let all = (Bound::Excluded(None), Bound::Unbounded);
        self.attachments.attached(all).next().is_some()
    }

    /// Gives back its descriptors.
    pub fn release<P: UnitPlatform>(self, machine: &Machine<P>) {
        for contexts in self.contexts.into_iter().chain(self.stale_contexts) {
            contexts.release(machine);
        }
    }

    /// A descriptor as this stream uses it: an invalid one stays as it is.
    pub(super) fn stalling(&self, descriptor: &cd::Cd) -> cd::Cd {
        let mut descriptor = *descriptor;
        if self.stalls == Has::Yes && cd::V.get(&descriptor) != 0 {
            cd::S.set(&mut descriptor, 1);
        }
        descriptor
    }
}

/// All streams that were ever named.
///
/// *Context.* Task: the list takes and frees heap memory.
pub(super) struct Streams<P: UnitPlatform>(Guarded<P, Sorted<StreamId, Arc<Turn<P, Stream>>>>);

impl<P: UnitPlatform> Default for Streams<P> {
    fn default() -> Self {
        Self(Guarded::default())
    }
}

impl<P: UnitPlatform> Streams<P> {
    /// The stream `id`. Memory is needed only for one that was never named.
    pub(super) fn of(&self, id: StreamId) -> Arc<Turn<P, Stream>> {
        let named = self.0.lock().get(id).cloned();
        named.unwrap_or_else(|| {
            let new = Arc::new(Turn::new(Stream::default()));
            let named = with_room(&self.0, Sorted::list, |all| {
                let named = all.get(id).cloned();
                if named.is_none() {
                    all.insert(id, new.clone());
                }
                named
            });
            named.unwrap_or(new)
        })
    }

    /// Gives back the memory of the streams. The unit must be disabled.
    pub fn release(&self, machine: &Machine<P>) {
        let all = core::mem::take(self.0.lock().list());
        for (_, stream) in all {
            if let Some(mut stream) = stream.try_with(core::mem::take) {
                stream.attachments.settled(..);
                stream.release(machine);
            }
        }
    }
}
