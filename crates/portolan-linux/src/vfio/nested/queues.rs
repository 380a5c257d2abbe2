//! Queues of a guest's commands that the hardware reads by itself, from the guest's memory.
//!
//! linux/iommufd.h (`IOMMU_HW_QUEUE_ALLOC`, `iommu_viommu_tegra241_cmdqv`, `IOMMU_VEVENTQ_TYPE_TEGRA241_CMDQV`), as of
//! Linux 7.3. The kernel pins a queue, which has to be contiguous in the host's memory as well. The guest rings the
//! queues by registers that the monitor maps into it, so that no command of the guest's leaves it.

use std::num::NonZeroU32;
use std::ptr::NonNull;
use std::sync::Arc;

use portolan::addr::IovaRange;
use portolan::iommu::IommuError;

use super::events::EventQueue;
use super::kinds::QueueKind;
use super::viommu::{Inner, VirtualIommu};
use crate::calls::refused;
use crate::sys::Window;
use crate::sys::iommufd::nested as call;
use crate::vfio::iommufd::Object;

/// A queue with the one before it: the kernel takes them away from the last to the first.
#[derive(Debug)]
struct Queue {
    // Destroyed before the queue and the virtual IOMMU below it.
    _object: Object,
    index: u32,
    _before: Option<Arc<Queue>>,
    viommu: Arc<Inner>,
}

/// A queue of commands in a guest's memory. It keeps its virtual IOMMU, and the queues before it.
#[derive(Clone, Debug)]
pub struct CommandQueue {
    queue: Arc<Queue>,
}

impl CommandQueue {
    /// Number of the queue among those of its virtual IOMMU.
    pub fn index(&self) -> u32 {
        self.queue.index
    }

    #[cfg(test)]
    pub(super) fn id(&self) -> u32 {
        self.queue._object.id
    }
}

/// Registers of a virtual IOMMU's queues, for its guest.
#[derive(Debug)]
pub struct QueueRegisters {
    // Unmapped before the virtual IOMMU goes.
    window: Window,
    _viommu: Arc<Inner>,
}

impl QueueRegisters {
    /// The pages that the monitor maps into its guest. They are as long as the value lives, and are reached by volatile
    /// accesses alone.
    pub fn view(&self) -> NonNull<[u8]> {
        self.window.view()
    }
}

impl<K: QueueKind> VirtualIommu<K> {
    /// A queue at `memory`, addresses of the guest's: the first, or the one after `before`.
    ///
    /// *Context.* Task: a system call.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] if `before` is of another virtual IOMMU; otherwise the kernel's: for memory that is
    /// not mapped, not contiguous, or of a size or an alignment that the hardware does not take, and for one queue more
    /// than it has.
    pub fn queue(
        &self,
        before: Option<&CommandQueue>,
        memory: IovaRange,
    ) -> Result<CommandQueue, IommuError> {
        let own = before.is_none_or(|before| Arc::ptr_eq(&before.queue.viommu, &self.inner));
        let index = before.map_or(Some(0), |before| before.index().checked_add(1));
        let index = index.filter(|_| own).ok_or(IommuError::Unsupported)?;
        let length = memory.len_minus_one().checked_add(1).ok_or(IommuError::Unsupported)?;
        let Object { iommufd, id: viommu } = &self.inner.object;
        let (viommu, kind, start) = (*viommu, K::QUEUE, memory.start().get());
        let queue = call::HwQueue { viommu, kind, index, start, length };
        let id = call::new_hw_queue(iommufd.descriptor(), queue);
        let id = id.map_err(|error| refused(&error))?;
        let _object = Object { iommufd: iommufd.clone(), id };
        let _before = before.map(|before| before.queue.clone());
        let queue = Queue { _object, index, _before, viommu: self.inner.clone() };
        Ok(CommandQueue { queue: Arc::new(queue) })
    }

    /// A queue for errors of its queues, of at most `depth` at a time, beside that of its devices' events. The monitor
    /// hands each to its guest by the interrupt of the guest's queues.
    ///
    /// *Context.* Task: a system call.
    ///
    /// # Errors
    /// The kernel's; a virtual IOMMU has one such queue.
    pub fn queue_errors(&self, depth: NonZeroU32) -> Result<EventQueue<K::Errors>, IommuError> {
        self.events_of(depth)
    }

    /// Registers of its queues.
    ///
    /// *Context.* Task: a system call.
    ///
    /// # Errors
    /// The kernel's, or that its answer makes no sense.
    pub fn registers(&self) -> Result<QueueRegisters, IommuError> {
        let mut answer = self.inner.data.iter().copied().skip(K::REGISTERS);
        let (Some(offset), Some(length)) = (answer.next(), answer.next()) else {
            return Err(IommuError::Unsupported);
        };
        let nonsense = IommuError::Nonsense { offset: 0, value: length };
        let length = usize::try_from(length).ok().filter(|length| *length != 0).ok_or(nonsense)?;
        let window = Window::new(self.inner.object.iommufd.descriptor(), offset, length);
        let window = window.map_err(|error| refused(&error))?;
        Ok(QueueRegisters { window, _viommu: self.inner.clone() })
    }
}
