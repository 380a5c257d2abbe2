//! Buffers that are cut in two while they are mapped.

use alloc::sync::Arc;
use core::any::Any;
use core::fmt;
use core::ptr::NonNull;

use super::buffer::{Buffer, HostVisibility, MemoryKind, Pieces, Sharing, SplitBuffer};

/// A part of the buffer of a mapping that was cut, and its share in what the parts have in common.
///
/// *Context.* Interrupt, but for [`MappedPart::into_buffer`] and dropping it (task).
pub struct MappedPart<B> {
    buffer: B,
    share: Option<PartShare>,
}

/// A share in what the parts of a mapping have in common.
pub(crate) type PartShare = Arc<dyn Any + Send + Sync>;

impl<B> MappedPart<B> {
    pub(crate) const fn new(buffer: B, share: Option<PartShare>) -> Self {
        Self { buffer, share }
    }

    /// The part of the buffer.
    ///
    /// *Context.* Task.
    pub fn into_buffer(self) -> B {
        self.buffer
    }
}

impl<B: SplitBuffer> MappedPart<B> {
    /// Two parts, with a share each. `at` is inside.
    pub(crate) fn split_at(self, at: u64) -> (Self, Self) {
        let (one, other) = self.buffer.split_at(at);
        let share = self.share.clone();
        (Self::new(one, share), Self::new(other, self.share))
    }
}

impl<B> fmt::Debug for MappedPart<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedPart").finish_non_exhaustive()
    }
}

// SAFETY: all is as the buffer promises it.
unsafe impl<B: Buffer> Buffer for MappedPart<B> {
    fn pieces(&self) -> Pieces<'_> {
        self.buffer.pieces()
    }

    fn device_may_write(&self) -> bool {
        self.buffer.device_may_write()
    }

    fn sharing(&self) -> Sharing {
        self.buffer.sharing()
    }

    fn memory_kind(&self) -> MemoryKind {
        self.buffer.memory_kind()
    }

    fn host_visibility(&self) -> HostVisibility {
        self.buffer.host_visibility()
    }

    fn view(&self) -> Option<NonNull<[u8]>> {
        self.buffer.view()
    }
}
